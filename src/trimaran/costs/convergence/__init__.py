"""Convergence: how much training each global batch needs to reach a target."""

from trimaran.costs.convergence.catalog import DoublingRatio, catalog_names, doubling_ratios, find_curve
from trimaran.costs.convergence.curve import Curve, fit_curve
from trimaran.costs.convergence.files import read_curve, write_curve
from trimaran.costs.convergence.tables import parse_table, read_table
from trimaran.costs.convergence.tasks import check_task
from trimaran.costs.convergence.types import CurveTable, Fit, Need, Point, Unit

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
