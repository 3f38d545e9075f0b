"""Strategies, instructions and programs: what was decided, and what each rank does."""

from trimaran.program.gradients import Bucket, gradient_buckets, owners_by_size
from trimaran.program.json_files import decode_program, encode_program
from trimaran.program.lowering.lower import lower, lower_evaluation, lower_order, lower_replica
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.plan import (
    CandidateRow,
    Plan,
    Prediction,
    Premises,
    check_has_program,
    check_plan,
    plan_program,
    program_lines,
    read_plan,
    write_plan,
)
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.rules.check import check_program
from trimaran.program.rules.fit import check_strategy
from trimaran.program.strategy import Part, Shard, Strategy
from trimaran.program.text import format_order, format_program, parse_order, parse_program
from trimaran.program.types import COLLECTIVES, RECEIVES, SENDS, Instruction, Kind, Mark, Program

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
    "check_has_program",
    "check_plan",
    "check_program",
    "check_strategy",
    "decode_program",
    "encode_program",
    "format_order",
    "format_program",
    "gradient_buckets",
    "lower",
    "lower_evaluation",
    "lower_order",
    "lower_replica",
    "owners_by_size",
    "parse_order",
    "parse_program",
    "plan_program",
    "program_lines",
    "read_plan",
    "segment_ops",
    "write_plan",
]
