"""The embedded services: shared while used, gone after the last user, whoever is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from config.embedded import EmbeddedError, binaries, find_place, join, leave, state
from config.embedded.place import Account, Place, reachable

PROJECT = Path(__file__).resolve().parents[2]

USER = """
import sys, time
from pathlib import Path
from config.embedded import find_place, join
print(join(find_place(Path(sys.argv[1])))["keeper"], flush=True)
sys.stdin.read()
"""


class User:
    """A process that uses the services until it is told to end."""

    def __init__(self, var: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(var)], cwd=PROJECT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def keeper(self) -> int:
        return int(self.process.stdout.readline())

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def var(tmp_path):
    """pytest's folders are closed to other accounts, as a checkout under /root is."""
    folder = tmp_path / "var"
    folder.mkdir()
    yield folder
    place = find_place(folder)
    leave(place)
    until(lambda: state(place) is None)
    if place.root.parent != place.control:
        shutil.rmtree(place.root)


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def pids(place: Place) -> list[int]:
    current = state(place)
    return [current["keeper"], *current["services"].values()]


def test_users_share_one_and_the_last_takes_it_down(var):
    place = find_place(var)
    first, second = User(var), User(var)

    assert first.keeper() == second.keeper()
    everything = pids(place)
    first.end()
    assert all(map(is_running, everything))
    with psycopg.connect(place.database_url) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("unbroken_app",)
    second.end()

    assert not any(map(is_running, everything))
    assert state(place) is None


def test_users_killed_leave_nothing_behind(var):
    place = find_place(var)
    users = [User(var), User(var)]
    [user.keeper() for user in users]
    everything = pids(place)

    [user.kill() for user in users]

    until(lambda: not any(map(is_running, everything)))
    assert not (place.control / "state.json").exists()


