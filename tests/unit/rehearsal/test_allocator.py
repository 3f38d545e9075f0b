"""The model of PyTorch's caching allocator: each rule on its own, laws, a slow model, and what torch itself says."""

import ctypes
import random
from pathlib import Path

import pytest
import torch

from trimaran.base.errors import InputError
from trimaran.simulator.allocator import MIB, Allocator, Settings

GROWING = Settings(expandable=True)


# ---------------------------------------------------------------------------------------------------------------------
# Settings, compared with the installed torch, whose parser and rounding are in every wheel


def _torch_reads(text: str) -> bool:
    """Whether the installed torch takes it; what it keeps from one text to the next is set back."""
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except (ValueError, RuntimeError):
        return False
    finally:
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
        torch._C._accelerator_setAllocatorSettings("")
    return True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expandable_segments:True",
        "expandable_segments:true",
        "expandable_segments",
        "max_split_size_mb:19",
        "max_split_size_mb:20",
        "max_split_size_mb=512",
        "large_segment_size_mb:10",
        "large_segment_size_mb:64,max_split_size_mb:30",
        "large_segment_size_mb:64, max_split_size_mb:64",
        "max_non_split_rounding_mb:4",
        "garbage_collection_threshold:1.0",
        "garbage_collection_threshold:0.8",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[3:4]",
        "roundup_power2_divisions:[256:1,512:2,>:4]",
        "roundup_power2_divisions:[]",
        "expandable_segments:True expandable_segments:True",
        "pinned_use_background_threads:True,expandable_segments:False",
    ],
)
def test_takes_and_refuses_what_torch_does(text: str) -> None:
    if _torch_reads(text):
        Settings.parse(text)
    else:
        with pytest.raises(InputError) as caught:
            Settings.parse(text)
        assert caught.value.code == "rehearse.allocator-setting"


