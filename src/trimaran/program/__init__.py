"""Strategies, instructions and programs: what was decided, and what each rank does."""

from trimaran.program.against import check_against_graph
from trimaran.program.buckets import Bucket, gradient_buckets
from trimaran.program.cut import tied_parameters
from trimaran.program.files import decode_program, encode_program
from trimaran.program.fit import check_strategy
from trimaran.program.homes import homes_by_size
from trimaran.program.lower import lower, lower_evaluation, lower_order, lower_replica
from trimaran.program.pipelining import format_order, parse_order
from trimaran.program.plan import (
    CandidateRow,
    Plan,
    Prediction,
    Premises,
    check_plan,
    plan_program,
    program_lines,
    read_plan,
    write_plan,
)
from trimaran.program.rules import check_program
from trimaran.program.segments import segment_ops
from trimaran.program.text import format_program, parse_program
from trimaran.program.types import COLLECTIVES, RECEIVES, SENDS, Instruction, Kind, Mark, Part, Program, Shard, Strategy

__all__ = [
    "COLLECTIVES",
    "RECEIVES",
    "SENDS",
    "Bucket",
    "CandidateRow",
    "Instruction",
    "Kind",
    "Mark",
    "Part",
    "Plan",
    "Prediction",
    "Premises",
    "Program",
    "Shard",
    "Strategy",
    "check_against_graph",
    "check_plan",
    "check_program",
    "check_strategy",
    "decode_program",
    "encode_program",
    "format_order",
    "format_program",
    "gradient_buckets",
    "homes_by_size",
    "lower",
    "lower_evaluation",
    "lower_order",
    "lower_replica",
    "parse_order",
    "parse_program",
    "plan_program",
    "program_lines",
    "read_plan",
    "segment_ops",
    "tied_parameters",
    "write_plan",
]
