"""PipeDream's weight stashing against a pipeline that is flushed: epochs to a target, time of an epoch, and both.

The same trainings by `--schedule 1f1b`, with the microbatches that the planner takes, and by `--schedule pipedream`, on
as many stages, seed by seed. Nothing else differs: learning rate, epochs and schedule are those of the job, and were
not tuned to either. A flushed pipeline trains as one process does, so its epochs are those of any synchronous plan.

The target is 99 % of the median of what the synchronous trainings end with. Epochs to it are between the evaluation
that reaches it and the one before; where a stale training does not reach it, to 99 % of what that one ends with. Time
to the target is these epochs, each as long as the median epoch of that training. Trainings of one seed run one after
another in one world, so that what else the machine does meets both alike.

`planner/space.py` has the factor on samples. Prints the table of the README and writes `benchmarks/results/stale.json`.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe_environment, write_result  # noqa: E402
from benchmarks.stale.ranks import Training, train_all  # noqa: E402

from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.launch.supervise import launch  # noqa: E402
from trimaran.measure.convergence.runs import find_crossing  # noqa: E402
from trimaran.planner.pins import parse_pins  # noqa: E402
from trimaran.planning.plan import make_plan  # noqa: E402
from trimaran.planning.requests import parse_request  # noqa: E402

SCHEDULES = ("1f1b", "pipedream")
CELLS = {"digits": (2, 4), "text-lstm": (2,)}
FIRST_SEED = 300
SHARE_OF_END = 0.99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each job, number of stages and schedule")
    parser.add_argument("--jobs", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--go-on", action="store_true", help="keep what the result has, and add what is missing")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start nothing after so many seconds")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = read_trainings() if arguments.go_on else []
    plans: dict[tuple[str, int, str], Any] = {}
    for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
        for job, stages in [(one, count) for one in arguments.jobs for count in CELLS[one]]:
            if any(is_of(one, job, stages, seed) for one in found) or time.monotonic() - began > arguments.limit:
                continue
            for schedule in SCHEDULES:
                if (job, stages, schedule) not in plans:
                    plans[job, stages, schedule] = plan(job, stages, schedule)
            found += train(job, stages, seed, [plans[job, stages, schedule] for schedule in SCHEDULES])
            save(found)
    print(table(save(found)))


def plan(job: str, stages: int, schedule: str) -> Any:
    request = parse_request(
        devices=stages,
        execution="eager",
        pins=parse_pins(dp=1, pp=stages, tp=1, schedule=schedule, workers=0),
        oversubscribe=True,
    )
    return make_plan(JobSource(reference=job), request).chosen


def train(job: str, stages: int, seed: int, chosen: list[Any]) -> list[dict[str, Any]]:
    trainings = [Training(source=JobSource(reference=job, seed=seed), strategy=one.strategy) for one in chosen]
    with tempfile.TemporaryDirectory() as folder:
        courses = launch(train_all, (trainings,), ranks=stages, log_dir=Path(folder))[0]
    return [
        {
            "job": job,
            "stages": stages,
            "seed": seed,
            "schedule": one.strategy.schedule,
            "strategy": one.name,
            "predicted_step_s": one.step_time_s,
            "predicted_interval_s": list(one.interval_s),
            "epoch_s": course.epoch_s,
            "losses": course.losses,
            "evaluations": [list(at) for at in course.evaluations],
        }
        for one, course in zip(chosen, courses, strict=True)
    ]


def read_trainings() -> list[dict[str, Any]]:
    path = RESULTS / "stale.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["trainings"] if path.exists() else []
    return found


def is_of(training: dict[str, Any], job: str, stages: int, seed: int) -> bool:
    return bool((training["job"], training["stages"], training["seed"]) == (job, stages, seed))


def save(found: list[dict[str, Any]]) -> dict[str, Any]:
    document = {
        "schema_version": 1,
        "environment": describe_environment(devices=max(max(cells) for cells in CELLS.values())),
        "share_of_end": SHARE_OF_END,
        "cells": [
            summarise(job, stages, [one for one in found if (one["job"], one["stages"]) == (job, stages)])
            for job, counts in CELLS.items()
            for stages in counts
            if any((one["job"], one["stages"]) == (job, stages) for one in found)
        ],
        "trainings": found,
    }
    write_result(document, "stale")
    return document


def summarise(job: str, stages: int, trainings: list[dict[str, Any]]) -> dict[str, Any]:
    plain = {one["seed"]: one for one in trainings if one["schedule"] == "1f1b"}
    target = SHARE_OF_END * statistics.median(final(one) for one in plain.values())
    rows = {}
    for schedule in SCHEDULES:
        mine = [one for one in trainings if one["schedule"] == schedule]
        compared = [compared_with(plain[one["seed"]], one, target) for one in mine if one["seed"] in plain]
        reached = [at for one in mine if (at := crossing(one, target)) is not None]
        rows[schedule] = {
            "strategy": mine[0]["strategy"],
            "trainings": len(mine),
            "reached": len(reached),
            "epochs_to_target": spread(reached),
            "final_metric": spread([final(one) for one in mine]),
            "samples_factor": spread([one["samples_factor"] for one in compared if one]),
            "epoch_s": spread([statistics.median(one["epoch_s"]) for one in mine]),
            "epoch_factor": spread([one["epoch_factor"] for one in compared if one]),
            "time_factor": spread([one["samples_factor"] * one["epoch_factor"] for one in compared if one]),
            "predicted_step_s": mine[0]["predicted_step_s"],
        }
    return {"job": job, "stages": stages, "target": target, "schedules": rows}


def compared_with(plain: dict[str, Any], training: dict[str, Any], target: float) -> dict[str, float] | None:
    """Epochs and time of an epoch over those of the synchronous training of the seed; None: it reached nothing."""
    level = min(target, SHARE_OF_END * final(training), SHARE_OF_END * final(plain))
    own, other = crossing(training, level), crossing(plain, level)
    if not own or not other:
        return None
    epochs = statistics.median(training["epoch_s"]) / statistics.median(plain["epoch_s"])
    return {"samples_factor": own / other, "epoch_factor": epochs}


def crossing(training: dict[str, Any], level: float) -> float | None:
    return find_crossing([(epochs, metric) for epochs, metric in training["evaluations"]], level)


def final(training: dict[str, Any]) -> float:
    """The mean of the last two evaluations, as one alone is worth a few samples."""
    return statistics.fmean(metric for _, metric in training["evaluations"][-2:])


def spread(values: list[float]) -> dict[str, float] | None:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "low": ordered[0], "high": ordered[-1]} if ordered else None


def table(document: dict[str, Any]) -> str:
    lines = [
        "| job | strategy | reached | epochs to the target | times the epochs | an epoch | times as long | "
        "time to the target | metric at the end |",
        "|" + "---|" * 9,
    ]
    for cell in document["cells"]:
        for row in cell["schedules"].values():
            cells = [
                f"`{cell['job']}`, target {cell['target']:.4f}",
                row["strategy"],
                f"{row['reached']} of {row['trainings']}",
                figures(row["epochs_to_target"], ".2f"),
                figures(row["samples_factor"], ".2f"),
                figures(row["epoch_s"], ".2f") + " s",
                figures(row["epoch_factor"], ".2f"),
                figures(row["time_factor"], ".2f"),
                figures(row["final_metric"], ".4f"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def figures(values: dict[str, float] | None, form: str) -> str:
    if values is None:
        return "–"
    median, low, high = (format(values[name], form) for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


if __name__ == "__main__":
    main()
