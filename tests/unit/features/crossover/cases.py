"""Ways to train that were made up, with round figures."""

from trimaran.convergence.curve import Curve, fit_curve
from trimaran.convergence.types import CurveTable, Point
from trimaran.features.crossover.candidates import Option
from trimaran.features.crossover.steps import Exchanged
from trimaran.report.crossover import Worker

NOTHING = Exchanged(0.0, 0.0, 1.0, 0.0)


def worker(
    width: int = 2, batch: int = 8, speedup: float = 1.5, *, spread: float = 0.05, strategy: str = "pp2 1f1b m4"
) -> Worker:
    return Worker(
        devices=width,
        local_batch_size=batch,
        strategy=strategy,
        speedup=speedup,
        speedup_interval=(speedup * (1 - spread), speedup * (1 + spread)),
        speedup_links_half=0.8 * speedup,
        speedup_links_double=1.1 * speedup,
    )


def option(
    devices: int,
    local_batch: int,
    alone_s: float,
    *,
    of: Worker | None = None,
    exchange: Exchanged = NOTHING,
) -> Option:
    return Option(
        devices=devices,
        width=1 if of is None else of.devices,
        local_batch=local_batch,
        alone_s=alone_s,
        worker=of,
        exchanges={0.5: exchange, 1.0: exchange, 2.0: exchange},
        small=0.0,
    )


def curve(amounts: dict[int, float], *, projection: bool = True) -> Curve:
    points = tuple(Point(global_batch=batch, amount=amount) for batch, amount in amounts.items())
    return fit_curve(CurveTable(task="made up", unit="epochs", points=points, source="by hand", projection=projection))
