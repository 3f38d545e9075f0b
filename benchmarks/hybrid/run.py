"""Data parallelism against hybrids, trained to a target on real processes: is the better one the one that was said?

Jobs × rates of the links between ranks. For each job `crossover --measure` measures how much training each batch needs.
In each cell `trimaran plan --objective time` plans each way, which chooses its own batch:

    dp2, dp4          replicas alone, on two ranks and on four
    stages2, places2  a pipeline of two stages; a placement on two ranks
    dp2 × stages      two replicas of two stages
    dp2 × places      two replicas, each placed on two ranks

Then all are trained, seed by seed in turn, until the target: seconds of training, evaluations not counted. The seeds
are others than those of the curve, and nothing is fitted to the trainings. *Crossover*: the first of 2 and 4 ranks on
which model parallelism is ahead, in the prediction and in the trainings. Links are network namespaces joined by veth,
each way held to the rate by `tc`. Where ranks share cores, say `--oversubscribe`; the result says so.

Prints the tables of the README and writes `benchmarks/results/hybrid.json`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe_environment, write_result  # noqa: E402
from benchmarks.hybrid.ranks import Training, train_in_turns  # noqa: E402

from trimaran.emulation.links import launch_on  # noqa: E402
from trimaran.graph.capture.capture import capture  # noqa: E402
from trimaran.jobs.resolve import JobSource  # noqa: E402
from trimaran.measure.convergence.runs import Limits, find_crossing  # noqa: E402
from trimaran.measure.others import Others  # noqa: E402
from trimaran.planning.target import source_as_planned  # noqa: E402
from trimaran.program.lowering.lower import lower_evaluation  # noqa: E402
from trimaran.program.plan_file import Plan, read_plan  # noqa: E402
from trimaran.program.text import format_program  # noqa: E402

OWN = f"{Path(__file__).with_name('jobs.py')}:"
JOBS = {"digits": "digits", "large-head": OWN + "large_head", "two-towers": OWN + "two_towers"}
"""Names in the result, and how each is found; others are names of jobs."""
LINKS = ("", "1Gb/s", "200Mb/s")
_REPLICAS = ("--pp", "1", "--tp", "1", "--zero", "0")
_STAGES = ("--pp", "2", "--tp", "1", "--forbid", "placement")
_PLACES = ("--pp", "2", "--tp", "1", "--allow", "placement")
WAYS = {
    "dp2": (2, ("--dp", "2", *_REPLICAS)),
    "stages2": (2, ("--dp", "1", *_STAGES)),
    "places2": (2, ("--dp", "1", *_PLACES)),
    "dp4": (4, ("--dp", "4", *_REPLICAS)),
    "dp2 × stages": (4, ("--dp", "2", *_STAGES)),
    "dp2 × places": (4, ("--dp", "2", *_PLACES, "--allow", "dp")),
}
"""Ranks, and pins."""

FIRST_SEED = 500
MAX_EPOCHS = 60.0
CLEAR = 0.10
"""Ways that differ by no more than this share are equal: either may be called the better one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One training.

    Attributes:
        seed: of weights and order
        time_s: of training until the target; None: it was not reached [s]
        epochs: until the target
        epoch_s: of training, per epoch [s]
        on_core: share of the time in which the first rank had a core [0..1]
    """

    seed: int
    time_s: float | None
    epochs: float | None
    epoch_s: float
    on_core: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS))
    parser.add_argument("--links", nargs="+", default=LINKS, help='such as 1Gb/s; "" is no limit')
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seeds", type=int, default=12, help="trainings of each way")
    parser.add_argument("--repeats", type=int, default=12, help="runs of each batch of a curve")
    parser.add_argument("--batches", default="32..512", help="of the curves")
    parser.add_argument("--oversubscribe", action="store_true", help="let ranks share cores")
    parser.add_argument("--folder", type=Path, help="for curves, plans and costs, which are taken up again")
    parser.add_argument("--keep", action="store_true", help="keep the other cells of the result that is there")
    arguments = parser.parse_args()
    ranks = max(WAYS[way][0] for way in arguments.ways)
    if ranks > len(os.sched_getaffinity(0)) and not arguments.oversubscribe:
        raise SystemExit(f"{ranks} ranks on {len(os.sched_getaffinity(0))} cores: say --oversubscribe, or fewer --ways")
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    if arguments.keep and (RESULTS / "hybrid.json").exists():
        kept = json.loads((RESULTS / "hybrid.json").read_text())["cells"]
        cells = {(cell["job"], cell["link"]): cell for cell in kept}
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for job in arguments.jobs:
            curve = measure_curve(job, arguments, folder)
            for link in arguments.links:
                cells[job, link] = run_cell(job, link, curve, arguments, folder)
                print(format_cell(cells[job, link]), flush=True)
                save(list(cells.values()), ranks=ranks, oversubscribed=arguments.oversubscribe)
    print(format_summary(list(cells.values())))


def measure_curve(job: str, arguments: argparse.Namespace, folder: Path) -> Path:
    """How much training each batch needs: a file that plans take."""
    path = folder / f"{job}-curve.json"
    if not path.exists():
        command(
            "converge", JOBS.get(job, job), "--batches", arguments.batches, "--repeats", str(arguments.repeats),
            "--output", str(path), "--json", folder=folder,
        )  # fmt: skip
    return path


def run_cell(job: str, link: str, curve: Path, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Plan all ways of a job over links of a rate, then train them in turns."""
    began = time.monotonic()
    plans, refused = {}, {}
    for way in arguments.ways:
        made = plan(job, way, link, curve, arguments, folder)
        (refused if isinstance(made, str) else plans)[way] = made
    target = json.loads(curve.read_text())["target"]
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    trained: dict[str, list[Trained]] = {way: [] for way in plans}
    taken: dict[int, float | None] = {}
    for ranks in sorted({WAYS[way][0] for way in plans}):
        together = [way for way in plans if WAYS[way][0] == ranks]
        turns = [(way, seed) for seed in seeds for way in (together if seed % 2 else reversed(together))]
        trainings = [training(job, plans[way], seed, target) for way, seed in turns]
        with tempfile.TemporaryDirectory() as logs:
            limit = next(iter(plans.values())).premises.rate_limit
            others = Others()
            outcomes = launch_on(limit, train_in_turns, (trainings,), ranks=ranks, log_dir=logs)[0]
            taken[ranks] = others.share()
        for (way, seed), (outcome, on_core) in zip(turns, outcomes, strict=True):
            epochs = find_crossing(outcome.evaluations, target)
            epoch_s = outcome.seconds / outcome.epochs
            time_s = epochs and epochs * epoch_s
            trained[way].append(Trained(seed=seed, time_s=time_s, epochs=epochs, epoch_s=epoch_s, on_core=on_core))
    return {
        "job": job,
        "link": link,
        "target": target,
        "seconds": time.monotonic() - began,
        "refused": refused,
        "others": {str(ranks): share for ranks, share in taken.items()},
        "ways": [summarise(way, plans[way], trained[way]) for way in plans],
    }


