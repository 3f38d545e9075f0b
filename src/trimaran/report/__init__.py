"""What a run was, beside what was predicted: comparison, tables, traces and files."""

from trimaran.report.compare import Comparison, Figure, KindComparison, RankComparison, compare
from trimaran.report.files import RunReport, read_report, report_document, write_report
from trimaran.report.noise import noise_document, noise_line
from trimaran.report.timelines import read_timeline, write_timeline
from trimaran.report.trace import write_trace
from trimaran.report.utilization import Utilization, utilization

__all__ = [
    "Comparison",
    "Figure",
    "KindComparison",
    "RankComparison",
    "RunReport",
    "Utilization",
    "compare",
    "noise_document",
    "noise_line",
    "read_report",
    "read_timeline",
    "report_document",
    "utilization",
    "write_report",
    "write_timeline",
    "write_trace",
]
