"""Trainings to a target, on a terminal of 80 columns."""

import io
import re
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from trimaran.planning.answer.pages import print_lines
from trimaran.report.plans import outlook_lines, target_verdict

LONG = "tp4 x cp2 x pp2 (8 chunks) x dp64, zero2, 8 microbatches of 4"


def outlook() -> dict[str, Any]:
    """Two batches on up to 1024 devices, each by a strategy that is wider than its column."""
    rows = [
        {
            "global_batch_size": batch,
            "devices": 1024,
            "local_batch_size": batch // 64,
            "strategy": LONG,
            "step_time_s": 0.1377,
            "epochs_to_converge": epochs,
            "updates_to_converge": 1e5,
            "steps_per_epoch": 625.6,
            "convergence_source": "between 256 and 65536",
            "time_to_accuracy_s": time_s,
            "time_to_accuracy_interval_s": [0.75 * time_s, high_s],
            "cost": time_s * 1024 / 3600,
        }
        for batch, epochs, time_s, high_s in ((2048, 36.0, 3084.0, 4200.0), (65536, 83.6, 5022.0, 9000.0))
    ]
    return {
        "objective": "time",
        "candidates": rows,
        "front": [rows[0]],
        "time_to_accuracy_s": rows[0]["time_to_accuracy_s"],
        "cost": rows[0]["cost"],
        "cost_interval": [rows[0]["cost"], None],
        "cost_unit": "device-hours",
        "curve": {"name": "resnet50", "task": "ImageNet to 75.9 %"},
        "hybrid_comparison": {
            "reason": "the best hybrid is that of batch 2048, and nothing else comes near to it on this machine"
        },
        "stop": None,
        "learning_rate_rule": None,
        "left_out": [],
    }


def for_target() -> dict[str, Any]:
    found = outlook()
    return found | {"devices": 1024, "chosen": found["candidates"][0]}


def shown(plan: dict[str, Any], *, terminal: bool = True) -> list[str]:
    text = io.StringIO()
    print_lines(Console(file=text, width=80, force_terminal=terminal, no_color=True), outlook_lines(plan))
    return [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in text.getvalue().splitlines()]


def test_a_table_fits_80_columns() -> None:
    """Of each table itself: a console would fold whatever is too wide."""
    console = Console(width=80)
    tables = [line for line in outlook_lines(for_target()) if isinstance(line, Table)]
    assert tables
    assert all(Measurement.get(console, console.options, table).minimum <= 80 for table in tables)


def test_the_figures_of_a_batch_stand_on_one_line_at_80_columns() -> None:
    """0.75 of 51.4 min are 38.5; 2.5 hours are 150 min beside 83.7."""
    lines = shown(for_target())
    assert max(len(line) for line in lines) <= 80
    assert "…" not in "".join(lines)
    first, second = (
        next(line.split() for line in lines if f" {batch} " in line and "ms" in line) for batch in (2048, 65536)
    )
    assert first[:4] == ["*^", "2048", "1024", "32"]
    assert first[-7:] == ["138", "ms", "36", "51.4", "min", "38.5–70.0", "877"]
    assert second[:3] == ["65536", "1024", "1024"]
    assert second[-7:] == ["138", "ms", "83.6", "83.7", "min", "62.8–150", "1,428"]
    assert any(line.endswith("cost: device-hours") for line in lines)


def test_a_page_is_the_same_for_a_file_and_for_a_terminal() -> None:
    assert shown(for_target(), terminal=False) == shown(for_target())


def test_what_is_not_shown_is_counted_without_rows_that_are_no_candidates() -> None:
    """A choice that is no candidate is shown too: of one nothing is left, of 20 the 5 beyond the table's 16 rows."""
    plan = for_target()
    assert not any("more:" in line for line in shown(plan | {"candidates": plan["candidates"][1:]}))
    others = [plan["candidates"][1] | {"devices": devices} for devices in range(1, 21)]
    assert any("and 5 more: --verbose lists all" in line for line in shown(plan | {"candidates": others}))
    table = next(part for part in outlook_lines(plan | {"candidates": others}, most=None) if isinstance(part, Table))
    assert table.row_count == 21


def test_the_verdict_of_a_target_is_one_sentence_that_the_lines_behind_it_do_not_repeat() -> None:
    plan = for_target()
    assert target_verdict(plan).startswith("51.4 min to the target (90 %: ")
    untimed = plan | {"time_to_accuracy_s": None, "objective": "throughput", "curve": None}
    rows = [row | {"samples_per_s": 14_873.0} for row in plan["candidates"]]
    untimed |= {"candidates": rows, "front": rows[:1], "chosen": rows[0]}
    assert target_verdict(untimed).startswith("How long the training takes is not known")
    for document in (plan, untimed):
        told = target_verdict(document).partition(" by ")[0]
        assert not any(told in str(line) for line in outlook_lines(document))
    # A curve without a rule of the learning rate is in a note of the plan, with both batches.
    assert not any("earning rate" in str(line) for line in outlook_lines(plan))
    stop = {"devices": None, "interval": [None, None], "least_saved_per_doubling": 0.1, "counts": [8, 1024]}
    assert any("saves 10 % of the time or more" in str(line) for line in outlook_lines(plan | {"stop": stop}))
