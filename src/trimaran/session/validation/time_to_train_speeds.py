"""How fast networks run of which only the size is known: by published steps of one device, of rows of calibration."""

import functools
from statistics import median

from trimaran.costs.operations.estimate import estimate_step
from trimaran.errors import TrimaranError
from trimaran.session.validation.published_rows import published_rows
from trimaran.session.validation.published_sizes import SIZED
from trimaran.session.validation.quantities import step_of
from trimaran.session.validation.recipes import Recipe
from trimaran.session.validation.setups import understand
from trimaran.session.validation.sources import recipe_of
from trimaran.session.validation.steps import row_workload
from trimaran.session.validation.types import Setup


def _alone_s(setup: Setup, recipe: Recipe) -> float:
    """A step on one device, modelled [s]."""
    one = estimate_step(row_workload(setup, recipe), setup.machine.node.device, setup.software)
    return setup.accumulation * (one.forward.seconds + one.backward.seconds) + one.update.seconds


def published_step_s(setup: Setup, recipe: Recipe) -> float:
    """The step of one device of a set-up, by what steps of its network took where they were published [s].

    Args:
        setup: of a network of known size only
        recipe: of its script
    """
    return _alone_s(setup, recipe) * _slower(setup.network, setup.precision)


@functools.cache
def _slower(network: str, precision: str) -> float:
    """How much longer published steps of one device take than the products that stand for a network: the median."""
    found = _all_slower()
    for known in ((network, precision), (network,), ()):
        factors = [factor for name, factor in found if name[: len(known)] == known]
        if factors:
            return median(factors)
    return 1.0


@functools.cache
def _all_slower() -> tuple[tuple[tuple[str, str], float], ...]:
    """By network and precision, of rows of calibration."""
    found = []
    for row in published_rows("dp_throughput"):
        figure = row.measured if row.fields.get("n_gpus", "1") == "1" else row.anchor
        if row.fields.get("use") != "calibrate" or not figure or row.flag:
            continue
        try:
            setup, recipe = understand(row), recipe_of(row)
            if setup.network.startswith(SIZED):
                seconds = step_of(row, setup, figure, devices=1)
                found.append(((setup.network, setup.precision), seconds / _alone_s(setup, recipe)))
        except TrimaranError:
            continue
    return tuple(found)
