"""The job that a measurement trains, checked before anything runs, and the folder of its runs.

The runs that one device does: it takes the next that nobody has taken, until none is left.

    work, long runs first     a, b, c, d, e
    device 0                  a ──────────── d ────
    device 1                  b ─────── c ──────── e ──       whoever is free takes the next

Devices do not communicate: each run is a training on one of them. A device takes a run by making a file that must not
exist yet, so that no two take the same.
"""

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.base.decoding import decode_object, from_plain
from trimaran.base.errors import CorruptDataError, InputError, TrimaranError
from trimaran.base.files import file_name, read_bytes, write_whole
from trimaran.base.job import Job
from trimaran.convergence.noise_scale import StepNorms, as_scaled, estimate_noise_scale
from trimaran.convergence.single_run import RateSchedule
from trimaran.features.convergence.request import ConvergeRequest
from trimaran.graph.types import Graph
from trimaran.jobs.learning_rate import Recipe, default_rule, digest_of_rule, follow_recipe, rates_of
from trimaran.jobs.resolve import JobSource
from trimaran.measure.convergence.batches import check_batches, count_microbatches, default_batches
from trimaran.measure.convergence.runs import Limits, TrainingOutcome, TrainingResult, TrainingRun, train_to_target
from trimaran.planning.requests import PlanRequest
from trimaran.program.json_files import finite, to_plain
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.refusals import check_exact
from trimaran.program.strategy import Strategy
from trimaran.program.text import format_program, parse_program

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from trimaran.launch.world import World


_FEWEST_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRun:
    """A run that is to be done.

    Attributes:
        batch: global batch [samples]
        seed: of weights, order and dropout
        microbatches: into which a device splits a batch
        program: text form of a step
        evaluation: text form of the evaluation of a batch
    """

    batch: int
    seed: int
    microbatches: int
    program: str
    evaluation: str


