"""Plans for machines that are not here, on a terminal of 80 columns."""

import io
from typing import Any

from rich.console import Console

from trimaran.report.machine_plans import machine_plan_lines

LONG = "tp4 x cp2 x pp2 (8 chunks) x dp64, zero2, 8 microbatches of 4"


def document(limiter: str) -> dict[str, Any]:
    row = {"strategy": LONG, "step_time_s": 6.7, "speedup": 1.5, "peak_bytes": [2**30], "limiter": limiter}
    return {
        "job": "llama2:70b",
        "devices": 1024,
        "machine": "NVIDIA DGX H100, 8 H100 SXM5 on 4 NVSwitch",
        "device": "NVIDIA H100 SXM5 80 GB",
        "global_batch_size": 2048,
        "precision": "bfloat16",
        "software": "closed forms, 2025",
        "one_device_fits": False,
        "chosen": row | {"interval_s": [5.62, 7.99], "placement": {f"layer{n}": n // 8 for n in range(16)}},
        "candidates": [row],
        "rejected_counts": {"less than 2048 tokens of a sequence on a rank": 126, "more stages than layers": 20},
        "notes": ["planned by closed forms of its layers, without a trace and without a simulation of every rank"],
    }


def shown(limiter: str) -> list[str]:
    text = io.StringIO()
    for line in machine_plan_lines(document(limiter)):
        Console(file=text, width=80).print(line, markup=False)
    return text.getvalue().splitlines()


def test_a_plan_is_readable_at_80_columns() -> None:
    lines = shown("pipeline bubble and transfers, 28% idle")
    assert max(len(line) for line in lines) <= 80
    assert any("limited by" in line for line in lines)
    assert any("6.70 s" in line and "1.50" in line and "1.0 GiB" in line for line in lines)
    assert "…" not in "".join(lines)


def test_a_table_without_limiters_has_no_column_of_them() -> None:
    assert not any("limited by" in line for line in shown(""))
