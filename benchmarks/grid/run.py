"""Predicted against measured, and what choosing by prediction costs: jobs × links or budgets × strategies.

In each cell the costs are measured, the plan is chosen, and the best strategy of every kind is planned too, in this
process and those that it starts. Then new processes run them all on two ranks, in blocks that take turns; where memory
is limited, each in processes of its own. Prints the tables of the README and writes `benchmarks/results/grid.json`.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, noise_here, write_document  # noqa: E402
from benchmarks.grid.apart import entry_of, times_apart  # noqa: E402
from benchmarks.grid.families import FAMILIES, plan_families  # noqa: E402
from benchmarks.grid.ranks import Entry, time_strategies  # noqa: E402

from trimaran.emulation.links import launch_on  # noqa: E402
from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.planner.candidates import Candidate  # noqa: E402
from trimaran.planning.answer.evidence import Simulated  # noqa: E402
from trimaran.planning.plan import make_plan  # noqa: E402
from trimaran.planning.requests import PlanRequest, parse_request  # noqa: E402
from trimaran.pricing.noise import Noise  # noqa: E402
from trimaran.program.json_files import to_plain  # noqa: E402
from trimaran.report.run_report import noise_interval, noise_line  # noqa: E402

KINDS = tuple(family.name for family in FAMILIES)
JOBS = ("digits", "digits-resnet", "digits-branches", "text-lstm", "text-gpt", "wide")
LINKS = ("none", "1Gb/s", "200Mb/s")
BUDGETS = (("text-gpt", "32MiB"), ("text-gpt", "20MiB"), ("digits-resnet", "16MiB"))
ALWAYS_DDP = "DDP"
ALWAYS_ONE = "one device"
ALWAYS_FSDP = "FSDP2"
CHOSEN = "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy of a cell.

    Attributes:
        name: of its kind
        strategy: the strategy's own name
        predicted_s: its step [s]
        blocks_s: measured mean step of each block [s]
    """

    name: str
    strategy: str
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
    """A job on a link, or in a memory budget.

    Attributes:
        job: its name
        limit: what the link was held to, or each device's memory
        rows: one a strategy
        chosen: the planned strategy's kind
        rule: the kind that the rule of thumb takes
        missing: kinds that there are not, each with the reason
        plan_s: time from the request to the plan, costs known [s]
    """

    job: str
    limit: str
    rows: tuple[Row, ...]
    chosen: str
    rule: str
    missing: dict[str, str]
    plan_s: float

    def regret(self, name: str) -> float | None:
        """Measured time of a strategy over that of the best measured one; None where there is no such strategy."""
        measured = {row.name: row.measured_s for row in self.rows}
        return measured[name] / min(measured.values()) if name in measured else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="*", default=JOBS)
    parser.add_argument("--links", nargs="*", default=LINKS)
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="of strategies, beside one device and DDP")
    parser.add_argument("--blocks", type=int, default=15, help="blocks of each strategy")
    parser.add_argument(
        "--budgets", action=argparse.BooleanOptionalAction, default=True, help="cells with little memory"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "grid.json")
    options = parser.parse_args()
    environment = describe_environment(devices=2)
    noise = noise_here(ranks=2)
    cells: list[Cell] = []
    settings = [(job, link, None) for job in options.jobs for link in options.links]
    settings += [(job, "none", budget) for job, budget in BUDGETS if options.budgets and job in options.jobs]
    for job, link, budget in settings:
        cells.append(run_cell(job, link, budget, kinds=options.kinds, blocks=options.blocks))
        print(format_cell(cells[-1]), flush=True)
        write_document(document(cells, environment, noise), options.output)
    print(format_summary(cells))
    print(noise_line(noise_interval(noise)))
    print(environment_line(environment))


def run_cell(job: str, link: str, budget: str | None, *, kinds: Sequence[str], blocks: int) -> Cell:
    """Plan, simulate and run one job on one link, or in one budget; its strategies in turns, in a budget apart."""
    source = JobSource(reference=job)
    request = parse_request(devices=2, link=None if link == "none" else link, memory=budget)
    make_plan(source, request)
    started = time.perf_counter()
    planned = make_plan(source, request).simulated
    plan_s = time.perf_counter() - started
    plans, missing = {}, {}
    for name, found in plan_families(source, request, {ALWAYS_ONE, ALWAYS_DDP, *kinds}):
        if isinstance(found, str):
            missing[name] = found
        elif found.chosen.strategy not in [other.chosen.strategy for other in plans.values()]:
            plans[name] = found
    chosen = next(
        (name for name, found in plans.items() if found.chosen.strategy == planned.chosen.strategy),
        CHOSEN,
    )
    plans.setdefault(chosen, planned)
    entries = [entry_of(found) for found in plans.values()]
    # A budget holds for a process, so strategies cannot take turns within one.
    times = times_apart(source, request, entries, blocks) if budget else _times(source, request, entries, blocks)
    return Cell(
        job=job,
        limit=budget or link,
        rows=tuple(
            Row(
                name=name,
                strategy=found.chosen.strategy.name,
                predicted_s=found.chosen.step_time_s,
                blocks_s=tuple(seconds),
            )
            for (name, found), seconds in zip(plans.items(), times, strict=True)
        ),
        chosen=chosen,
        rule=_rule_of_thumb(planned, {name: found.chosen for name, found in plans.items()}),
        missing=missing,
        plan_s=plan_s,
    )


