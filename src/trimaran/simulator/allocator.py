"""The memory of a device as PyTorch's caching allocator hands it out: what is allocated, what is reserved, what fails.

    take 3 MiB ─▶ rounded to 512 bytes ─▶ best fit among the free blocks of that stream ─▶ the rest is split off
                                          none: a segment of 20 MiB from the device
                                          no room: free segments go back to the device, then once more
    give       ─▶ merged with free neighbours in its segment; the segment stays reserved

A rehearsal asks it at each block that its script takes and gives back; a replay of a record, with other settings too.
The model follows the public source of torch 2.13; what it leaves out is said by `Settings.notes`. Nothing is fitted.

Left out: pools of CUDA graphs and of `torch.cuda.MemPool`, addresses (segments get rising ones), and when the device
passes an event: a block that `record_stream` lent to another stream comes back when the host has waited for that
stream, or when memory is short, as then the allocator waits itself. A host that runs ahead of its device sees that.

Source:
    pytorch/pytorch, c10/core/AllocatorConfig.h: sizes (512 bytes, 1, 2, 10 and 20 MiB) and defaults of the settings;
    AllocatorConfig.cpp: how settings are read; c10/cuda/CUDACachingAllocator.cpp: `round_size`, `get_pool`,
    `get_allocation_size`, `should_split`, `get_free_block`, `alloc_block`, `free_block`, `try_merge_blocks`,
    `release_available_cached_blocks`, `release_cached_blocks`, `garbage_collect_cached_blocks`, `recordStream`, and
    for segments that grow `find_expandable_block`, `map_block`, `unmap_block`. docs/source/notes/cuda.rst names the
    settings. Each rule names its function where it stands.
"""

import os
import re
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from trimaran.base.errors import InputError, TrimaranError, did_you_mean
from trimaran.base.units import whole_number

MIB: Final = 1 << 20

LEAST_BLOCK: Final = 512
"""Blocks are multiples of it (kMinBlockSize) [bytes]."""

MOST_SMALL: Final = MIB
"""Blocks up to it come from the small pool (kSmallSize) [bytes]."""

SMALL_SEGMENT: Final = 2 * MIB
"""A segment of the small pool (kSmallBuffer) [bytes]."""

LARGE_SEGMENT: Final = 20 * MIB
"""A segment for blocks above `MOST_SMALL` and below `LEAST_OWN` (large_segment_size) [bytes]."""

LEAST_OWN: Final = 10 * MIB
"""From here on a block without a place gets a segment of that size (kMinLargeAlloc) [bytes]."""

SEGMENT_MULTIPLE: Final = 2 * MIB
"""That size is rounded up to it (kRoundLarge) [bytes]."""

# ---------------------------------------------------------------------------------------------------------------------
# Settings


_IGNORED: Final = {
    "pinned_use_background_threads": "",
    "pinned_max_round_threshold_mb": "",
    "pinned_max_cached_size_mb": "",
    "pinned_use_cuda_host_register": "",
    "pinned_use_hip_host_register": "",
    "pinned_num_register_threads": "",
    "pinned_reserve_segment_size_mb": "",
    "pinned_free_catch_all": "",
    "release_lock_on_cudamalloc": "",
    "release_lock_on_hipmalloc": "",
    "throw_on_cudamalloc_oom": "",
    "graph_capture_record_stream_reuse": "pools of CUDA graphs are not modelled",
}
"""Settings that change no memory of the device; a text: that may, and are left out."""

