"""What a plan takes from a calibration."""

import dataclasses
from pathlib import Path

import pytest
from tests import builders
from tests.raising import raises
from tests.unit.measure.calibrations import calibration, write

from trimaran.base.errors import CorruptDataError
from trimaran.features.calibration import calibrate
from trimaran.features.doctor import examine
from trimaran.measure.calibration.results import keep_calibration, kept_path
from trimaran.measure.costs import fingerprint_here
from trimaran.planning.measurement import find_calibrated


def test_without_a_calibration_nothing_is_known() -> None:
    calibrated = find_calibrated(builders.plan_request())
    assert (calibrated.tables, calibrated.noise_of(builders.strategy(dp=2)), calibrated.lacks(2)) == ((), None, ())


def test_of_the_one_that_is_kept_only_the_noise_is_taken() -> None:
    kept = calibration(fingerprint_here(2))
    keep_calibration(kept)
    calibrated = find_calibrated(builders.plan_request())
    assert calibrated.tables == ()
    assert calibrated.noise_of(builders.strategy()) == kept.noise[0]
    assert calibrated.noise_of(builders.strategy(dp=2)) == kept.noise[1]


def test_of_the_one_that_is_named_the_costs_are_taken_too(tmp_path: Path) -> None:
    here = fingerprint_here(2)
    path = write(tmp_path / "machine.json", here)
    calibrated = find_calibrated(builders.plan_request(calibration=path))
    assert calibrated.tables == calibration(here).tables
    assert calibrated.lacks(2) == ()


def test_a_calibration_for_other_ranks_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "machine.json", fingerprint_here(2))
    (told,) = find_calibrated(builders.plan_request(calibration=path)).lacks(1)
    assert "machine.json has costs measured with 2 ranks busy, not with 1" in told


def test_another_machines_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "machine.json", dataclasses.replace(fingerprint_here(2), device="Abacus"))
    with raises("calibration.other-machine", match="'Abacus'"):
        find_calibrated(builders.plan_request(calibration=path))


def test_a_damaged_one_that_is_named_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "machine.json", fingerprint_here(2))
    path.write_bytes(path.read_bytes()[:-100])
    with raises("file.not-json", CorruptDataError, match=r"machine\.json"):
        find_calibrated(builders.plan_request(calibration=path))


class _SeenEnoughError(Exception):
    pass


def test_other_programs_are_waited_for_before_anything_is_measured() -> None:
    """As before the costs of a plan."""

    def first(what: str, done: int, total: int) -> None:
        raise _SeenEnoughError(what)

    with pytest.raises(_SeenEnoughError, match="waiting for other programs"):
        calibrate(devices=1, progress=first)


def test_the_doctor_says_whether_this_machine_is_calibrated() -> None:
    def said() -> tuple[str, str]:
        check = next(check for check in examine() if check.name == "calibration")
        return check.verdict, check.detail

    assert said() == ("note", "this machine is not calibrated")
    path = keep_calibration(calibration(fingerprint_here(2)))
    assert path == kept_path(fingerprint_here(1))
    assert said() == ("ok", "2026-11-20, 2 ranks")
    path.write_bytes(b"{")
    assert said()[0] == "note"
