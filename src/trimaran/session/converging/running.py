"""The runs of a measurement: which are left, in which order, on as many devices as there are.

runs.jsonl ──▶ what is finished stays ──▶ the rest, long runs first ──▶ a process a device ──▶ a line in runs.jsonl
                                                                                              as each one ends
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trimaran.measure.converge.state import Run, add_run, find_run, read_runs
from trimaran.measure.converge.training import Limits
from trimaran.program.files import from_plain
from trimaran.session.converging.rank import Work, converge_rank
from trimaran.session.converging.task import Task
from trimaran.session.planning import Progress

_TAKEN = "taken-"
# A step costs about as much as this share of the job's batch, however small its own batch is.
_STEP_COST = 0.25
# Where nothing is known yet: the batch, in batches of the job, at which twice the epochs are needed.
_LIKELY_CRITICAL = 8.0


def finish_runs(
    task: Task, wanted: Sequence[tuple[int, int]], limits: Limits, *, progress: Progress
) -> tuple[dict[tuple[int, int], Run], int]:
    """Do what is left of some runs.

    Args:
        task: what is trained
        wanted: batch and seed of each run
        limits: of each; runs that the deadline breaks off are not kept
        progress: told of every evaluation

    Returns:
        Finished runs by batch and seed, and how many were there before.

    Raises:
        TrimaranError: what a process raised; finished runs stay
    """
    known = read_runs(task.folder)

    def finished() -> dict[tuple[int, int], Run]:
        found = {
            key: find_run(known, batch=key[0], seed=key[1], target=limits.target, most=limits.epochs) for key in wanted
        }
        return {key: run for key, run in found.items() if run is not None}

    before = finished()
    left = order_runs([key for key in wanted if key not in before], known, task)
    if left and not (limits.deadline is not None and time.time() >= limits.deadline):
        _launch(task, [task.work(*key) for key in left], limits, known, progress, len(before))
    return finished(), len(before)


def order_runs(keys: Iterable[tuple[int, int]], known: Sequence[Run], task: Task) -> list[tuple[int, int]]:
    """Long runs first, so that no device is left with one at the end.

    Args:
        keys: batch and seed of each
        known: finished runs, which say how many epochs a batch takes
        task: what is trained
    """
    base = task.recipe.base_batch

    def seconds(batch: int) -> float:
        near = [run for run in known if run.batch == batch]
        epochs = sum(run.epochs for run in near) / len(near) if near else 1 + batch / (_LIKELY_CRITICAL * base)
        return epochs * (task.samples + _STEP_COST * base * -(-task.samples // batch))

    return sorted(keys, key=lambda key: (-seconds(key[0]), key[1]))


def _launch(task: Task, works: Sequence[Work], limits: Limits, known: list[Run], progress: Progress, done: int) -> None:
    from trimaran.runtime.ranks import launch

    total = done + len(works)
    listen = _listener(task.folder, works, known, progress, done, total)
    progress("runs", done, total)
    for left in task.folder.glob(f"{_TAKEN}*"):
        shutil.rmtree(left, ignore_errors=True)  # of a command that was killed: only one at a time is at work here
    with tempfile.TemporaryDirectory(prefix=_TAKEN, dir=task.folder) as taken:
        launch(
            converge_rank,
            (task.source, tuple(works), task.recipe, limits, Path(taken)),
            ranks=min(task.devices, len(works)),
            log_dir=task.folder / "logs",
            on_event=listen,
        )


def _listener(
    folder: Path, works: Sequence[Work], known: list[Run], progress: Progress, done: int, total: int
) -> Callable[[int, Mapping[str, Any]], None]:
    ended = done

    def listen(rank: int, event: Mapping[str, Any]) -> None:
        nonlocal ended
        work = works[int(event["run"])]
        where = f"batch {work.batch}, seed {work.seed}"
        if "ended" in event:
            run: Run = from_plain(event["ended"], Run, source="a run")
            if run.end != "time":
                add_run(folder, run)
                known.append(run)
                ended += 1
            progress(f"runs: {where} ended after {run.epochs:.3g} epochs", ended, total)
        elif "metric" in event:
            progress(f"runs: {where}, epoch {event['epochs']:.3g}, metric {event['metric']:.4g}", ended, total)

    return listen
