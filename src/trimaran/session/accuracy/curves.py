"""Which curve holds for a job, and how much training it says a batch needs. A curve is never invented."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.planner.accuracy.types import Training
from trimaran.session.accuracy.request import TargetRequest
from trimaran.session.configured import is_configuration
from trimaran.session.jobs import resolve
from trimaran.session.network_references import parse_network

if TYPE_CHECKING:
    from trimaran.costs.convergence.curve import Curve
    from trimaran.costs.convergence.recipes import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a job's convergence.

    Attributes:
        curve: None: there is none
        name: as it was asked for
        job_batch: the job's own
        samples_per_epoch: of the data that is trained on; None: as the curve says
        drop_last: the last, smaller batch of an epoch is left out
        warnings: what the user should know
    """

    curve: "Curve | None"
    name: str = ""
    job_batch: int = 0
    samples_per_epoch: int | None = None
    drop_last: bool = False
    warnings: tuple[str, ...] = ()


def find_job_curve(job: Job, reference: str, request: TargetRequest, *, samples: int | None) -> Known:
    """The curve that was asked for, else the job's own, else none.

    Args:
        job: may name one
        reference: of the job
        request: may name one
        samples: of the job's training data; None: they stand for others

    Raises:
        InputError: no such curve, one of another task, or epochs of nobody knows how many samples
    """
    name = request.curve or _own_curve(job, reference)
    if name is None:
        return Known(curve=None, job_batch=job.global_batch_size, samples_per_epoch=samples)
    from trimaran.costs.convergence import check_task, find_curve
    from trimaran.costs.convergence.checks import oddities

    curve = find_curve(name)
    # What others trained on is no multiple of what stands for it here.
    drop_last = job.drop_last and samples is not None
    samples = request.samples_per_epoch or samples
    per_epoch = samples or curve.table.samples_per_epoch
    if curve.table.unit == "epochs" and per_epoch is None:
        raise InputError(
            f"the curve {name} is in epochs, and neither it nor {reference} says how many samples one has: give "
            "--samples-per-epoch, or a column samples_per_epoch in its table",
            code="curve.epoch-length-unknown",
            curve=name,
        )
    told = check_task(curve, _in_one_spelling(reference), samples_per_epoch=samples, target=job.target)
    return Known(
        curve=curve,
        name=name,
        job_batch=job.global_batch_size,
        samples_per_epoch=per_epoch,
        drop_last=drop_last,
        warnings=(*told, *_changed_rule(curve.table.recipe), *oddities(curve.table)),
    )


def _changed_rule(recipe: "Recipe | None") -> Iterator[str]:
    """A word on a learning-rate rule of the user's that is no more what the curve was measured with."""
    from trimaran.costs.convergence.recipes import digest_of_rule

    if recipe is not None and recipe.rule_digest and digest_of_rule(recipe.rule) != recipe.rule_digest:
        yield f"the rule {recipe.rule} is not there or no more what the curve was measured with: measure it again"


def has_own_data(reference: str) -> bool:
    """Whether a job has training data; those of published networks and configurations are made up.

    Args:
        reference: of the job
    """
    return parse_network(reference) is None and not is_configuration(reference)


def own_samples(reference: str) -> int | None:
    """Samples of a job's own training data; None for a published network, whose data are made up.

    Args:
        reference: of the job
    """
    if not has_own_data(reference):
        return None
    from trimaran.session.preparing import epoch_data

    return epoch_data(resolve(reference)).samples


def _in_one_spelling(reference: str) -> str:
    """A published network as curves name it: "gpt3" is the "gpt" of 175 billion parameters."""
    network = parse_network(reference)
    if network is None:
        return reference
    name = {"gpt3": "gpt"}.get(network.name, network.name)
    return f"{name}:{network.size}" if network.size else name


def _own_curve(job: Job, reference: str) -> str | None:
    """The curve that a job names; a file may be named as seen from the file of the job."""
    file, _, function = reference.rpartition(":")
    if job.curve is None or not function or not file.endswith(".py"):
        return job.curve
    beside = Path(file).parent / job.curve
    return str(beside) if beside.is_file() and not Path(job.curve).is_file() else job.curve


def training_at(known: Known, batch: int) -> Training | None:
    """How much training a batch needs; None without a curve.

    Args:
        known: the curve and the data
        batch: samples of one update

    Raises:
        InputError: the curve does not say how its unit becomes updates
    """
    if known.curve is None:
        return None
    samples = known.samples_per_epoch
    if samples is None:
        return Training(updates=known.curve.steps(batch))
    epochs = known.curve.epochs(batch, samples)
    # A curve of samples says how many are trained on; one of epochs was measured with the same ones left out.
    in_epochs = known.curve.table.unit == "epochs"
    steps = float(samples // batch) if known.drop_last and in_epochs else samples / batch
    return Training(updates=epochs.scaled(steps, "steps"), epochs=epochs, steps_per_epoch=steps)
