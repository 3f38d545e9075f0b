"""Constants of exchanges that no source code says: fitted by benchmarks/fits/exchange.py to published steps."""

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeConstants:
    """What joining a group costs a step, besides its calls.

    Attributes:
        tensor_s: handling of a tensor: a hook, its place in a buffer and out of it [s]
        cycles_step_s: handling of a step where calls start in cycles that all ranks agree on [s]
        straggling: waits for the slowest of a group, as a share of the step
        straggling_growth: of that with each doubling of the devices, as a share of the step
        length_spread: where batches hold sentences of different lengths: standard deviation of a batch's work by its
            mean
    """

    tensor_s: float
    cycles_step_s: float
    straggling: float
    straggling_growth: float
    length_spread: float


@functools.cache
def exchange_constants() -> ExchangeConstants:
    """The constants as fitted."""
    text = resources.files("trimaran.costs").joinpath("exchange_constants.toml").read_text("utf-8")
    found = tomllib.loads(text)
    return ExchangeConstants(**{name: float(found[name]) for name in ExchangeConstants.__slots__})
