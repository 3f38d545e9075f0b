"""What remedies are said to save and to cost, beside scripts that do them by themselves, both rehearsed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.rehearsal.side_by_side import Job, rehearse

from trimaran.base.remedies import MemoryHelp
from trimaran.machine.find import find_machine
from trimaran.rehearsal.memory import Story, read_memory
from trimaran.rehearsal.record import Record
from trimaran.rehearsal.remedies import Change, memory_remedies
from trimaran.rehearsal.time import seconds_of_step

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).with_name("remedied.py")
H100 = find_machine("dgx-h100")

BYTES, SECONDS = 0.07, 0.16
"""By how much what is reserved, and the step, may differ.

Autograd's hooks copy parameters too, and a tensor as often as it is saved; an optimizer that shards by whole parameters
does not do so evenly.
"""


def remedies(plain: Sequence[Record]) -> dict[str, MemoryHelp]:
    """Those of the first rank, by id, of several the last."""

    def step_then(change: Change, changed: Record, on_host: bool) -> float:
        return seconds_of_step([changed, *(change(Story(record)) for record in plain[1:])], H100)

    return {one.id: one for one in memory_remedies(plain[0], step_then=step_then)}


def compare(names: Sequence[str], *arguments: str, world: int, folder: Path, expected: Sequence[str]) -> None:
    ranks = (0, world - 1) if world > 1 else (0,)
    jobs = [Job(name=one, script=SCRIPT, world=world, ranks=ranks, arguments=(one, *arguments)) for one in names]
    found = rehearse(jobs, folder)
    helps = remedies(found["plain"])
    for name, of in zip(names[1:], expected, strict=True):
        real, said = found[name], helps[of]
        assert said.reserved_bytes == pytest.approx(read_memory(real[0]).reserved, rel=BYTES), name
        assert said.step_time_s == pytest.approx(seconds_of_step(real, H100), rel=SECONDS), name


def test_of_activations_and_the_loss(tmp_path: Path) -> None:
    names = ("recompute", "chunked-loss")
    compare(("plain", *names), "4", "8", world=1, folder=tmp_path, expected=names)


@pytest.mark.sweep
def test_of_activations_of_replicas(tmp_path: Path) -> None:
    names = ("recompute", "offload", "chunked-loss", "smaller-microbatch")
    compare(("plain", *names), "8", "8", world=2, folder=tmp_path, expected=names)


@pytest.mark.sweep
def test_of_state_that_replicas_shard(tmp_path: Path) -> None:
    compare(("plain", "fully-shard"), "8", "1", world=2, folder=tmp_path, expected=("shard-state",))