_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_INTERVALS = 16  # sizes from 1 MiB to 64 GiB, one for each power of two


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF says.

    Attributes:
        expandable: segments grow in pages (expandable_segments)
        most_split_bytes: blocks of this size or more are not split (max_split_size_mb); None: all are [bytes]
        most_unsplit_bytes: how much larger a block may be that is given whole for one of at least
            `most_split_bytes` (max_non_split_rounding_mb) [bytes]
        large_segment_bytes: of a segment for blocks of 1 to 10 MiB (large_segment_size_mb) [bytes]
        steps: between two powers of two to which sizes are rounded up, by power from 1 MiB up; 0: none
        collected_above: share of `memory_share` from which on old free segments are released
            (garbage_collection_threshold); 0: never
        memory_share: of the device that the process may reserve (per_process_memory_fraction)
        notes: what was asked for and is not modelled
    """

    expandable: bool = False
    most_split_bytes: int | None = None
    most_unsplit_bytes: int = LARGE_SEGMENT
    large_segment_bytes: int = LARGE_SEGMENT
    steps: tuple[int, ...] = (0,) * _INTERVALS
    collected_above: float = 0.0
    memory_share: float = 1.0
    notes: tuple[str, ...] = field(default=())

    @staticmethod
    def text_of_environment() -> str:
        """What the variables say, as torch reads them; empty: they are not set."""
        return os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""

    @classmethod
    def parse(cls, text: str) -> "Settings":
        """Read the value of the environment variable.

        Raises:
            InputError: a setting that torch does not know, or a value that it refuses

        Example:
            >>> settings = Settings.parse("expandable_segments:True, roundup_power2_divisions:[256:1,512:2,>:4]")
            >>> settings.expandable, settings.steps[7:11]
            (True, (1, 1, 2, 4))
        """
        return _SettingsReader(text).read()

    def rounded(self, nbytes: int) -> int:
        """Bytes that a block of `nbytes` takes (`round_size`).

        Example:
            >>> Settings().rounded(1), Settings().rounded(1200), Settings(steps=(4,) * 16).rounded(5 * 2**20)
            (512, 1536, 5242880)
        """
        if nbytes < LEAST_BLOCK:
            return LEAST_BLOCK
        power = nbytes.bit_length() - 1
        steps = self.steps[min(max(power - 20, 0), _INTERVALS - 1)]
        if steps > 1 and nbytes > LEAST_BLOCK * steps:
            if nbytes & (nbytes - 1) == 0:
                return nbytes
            step = (1 << power) >> (steps.bit_length() - 1)
            return -(-nbytes // step) * step if step else 2 << power
        return -(-nbytes // LEAST_BLOCK) * LEAST_BLOCK

    def segment_bytes(self, size: int) -> int:
        """Bytes of the segment that is asked for when a block of `size` has no place (`get_allocation_size`)."""
        if size <= MOST_SMALL:
            return SMALL_SEGMENT
        if size < LEAST_OWN:
            return self.large_segment_bytes
        return -(-size // SEGMENT_MULTIPLE) * SEGMENT_MULTIPLE


class _SettingsReader:
    """Reads settings as torch's tokenizer does: keys, colons, values or lists in brackets, commas; no spaces."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = _TOKEN.findall("".join(text.split()))
        self.at = 0

    def read(self) -> Settings:
        found: dict[str, object] = {}
        notes: list[str] = []
        while self.at < len(self.tokens):
            key = self.next("a setting")
            self.expect(":")
            self.setting(key, found, notes)
            if self.at < len(self.tokens):
                self.expect(",")
        settings = Settings(**found, notes=tuple(notes))  # type: ignore[arg-type]  # each key sets its own type
        least = settings.large_segment_bytes
        for key, nbytes in (
            ("max_split_size_mb", settings.most_split_bytes),
            ("max_non_split_rounding_mb", settings.most_unsplit_bytes if "most_unsplit_bytes" in found else None),
        ):
            if nbytes is not None and nbytes < least:
                raise self.wrong(f"{key} is {nbytes // MIB}; torch takes {least // MIB} or more")
        return settings

    def setting(self, key: str, found: dict[str, object], notes: list[str]) -> None:
        if key == "expandable_segments":
            found["expandable"] = self.flag(key)
        elif key == "max_split_size_mb":
            found["most_split_bytes"] = self.whole(key) * MIB
        elif key == "max_non_split_rounding_mb":
            found["most_unsplit_bytes"] = self.whole(key) * MIB
        elif key == "large_segment_size_mb":
            size = self.whole(key) * MIB
            if size <= LEAST_OWN:
                raise self.wrong(f"{key} is {size // MIB}; torch takes more than {LEAST_OWN // MIB}")
            found["large_segment_bytes"] = size
        elif key == "garbage_collection_threshold":
            found["collected_above"] = self.share(key, least_open=True, most_open=True)
        elif key == "per_process_memory_fraction":
            found["memory_share"] = self.share(key, least_open=False, most_open=False)
        elif key == "roundup_power2_divisions":
            found["steps"] = self.steps(key)
        elif key == "backend":
            backend = self.next(f"the value of {key}")
            if backend == "cudaMallocAsync":
                notes.append("backend:cudaMallocAsync is not modelled; taken: the native allocator")
            elif backend != "native":
                raise self.wrong(f'backend is "{backend}"; expected native or cudaMallocAsync')
        elif key in _IGNORED:
            self.skip()
            if _IGNORED[key]:
                notes.append(f"{key}: {_IGNORED[key]}")
        else:
            raise self.wrong(f'"{key}" is no setting of it{did_you_mean(key, _SETTINGS)}')

    def steps(self, key: str) -> tuple[int, ...]:
        """One number for all sizes, or a list of size in MiB and number; ">" stands for all sizes above the last."""
        if self.peek() != "[":
            return (self.power(key),) * _INTERVALS
        self.expect("[")
        steps, last, is_first = [0] * _INTERVALS, 0, True
        while self.peek() != "]":
            bound = self.next(f"a size of {key}")
            self.expect(":")
            number = self.power(key, zero=True)
            if bound == ">":
                steps[last + 1 :] = [number] * (_INTERVALS - last - 1)
            else:
                last = min(self.as_power(key, bound).bit_length() - 1, _INTERVALS - 1)
                if is_first:
                    steps[:last] = [number] * last
                is_first = False
                steps[last] = number
            if self.peek() != "]":
                self.expect(",")
        self.expect("]")
        return tuple(steps)

    def power(self, key: str, *, zero: bool = False) -> int:
        text = self.next(f"the value of {key}")
        return 0 if zero and text == "0" else self.as_power(key, text)

    def as_power(self, key: str, text: str) -> int:
        number = whole_number(text, least=1)
        if number is None or number & (number - 1):
            raise self.wrong(f'{key} has "{text}"; expected a power of 2')
        return number

    def whole(self, key: str) -> int:
        text = self.next(f"the value of {key}")
        number = whole_number(text)
        if number is None:
            raise self.wrong(f'{key} is "{text}"; expected a whole number of MiB')
        return number

    def share(self, key: str, *, least_open: bool, most_open: bool) -> float:
        text = self.next(f"the value of {key}")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0.0 <= value <= 1.0 or (least_open and value == 0.0) or (most_open and value == 1.0):
            raise self.wrong(f'{key} is "{text}"; expected a number between 0 and 1')
        return value

    def flag(self, key: str) -> bool:
        text = self.next(f"the value of {key}")
        if text not in ("True", "False"):
            raise self.wrong(f'{key} is "{text}"; expected True or False')
        return text == "True"

    def skip(self) -> None:
        if self.next("a value") == "[":
            while self.next("]") != "]":
                pass

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self, what: str) -> str:
        if self.at >= len(self.tokens):
            raise self.wrong(f"it ends where {what} should be")
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, token: str) -> None:
        found = self.next(f'"{token}"')
        if found != token:
            raise self.wrong(f'"{found}" stands where "{token}" should be')

    def wrong(self, what: str) -> InputError:
        return InputError(
            f'settings of the allocator "{self.text}": {what}; write them as PYTORCH_CUDA_ALLOC_CONF takes them, '
            f"such as expandable_segments:True,max_split_size_mb:512",
            code="rehearse.allocator-setting",
            text=self.text,
        )


