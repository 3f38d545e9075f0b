"""Plans over slow links against torch's own DDP: jobs × links.

In each cell the costs are measured and three plans are made on two processes: replicas that send whole gradients,
replicas that may compress them, and whatever is best with consent. Then new processes run DDP and all of these in
blocks that take turns. Nothing is fitted to the runs. Links are network namespaces joined by veth, each way held to the
rate by `tc`. Prints the tables of the README and writes `benchmarks/results/wire.json`.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, write_document  # noqa: E402
from benchmarks.grid.ranks import Entry  # noqa: E402
from benchmarks.wire.ranks import time_beside_ddp  # noqa: E402

from trimaran.emulation.links import launch_on  # noqa: E402
from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.planner.pins import Pins  # noqa: E402
from trimaran.planning.answer.evidence import Simulated  # noqa: E402
from trimaran.planning.answer.results import Planned  # noqa: E402
from trimaran.planning.plan import make_plan  # noqa: E402
from trimaran.planning.requests import parse_request  # noqa: E402
from trimaran.program.lowering.lower import lower_evaluation  # noqa: E402

JOBS = ("digits", "digits-resnet", "text-lstm", "text-gpt", "wide")
LINKS = ("1Gb/s", "200Mb/s")
DDP = "torch DDP"
WHOLE, COMPRESSED, FREE = "whole gradients", "compressed", "the plan"
_REPLICAS = Pins(dp=2, pp=1, tp=1, zero=0, forbid=("p2p", "sharded"))
PLANS = {
    WHOLE: _REPLICAS,
    COMPRESSED: replace(_REPLICAS, compress=True),
    FREE: Pins(compress=True),
}
BOUND_RATIO, ANY_RATIO = 0.7, 1.02
"""A plan's step over DDP's: at most, where the wire binds; and anywhere."""

COMMUNICATION_BOUND = ("text-gpt", "200Mb/s")
LARGEST_ERROR = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to train in a cell.

    Attributes:
        name: of the way
        strategy: its name; empty for DDP, which is not predicted
        predicted_s: its step [s]
        blocks_s: measured mean step of each block [s]
    """

    name: str
    strategy: str
    predicted_s: float | None
    blocks_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """Median over the blocks [s]."""
        return statistics.median(self.blocks_s)

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A job on a link.

    Attributes:
        job: its name
        link: what the link was held to
        rows: one a way to train, DDP first
        said: what the plan says of compression
    """

    job: str
    link: str
    rows: tuple[Row, ...]
    said: str

    def ratio(self, row: Row) -> float:
        """Measured step over DDP's: the median of the ratios of blocks of the same round."""
        return statistics.median(own / ddp for own, ddp in zip(row.blocks_s, self.rows[0].blocks_s, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="*", default=JOBS)
    parser.add_argument("--links", nargs="*", default=LINKS)
    parser.add_argument("--blocks", type=int, default=9, help="of each way to train")
    parser.add_argument("--keep", action="store_true", help="keep the other cells of the result that is there")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "wire.json")
    options = parser.parse_args()
    environment = describe_environment(devices=2)
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    if options.keep and options.output.exists():
        kept = {(cell["job"], cell["link"]): cell for cell in json.loads(options.output.read_text())["cells"]}
    for job in options.jobs:
        for link in options.links:
            cell = run_cell(job, link, blocks=options.blocks)
            kept[job, link] = cell_document(cell)
            print(format_cell(cell), flush=True)
            write_document(document(list(kept.values()), environment), options.output)
    print(format_summary(list(kept.values())))
    print(environment_line(environment))


