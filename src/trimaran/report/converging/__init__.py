"""What a measurement of convergence found: the page that `converge` prints, and the same as JSON data."""

from trimaran.report.converging.document import convergence_document
from trimaran.report.converging.types import ConvergedBatch, ConvergedRun, Convergence, NoiseComparison
from trimaran.report.converging.view import convergence_view

__all__ = [
    "ConvergedBatch",
    "ConvergedRun",
    "Convergence",
    "NoiseComparison",
    "convergence_document",
    "convergence_view",
]