@pytest.mark.parametrize(
    "value", ["8", "1", "[256:1,512:2,>:4]", "[>:4]", "[1:4,2:8]", "[4:2,64:16,>:0]", "[131072:8]"]
)
def test_rounds_by_the_steps_that_torch_reads(value: str) -> None:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    steps_of = library._ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm
    steps_of.restype, steps_of.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    text = f"roundup_power2_divisions:{value}"
    settings = Settings.parse(text)
    try:
        torch._C._accelerator_setAllocatorSettings(text)
        for power in range(10, 38):
            steps = steps_of(3 << (power - 1))
            for nbytes in (1 << power, (1 << power) + 1, 3 << (power - 1), (2 << power) - 700):
                least, most = 1 << power, 2 << power
                if nbytes == least:
                    expected = nbytes
                elif steps > 1 and nbytes > 512 * steps:
                    grid = range(least, most + 1, (most - least) // steps)
                    expected = next(size for size in grid if size >= nbytes)
                else:
                    expected = (nbytes + 511) // 512 * 512
                assert settings.rounded(nbytes) == expected, (power, nbytes, steps)
    finally:
        torch._C._accelerator_setAllocatorSettings("")


def test_says_what_is_not_modelled() -> None:
    assert Settings.parse("backend:native,pinned_use_background_threads:True").notes == ()
    assert "not modelled" in Settings.parse("backend:cudaMallocAsync").notes[0]
    with pytest.raises(InputError, match=r"expandable_segment.*did you mean"):
        Settings.parse("expandable_segment:True")


# ---------------------------------------------------------------------------------------------------------------------
# Rules, by figures that follow from the source by hand


@pytest.mark.parametrize(
    ("nbytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),  # the rest of 1 MiB is not more than 1 MiB: not split, see below
    ],
)
def test_a_first_block(nbytes: int, allocated: int, reserved: int) -> None:
    allocator = Allocator(None)
    assert allocator.take(1, nbytes, 0)
    size = 12 * MIB if nbytes == 11 * MIB else allocated
    assert (allocator.allocated, allocator.reserved, allocator.requested) == (size, reserved, nbytes)


def test_takes_the_smallest_block_that_fits_and_splits_it() -> None:
    allocator = Allocator(None)
    for block, size in enumerate((30, 24, 40)):
        allocator.take(block, size * MIB, 0)
    for block in range(3):
        allocator.give(block)
    allocator.take(3, 22 * MIB, 0)  # of the 24, whose rest of 2 MiB is split off
    assert allocator.reserved == 94 * MIB
    assert allocator.allocated == 22 * MIB
    assert allocator.stats()["inactive_split_bytes.all.current"] == 2 * MIB
    allocator.give(3)
    assert allocator.stats()["inactive_split_bytes.all.current"] == 0
    allocator.take(4, 24 * MIB, 0)  # the two parts are one again
    assert allocator.reserved == 94 * MIB


def test_a_stream_does_not_take_blocks_of_another() -> None:
    allocator = Allocator(None)
    allocator.take(1, 32 * MIB, 0)
    allocator.give(1)
    allocator.take(2, 32 * MIB, 1)
    assert allocator.reserved == 64 * MIB


def test_free_segments_go_back_when_the_device_has_no_room() -> None:
    allocator = Allocator(100 * MIB)
    allocator.take(1, 60 * MIB, 0)
    allocator.give(1)
    assert allocator.take(2, 80 * MIB, 0)  # in place of the free 60
    assert (allocator.reserved, allocator.retries, allocator.failures) == (80 * MIB, 1, 0)
    assert not allocator.take(3, 30 * MIB, 0)
    assert allocator.size_of(3) == 30 * MIB  # granted all the same
    assert allocator.reserved == 110 * MIB


def test_a_split_segment_stays() -> None:
    """Fragments: 48 MiB of a segment and 40 of the device are free; 60 in one piece are not, except where it grows."""
    for settings, reserved, fits in ((Settings(), 120, False), (GROWING, 80, True)):
        allocator = Allocator(100 * MIB, settings)
        allocator.take(1, 60 * MIB, 0)
        allocator.give(1)
        allocator.take(2, 12 * MIB, 0)
        assert allocator.take(3, 60 * MIB, 0) is fits
        assert allocator.reserved == reserved * MIB


def test_a_growing_segment_needs_no_block_of_its_own_size() -> None:
    """Blocks that grow by a MiB: segments of their own pile up; a growing one takes each where the last one was."""
    plain, growing = Allocator(None), Allocator(None, GROWING)
    for allocator in (plain, growing):
        allocator.take(0, 100 * MIB, 0)
        for number in range(1, 20):
            allocator.take(number, (100 + 2 * number) * MIB, 0)
            allocator.give(number)
    assert plain.reserved == sum(range(100, 140, 2)) * MIB
    assert growing.reserved == 240 * MIB  # 100 + 138, in pages of 20 MiB
    assert growing.segments == 0
    growing.give(0)
    growing.empty_cache()
    assert growing.reserved == 0


def test_a_block_lent_to_a_stream_comes_back_when_that_has_passed() -> None:
    allocator = Allocator(None)
    allocator.take(1, 32 * MIB, 0)
    allocator.use(1, 0)  # its own stream: nothing to wait for
    allocator.use(1, 7)
    allocator.give(1)
    assert (allocator.allocated, allocator.active) == (0, 32 * MIB)
    allocator.take(2, 32 * MIB, 0)
    assert allocator.reserved == 64 * MIB
    allocator.passed(7)
    assert allocator.active == 32 * MIB
    allocator.take(3, 32 * MIB, 0)
    assert allocator.reserved == 64 * MIB


def test_memory_that_waits_is_waited_for_before_memory_is_short() -> None:
    allocator = Allocator(64 * MIB)
    allocator.take(1, 64 * MIB, 0)
    allocator.use(1, 3)
    allocator.give(1)
    assert allocator.take(2, 40 * MIB, 0)
    assert allocator.retries == 1


def test_blocks_of_the_size_named_are_not_split() -> None:
    allocator = Allocator(None, Settings.parse("max_split_size_mb:64"))
    allocator.take(1, 128 * MIB, 0)
    allocator.give(1)
    allocator.take(2, 40 * MIB, 0)
    assert allocator.reserved == 168 * MIB  # not a part of the 128
    allocator.take(3, 100 * MIB, 0)
    assert allocator.reserved == 268 * MIB  # 128 is more than 20 MiB larger
    allocator.take(4, 110 * MIB, 0)
    assert allocator.reserved == 268 * MIB  # taken whole
    assert allocator.allocated == (40 + 100 + 128) * MIB
    assert allocator.stats()["oversize_allocations.current"] == 2


def test_old_segments_are_collected_only_under_a_limited_share() -> None:
    for share, reserved in (("1.0", 120), ("0.5", 80)):
        settings = Settings.parse(f"garbage_collection_threshold:0.1,per_process_memory_fraction:{share}")
        allocator = Allocator(1000 * MIB, settings)
        allocator.take(1, 40 * MIB, 0)
        allocator.give(1)
        allocator.take(2, 40 * MIB, 1)  # 40 MiB are not above 10 % of 500
        assert allocator.reserved == 80 * MIB
        allocator.take(3, 40 * MIB, 1)  # 80 are, and the first was not wanted since
        assert allocator.reserved == reserved * MIB, share


def test_a_process_may_take_only_its_share() -> None:
    allocator = Allocator(100 * MIB, Settings.parse("per_process_memory_fraction:0.5"))
    assert allocator.take(1, 40 * MIB, 0)
    assert not allocator.take(2, 20 * MIB, 0)


def test_a_block_of_no_bytes_takes_none() -> None:
    allocator = Allocator(0)
    assert allocator.take(1, 0, 0)
    allocator.give(1)
    assert allocator.reserved == 0


def test_statistics_are_named_and_counted_as_torch_does() -> None:
    allocator = Allocator(None)
    allocator.take(1, 3 * MIB, 0)
    allocator.take(2, 700, 0)
    allocator.give(1)
    stats = allocator.stats()
    assert stats["allocated_bytes.all.current"] == 1024
    assert stats["allocated_bytes.large_pool.peak"] == 3 * MIB
    assert stats["allocated_bytes.large_pool.freed"] == 3 * MIB
    assert stats["requested_bytes.small_pool.current"] == 700
    assert stats["segment.all.current"] == 2
    assert stats["allocation.all.allocated"] == 2
    allocator.reset_peaks()
    allocator.reset_sums()
    allocator.give(2)
    stats = allocator.stats()
    assert stats["allocated_bytes.all.peak"] == 1024
    assert stats["allocated_bytes.all.freed"] == 1024
    assert stats["allocated_bytes.all.allocated"] == 0


# ---------------------------------------------------------------------------------------------------------------------
# Laws, and a slow model


class _Slow:
    """The rules for settings by default, told once more: lists of parts, looked through from end to end."""

    def __init__(self, limit: float) -> None:
        self.limit, self.segments, self.where = limit, [], {}

    @property
    def reserved(self) -> int:
        return sum(size for segment in self.segments for size, _ in segment["parts"])

    def take(self, block: int, nbytes: int, stream: int) -> bool:
        size = max(512, -(-nbytes // 512) * 512)
        small = size <= MIB
        there, found = True, self._fit(size, small, stream)
        if found is None:
            new = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.reserved + new > self.limit:
                whole = [one for one in self.segments if len(one["parts"]) == 1 and one["parts"][0][1] is None]
                self.segments = [one for one in self.segments if one not in whole]
                there = self.reserved + new <= self.limit
            self.segments.append({"key": (small, stream), "parts": [(new, None)]})
            found = (self.segments[-1], 0)
        segment, index = found
        have, _ = segment["parts"][index]
        rest = have - size
        if rest >= 512 if small else rest > MIB:
            segment["parts"][index : index + 1] = [(size, block), (rest, None)]
        else:
            segment["parts"][index] = (have, block)
        return there

    def _fit(self, size: int, small: bool, stream: int) -> tuple[dict, int] | None:
        fits = [
            (have, order, index)
            for order, segment in enumerate(self.segments)
            if segment["key"] == (small, stream)
            for index, (have, owner) in enumerate(segment["parts"])
            if owner is None and have >= size
        ]
        return (self.segments[min(fits)[1]], min(fits)[2]) if fits else None

    def give(self, block: int) -> None:
        for segment in self.segments:
            parts = [(size, None if owner == block else owner) for size, owner in segment["parts"]]
            merged: list[tuple[int, int | None]] = []
            for size, owner in parts:
                if merged and owner is None and merged[-1][1] is None:
                    merged[-1] = (merged[-1][0] + size, None)
                else:
                    merged.append((size, owner))
            segment["parts"] = merged


def _trace(seed: int, length: int, most: int = 40) -> list[tuple[int, int, int]]:
    draw = random.Random(seed)
    sizes = [1, 600, 5_000, 300_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 11 * MIB, 50 * MIB]
    live: list[int] = []
    found = []
    for number in range(length):
        if live and (len(live) > most or draw.random() < 0.45):
            found.append((live.pop(draw.randrange(len(live))), 0, 0))
        else:
            found.append((number, draw.choice(sizes) + draw.choice([0, 0, 512, 7]), draw.choice([0, 0, 3])))
            live.append(number)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_slow_model(seed: int) -> None:
    limit = float("inf") if seed % 3 else 260 * MIB
    fast, slow = Allocator(None if seed % 3 else 260 * MIB), _Slow(limit)
    for block, nbytes, stream in _trace(seed, 500):
        if nbytes:
            assert fast.take(block, nbytes, stream) == slow.take(block, nbytes, stream)
        else:
            fast.give(block)
            slow.give(block)
        assert fast.reserved == slow.reserved
        taken = sum(size for segment in slow.segments for size, owner in segment["parts"] if owner is not None)
        assert fast.allocated == taken
    if not seed % 3:
        assert fast.retries > 0


TEXTS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "roundup_power2_divisions:4",
    "expandable_segments:True,large_segment_size_mb:12",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("limit", [None, 200 * MIB])
def test_laws(text: str, limit: int | None) -> None:
    """What is there adds up at every step, and all of it goes back."""
    allocator = Allocator(limit, Settings.parse(text))
    draw = random.Random(3)
    live = {}
    for block, nbytes, stream in _trace(5, 700):
        if nbytes:
            there = allocator.take(block, nbytes, stream)
            live[block] = nbytes
            assert there == (allocator.reserved <= (limit or float("inf"))) or allocator.failures
            if draw.random() < 0.1:
                allocator.use(block, 9)
        else:
            allocator.give(block)
            del live[block]
        if draw.random() < 0.02:
            allocator.passed(9)
        blocks = {one.address: one for one in allocator._at.values()}
        free = sum(one.size for one in blocks.values() if one.is_mapped)
        assert allocator.reserved == allocator.active + free
        assert allocator.allocated == sum(allocator.size_of(one) for one in live)
        assert sum(live.values()) <= allocator.requested <= allocator.active
        assert allocator.peak_reserved >= allocator.peak_allocated >= allocator.allocated
        for one in blocks.values():
            for other in (one.before, one.after):
                assert other is None or not other.is_free or other.is_mapped != one.is_mapped
            assert one.after is None or one.address + one.size == one.after.address
    for block in list(live):
        allocator.give(block)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.active, allocator.requested, allocator.reserved) == (0, 0, 0, 0)
    stats = allocator.stats()
    assert stats["inactive_split_bytes.all.current"] == 0
    for name in ("allocation", "allocated_bytes", "segment", "reserved_bytes", "active", "requested_bytes"):
        pools = [stats[f"{name}.{pool}_pool.allocated"] for pool in ("small", "large")]
        assert stats[f"{name}.all.allocated"] == stats[f"{name}.all.freed"] == sum(pools)
