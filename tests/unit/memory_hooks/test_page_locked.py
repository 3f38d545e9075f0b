"""Seen in the wild: a loader of data is forked, and copies made on write take pages away from under the GPU.

What locks pages is given to an arena as a function: here it locks nothing, so that the rest shows on a CPU.
"""

import mmap
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from trimaran.memory_hooks.arena import HostArena

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what Linux says of its mappings")


class Lock:
    """Notes what was locked and unlocked."""

    def __init__(self) -> None:
        self.locked: list[tuple[int, int]] = []
        self.unlocked = 0

    def __call__(self, address: int, nbytes: int) -> Callable[[], None]:
        self.locked.append((address, nbytes))

        def unlock() -> None:
            self.unlocked += 1

        return unlock


def flags_of(address: int) -> list[str]:
    """What Linux says of the mapping at an address."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if head is not None:
            found = int(head[1], 16) <= address < int(head[2], 16)
        elif found and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise LookupError(f"no mapping at {address:#x}")


@linux
@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTFORK"), reason="the system has no such advice")
def test_only_what_is_page_locked_is_left_out_of_forks() -> None:
    lock = Lock()
    with HostArena(4 << 20, lock=lock), HostArena(4 << 20) as plain:
        slot = plain.allocate(64)
        assert "dc" in flags_of(lock.locked[0][0])  # do not copy on fork
        assert "dc" not in flags_of(slot.address)
        slot.free()


@linux
def test_a_forked_process_neither_unlocks_nor_unmaps_what_is_not_its_own() -> None:
    """The child maps something at a place of its own choice, closes the arena, and still has what it mapped."""
    lock = Lock()
    arena = HostArena(4 << 20, lock=lock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child calls nothing of theirs
        child = os.fork()
    if not child:
        mappings = [mmap.mmap(-1, 4 << 20) for _ in range(8)]  # one of them is where the arena was
        for mapping in mappings:
            mapping[0] = 7
        arena.close()
        right = lock.unlocked == 0 and all(mapping[0] == 7 for mapping in mappings)
        os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert lock.unlocked == 0
    arena.close()
    assert lock.unlocked == 1


def test_what_cannot_be_page_locked_is_used_all_the_same() -> None:
    with HostArena(1 << 20, lock=lambda _address, _nbytes: None) as arena:
        slot = arena.allocate(100)
        slot.tensor().fill_(3)
        assert slot.tensor().sum() == 300
        slot.free()
