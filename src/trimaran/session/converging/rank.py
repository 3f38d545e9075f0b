"""The runs that one device does: it takes the next that nobody has taken, until none is left.

    work, long runs first     a, b, c, d, e
    device 0                  a ──────────── d ────
    device 1                  b ─────── c ──────── e ──       whoever is free takes the next

Devices do not talk to each other: each run is a training of its own on one of them. Taking is making a file that must
not exist yet, so that no two take the same.
"""

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.costs.convergence.noise_scale import Observation, as_scaled, estimate_noise_scale
from trimaran.costs.convergence.recipes import Recipe
from trimaran.measure.converge.state import Run
from trimaran.measure.converge.training import Limits, Outcome, train_to_target
from trimaran.program import parse_program
from trimaran.program.files import to_plain
from trimaran.program.types import Strategy
from trimaran.session.jobs import JobSource
from trimaran.session.recipes import follow_recipe

if TYPE_CHECKING:
    from trimaran.runtime.world import World

_FEWEST_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run that is to be done.

    Attributes:
        batch: global batch [samples]
        seed: of weights, order and dropout
        microbatches: into which a device cuts a batch
        program: text form of a step
        evaluation: text form of the evaluation of a batch
    """

    batch: int
    seed: int
    microbatches: int
    program: str
    evaluation: str


def converge_rank(
    world: "World", source: JobSource, works: tuple[Work, ...], recipe: Recipe, limits: Limits, folder: Path
) -> None:
    """One device's part; every run that ends is an event with the key "ended".

    Args:
        world: this rank's
        source: where the job comes from
        works: what is to be done, long runs first
        recipe: how the learning rate follows the batch
        limits: of each run
        folder: in which runs are taken; of this launch alone
    """
    from trimaran.runtime.feed import make_dataset, make_evaluation_dataset
    from trimaran.runtime.world import World

    alone = World(device=world.device)
    job = source.make()
    dataset = make_dataset(job)
    held_out = None if job.evaluation_dataset is None else make_evaluation_dataset(job)
    job = dataclasses.replace(job, dataset=lambda: dataset)
    for number, work in enumerate(works):
        if limits.deadline is not None and time.time() > limits.deadline:
            return
        if not _take(folder / str(number)):
            continue

        def report(epochs: float, metric: float, number: int = number) -> None:
            world.report({"run": number, "epochs": epochs, "metric": metric})

        world.report({"run": number})
        run = do_run(job, work, recipe, limits, held_out, alone, report)
        world.report({"ended": to_plain(run), "run": number})


def do_run(job: Any, work: Work, recipe: Recipe, limits: Limits, held_out: Any, world: "World", report: Any) -> Run:
    """One training.

    Args:
        job: as the user made it
        work: batch and seed
        recipe: how the learning rate follows the batch
        limits: when it ends
        held_out: evaluation data
        world: of one process
        report: told the epochs and the metric of each evaluation
    """
    from trimaran.runtime.executor import Executor

    asked = dataclasses.replace(job, global_batch_size=work.batch, seed=work.seed)
    executor = Executor(
        follow_recipe(asked, recipe),
        Strategy(microbatches=work.microbatches),
        parse_program(work.program),
        parse_program(work.evaluation),
        world,
        record=False,
        gradient_noise=work.microbatches > 1,
    )
    noise = None
    try:
        outcome = train_to_target(executor, held_out, limits, report, batch=work.batch)
        if work.microbatches > 1:
            noise = noise_of(executor.observations(), outcome, at_records=limits.target is None)
    finally:
        executor.close()
    return Run(
        batch=work.batch,
        seed=work.seed,
        end=outcome.end,
        epochs=outcome.epochs,
        samples=outcome.samples,
        updates=outcome.updates,
        seconds=outcome.seconds,
        evaluations=outcome.evaluations,
        noise=noise,
    )


def noise_of(observations: Sequence[Observation], outcome: Outcome, *, at_records: bool) -> dict[str, Any] | None:
    """What the gradients of a run say, as `Run.noise` has it.

    Args:
        observations: of its steps
        outcome: of the run
        at_records: also up to each evaluation that was the best so far: which of them reaches the target is not known
            yet, and what comes after it says nothing of the way there
    """
    whole = _noise_document(observations)
    if whole is None or not at_records:
        return whole
    until, best = [], -math.inf
    for (epochs, metric), updates in zip(outcome.evaluations, outcome.evaluated_after, strict=True):
        if metric > best:
            best = metric
            until.append([epochs, _noise_document([one for one in observations if one.step < updates])])
    return whole | {"until": until}


def _noise_document(observations: Sequence[Observation]) -> dict[str, Any] | None:
    """What the gradients of a run say, plain; None where too few steps can be used, null where a figure is infinite."""
    usable = [one for one in observations if math.isfinite(one.whole) and math.isfinite(one.pieces)]
    # Where the optimizer scales each element, as Adam does, noise and signal count as it scales them.
    scaled = as_scaled(usable)
    counted = scaled or usable
    if len(counted) < _FEWEST_STEPS:
        return None
    scale = estimate_noise_scale(counted)
    return {
        "scaled": bool(scaled),
        "b_simple": _finite(scale.b_simple),
        "interval": [_finite(end) for end in scale.interval],
        "b_crit": _finite(scale.b_crit),
        "b_crit_interval": [_finite(end) for end in scale.b_crit_interval],
        "steps": scale.steps,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _take(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