def converge_rank(
    world: "World", source: JobSource, works: tuple[PendingRun, ...], recipe: Recipe, limits: Limits, folder: Path
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
    from trimaran.launch.world import World
    from trimaran.runtime.data.datasets import make_dataset, make_evaluation_dataset

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


def do_run(
    job: Any, work: PendingRun, recipe: Recipe, limits: Limits, held_out: Any, world: "World", report: Any
) -> TrainingRun:
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
    trained = {item.name: getattr(outcome, item.name) for item in fields(TrainingResult)}
    return TrainingRun(batch=work.batch, seed=work.seed, noise=noise, **trained)


def noise_of(observations: Sequence[StepNorms], outcome: TrainingOutcome, *, at_records: bool) -> dict[str, Any] | None:
    """The noise of the gradients of a run, as `TrainingRun.noise` has it.

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


def _noise_document(observations: Sequence[StepNorms]) -> dict[str, Any] | None:
    """The noise of gradients, plain; None where too few steps can be used, null where a figure is infinite."""
    usable = [one for one in observations if math.isfinite(one.whole) and math.isfinite(one.pieces)]
    # Where the optimizer scales each element, as Adam does, noise and signal count as it scales them.
    scaled = as_scaled(usable)
    counted = scaled or usable
    if len(counted) < _FEWEST_STEPS:
        return None
    scale = estimate_noise_scale(counted)
    return {
        "scaled": bool(scaled),
        "b_simple": finite(scale.b_simple),
        "interval": [finite(end) for end in scale.interval],
        "b_crit": finite(scale.b_crit),
        "b_crit_interval": [finite(end) for end in scale.b_crit_interval],
        "steps": scale.steps,
    }


def _take(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


_EPOCHS_OF_THE_JOB = 4.0
_SEEDS_APART = 1000
_SEEDS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A job whose need is measured.

    Attributes:
        source: where the job comes from
        job: the job
        graph: of it
        samples: of the training data
        batches: to be measured [samples]
        recipe: how the learning rate follows the batch
        rule_source: why that rule
        max_epochs: limit of a run [epochs]
        microbatch: what a device takes at once [samples]
        devices: that take part
        folder: of its runs
        warnings: what the reader should know
    """

    source: JobSource
    job: Job
    graph: Graph
    samples: int
    batches: tuple[int, ...]
    recipe: Recipe
    rule_source: str
    max_epochs: float
    microbatch: int
    devices: int
    folder: Path
    warnings: tuple[str, ...] = ()

    def seed(self, batch: int, number: int) -> int:
        """Seed of a run: it differs between batches, as runs that start from the same weights would stray alike.

        Those of the job's own batch are the job's and the ones after it, as those are by which a target is found.

        Args:
            batch: global batch [samples]
            number: of the run, from 0
        """
        if batch == self.recipe.base_batch:
            return self.job.seed + number
        return (self.job.seed + number + _SEEDS_APART * batch) % _SEEDS

    def work(self, batch: int, seed: int) -> PendingRun:
        """A run of it.

        Args:
            batch: global batch [samples]
            seed: of weights, order and dropout
        """
        strategy = Strategy(microbatches=count_microbatches(batch, fits=self.microbatch))
        program = lower(self.graph, strategy, batch=batch, clip=self.job.clip_norm is not None)
        return PendingRun(
            batch=batch,
            seed=seed,
            microbatches=strategy.microbatches,
            program=format_program(program),
            evaluation=format_program(lower_evaluation(self.graph, strategy, batch=batch)),
        )

    def ways(self) -> dict[int, RateSchedule]:
        """How far the updates of each batch go."""
        model = self.job.model()
        return {batch: self._way(batch, _make_optimizer(self.job, model)) for batch in self.batches}

    def _way(self, batch: int, optimizer: "Optimizer") -> RateSchedule:
        asked = dataclasses.replace(self.job, global_batch_size=batch)
        samples = self.samples // batch * batch if self.job.drop_last else self.samples
        return RateSchedule(batch, samples=samples, rates=rates_of(asked, self.recipe, optimizer))


def prepare_task(source: JobSource, request: ConvergeRequest) -> Task:
    """Look at a job, and refuse what cannot be measured.

    Args:
        source: where the job comes from
        request: what is asked

    Raises:
        InputError: no evaluation or metric, a batch that the data cannot fill, figures out of range
    """
    job = source.make()
    _check_metric(job, source.reference)
    _check_callbacks(job, source.reference)
    from trimaran.graph.capture.capture import capture_and_look
    from trimaran.graph.optimizers import written_options
    from trimaran.planning.preparation import epoch_data, local_cluster

    # Before what takes long: commands refuse more devices than there are.
    devices = local_cluster(PlanRequest(devices=request.devices)).size
    captured = capture_and_look(job)
    samples = epoch_data(job).samples
    if samples is None:
        raise InputError(
            "how many samples an epoch has is not known, and batches are compared by epochs: give the stream of "
            "Job.dataset __len__, or make a map-style data set"
        )
    base = job.global_batch_size
    check_batches([base], samples=samples)
    microbatch = request.microbatch or base
    batches = request.batches or default_batches(base, samples=samples)
    warnings = check_batches(batches, samples=samples)
    for batch in batches:
        check_exact(captured.graph.behaviour, Strategy(microbatches=count_microbatches(batch, fits=microbatch)))
    optimizer = _make_optimizer(job, captured.model)
    rule = request.rule or default_rule(optimizer)
    recipe = Recipe(
        rule=rule,
        base_batch=base,
        warmup_epochs=request.warmup_epochs,
        schedule=request.schedule,
        samples_per_epoch=samples,
        rule_digest=digest_of_rule(rule),
    )
    facts = [
        source.reference,
        captured.graph.digest,
        samples,
        to_plain(recipe, defaults=False),
        _file_digests(source.reference, rule),
        microbatch,
    ]
    facts += [
        request.evaluations,
        job.precision,
        job.clip_norm,
        job.drop_last,
        f"{type(optimizer).__name__} {written_options(optimizer)}",
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]
    return Task(
        source=source,
        job=job,
        graph=captured.graph,
        samples=samples,
        batches=tuple(batches),
        recipe=recipe,
        rule_source="asked for" if request.rule else f"by the optimizer, {type(optimizer).__name__}",
        max_epochs=request.max_epochs or _EPOCHS_OF_THE_JOB * max(1, job.epochs),
        microbatch=microbatch,
        devices=devices,
        folder=(request.parent or Path("runs")) / f"converge-{file_name(job.name)}-{digest}",
        warnings=warnings,
    )


def _check_metric(job: Job, reference: str) -> None:
    missing = [name for name in ("metric", "evaluation_dataset") if getattr(job, name) is None]
    if missing:
        raise InputError(
            f"the job {reference} has no {' and no '.join(missing)}, so nothing says when it has learned enough: give "
            f"Job({', '.join(f'{name}=...' for name in missing)})",
            missing=", ".join(missing),
        )


def _check_callbacks(job: Job, reference: str) -> None:
    given = [name for name in ("on_step", "on_epoch") if getattr(job, name) is not None]
    if given:
        names = " and ".join(f"Job.{name}" for name in given)
        raise InputError(
            f"the job {reference} has {names}, which may change what is learned, and the runs of a curve call no "
            "callbacks: leave them out of the job that is measured, where they only watch",
            callbacks=", ".join(given),
        )


def _make_optimizer(job: Job, model: "nn.Module") -> "Optimizer":
    from trimaran.graph.optimizers import make_optimizer, trained_parameters

    optimizer: Optimizer = make_optimizer(job, trained_parameters(model))
    return optimizer


def _file_digests(*references: str) -> list[str]:
    """Of the user's files, so that runs of an older version are not taken for runs of this one."""
    paths: Sequence[Path] = [Path(name.rpartition(":")[0]) for name in references if ".py:" in name]
    return [hashlib.sha256(read_bytes(path)).hexdigest() for path in paths]


# ---------------------------------------------------------------------------------------------------------------------
# The value of the metric that runs are to reach: asked for, the job's own, or by what the job itself reaches


SHARE = 0.99
"""Of the best metric that the job reaches with its own batch and epochs, where nobody says a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTarget:
    """The target of the runs.

    Attributes:
        value: of the metric
        source: who says so
    """

    value: float
    source: str


def rule_of_thumb(runs: Iterable[TrainingRun]) -> MetricTarget:
    """A target from runs of the job with its own batch and epochs.

    Args:
        runs: of different seeds

    Returns:
        `SHARE` of the smallest of their best metrics, to three decimals.

    Raises:
        InputError: no run has a positive metric
    """
    found = [run.best for run in runs]
    best = min((metric for metric in found if metric is not None), default=0.0)
    value = round(SHARE * best, 3)
    if not found or None in found or not value > 0:
        raise InputError(
            f"the job's own run reaches a best metric of {best:g}, from which no target follows: say --target",
            code="converge.needs-target",
            best_metric=best,
        )
    return MetricTarget(
        value=value,
        source=f"{SHARE:.0%} of what the job reaches with its own batch and epochs, {best:.4g} "
        f"({len(found)} {'run' if len(found) == 1 else 'runs'})",
    )


def read_target(path: Path) -> MetricTarget:
    """A target that was found before.

    Args:
        path: of its file

    Raises:
        CorruptDataError: the file is damaged
    """
    try:
        found = from_plain(decode_object(read_bytes(path), source=str(path)), MetricTarget, source=str(path))
    except TrimaranError as error:
        raise CorruptDataError(
            f"{error.message}: remove it, and the target is found again from the runs",
            code="converge.damaged-target",
            path=str(path),
        ) from None
    return found


def write_target(path: Path, target: MetricTarget) -> None:
    """Keep a target.

    Args:
        path: of its file
        target: that was found
    """
    write_whole(path, json.dumps({"value": target.value, "source": target.source}).encode())
