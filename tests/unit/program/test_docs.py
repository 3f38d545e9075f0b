"""The page about programs says what the code does."""

import re
from pathlib import Path

import pytest
from tests import builders
from tests.graphs import chain, dag, paired
from tests.unit.program.test_rules import edit, on_rank

from trimaran.base.errors import InputError
from trimaran.program.lowering.lower import lower
from trimaran.program.lowering.tensor_parallel import find_shards
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import Part
from trimaran.program.text import parse_program
from trimaran.program.types import Kind, Program

ROOT = Path(__file__).parents[3]
PAGE = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("docs/program.md", "examples/programs.md"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def written_programs() -> list[Program]:
    return [parse_program(text) for text in blocks("text") if text.startswith("program ")]


def test_the_annotated_programs_are_what_lower_makes() -> None:
    clipped = builders.strategy(pp=2, boundaries=("op0",), microbatches=2)
    pairs = paired(2)
    parts = tuple(
        Part(ops=ops, row=row) for ops, row in ((("op0",), 0), (("op1",), 1), (("op2",), 1), (("op3", "loss"), 0))
    )
    overlapping = builders.strategy(pp=3, schedule="pipedream", boundaries=("op0", "op1"))
    assert written_programs() == [
        lower(chain(2), clipped, batch=8, clip=True),
        lower(chain(4, buffers=True), builders.strategy(dp=2, bucket_bytes=100), batch=8),
        lower(pairs, builders.strategy(tp=2, shards=find_shards(pairs, 2)), batch=4),
        lower(dag([[], [0], [0], [1, 2]]), builders.strategy(pp=2, parts=parts), batch=4),
        lower(chain(3), overlapping, batch=4),
    ]


@pytest.mark.parametrize("number", range(5))
def test_the_annotated_programs_are_legal(number: int) -> None:
    check_program(written_programs()[number])


def test_every_kind_is_in_the_table() -> None:
    cells = re.findall(r"`([A-Z_]+)`", "".join(line for line in PAGE.splitlines() if line.startswith("| `")))
    assert set(cells) == set(map(str, Kind))


def test_the_drawn_fault_is_the_one_that_is_drawn() -> None:
    (drawn,) = (text for text in blocks("text") if text.startswith("illegal"))
    program = lower(chain(2), builders.strategy(pp=2, boundaries=("op0",)), batch=2)
    with pytest.raises(InputError) as caught:
        check_program(on_rank(program, 1, edit("1F0", after=("IN0",))))
    assert str(caught.value) == drawn.rstrip("\n")
