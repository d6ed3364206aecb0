"""The allow-list of run specs: digests, changed code, users."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from runtime.agent.specs import SpecError, load_specs
from runtime.events import canonical_json, sha256_hex

ME = pwd.getpwuid(os.geteuid()).pw_name
USER = "nobody" if os.geteuid() == 0 else ME


def write(folder: Path, text: str) -> Path:
    (folder / "train.py").write_text("print(1)\n", encoding="utf-8")
    path = folder / "specs.toml"
    path.write_text(text.replace("USER", USER), encoding="utf-8")
    return path


GOOD = """
[[spec]]
name = "gpt"
argv = ["python", "train.py"]
user = "USER"
code = ["train.py"]
environment = { OMP_NUM_THREADS = "1" }
"""


def test_the_digest_is_of_all_that_matters(tmp_path: Path) -> None:
    [(digest, spec)] = load_specs(write(tmp_path, GOOD)).items()

    code = sha256_hex(canonical_json([["train.py", sha256_hex(b"print(1)\n")]]))
    assert spec.code_digest == code
    assert digest == sha256_hex(
        canonical_json(
            {
                "argv": ["python", "train.py"],
                "code_digest": code,
                "environment": {"OMP_NUM_THREADS": "1"},
                "name": "gpt",
                "user": USER,
            }
        )
    )
    spec.check()


@pytest.mark.parametrize(
    ("old", "new"),
    [('"train.py"]\nuser', '"train.py", "-x"]\nuser'), ('"1"', '"2"'), ("gpt", "gpt2")],
)
def test_any_change_is_another_digest(tmp_path: Path, old: str, new: str) -> None:
    [before] = load_specs(write(tmp_path, GOOD))
    [after] = load_specs(write(tmp_path, GOOD.replace(old, new)))

    assert before != after


def test_code_that_changed_since_is_refused(tmp_path: Path) -> None:
    [spec] = load_specs(write(tmp_path, GOOD)).values()
    (tmp_path / "train.py").write_text("print(2)\n", encoding="utf-8")

    with pytest.raises(SpecError, match="spec gpt: its code changed since the agent read it"):
        spec.check()
    (tmp_path / "train.py").unlink()
    with pytest.raises(SpecError, match="code cannot be read"):
        spec.check()


def test_root_is_refused_by_name_and_by_default(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("USER", "root"))

    with pytest.raises(SpecError, match="spec gpt: user 'root' is root, and nothing"):
        load_specs(path)

    if os.geteuid() == 0:
        path = write(tmp_path, GOOD.replace('user = "USER"\n', ""))
        with pytest.raises(SpecError, match="nothing is run as root"):
            load_specs(path)
        [spec] = load_specs(path, allow_root=True).values()
        spec.check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may start programs as anybody")
def test_another_user_is_refused_where_it_cannot_be_become(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("USER", "nobody"))

    with pytest.raises(SpecError, match="may not start programs as 'nobody'"):
        load_specs(path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name = "gpt"', 'name = "a b"', r"spec\[0\]: name must be letters"),
        ('argv = ["python", "train.py"]', "", "argv must be a list of strings, not None"),
        ('argv = ["python", "train.py"]', "argv = []", "argv must name a program"),
        ("OMP_NUM_THREADS", '"A=B"', "environment must map variable names to strings"),
        ('code = ["train.py"]', 'code = ["gone.py"]', "code cannot be read"),
        ("environment", "enviroment", "unknown key enviroment"),
        ("USER", "nobody-at-all", "there is no user 'nobody-at-all'"),
        ("[[spec]]", "[[spec]]\ncode_digest = '1'", "code_digest is '1', the code has"),
        ("[[spec]]", "x = 1\n[[spec]]", r"must hold \[\[spec\]\] tables and nothing else"),
        (GOOD, GOOD + GOOD, r"spec\[1\]: the name gpt is there twice"),
        ("[[spec]]", "[[spec", "Expected"),
    ],
)
def test_broken_lists_say_where(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    path = write(tmp_path, GOOD.replace(old, new))

    with pytest.raises(SpecError, match=complaint) as caught:
        load_specs(path)
    assert str(caught.value).startswith(f"{path}: ")
