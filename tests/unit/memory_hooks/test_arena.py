"""Seen in the wild: host memory is rounded up to powers of two, taken piece by piece, and never given back."""

import mmap
import random
import resource

import torch
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem
from trimaran.memory_hooks.arena import LINE_BYTES, PAGE_BYTES, HostArena, Slot
from trimaran.memory_hooks.copies import ArenaStore, HostEngine


def test_sizes_are_exact_to_a_line() -> None:
    """A slot of 100 bytes takes 128, one of 3 MiB and a byte takes a page more than 3 MiB."""
    with HostArena(8 << 20) as arena:
        arena.allocate(100)
        assert arena.use().used_bytes == 128
        arena.allocate((3 << 20) + 1)
        assert arena.use().used_bytes == 128 + (3 << 20) + PAGE_BYTES


def test_slots_never_overlap_and_holes_join() -> None:
    """Random slots, random order of giving back; at the end one slot of the whole size fits."""
    generator = random.Random(5)
    with HostArena(4 << 20) as arena:
        slots: list[Slot] = []
        for _ in range(400):
            if slots and generator.random() < 0.45:
                slots.pop(generator.randrange(len(slots))).free()
            else:
                slots.append(arena.allocate(generator.choice([1, 63, 64, 1000, 5000, 70_000, 1 << 20])))
            inside = sorted((slot.offset, slot.nbytes) for slot in slots if slot.offset is not None)
            ends = [start + size for start, size in inside]
            assert all(end <= start for end, (start, _) in zip(ends, inside[1:], strict=False))
            assert all(start % LINE_BYTES == 0 for start, _ in inside)
            assert all(start % PAGE_BYTES == 0 for start, size in inside if size >= 1 << 20)
        for slot in slots:
            slot.free()
            slot.free()
        assert arena.use().used_bytes == arena.use().pageable_bytes == 0
        assert arena.allocate(4 << 20).offset == 0


def test_the_cap_is_hard_and_what_is_beyond_it_is_counted() -> None:
    with HostArena(1 << 20) as arena:
        inside, outside = arena.allocate(1 << 20), arena.allocate(4096)
        assert inside.offset == 0
        assert outside.offset is None
        use = arena.use()
        assert (use.used_bytes, use.pageable_bytes) == (1 << 20, 4096)
        outside.tensor().fill_(7)
        outside.free()
        assert arena.use().pageable_bytes == 0
        assert arena.use().pageable_peak_bytes == 4096


def test_an_arena_of_no_size_puts_everything_beyond() -> None:
    with HostArena(0) as arena:
        assert arena.allocate(10).offset is None


def test_closing_returns_the_memory() -> None:
    """64 MiB are touched, so that they are resident, and are not after the close; 8 MiB is the tolerance."""

    def resident() -> int:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * resource.getpagesize()

    arena = HostArena(64 << 20)
    slot = arena.allocate(64 << 20)
    slot.tensor().fill_(1)
    full = resident()
    slot.free()
    arena.close()
    arena.close()
    assert full - resident() > 56 << 20


def test_a_tensor_outlives_the_arena() -> None:
    """As a tensor of an optimizer's state that somebody still has when a training ends."""
    arena = HostArena(1 << 20)
    slot = arena.allocate(1 << 16)
    kept = slot.tensor().fill_(7)
    slot.free()
    arena.close()
    others = [mmap.mmap(-1, 1 << 20) for _ in range(8)]
    assert kept.eq(7).all()
    assert not any(any(other[: 1 << 16]) for other in others)


def test_a_page_lock_is_taken_once_over_the_exact_size_and_undone() -> None:
    calls: list[tuple[str, int]] = []

    def lock(address: int, nbytes: int):  # type: ignore[no-untyped-def]
        assert address % PAGE_BYTES == 0
        calls.append(("lock", nbytes))
        return lambda: calls.append(("unlock", nbytes))

    with HostArena(12_345, lock=lock) as arena:
        arena.allocate(100)
        arena.allocate(100)
    assert calls == [("lock", 12_345), ("unlock", 12_345)]


def test_impossible_sizes_are_refused() -> None:
    with raises("arena.negative-size", cap_bytes=-1):
        HostArena(-1)
    with raises("arena.no-memory", EnvironmentProblem):
        HostArena(1 << 60)


def test_a_recording_can_put_its_bytes_into_the_same_arena() -> None:
    engine = HostEngine()
    with HostArena(4096) as arena:
        store = ArenaStore(engine, arena)
        tensor = torch.arange(6.0)
        aside = store.put(tensor.untyped_storage())
        tensor.zero_()
        assert arena.use().used_bytes == LINE_BYTES
        restored = torch.empty(0).set_(aside.restore(), 0, (6,))
        assert restored.tolist() == [0, 1, 2, 3, 4, 5]
        del aside
        assert arena.use().used_bytes == 0
    engine.close()
