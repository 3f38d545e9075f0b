"""How right the simulator is about this machine, and what recording costs.

Four networks (`tests/zoo.py`), each on two processes as replicas and as a pipeline. Costs are measured, the step is
simulated, then run: blocks of steps with and without recording take turns, so that a drift of the machine meets both.
Prints the tables of the README and writes `benchmarks/results/local.json`.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, noise_here  # noqa: E402
from benchmarks.local.ranks import StepTimes, run_rank  # noqa: E402

from trimaran.graph.capture.capture import capture  # noqa: E402
from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.launch.supervise import launch  # noqa: E402
from trimaran.machine.detect import detect_machine  # noqa: E402
from trimaran.measure.costs import measure_costs  # noqa: E402
from trimaran.planner.candidates import Candidate, PricedJob, evaluate  # noqa: E402
from trimaran.planner.pipeline_stages import split_stages  # noqa: E402
from trimaran.pricing.transfers import collectives_at_once  # noqa: E402
from trimaran.program.json_files import to_plain  # noqa: E402
from trimaran.program.lowering.lower import lower_evaluation  # noqa: E402
from trimaran.program.strategy import Strategy  # noqa: E402
from trimaran.report.breakdown import PHASES  # noqa: E402
from trimaran.report.comparison import Comparison, compare  # noqa: E402
from trimaran.report.run_report import noise_interval, noise_line  # noqa: E402

RESAMPLES = 1000
NETWORKS = ("cnn", "unet", "lstm", "gpt")
STRATEGIES = (Strategy(dp=2), Strategy(pp=2, schedule="1f1b", microbatches=4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network under a strategy, predicted and run."""

    network: str
    candidate: Candidate
    comparison: Comparison
    times: dict[bool, StepTimes]

    @property
    def unattributed(self) -> float:
        """Share of the measured step that belongs to no phase, mean over the ranks [1]."""
        return statistics.mean(
            1.0 - sum(rank.measured.phases.values()) / rank.measured.step_s for rank in self.comparison.ranks
        )

    def host_s(self, phase: str) -> float:
        """What the host takes before the spans of a phase, mean over the ranks [s]."""
        return statistics.mean(rank.measured.host.get(phase, 0.0) for rank in self.comparison.ranks)

    def overhead(self, clock: str) -> tuple[float, float, float]:
        """What recording adds to a step, as a share of it by the same clock, and its 90 % interval.

        The interval comes from drawing blocks again and again. By the clock of work other programs on the cores change
        little: it stops while they run, for steps with and without recording.

        Args:
            clock: "wall", or "work": the time that the process computes, which waiting does not blur
        """
        count = len(self.times[True].wall)
        step_s = statistics.median(step for block in getattr(self.times[False], clock) for step in block)

        def added(picks: Sequence[int]) -> float:
            blocks = {recording: getattr(times, clock) for recording, times in self.times.items()}
            recorded, plain = (
                statistics.median(step for pick in picks for step in blocks[recording][pick])
                for recording in (True, False)
            )
            return (recorded - plain) / step_s

        generator = random.Random(0)
        drawn = sorted(added([generator.randrange(count) for _ in range(count)]) for _ in range(RESAMPLES))
        return added(range(count)), drawn[RESAMPLES // 20], drawn[-RESAMPLES // 20 - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=60, help="pairs of blocks of each case")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "local.json")
    parser.add_argument(
        "--phases-only", action="store_true", help="only phases and what recording costs; the rest of the result stays"
    )
    options = parser.parse_args()
    cases = [case for network in NETWORKS for case in run_network(network, options.blocks)]
    print(format_cases(cases))
    print(format_kinds(cases))
    print(noise_line(noise_interval(noise_here(ranks=2))))
    if options.phases_only:
        kept = json.loads(options.output.read_text()) | {"phases": phases_document(cases)}
        options.output.write_text(json.dumps(kept, indent=1) + "\n")
        return
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document(cases), indent=1) + "\n")


