"""What a person asks of a training to a target: a curve, batches, limits, prices."""

from dataclasses import dataclass

from trimaran.cluster.prices import Price, parse_price
from trimaran.errors import InputError
from trimaran.planner.accuracy.stopping import LEAST_SAVED
from trimaran.session.scaling.requests import parse_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRequest:
    """What is asked of a training to a target.

    Attributes:
        curve: name in the catalog, or a file; None: the job's own
        batches: global batches that may be taken; empty: those that the curve is known for
        most_local_batch: samples of a replica in one update; None: what memory allows
        price: of devices; None: that of the cluster file
        least_saved: a doubling of the devices that saves less than this share of the time is not worth it
        samples_per_epoch: of the data that is trained on; None: of the job's, or as the curve says
    """

    curve: str | None = None
    batches: tuple[int, ...] = ()
    most_local_batch: int | None = None
    price: Price | None = None
    least_saved: float = LEAST_SAVED
    samples_per_epoch: int | None = None

    @property
    def is_asked(self) -> bool:
        """Whether anything is."""
        return self != NO_TARGET


NO_TARGET = TargetRequest()


def parse_target(
    *,
    curve: str | None = None,
    batches: str | None = None,
    batch: int | None = None,
    most_local_batch: int | None = None,
    price: str | None = None,
    least_saved: float = LEAST_SAVED,
    samples_per_epoch: int | None = None,
) -> TargetRequest:
    """A request as it is written on the command line.

    Args:
        curve: as in `TargetRequest`
        batches: such as "64,128" or "64..4096", doublings
        batch: the only one
        most_local_batch: as in `TargetRequest`
        price: such as "24.48 USD/node-hour"
        least_saved: as in `TargetRequest`
        samples_per_epoch: as in `TargetRequest`

    Raises:
        InputError: texts that mean nothing, both of `batch` and `batches`, a share outside 0 to 1

    Example:
        >>> parse_target(batches="64..200").batches
        (64, 128, 200)
    """
    if batch is not None and batches is not None:
        raise InputError(
            f"--batch {batch} fixes the batch, --batches {batches} leaves it open: give one of them",
            code="accuracy.batch-and-batches",
        )
    if not 0.0 <= least_saved < 1.0:
        raise InputError(
            f"--least-saved is a share of the time, from 0 to below 1, got {least_saved:g}",
            code="accuracy.bad-least-saved",
            share=least_saved,
        )
    return TargetRequest(
        curve=curve,
        batches=() if batches is None else tuple(sorted(parse_counts(batches, what="batches"))),
        most_local_batch=most_local_batch,
        price=None if price is None else parse_price(price),
        least_saved=least_saved,
        samples_per_epoch=samples_per_epoch,
    )
