"""Plans for machines that are not here, on a terminal of 80 columns."""

import io
import re
from typing import Any

import pytest
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from trimaran.cli.views.plans import print_lines
from trimaran.report.plans import machine_plan_lines

LONG = "tp4 x cp2 x pp2 (8 chunks) x dp64, zero2, 8 microbatches of 4"


def document(limiter: str) -> dict[str, Any]:
    row = {"strategy": LONG, "step_time_s": 6.7, "speedup": 1.5, "peak_bytes": [2**30], "limiter": limiter}
    return {
        "job": "llama2:70b",
        "devices": 1024,
        "machine": "NVIDIA DGX H100, 8 H100 SXM5 on 4 NVSwitch",
        "device": "NVIDIA H100 SXM5 80 GB",
        "global_batch_size": 2048,
        "precision": "bf16",
        "precision_source": "as asked for",
        "software": "megatron 2025",
        "one_device_fits": False,
        "chosen": row | {"interval_s": [5.62, 7.99], "placement": {f"layer{n}": n // 8 for n in range(16)}},
        "candidates": [row],
        "rule": "dp8 is predicted 1 % faster (6.63 s against 6.70 s), and dp4 is chosen for fewer devices.",
        "rejected_counts": {"less than 2048 tokens of a sequence on a rank": 126, "more stages than layers": 20},
        "notes": ["planned by closed forms of its layers, without a trace and without a simulation of every rank"],
    }


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
        "pareto": [rows[0]],
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
    plain, found = document(""), outlook()
    return plain | found | {"chosen": plain["chosen"] | found["candidates"][0], "at_batch": plain}


def shown(plan: dict[str, Any], *, terminal: bool = True) -> list[str]:
    text = io.StringIO()
    print_lines(Console(file=text, width=80, force_terminal=terminal, no_color=True), machine_plan_lines(plan))
    return [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.parametrize("plan", [document("pipeline bubble and transfers, 28% idle"), for_target()])
def test_a_table_fits_80_columns(plan: dict[str, Any]) -> None:
    """Of each table itself: a console would fold whatever is too wide."""
    console = Console(width=80)
    tables = [line for line in machine_plan_lines(plan) if isinstance(line, Table)]
    assert tables
    assert all(Measurement.get(console, console.options, table).minimum <= 80 for table in tables)


def test_a_plan_is_readable_at_80_columns() -> None:
    lines = shown(document("pipeline bubble and transfers, 28% idle"))
    assert max(len(line) for line in lines) <= 80
    assert any("limited by" in line for line in lines)
    assert "is chosen for fewer devices." in " ".join(" ".join(lines).split())
    assert any("6.70 s" in line and "1.50" in line and "1.0 GiB" in line for line in lines)
    assert "…" not in "".join(lines)


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
    assert second[-7:] == ["138", "ms", "83.6", "83.7", "min", "62.8–150", "1.43e+03"]
    assert any(line.endswith("cost: device-hours") for line in lines)


def test_sentences_and_rows_stay_whole_where_they_are_not_for_a_terminal() -> None:
    """Who searches a file for a word finds the sentence or the row that it is in."""
    lines = shown(for_target(), terminal=False)
    assert any(LONG in line and "2048" in line and "51.4 min" in line for line in lines)
    assert any(line.startswith("Rejected: ") for line in lines)
    assert any(line.startswith("Hybrid or not: ") and line.endswith("this machine.") for line in lines)


def test_what_is_not_shown_is_counted_without_rows_that_are_no_candidates() -> None:
    """A choice that is no candidate is shown too: of one nothing is left, of 20 the 5 beyond the table's 16 rows."""
    plan = for_target()
    assert not any("--json" in line for line in shown(plan | {"candidates": plan["candidates"][1:]}))
    others = [plan["candidates"][1] | {"devices": devices} for devices in range(1, 21)]
    assert any("and 5 more: --json lists all" in line for line in shown(plan | {"candidates": others}))


def test_a_table_without_limiters_has_no_column_of_them() -> None:
    assert not any("limited by" in line for line in shown(document("")))
