"""The text form of a program: one line an instruction.

    program segments=2 microbatches=2 ranks=2

    rank 0
    IN0               host           nbytes=512
    0F0               compute        after=IN0
    0SEND_F0>1        communication  peer=1          nbytes=65536      after=0F0
    0B1               compute        after=0RECV_B1<1          marks=b0@conv1,b1@stem.conv
    0AR#b0            communication  group=0,2       nbytes=1024       after=0B1!b0

A line has the token, the stream, and the fields that are not at their defaults. Columns have fixed widths, so that a
change of one instruction changes one line. A mark is `name@operation`, after the operation's part, or `name^operation`,
before it; `:token` behind it names what the instruction waits for there. Everything from ` #` to the end of a line is a
comment. Parsing what was formatted gives the same program.
"""

import json
import re
from collections.abc import Iterator

from trimaran.base.errors import InputError
from trimaran.base.units import whole_number
from trimaran.program.types import SENDS, Instruction, Kind, Mark, Program

_NAME = r"[A-Za-z0-9_.-]+"
_KINDS = "|".join(sorted((str(kind) for kind in Kind), key=len, reverse=True))
_TOKEN = re.compile(rf"([0-9]{{0,9}})({_KINDS})([0-9]{{0,9}})(?:([<>])([0-9]{{1,9}}))?(?:#({_NAME}))?")
_PLAIN = r"[^\s\",#:]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_HEADER = re.compile(
    r"program segments=([0-9]{1,18}) microbatches=([0-9]{1,18}) ranks=([0-9]{1,9})(?: tp=([0-9]{1,18}))?"
)
_RANK = re.compile(r"rank ([0-9]{1,9})")
_FIELD = re.compile(rf'\s+(\w+)=((?:{_QUOTED}|[^\s"])*)(?=\s|$)')
_LINE = re.compile(rf"(\S+)\s+({_NAME})")
_MARK = re.compile(rf"({_NAME})([@^])({_PLAIN}|{_QUOTED})(?::([^\s\",:]+))?(?:,|$)")
_COMMENT = re.compile(rf'^((?:{_QUOTED}|(?!\s#)[^"])*?)(?:\s+#.*)?$')


def format_program(program: Program) -> str:
    """The text form.

    Args:
        program: the program; its labels, streams and marks are plain names (rule 2)

    Returns:
        Lines, the last one ended.

    Example:
        >>> update = Instruction(kind=Kind.UPDATE, rank=0, after=("0B0", "AR#loss"))
        >>> print(format_program(Program(ranks=((update,),), segments=1, microbatches=1)), end="")
        program segments=1 microbatches=1 ranks=1
        <BLANKLINE>
        rank 0
        U                 compute        after=0B0,AR#loss
    """
    tp = f" tp={program.tp}" if program.tp != 1 else ""
    lines = [f"program segments={program.segments} microbatches={program.microbatches} ranks={len(program.ranks)}{tp}"]
    for rank, instructions in enumerate(program.ranks):
        lines += ["", f"rank {rank}"]
        lines += [format_instruction(instruction) for instruction in instructions]
    return "\n".join(lines) + "\n"


def format_instruction(instruction: Instruction) -> str:
    """One line of the text form, without its rank.

    Args:
        instruction: the instruction
    """
    columns = [(instruction.token, 16), (instruction.stream, 13)]
    if instruction.peer is not None:
        columns.append((f"peer={instruction.peer}", 14))
    if instruction.group:
        columns.append((f"group={','.join(map(str, instruction.group))}", 14))
    if instruction.root is not None:
        columns.append((f"root={instruction.root}", 6))
    if instruction.nbytes:
        columns.append((f"nbytes={instruction.nbytes}", 16))
    if instruction.after:
        columns.append((f"after={','.join(instruction.after)}", 24))
    if instruction.behind:
        columns.append((f"behind={instruction.behind}", 9))
    if instruction.marks:
        columns.append((f"marks={','.join(map(_format_mark, instruction.marks))}", 0))
    return "  ".join(text.ljust(width) for text, width in columns).rstrip()


