"""Whether a curve is of the job that it is used for."""

import re
from pathlib import Path

from trimaran.costs.convergence.curve import Curve
from trimaran.costs.convergence.units import same_data
from trimaran.errors import InputError


def check_task(
    curve: Curve, job: str, *, samples_per_epoch: int | None = None, target: float | None = None
) -> tuple[str, ...]:
    """Compare what a curve was measured on with the job that it shall be used for.

    Args:
        curve: to use
        job: reference or name of the job, such as "resnet50", "bert:large" or "train.py:make"
        samples_per_epoch: of the job's data; None where it is not known
        target: of the job's metric; None where it has none

    Returns:
        Warnings: the curve names no network, or one that a job of one's own may have; other data, another target.

    Raises:
        InputError: it is a curve of another network
    """
    table = curve.table
    found = []
    if not table.network:
        found.append(f'the curve names no network: it holds if "{table.task}" is what {job} trains')
    elif _is_own(job) and not _is_own(table.network):
        found.append(f'the curve is of {table.network}: it holds if "{table.task}" is what {job} trains')
    elif not _same_network(table.network, job):
        raise InputError(
            f'the curve of {table.network} ("{table.task}") is not of the job {job}: name another curve, measure one '
            "with trimaran converge, or, if it holds all the same, take network out of a copy of its file",
            code="curve.other-job",
            network=table.network,
            job=job,
        )
    own = table.samples_per_epoch
    if own is not None and samples_per_epoch is not None and not same_data(own, samples_per_epoch):
        found.append(f"the curve was measured on {own} samples an epoch, {job} has {samples_per_epoch}")
    if table.target is not None and target is not None and table.target != target:
        found.append(f"the curve is to the target {table.target:g}, that of {job} is {target:g}")
    return tuple(found)


def _is_own(reference: str) -> bool:
    """Whether it names a job of the user's, of whose network nothing is known by its name."""
    return ".py:" in reference or reference.startswith("hf:")


def _same_network(network: str, job: str) -> bool:
    ours, theirs = _parts(network), _parts(job)
    shared = min(len(ours), len(theirs))
    return ours[:shared] == theirs[:shared]


def _parts(reference: str) -> tuple[str, ...]:
    """Name and size of a network; file and function of a job of one's own."""
    file, _, function = reference.partition(".py:")
    if function:
        return (f"{Path(file).name}.py", function)
    name, *rest = reference.strip().lower().split(":")
    size = [part for part in rest if "=" not in part]
    return (re.sub(r"[-_ ]", "", name), *size)
