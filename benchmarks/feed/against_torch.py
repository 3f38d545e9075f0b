"""Our workers against torch's DataLoader with persistent workers, on the jobs of this benchmark.

Blocks of steps by each take turns. Prints, of torch's over ours, the median and the quartiles of the pairs: of the
step, and of the work of a rank and its workers.
"""

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.feed.loader_ranks import time_loaders  # noqa: E402
from benchmarks.feed.run import JOBS  # noqa: E402

from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.launch.supervise import launch  # noqa: E402
from trimaran.planner.pins import Pins  # noqa: E402
from trimaran.planning.plan import make_plan  # noqa: E402
from trimaran.planning.requests import PlanRequest  # noqa: E402
from trimaran.program.lowering.lower import lower_evaluation  # noqa: E402

CASES = (
    ("reading_large", 2, 1, 6),
    ("reading", 2, 2, 12),
    ("reading_small", 2, 8, 40),
    ("decoding", 1, 1, 8),
    ("decoding_again", 2, 1, 8),
)
"""Job, ranks, workers of each, and steps of a block."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each")
    parser.add_argument("--cases", nargs="*", default=[name for name, *_ in CASES], help="only these jobs")
    options = parser.parse_args()
    print("| job | ranks | workers | step | work |\n|---|---|---|---|---|")
    for name, ranks, workers, steps in CASES:
        if name in options.cases:
            step, work = compare(name, ranks, workers, steps, options.rounds)
            print(f"| {name} | {ranks} | {workers} | {_quartiles(step)} | {_quartiles(work)} |", flush=True)


def compare(name: str, ranks: int, workers: int, steps: int, rounds: int) -> tuple[list[float], list[float]]:
    """Step and work of torch's loader over ours, pair by pair."""
    source = JobSource(reference=f"{JOBS}:{name}")
    pins = Pins(dp=ranks, workers=workers)
    planned = make_plan(source, PlanRequest(devices=ranks, execution="eager", pins=pins)).simulated
    strategy = planned.plan.strategy
    strategy = replace(strategy, feeding=replace(strategy.feeding, cached=False))
    evaluation = lower_evaluation(planned.graph, strategy, batch=planned.job.global_batch_size)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (source, strategy, planned.chosen.program, evaluation, rounds, steps)
        (found, *_) = launch(time_loaders, arguments, ranks=ranks, log_dir=folder)
    pairs = list(zip(found["ours"], found["torch"], strict=True))
    return [theirs[0] / own[0] for own, theirs in pairs], [theirs[1] / own[1] for own, theirs in pairs]


def _quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