def parse_program(text: str, *, source: str = "program") -> Program:
    """Read the text form.

    Args:
        text: lines, as `format_program` writes them
        source: what to call the text in errors, such as the path of a file

    Returns:
        The program; whether it is legal is for `check_program` to say.

    Raises:
        InputError: a line that is not as expected, with its number
    """
    lines = _lines(text)
    number, first = next(lines, (1, ""))
    header = _HEADER.fullmatch(first)
    if header is None:
        raise _unexpected(source, number, '"program segments=2 microbatches=4 ranks=2"', first)
    segments, microbatches, size, tp = (int(number or 1) for number in header.groups())
    ranks: list[list[Instruction]] = []
    for number, line in lines:
        heading = _RANK.fullmatch(line)
        if heading is not None:
            if int(heading[1]) != len(ranks) or len(ranks) == size:
                expected = f'"rank {len(ranks)}"' if len(ranks) < size else f"the end after {size} ranks"
                raise _unexpected(source, number, expected, line)
            ranks.append([])
        elif not ranks:
            raise _unexpected(source, number, '"rank 0"', line)
        else:
            ranks[-1].append(_parse_instruction(line, rank=len(ranks) - 1, source=source, number=number))
    if len(ranks) != size:
        raise _unexpected(source, number + 1, f'"rank {len(ranks)}" of {size} ranks', "the end")
    return Program(ranks=tuple(map(tuple, ranks)), segments=segments, microbatches=microbatches, tp=tp)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.strip()
        if " #" in content or "\t#" in content:
            comment = _COMMENT.fullmatch(content)
            content = content if comment is None else comment[1]
        if content and not content.startswith("#"):
            yield number, content


def _parse_instruction(line: str, *, rank: int, source: str, number: int) -> Instruction:
    start = _LINE.match(line)
    if start is None:
        raise _unexpected(source, number, "a token and a stream", line)
    token = _TOKEN.fullmatch(start[1])
    if token is None or (token[4] is not None and (token[4] == ">") != (token[2] in SENDS)):
        raise _unexpected(source, number, 'a token such as "0F3", "0SEND_F3>1", "1RECV_F3<0" or "0AR#b0"', start[1])
    fields = _fields(line, start.end(), source=source, number=number)
    segment, kind, microbatch, _, peer_segment, label = token.groups()
    return Instruction(
        kind=Kind(kind),
        rank=rank,
        segment=int(segment) if segment else None,
        microbatch=int(microbatch) if microbatch else None,
        stream=start[2],
        peer=_integer(fields["peer"], source, number) if "peer" in fields else None,
        peer_segment=int(peer_segment) if peer_segment else None,
        group=tuple(_integer(part, source, number) for part in fields["group"].split(",")) if "group" in fields else (),
        root=_integer(fields["root"], source, number) if "root" in fields else None,
        label=label or "",
        nbytes=_integer(fields["nbytes"], source, number) if "nbytes" in fields else 0,
        after=tuple(fields["after"].split(",")) if "after" in fields else (),
        marks=_parse_marks(fields["marks"], source, number) if "marks" in fields else (),
        behind=_integer(fields["behind"], source, number) if "behind" in fields else 0,
    )


def _fields(line: str, start: int, *, source: str, number: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while start < len(line):
        field = _FIELD.match(line, start)
        if field is None or field[1] not in _FIELDS or field[1] in fields or not field[2]:
            expected = f"one each of {', '.join(f'{name}=' for name in _FIELDS)}"
            raise _unexpected(source, number, expected, line[start:].strip())
        fields[field[1]] = field[2]
        start = field.end()
    return fields


_FIELDS = ("peer", "group", "root", "nbytes", "after", "behind", "marks")


def _parse_marks(text: str, source: str, number: int) -> tuple[Mark, ...]:
    marks = []
    start = 0
    while start < len(text):
        mark = _MARK.match(text, start)
        if mark is None:
            raise _unexpected(source, number, 'marks such as "b0@conv1,b1@stem.conv,f0@fc1:0AR3#f0"', text[start:])
        op = _unquote(mark[3], source, number)
        marks.append(Mark(name=mark[1], op=op, before=mark[2] == "^", waits_for=mark[4] or ""))
        start = mark.end()
    return tuple(marks)


def _format_mark(mark: Mark) -> str:
    waits = f":{mark.waits_for}" if mark.waits_for else ""
    return f"{mark.name}{'^' if mark.before else '@'}{_quote(mark.op)}{waits}"


def _integer(text: str, source: str, number: int) -> int:
    value = whole_number(text, most=2**63 - 1)
    if value is None:
        raise _unexpected(source, number, "a whole number", text)
    return value


def _quote(text: str) -> str:
    return text if re.fullmatch(_PLAIN, text) else json.dumps(text)


def _unquote(text: str, source: str, number: int) -> str:
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        raise _unexpected(source, number, "a JSON string", text) from None


def _unexpected(source: str, number: int, expected: str, found: str) -> InputError:
    return InputError(
        f'{source}, line {number}: expected {expected}, got "{found}"',
        code="program-text.unexpected",
        source=source,
        line=number,
        expected=expected,
    )
