"""Values that differ from rank to rank arrive where they would on GPUs, and ranks that give them are run at once."""

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.rehearsal.side_by_side import Job, rehearse

from trimaran.features.rehearse.runs import values_differ
from trimaran.rehearsal.record import Collective, Group, Record

SCRIPT = Path(__file__).with_name("exchanged_values.py")

OF_GLOO: dict[str, tuple[Any, Any, Any]] = {
    "sum": ([6, 30],) * 3,
    "max": ([3, 10],) * 3,
    "product": ([6, 1000],) * 3,
    "avg": ([2.0],) * 3,
    "all_gather": ([[0, 0], [1, 1], [2, 4]],) * 3,
    "broadcast": (7, 7, 7),
    "reduce_scatter": (3, 6, 9),
    "all_to_all": ([0, 10, 20], [1, 11, 21], [2, 12, 22]),
    "uneven": ([1, 2, 2], [0, 1, 1], [0, 0, 2]),
    "asynchronous": (9, 9, 9),
    "ring": (6, 0, 3),
    "message": (6, 99, 3),
    "gather": ([5, 6, 7], [], []),
    "scatter": (0, 1, 4),
    "functional": ([6],) * 3,
    "objects": ([[0, 1], [1, 1], [2, 1]],) * 3,
    "merged": ([0, 1, 2],) * 3,
    "split": (4, 2, 4),
    "file": (True,) * 3,
}
"""What `torchrun --nproc-per-node 3 exchanged_values.py gloo` printed on ranks 0 to 2; gloo has no mean, which is 2."""


def printed(folder: Path, rank: int) -> dict[str, Any]:
    lines = (folder / "values" / f"{rank}.txt").read_text().splitlines()
    found: dict[str, Any] = ast.literal_eval(next(line for line in lines if line.startswith("{")))
    return found


def test_values_go_through_collectives_messages_and_objects_as_on_gloo(tmp_path: Path) -> None:
    records = rehearse([Job("values", SCRIPT, 3, (0, 1, 2))], tmp_path)["values"]
    for rank in range(3):
        assert printed(tmp_path, rank) == {name: values[rank] for name, values in OF_GLOO.items()}
    assert not [one for record in records for one in record.invented]


def test_of_a_rank_that_is_not_rehearsed_the_one_that_stands_for_it_tells(tmp_path: Path) -> None:
    """Rank 1 of three is not there: without one that stands for it each takes its own values, which is said."""
    records = rehearse([Job("values", SCRIPT, 3, (0, 2), patience_s=10.0)], tmp_path)["values"]
    assert printed(tmp_path, 0)["all_gather"] == [[0, 0], [0, 0], [2, 4]]
    assert printed(tmp_path, 2)["all_gather"] == [[0, 0], [2, 4], [2, 4]]
    assert printed(tmp_path, 2)["sum"] == [1 + 3 + 3, 30]
    said = {one.what for record in records for one in record.invented}
    assert {"values of ranks that are not rehearsed", "objects of ranks that are not rehearsed"} <= said
    assert printed(tmp_path, 0)["merged"] == [0, 0, 2]


def record_with(rank: int, *calls: Collective) -> Record:
    group = Group(name="0", ranks=(0, 1), description="", order=0, lines=0)
    found = Record(rank=rank, world=2, per_node=8, device="h100", memory_bytes=0, script=[], groups={"0": group})
    found.collectives = list(calls)
    return found


def call(operation: str, value: str, *, peer: int = -1) -> Collective:
    return Collective(operation, "sum", "0", (), (), 8, peer, 0, False, -1, (), 0, 0, "forward", value=value)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (call("all_reduce", "a"), call("all_reduce", "a"), False),
        (call("all_reduce", "a"), call("all_reduce", "b"), True),
        (call("all_reduce", "a"), call("all_reduce", ""), False),
        (call("all_reduce", "a"), call("all_gather", "b"), False),
        (call("barrier", "a"), call("barrier", "b"), False),
        (call("broadcast", "a", peer=0), call("broadcast", "", peer=0), True),
        (call("broadcast", "", peer=0), call("broadcast", "b", peer=0), False),
        (call("send", "a", peer=1), call("recv", "", peer=0), True),
        (call("send", "", peer=1), call("recv", "", peer=0), False),
    ],
    ids=lambda one: f"{one.operation} {one.value}" if isinstance(one, Collective) else str(one),
)
def test_ranks_run_at_once_where_a_result_depends_on_whose_values_are_taken(
    first: Collective, second: Collective, expected: bool
) -> None:
    records = [record_with(0, first), record_with(1, second)]
    assert values_differ(records) is expected
    alone = msgspec.structs.replace(first, group="of its own")
    assert not values_differ([record_with(0, alone)])