_SETTINGS: Final = (
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "large_segment_size_mb",
    "garbage_collection_threshold",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
    "backend",
    *_IGNORED,
)

# ---------------------------------------------------------------------------------------------------------------------
# Blocks and pools


_SHIFT: Final = 48  # a free block's key: its size above its address, so that a sorted list is in the order of best fit
_MASK: Final = (1 << _SHIFT) - 1


class _Block:
    """A part of a segment.

    Attributes:
        size: [bytes]
        address: of its first byte; segments have rising ones
        pool: that it belongs to
        stream: that it may be taken on
        before: neighbour at the lower address in its segment
        after: neighbour at the higher one
        is_free: neither taken nor still in use on another stream
        asked: bytes that were asked for, while taken
        streams: others that it is used on
        waits: streams that have to pass before it is free
        is_mapped: has memory behind it; always so in a segment that does not grow
        page: of the growing segment that it is in, 0: of one that does not grow [bytes]
        since: searches in its pool before it became free
    """

    __slots__ = (
        "address",
        "after",
        "asked",
        "before",
        "is_free",
        "is_mapped",
        "page",
        "pool",
        "since",
        "size",
        "stream",
        "streams",
        "waits",
    )

    def __init__(self, size: int, address: int, pool: "_Pool", stream: int, page: int = 0) -> None:
        self.size = size
        self.address = address
        self.pool = pool
        self.stream = stream
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.is_free = True
        self.asked = 0
        self.streams: set[int] | None = None
        self.waits = 0
        self.is_mapped = True
        self.page = page
        self.since = 0

    @property
    def is_split(self) -> bool:
        return self.before is not None or self.after is not None


