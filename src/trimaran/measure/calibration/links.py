"""Durations of messages and collectives between the ranks of this machine.

Each transfer is timed from the moment its last member is ready to the moment its last member has the result. On one
machine the monotonic clock is the same for all processes, so the times of the ranks are compared directly. A barrier
before each transfer keeps one from running into the next.

    rank 0   ──barrier──┤ start ══════ all-reduce ═════╡ end
    rank 1   ────barrier───┤ start ═══ all-reduce ══════╡ end
                           └────── the sample ──────────┘

The number of repeats depends on the duration of one, so that a slow link takes about as long to measure as a fast one:

    first pass   all transfers, from small to large     gives the duration of each; a size that would take longer than
                                                        `LONGEST_S` is left out, and all larger ones
    rounds       each as often as fits a short time     as many rounds as fit the rest of `BOX_S`

A long transfer spends its time on bytes on the link: beyond the last size the curve continues in a straight line. Three
samples a round are enough for it, and from `_LONG_S` on one is, without a warm-up.

Runs inside the ranks; imports torch.

The time of a rank's thread for a transfer: packing, posting, and storing what arrived.

On a CPU that thread computes nothing meanwhile, so the rank loses this time even where the transfer itself overlaps
with compute. It is measured with the runtime's records of pending communication, by the clock of the thread, while the
transfer overlaps with compute as it does in a pipeline:

    rank 0   ──barrier──┤ compute ┤ send ┤ compute ────────────┤ wait ┤      send + wait is the sample
    rank 1   ──barrier──┤ receive ┤ compute ───────────────────┤ wait ┤      receive + wait is the sample

Runs inside the ranks; imports torch.

The time of a rank's thread for a compressed bucket of gradients, while every rank does the same.

    encode    from a complete bucket to what is sent
    decode    from the sums to the bucket, with what PowerSGD computes between its two sums

The codecs are those of the runtime, without a process group: their time does not depend on the sums. The unit of
PowerSGD is one matrix. Buckets are taken in turn from more memory than most caches hold, as the gradients of a backward
and the errors of the step before are.

Runs inside the ranks; imports torch.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import TypeVar

import torch
import torch.distributed as dist

from trimaran.graph.types import Affine, TensorSpec
from trimaran.launch.world import World, calm_event_loops
from trimaran.measure.findings import Rounds, summarize
from trimaran.measure.rounds import largest, meet
from trimaran.pricing.gradient_compression import coding_keys
from trimaran.pricing.tables import Curve, CurveKey
from trimaran.pricing.transfers import HOST, HOST_RECEIVE, HOST_SEND, QUEUED, SEND
from trimaran.program.gradients import Compression
from trimaran.program.types import Instruction, Kind
from trimaran.runtime.communication.channels import InFlight, Pending, all_gather, pack, reduce_scatter, unpack
from trimaran.runtime.communication.compression import GradientCodec, open_codec
from trimaran.runtime.communication.point_to_point import MessageLayout
from trimaran.runtime.communication.shared_memory import Letterbox, Receiver, Sender, open_letterboxes
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.streams import open_streams

HANDLING_SIZES = (16, 128 * 1024, 1024 * 1024, 4 * 1024 * 1024)
"""Sizes at which the time of the thread is measured [bytes]."""

_WARM_UP = 1
_WIDTH = 192
_BEFORE = 4
_MEANWHILE = 16


def measure_handling(
    world: World,
    key: CurveKey,
    nbytes: int,
    group: dist.ProcessGroup,
    boxes: Sequence[Letterbox] = (),
    *,
    repeats: int,
) -> list[float]:
    """Time of the rank's thread for transfers of one size.

    Args:
        world: this rank; all members of the group call this
        key: which transfer, and for a message which end
        nbytes: size of the transfer [bytes]
        group: of two ranks
        boxes: this rank's end of the letterbox between them, where there is one
        repeats: transfers that count; one before them does not

    Returns:
        One figure a transfer, the same list on every rank [s].
    """
    exchange = _MeasuredExchange(world, nbytes, group, boxes)
    samples: list[float] = []
    for number in range(_WARM_UP + repeats):
        dist.barrier(group)
        seconds = exchange.reduce() if key.kind not in (HOST_SEND, HOST_RECEIVE) else exchange.message()
        if number >= _WARM_UP:
            samples.append(seconds)
    shared = torch.tensor(samples, dtype=torch.float64)
    dist.broadcast(shared, src=1 if key.kind == HOST_RECEIVE else 0, group=group)
    return [float(value) for value in shared]


class _MeasuredExchange:
    """One transfer after another, as the interpreter does them."""

    def __init__(self, world: World, nbytes: int, group: dist.ProcessGroup, boxes: Sequence[Letterbox] = ()) -> None:
        self._box = boxes[0] if boxes else None
        count = max(1, nbytes // 4)
        spec = TensorSpec(name="x", shape=(count,), dtype="float32", nbytes=Affine(fixed=4 * count))
        streams = open_streams(world.device)
        self._rank, self._device, self._group = world.rank, world.device, group
        self._layout = MessageLayout([spec], 1)
        self._tensor = torch.zeros(count, device=world.device)
        self._piece = torch.ones(_WIDTH, _WIDTH, device=world.device)
        self._recorder = RunRecorder(world.rank, streams, None)
        self._instruction = Instruction(kind=Kind.SEND_FORWARD, rank=world.rank, peer=1 - world.rank)
        self._in_flight = InFlight(world.rank, streams, self._recorder)

    def message(self) -> float:
        """One message from rank 0 to rank 1; seconds of this rank's thread."""
        return self._timed(self._send, before=_BEFORE) if self._rank == 0 else self._timed(self._receive)

    def reduce(self) -> float:
        """One all-reduce; seconds of this rank's thread."""
        return self._timed(lambda: self._add(dist.all_reduce(self._tensor, group=self._group, async_op=True)))

    def _timed(self, post: Callable[[], object], *, before: int = 0) -> float:
        self._compute(before)
        started = time.thread_time_ns()
        post()
        posted = time.thread_time_ns() - started
        self._compute(_MEANWHILE)
        started = time.thread_time_ns()
        self._in_flight.wait(self._instruction.token)
        self._recorder.discard()
        return (posted + time.thread_time_ns() - started) * 1e-9

    def _send(self) -> None:
        if isinstance(self._box, Sender):
            room = self._box.room(self._layout.nbytes)
            self._add(self._box.send(self._layout.pack({"x": self._tensor}, self._device, into=room)))
            return
        buffer = self._layout.pack({"x": self._tensor}, self._device)
        self._add(dist.isend(buffer, 1, group=self._group), buffer)

    def _receive(self) -> None:
        buffer = torch.empty(self._layout.nbytes, dtype=torch.uint8, device=self._device)
        if isinstance(self._box, Receiver):
            pending = self._add(self._box.receive(buffer), buffer)
        else:
            pending = self._add(dist.irecv(buffer, 0, group=self._group), buffer)
        pending.finish = lambda: self._store(buffer)

    def _store(self, buffer: torch.Tensor) -> None:
        for tensor in self._layout.unpack(buffer).values():
            tensor.requires_grad_(True)

    def _add(self, work: object, *buffers: torch.Tensor) -> Pending:
        start = self._recorder.stamp()
        return self._in_flight.add(self._instruction, [work], buffers, start=start, blocking=True)

    def _compute(self, pieces: int) -> None:
        for _ in range(pieces):
            torch.mm(self._piece, self._piece)


