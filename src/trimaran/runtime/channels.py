"""Sends, receives and collectives by torch.distributed.

Messages between two ranks of one machine go through memory (`letterbox`), where that can be. Of the others,
upward messages (to a higher rank) have one process group and downward ones another, so that each ordered pair of
ranks is a channel of its own, first in, first out, as programs assume. Each group of a program's collectives has its
process group. All are made, and used once, before training, in an order that is the same on every rank: NCCL connects
on first use, and two ranks that connect in opposite orders wait for each other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trimaran.errors import ExecutionError
from trimaran.program.types import COLLECTIVES, SENDS, Program
from trimaran.runtime.chains import Chain, open_chain
from trimaran.runtime.event_loops import calm_event_loops
from trimaran.runtime.failures import is_peer_failure
from trimaran.runtime.flat import all_gather, reduce_scatter
from trimaran.runtime.letterbox import Letterbox, Receiver, Sender
from trimaran.runtime.letterboxes import open_letterboxes
from trimaran.runtime.world import World

Group = tuple[int, ...]


class Channels:
    """The connections that programs need.

    Args:
        programs: all that will run
        world: this process's
    """

    def __init__(self, programs: Iterable[Program], world: World) -> None:
        self._world = world
        self._pairs: dict[bool, Any] = {}
        self._groups: dict[Group, Any] = {}
        self._boxes: dict[tuple[int, int], Letterbox] = {}
        self._chain: Chain | None = None
        self.control: Any = None
        if world.size == 1:
            return
        # For clocks, weights and words: on the host, whatever the device.
        timeout = timedelta(seconds=world.timeout_s)
        self.control = dist.new_group(backend="gloo", timeout=timeout)
        programs = list(programs)
        instructions = [instruction for program in programs for instruction in program]
        sent = [_sent(program) for program in programs]
        pairs = sorted({pair for sizes in sent for pair in sizes})
        room = {pair: max(_room(sizes.get(pair, [])) for sizes in sent) for pair in pairs}
        if world.device == "cpu":
            self._boxes = open_letterboxes(room, world, self.control)
        groups = sorted({i.group for i in instructions if i.kind in COLLECTIVES and len(i.group) > 1})
        for upward in sorted({source < target for source, target in pairs}):
            self._pairs[upward] = dist.new_group(timeout=timeout)
        for group in groups:
            self._groups[group] = dist.new_group(list(group), timeout=timeout)
        calm_event_loops()
        self._warm_up(pairs, groups)

    def room(self, nbytes: int, target: int) -> torch.Tensor | None:
        """Where a message is best put together before it is sent; None: anywhere.

        Args:
            nbytes: of the message [bytes]
            target: where the next `send` goes
        """
        box = self._boxes.get((self._world.rank, target))
        return self._start(box.room, nbytes) if isinstance(box, Sender) and nbytes <= box.capacity else None

    def send(self, buffer: torch.Tensor, target: int) -> Any:
        """Start to send a buffer of bytes; it must not change before the work has been waited for."""
        box = self._boxes.get((self._world.rank, target))
        if isinstance(box, Sender) and buffer.nbytes <= box.capacity:
            return self._start(box.send, buffer)
        return self._start(dist.isend, buffer, target, group=self._pairs[self._world.rank < target])

    def receive(self, buffer: torch.Tensor, source: int) -> Any:
        """Start to receive into a buffer of bytes."""
        box = self._boxes.get((source, self._world.rank))
        if isinstance(box, Receiver) and buffer.nbytes <= box.capacity:
            return box.receive(buffer)
        return self._start(dist.irecv, buffer, source, group=self._pairs[source < self._world.rank])

    def all_reduce(self, tensor: torch.Tensor, group: Group) -> Any:
        """Start to add a tensor up over a group, in place."""
        return self._start(dist.all_reduce, tensor, group=self._groups[group], async_op=True)

    def broadcast(self, tensor: torch.Tensor, group: Group, source: int) -> Any:
        """Start to copy a tensor from one rank of a group to the others, in place."""
        return self._start(dist.broadcast, tensor, src=source, group=self._groups[group], async_op=True)

    def reduce(self, tensor: torch.Tensor, group: Group, target: int) -> Any:
        """Start to add a tensor up on one rank of a group, in place; on the others its content is lost."""
        return self._start(dist.reduce, tensor, dst=target, group=self._groups[group], async_op=True)

    def reduce_scatter(self, shard: torch.Tensor, whole: torch.Tensor, group: Group) -> Any:
        """Start to add a tensor up over a group, of which each rank gets its share of the sum."""
        return self._start(reduce_scatter, shard, whole, group=self._groups[group], async_op=True)

    def all_gather(self, whole: torch.Tensor, shard: torch.Tensor, group: Group) -> Any:
        """Start to put together what each rank of a group has a share of."""
        return self._start(all_gather, whole, shard, group=self._groups[group], async_op=True)

    def from_rank_0(self, number: int) -> int:
        """The number that rank 0 gives; every rank calls it.

        Raises:
            ExecutionError: another rank is gone
        """
        if self.control is None:
            return number
        value = torch.tensor([number])
        with in_contact(self._world.rank, "a word from rank 0"):
            dist.broadcast(value, group_src=0, group=self.control)
        return int(value)

    def first_rank(self, own: bool) -> int | None:
        """The first rank on which something is true; every rank calls it.

        Args:
            own: whether it is on this one

        Raises:
            ExecutionError: another rank is gone
        """
        if self.control is None:
            return 0 if own else None
        flags = torch.zeros(self._world.size, dtype=torch.int64)
        flags[self._world.rank] = int(own)
        with in_contact(self._world.rank, "a question to all ranks"):
            dist.all_reduce(flags, group=self.control)
        ranks = flags.nonzero().flatten().tolist()
        return int(ranks[0]) if ranks else None

    def told_by_all(self, own: Sequence[int]) -> list[tuple[int, ...]]:
        """What each rank says, by rank; every rank calls it.

        Args:
            own: of this one: as many numbers as the others have, of 63 bits

        Raises:
            ExecutionError: another rank is gone
        """
        if self.control is None:
            return [tuple(own)]
        told = torch.zeros((self._world.size, len(own)), dtype=torch.int64)
        told[self._world.rank] = torch.tensor(own, dtype=torch.int64)
        with in_contact(self._world.rank, "a question to all ranks"):
            dist.all_reduce(told, group=self.control)
        return [tuple(row) for row in told.tolist()]

    def group(self, ranks: Group) -> Any:
        """The process group of some ranks that a collective of a program names."""
        return self._groups[ranks]

    def chain(self) -> Chain:
        """What starts collectives when others have ended; it is closed with the connections."""
        if self._chain is None:
            self._chain = open_chain(self._world.device)
        return self._chain

    def close(self) -> None:
        """End all connections that were made here."""
        if self._chain is not None:
            self._chain.close()
            self._chain = None
        for box in self._boxes.values():
            box.close()
        self._boxes = {}
        for group in (*self._pairs.values(), *self._groups.values(), self.control):
            if isinstance(group, dist.ProcessGroup):
                dist.destroy_process_group(group)
        self._pairs, self._groups, self.control = {}, {}, None

    def _start(self, operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return operation(*arguments, **options)
        except (RuntimeError, OSError) as error:
            raise lost_peer(self._world.rank, operation.__name__, error) from error

    def _warm_up(self, pairs: list[tuple[int, int]], groups: list[Group]) -> None:
        rank, device = self._world.rank, self._world.device
        byte = torch.zeros(1, dtype=torch.uint8, device=device)
        for source, target in pairs:
            if rank == source:
                wait_for(self.send(byte, target), rank, f"first message to rank {target}")
            elif rank == target:
                wait_for(self.receive(byte, source), rank, f"first message from rank {source}")
        for group in groups:
            if rank in group:
                wait_for(self.all_reduce(byte, group), rank, f"first collective of ranks {group}")


def _sent(program: Program) -> dict[tuple[int, int], list[int]]:
    """Sizes of the messages of a step, by source and target [bytes]."""
    found: dict[tuple[int, int], list[int]] = {}
    for instruction in program:
        if instruction.kind in SENDS and instruction.peer is not None:
            found.setdefault((instruction.rank, instruction.peer), []).append(instruction.nbytes)
    return found


def _room(sizes: Sequence[int]) -> int:
    """Room for all messages of a step, wherever in the ring the first one starts, each with some padding [bytes]."""
    return sum(sizes) + max(sizes, default=0) + _PADDING_BYTES * (len(sizes) + 2)


_PADDING_BYTES = 4096


@contextmanager
def in_contact(rank: int, what: str) -> Iterator[None]:
    """Tell a failure because of another rank as what it is; others go on as they are.

    Args:
        rank: of this process, for the message
        what: is done, for the message

    Raises:
        ExecutionError: another rank is gone, or silent for longer than the time-out
    """
    try:
        yield
    except RuntimeError as error:
        if is_peer_failure(error):
            raise lost_peer(rank, what, error) from error
        raise


def wait_for(work: Any, rank: int, what: str) -> None:
    """Wait for a piece of communication; on a GPU, make the current stream wait.

    Args:
        work: what torch.distributed returned
        rank: of this process, for the message
        what: for the message

    Raises:
        ExecutionError: another rank is gone, or silent for longer than the time-out
    """
    try:
        work.wait()
    except (RuntimeError, OSError) as error:
        raise lost_peer(rank, what, error) from error


def lost_peer(rank: int, what: str, error: RuntimeError | OSError) -> ExecutionError:
    """The error of a rank whose communication failed."""
    detail = str(error).strip().splitlines()
    return ExecutionError(
        f"rank {rank} lost contact with another rank during {what}: {detail[-1] if detail else type(error).__name__}. "
        "See the logs of the other ranks for the cause",
        code="rank.lost-peer",
        rank=rank,
        lost_peer=True,
    )
