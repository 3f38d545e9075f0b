"""`trimaran train --verify`: what it prints and keeps."""

import json
from pathlib import Path

from tests.commands.running import trimaran


def test_a_run_says_how_near_its_first_steps_were_to_one_process(tmp_path: Path) -> None:
    done = trimaran("train", "digits", "--devices", "1", "--epochs", "1", "--verify", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = document["verified"]
    assert found["steps"] == 2
    assert found["tensors"] > 0
    assert 0 <= found["difference"] <= found["limit"] < 0.01
    report = json.loads((tmp_path / document["run_dir"] / "report.json").read_text())
    assert report["verified"] == found
