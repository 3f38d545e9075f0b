"""What is gone in the middle of an answer of the pool is given back after it."""

from typing import Any

from trimaran.rehearsal.record import Give, Record, Take
from trimaran.rehearsal.recorder import ScriptRecorder
from trimaran.simulator.allocator import Allocator


class Nowhere:
    """Lines of nothing."""

    def here(self) -> tuple[int, int]:
        return 0, 0


class Interrupted(Allocator):
    """A pool in whose answers something is collected."""

    def take(self, block: int, nbytes: int, stream: int) -> bool:
        self.collect()
        assert not self.inside, "the pool was asked in the middle of an answer"
        self.inside = True
        self.collect()
        taken = super().take(block, nbytes, stream)
        self.collect()
        self.inside = False
        return taken

    def give(self, block: int) -> None:
        assert not self.inside, "the pool was asked in the middle of an answer"
        super().give(block)

    inside = False
    collect: Any = staticmethod(lambda: None)


def test_blocks_that_are_gone_while_the_pool_answers_are_given_back_afterwards() -> None:
    record = Record(rank=0, world=1, per_node=1, device="h100", memory_bytes=2**30, script=[])
    pool = Interrupted(2**30)
    recorder = ScriptRecorder(record, Nowhere(), pool)  # type: ignore[arg-type]
    for block in range(6):
        recorder._blocks[block] = block
        recorder._grant(block, 2**20, 0, "other", 0, 0, "setup")
    gone = iter(range(6))
    pool.collect = lambda: recorder._gone(next(gone))
    recorder._grant(6, 2**20, 0, "other", 0, 0, "setup")
    assert [event.block for event in record.events if isinstance(event, Take)] == [0, 1, 2, 3, 4, 5, 6]
    assert [event.block for event in record.events if isinstance(event, Give)] == [0, 1, 2]
    pool.collect = lambda: None
    for block in (3, 4, 5):
        recorder._gone(block)
    assert [event.block for event in record.events if isinstance(event, Give)] == [0, 1, 2, 3, 4, 5]
    assert not recorder._late