_Found = TypeVar("_Found")

QUEUE = 128
"""Transfers that are started at once, where a curve is of queued ones: the number of gradients of a deep network.

Threads that are kept busy need not be woken: of 128 broadcasts one took 125 µs, of 32 it took 209.
"""

OF_16_BITS = {f"{Kind.ALL_REDUCE} bf16": torch.bfloat16, f"{Kind.ALL_REDUCE} fp16": torch.float16}
"""Types of what is summed, by the kinds of curves that are not of float32."""

_SHARED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
_COLD_BYTES = 32 * 1024 * 1024
_MOST_PLACES = 20


def make_transfer(
    world: World,
    key: CurveKey,
    nbytes: int,
    group: dist.ProcessGroup,
    boxes: Sequence[Letterbox],
    memory: torch.Tensor,
) -> Callable[[], None]:
    """A function that runs a transfer to its end, each time on other memory.

    Args:
        world: this rank, a member of the group
        key: which transfer
        nbytes: size of it [bytes]
        group: of the ranks that take part
        boxes: this rank's end of the letterbox between ranks 0 and 1, where there is one
        memory: for transfers up to the largest size, more than most caches hold
    """
    if key.kind == SEND and boxes:
        return partial(_pass, boxes[0])
    buffers = _buffers(nbytes, memory)
    if key.kind == SEND:
        return (lambda: _send(next(buffers))) if world.rank == 0 else (lambda: _receive(next(buffers)))
    if key.kind == f"{Kind.BROADCAST}{QUEUED}":
        return partial(_hand_out, world, buffers, group)
    if key.kind.endswith(QUEUED):
        return partial(_queue_reduces, buffers, group)
    if key.kind == Kind.BROADCAST:
        return lambda: _finish(dist.broadcast(next(buffers), src=0, group=group, async_op=True))
    if key.kind in _SHARED:
        return lambda: _share(key.kind, next(buffers), world, group)
    dtype = OF_16_BITS.get(key.kind, torch.float32)
    return lambda: _finish(dist.all_reduce(next(buffers).view(dtype), group=group, async_op=True))


