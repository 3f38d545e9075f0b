"""Predicted against executed step times, in rounds: what a machine that changes its pace leaves of the model's error.

A core of a shared machine is 20 % faster or slower a minute later, so that costs measured once say little of steps run
later. Here every round measures the costs anew, plans the best strategy of each kind, and at once runs each in
processes of its own; the error of a strategy is the median over the rounds of predicted / measured − 1. Nothing is
fitted to the runs. What other programs took of the cores meanwhile stands beside each round, because two ranks on two
cores feel it and one does not. Prints a table, writes `benchmarks/results/executed.json`.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, write_document  # noqa: E402
from benchmarks.grid.apart import entry_of, times_apart  # noqa: E402
from benchmarks.grid.families import FAMILIES, plan_families  # noqa: E402

from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.measure.others import others_share, read_spent  # noqa: E402
from trimaran.planning.requests import parse_request  # noqa: E402

JOBS = ("digits-resnet", "digits-branches", "text-lstm", "text-gpt", "wide")
KINDS = ("one device", "DDP", "placement", "1F1B")
BLOCKS = 5
"""Of a quarter of a second each, so that a round is over before the machine changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kind of strategy of a job.

    Attributes:
        job: its name
        kind: of the strategy
        strategies: their own names, one a round
        predicted_s: steps, one a round [s]
        measured_s: median of the blocks, one a round [s]
        others: part of the cores that other programs took, one a round [0..1]
    """

    job: str
    kind: str
    strategies: tuple[str, ...]
    predicted_s: tuple[float, ...]
    measured_s: tuple[float, ...]
    others: tuple[float, ...]

    @property
    def errors(self) -> list[float]:
        """Predicted over measured, less one, one a round."""
        return [predicted / measured - 1 for predicted, measured in zip(self.predicted_s, self.measured_s, strict=True)]

    @property
    def error(self) -> float:
        """Their median."""
        return statistics.median(self.errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="*", default=JOBS)
    parser.add_argument("--kinds", nargs="*", choices=[family.name for family in FAMILIES], default=KINDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "executed.json")
    options = parser.parse_args()
    environment = describe_environment(devices=2)
    rows: list[Row] = []
    for job in options.jobs:
        of_job = run_job(job, options.kinds, options.rounds)
        print("\n".join(format_row(row) for row in of_job), flush=True)
        rows += of_job
        document = {"environment": environment, "rows": [asdict(row) | {"error": row.error} for row in rows]}
        write_document(document, options.output)
    print(format_summary(rows))
    print(environment_line(environment))


def run_job(job: str, kinds: Sequence[str], rounds: int) -> list[Row]:
    """Measure, plan and run a job so many times."""
    source, request = JobSource(reference=job), parse_request(devices=2)
    found: dict[str, list[tuple[str, float, float, float]]] = defaultdict(list)
    for _ in range(rounds):
        before = read_spent()
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TRIMARAN_CACHE"] = cache
            plans = {kind: plan for kind, plan in plan_families(source, request, kinds) if not isinstance(plan, str)}
        times = times_apart(source, request, [entry_of(plan) for plan in plans.values()], BLOCKS)
        others = others_share(before, read_spent(), cores=len(os.sched_getaffinity(0)))
        for (kind, plan), blocks_s in zip(plans.items(), times, strict=True):
            strategy, predicted_s = plan.chosen.strategy.name, plan.chosen.step_time_s
            found[kind].append((strategy, predicted_s, statistics.median(blocks_s), others))
    return [
        Row(job=job, kind=kind, strategies=names, predicted_s=predicted_s, measured_s=measured_s, others=others)
        for kind, (names, predicted_s, measured_s, others) in (
            (kind, zip(*of_kind, strict=True)) for kind, of_kind in found.items()
        )
    ]


def format_row(row: Row) -> str:
    """A line of a table."""
    predicted_ms, measured_ms = (statistics.median(times) * 1e3 for times in (row.predicted_s, row.measured_s))
    return (
        f"| {row.job} | {row.kind} ({row.strategies[0]}) | {predicted_ms:.1f} | {measured_ms:.1f} | {row.error:+.1%} "
        f"| {min(row.errors):+.0%} to {max(row.errors):+.0%} | {max(row.others):.1%} |"
    )


def format_summary(rows: Sequence[Row]) -> str:
    """The median error of each job, and of all."""
    jobs = dict.fromkeys(row.job for row in rows)
    of_jobs = {job: statistics.median(abs(row.error) for row in rows if row.job == job) for job in jobs}
    return f"absolute error: median {statistics.median(abs(row.error) for row in rows):.1%}; by job " + ", ".join(
        f"{job} {error:.1%}" for job, error in of_jobs.items()
    )


if __name__ == "__main__":
    main()