def plan(job: str, way: str, link: str, curve: Path, arguments: argparse.Namespace, folder: Path) -> Plan | str:
    """The best plan of a way; or why there is none."""
    ranks, pins = WAYS[way]
    output = folder / "plan.json"
    output.unlink(missing_ok=True)
    try:
        command(
            "plan", JOBS.get(job, job), "--objective", "time", "--curve", str(curve), "--devices", str(ranks), *pins,
            "--execution", "eager", "--workers", "0", *(["--link", link] if link else []),
            *(["--oversubscribe"] if arguments.oversubscribe else []), "--output", str(output), "--json", folder=folder,
        )  # fmt: skip
    except RuntimeError as refusal:
        return str(refusal)
    made = read_plan(output)
    if made.strategy.devices != ranks:
        return f"the best is {made.strategy.name}, on {made.strategy.devices}"
    return made


def training(job: str, chosen: Plan, seed: int, target: float) -> Training:
    """One training of a plan, as ranks take it."""
    source = source_as_planned(chosen, JobSource(reference=JOBS.get(job, job), seed=seed))
    made = source.make()
    evaluation = lower_evaluation(capture(made).graph, chosen.strategy, batch=made.global_batch_size)
    return source, chosen, format_program(evaluation), Limits(target=target, epochs=MAX_EPOCHS)


