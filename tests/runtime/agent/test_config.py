"""The agent's configuration, and what the command says of a bad one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.agent.config import ConfigError, load_config
from runtime.health.policy import SHIPPED_THERMAL
from runtime.outbox import Outbox
from tests.runtime.agent.conftest import ROOT

GOOD = """
[agent]
cluster = "c1"
node = "n1"
server = "http://127.0.0.1:8000/"
state_dir = "state"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD), {})

    assert config.source == "/clusters/c1/nodes/n1/agent"
    assert config.server == "http://127.0.0.1:8000"
    assert config.state_dir == tmp_path / "state"
    assert (config.token, config.enrolment_token, config.specs) == (None, None, None)
    assert (config.heartbeat_seconds, config.health_interval_seconds) == (10.0, 1.0)
    assert config.thermal_policy == SHIPPED_THERMAL
    assert config.allow_root is False


def test_environment_beats_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n", encoding="utf-8")
    (tmp_path / "other").write_text("from-other\n", encoding="utf-8")
    path = write(tmp_path, GOOD + 'token_file = "token"\n')

    assert load_config(path, {}).token == "from-file"
    other = {"UNBROKEN_AGENT_TOKEN_FILE": str(tmp_path / "other")}
    assert load_config(path, other).token == "from-other"
    assert load_config(path, {**other, "UNBROKEN_AGENT_TOKEN": "direct"}).token == "direct"
    server = load_config(path, {"UNBROKEN_AGENT_SERVER": "https://fleet.example"}).server
    assert server == "https://fleet.example"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD.replace('node = "n1"\n', ""), "agent.node is missing"),
        (GOOD.replace('"n1"', '"n/1"'), "agent.node must be letters"),
        (GOOD.replace("http:", "ftp:"), "agent.server must be an http or https address"),
        (GOOD + "heartbeat_seconds = 0\n", "agent.heartbeat_seconds must be seconds above zero"),
        (GOOD + "heartbeat_second = 1\n", "agent.heartbeat_second is not a setting"),
        (GOOD + "allow_root = 1\n", "agent.allow_root must be true or false, not 1"),
        (GOOD + 'token_file = "gone"\n', "agent.token_file: .*gone: No such file"),
        (GOOD + "[helath]\n", "helath is not a section; there are agent, health, nvml"),
        (GOOD + '[nvml]\nlibrary_dir = "gone"\n', "nvml.library_dir: .*gone is not a folder"),
        (GOOD + "[nvml]\nenvironment = { A = 1 }\n", "nvml.environment must map"),
        ("[agent", "Expected"),
    ],
)
def test_bad_files_name_the_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)

    with pytest.raises(ConfigError, match=complaint) as caught:
        load_config(path, {})
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def run_agent(config: Path, *more: str) -> tuple[int, str, str]:
    result = subprocess.run(
        [sys.executable, "-m", "runtime.agent", "--config", str(config), *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


def one_line(result: tuple[int, str, str]) -> str:
    code, output, errors = result
    assert (code, output) == (2, "")
    assert errors.endswith("\n")
    assert errors.count("\n") == 1
    return errors.strip()


def test_the_command_says_one_line_and_exits_2(tmp_path: Path) -> None:
    gone = tmp_path / "none.toml"
    assert one_line(run_agent(gone)) == f"unbroken agent: {gone}: No such file or directory"

    path = write(tmp_path, GOOD + 'specs = "specs.toml"\n')
    (tmp_path / "specs.toml").write_text(
        '[[spec]]\nname = "x"\nargv = ["true"]\nuser = "root"\n', encoding="utf-8"
    )
    assert "user 'root' is root, and nothing is run as root" in one_line(run_agent(path))

    path = write(tmp_path, GOOD + '[health]\npolicy = "agent.toml"\n')
    assert "agent is not a key of a thermal policy" in one_line(run_agent(path))


def test_the_state_of_another_node_is_refused(tmp_path: Path) -> None:
    Outbox(tmp_path / "state" / "outbox.db", "/clusters/c1/nodes/n2/agent").close()

    line = one_line(run_agent(write(tmp_path, GOOD)))

    assert line.endswith(
        "holds the events of /clusters/c1/nodes/n2/agent, not of /clusters/c1/nodes/n1/agent"
    )


def test_a_damaged_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "memory.json").write_text("{", encoding="utf-8")

    line = one_line(run_agent(write(tmp_path, GOOD)))

    assert "memory.json: not the memory of an agent" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_state_folder_that_cannot_be_made(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace('"state"', '"/proc/none"'))

    assert "agent.state_dir" in one_line(run_agent(path))


def test_prints_the_digests_of_its_specs(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + 'specs = "specs.toml"\nallow_root = true\n')
    (tmp_path / "specs.toml").write_text(
        '[[spec]]\nname = "x"\nargv = ["true"]\n', encoding="utf-8"
    )

    code, output, _errors = run_agent(path, "--print-specs")

    assert code == 0
    digest, name = output.split()
    assert (len(digest), name) == (64, "x")
