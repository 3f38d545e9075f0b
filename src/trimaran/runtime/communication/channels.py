"""Sends, receives and collectives by torch.distributed, and what ranks agree on.

Messages between two ranks of one machine go through memory (`shared_memory`), where that is possible. Of the others,
upward messages (to a higher rank) have one process group and downward ones another, so that each ordered pair of ranks
has a separate channel, first in, first out, as programs assume. Each group of a program's collectives has a process
group. All are made, and used once, before training, in the same order on every rank: NCCL connects on first use, and
two ranks that connect in opposite orders wait for each other.

A chain starts a collective when another one has ended, and the rank's own thread does not wait for that:

    CPU    training   B0 ████████████████████████          issues the first, goes on computing
           chain         waits ▒▒▒▒▒│ starts the second    a thread, which sleeps in gloo
           gloo          first ══════ second ═══════

    GPU    host       B0 issues both, one after the other, and goes on
           chain         ▒▒▒▒▒▒▒▒▒▒▒ a stream that waits for the first; what is issued on it comes after
           NCCL          first ══════ second ═══════

Where a group's collectives must start in one order on all its members, only one chain may start them.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh

from trimaran.base.errors import ExecutionError, TrimaranError
from trimaran.base.timeline import COMMUNICATION, WAIT
from trimaran.launch.activity import ACTIVITY, STEP
from trimaran.launch.failures import is_peer_failure
from trimaran.launch.world import World, calm_event_loops
from trimaran.program.types import COLLECTIVES, SENDS, Instruction, Kind, Program
from trimaran.runtime.communication.shared_memory import Letterbox, Receiver, Sender, open_letterboxes
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.streams import Stamp, Streams

Start = Callable[[], Any]
"""Starts a collective, and gives what torch.distributed returned."""

_PATIENCE_S = 5.0


class Chain(Protocol):
    """Starts collectives after others."""

    def after(self, first: Any, start: Start) -> tuple[Any, Any]:
        """Start a second collective when the first has ended.

        Args:
            first: what torch.distributed returned for the first
            start: the second

        Returns:
            Both, to be waited for in place of what torch.distributed returned.
        """

    def close(self) -> None:
        """Start nothing more."""


class _Ended:
    """The first of two collectives: the chain's thread waits for it, and others for that thread."""

    def __init__(self, future: "Future[None]") -> None:
        self._future = future

    def wait(self) -> None:
        """Wait until it has ended."""
        self._future.result()

    def get_future(self) -> "_Ended":
        """Itself, for `then`."""
        return self

    def then(self, done: Callable[[Any], None]) -> None:
        """Call when it has ended, unless it failed."""
        self._future.add_done_callback(lambda ended: None if ended.exception() else done(ended))


class _Started:
    """The second of two collectives, once it has been started."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def wait(self) -> None:
        """Wait until it has been started and has ended."""
        self._future.result().wait()

    def get_future(self) -> "_Started":
        """Itself, for `then`."""
        return self

    def then(self, done: Callable[[Any], None]) -> None:
        """Call when it has ended, unless it failed."""

        def ask(started: "Future[Any]") -> None:
            if not started.exception():
                started.result().get_future().then(done)

        self._future.add_done_callback(ask)


class HostChain:
    """A thread that waits for one first collective after the other, in the order in which they were started."""

    def __init__(self) -> None:
        self._links: queue.SimpleQueue[tuple[Any, Start, Future[None], Future[Any]] | None] = queue.SimpleQueue()
        # A thread that sleeps in a collective which never ends must not keep the process.
        self._thread = threading.Thread(target=_follow, args=(self._links,), name="trimaran-chain", daemon=True)
        self._thread.start()

    def after(self, first: Any, start: Start) -> tuple[Any, Any]:
        """See `Chain`."""
        ended: Future[None] = Future()
        started: Future[Any] = Future()
        self._links.put((first, start, ended, started))
        return _Ended(ended), _Started(started)

    def close(self) -> None:
        """End the thread, once what it was given has ended."""
        self._links.put(None)
        self._thread.join(_PATIENCE_S)


def _follow(links: "queue.SimpleQueue[tuple[Any, Start, Future[None], Future[Any]] | None]") -> None:
    while (link := links.get()) is not None:
        first, start, ended, started = link
        try:
            first.wait()
            ended.set_result(None)
            started.set_result(start())
        except Exception as error:  # noqa: BLE001 whatever it is, those who wait are told
            for future in (ended, started):
                if not future.done():
                    future.set_exception(error)
        # Nothing may keep these alive until the next one comes.
        del link, first, start, ended, started


class DeviceChain:
    """A stream that waits, so that the host need not.

    Args:
        device: "cuda:<n>"
    """

    def __init__(self, device: str) -> None:
        self._stream = torch.cuda.Stream(torch.device(device))

    def after(self, first: Any, start: Start) -> tuple[Any, Any]:
        """See `Chain`."""
        with torch.cuda.stream(self._stream):
            first.wait()
            return first, start()

    def close(self) -> None:
        """Nothing is left to end."""


def open_chain(device: str) -> Chain:
    """The chain of a device.

    Args:
        device: "cpu" or "cuda:<n>"
    """
    return DeviceChain(device) if device.startswith("cuda") else HostChain()


Packed = Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]]
"""Flat tensors, each with those that it was made of."""

# torch 2.13 gave these other names, and warns of the old ones.
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""Gather equal parts into one tensor: `(whole, part, group, async_op)`."""

reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""Sum tensors and keep equal parts of the sum: `(part, whole, op, group, async_op)`."""


def pack(tensors: Sequence[torch.Tensor]) -> Packed:
    """One flat tensor of those of each dtype; a tensor that is alone is not copied."""
    found = []
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        alone = len(alike) == 1 and alike[0].is_contiguous()
        flat = alike[0].view(-1) if alone else torch.cat([tensor.reshape(-1) for tensor in alike])
        found.append((flat, alike))
    return found


def unpack(packed: Packed) -> None:
    """Copy what flat tensors hold into those that they were made of."""
    for flat, alike in packed:
        parts = flat.split([tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            if part.data_ptr() != tensor.data_ptr():
                tensor.copy_(part.view_as(tensor))


Group = tuple[int, ...]


class Channels:
    """The connections that programs need.

    Args:
        programs: all that will run
        world: this process's

    Attributes:
        control: process group of all ranks on the host; None: this process is alone
        agreement: between all ranks
    """

    def __init__(self, programs: Iterable[Program], world: World) -> None:
        self._world = world
        self._pairs: dict[bool, Any] = {}
        self._groups: dict[Group, Any] = {}
        self._meshes: list[DeviceMesh] = []
        self._boxes: dict[tuple[int, int], Letterbox] = {}
        self._chain: Chain | None = None
        self.control: Any = None
        self.agreement = ALONE
        if world.size == 1:
            return
        # For clocks, weights and agreements: on the host, whatever the device.
        timeout = timedelta(seconds=world.timeout_s)
        self.control = dist.new_group(backend="gloo", timeout=timeout)
        self.agreement = Agreement(world.rank, world.size, self.control)
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
        """Memory in which a message is packed without another copy; None: there is none.

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
        """Start to gather the shares of all ranks of a group into one tensor."""
        return self._start(all_gather, whole, shard, group=self._groups[group], async_op=True)

    def has_group(self, ranks: Group) -> bool:
        """Whether a collective of a program names these ranks."""
        return ranks in self._groups

    def group(self, ranks: Group) -> Any:
        """The process group of some ranks that a collective of a program names."""
        return self._groups[ranks]

    def mesh(self, ranks: Group) -> DeviceMesh:
        """The same ranks as a mesh of one dimension, for what is laid out over them.

        torch keeps what it knows of a mesh for good, under its names. So those of one that is gone are not used again,
        and what it keeps loses its group, with its threads and files, when the connections are closed.
        """
        group = self._groups[ranks]
        names = (f"ranks of {group.group_name}",)
        self._meshes.append(DeviceMesh.from_group(group, self._world.device.partition(":")[0], mesh_dim_names=names))
        return self._meshes[-1]

    def chain(self) -> Chain:
        """The chain of this rank; it is closed with the connections."""
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
        for mesh in self._meshes:
            getattr(mesh, "_pg_registry", {}).clear()  # torch 2.13
        self._meshes = []
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
    """Sizes of the messages of a step, or of all steps that are under way at once, by source and target [bytes]."""
    found: dict[tuple[int, int], list[int]] = {}
    # A stage begins this number of global batches before it needs the gradients of the first of them.
    steps = program.behind + 1
    for instruction in program:
        if instruction.kind in SENDS and instruction.peer is not None:
            found.setdefault((instruction.rank, instruction.peer), []).extend([instruction.nbytes] * steps)
    return found