def run_network(network: str, blocks: int) -> Iterator[Case]:
    source = JobSource(reference=f"{ROOT / 'tests' / 'zoo.py'}:{network}")
    job = source.make()
    batch = job.global_batch_size
    graph, cluster = capture(job).graph, detect_machine(2).allocate()
    sizes = {batch // (strategy.dp * strategy.microbatches) for strategy in STRATEGIES}
    table = measure_costs(source.make, graph, ranks=2, batches=sizes)
    for strategy in STRATEGIES:
        priced = PricedJob(graph=graph, table=table, cluster=cluster, batch=batch)
        candidate = evaluate(split_stages(strategy, graph, table, batch=batch), priced)
        evaluation = lower_evaluation(graph, candidate.strategy, batch=batch)
        with tempfile.TemporaryDirectory() as folder:
            arguments = (source, candidate.strategy, candidate.program, evaluation, blocks)
            timeline, times = launch(run_rank, arguments, ranks=2, log_dir=folder)[0]
        at_once = collectives_at_once(table, cluster)
        comparison = compare(candidate.program, candidate.timeline, timeline, warmup=0, at_once=at_once)
        yield Case(network=network, candidate=candidate, comparison=comparison, times=times)


def format_cases(cases: list[Case]) -> str:
    """The first table of the README."""
    rows = [
        "| network | strategy | predicted | measured | error | in no phase | host | recording, work "
        "| recording, wall |",
        "|" + "---|" * 9,
    ]
    for case in cases:
        step = case.comparison.step
        shares = ["{:+.1%} ({:+.1%} to {:+.1%})".format(*case.overhead(clock)) for clock in ("work", "wall")]
        rows.append(
            f"| {case.network} | {case.candidate.strategy.name} | {step.predicted_s * 1e3:.2f} ms "
            f"| {step.measured_s * 1e3:.2f} ms | {step.error:+.1%} | {case.unattributed:.1%} "
            f"| {sum(map(case.host_s, PHASES)) * 1e3:.2f} ms "
            f"| {shares[0]} | {shares[1]} |"
        )
    return "\n".join(rows) + "\n"


def format_kinds(cases: list[Case]) -> str:
    """The second table: error of the median of every kind of instruction."""
    kinds = list(dict.fromkeys(kind.kind.value for case in cases for kind in case.comparison.kinds))
    rows = ["| network | strategy | " + " | ".join(kinds) + " |", "|" + "---|" * (2 + len(kinds))]
    for case in cases:
        errors = {kind.kind.value: kind.error for kind in case.comparison.kinds}
        cells = ["–" if errors.get(kind) is None else f"{errors[kind]:+.0%}" for kind in kinds]
        rows.append(f"| {case.network} | {case.candidate.strategy.name} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def phases_document(cases: list[Case]) -> dict[str, Any]:
    """Phases of measured steps, and what recording costs."""
    return {
        "environment": describe_environment(devices=2),
        "load": os.getloadavg()[1],
        "cases": [
            {
                "network": case.network,
                "strategy": case.candidate.strategy.name,
                "measured_s": case.comparison.step.measured_s,
                "unattributed": case.unattributed,
                "host_s": {phase: case.host_s(phase) for phase in PHASES},
                "recording_wall": dict(zip(("share", "low", "high"), case.overhead("wall"), strict=True)),
                "recording_work": dict(zip(("share", "low", "high"), case.overhead("work"), strict=True)),
            }
            for case in cases
        ],
    }


def document(cases: list[Case]) -> dict[str, Any]:
    """The result as it is kept."""
    return {
        "schema_version": 1,
        "phases": phases_document(cases),
        "environment": describe_environment(devices=2),
        "noise": to_plain(noise_interval(noise_here(ranks=2))),
        "cases": [
            {
                "network": case.network,
                "strategy": case.candidate.strategy.name,
                "predicted_s": case.comparison.step.predicted_s,
                "interval_s": list(case.candidate.interval_s),
                "measured_s": case.comparison.step.measured_s,
                "error": case.comparison.step.error,
                "kinds": {
                    kind.kind.value: {
                        "predicted_s": kind.predicted_s,
                        "measured_s": kind.measured_s,
                        "error": kind.error,
                    }
                    for kind in case.comparison.kinds
                },
            }
            for case in cases
        ],
    }


if __name__ == "__main__":
    main()
