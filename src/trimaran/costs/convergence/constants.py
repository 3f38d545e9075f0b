"""Constants of convergence curves that no law gives: fitted by benchmarks/fits/convergence.py to published tables."""

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceConstants:
    """How curves of published tables behave.

    Attributes:
        run_spread: standard deviation of the logarithm of one run's amount
        roughness: how far a curve strays from E0 · (1 + B / Bcrit) over a batch e times as large, as a standard
            deviation of the logarithm; median over tables
        roughness_spread: standard deviation of the logarithm of that from table to table
        critical_over_largest: Bcrit over the largest batch that somebody measured, median over tables
        critical_spread: scale of the logarithm of that
    """

    run_spread: float
    roughness: float
    roughness_spread: float
    critical_over_largest: float
    critical_spread: float


@functools.cache
def convergence_constants() -> ConvergenceConstants:
    """The constants as fitted."""
    text = resources.files("trimaran.costs.convergence").joinpath("constants.toml").read_text("utf-8")
    found = tomllib.loads(text)
    return ConvergenceConstants(**{name: float(found[name]) for name in ConvergenceConstants.__slots__})
