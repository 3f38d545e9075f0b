"""The noise of repeated runs beside a comparison."""

import dataclasses

import pytest
from tests.unit.report.runs import PROGRAM, measured, predicted
from tests.unit.report.test_files import REPORT

from trimaran.pricing.noise import noise_between
from trimaran.program.json_files import to_plain
from trimaran.program.types import Kind
from trimaran.report.comparison import Comparison, compare
from trimaran.report.run_report import noise_interval, noise_line, pace_note

NOISE = noise_between([0.099, 0.100, 0.101], ranks=2, date="2026-11-20", source="by hand")


def test_the_line_names_ranks_interval_and_day() -> None:
    """Logarithms 0.01 apart: 2.92 * 1.414 * 0.01 = 0.0413, and exp of that is 1.0422."""
    assert (
        noise_line(noise_interval(NOISE))
        == "identical runs on 2 ranks differ by up to ±4.2 % (90 %), calibrated 2026-11-20"
    )


def test_a_large_noise_has_no_decimals_and_fits_into_80_columns() -> None:
    line = noise_line(noise_interval(dataclasses.replace(NOISE, ranks=128, high=1.234)))
    assert "±123 %" in line
    assert len(line) <= 80


def test_what_is_not_known_says_how_to_know_it() -> None:
    assert noise_line(None) == "noise of repeated runs unknown here: trimaran doctor --measure"


def test_the_report_has_the_noise_or_null() -> None:
    kept = to_plain(dataclasses.replace(REPORT, noise=noise_interval(NOISE)))["noise"]
    assert kept["interval"] == [NOISE.low, NOISE.high]
    assert (kept["date"], kept["ranks"], kept["runs"]) == ("2026-11-20", 2, 3)
    assert to_plain(REPORT)["noise"] is None


def paced(*ratios: float) -> Comparison:
    """A run whose forward, backward and update took so many times as long as predicted, and all else ten times."""
    run = compare(PROGRAM, predicted(), measured())
    times = dict(zip((Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE), ratios, strict=True))
    kinds = [dataclasses.replace(one, predicted_s=1.0, measured_s=times.get(one.kind, 10.0)) for one in run.kinds]
    return dataclasses.replace(run, kinds=tuple(kinds))


@pytest.mark.parametrize(("ratio", "said"), [(1.25, "slower now"), (0.8, "faster now")])
def test_a_machine_that_has_changed_since_its_costs_were_measured_is_named(ratio: float, said: str) -> None:
    note = pace_note(paced(ratio, ratio, ratio), "digits")
    assert f"together {ratio:.2f} times" in note
    assert said in note
    assert "trimaran doctor --measure digits" in note


@pytest.mark.parametrize("ratios", [(1.1, 1.1, 1.1), (1.5, 1.5, 1.1), (1.5, 1.5, 0.7), (0.9, 0.9, 0.9)])
def test_what_is_not_alike_in_all_compute_is_not_put_on_the_machine(ratios: tuple[float, float, float]) -> None:
    assert not pace_note(paced(*ratios), "digits")