def _times(source: JobSource, request: PlanRequest, entries: Sequence[Entry], blocks: int) -> list[list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        together: list[list[float]] = launch_on(
            request.link, time_strategies, (source, entries, blocks), ranks=2, log_dir=folder
        )[0]
        return together


def _rule_of_thumb(planned: Simulated, candidates: dict[str, Candidate]) -> str:
    """The least model parallelism that fits: replicas; sharded where they do not fit; then a pipeline.

    On links on which gradients take longer than half a step of one device, a pipeline of GPipe. What an engineer works
    out on paper: sizes over rates, nothing simulated.
    """
    link = planned.cluster.machine.node.rate_limit
    nbytes = sum(parameter.nbytes for parameter in planned.graph.parameters if parameter.trainable)
    slow = link is not None and nbytes / link.bytes_per_s > candidates[ALWAYS_ONE].step_time_s / 2
    preferred = ("GPipe", ALWAYS_DDP) if slow else (ALWAYS_DDP, ALWAYS_FSDP, "1F1B")
    return next((name for name in preferred if name in candidates), next(iter(candidates)))


def format_cell(cell: Cell) -> str:
    """A cell as a table."""
    lines = [f"\n{cell.job}, {cell.limit}: chosen {cell.chosen} (planned in {cell.plan_s:.1f} s)"]
    for row in sorted(cell.rows, key=lambda row: row.measured_s):
        spread = f"{min(row.blocks_s) * 1e3:.1f}–{max(row.blocks_s) * 1e3:.1f}"
        mark = "*" if row.name == cell.chosen else " "
        lines.append(
            f" {mark} {row.name:18} {row.strategy:28} predicted {row.predicted_s * 1e3:8.1f} ms   "
            f"measured {row.measured_s * 1e3:8.1f} ms  ({spread})  {row.error:+.0%}"
        )
    return "\n".join(lines)


def format_summary(cells: Sequence[Cell]) -> str:
    """Errors and regrets over all cells."""
    errors = sorted(abs(row.error) for cell in cells for row in cell.rows)
    lines = [
        f"\n{len(errors)} predictions: absolute error median {statistics.median(errors):.1%}, "
        f"90th percentile {errors[int(0.9 * (len(errors) - 1))]:.1%}, worst {errors[-1]:.1%}",
        "",
        "| job | limit | chosen | regret | always DDP | always one device | always FSDP2 | rule of thumb |",
        "|" + "---|" * 8,
    ]
    for cell in cells:
        names = (cell.chosen, ALWAYS_DDP, ALWAYS_ONE, ALWAYS_FSDP, cell.rule)
        regrets = [cell.regret(name) for name in names]
        shown = " | ".join("does not fit" if regret is None else f"{regret:.2f}" for regret in regrets)
        lines.append(f"| {cell.job} | {cell.limit} | {cell.chosen} | {shown} ({cell.rule}) |")
    for label, name_of in _RIVALS.items():
        found = [cell.regret(name_of(cell)) for cell in cells]
        regrets = sorted(regret for regret in found if regret is not None)
        lines.append(
            f"{label}: fits in {len(regrets)} of {len(found)}, "
            f"regret median {statistics.median(regrets):.2f}, worst {regrets[-1]:.2f}, "
            f"at least 1.3 in {sum(regret >= 1.3 for regret in regrets)}"
        )
    return "\n".join(lines)


_RIVALS = {
    "chosen": lambda cell: cell.chosen,
    "always DDP": lambda cell: ALWAYS_DDP,
    "always one device": lambda cell: ALWAYS_ONE,
    "always FSDP2": lambda cell: ALWAYS_FSDP,
    "rule of thumb": lambda cell: cell.rule,
}


def document(cells: Sequence[Cell], environment: dict[str, Any], noise: Noise | None) -> dict[str, Any]:
    """The result as it is kept."""
    return {
        "schema_version": 2,
        "environment": environment,
        "noise": to_plain(noise_interval(noise)),
        "cells": [
            {
                "job": cell.job,
                "limit": cell.limit,
                "chosen": cell.chosen,
                "rule_of_thumb": cell.rule,
                "missing": cell.missing,
                "plan_s": cell.plan_s,
                "regret": {label: cell.regret(name_of(cell)) for label, name_of in _RIVALS.items()},
                "strategies": [
                    {
                        "name": row.name,
                        "strategy": row.strategy,
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
