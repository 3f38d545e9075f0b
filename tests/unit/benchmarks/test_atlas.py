"""The page of the atlas says what its cells say."""

from pathlib import Path
from typing import Any

from benchmarks.atlas.page import findings, write_page


def crossing(basis: str, width: int, limits: dict[int, int | None], needed: float) -> dict[str, Any]:
    way = {"worker_alone_s": 0.09, "step_time_s": 0.1, "global_batch_size": 8192}
    return {
        "basis": basis,
        "model_parallel_width": width,
        "crossover_devices": 64 if basis == "paper" else None,
        "crossover_interval": [64, 128] if basis == "paper" else [None, None],
        "worker": {"speedup": 1.5},
        "needed_speedup": 0.95 * width,
        "rows": [
            {"devices": devices, "equal_batch_limit": limit, "needed_epoch_ratio": needed, "data_parallel": way}
            for devices, limit in limits.items()
        ],
    }


def cell(job: str, limits: dict[int, int | None], *, curve: str | None = None, needed: float = 1.3) -> dict[str, Any]:
    return {
        "job": job,
        "device": "a card",
        "precision": "fp32",
        "local_batch_size": 64,
        "curve": None if curve is None else {"name": curve},
        "crossings": [crossing(basis, width, limits, needed) for width in (2, 4) for basis in ("paper", "ours")],
    }


def test_a_page_has_a_line_for_each_cell(tmp_path: Path) -> None:
    cells = {
        "plain on box": cell("plain", {8: None, 1024: None}),
        "wide on box": cell("wide", {8: 32, 1024: 4096}),
        "heavy on box": cell("heavy", {8: 32, 1024: 4096}, needed=0.9),
        "known on box": cell("known", {8: None, 1024: None}, curve="mine"),
    }
    document = {"environment": {"date": "2026-11-20"}, "cells": cells}
    write_page(document, tmp_path / "atlas.md", order=[*cells, "missing on box"])
    text = (tmp_path / "atlas.md").read_text()
    assert "4 networks on 1 machines" in text
    assert "on 2026-11-20" in text
    # 2 / 1.5 for a doubling of the batch; 4 / 1.5 for two of them, 1.63 for each.
    assert "| plain | 64 | 1.50 | 1.90 | 1.50 | 3.80 | E(2B) > 1.33 E(B) | never | 10% |  |" in text
    assert "| B = 32 at 8, B = 4,096 at 1024 |" in text
    assert "| more samples/s at 1024, M = 2 |" in text
    assert "| from 64, M = 2 (64 to 128) | never | 10% | mine |" in text


def test_what_cells_have_in_common_is_counted() -> None:
    lines = findings([cell("plain", {8: None}), cell("wide", {8: 32, 1024: 512})])
    assert lines[0].startswith("In 2 of 2 cells a worker of two devices is slower")
    assert lines[1].startswith("In 2 of 4 cases")
    # 32 samples on 8 devices; 512 on 1,024 are less than one each.
    assert "somewhere for wide; nowhere with more than 4 samples a device" in lines[2]
