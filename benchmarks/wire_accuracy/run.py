"""What compressed gradients do to learning: the same trainings with and without, seed by seed.

Every training is that of its job as it is, on two replicas, with nothing changed but `Strategy.compression`; weights
and order of samples follow from the seed, so that two methods differ by their gradients alone. Evaluated up to four
times an epoch. The target is 99 % of the median of what trainings without compression end with.

A method's factor on samples is that to the target, over what the training without it needs with the same seed; where
the method does not reach the target, to 99 % of what it ends with. `planner/space.py` has these factors.

Prints the tables of the README and writes `benchmarks/results/wire_accuracy.json`. Nothing here is a time.
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
from benchmarks.wire_accuracy.ranks import Training, train_all  # noqa: E402

from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.launch.supervise import launch  # noqa: E402
from trimaran.measure.convergence.runs import find_crossing  # noqa: E402

METHODS = ("none", "bf16", "fp16", "powersgd:1", "powersgd:2", "powersgd:4")
EPOCHS = {"digits": 15.0, "text-gpt": 3.0}
FIRST_SEED = 200
DEVICES = 2
SHARE_OF_BEST = 0.99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each job and method")
    parser.add_argument("--jobs", nargs="+", default=list(EPOCHS), choices=list(EPOCHS))
    parser.add_argument("--go-on", action="store_true", help="keep what the result has, and add what is missing")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start nothing after so many seconds")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = read_trainings() if arguments.go_on else []
    wanted = [(job, seed) for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds) for job in arguments.jobs]
    for job, seed in wanted:
        missing = [method for method in METHODS if not any(is_of(one, job, seed, method) for one in found)]
        if missing and time.monotonic() - began < arguments.limit:
            found += train(job, seed, missing)
    document = {
        "schema_version": 1,
        "environment": describe_environment(devices=DEVICES),
        "share_of_best": SHARE_OF_BEST,
        "jobs": summarise(found),
        "trainings": found,
    }
    print(table(document))
    print(write_result(document, "wire_accuracy"))


def read_trainings() -> list[dict[str, Any]]:
    path = RESULTS / "wire_accuracy.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["trainings"] if path.exists() else []
    return found


def is_of(training: dict[str, Any], job: str, seed: int, method: str) -> bool:
    return bool((training["job"], training["seed"], training["method"]) == (job, seed, method))


def train(job: str, seed: int, methods: list[str]) -> list[dict[str, Any]]:
    source = JobSource(reference=job, seed=seed)
    trainings = [Training(source=source, method=method, epochs=EPOCHS[job]) for method in methods]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = launch(train_all, (trainings,), ranks=DEVICES, log_dir=Path(folder))[0]
    return [
        {
            "job": job,
            "seed": seed,
            "method": method,
            "end": outcome.end,
            "updates": outcome.updates,
            "evaluations": [list(one) for one in outcome.evaluations],
        }
        for method, outcome in zip(methods, outcomes, strict=True)
    ]


def summarise(trainings: list[dict[str, Any]]) -> dict[str, Any]:
    return {job: summarise_job([one for one in trainings if one["job"] == job]) for job in EPOCHS}


def summarise_job(trainings: list[dict[str, Any]]) -> dict[str, Any]:
    plain = {one["seed"]: one for one in trainings if one["method"] == "none"}
    if not plain:
        return {}
    target = SHARE_OF_BEST * statistics.median(final(one) for one in plain.values())
    rows = {}
    for method in METHODS:
        mine = [one for one in trainings if one["method"] == method]
        if not mine:
            continue
        crossings = [find_crossing([tuple(at) for at in one["evaluations"]], target) for one in mine]
        rows[method] = {
            "trainings": len(mine),
            "reached": sum(one is not None for one in crossings),
            "epochs_to_target": spread([one for one in crossings if one is not None]),
            "final_metric": spread([final(one) for one in mine]),
            "samples_factor": spread([factor for one in mine if (factor := samples_factor(one, plain, target))]),
            "difference": spread([final(one) - final(plain[one["seed"]]) for one in mine if one["seed"] in plain]),
        }
    return {"target": target, "epochs": EPOCHS[trainings[0]["job"]], "methods": rows}


def samples_factor(training: dict[str, Any], plain: dict[int, dict[str, Any]], target: float) -> float | None:
    """How many times the samples a training needs of what the plain one of its seed needs for the same metric."""
    other = plain.get(training["seed"])
    if other is None:
        return None
    level = min(target, SHARE_OF_BEST * final(training))
    own_at, plain_at = (find_crossing([tuple(at) for at in one["evaluations"]], level) for one in (training, other))
    return own_at / plain_at if own_at and plain_at else None


def final(training: dict[str, Any]) -> float:
    """The mean of the last two evaluations, as one alone is worth a few samples."""
    return statistics.fmean(metric for _, metric in training["evaluations"][-2:]) if training["evaluations"] else 0.0


def spread(values: list[float]) -> dict[str, float] | None:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "low": ordered[0], "high": ordered[-1]} if ordered else None


def table(document: dict[str, Any]) -> str:
    lines = []
    for job, found in document["jobs"].items():
        if not found:
            continue
        lines += [
            f"\n`{job}`, {found['epochs']:g} epochs, target {found['target']:.4f}:\n",
            "| on the wire | epochs to the target | from | to | reached | times the samples | from | to | "
            "metric at the end | from | to | beside none, same seed | from | to |",
            "|" + "---|" * 14,
        ]
        for method, row in found["methods"].items():
            cells = [
                method,
                *figures(row["epochs_to_target"], ".2f"),
                f"{row['reached']} of {row['trainings']}",
                *figures(row["samples_factor"], ".2f"),
                *figures(row["final_metric"], ".4f"),
                *figures(row["difference"], "+.4f"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def figures(values: dict[str, float] | None, form: str) -> list[str]:
    return ["–"] * 3 if values is None else [format(values[name], form) for name in ("median", "low", "high")]


if __name__ == "__main__":
    main()