def run_cell(job: str, link: str, *, blocks: int) -> Cell:
    """Plan and run one job on one link."""
    source = JobSource(reference=job)
    request = parse_request(devices=2, link=link)
    plans: dict[str, Planned] = {}
    for name, pins in PLANS.items():
        planned = make_plan(source, replace(request, pins=pins))
        if planned.simulated.chosen.strategy not in [other.simulated.chosen.strategy for other in plans.values()]:
            plans[name] = planned
    with tempfile.TemporaryDirectory() as folder:
        entries = [_entry(planned.simulated) for planned in plans.values()]
        times: list[list[float]] = launch_on(
            request.link, time_beside_ddp, (source, entries, blocks), ranks=2, log_dir=folder
        )[0]
    rows = [Row(name=DDP, strategy="", predicted_s=None, blocks_s=tuple(times[0]))]
    rows += [
        Row(
            name=name,
            strategy=planned.simulated.chosen.strategy.name,
            predicted_s=planned.simulated.chosen.step_time_s,
            blocks_s=tuple(seconds),
        )
        for (name, planned), seconds in zip(plans.items(), times[1:], strict=True)
    ]
    said = [note for planned in plans.values() for note in planned.notes if "gradients" in note]
    return Cell(job=job, link=link, rows=tuple(rows), said=said[-1] if said else "")


def _entry(planned: Simulated) -> Entry:
    strategy, batch = planned.chosen.strategy, planned.job.global_batch_size
    return strategy, planned.chosen.program, lower_evaluation(planned.graph, strategy, batch=batch)


def cell_document(cell: Cell) -> dict[str, Any]:
    """A cell as it is kept."""
    return {
        "job": cell.job,
        "link": cell.link,
        "said": cell.said,
        "ways": [
            {
                "name": row.name,
                "strategy": row.strategy,
                "predicted_s": row.predicted_s,
                "measured_s": row.measured_s,
                "blocks_s": list(row.blocks_s),
                "error": row.error,
                "of_ddp": cell.ratio(row),
            }
            for row in cell.rows
        ],
    }


def document(cells: Sequence[dict[str, Any]], environment: dict[str, Any]) -> dict[str, Any]:
    """The result as it is kept."""
    return {"schema_version": 1, "environment": environment, "cells": list(cells)}


def format_cell(cell: Cell) -> str:
    """A cell as a table."""
    lines = [f"\n{cell.job}, {cell.link}"]
    for row in cell.rows:
        spread = f"{min(row.blocks_s) * 1e3:.1f}–{max(row.blocks_s) * 1e3:.1f}"
        predicted = "" if row.predicted_s is None else f"predicted {row.predicted_s * 1e3:8.1f} ms ({row.error:+.0%})"
        lines.append(
            f"  {row.name:16} {row.strategy:26} {row.measured_s * 1e3:8.1f} ms ({spread})  "
            f"{cell.ratio(row):5.2f} × DDP  {predicted}"
        )
    return "\n".join([*lines, f"  {cell.said}"])


def format_summary(cells: Sequence[dict[str, Any]]) -> str:
    """All cells as a table, and whether they show what they must."""
    lines = ["", "| job | link | DDP | " + " | ".join(PLANS) + " |", "|" + "---|" * (3 + len(PLANS))]
    for cell in cells:
        ways = {way["name"]: way for way in cell["ways"]}
        shown = [_shown(ways[name]) if name in ways else "same" for name in PLANS]
        lines.append(
            f"| {cell['job']} | {cell['link']} | {ways[DDP]['measured_s'] * 1e3:.1f} ms | {' | '.join(shown)} |"
        )
    predicted = [way for cell in cells for way in cell["ways"] if way["error"] is not None]
    errors = sorted(abs(way["error"]) for way in predicted)
    worst = max((way["of_ddp"] for way in predicted), default=0.0)
    lines += [
        "",
        f"{len(errors)} predictions: absolute error median {statistics.median(errors):.1%}, worst {errors[-1]:.1%}, "
        f"within {LARGEST_ERROR:.0%}: {sum(error <= LARGEST_ERROR for error in errors)}",
        f"largest ratio to DDP {worst:.2f} (at most {ANY_RATIO})",
    ]
    bound = [cell for cell in cells if (cell["job"], cell["link"]) == COMMUNICATION_BOUND]
    for cell in bound:
        best = min(way["of_ddp"] for way in cell["ways"] if way["name"] == COMPRESSED or way["name"] == WHOLE)
        lines.append(f"{cell['job']} at {cell['link']}: {best:.2f} of DDP by replicas (at most {BOUND_RATIO})")
    return "\n".join(lines)


def _shown(way: dict[str, Any]) -> str:
    return f"{way['strategy']}: {way['measured_s'] * 1e3:.1f} ms, {way['of_ddp']:.2f} × ({way['error']:+.0%})"


if __name__ == "__main__":
    main()