def _buffers(nbytes: int, memory: torch.Tensor) -> Iterator[torch.Tensor]:
    """Buffers of a size, spread over the memory, as gradients and activations are."""
    count = max(1, nbytes // 4)
    places = min(len(memory) // count, _MOST_PLACES)
    step = len(memory) // places
    return cycle([memory[place * step : place * step + count] for place in range(places)])


def _share(kind: str, whole: torch.Tensor, world: World, group: dist.ProcessGroup) -> None:
    """Gather a tensor of which each rank has a part, or scatter the sum of such tensors; padded, as users of it do."""
    ranks = dist.get_world_size(group)
    rows = -(-len(whole) // ranks)
    padded = whole if len(whole) == rows * ranks else whole.new_zeros(rows * ranks)
    own = padded.narrow(0, world.rank * rows, rows)
    if kind == Kind.ALL_GATHER:
        _finish(all_gather(padded, own, group=group, async_op=True))
    else:
        _finish(reduce_scatter(torch.empty_like(own), padded, group=group, async_op=True))


def _queue_reduces(buffers: Iterator[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Start several reductions at once, each to the next rank, and wait for all."""
    roots = cycle(range(dist.get_world_size(group)))
    works = [dist.reduce(next(buffers), next(roots), group=group, async_op=True) for _ in range(QUEUE)]
    for work in works:
        _finish(work)


def _hand_out(world: World, buffers: Iterator[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Start several broadcasts at once, each from the next rank, and wait for all, as a step hands out its weights.

    Nothing is computed meanwhile, so what the rank's thread does for each is part of its time.
    """
    members = tuple(range(dist.get_world_size(group)))
    streams = open_streams(world.device)
    recorder = RunRecorder(world.rank, streams, None)
    in_flight = InFlight(world.rank, streams, recorder)
    posted = []
    for number in range(QUEUE):
        root = number % len(members)
        instruction = Instruction(
            kind=Kind.BROADCAST, rank=world.rank, group=members, root=root, label=f"w{number}", nbytes=0
        )
        start = recorder.stamp()
        packed = pack([next(buffers)])
        flats = [flat for flat, _ in packed]
        works = [dist.broadcast(flat, root, group=group, async_op=True) for flat in flats]
        pending = in_flight.add(instruction, works, flats, start=start, blocking=True)
        if root != world.rank:
            pending.finish = partial(unpack, packed)
        posted.append(instruction.token)
    for token in posted:
        in_flight.wait(token)
    recorder.discard()


def _pass(box: Letterbox) -> None:
    """Tell that a message is there; the copies in and out are done by the ranks' threads (`measure_handling`)."""
    byte = torch.zeros(1, dtype=torch.uint8)
    if isinstance(box, Sender):
        box.send(byte)
    else:
        box.receive(byte).wait()


def _send(tensor: torch.Tensor) -> None:
    _finish(dist.isend(tensor, 1))


def _receive(tensor: torch.Tensor) -> None:
    _finish(dist.irecv(tensor, 0))


def _finish(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


SIZES = (16, 1024, 16 * 1024, 128 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024)
"""Sizes at which curves are measured [bytes]."""

BOX_S = 10.0
"""Time for all transfers of a link together [s]; one round at least is run, where that takes longer."""

LONGEST_S = 0.3
"""No size is measured that would take longer, in a straight line through the two sizes before it [s]."""

ROUNDS = 3
_SAMPLES_S = 0.03
# Most of this time is the compute during the transfer, which does not count.
_HANDLING_S = 0.1
_LEAST_REPEATS, _MOST_REPEATS = 3, 20
# What takes longer is run once a round.
_LONG_S = 0.1
_LEAST_TELLING = 128 * 1024
_LARGE = 4 * 1024 * 1024
_LARGEST_QUEUED = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class _CurvePoint:
    """A size of a curve.

    Attributes:
        key: of the curve
        nbytes: the size [bytes]
        seconds: that one takes with all that is around it, the same on every rank [s]
        first: what was measured in the first pass
        rounds: what was measured after it
    """

    key: CurveKey
    nbytes: int
    seconds: float
    first: list[float] = field(default_factory=list)
    rounds: Rounds = field(default_factory=list)

    @property
    def repeats(self) -> int:
        """How often it is run in a round."""
        box_s = _HANDLING_S if self.key.kind.endswith(HOST) else _SAMPLES_S
        least = _LEAST_REPEATS if self.seconds < _LONG_S else 1
        return max(least, min(_MOST_REPEATS, int(box_s / self.seconds)))

    @property
    def round_s(self) -> float:
        """Its time in a round, the warm-up included [s]; `seconds` of handling contains a warm-up already."""
        untimed = 0 if self.key.kind.endswith(HOST) else _untimed(self.repeats)
        return (untimed + self.repeats) * self.seconds


def measure_curves(world: World, keys: Sequence[CurveKey], *, sizes: Sequence[int] = SIZES) -> dict[CurveKey, Curve]:
    """Time the transfers that are asked for.

    Args:
        world: this rank; all ranks call this with the same keys
        keys: which transfers, each between the first ranks
        sizes: ascending; those that take too long are left out [bytes]

    Returns:
        The curves, on every rank.
    """
    bench = _Bench(world, keys, sizes)
    started_s = time.perf_counter()
    points = [point for key in keys for point in _first_pass(bench, key, sizes)]
    spent_s = largest(world, time.perf_counter() - started_s)
    rounds = _count_rounds(spent_s, sum(point.round_s for point in points))
    for _ in range(rounds):
        for point in points:
            point.rounds.append(bench.run(point.key, point.nbytes, point.repeats))
    bench.close()
    return _curves(points, how=f"{world.backend}, {rounds} rounds")


def _first_pass(bench: "_Bench", key: CurveKey, sizes: Sequence[int]) -> list[_CurvePoint]:
    """The sizes of a curve that do not take too long, each with what it takes."""
    points: list[_CurvePoint] = []
    for nbytes in _sizes(key, sizes):
        if _expected_s(points, nbytes) > LONGEST_S:
            break
        if not points:
            bench.run(key, nbytes, 1)  # connects
        seconds, first = bench.timed(key, nbytes)
        if seconds < _SAMPLES_S:
            # The first one takes longer, which would give a short transfer too few repeats.
            seconds, first = bench.timed(key, nbytes)
        points.append(_CurvePoint(key=key, nbytes=nbytes, seconds=seconds, first=first))
    return points


def _expected_s(points: Sequence[_CurvePoint], nbytes: int) -> float:
    """Expected time of the next size, in a straight line through the two before it [s].

    0 where these are too small to tell: what scheduling adds to them differs by more than what their bytes take.
    """
    if len(points) < 2 or points[-1].nbytes < _LEAST_TELLING:
        return 0.0
    before, last = points[-2:]
    slope = max(0.0, last.seconds - before.seconds) / (last.nbytes - before.nbytes)
    return last.seconds + slope * (nbytes - last.nbytes)


def _count_rounds(spent_s: float, round_s: float) -> int:
    """How many rounds fit the rest of the box: at least two, or one where one fills it."""
    least = 2 if spent_s + round_s < BOX_S else 1
    return max(least, min(ROUNDS, int((BOX_S - spent_s) / max(round_s, 1e-9))))


def _curves(points: Iterable[_CurvePoint], *, how: str) -> dict[CurveKey, Curve]:
    curves: dict[CurveKey, Curve] = {}
    for point in points:
        # One round alone would have an interval without width.
        rounds = point.rounds if len(point.rounds) > 1 else [point.first, *point.rounds]
        cost = summarize(rounds, how=how, waits=True)
        curves[point.key] = (*curves.get(point.key, ()), (point.nbytes, cost))
    return curves


class _Bench:
    """Runs transfers on all ranks and times them.

    Args:
        world: this rank; all ranks call everything here in the same order
        keys: which transfers
        sizes: up to the last of these [bytes]
    """

    def __init__(self, world: World, keys: Sequence[CurveKey], sizes: Sequence[int]) -> None:
        self._world = world
        self._groups = {ranks: dist.new_group(list(range(ranks))) for ranks in sorted({key.ranks for key in keys})}
        self._memory = torch.zeros(max(*sizes, _COLD_BYTES) // 4, dtype=torch.float32, device=world.device)
        calm_event_loops()
        self._boxes = letterboxes(world, sizes)

    def run(self, key: CurveKey, nbytes: int, repeats: int) -> list[float]:
        """Durations of `repeats` transfers, the same list on every rank [s]."""
        world, group = self._world, self._groups[key.ranks]
        takes_part = world.rank < key.ranks
        if key.kind.endswith(HOST):
            own = measure_handling(world, key, nbytes, group, self._boxes, repeats=repeats) if takes_part else []
            return _of_rank_0(own, world)
        times: list[tuple[float, float]] = []
        if takes_part:
            transfer = make_transfer(world, key, nbytes, group, self._boxes, self._memory)
            untimed = _untimed(repeats)
            times = [_time_once(transfer, world, group) for _ in range(untimed + repeats)][untimed:]
        depth = QUEUE if key.kind.endswith(QUEUED) else 1
        return [seconds / depth for seconds in _last_to_last(times, world)]

    def timed(self, key: CurveKey, nbytes: int) -> tuple[float, list[float]]:
        """Time of one on the slowest rank with its overhead, and its duration; the same on every rank [s]."""
        started_s = time.perf_counter()
        durations = self.run(key, nbytes, 1)
        return largest(self._world, time.perf_counter() - started_s), durations

    def close(self) -> None:
        """End the letterboxes."""
        for box in self._boxes:
            box.close()


def _untimed(repeats: int) -> int:
    """Transfers that are run before those that count: a connection that was idle starts slowly."""
    return 1 if repeats > 1 else 0


def _sizes(key: CurveKey, sizes: Sequence[int]) -> Sequence[int]:
    if key.kind.endswith(QUEUED):
        return [size for size in sizes if size <= _LARGEST_QUEUED]
    if key.kind in OF_16_BITS:
        # Larger ones follow the curve of float32.
        return [size for size in sizes if size <= _LARGE]
    return [size for size in sizes if size in HANDLING_SIZES] if key.kind.endswith(HOST) else sizes


def letterboxes(world: World, sizes: Sequence[int]) -> list[Letterbox]:
    """Between ranks 0 and 1, as the runtime has them: one on each of them, or none.

    Args:
        world: this rank; all ranks call this
        sizes: of messages [bytes]
    """
    if world.size < 2 or world.device != "cpu":
        return []
    return list(open_letterboxes({(0, 1): 2 * max(*sizes, *HANDLING_SIZES)}, world, dist.group.WORLD).values())


def _time_once(transfer: Callable[[], None], world: World, group: dist.ProcessGroup) -> tuple[float, float]:
    dist.barrier(group)
    synchronize(world)
    start_s = time.perf_counter()
    transfer()
    synchronize(world)
    return start_s, time.perf_counter()


def synchronize(world: World) -> None:
    """Wait until the device of this rank has done what it was given; nothing to do on a CPU."""
    if world.device != "cpu":
        torch.cuda.synchronize()


def _of_rank_0(found: _Found, world: World) -> _Found:
    """The result of rank 0, on every rank."""
    if world.size == 1:
        return found
    shared = [found]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def _last_to_last(times: Iterable[tuple[float, float]], world: World) -> list[float]:
    gathered: list[list[tuple[float, float]]] = [[] for _ in range(world.size)]
    dist.all_gather_object(gathered, list(times))
    members = [entries for entries in gathered if entries]
    return [
        max(end_s for _, end_s in together) - max(start_s for start_s, _ in together)
        for together in zip(*members, strict=True)
    ]


ENCODING_SIZES = (4 * 1024, 64 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024)
"""Sizes of a bucket, and of a matrix with PowerSGD [bytes]."""
_ENCODING_WARM_UP = 2
_MATRICES = 4
_MOST_BYTES = 16 * 1024 * 1024
_NUMBER_BYTES = 4

_Pass = Callable[[], tuple[float, float]]


def measure_encoding(
    world: World, compressions: Sequence[Compression], *, sizes: Sequence[int] = ENCODING_SIZES
) -> dict[CurveKey, Curve]:
    """Time the encoding and the decoding of each of some compressions.

    Args:
        world: this rank; all ranks call this with the same compressions
        compressions: how gradients may be sent
        sizes: of a bucket, or a matrix, ascending [bytes]

    Returns:
        The curves of rank 0, on every rank.
    """
    places = [(number, nbytes) for number in range(len(compressions)) for nbytes in sizes]
    found: dict[tuple[int, int], tuple[Rounds, Rounds]] = {place: ([], []) for place in places}
    for _ in range(ROUNDS):
        for number, nbytes in places:
            encodes, decodes = _measure_size(world, compressions[number], nbytes)
            found[number, nbytes][0].append(encodes)
            found[number, nbytes][1].append(decodes)
    how = f"{ROUNDS} rounds, {world.size} busy"
    curves: dict[CurveKey, Curve] = {}
    for number, compression in enumerate(compressions):
        for part, key in enumerate(coding_keys(compression)):
            curves[key] = tuple((size, summarize(found[number, size][part], how=how)) for size in sizes)
    return _of_rank_0(curves, world)


def _measure_size(world: World, compression: Compression, nbytes: int) -> tuple[list[float], list[float]]:
    """Durations of encoding and decoding buckets, or matrices, of one size [s, s]."""
    units = max(1, min(_MATRICES, _MOST_BYTES // nbytes)) if compression.method == "powersgd" else 1
    passes = _passes(world, compression, nbytes, units)
    meet(world)
    for _ in range(_ENCODING_WARM_UP):
        next(passes)()
    seconds = sum(next(passes)())
    repeats = max(_LEAST_REPEATS, min(_MOST_REPEATS, int(_SAMPLES_S / max(seconds, 1e-6))))
    meet(world)
    times = [next(passes)() for _ in range(repeats)]
    return [encode_s / units for encode_s, _ in times], [decode_s / units for _, decode_s in times]


def _passes(world: World, compression: Compression, nbytes: int, units: int) -> Iterator[_Pass]:
    """Encodings of one bucket after another, each with its own errors."""
    codec = open_codec(compression, replicas=max(2, world.size), seed=0)
    rows = _rows(nbytes) if compression.method == "powersgd" else 1
    columns = max(1, nbytes // _NUMBER_BYTES // rows)
    places = max(1, min(_COLD_BYTES // (units * nbytes), _MOST_REPEATS))
    generator = torch.Generator().manual_seed(world.rank)
    made = []
    for _ in range(places):
        parameters = [torch.empty(rows, columns, device=world.device) for _ in range(units)]
        gradients = torch.randn(units * rows * columns, generator=generator).to(world.device)
        made.append((gradients, parameters))
    return cycle([_encoding_pass(world, codec, gradients, parameters) for gradients, parameters in made])


def _encoding_pass(
    world: World, codec: GradientCodec, gradients: torch.Tensor, parameters: Sequence[torch.Tensor]
) -> _Pass:
    def run() -> tuple[float, float]:
        synchronize(world)
        start_s = time.perf_counter()
        rounds = codec.rounds(gradients, parameters)
        next(rounds)
        synchronize(world)
        encoded_s = time.perf_counter()
        for _ in rounds:
            pass
        synchronize(world)
        return encoded_s - start_s, time.perf_counter() - encoded_s

    return run


def _rows(nbytes: int) -> int:
    """Rows of a matrix that is a square, or nearly.

    Example:
        >>> _rows(4096), _rows(8192)
        (32, 32)
    """
    numbers = max(1, nbytes // _NUMBER_BYTES)
    return 1 << ((numbers.bit_length() - 1) // 2)