def _room(sizes: Sequence[int]) -> int:
    """Room for all messages of a step, wherever in the ring the first one starts, each with some padding [bytes]."""
    return sum(sizes) + max(sizes, default=0) + _PADDING_BYTES * (len(sizes) + 2)


_PADDING_BYTES = 4096


@contextmanager
def in_contact(rank: int, what: str) -> Iterator[None]:
    """Turn a failure that another rank has caused into an error that says so; others are raised unchanged.

    Args:
        rank: of this process, for the message
        what: is done, for the message

    Raises:
        ExecutionError: another rank is gone, or silent for longer than the time-out
    """
    with ACTIVITY.waiting(what):
        try:
            yield
        except RuntimeError as error:
            if is_peer_failure(error):
                raise lost_peer(rank, what, error) from error
            raise


def wait_for(work: Any, rank: int, what: str, ranks: Sequence[int] = ()) -> None:
    """Wait for a piece of communication; on a GPU, make the current stream wait.

    Args:
        work: what torch.distributed returned
        rank: of this process, for the message
        what: for the message
        ranks: that take part; empty: all

    Raises:
        ExecutionError: another rank is gone, or silent for longer than the time-out
    """
    ACTIVITY.waits = (what, ranks)
    try:
        work.wait()
    except (RuntimeError, OSError) as error:
        raise lost_peer(rank, what, error, ranks) from error
    finally:
        ACTIVITY.waits = None
        ACTIVITY.started += 1


def lost_peer(rank: int, what: str, error: RuntimeError | OSError, ranks: Sequence[int] = ()) -> ExecutionError:
    """The error of a rank whose communication failed.

    Args:
        rank: of this process
        what: it did
        error: of the communication
        ranks: that take part; empty: all
    """
    detail = str(error).strip().splitlines()
    others = [str(one) for one in ranks if one != rank]
    whom = f"rank {', '.join(others)}" if others else "another rank"
    when = f" of step {ACTIVITY.steps}" if ACTIVITY.phase == STEP else ""
    return ExecutionError(
        f"rank {rank} lost contact with {whom} during {what}{when}: "
        f"{detail[-1] if detail else type(error).__name__}. See the logs of the other ranks for the cause",
        code="rank.lost-peer",
        rank=rank,
        peers=[one for one in ranks if one != rank],
        waited_for=what,
        step=ACTIVITY.steps,
        lost_peer=True,
    )


# ---------------------------------------------------------------------------------------------------------------------
# What ranks tell each other, so that all of them go on, or all of them end, in the same place


class Meeting:
    """Where the ranks of a user's loop come together before they exchange anything but a step.

    A rank that exchanged something else than the others would wait without an end, or end them. So it counts itself in
    their store first, in which each rank has put the step that it has begun.

    Args:
        rank: number of this rank
        size: number of ranks
        timeout_s: how long one waits for the others [s]
    """

    _made: ClassVar[int] = 0

    def __init__(self, rank: int, size: int, timeout_s: float) -> None:
        # Every rank makes the same ones in the same order.
        Meeting._made += 1
        name = f"trimaran-loop-{Meeting._made}"
        self._store = PrefixStore(name, dist.distributed_c10d._get_default_store()) if dist.is_initialized() else None
        self._rank, self._size, self._timeout_s, self._times = rank, size, timeout_s, 0
        self._says = size <= _MOST_SAYING or rank < 2

    def go_on(self, steps: int) -> None:
        """Say that this rank begins a step.

        Args:
            steps: that it has done
        """
        if self._store is not None and self._says:
            # The store may be gone with its rank, which the step meets too and tells better.
            with suppress(RuntimeError):
                self._store.set("begun", str(steps))

    def come(self, what: str, steps: int) -> bool:
        """Wait until all ranks have come, not to a step.

        Args:
            what: this rank is about to do, for messages
            steps: that it has done

        Returns:
            Whether they have; False: another one has begun the next step.

        Raises:
            ExecutionError: another rank is gone, or silent for longer than the time-out
        """
        if self._store is None:
            return True
        self._times += 1
        pause_s, began_s = 1e-4, time.monotonic()
        try:
            with ACTIVITY.waiting(what):
                here = self._store.add(f"meeting-{self._times}", 1)
                while here < self._size:
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    waited_s = time.monotonic() - began_s
                    asks = waited_s > _PATIENCE_S and self._store.check(["begun"])
                    if asks and int(self._store.get("begun")) >= steps:
                        return False
                    if waited_s > self._timeout_s:
                        raise RuntimeError(f"after {waited_s:.0f} s {here} of {self._size} ranks had come to it")
                    here = self._store.add(f"meeting-{self._times}", 0)
        except RuntimeError as error:
            raise lost_peer(self._rank, what, error) from error
        return True


