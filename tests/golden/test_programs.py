"""Programs as text. `TRIMARAN_GOLDEN=write` (as `make golden` sets it) rewrites the files; the diff is reviewed."""

import dataclasses
import os
from pathlib import Path

import pytest
from tests import builders
from tests.graphs import boundaries, chain, dag, paired

from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.tensor_parallel import find_shards
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import Part
from trimaran.program.text import format_program
from trimaran.program.types import Program

FOLDER = Path(__file__).parent / "programs"


def programs() -> dict[str, Program]:
    """Every shape that a program has, as small as shows it."""
    plain = chain(8)
    skipping = chain(4, buffers=True, tied=[(0, 3)], skips=[(0, 3)])
    hybrid = builders.strategy(dp=2, pp=2, boundaries=("op1",), schedule="1f1b", microbatches=2, bucket_bytes=100)
    # Two branches between a stem and a head, which read what each other makes in the middle.
    branches = dag([[], [0], [0], [1], [1, 2], [3, 4]])
    placed = builders.strategy(
        pp=2,
        parts=(
            *(Part(ops=(f"op{number}",), row=row) for number, row in enumerate((0, 0, 1, 0, 1))),
            Part(ops=("op5", "loss"), row=0),
        ),
        backward_order=(5, 4, 3, 2, 1, 0),
    )
    two = paired(2)
    return {
        "one_device": lower(chain(4), builders.strategy(microbatches=2), batch=8),
        "dp2": lower(chain(4, buffers=True), builders.strategy(dp=2, bucket_bytes=100), batch=8),
        "dp3_homes_clipped": lower(chain(4), builders.strategy(dp=3, bucket_bytes=1, sync="p2p"), batch=6, clip=True),
        "dp4_levels_clipped": lower(
            chain(4), builders.strategy(dp=4, bucket_bytes=100, sync="hierarchical", nodes=2), batch=8, clip=True
        ),
        "pp2_gpipe_m4": lower(plain, builders.strategy(pp=2, boundaries=("op3",), microbatches=4), batch=16),
        "pp4_1f1b_m8": lower(
            plain, builders.strategy(pp=4, boundaries=boundaries(4), schedule="1f1b", microbatches=8), batch=16
        ),
        "dp2_pp2_tied_skips_clipped": lower(skipping, hybrid, batch=16, clip=True),
        "dp2_pp2_evaluation": lower_evaluation(skipping, hybrid, batch=16),
        "placed_branches": lower(branches, placed, batch=4),
        "placed_branches_m2": lower(branches, dataclasses.replace(placed, microbatches=2), batch=4),
        "interleaved_2x2_m4": lower(
            plain,
            builders.strategy(pp=2, chunks=2, schedule="interleaved", boundaries=boundaries(4), microbatches=4),
            batch=8,
        ),
        "zero_bubble_3_m4": lower(
            chain(4, tied=[(0, 3)]),
            builders.strategy(pp=3, schedule="zero-bubble", boundaries=boundaries(3), microbatches=4),
            batch=8,
        ),
        "dp2_zero3": lower(chain(4), builders.strategy(dp=2, zero=3, microbatches=2), batch=8, clip=True),
        "dp2_tp2": lower(two, builders.strategy(dp=2, tp=2, shards=find_shards(two, 2)), batch=8, clip=True),
    }


@pytest.mark.parametrize("name", programs())
def test_a_program_is_as_it_was(name: str) -> None:
    program = programs()[name]
    check_program(program)
    path = FOLDER / f"{name}.txt"
    if os.environ.get("TRIMARAN_GOLDEN") == "write":
        path.write_text(format_program(program), encoding="utf-8")
    assert format_program(program) == path.read_text(encoding="utf-8")


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(programs())
