"""Curves made by hand, as files."""

from pathlib import Path

from trimaran.convergence.files import write_curve
from trimaran.convergence.types import CurveTable, Point
from trimaran.jobs.learning_rate import Recipe

AMOUNTS = {32: (4.0, 4.2), 64: (4.4, 4.6), 128: (5.0, 5.4), 256: (6.8, 7.2), 512: (12.0, 12.6)}


def digits_curve(path: Path, *, recipe: bool = True, network: str = "digits", batches: tuple[int, ...] = ()) -> Path:
    """A curve of `digits` to 0.9: the larger the batch the more epochs.

    Args:
        path: of the file
        recipe: it says how the learning rate followed the batch
        network: that it says it is of
        batches: of `AMOUNTS`; none: all
    """
    points = tuple(
        Point(global_batch=batch, amount=sum(runs) / len(runs), runs=len(runs), values=runs)
        for batch, runs in AMOUNTS.items()
        if not batches or batch in batches
    )
    table = CurveTable(
        task="digits to 0.9",
        unit="epochs",
        points=points,
        source="by hand",
        samples_per_epoch=1437,
        network=network,
        target=0.9,
        recipe=Recipe(rule="sqrt", base_batch=64, samples_per_epoch=1437) if recipe else None,
    )
    write_curve(path, table)
    return path
