"""Seen in the wild: a CUDA graph replays the addresses that were captured, while memory has moved on."""

from tests.raising import raises

from trimaran.memory_hooks.arena import HostArena
from trimaran.memory_hooks.copies import HostEngine
from trimaran.memory_hooks.executor import MemoryExecutor


class CapturingEngine(HostEngine):
    """An engine whose operations are being captured."""

    def capturing(self) -> bool:
        return True


def test_the_block_is_refused_while_operations_are_captured() -> None:
    engine = CapturingEngine()
    with HostArena(0) as arena:
        executor = MemoryExecutor.without_plan(engine, arena)
        with raises("virtual-memory.cuda-graph"):
            executor.hooks().__enter__()
    engine.close()
