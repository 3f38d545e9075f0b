"""Predicted against measured, and what choosing by prediction costs: jobs × links × strategies on two processes.

In each cell the costs are measured, every strategy is simulated, and the plan is chosen, in this process and those
that it starts. Then new processes run every strategy, in blocks that take turns. Prints the tables of the README and
writes `benchmarks/results/grid.json`.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, write_document  # noqa: E402
from benchmarks.grid.ranks import time_strategies  # noqa: E402

from trimaran.costs.noise import Noise  # noqa: E402
from trimaran.planner import Candidate, cut, evaluate  # noqa: E402
from trimaran.program import Strategy, lower_evaluation  # noqa: E402
from trimaran.report import noise_document, noise_line  # noqa: E402
from trimaran.runtime.ranks import launch  # noqa: E402
from trimaran.session.calibrated import noise_here  # noqa: E402
from trimaran.session.jobs import JobSource  # noqa: E402
from trimaran.session.planning import Planned, plan_job  # noqa: E402
from trimaran.session.request import parse_request  # noqa: E402

COMPILED = (Strategy(execution="compiled"), Strategy(dp=2, execution="compiled"))
JOBS = ("digits", "digits-resnet", "text-lstm", "text-gpt", "wide")
LINKS = ("none", "1Gb/s", "200Mb/s")
STRATEGIES = (
    Strategy(),
    Strategy(dp=2),
    Strategy(dp=2, microbatches=2),
    *(
        Strategy(pp=2, schedule=schedule, microbatches=microbatches)
        for microbatches in (2, 4, 8)
        for schedule in ("gpipe", "1f1b")
    ),
)
ALWAYS_DDP = Strategy(dp=2).name
ALWAYS_ONE = Strategy().name


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy of a cell.

    Attributes:
        name: of the strategy
        predicted_s: its step [s]
        blocks_s: measured mean step of each block [s]
    """

    name: str
    predicted_s: float
    blocks_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """Median over the blocks [s]."""
        return statistics.median(self.blocks_s)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A job on a link.

    Attributes:
        job: its name
        link: what the link was held to
        rows: one a strategy
        chosen: name of the planned strategy
        rule: name of the strategy that the rule of thumb takes
        plan_s: time from the request to the plan, costs known [s]
    """

    job: str
    link: str
    rows: tuple[Row, ...]
    chosen: str
    rule: str
    plan_s: float

    def regret(self, name: str) -> float:
        """Measured time of a strategy over that of the best measured one."""
        measured = {row.name: row.measured_s for row in self.rows}
        return measured[name] / min(measured.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="*", default=JOBS)
    parser.add_argument("--links", nargs="*", default=LINKS)
    parser.add_argument("--blocks", type=int, default=5, help="blocks of each strategy")
    parser.add_argument(
        "--compiled", nargs="*", default=(), help="jobs whose compiled strategies run too, on free links"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "grid.json")
    options = parser.parse_args()
    environment = describe_environment(devices=2)
    noise = noise_here(ranks=2)
    cells: list[Cell] = []
    for job in options.jobs:
        for link in options.links:
            compiled = job in options.compiled and link == "none"
            cells.append(run_cell(job, link, blocks=options.blocks, compiled=compiled))
            print(format_cell(cells[-1]), flush=True)
            write_document(document(cells, environment, noise), options.output)
    print(format_summary(cells))
    print(noise_line(noise))
    print(environment_line(environment))


def run_cell(job: str, link: str, *, blocks: int, compiled: bool) -> Cell:
    """Plan, simulate and run one job on one link."""
    source = JobSource(reference=job)
    request = parse_request(devices=2, link=None if link == "none" else link)
    plan_job(source, request)
    started = time.perf_counter()
    planned = plan_job(source, request)
    plan_s = time.perf_counter() - started
    batch = planned.job.global_batch_size
    strategies = [*STRATEGIES, *(COMPILED if compiled else ())]
    if compiled:
        # Its table has the costs of both.
        planned = replace(planned, table=plan_job(source, replace(request, execution="compiled")).table)
    candidates = {one.strategy.name: one for one in _candidates(planned, strategies)}
    entries = [
        (one.strategy, one.program, lower_evaluation(planned.graph, one.strategy, batch=batch))
        for one in candidates.values()
    ]
    with tempfile.TemporaryDirectory() as folder:
        times = launch(time_strategies, (source, entries, blocks), ranks=2, log_dir=folder, link=request.link)[0]
    return Cell(
        job=job,
        link=link,
        rows=tuple(
            Row(name=name, predicted_s=one.step_time_s, blocks_s=tuple(seconds))
            for (name, one), seconds in zip(candidates.items(), times, strict=True)
        ),
        chosen=planned.chosen.strategy.name,
        rule=_rule_of_thumb(planned, candidates),
        plan_s=plan_s,
    )


def _candidates(planned: Planned, strategies: Iterable[Strategy]) -> Iterable[Candidate]:
    batch = planned.job.global_batch_size
    clip = planned.job.clip_norm is not None
    for strategy in strategies:
        if batch % (strategy.dp * strategy.microbatches) == 0:
            whole = cut(strategy, planned.graph, planned.table, batch=batch)
            yield evaluate(whole, planned.graph, planned.table, planned.cluster, batch=batch, clip=clip)
    yield planned.chosen


def _rule_of_thumb(planned: Planned, candidates: dict[str, Candidate]) -> str:
    """Replicas, unless gradients take longer on the wire than a replica computes; then a pipeline of 4 microbatches.

    What an engineer works out on paper: sizes over rates, nothing simulated.
    """
    link = planned.cluster.link
    nbytes = sum(parameter.nbytes for parameter in planned.graph.parameters if parameter.trainable)
    if link is None or nbytes / link.bytes_per_s < candidates[ALWAYS_ONE].step_time_s / 2:
        return ALWAYS_DDP
    return Strategy(pp=2, schedule="gpipe", microbatches=4).name


def format_cell(cell: Cell) -> str:
    """A cell as a table."""
    lines = [f"\n{cell.job}, link {cell.link}: chosen {cell.chosen} (planned in {cell.plan_s:.1f} s)"]
    for row in sorted(cell.rows, key=lambda row: row.measured_s):
        spread = f"{min(row.blocks_s) * 1e3:.1f}–{max(row.blocks_s) * 1e3:.1f}"
        mark = "*" if row.name == cell.chosen else " "
        lines.append(
            f" {mark} {row.name:20} predicted {row.predicted_s * 1e3:8.1f} ms   measured {row.measured_s * 1e3:8.1f} ms"
            f"  ({spread})  {row.error:+.0%}"
        )
    return "\n".join(lines)


def format_summary(cells: Sequence[Cell]) -> str:
    """Errors and regrets over all cells."""
    errors = sorted(abs(row.error) for cell in cells for row in cell.rows)
    lines = [
        f"\n{len(errors)} predictions: absolute error median {statistics.median(errors):.1%}, "
        f"90th percentile {errors[int(0.9 * (len(errors) - 1))]:.1%}, worst {errors[-1]:.1%}",
        "",
        "| job | link | chosen | regret | always DDP | always one device | rule of thumb |",
        "|" + "---|" * 7,
    ]
    for cell in cells:
        names = (cell.chosen, ALWAYS_DDP, ALWAYS_ONE, cell.rule)
        lines.append(
            f"| {cell.job} | {cell.link} | {cell.chosen} | "
            + " | ".join(f"{cell.regret(name):.2f}" for name in names)
            + f" ({cell.rule}) |"
        )
    for label, name_of in _RIVALS.items():
        regrets = sorted(cell.regret(name_of(cell)) for cell in cells)
        lines.append(
            f"{label}: regret median {statistics.median(regrets):.2f}, worst {regrets[-1]:.2f}, "
            f"at least 1.3 in {sum(regret >= 1.3 for regret in regrets)} of {len(regrets)}"
        )
    return "\n".join(lines)


_RIVALS = {
    "chosen": lambda cell: cell.chosen,
    "always DDP": lambda cell: ALWAYS_DDP,
    "always one device": lambda cell: ALWAYS_ONE,
    "rule of thumb": lambda cell: cell.rule,
}


def document(cells: Sequence[Cell], environment: dict[str, Any], noise: Noise | None) -> dict[str, Any]:
    """The result as it is kept."""
    return {
        "schema_version": 1,
        "environment": environment,
        "noise": noise_document(noise),
        "cells": [
            {
                "job": cell.job,
                "link": cell.link,
                "chosen": cell.chosen,
                "rule_of_thumb": cell.rule,
                "plan_s": cell.plan_s,
                "regret": {label: cell.regret(name_of(cell)) for label, name_of in _RIVALS.items()},
                "strategies": [
                    {
                        "name": row.name,
                        "predicted_s": row.predicted_s,
                        "measured_s": row.measured_s,
                        "blocks_s": list(row.blocks_s),
                        "error": row.error,
                    }
                    for row in cell.rows
                ],
            }
            for cell in cells
        ],
    }


if __name__ == "__main__":
    main()
