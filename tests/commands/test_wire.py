"""Compression of gradients on the command line."""

import json
from pathlib import Path

from tests.commands.running import trimaran

THERE = ("lenet", "--cluster", "dgx1-v100", "--devices", "2")


def test_a_method_that_is_asked_for_is_in_the_plan_with_what_it_gains_or_costs(tmp_path: Path) -> None:
    found = trimaran("plan", *THERE, "--compression", "powersgd:2", "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["chosen"]["degrees"]["compression"] == "powersgd-r2"
    assert any(note.startswith("gradients are sent as powersgd-r2: dp2") for note in document["notes"])
    assert all(entry["degrees"]["compression"] == "powersgd-r2" for entry in document["candidates"])


def test_with_consent_a_plan_says_whether_it_was_worth_it(tmp_path: Path) -> None:
    found = trimaran("plan", *THERE, "--dp", "2", "--allow", "compress", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "compressing gradients is not worth it" in " ".join(found.stdout.split())


def test_without_consent_a_compression_is_compared_and_said_to_lack_it(tmp_path: Path) -> None:
    found = trimaran("explain", *THERE, "--why-not", "bf16", "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    (answer,) = json.loads(found.stdout)["why_not"]
    assert "ruled out by the lack of --allow compress" in json.dumps(answer)


def test_what_means_no_method_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    found = trimaran("plan", "digits", "--compression", "zip", cwd=tmp_path)
    assert found.returncode == 2
    assert 'powersgd:RANK, got "zip"' in found.stderr
