"""What a measurement trains, checked before anything runs, and the folder that its runs are kept in."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trimaran.costs.convergence.recipes import Recipe, digest_of_rule
from trimaran.costs.convergence.ways import Way
from trimaran.errors import InputError
from trimaran.graph.types import Graph
from trimaran.job import Job
from trimaran.measure.converge.batches import check_batches, count_microbatches, default_batches
from trimaran.program import Strategy, format_program, lower, lower_evaluation
from trimaran.program.exactness import check_exact
from trimaran.program.files import to_plain
from trimaran.session.converging.rank import Work
from trimaran.session.converging.request import ConvergeRequest
from trimaran.session.jobs import JobSource
from trimaran.session.recipes import default_rule, rates_of

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

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
        """Seed of a run, of its own: runs of two batches that start from the same weights would stray alike.

        Those of the job's own batch are the job's and the ones after it, as those are by which a target is found.

        Args:
            batch: global batch [samples]
            number: of the run, from 0
        """
        if batch == self.recipe.base_batch:
            return self.job.seed + number
        return (self.job.seed + number + _SEEDS_APART * batch) % _SEEDS

    def work(self, batch: int, seed: int) -> Work:
        """A run of it.

        Args:
            batch: global batch [samples]
            seed: of weights, order and dropout
        """
        strategy = Strategy(microbatches=count_microbatches(batch, fits=self.microbatch))
        program = lower(self.graph, strategy, batch=batch, clip=self.job.clip_norm is not None)
        return Work(
            batch=batch,
            seed=seed,
            microbatches=strategy.microbatches,
            program=format_program(program),
            evaluation=format_program(lower_evaluation(self.graph, strategy, batch=batch)),
        )

    def ways(self) -> dict[int, Way]:
        """How far the updates of each batch go."""
        model = self.job.model()
        return {batch: self._way(batch, _make_optimizer(self.job, model)) for batch in self.batches}

    def _way(self, batch: int, optimizer: "Optimizer") -> Way:
        asked = dataclasses.replace(self.job, global_batch_size=batch)
        samples = self.samples // batch * batch if self.job.drop_last else self.samples
        return Way(batch, samples=samples, rates=rates_of(asked, self.recipe, optimizer))


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
    from trimaran.cluster.detect import detect_cluster
    from trimaran.graph.capture import capture_and_look
    from trimaran.session.preparing import epoch_data

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
    facts += [request.evaluations, job.precision, job.clip_norm, job.drop_last, _describe(optimizer)]
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
        devices=detect_cluster(request.devices).size,
        folder=(request.parent or Path("runs")) / f"converge-{job.name}-{digest}",
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
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def _describe(optimizer: "Optimizer") -> str:
    groups = [
        sorted((name, repr(value)) for name, value in group.items() if name != "params")
        for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__name__} {groups}"