class _Counts:
    """Figures of a pool, or of all: now, their peaks, and their sums over time; what `_NAMES` names."""

    __slots__ = (
        *("active", "active_peak", "active_sum", "active_blocks", "active_blocks_peak", "active_blocks_sum"),
        *("allocated", "allocated_peak", "allocated_sum", "blocks", "blocks_peak", "blocks_sum"),
        *("requested", "requested_peak", "requested_sum", "reserved", "reserved_peak", "reserved_sum"),
        *("segments", "segments_peak", "segments_sum"),
        *("split", "split_peak", "split_sum", "split_blocks", "split_blocks_peak", "split_blocks_sum"),
        "at_reset",
    )

    def __init__(self) -> None:
        self.active = self.active_peak = self.active_sum = 0
        self.active_blocks = self.active_blocks_peak = self.active_blocks_sum = 0
        self.allocated = self.allocated_peak = self.allocated_sum = 0
        self.blocks = self.blocks_peak = self.blocks_sum = 0
        self.requested = self.requested_peak = self.requested_sum = 0
        self.reserved = self.reserved_peak = self.reserved_sum = 0
        self.segments = self.segments_peak = self.segments_sum = 0
        self.split = self.split_peak = self.split_sum = 0
        self.split_blocks = self.split_blocks_peak = self.split_blocks_sum = 0
        self.at_reset: dict[str, int] = {}

    def take(self, size: int, asked: int) -> None:
        """A block of `size` becomes taken."""
        self.blocks_sum += 1
        self.blocks += 1
        if self.blocks > self.blocks_peak:
            self.blocks_peak = self.blocks
        self.active_blocks_sum += 1
        self.active_blocks += 1
        if self.active_blocks > self.active_blocks_peak:
            self.active_blocks_peak = self.active_blocks
        self.allocated_sum += size
        self.allocated += size
        if self.allocated > self.allocated_peak:
            self.allocated_peak = self.allocated
        self.active_sum += size
        self.active += size
        if self.active > self.active_peak:
            self.active_peak = self.active
        self.requested_sum += asked
        self.requested += asked
        if self.requested > self.requested_peak:
            self.requested_peak = self.requested

    def reserve(self, nbytes: int, *, segments: int = 1) -> None:
        """Memory comes from the device."""
        self.segments_sum += segments
        self.segments += segments
        self.segments_peak = max(self.segments_peak, self.segments)
        self.reserved_sum += nbytes
        self.reserved += nbytes
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def change_split(self, nbytes: int, blocks: int) -> None:
        """Free blocks with a taken neighbour: they cannot go back to the device."""
        self.split += nbytes
        if nbytes > 0:
            self.split_sum += nbytes
            if self.split > self.split_peak:
                self.split_peak = self.split
        self.split_blocks += blocks
        if blocks > 0:
            self.split_blocks_sum += blocks
            if self.split_blocks > self.split_blocks_peak:
                self.split_blocks_peak = self.split_blocks

    def named(self, pool: str) -> dict[str, int]:
        """As `torch.cuda.memory_stats` names them."""
        found = {}
        for theirs, ours in _NAMES.items():
            now, total = getattr(self, ours), getattr(self, f"{ours}_sum")
            found[f"{theirs}.{pool}.current"] = now
            found[f"{theirs}.{pool}.peak"] = getattr(self, f"{ours}_peak")
            found[f"{theirs}.{pool}.allocated"] = total
            found[f"{theirs}.{pool}.freed"] = total - now + self.at_reset.get(ours, 0)
        return found

    def reset_peaks(self) -> None:
        """Peaks become what is there now."""
        for ours in _NAMES.values():
            setattr(self, f"{ours}_peak", getattr(self, ours))

    def reset_sums(self) -> None:
        """Sums start at nothing."""
        for ours in _NAMES.values():
            setattr(self, f"{ours}_sum", 0)
            self.at_reset[ours] = getattr(self, ours)


_NAMES: Final = {
    "allocation": "blocks",
    "allocated_bytes": "allocated",
    "segment": "segments",
    "reserved_bytes": "reserved",
    "active": "active_blocks",
    "active_bytes": "active",
    "inactive_split": "split_blocks",
    "inactive_split_bytes": "split",
    "requested_bytes": "requested",
}
"""Figures of `torch.cuda.memory_stats`, and of `_Counts`."""


class _Pool:
    """Blocks of a size class. `free` and `unmapped` are sorted, by stream: by size and address, and by address."""

    __slots__ = ("counts", "free", "is_small", "searches", "unmapped")

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.free: dict[int, list[int]] = {}
        self.unmapped: dict[int, list[int]] = {}
        self.searches = 0
        self.counts = _Counts()


# ---------------------------------------------------------------------------------------------------------------------
# The allocator


class NoRoom(Exception):
    """There is no room, and it is not granted."""


