"""Opening letterboxes between the ranks that can have one.

The source of a pair makes the memory and the pipes and tells the target where they are; the target opens them, or says
that it cannot: it is on another machine, behind a link of its own, or may not look into the source's process. All ranks
call in one order, so that the answers fit the questions.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trimaran.runtime.letterbox import Letterbox, Receiver, Sender
from trimaran.runtime.world import World

LARGEST_RING_BYTES = 2**30
"""A pair of ranks with more than this to say in a step says it through sockets [bytes]."""


def open_letterboxes(
    capacities: Mapping[tuple[int, int], int], world: World, group: dist.ProcessGroup | None
) -> dict[tuple[int, int], Letterbox]:
    """The letterboxes of this rank, for pairs that share a machine and no slow link; all ranks call this.

    Args:
        capacities: bytes of a step, and of its largest message on top, for each pair of source and target [bytes]
        world: this process's
        group: all ranks, for host memory

    Returns:
        One for each pair that has one, by the pair.
    """
    found: dict[tuple[int, int], Letterbox] = {}
    for (source, target), capacity in sorted(capacities.items()):
        box: Letterbox | None = None
        if world.rank == source:
            box = _offer(capacity, target, world, group)
        elif world.rank == target:
            box = _accept(source, world, group)
        if box is not None:
            found[source, target] = box
    return found


def _offer(capacity: int, target: int, world: World, group: dist.ProcessGroup | None) -> Sender | None:
    """Make a letterbox and tell the target of it; none where the target cannot open it."""
    offered: Any = None
    ends: tuple[int, ...] = ()
    if 0 < capacity <= LARGEST_RING_BYTES and world.device == "cpu" and hasattr(os, "memfd_create"):
        memory = os.memfd_create("trimaran")
        os.ftruncate(memory, capacity)
        arrived, freed = os.pipe(), os.pipe()
        ends = (memory, arrived[0], arrived[1], freed[0], freed[1])
        offered = (_neighbourhood(), os.getpid(), capacity, (memory, arrived[0], freed[1]))
    dist.send_object_list([offered], group_dst=target, group=group)
    answer: list[Any] = [None]
    dist.recv_object_list(answer, group_src=target, group=group)
    box = Sender(ends[0], capacity, ends[2], ends[3], world.timeout_s) if answer[0] else None
    # What the target has opened too; with its own ends it sees when this process is gone.
    kept = {ends[2], ends[3]} if box is not None else set()
    for descriptor in set(ends) - kept:
        os.close(descriptor)
    return box


def _accept(source: int, world: World, group: dist.ProcessGroup | None) -> Receiver | None:
    """Open the letterbox of a source, where that can be."""
    offer: list[Any] = [None]
    dist.recv_object_list(offer, group_src=source, group=group)
    box = None
    if offer[0] is not None and world.device == "cpu":
        neighbourhood, process, capacity, descriptors = offer[0]
        if neighbourhood == _neighbourhood():
            box = _open(process, capacity, descriptors, world.timeout_s)
    dist.send_object_list([box is not None], group_dst=source, group=group)
    return box


def _open(process: int, capacity: int, descriptors: tuple[int, int, int], timeout_s: float) -> Receiver | None:
    opened: list[int] = []
    try:
        for descriptor, mode in zip(descriptors, (os.O_RDWR, os.O_RDONLY, os.O_WRONLY), strict=True):
            opened.append(os.open(f"/proc/{process}/fd/{descriptor}", mode | os.O_CLOEXEC))
        box = Receiver(opened[0], capacity, opened[1], opened[2], timeout_s)
    except OSError:
        # Another user's process, or a system that does not show descriptors: sockets will do.
        for descriptor in opened:
            os.close(descriptor)
        return None
    os.close(opened[0])
    return box


def _neighbourhood() -> tuple[str, str] | None:
    """The running system and the network that this process is in; ranks on links of their own differ in the latter."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, str(Path("/proc/self/ns/net").readlink())
    except OSError:
        return None
