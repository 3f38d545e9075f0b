"""What our runtime costs over a loop that people write by hand: DDP, and torch.distributed.pipelining.

In each case two processes run loops in blocks that take turns: ours, the hand-written one, and the hand-written one
once more, which shows what two equal loops differ by (A/A). These have event loops that do not preempt, as ours does;
for DDP there is one more without that. Prints the table of the README and writes `benchmarks/results/overhead.json`.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, write_document  # noqa: E402
from benchmarks.overhead.ranks import time_loops  # noqa: E402

from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.launch.supervise import launch  # noqa: E402
from trimaran.planner.candidates import PricedJob, evaluate  # noqa: E402
from trimaran.planner.pipeline_stages import split_stages  # noqa: E402
from trimaran.planning.plan import make_plan  # noqa: E402
from trimaran.planning.requests import PlanRequest  # noqa: E402
from trimaran.program.lowering.lower import lower_evaluation  # noqa: E402
from trimaran.program.strategy import Strategy  # noqa: E402

PIPELINES = tuple(Strategy(pp=2, schedule=schedule, microbatches=4) for schedule in ("gpipe", "1f1b"))
CASES = (
    *((job, Strategy(dp=2)) for job in ("digits", "digits-resnet", "text-lstm", "text-gpt", "wide")),
    *((job, pipeline) for job in ("digits-resnet", "wide") for pipeline in PIPELINES),
)
RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Median step time of one loop over that of another, with its 90 % interval.

    Attributes:
        value: of the medians over all blocks
        low: lower end
        high: upper end; the upper confidence bound at 95 %
    """

    value: float
    low: float
    high: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=25, help="blocks of each loop")
    parser.add_argument("--jobs", nargs="*", default=None, help="only these jobs")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "overhead.json")
    options = parser.parse_args()
    environment = describe_environment(devices=2)
    print("| job | strategy | by hand | ours over by hand | A/A | ours over by hand, as it is |\n" + "|" + "---|" * 6)
    rows: list[dict[str, Any]] = []
    for job, strategy in CASES:
        if options.jobs is not None and job not in options.jobs:
            continue
        times = run_case(job, strategy, options.blocks)
        ours, same = (ratio(times[name], times["by hand"]) for name in ("ours", "by hand, again"))
        as_is = ratio(times["ours"], times["by hand, as it is"]) if "by hand, as it is" in times else None
        by_hand_s = statistics.median(times["by hand"])
        print(
            f"| {job} | {strategy.name} | {by_hand_s * 1e3:.1f} ms | {ours.value:.3f} ({ours.low:.3f} to "
            f"{ours.high:.3f}) | {_cell(same)} | {_cell(as_is)} |",
            flush=True,
        )
        rows.append({
            "job": job,
            "strategy": strategy.name,
            "by_hand_s": by_hand_s,
            "ours": [ours.low, ours.value, ours.high],
            "same": [same.low, same.value, same.high],
            "as_it_is": None if as_is is None else [as_is.low, as_is.value, as_is.high],
            "blocks_s": times,
        })  # fmt: skip
        write_document({"schema_version": 1, "environment": environment, "cases": rows}, options.output)
    print(environment_line(environment))


def _cell(found: Ratio | None) -> str:
    return "–" if found is None else f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def run_case(job: str, strategy: Strategy, blocks: int) -> dict[str, list[float]]:
    """Run the three loops of one case."""
    source = JobSource(reference=job)
    planned = make_plan(source, PlanRequest(devices=2, execution="eager")).simulated
    batch = planned.job.global_batch_size
    whole = split_stages(strategy, planned.graph, planned.table, batch=batch)
    priced = PricedJob(graph=planned.graph, table=planned.table, cluster=planned.cluster, batch=batch)
    program = evaluate(whole, priced).program
    evaluation = lower_evaluation(planned.graph, whole, batch=batch)
    with tempfile.TemporaryDirectory() as folder:
        results = launch(time_loops, (source, whole, program, evaluation, blocks), ranks=2, log_dir=folder)
    times: dict[str, list[float]] = results[0]
    return times


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Blocks of the same round belong together: rounds are drawn again and again for the interval."""
    generator = random.Random(0)

    def of(picks: Sequence[int]) -> float:
        return statistics.median(ours[pick] / theirs[pick] for pick in picks)

    count = len(ours)
    drawn = sorted(of([generator.randrange(count) for _ in range(count)]) for _ in range(RESAMPLES))
    return Ratio(value=of(range(count)), low=drawn[RESAMPLES // 20], high=drawn[-RESAMPLES // 20 - 1])


if __name__ == "__main__":
    main()
