"""What goes wrong with a calibration is told before anything is measured, and leaves nothing."""

from pathlib import Path

import pytest
from tests.commands.running import trimaran
from tests.commands.test_bad_input import JOBS, assert_told
from tests.unit.measure.calibrations import write

from trimaran.measure.costs import fingerprint_here


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["digit"], 2, 'did you mean "digits"'),
        (["--devices", "4096"], 2, "4096 devices were asked for"),
        (["--repeats", "1"], 2, "--repeats"),
        (["--link", "fast"], 2, 'got "fast"'),
        (["--devices", "1", "--link", "1Gb/s"], 2, "one device has no link to another"),
        (["--output", "absent/machine.json"], 4, "absent/machine.json cannot be written"),
        (["--output", "."], 4, "cannot be written"),
    ],
)
def test_wrong_input_is_told_and_leaves_nothing(arguments: list[str], code: int, part: str, tmp_path: Path) -> None:
    assert_told(trimaran("calibrate", *arguments, cwd=tmp_path), code, part)
    assert not list(tmp_path.iterdir())


def test_a_calibration_that_a_plan_cannot_take_is_refused(tmp_path: Path) -> None:
    """Of another machine, damaged, absent; each before the job is even captured."""
    plan = ("plan", f"{JOBS}:good", "--calibration", "machine.json")
    assert_told(trimaran(*plan, cwd=tmp_path), 2, "machine.json cannot be read")
    path = write(tmp_path / "machine.json")
    assert_told(trimaran(*plan, cwd=tmp_path), 2, "another machine", "'a core' there")
    write(path, fingerprint_here(2))
    path.write_bytes(path.read_bytes()[:-100])
    assert_told(trimaran(*plan, cwd=tmp_path), 6, "machine.json")
