"""What the tests of the memory runtime share: record a step, then run steps under a plan."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from tests.unit.memory_hooks.plans import OFFLOAD, plan_by_rule

from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.record import Recorder
from trimaran.memory_hooks.arena import HostArena, Slot
from trimaran.memory_hooks.copies import HostEngine
from trimaran.memory_hooks.executor import MemoryExecutor
from trimaran.program.memory import MemoryPlan

Step = Callable[[], object]
Delay = Callable[[str], object]
"""Called by a copy thread with the name of its lane, before and after each copy."""


class SlowEngine(HostEngine):
    """Stretches copies, to find what does not wait for them.

    Args:
        delay: called around each copy; None: nothing is
    """

    def __init__(self, delay: Delay | None) -> None:
        super().__init__()
        self._delay = delay or (lambda _: None)

    def _transfer(self, storage: torch.UntypedStorage, offset: int, slot: Slot, lane: str) -> None:
        self._delay(lane)
        super()._transfer(storage, offset, slot, lane)
        self._delay(lane)


def random_delays(seed: int, most_s: float = 2e-4) -> Delay:
    """Stretches copies by random times, the same for a seed."""
    generator = random.Random(seed)
    return lambda _: time.sleep(generator.random() * most_s)


def record(step: Step, model: torch.nn.Module | None = None) -> Recording:
    with Recorder(model) as recorder:
        step()
    return recorder.recording


@contextmanager
def executing(
    recording: Recording | None,
    plan: MemoryPlan | None = None,
    *,
    delay: Delay | None = None,
    cap_bytes: int = 16 << 20,
    rule: str = OFFLOAD,
    held: bool = False,
    smallest_bytes: int = 1,
    **options: object,
) -> Iterator[MemoryExecutor]:
    """An executor; after the block nothing may be left in the arena."""
    engine, arena = SlowEngine(delay), HostArena(cap_bytes)
    try:
        if recording is None:
            executor = MemoryExecutor.without_plan(engine, arena, smallest_bytes=smallest_bytes, **options)
        else:
            plan = plan or plan_by_rule(recording.trace, rule, smallest_bytes=smallest_bytes, held=held)
            executor = MemoryExecutor(recording, plan, engine, arena, smallest_bytes=smallest_bytes, **options)  # type: ignore[arg-type]
        yield executor
    finally:
        engine.close()
        use = arena.use()
        arena.close()
    assert (use.used_bytes, use.pageable_bytes) == (0, 0), "the arena still holds something"


def gradients(module: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def same_bits(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))
