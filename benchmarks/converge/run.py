"""From a measured curve to a shorter training: is the plan for time really the first to reach the target?

1. `trimaran crossover --measure digits`: the curve, and the critical batch by gradient noise beside the fitted one.
2. `trimaran plan digits --curve`: for time, and for throughput.
3. Both plans are trained, seed by seed in turn, until the target: seconds of training, evaluations not counted.

The seeds of 3 are not those of 1. Prints the tables of the README and writes `benchmarks/results/converge.json`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.converge.ranks import train_rank  # noqa: E402
from benchmarks.environment import describe_environment, write_result  # noqa: E402

from trimaran.graph.capture.capture import capture  # noqa: E402
from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.launch.supervise import launch  # noqa: E402
from trimaran.measure.convergence.runs import (  # noqa: E402
    Limits,
    best_metric,
    find_crossing,
)
from trimaran.planning.target import source_as_planned  # noqa: E402
from trimaran.program.lowering.lower import lower_evaluation  # noqa: E402
from trimaran.program.plan_file import Plan, read_plan  # noqa: E402
from trimaran.program.text import format_program  # noqa: E402

OBJECTIVES = ("time", "throughput")
FIRST_SEED = 100
DEVICES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One training by a plan.

    Attributes:
        objective: of the plan
        seed: of weights and order
        time_s: of training until the target; None where it was not reached [s]
        epochs: until the target; None where it was not reached
        samples_per_s: of training
        best: largest metric
    """

    objective: str
    seed: int
    time_s: float | None
    epochs: float | None
    samples_per_s: float
    best: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="digits")
    parser.add_argument("--seeds", type=int, default=9, help="trainings of each plan")
    parser.add_argument("--curve", type=Path, help="a curve file in place of a measurement")
    parser.add_argument("--max-epochs", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measured = None if arguments.curve else command("converge", arguments.job, "--json", folder=folder)
        curve = arguments.curve.resolve() if measured is None else folder / str(measured["curve_file"])
        plans = {}
        for objective in OBJECTIVES:
            output = folder / f"{objective}.json"
            command(
                "plan", arguments.job, "--objective", objective, "--curve", str(curve), "--devices", str(DEVICES),
                "--output", str(output), "--json", folder=folder,
            )  # fmt: skip
            plans[objective] = read_plan(output)
        target = json.loads(curve.read_text())["target"]
        seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
        trainings = [
            train(arguments.job, objective, plans[objective], seed, target, arguments.max_epochs, folder)
            for number, seed in enumerate(seeds)
            for objective in (OBJECTIVES if number % 2 else reversed(OBJECTIVES))
        ]
    document = summarise(measured, plans, trainings, target, arguments.job)
    print(table(document))
    print(write_result(document, "converge"))


def command(*arguments: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "trimaran", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def train(
    reference: str, objective: str, plan: Plan, seed: int, target: float, max_epochs: float, folder: Path
) -> Trained:
    source = source_as_planned(plan, JobSource(reference=reference, seed=seed))
    job = source.make()
    evaluation = lower_evaluation(capture(job).graph, plan.strategy, batch=job.global_batch_size)
    outcome = launch(
        train_rank,
        (source, plan, format_program(evaluation), Limits(target=target, epochs=max_epochs)),
        ranks=plan.strategy.devices,
        log_dir=folder / "logs",
    )[0]
    epochs = find_crossing(outcome.evaluations, target)
    return Trained(
        objective=objective,
        seed=seed,
        time_s=None if epochs is None else outcome.seconds * epochs / outcome.epochs,
        epochs=epochs,
        samples_per_s=outcome.samples / outcome.seconds,
        best=best_metric(outcome.evaluations),
    )


def summarise(
    measured: dict[str, Any] | None, plans: dict[str, Plan], trainings: list[Trained], target: float, job: str
) -> dict[str, Any]:
    rows = {}
    for objective, plan in plans.items():
        mine = [one for one in trainings if one.objective == objective]
        times = sorted(one.time_s for one in mine if one.time_s is not None)
        rows[objective] = {
            "strategy": plan.strategy.name,
            "global_batch_size": plan.premises.global_batch_size,
            "predicted": None
            if plan.training is None
            else asdict(plan.training) | {"curve": Path(plan.training.curve).name},
            "median_time_s": statistics.median(times) if times else None,
            "time_range_s": [times[0], times[-1]] if times else None,
            "median_epochs": statistics.median([one.epochs for one in mine if one.epochs is not None] or [0.0]),
            "median_samples_per_s": statistics.median(one.samples_per_s for one in mine),
            "reached": len(times),
            "trainings": len(mine),
        }
    seeds = sorted({one.seed for one in trainings})
    by = {(one.objective, one.seed): one.time_s for one in trainings}
    first = [
        OBJECTIVES[0] if _earlier(*(by[objective, seed] for objective in OBJECTIVES)) else OBJECTIVES[1]
        for seed in seeds
    ]
    return {
        "schema_version": 1,
        "environment": describe_environment(devices=DEVICES),
        "job": job,
        "target": target,
        "curve": measured,
        "plans": rows,
        "seeds_in_which_time_was_first": first.count("time"),
        "seeds": len(seeds),
        "trainings": [asdict(one) for one in trainings],
    }


def _earlier(one: float | None, other: float | None) -> bool:
    return one is not None and (other is None or one < other)


def table(document: dict[str, Any]) -> str:
    lines = []
    measured = document["curve"]
    if measured is not None:
        curve, noise = measured["curve"], measured["gradient_noise"]
        lines += ["| batch | epochs | deviation | runs |", "|---|---|---|---|"]
        for point in curve["points"]:
            if point["epochs"] is not None:
                spread = "–" if point["deviation"] is None else f"{point['deviation']:.2f}"
                reached = point["runs"] - point["failed"]
                lines.append(f"| {point['global_batch']} | {point['epochs']:.2f} | {spread} | {reached} |")
        lines.append(
            f"\nTarget {measured['target']}, {measured['target_source']}. E0 {curve['e0']:.2f}, Bcrit "
            f"{_figure(curve['b_crit'])} (90 %: {' to '.join(map(_figure, curve['b_crit_interval']))}), rms "
            f"{curve['rms']:.1%}; by gradient noise {_figure(noise and noise['b_crit'])}, "
            f"{_figure(noise and noise['ratio_to_fitted'])} times ({_within_two(measured)}). "
            f"{measured['time_s']:.0f} s.\n"
        )
    lines += [
        "| plan for | strategy | batch | predicted time | trained, median | from | to | epochs | samples/s | reached |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for objective, row in document["plans"].items():
        predicted = row["predicted"]
        low, high = row["time_range_s"] or (None, None)
        cells = [
            objective,
            row["strategy"],
            row["global_batch_size"],
            _figure(predicted and predicted["time_s"]),
            _figure(row["median_time_s"]),
            _figure(low),
            _figure(high),
            _figure(row["median_epochs"]),
            f"{row['median_samples_per_s']:.0f}",
            f"{row['reached']} of {row['trainings']}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    first = document["seeds_in_which_time_was_first"]
    lines.append(f"\nThe plan for time was first in {first} of {document['seeds']} seeds.")
    return "\n".join(lines)


def _within_two(measured: dict[str, Any]) -> str:
    fitted = measured["curve"]["b_crit"]
    alone = [run["noise_b_crit"] for run in measured["runs"] if run["gradient_noise"] is not None]
    near = sum(fitted is not None and value is not None and 0.5 <= value / fitted <= 2.0 for value in alone)
    return f"{near} of the {len(alone)} runs alone are within a factor of 2"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
