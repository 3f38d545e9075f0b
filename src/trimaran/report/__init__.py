"""Runs compared with their predictions: comparison, tables, traces and files."""

from trimaran.report.breakdown import utilization
from trimaran.report.comparison import Comparison, Figure, KindComparison, RankComparison, compare
from trimaran.report.run_report import RunReport, noise_document, noise_line, report_document, write_report
from trimaran.report.timelines import write_timeline
from trimaran.report.trace import write_trace

__all__ = [
    "Comparison",
    "Figure",
    "KindComparison",
    "RankComparison",
    "RunReport",
    "compare",
    "noise_document",
    "noise_line",
    "report_document",
    "utilization",
    "write_report",
    "write_timeline",
    "write_trace",
]