def command(*arguments: str, folder: Path) -> dict[str, Any]:
    """What a command of Trimaran answers; what it measures stays in the folder.

    Raises:
        RuntimeError: with what it says
    """
    done = subprocess.run(
        [sys.executable, "-m", "trimaran", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRIMARAN_CACHE": str(folder / "cache")},
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def summarise(way: str, chosen: Plan, trainings: Sequence[Trained]) -> dict[str, Any]:
    """A way as it is kept."""
    assert chosen.training is not None
    times = [one.time_s for one in trainings if one.time_s is not None]
    epochs = [one.epochs for one in trainings if one.epochs is not None]
    epoch_s = statistics.median(one.epoch_s for one in trainings)
    mean_time_s = statistics.fmean(epochs) * epoch_s if epochs else None
    return {
        "way": way,
        "ranks": WAYS[way][0],
        "strategy": chosen.strategy.name,
        "global_batch_size": chosen.premises.global_batch_size,
        "predicted": asdict(chosen.training)
        | {"curve": Path(chosen.training.curve).name, "task": chosen.training.task.replace(f"{ROOT}/", "")},
        "reached": len(times),
        "epochs": statistics.fmean(epochs) if epochs else None,
        "epoch_s": epoch_s,
        "time_s": mean_time_s,
        "error": None if mean_time_s is None else chosen.training.time_s / mean_time_s - 1,
        "trainings": [asdict(one) for one in trainings],
    }


def save(cells: list[dict[str, Any]], *, ranks: int, oversubscribed: bool) -> None:
    environment = describe_environment(devices=ranks) | {"oversubscribed": oversubscribed, "load": os.getloadavg()[0]}
    write_result({"schema_version": 1, "environment": environment, "clear": CLEAR, "cells": cells}, "hybrid")


def best(cell: dict[str, Any], ranks: int, *, hybrid: bool, predicted: bool) -> dict[str, Any] | None:
    """The soonest way of data parallelism alone, or of any other, on so many ranks."""
    ways = [
        way
        for way in cell["ways"]
        if way["ranks"] == ranks and (way["way"] != f"dp{ranks}") == hybrid and way["time_s"] is not None
    ]
    return min(ways, key=lambda way: _time(way, predicted=predicted), default=None)


def _time(way: dict[str, Any], *, predicted: bool) -> float:
    found: float = way["predicted"]["time_s"] if predicted else way["time_s"]
    return found


def verdicts(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """For each number of ranks, how data parallelism and the best other way compare, predicted and trained."""
    found = []
    for ranks in sorted({way["ranks"] for way in cell["ways"]}):
        plain, other = (best(cell, ranks, hybrid=hybrid, predicted=True) for hybrid in (False, True))
        if plain is None or other is None:
            continue
        predicted = _time(other, predicted=True) / _time(plain, predicted=True)
        trained = _time(other, predicted=False) / _time(plain, predicted=False)
        clear = abs(trained - 1) > CLEAR
        found.append(
            {
                "ranks": ranks,
                "other": other["way"],
                "predicted": predicted,
                "trained": trained,
                "right": (predicted < 1) == (trained < 1) if clear else None,
            }
        )
    return found


def crossover(cell: dict[str, Any], *, predicted: bool) -> int | None:
    """The first number of ranks on which another way than data parallelism is ahead."""
    kind = "predicted" if predicted else "trained"
    return next((one["ranks"] for one in verdicts(cell) if one[kind] < 1), None)


def format_cell(cell: dict[str, Any]) -> str:
    lines = [f"\n{cell['job']}, {cell['link'] or 'no limit'}, target {cell['target']:.4f}, {cell['seconds']:.0f} s"]
    for way in cell["ways"]:
        time_s = "–" if way["time_s"] is None else f"{way['time_s']:.2f} s ({way['error']:+.0%})"
        lines.append(
            f"  {way['way']:13} {way['strategy']:34} batch {way['global_batch_size']:4}  "
            f"{way['predicted']['epochs']:5.2f} epochs, {way['predicted']['time_s']:6.2f} s predicted; "
            f"{way['epochs'] or 0:5.2f} epochs, {time_s} trained, {way['reached']} of {len(way['trainings'])}"
            + _parts(way)
        )
    taken = {ranks: share for ranks, share in cell.get("others", {}).items() if share is not None}
    lines += [f"  on {ranks} ranks other programs took {share:.0%} of the cores" for ranks, share in taken.items()]
    lines += [f"  {way}: {reason.splitlines()[-1]}" for way, reason in cell["refused"].items()]
    return "\n".join(lines)


def _parts(way: dict[str, Any]) -> str:
    """By which part a prediction differs: trained over predicted, epochs and time of an epoch."""
    if way["epochs"] is None:
        return ""
    predicted = way["predicted"]
    epochs = way["epochs"] / predicted["epochs"]
    epoch = way["epoch_s"] * predicted["epochs"] / predicted["time_s"]
    on_core = [one["on_core"] for one in way["trainings"] if "on_core" in one]
    core = f", a rank on a core {statistics.median(on_core):.0%} of the time" if on_core else ""
    return f"; epochs {epochs:.2f} times, an epoch {epoch:.2f} times as predicted{core}"


def format_summary(cells: Sequence[dict[str, Any]]) -> str:
    """The README's table, and what it comes to."""
    lines = [
        "",
        "| job | link | ranks | data parallelism | the best other | its time over that: predicted | trained | said |",
        "|" + "---|" * 8,
    ]
    judged = []
    for cell in cells:
        ways = {way["way"]: way for way in cell["ways"]}
        for one in verdicts(cell):
            judged.append(one["right"])
            said = {None: "equal within 10 %", True: "right", False: "**wrong**"}[one["right"]]
            lines.append(
                f"| {cell['job']} | {cell['link'] or 'no limit'} | {one['ranks']} "
                f"| {_told(ways['dp' + str(one['ranks'])])} | {_told(ways[one['other']])} "
                f"| {one['predicted']:.2f} | {one['trained']:.2f} | {said} |"
            )
    errors = [abs(way["error"]) for cell in cells for way in cell["ways"] if way["error"] is not None]
    same = sum(crossover(cell, predicted=True) == crossover(cell, predicted=False) for cell in cells)
    lines += [
        "",
        f"Said right: {judged.count(True)} of {len(judged) - judged.count(None)} that differ by more than {CLEAR:.0%}; "
        f"{judged.count(None)} do not. The first number of ranks on which another way is ahead: right in {same} of "
        f"{len(cells)} cells. Time to the target: {len(errors)} predictions, absolute error median "
        f"{statistics.median(errors):.0%}, worst {max(errors):.0%}, within 15 %: "
        f"{sum(error <= 0.15 for error in errors)}.",
    ]
    return "\n".join(lines)


def _told(way: dict[str, Any]) -> str:
    return (
        f"{way['strategy']}, batch {way['global_batch_size']}: {way['predicted']['time_s']:.2f} s predicted, "
        f"{way['time_s']:.2f} s"
    )


if __name__ == "__main__":
    main()
