"""Convergence: how much training each global batch needs to reach a target."""

from trimaran.convergence.curve import Curve, check_task, fit_curve
from trimaran.convergence.files import (
    DoublingRatio,
    catalog_names,
    doubling_ratios,
    find_curve,
    read_curve,
    write_curve,
)
from trimaran.convergence.run_tables import parse_table, read_table
from trimaran.convergence.types import CurveTable, Fit, Need, Point, Unit

__all__ = [
    "Curve",
    "CurveTable",
    "DoublingRatio",
    "Fit",
    "Need",
    "Point",
    "Unit",
    "catalog_names",
    "check_task",
    "doubling_ratios",
    "find_curve",
    "fit_curve",
    "parse_table",
    "read_curve",
    "read_table",
    "write_curve",
]
