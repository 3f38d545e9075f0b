"""The noise of repeated runs beside a comparison."""

import dataclasses

from tests.unit.report.test_files import REPORT

from trimaran.pricing.noise import noise_between
from trimaran.report.run_report import noise_line, report_document

NOISE = noise_between([0.099, 0.100, 0.101], ranks=2, date="2026-11-20", source="by hand")


def test_the_line_names_ranks_interval_and_day() -> None:
    """Logarithms 0.01 apart: 2.92 * 1.414 * 0.01 = 0.0413, and exp of that is 1.0422."""
    assert noise_line(NOISE) == "identical runs on 2 ranks differ by up to ±4.2 % (90 %), calibrated 2026-11-20"


def test_a_large_noise_has_no_decimals_and_fits_into_80_columns() -> None:
    line = noise_line(dataclasses.replace(NOISE, ranks=128, high=1.234))
    assert "±123 %" in line
    assert len(line) <= 80


def test_what_is_not_known_says_how_to_know_it() -> None:
    assert noise_line(None) == "noise of repeated runs unknown here: trimaran calibrate"


def test_the_report_has_the_noise_or_null() -> None:
    kept = report_document(dataclasses.replace(REPORT, noise=NOISE))["noise"]
    assert kept["interval"] == [NOISE.low, NOISE.high]
    assert (kept["date"], kept["ranks"], kept["runs"]) == ("2026-11-20", 2, 3)
    assert report_document(REPORT)["noise"] is None
