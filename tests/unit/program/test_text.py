import pytest
from tests import builders
from tests.graphs import chain
from tests.raising import raises

from trimaran.program.lowering.lower import lower
from trimaran.program.text import format_instruction, format_program, parse_program
from trimaran.program.types import Instruction, Kind, Mark, Program

HEAD = "program segments=1 microbatches=1 ranks=1\nrank 0\n"


def alone(instruction: Instruction) -> Program:
    return Program(ranks=((instruction,),), segments=1, microbatches=1)


def test_a_line_has_the_token_the_stream_and_what_is_not_at_its_default() -> None:
    backward = Instruction(
        kind=Kind.BACKWARD, rank=0, segment=0, microbatch=1, after=("0RECV_B1<1",), marks=(Mark(name="b0", op="conv1"),)
    )
    assert format_instruction(backward).split() == ["0B1", "compute", "after=0RECV_B1<1", "marks=b0@conv1"]


def test_the_text_reads_back() -> None:
    program = lower(
        chain(3, buffers=True, tied=[(0, 2)]), builders.strategy(dp=2, pp=2, boundaries=("op0",)), batch=4, clip=True
    )
    assert parse_program(format_program(program)) == program


def test_one_changed_instruction_changes_one_line() -> None:
    """The second program has another size of bucket, which is also longer by three digits."""
    first = lower(chain(2), builders.strategy(dp=2), batch=4)
    lines = format_program(first).split("\n")
    changed = parse_program(format_program(first).replace("nbytes=96", "nbytes=96000", 1))
    different = [pair for pair in zip(lines, format_program(changed).split("\n"), strict=True) if pair[0] != pair[1]]
    assert len(different) == 1


@pytest.mark.parametrize(
    "op", ["conv1", "features.0@1", "a b", 'say "hi"', "a,b", "#1", "x #y", "é", "tab\tend", "\u2028", ""]
)
def test_any_name_of_an_operation_reads_back(op: str) -> None:
    marks = (Mark(name="b0", op=op), Mark(name="b1", op="plain"))
    program = alone(Instruction(kind=Kind.BACKWARD, rank=0, segment=0, microbatch=0, marks=marks))
    assert parse_program(format_program(program)) == program


def test_comments_and_empty_lines_are_skipped() -> None:
    text = HEAD + "# a note\n\n0F0  compute  nbytes=3  # another\nAR#loss  communication\n"
    (forward, loss) = parse_program(text).ranks[0]
    assert (forward.nbytes, loss.label) == (3, "loss")


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "program segments="),
        ("0F0 compute", 1, "program segments="),
        (HEAD.replace("rank 0", "rank 1"), 2, '"rank 0"'),
        (HEAD.replace("rank 0\n", "0F0 compute\n"), 2, '"rank 0"'),
        (HEAD + "rank 1", 3, "the end after 1 ranks"),
        (HEAD.replace("ranks=1", "ranks=2"), 3, '"rank 1" of 2 ranks'),
        (HEAD + "0F0", 3, "a token and a stream"),
        (HEAD + "0F0 compute\n0X0 compute", 4, "a token such as"),
        (HEAD + "0F0> compute", 3, "a token such as"),
        (HEAD + "0SEND_F0<1 compute", 3, "a token such as"),
        (HEAD + "0F0 compute speed=3", 3, "one each of peer=, group=, root=, nbytes=, after=, behind=, marks="),
        (HEAD + "0F0 compute nbytes=1 nbytes=2", 3, "one each of"),
        (HEAD + "0F0 compute after=", 3, "one each of"),
        (HEAD + "0F0 compute and more", 3, "one each of"),
        (HEAD + "0F0 compute nbytes=many", 3, "a whole number"),
        (HEAD + "0F0 compute nbytes=-1", 3, "a whole number"),
        (HEAD + "0F0 compute peer=²", 3, "a whole number"),
        (HEAD + "0AR communication group=0,,1", 3, "a whole number"),
        (HEAD + "0B0 compute marks=b0", 3, "marks such as"),
        (HEAD + '0B0 compute marks=b0@"\\q"', 3, "a JSON string"),
    ],
)
def test_an_error_has_the_line_and_what_was_expected(text: str, line: int, expected: str) -> None:
    with raises("program-text.unexpected", match=rf"^p\.txt, line {line}\b", source="p.txt", line=line) as caught:
        parse_program(text, source="p.txt")
    assert expected in str(caught.value.figures["expected"])
