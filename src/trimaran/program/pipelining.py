"""Orders of compute in the form of torch.distributed.pipelining: one row a rank, such as `0F0,0F1,,0B0,0B1`.

An order that torch makes (`ScheduleInterleaved1F1B`, `ScheduleInterleavedZeroBubble`, ...) and writes as compute-only
CSV can be lowered here, with any cut of any graph; an order of ours can be loaded there. Only compute is exchanged:
both sides derive sends and receives themselves.
"""

import csv
import io
import re
from collections.abc import Iterator

from trimaran.errors import InputError
from trimaran.program.orders import Compute, Order, check_order
from trimaran.program.types import Kind

_STEP = re.compile(r"(\d+)([FBIW])(\d+)")
_OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B")
_REDUCE = re.compile(r"\d+(WAIT_)?REDUCE_GRAD")


def parse_order(text: str, *, source: str = "order") -> Order:
    r"""Read torch's compute-only CSV.

    Empty cells are bubbles and carry no meaning. `REDUCE_GRAD` and `WAIT_REDUCE_GRAD` are left out: gradient reductions
    follow from the strategy. The two halves of an `OVERLAP_F_B` are taken one after the other.

    Args:
        text: one row a rank
        source: what to call it in errors, such as the path of the file

    Returns:
        The order; a segment is on the row that computes it.

    Raises:
        InputError: a cell that is no step of compute, with its row and column; an order that is incomplete

    Example:
        >>> [step.token for step in parse_order("0F0,,0B0\n,1F0,1B0\n")[1]]
        ['1F0', '1B0']
    """
    rows = []
    for number, cells in enumerate(csv.reader(io.StringIO(text))):
        if not any(cell.strip() for cell in cells):
            continue
        rows.append(
            tuple(step for column, cell in enumerate(cells) for step in _parse_cell(cell, source, number, column))
        )
    order = tuple(rows)
    check_order(order)
    return order


def format_order(order: Order) -> str:
    """Write an order as torch's compute-only CSV.

    Args:
        order: one row of steps a rank

    Returns:
        One line a row, without bubbles: torch finds them itself.

    Raises:
        InputError: an evaluation, for which torch has no token

    Example:
        >>> from trimaran.program.schedules import gpipe
        >>> print(format_order(gpipe(2, 2)), end="")
        0F0,0F1,0B0,0B1
        1F0,1F1,1B0,1B1
    """
    for row in order:
        for step in row:
            if step.kind is Kind.EVALUATE:
                raise InputError(
                    f"torch's form has no evaluation such as {step.token}: write an order of training",
                    code="torch-pipelining.no-evaluation",
                )
    return "".join(",".join(step.token for step in row) + "\n" for row in order)


def _parse_cell(cell: str, source: str, row: int, column: int) -> Iterator[Compute]:
    text = cell.strip()
    overlap = _OVERLAP.fullmatch(text)
    for token in overlap[1].split(";") if overlap else [text]:
        step = _STEP.fullmatch(token.strip())
        if step is not None:
            yield Compute(Kind(step[2]), int(step[1]), int(step[3]))
        elif token.strip() and not _REDUCE.fullmatch(token.strip()):
            raise InputError(
                f'{source}, row {row}, column {column}: expected a step such as "2F0" or "2B0", got "{text}"; '
                f"export the order as compute-only",
                code="torch-pipelining.bad-cell",
                source=source,
                row=row,
                column=column,
            )
