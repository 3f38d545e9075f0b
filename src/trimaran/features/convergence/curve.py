"""`trimaran curve`: a curve, its leave-one-out error, and the training that batches need."""

from dataclasses import replace
from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.convergence.curve import Curve, Quality, leave_one_out, pooled
from trimaran.convergence.files import catalog_names, find_curve
from trimaran.convergence.types import same_data
from trimaran.report.convergence_curve import Asked, CurveStudy


def study_curve(
    name_or_path: str, at: tuple[int, ...] = (), *, network: str | None = None, samples_per_epoch: int | None = None
) -> CurveStudy:
    """Study one curve.

    Args:
        name_or_path: of the catalog, or a curve file or a table of runs
        at: batches that are asked for
        network: that the curve holds for; None: as its table says
        samples_per_epoch: of its data; None: as its table says. Rows of the table are not made comparable by it

    Raises:
        InputError: it is not there or no curve, a batch is none, or an epoch holds another number of samples
    """
    curve = find_curve(name_or_path)
    own = curve.table.samples_per_epoch
    if samples_per_epoch is not None and own is not None and not same_data(own, samples_per_epoch):
        raise InputError(
            f"{name_or_path} has {own} samples an epoch, not {samples_per_epoch}: leave --samples-per-epoch out",
            samples_per_epoch=samples_per_epoch,
        )
    known = replace(
        curve.table,
        network=curve.table.network if network is None else network,
        samples_per_epoch=samples_per_epoch or own,
    )
    curve = replace(curve, table=known)
    name = name_or_path if name_or_path in catalog_names() else Path(name_or_path).stem
    asked = tuple(Asked(global_batch=batch, need=need) for batch, need in zip(at, curve.needs(at), strict=True))
    return CurveStudy(name=name, curve=curve, quality=_quality(curve), asked=asked)


def study_catalog() -> tuple[tuple[CurveStudy, ...], Quality]:
    """Every curve of the catalog, and how well measured ones predict together."""
    found = tuple(study_curve(name) for name in catalog_names())
    # The form passes through one or two points: they would flatter it.
    measured = [study for study in found if study.quality.left_out and not study.curve.table.projection]
    return found, pooled([(study.quality, len(study.curve.table.points)) for study in measured])


def _quality(curve: Curve) -> Quality:
    # The form passes through a single point whatever it is.
    rms = curve.fit.rms if len(curve.table.points) > 1 else None
    return Quality(rms=rms, left_out=leave_one_out(curve.table))