_MOST_SAYING = 64
"""Ranks of which each says which step it begins; of more the first two do."""

_PATIENCE_S, _LONGEST_PAUSE_S = 2.0, 0.05
"""After this it is asked whether others have begun a step; and the longest pause between two looks [s]."""


class Agreement:
    """Exchanges values between all ranks, through host memory.

    Each method is called on every rank, in the same order.

    Args:
        rank: number of this rank
        size: number of ranks
        group: process group of all ranks on the host; None: this process is alone
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank = rank
        self.group = group
        self._size = size

    def gather_objects(self, said: Any, what: str) -> list[Any]:
        """A value from each rank, by rank.

        Args:
            said: by this rank; it is pickled
            what: it is about, for messages

        Raises:
            ExecutionError: another rank is gone
        """
        if self.group is None:
            return [said]
        heard: list[Any] = [None] * self._size
        with in_contact(self.rank, what):
            dist.all_gather_object(heard, said, group=self.group)
        return heard

    def gather_integers(self, said: Sequence[int], what: str) -> list[list[int]]:
        """Some integers from each rank, by rank; every rank gives the same number of them.

        Args:
            said: by this rank, each of 64 bits
            what: they are about, for messages

        Raises:
            ExecutionError: another rank is gone
        """
        if self.group is None:
            return [list(said)]
        mine = torch.tensor(said, dtype=torch.int64)
        heard = [torch.empty_like(mine) for _ in range(self._size)]
        with in_contact(self.rank, what):
            dist.all_gather(heard, mine, group=self.group)
        return [one.tolist() for one in heard]

    def first_rank(self, own: bool) -> int | None:
        """The first rank on which something is true; None: there is none.

        Args:
            own: whether it is true on this rank

        Raises:
            ExecutionError: another rank is gone
        """
        heard = self.gather_integers([own], "a question to all ranks")
        return next((rank for rank, (true,) in enumerate(heard) if true), None)

    @contextmanager
    def alike(self, what: str) -> Iterator[None]:
        """Around work of this rank alone, in which nothing is communicated: an error of one rank is one of all.

        So no rank goes on to an exchange that another one does not come to.

        Args:
            what: it is about, for messages

        Raises:
            TrimaranError: of this rank; or what another one raised, with its number
        """
        fault: TrimaranError | None = None
        try:
            yield
        except TrimaranError as error:
            fault = error
        raise_first(self.gather_objects(fault, what), fault)


def raise_first(faults: Sequence[TrimaranError | None], own: TrimaranError | None) -> None:
    """Raise this rank's error, else the first of another rank, where there is one.

    Args:
        faults: of the ranks
        own: of this rank

    Raises:
        TrimaranError: there is one
    """
    for rank, other in enumerate(faults):
        if other is not None:
            raise own or type(other)(f"rank {rank}: {other.message}", code=other.code, **other.figures)


ALONE = Agreement()
"""Of a process that is alone."""


# ---------------------------------------------------------------------------------------------------------------------
# Communication that has been started and not yet been waited for


@dataclass(slots=True, kw_only=True)
class Pending:
    """One instruction under way.

    Attributes:
        token: of the instruction
        nbytes: moved since `start` [bytes]
        works: what torch.distributed returned
        buffers: kept alive until they have been sent or filled
        start: when it was posted
        ranks: that take part
        finish: to do when it has ended: unpack, store; it may start more of the same instruction
        end: when it ended, where that is known
    """

    token: str
    nbytes: int
    works: Sequence[Any]
    buffers: Sequence[torch.Tensor]
    start: Stamp
    ranks: Sequence[int] = ()
    finish: Callable[[], None] = lambda: None
    end: Stamp = None


class InFlight:
    """All communication of a rank that is under way, by token.

    Args:
        rank: number of the rank
        streams: its device's
        recorder: gets a span for each that ends, and for each wait
    """

    def __init__(self, rank: int, streams: Streams, recorder: RunRecorder) -> None:
        self._rank = rank
        self._streams = streams
        self._recorder = recorder
        self._pending: dict[str, list[Pending]] = {}
        ACTIVITY.begun = self._pending

    def add(
        self,
        instruction: Instruction,
        works: Sequence[Any],
        buffers: Sequence[torch.Tensor],
        *,
        start: Stamp,
        nbytes: int | None = None,
        blocking: bool = False,
    ) -> Pending:
        """Keep what was just started. A wait for an instruction waits for all that was added for it.

        Args:
            instruction: whose communication it is
            works: what torch.distributed returned
            buffers: kept alive until they have been sent or filled
            start: when it was posted
            nbytes: moved since `start` [bytes]; None: the buffers
            blocking: from `start` to now the rank packed and handed over data, and computed nothing
        """
        token = instruction.token
        size = sum(buffer.nbytes for buffer in buffers) if nbytes is None else nbytes
        ranks = instruction.group if instruction.peer is None else (instruction.peer,)
        pending = Pending(token=token, nbytes=size, works=works, buffers=buffers, start=start, ranks=ranks)
        self._pending.setdefault(token, []).append(pending)
        if blocking:
            self._recorder.add(token, WAIT, start, self._recorder.stamp())
        # gloo does not tell when a gather or a scatter has ended; of one that others follow their chain tells.
        told = instruction.kind not in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER) or isinstance(works[0], _Ended)
        if self._recorder.watches(collective=instruction.kind in COLLECTIVES and told):

            def done(stamp: Stamp) -> None:
                pending.end = stamp

            for work in works:
                self._streams.watch(work, f"{instruction.kind} {instruction.group or instruction.peer}", done)
        return pending

    def add_following(
        self,
        instruction: Instruction,
        first: Any,
        begin: Start,
        buffers: Sequence[torch.Tensor],
        *,
        chain: Chain,
        nbytes: int | None = None,
    ) -> Any:
        """Start a collective when another one has ended.

        Args:
            instruction: whose communication starts later
            first: what torch.distributed returned for the other one
            begin: starts it
            buffers: as for `add`
            chain: waits for the first
            nbytes: as for `add` [bytes]

        Returns:
            What is waited for in the place of `first`.
        """
        begun: list[Stamp] = []

        def start() -> Any:
            begun.append(self._recorder.stamp())
            return begin()

        ended, following = chain.after(first, start)
        pending = self.add(instruction, [following], buffers, start=self._recorder.stamp(), nbytes=nbytes)

        def note_start() -> None:
            pending.start = begun[0]

        pending.finish = note_start
        return ended

    def wait(self, token: str) -> None:
        """Wait for one to its end; nothing happens where it is not under way.

        Args:
            token: of the instruction
        """
        while token in self._pending:
            self.advance(token)

    def advance(self, token: str) -> None:
        """Wait for what one has started last, which may then start more.

        Args:
            token: of the instruction
        """
        found = self._pending.pop(token, None)
        if found is None:
            return
        before = self._recorder.stamp()
        for pending in found:
            for work in pending.works:
                wait_for(work, self._rank, token, pending.ranks)
        after = self._recorder.stamp()
        for pending in found:
            pending.finish()
        if token not in self._pending:
            end = after if found[-1].end is None else found[-1].end
            nbytes = sum(pending.nbytes for pending in found)
            self._recorder.add(token, COMMUNICATION, found[0].start, end, nbytes)
        self._recorder.add(token, WAIT, before, after)

    def wait_for_all(self, chosen: Callable[[str], bool] = lambda token: True) -> None:
        """Wait for all, in the order in which they were started.

        Args:
            chosen: leaves out those for whose tokens it is False
        """
        for token in [token for token in self._pending if chosen(token)]:
            self.wait(token)

    def forget(self) -> None:
        """Drop all, after a failure."""
        self._pending.clear()
