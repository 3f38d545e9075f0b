"""What the benchmark on a GPU does beside measuring: stopping in time, its table, what it asks for."""

import time

import pytest
from benchmarks.gpu.clock import Clock, OutOfTimeError
from benchmarks.gpu.run import bring, missing_packages
from benchmarks.gpu.table import HEADER, LEGEND, row


def _case(**changes: object) -> dict[str, object]:
    part = {"predicted_s": 0.9, "measured_s": 1.0, "error": -0.1}
    case = {
        "job": "digits-resnet",
        "batch": 512,
        "execution": "compiled",
        "parts": dict.fromkeys(("step", "forward", "backward", "update"), part),
        "overhead": {"share": 0.05},
        "recording": {"share": 0.01},
        "peak_bytes": {"predicted": 150, "measured": 100},
    }
    return case | changes


def test_a_line_has_the_columns_of_the_header_and_fits_80() -> None:
    line = row(_case())
    assert line.split() == ["digits-resnet", "512", "compiled", "1000.00ms", *4 * ["-10%"], "+5%", "+1%", "+50%"]
    assert len(line) <= 80
    assert len(HEADER) <= 80
    assert max(map(len, LEGEND.splitlines())) <= 80


def test_what_was_not_measured_is_a_dash() -> None:
    assert row(_case(peak_bytes={"predicted": 150, "measured": None})).split()[-1] == "-"


def test_nothing_is_started_that_would_end_too_late() -> None:
    """Of 10 s: what once took 11 is not started again; what took next to nothing, or was never tried, is."""
    clock = Clock(budget_s=10.0)
    with clock.timed("short"):
        pass
    clock._longest_s["long"] = 11.0
    assert clock.allows("short")
    assert clock.allows("unknown")
    assert not clock.allows("long")


def test_what_is_under_way_is_given_up_after_the_grace() -> None:
    clock = Clock(budget_s=-100.0)
    with pytest.raises(OutOfTimeError):
        _wait_for_ever(clock)


def _wait_for_ever(clock: Clock) -> None:
    with clock.gives_up():
        while True:
            time.monotonic()


def test_it_names_the_packages_that_are_missing() -> None:
    assert missing_packages({"msgspec": "msgspec", "no_such_module": "no-such-package"}) == ["no-such-package"]
    assert "pip install --no-index --find-links FOLDER no-such-package" in bring(["no-such-package"])
