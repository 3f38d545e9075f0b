"""Where does model parallelism pay? Networks on machines, as `trimaran crossover` has it.

Each cell is predicted once and kept in `benchmarks/results/atlas.json`; `docs/atlas.md` is written from what is there.
Nothing is timed, so other work on the machine does no harm.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.atlas.page import write_page  # noqa: E402
from benchmarks.environment import describe_environment, write_document  # noqa: E402

from trimaran.features.crossover.find import find_crossover  # noqa: E402
from trimaran.program.json_files import to_plain  # noqa: E402

MACHINES = {
    "dgx1-v100-32gb": "fp32",
    "dgx-a100": "bf16",
    "dgx-h100": "bf16",
    "8xrtx-3090": "bf16",
}
"""Machines with the precision that is usual there."""

NETWORKS: dict[str, str | None] = {
    "alexnet": None,
    "vgg16": None,
    "googlenet": None,
    "inception_v3": "inception-v3-hybrid",
    "resnet50": "resnet50",
    "densenet121": None,
    "vit-b-16": None,
    "unet": None,
    "gnmt": None,
    "big-lstm": None,
    "transformer:big": None,
    "bert:large": "bert-large",
    "gpt2:355m": None,
}
"""Networks with the curve of the catalog, where there is one."""

DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)
WIDTHS = (2, 4)

_ROWS = (8, 64, 256, 1024)
_CELL = ("job", "cluster", "device", "precision", "local_batch_size")
_CROSSING = ("model_parallel_width", "basis", "crossover_devices", "crossover_interval", "needed_speedup")
_WORKER = ("strategy", "speedup")
_ROW = ("devices", "equal_batch_limit", "needed_epoch_ratio")
_DATA_PARALLEL = ("global_batch_size", "worker_alone_s", "step_time_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="some of them")
    parser.add_argument("--machines", default=",".join(MACHINES), help="some of them")
    parser.add_argument("--again", action="store_true", help="predict cells that are there already")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "atlas.json")
    options = parser.parse_args()
    document = _kept(options.output)
    cells: dict[str, Any] = document["cells"]
    for network in options.networks.split(","):
        for machine in options.machines.split(","):
            key = f"{network} on {machine}"
            if key in cells and not options.again:
                continue
            print(key, flush=True)
            cells[key] = cell(network, machine)
            document["environment"] = describe_environment()
            write_document(document, options.output)
    write_page(document, ROOT / "docs" / "atlas.md", order=[f"{n} on {m}" for n in NETWORKS for m in MACHINES])


def cell(network: str, machine: str) -> dict[str, Any]:
    """One network on one machine, with what the page shows."""
    found = to_plain(
        find_crossover(
            network,
            cluster=machine,
            devices=DEVICES,
            widths=WIDTHS,
            curve=NETWORKS[network],
            precision=MACHINES[machine],
        )
    )
    curve = None if found["curve"] is None else {"name": found["curve"]["name"]}
    crossings = [_crossing(crossing) for crossing in found["crossings"]]
    return {name: found[name] for name in _CELL} | {"curve": curve, "crossings": crossings}


def _crossing(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a basis and a width."""
    kept = _ROWS if found["basis"] == "ours" else ()
    worker = {name: found["worker"][name] for name in _WORKER}
    rows = [_row(row) for row in found["rows"] if row["devices"] in kept]
    return {name: found[name] for name in _CROSSING} | {"worker": worker, "rows": rows}


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    data = {name: found["data_parallel"][name] for name in _DATA_PARALLEL}
    return {name: found[name] for name in _ROW} | {"data_parallel": data}


def _kept(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"schema_version": 1, "environment": {}, "cells": {}}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
