"""A calibration as a person sees it: complete at 80 columns."""

import io
import json
from pathlib import Path

from rich.console import Console
from tests.unit.measure.calibrations import calibration

from trimaran.cli.views.calibration import calibration_document, print_calibration


def _printed(output: Path | None = None) -> list[str]:
    file = io.StringIO()
    print_calibration(Console(file=file, width=80, no_color=True), calibration(), output=output)
    return file.getvalue().splitlines()


def test_nothing_is_cut_off_at_80_columns() -> None:
    rows = _printed()
    assert max(map(len, rows)) <= 80
    assert "…" not in "".join(rows)


def test_every_figure_has_its_interval_and_source() -> None:
    """2 * 100^3 FLOP in 1, 2 and 4 ms."""
    rows = _printed()
    product = next(row for row in rows if "100 × 100" in row)
    assert product.split()[-7:] == ["1.00", "GFLOP/s", "500", "MFLOP/s", "–", "2.00", "GFLOP/s"]
    assert any("measured: by hand" in row for row in rows)


def test_links_are_told_apart_by_what_they_are_held_to() -> None:
    rows = [row.split() for row in _printed()]
    kinds = ("all-reduce", "broadcast", "message")
    assert [row[:3] for row in rows if row[:1] == ["free"]] == [["free", kind, "2"] for kind in kinds]
    assert [row[:4] for row in rows if row[:2] == ["1", "Gb/s"]] == [["1", "Gb/s", "all-reduce", "2"]]


def test_the_noise_is_said_for_one_rank_and_for_all() -> None:
    """Logarithms 0.01 apart, three runs: 4.2 %."""
    said = [row for row in _printed() if row.startswith("Identical runs")]
    assert said == [
        "Identical runs on 1 rank differ by up to ±4.2 % (90 %), calibrated 2026-11-20",
        "Identical runs on 2 ranks differ by up to ±4.2 % (90 %), calibrated 2026-11-20",
    ]


def test_the_next_command_is_told() -> None:
    assert _printed(Path("machine.json"))[-1] == "Next: trimaran plan digits --measured machine.json"


def test_the_document_has_the_figures_and_not_the_tables() -> None:
    document = json.loads(json.dumps(calibration_document(calibration())))
    assert set(document) == {"fingerprint", "date", "devices", "links", "noise"}
    assert document["noise"][1]["step_time_s"] == [0.099, 0.1, 0.101]