class Allocator:
    """The caching allocator of one device in one process.

    Args:
        memory_bytes: of the device that segments may take: without the driver's context and buffers of others; None:
            as much as is asked for [bytes]
        settings: of the environment

    Attributes:
        retries: how often free segments went back to the device because it had no room (num_alloc_retries)
        failures: blocks that had no room even then (num_ooms); they are granted all the same

    Example:
        >>> allocator = Allocator(64 * MIB)
        >>> allocator.take(1, 3 * MIB, 0), allocator.allocated // MIB, allocator.reserved // MIB
        (True, 3, 20)
        >>> allocator.take(2, 50 * MIB, 0), allocator.failures
        (False, 1)
    """

    __slots__ = (
        "_all",
        "_at",
        "_device_frees",
        "_device_takes",
        "_events",
        "_is_plain",
        "_large",
        "_limit",
        "_next_address",
        "_oversize_blocks",
        "_oversize_segments",
        "_rounds_plainly",
        "_share_limit",
        "_small",
        "_syncs",
        "_taken",
        "failures",
        "may_refuse",
        "memory_bytes",
        "retries",
        "settings",
    )

    def __init__(self, memory_bytes: int | None, settings: Settings = Settings()) -> None:
        self.memory_bytes = memory_bytes
        self.settings = settings
        self.may_refuse: Callable[[], bool] = bool  # asked where there is no room: whether the script catches that
        self.retries = 0
        self.failures = 0
        self._limit: float = float("inf") if memory_bytes is None else memory_bytes
        self._share_limit: float = float("inf")
        self._small = _Pool(is_small=True)
        self._large = _Pool(is_small=False)
        self._all = _Counts()
        self._taken: dict[int, _Block | None] = {}
        self._at: dict[int, _Block] = {}  # free and unmapped blocks by address
        self._events: dict[int, list[_Block]] = {}
        self._next_address = SEGMENT_MULTIPLE
        self._device_takes = self._device_frees = self._syncs = 0
        self._oversize_blocks = [0, 0, 0]  # now, peak, sum
        self._oversize_segments = [0, 0, 0]
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Other settings, for blocks that are taken from now on."""
        self.settings = settings
        self._rounds_plainly = not any(settings.steps)
        self.limit_share(settings.memory_share)

    # --- what a rank does

    def take(self, block: int, nbytes: int, stream: int) -> bool:
        """A block is allocated.

        Args:
            block: its number, that no taken block has
            nbytes: as asked for; 0: no memory, as torch gives none [bytes]
            stream: that it may be used on

        Returns:
            Whether there is room; it is granted in any case.

        Raises:
            NoRoom: there is none, and `may_refuse` says so; nothing is allocated
        """
        if nbytes <= 0:
            self._taken[block] = None
            return True
        size = (nbytes + 511) & -512 if self._rounds_plainly else self.settings.rounded(nbytes)
        pool = self._small if size <= MOST_SMALL else self._large
        keys = pool.free.get(stream)
        found = None
        if self._is_plain:
            if keys:
                index = bisect_left(keys, size << _SHIFT)
                if index < len(keys):
                    found = self._at.pop(keys.pop(index) & _MASK)
        else:
            found = self._fitting(pool, keys or [], size)
        there = True
        if found is None:
            before = self.failures
            found = self._obtain(block, pool, size, nbytes, stream)
            there = self.failures == before
        counts, every = pool.counts, self._all
        rest = found.size - size
        if (
            rest >= LEAST_BLOCK
            if pool.is_small or self.settings.expandable
            else rest > MOST_SMALL and (self.settings.most_split_bytes is None or size < self.settings.most_split_bytes)
        ):
            after = found.after
            remaining = _Block(rest, found.address + size, pool, stream, found.page)
            remaining.before = found
            remaining.after = after
            if after is not None:
                after.before = remaining
            if found.page == 0:
                if found.before is not None or after is not None:
                    counts.change_split(-size, 0)
                    every.change_split(-size, 0)
                else:
                    counts.change_split(rest, 1)
                    every.change_split(rest, 1)
            found.after = remaining
            found.size = size
            self._put(remaining)
        elif found.page == 0 and (found.before is not None or found.after is not None):
            counts.change_split(-found.size, -1)
            every.change_split(-found.size, -1)
        found.is_free = False
        found.asked = nbytes
        self._taken[block] = found
        counts.take(found.size, nbytes)
        every.take(found.size, nbytes)
        if self.settings.most_split_bytes is not None and found.size >= self.settings.most_split_bytes:
            _add(self._oversize_blocks, 1)
        return there

    def give(self, block: int) -> None:
        """A block is given back; one that is used on other streams becomes free when these have passed (`free`)."""
        found = self._taken.pop(block, None)
        if found is None:
            return
        size = found.size
        counts, every = found.pool.counts, self._all
        counts.blocks -= 1
        every.blocks -= 1
        counts.allocated -= size
        every.allocated -= size
        if self.settings.most_split_bytes is not None and size >= self.settings.most_split_bytes:
            _add(self._oversize_blocks, -1)
        if found.streams:
            found.waits = len(found.streams)
            for stream in found.streams:
                self._events.setdefault(stream, []).append(found)
            found.streams = None
        else:
            self._free(found)

    def use(self, block: int, stream: int) -> None:
        """A block is used on another stream than its own (`recordStream`)."""
        found = self._taken.get(block)
        if found is not None and found.stream != stream:
            if found.streams is None:
                found.streams = set()
            found.streams.add(stream)

    def passed(self, stream: int) -> None:
        """The host knows that a stream has done what it was given so far (`process_events`)."""
        for found in self._events.pop(stream, ()):
            found.waits -= 1
            if found.waits == 0:
                self._free(found)

    def synchronize(self) -> None:
        """The host knows that all streams have."""
        for stream in list(self._events):
            self.passed(stream)

    def empty_cache(self) -> None:
        """Free segments go back to the device (`release_cached_blocks`)."""
        self._syncs += 1
        self.synchronize()
        for pool in (self._large, self._small):
            self._release_pool(pool)

    def limit_share(self, share: float) -> None:
        """Limit what this process may reserve to a share of the device; 1: no such limit (`setMemoryFraction`)."""
        known = self.memory_bytes is not None and share < 1.0
        self._share_limit = int(share * self.memory_bytes) if known and self.memory_bytes else float("inf")
        collects = self.settings.collected_above > 0.0 and known
        self._is_plain = not (self.settings.expandable or collects or self.settings.most_split_bytes is not None)

    # --- figures

    @property
    def allocated(self) -> int:
        """In blocks that are taken, rounded [bytes]."""
        return self._all.allocated

    @property
    def requested(self) -> int:
        """In blocks that are taken or still in use, as asked for [bytes]."""
        return self._all.requested

    @property
    def active(self) -> int:
        """In blocks that are taken or still in use on another stream [bytes]."""
        return self._all.active

    @property
    def reserved(self) -> int:
        """In segments [bytes]."""
        return self._all.reserved

    @property
    def peak_allocated(self) -> int:
        """Of `allocated`."""
        return self._all.allocated_peak

    @property
    def peak_reserved(self) -> int:
        """Of `reserved`."""
        return self._all.reserved_peak

    @property
    def segments(self) -> int:
        """Number of them; those that grow are not counted, as torch does not."""
        return self._all.segments

    def size_of(self, block: int) -> int:
        """Bytes that a taken block has; 0: none, or it is not taken [bytes]."""
        found = self._taken.get(block)
        return 0 if found is None else found.size

    def stats(self) -> dict[str, int]:
        """What `torch.cuda.memory_stats` tells, by its names."""
        found = {
            **self._all.named("all"),
            **self._large.counts.named("large_pool"),
            **self._small.counts.named("small_pool"),
            "num_alloc_retries": self.retries,
            "num_ooms": self.failures,
            "num_sync_all_streams": self._syncs,
            "num_device_alloc": self._device_takes,
            "num_device_free": self._device_frees,
            "num_oom_rejections": 0,
            "max_split_size": -1 if self.settings.most_split_bytes is None else self.settings.most_split_bytes,
        }
        for name, (now, peak, total) in (
            ("oversize_allocations", self._oversize_blocks),
            ("oversize_segments", self._oversize_segments),
        ):
            found |= {f"{name}.current": now, f"{name}.peak": peak}
            found |= {f"{name}.allocated": total, f"{name}.freed": total - now}
        return dict(sorted(found.items()))

    def reset_peaks(self) -> None:
        """Peaks become what is there now (`reset_peak_memory_stats`)."""
        for counts in (self._all, self._small.counts, self._large.counts):
            counts.reset_peaks()
        for counter in (self._oversize_blocks, self._oversize_segments):
            counter[1] = counter[0]

    def reset_sums(self) -> None:
        """Sums over time start at nothing (`reset_accumulated_memory_stats`)."""
        for counts in (self._all, self._small.counts, self._large.counts):
            counts.reset_sums()
        self._oversize_blocks[2] = self._oversize_segments[2] = 0
        self.retries = self.failures = self._syncs = self._device_takes = self._device_frees = 0

    # --- free blocks

    def _put(self, block: _Block) -> None:
        keys = block.pool.free.get(block.stream)
        if keys is None:
            keys = block.pool.free[block.stream] = []
        insort(keys, block.size << _SHIFT | block.address)
        block.since = block.pool.searches
        self._at[block.address] = block

    def _drop(self, block: _Block) -> None:
        keys = block.pool.free[block.stream]
        del keys[bisect_left(keys, block.size << _SHIFT | block.address)]
        del self._at[block.address]

    def _free(self, block: _Block) -> None:
        """Merge with free neighbours (`free_block`, `try_merge_blocks`)."""
        counts, every = block.pool.counts, self._all
        counts.active_blocks -= 1
        every.active_blocks -= 1
        counts.active -= block.size
        every.active -= block.size
        counts.requested -= block.asked
        every.requested -= block.asked
        block.is_free = True
        blocks = nbytes = 0
        before, after = block.before, block.after
        if before is not None and before.is_free and before.is_mapped:
            self._drop(before)
            blocks, nbytes = blocks - 1, nbytes - before.size
            _join(block, before)
        if after is not None and after.is_free and after.is_mapped:
            self._drop(after)
            blocks, nbytes = blocks - 1, nbytes - after.size
            _join(block, after)
        self._put(block)
        if block.page == 0:
            if block.before is not None or block.after is not None:
                blocks, nbytes = blocks + 1, nbytes + block.size
            if nbytes or blocks:
                counts.change_split(nbytes, blocks)
                every.change_split(nbytes, blocks)

    def _fitting(self, pool: _Pool, keys: list[int], size: int) -> _Block | None:
        """The best fit, with the rules for segments that grow and for blocks that are not split (`get_free_block`)."""
        pool.searches += 1
        index = bisect_left(keys, size << _SHIFT)
        if index >= len(keys):
            return None
        found = self._at[keys[index] & _MASK]
        while found.page and index + 1 < len(keys):
            following = self._at[keys[index + 1] & _MASK]
            if _grown(following) >= _grown(found):
                break
            found, index = following, index + 1
        most = self.settings.most_split_bytes
        if most is not None:
            if size < most <= found.size:
                return None
            if size >= most and found.size >= size + self.settings.most_unsplit_bytes:
                return None
        del keys[index]
        del self._at[found.address]
        return found

    # --- memory from the device and back

    def _obtain(self, block: int, pool: _Pool, size: int, nbytes: int, stream: int) -> _Block:
        """A block from a new segment; where there is no room, after free segments went back (`malloc`)."""
        asked = self.settings.segment_bytes(size)
        if self.settings.collected_above > 0.0 and self._share_limit != float("inf"):
            self._collect()
        found = self._segment(pool, size, asked, stream)
        if found is None and self._release_oversize(pool, size, stream):
            found = self._segment(pool, size, asked, stream)
        if found is None:
            self.empty_cache()
            self.retries += 1
            found = self._segment(pool, size, asked, stream)
        if found is None:
            self.failures += 1
            if self.may_refuse():
                raise NoRoom
            limits = self._limit, self._share_limit
            self._limit = self._share_limit = float("inf")
            found = self._segment(pool, size, asked, stream)
            self._limit, self._share_limit = limits
        if found is None:
            raise TrimaranError(
                f"the model of the allocator finds no place for {nbytes} bytes on a device without limit"
            )
        return found

    def _segment(self, pool: _Pool, size: int, asked: int, stream: int) -> _Block | None:
        """A free block of at least `size` that is in no list; None: no room (`alloc_block`)."""
        if self._all.reserved + asked > self._share_limit:
            return None
        if self.settings.expandable:
            return self._grow(pool, size, stream)
        if self._all.reserved + asked > self._limit:
            return None
        found = _Block(asked, self._next_address, pool, stream)
        self._next_address += asked
        pool.counts.reserve(asked)
        self._all.reserve(asked)
        self._device_takes += 1
        if self.settings.most_split_bytes is not None and asked >= self.settings.most_split_bytes:
            _add(self._oversize_segments, 1)
        return found

    def _release(self, block: _Block) -> None:
        """A free block that is a whole segment goes back to the device (`release_block`)."""
        self._drop(block)
        for counts in (block.pool.counts, self._all):
            counts.segments -= 1
            counts.reserved -= block.size
        self._device_frees += 1
        if self.settings.most_split_bytes is not None and block.size >= self.settings.most_split_bytes:
            _add(self._oversize_segments, -1)

    def _release_pool(self, pool: _Pool) -> None:
        """Free segments, and free pages of those that grow (`release_blocks`)."""
        for block in [self._at[key & _MASK] for keys in pool.free.values() for key in keys]:
            if block.page:
                self._unmap(block)
            elif not block.is_split:
                self._release(block)

    def _release_oversize(self, pool: _Pool, size: int, stream: int) -> bool:
        """Free blocks that are not split, until there is enough (`release_available_cached_blocks`)."""
        most = self.settings.most_split_bytes
        if most is None:
            return False
        wanted = max(size, most)
        keys = pool.free.get(stream, [])
        index = bisect_left(keys, wanted << _SHIFT)
        if index < len(keys):
            self._release(self._at[keys[index] & _MASK])
            return True
        released = 0
        while keys and released < wanted and (keys[-1] >> _SHIFT) >= most:
            released += keys[-1] >> _SHIFT
            self._release(self._at[keys[-1] & _MASK])
        return released >= wanted

    def _collect(self) -> None:
        """Release free segments that no block wanted for longer than the mean (`garbage_collect_cached_blocks`)."""
        allowed = int(self.settings.collected_above * self._share_limit)
        wanted = self._all.reserved - allowed
        if wanted <= 0:
            return
        pool = self._large
        blocks = [self._at[key & _MASK] for stream in sorted(pool.free) for key in pool.free[stream]]
        blocks = [block for block in blocks if not block.is_split]
        age = sum(pool.searches - block.since for block in blocks)
        reclaimed, is_freed = 0, True
        while reclaimed < wanted and is_freed and blocks:
            threshold, is_freed, kept, number = age / len(blocks), False, [], len(blocks)
            for block in blocks:
                old = pool.searches - block.since
                if block.page == 0 and old >= threshold:
                    is_freed, reclaimed, age, number = True, reclaimed + block.size, age - old, number - 1
                    self._release(block)
                else:
                    kept.append(block)
            blocks = kept

    # --- segments that grow

    def _grow(self, pool: _Pool, size: int, stream: int) -> _Block | None:
        """A free block of `size` at the lowest address where pages can be added for it (`find_expandable_block`)."""
        found = None
        for address in pool.unmapped.get(stream, []):
            start = self._at[address]
            if start.before is not None and start.before.is_free:
                start = start.before
            room = 0
            block: _Block | None = start
            while room < size and block is not None and block.is_free:
                room += block.size
                block = block.after
            if room >= size:
                found = start
                break
        if found is None:
            page = SMALL_SEGMENT if pool.is_small else self.settings.large_segment_bytes
            space = 9 * (self.memory_bytes or 1 << 40) // 8  # of the device, and an eighth more
            pages = max(-(-space // page), -(-size // page))
            found = _Block(pages * page, -(-self._next_address // page) * page, pool, stream, page)
            found.is_mapped = False
            self._next_address = found.address + found.size
            self._put_unmapped(found)
        if not found.is_mapped and not self._map(found, min(found.size, size)):
            return None
        while found.size < size:
            following = found.after
            if following is None or not self._map(following, min(size - found.size, following.size)):
                return None
            found = following  # it took in the mapped one before it
        self._drop(found)
        return found

    def _put_unmapped(self, block: _Block) -> None:
        insort(block.pool.unmapped.setdefault(block.stream, []), block.address)
        self._at[block.address] = block

    def _drop_unmapped(self, block: _Block) -> None:
        addresses = block.pool.unmapped[block.stream]
        del addresses[bisect_left(addresses, block.address)]
        del self._at[block.address]

    def _map(self, block: _Block, nbytes: int) -> bool:
        """Put pages behind the start of an unmapped block (`map_block`)."""
        mapped = -(-nbytes // block.page) * block.page
        if self._all.reserved + mapped > self._limit:
            return False
        self._drop_unmapped(block)
        block.is_mapped = True
        if mapped < block.size:
            remaining = _Block(block.size - mapped, block.address + mapped, block.pool, block.stream, block.page)
            remaining.is_mapped = False
            remaining.before, remaining.after = block, block.after
            if block.after is not None:
                block.after.before = remaining
            block.after = remaining
            block.size = mapped
            self._put_unmapped(remaining)
        self._merge_alike(block)
        self._put(block)
        for counts in (block.pool.counts, self._all):
            counts.reserve(mapped, segments=0)
        self._device_takes += 1
        return True

    def _unmap(self, block: _Block) -> None:
        """Take the whole pages of a free block away (`unmap_block`)."""
        first = -(-block.address // block.page) * block.page
        last = (block.address + block.size) // block.page * block.page
        if first >= last:
            return
        self._drop(block)
        front, back = first - block.address, block.address + block.size - last
        if front:
            start = _Block(front, block.address, block.pool, block.stream, block.page)
            _link(block.before, start)
            _link(start, block)
            self._put(start)
        if back:
            end = _Block(back, last, block.pool, block.stream, block.page)
            _link(end, block.after)
            _link(block, end)
            self._put(end)
        block.address, block.size, block.is_mapped = first, last - first, False
        self._merge_alike(block)
        self._put_unmapped(block)
        for counts in (block.pool.counts, self._all):
            counts.reserved -= last - first
        self._device_frees += 1
        if not block.is_split:
            self._drop_unmapped(block)

    def _merge_alike(self, block: _Block) -> None:
        """Merge with free neighbours that are mapped as it is."""
        for other in (block.before, block.after):
            if other is not None and other.is_free and other.is_mapped == block.is_mapped:
                if other.is_mapped:
                    self._drop(other)
                else:
                    self._drop_unmapped(other)
                _join(block, other)


def _join(block: _Block, other: _Block) -> None:
    """A neighbour becomes part of a block."""
    if block.before is other:
        block.address = other.address
        block.before = other.before
        if other.before is not None:
            other.before.after = block
    else:
        block.after = other.after
        if other.after is not None:
            other.after.before = block
    block.size += other.size


def _link(before: _Block | None, after: _Block | None) -> None:
    if before is not None:
        before.after = after
    if after is not None:
        after.before = before


def _grown(block: _Block) -> int:
    """Bytes that a block of a growing segment can have [bytes]."""
    after = block.after
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def _add(counter: list[int], number: int) -> None:
    counter[0] += number
    counter[1] = max(counter[1], counter[0])
    if number > 0:
        counter[2] += number
