"""What a rehearsed rank asks of its groups is what the rank of a real gloo job asks, call by call.

Where the backends differ, and only there, both are brought to one form:

- An object goes as its size and its bytes; the rehearsal notes it as one object.
- Gloo sends the messages of a batch one by one; their order within a batch is the same.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.rehearsal.side_by_side import Job, rehearse

from trimaran.rehearsal.agreement import agree
from trimaran.rehearsal.record import Record

FOLDER = Path(__file__).with_name("agreeing")
SCRIPTS = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
WORLD = 4

Call = tuple[object, ...]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    jobs = [Job(name, path, WORLD, tuple(range(WORLD))) for name, path in SCRIPTS.items()]
    return rehearse(jobs, tmp_path_factory.mktemp("rehearsed"))


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[dict[str, object]]]]:
    folder = tmp_path_factory.mktemp("observed")
    observer = Path(__file__).with_name("real_collectives.py")
    told = map(str, (folder, WORLD, free_ports(len(SCRIPTS)), *SCRIPTS.values()))
    command = [sys.executable, str(observer), *told]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=240)
    return {
        name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(WORLD)] for name in SCRIPTS
    }


def elements(shapes: list[list[int]]) -> tuple[int, ...]:
    return tuple(math.prod(shape) for shape in shapes)


def of_rehearsal(record: Record) -> list[tuple[Call, str]]:
    """Calls, and the reduction of each."""
    calls: list[tuple[Call, str]] = []
    for asked in record.collectives:
        ranks = record.groups[asked.group].ranks
        given, got = ([list(tensor.shape) for tensor in side] for side in (asked.inputs, asked.outputs))
        types = tuple(sorted({tensor.dtype for tensor in (*asked.inputs, *asked.outputs)}))
        call = (asked.operation, ranks, asked.peer, types, elements(given), elements(got))
        calls.append((call, asked.reduction))
    return calls


def of_run(seen: list[dict[str, object]]) -> list[tuple[Call, list[str]]]:
    """Calls, and the reductions that each may have had."""
    calls: list[tuple[Call, list[str]]] = []
    for one in seen:
        call = (
            one["operation"],
            tuple(one["ranks"]),
            one["peer"],
            tuple(one["types"]),
            elements(one["given"]),
            elements(one["got"]),
        )
        calls.append((call, one["reductions"]))
    return joined_objects(calls)


def joined_objects(calls: list[tuple[Call, list[str]]]) -> list[tuple[Call, list[str]]]:
    """Two messages, a size and that number of bytes, are one object."""
    made: list[tuple[Call, list[str]]] = []
    for call, reductions in calls:
        operation, ranks, peer, types, *_ = call
        before = made[-1][0] if made else ()
        is_size = before[:3] == (operation, ranks, peer) and before[3] == ("int64",) and max(before[4:]) == (1,)
        if operation in ("send", "recv") and types == ("uint8",) and is_size:
            made[-1] = ((f"{operation}_object", ranks, peer, (), (), ()), [])
        else:
            made.append((call, reductions))
    return made


@pytest.mark.distributed
@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("name", SCRIPTS)
def test_calls_are_those_of_a_real_run(
    name: str,
    rank: int,
    rehearsed: dict[str, list[Record]],
    observed: dict[str, list[list[dict[str, object]]]],
) -> None:
    ours, theirs = of_rehearsal(rehearsed[name][rank]), of_run(observed[name][rank])
    assert [call for call, _ in ours] == [call for call, _ in theirs]
    assert ours
    told = [(call, reduction, found) for (call, reduction), (_, found) in zip(ours, theirs, strict=True) if found]
    for call, reduction, found in told:
        assert reduction in found, (call, reduction, found)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_ranks_agree(name: str, rehearsed: dict[str, list[Record]]) -> None:
    answer = agree(rehearsed[name])
    assert answer.ok, [finding.text for finding in answer.findings]
    assert not answer.waits
    assert not answer.unsure, answer.unsure


def test_reductions_are_seen_at_all(observed: dict[str, list[list[dict[str, object]]]]) -> None:
    """A single reduction explains most results, so that a wrong one would be noticed."""
    found = [one["reductions"] for calls in observed.values() for one in calls[0] if one["reductions"]]
    assert sum(len(reductions) == 1 for reductions in found) >= 0.8 * len(found)