@pytest.mark.parametrize("service", ["postgres", "valkey"])
def test_a_killed_service_comes_back_with_its_data(var, service):
    place = find_place(var)
    join(place)
    with psycopg.connect(owner_url(place), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    before = state(place)["services"][service]

    os.kill(before, signal.SIGKILL)

    until(lambda: state(place)["services"][service] != before)
    after = join(place)
    assert after["services"][service] != before
    assert is_running(after["services"][service])
    with psycopg.connect(owner_url(place)) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_killed_keeper_takes_its_servers_and_the_next_join_starts_anew(var):
    place = find_place(var)
    before = join(place)
    os.kill(before["keeper"], signal.SIGKILL)
    until(lambda: not is_running(before["keeper"]))

    after = join(place)

    assert after["keeper"] != before["keeper"]
    until(lambda: not any(map(is_running, before["services"].values())))
    with psycopg.connect(place.database_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_other_accounts_are_refused(var):
    place = find_place(var)
    join(place)
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    assert "Permission denied" in connection_error_as(uid=1, url=place.database_url)
    with pytest.raises(psycopg.OperationalError, match="Peer authentication failed"):
        psycopg.connect(place.database_url.replace("unbroken_app", "postgres"))


def test_commands_that_need_no_database_start_none(tmp_path):
    var = tmp_path / "v"
    done = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=PROJECT, capture_output=True, text=True,
        env={**os.environ, "VAR_DIR": str(var)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    place = find_place(var)
    assert not (place.control / "keeper.log").exists()
    assert (var / "secret_key").stat().st_mode & 0o777 == 0o600
    if place.root.parent != place.control:
        place.root.rmdir()


def test_a_folder_is_reachable_when_every_parent_lets_the_account_pass(tmp_path):
    account = Account("nobody", 65534, 65534)
    closed = tmp_path / "closed"
    (closed / "var").mkdir(parents=True)
    closed.chmod(0o700)

    assert reachable(closed / "var", None)
    assert not reachable(closed / "var", account)
    assert reachable(Path("/usr/bin"), account)


def test_a_server_that_cannot_start_is_told_in_one_line(var, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    place = find_place(var)
    place.root.mkdir(exist_ok=True)
    place.postgres_data.mkdir()
    (place.postgres_data / "PG_VERSION").write_text("9\n")

    with pytest.raises(EmbeddedError, match=r"was written by PostgreSQL 9, and this machine has"):
        join(place)


def test_an_unreachable_database_is_told_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate"], cwd=PROJECT, capture_output=True, text=True,
        env={
            **os.environ,
            "VAR_DIR": str(tmp_path / "v"),
            "DATABASE_URL": "postgresql://unbroken_app:x@127.0.0.1:9/unbroken",
            "DATABASE_OWNER_URL": "postgresql://unbroken_owner:x@127.0.0.1:9/unbroken",
            "REDIS_URL": "redis://127.0.0.1:9/0",
        },
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("manage.py: the database cannot be used: ")
    assert "127.0.0.1" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("DATABASE_URL", "mysql://x/y", "DATABASE_URL must look like postgresql://"),
        ("TOKEN_PEPPERS", "[]", "TOKEN_PEPPERS is JSON such as"),
        ("SECRET_KEY_FILE", "/nonexistent", "SECRET_KEY_FILE=/nonexistent: No such file"),
        ("HTTPS", "perhaps", "HTTPS: Input should be a valid boolean"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(tmp_path, variable, value, message):
    done = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=PROJECT, capture_output=True, text=True,
        env={**os.environ, "VAR_DIR": str(tmp_path / "v"), "REDIS_URL": "redis://h/0",
             "DATABASE_URL": "postgresql://u@h/n", variable: value},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_a_secret_may_come_from_a_file(tmp_path):
    (tmp_path / "key").write_text("from a file\n")
    program = (
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'config.settings'\n"
        "from django.conf import settings; import json\n"
        "print(json.dumps([settings.SECRET_KEY, settings.DATABASES['default']['USER']]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True,
        env={**os.environ, "VAR_DIR": str(tmp_path / "v"), "SECRET_KEY_FILE": str(tmp_path / "key"),
             "DATABASE_URL": "postgresql://me:s%40cret@h/n", "REDIS_URL": "redis://h/0"},
    )  # fmt: skip
    assert json.loads(done.stdout) == ["from a file", "me"]


def owner_url(place: Place) -> str:
    return place.database_url.replace("unbroken_app", "unbroken_owner")


def connection_error_as(*, uid: int, url: str) -> str:
    """What another account is told; by fork, since it may not be able to read our Python."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        message = "it got in"
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            psycopg.connect(url)
        except psycopg.OperationalError as error:
            message = str(error)
        finally:
            os.write(writing, message.encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def test_programs_that_the_account_cannot_reach_are_copied_with_their_libraries(tmp_path):
    site, root = tmp_path / "site", tmp_path / "root"
    package_bin = site / "pgserver" / "pginstall" / "bin"
    package_bin.mkdir(parents=True)
    (package_bin / "initdb").write_text("program")
    (site / "pgserver.libs").mkdir()
    (site / "pgserver.libs" / "libpq.so").write_text("library")
    site.chmod(0o700)
    place = Place(tmp_path, root, Account("nobody", 65534, 65534))

    folder = binaries._runnable(place, package_bin)

    assert folder == root / "programs" / "pgserver" / "pginstall" / "bin"
    assert (folder / "initdb").read_text() == "program"
    # Where the wheel's RPATH, $ORIGIN/../../../pgserver.libs, looks for it.
    assert (folder / "../../../pgserver.libs/libpq.so").resolve().read_text() == "library"
    assert binaries._runnable(place, package_bin) == folder
    assert binaries._runnable(Place(tmp_path, root, None), package_bin) == package_bin


def test_missing_programs_are_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binaries, "_package_folder", lambda _name: None)
    monkeypatch.setattr(binaries, "_postgres_folders", list)
    place = Place(tmp_path, tmp_path, None)

    with pytest.raises(EmbeddedError, match=r"no PostgreSQL >= 15 found .* or set DATABASE_URL$"):
        binaries.find_postgres(place)
    with pytest.raises(EmbeddedError, match=r"no valkey-server or redis-server .* set REDIS_URL$"):
        binaries.find_valkey(place)
