"""The policy tables: shipped ones load, broken ones say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.health.policy import SHIPPED_THERMAL, PolicyError, load_thermal


def test_the_shipped_policy() -> None:
    policy = load_thermal()

    assert policy.version == "thermal-1"
    assert [level.severity for level in policy.levels] == ["degraded", "failing", "failed"]
    assert [level.migrate for level in policy.levels] == [False, True, True]
    assert {level.memory for level in policy.levels} == {"readable"}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('version = "thermal-1"', "", "version is missing"),
        ("hold_seconds = 2", "hold_seconds = -2", r"levels\[1\]\.hold_seconds must be seconds"),
        ('severity = "failing"', 'severity = "bad"', r"levels\[1\]\.severity must be one of info"),
        ('severity = "failing"', 'severity = "failed"', "levels must run from the mildest"),
        ("migrate = false", "migrate = 0", r"levels\[0\]\.migrate must be bool, not 0"),
        ("margin_celsius = 2", "margin_celsius = true", r"margin_celsius must be int, not True"),
        ("longest_gap", "lnogest_gap", "lnogest_gap_seconds is not a key of a thermal policy"),
        ("[1, 140]", "[140, 1]", r"plausible_celsius must be \[lowest, highest\]"),
        ('check = "thermal"', "check = ", "Invalid value"),
    ],
)
def test_a_broken_policy_names_file_and_key(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    text = SHIPPED_THERMAL.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "thermal.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")

    with pytest.raises(PolicyError, match=complaint) as caught:
        load_thermal(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_policy_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"none\.toml: .*No such file"):
        load_thermal(tmp_path / "none.toml")
