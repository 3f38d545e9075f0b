"""A program with real communication and simulated compute, for more ranks than there are cores.

The instructions of a rank are issued in the order of its list, as in a run. Compute, loads and updates are pauses of
their cost; messages and collectives move the program's bytes through the same process groups as a run. A mark starts
communication in the middle of a pause, and a pause is longer by the time for which one of its marks waits. So a program
for eight devices runs on two cores, on rate-limited links, and shows what the simulator does not know of messages: when
they are really issued, how they share links, what the transport does.

Not emulated: memory, and compute that communication slows down.

A thread of Linux that sleeps wakes up late by its timer slack, 50 µs by default, and by the time of the scheduler. The
slack is set to its minimum; the rest of the delay is in the record like any other time.
"""

import contextlib
import ctypes
import gc
import time
from collections.abc import Sequence
from functools import partial

import torch

from trimaran.base.errors import InputError
from trimaran.base.timeline import COMPUTE, HOST, Timeline
from trimaran.launch.world import World
from trimaran.pricing.types import ProgramCosts
from trimaran.program.layout import is_chained
from trimaran.program.types import RECEIVES, SENDS, Instruction, Kind, Mark, Program
from trimaran.runtime.communication.channels import Channels, InFlight
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.streams import open_streams

# From linux/prctl.h.
_SET_TIMER_SLACK = 29


def sharpen_timers() -> None:
    """Let pauses of this thread end as soon as the kernel can; does nothing where that is not Linux."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)


def pause_until(moment_ns: int) -> None:
    """Sleep until a moment; returns at once where it is past.

    Args:
        moment_ns: of `time.perf_counter_ns` [ns]
    """
    left_ns = moment_ns - time.perf_counter_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)


class Emulator:
    """One rank of an emulated program.

    Args:
        program: of a training step
        costs: durations of what is not communication, and where its marks lie
        world: this process's

    Raises:
        InputError: the world has another size than the program, or an instruction has no cost
    """

    def __init__(self, program: Program, costs: ProgramCosts, world: World) -> None:
        if len(program.ranks) != world.size:
            raise InputError(
                f"the program is for {len(program.ranks)} ranks, this world has {world.size}",
                code="emulation.wrong-world-size",
                program=len(program.ranks),
                world=world.size,
            )
        self._instructions = program.ranks[world.rank]
        self._pauses_ns = _pauses(self._instructions, costs)
        self._marks = {item.token: _in_order(item, costs) for item in self._instructions if item.marks}
        self._started_by = _started_by_marks(self._instructions)
        self._named = {item.token: item for item in self._instructions}
        self._followers = {name: item for item in self._instructions if is_chained(item) for name in item.after}
        self._channels = Channels([program], world)
        self._buffers = {item.token: _buffer(item) for item in self._instructions if item.communicates}
        streams = open_streams(world.device)
        self._recorder = RunRecorder(world.rank, streams, self._channels.control)
        self._in_flight = InFlight(world.rank, streams, self._recorder)
        self._steps = 0
        sharpen_timers()
        gc.collect()
        gc.freeze()

    def step(self) -> None:
        """One step of the program.

        Raises:
            ExecutionError: another rank is gone
        """
        marked = {token for tokens in self._started_by.values() for token in tokens}
        for instruction in self._instructions:
            if instruction.token in marked or is_chained(instruction):
                continue
            for name in instruction.after:
                self._in_flight.wait(name)
            if instruction.communicates:
                self._start(instruction)
            else:
                self._pause(instruction)
        self._in_flight.wait_for_all()
        self._recorder.end_step(self._steps)
        self._steps += 1

    def timeline(self) -> Timeline:
        """What happened, all ranks together: on rank 0; on the others an empty timeline."""
        return self._recorder.timeline()

    def close(self) -> None:
        """End the connections."""
        self._channels.close()

    def _pause(self, instruction: Instruction) -> None:
        start = self._recorder.stamp()
        total_ns = self._pauses_ns[instruction.token]
        begun_ns = time.perf_counter_ns()
        for fraction, mark in self._marks.get(instruction.token, ()):
            at_ns = round(fraction * total_ns)
            pause_until(begun_ns + at_ns)
            for token in self._started_by.get((instruction.token, mark.name), ()):
                self._start(self._named[token])
            if mark.waits_for:
                self._in_flight.wait(mark.waits_for)
                # The wait does not count as pause.
                begun_ns = max(begun_ns, time.perf_counter_ns() - at_ns)
        pause_until(begun_ns + total_ns)
        stream = HOST if instruction.stream == HOST else COMPUTE
        self._recorder.add(instruction.token, stream, start, self._recorder.stamp(), instruction.nbytes)

    def _start(self, instruction: Instruction) -> None:
        start = self._recorder.stamp()
        buffers = self._buffers[instruction.token]
        work = _issue(instruction, buffers, self._channels)
        follower = self._followers.get(instruction.token)
        if follower is not None:
            following = self._buffers[follower.token]
            work = self._in_flight.add_following(
                follower,
                work,
                partial(_issue, follower, following, self._channels),
                following,
                chain=self._channels.chain(),
                nbytes=follower.nbytes,
            )
        self._in_flight.add(
            instruction, [work], buffers, start=start, nbytes=instruction.nbytes, blocking=not instruction.group
        )


def emulate_on_rank(world: World, program: Program, costs: ProgramCosts, steps: int) -> Timeline:
    """Emulate some steps on one rank; every rank of the world calls this.

    Args:
        world: this process's
        program: of a training step
        costs: of its instructions
        steps: how many

    Returns:
        On rank 0 the timeline of all ranks; on the others an empty one.
    """
    emulator = Emulator(program, costs, world)
    for _ in range(steps):
        emulator.step()
    timeline = emulator.timeline()
    emulator.close()
    return timeline


def _pauses(instructions: Sequence[Instruction], costs: ProgramCosts) -> dict[str, int]:
    pauses = {}
    for item in instructions:
        if item.communicates:
            continue
        if item.id not in costs.compute:
            raise InputError(f"{item.id} has no cost: price the program first", instruction=item.id)
        seconds = costs.compute[item.id].seconds
        if item.kind is Kind.UPDATE:
            # Compressed gradients are decoded before it.
            seconds += sum(costs.decoding[one.id].seconds for one in instructions if one.id in costs.decoding)
            seconds += sum(
                costs.second_rounds[one.id].between.seconds for one in instructions if one.id in costs.second_rounds
            )
        pauses[item.token] = round(seconds * 1e9)
    return pauses


def _in_order(instruction: Instruction, costs: ProgramCosts) -> list[tuple[float, Mark]]:
    placed = [(costs.marks[instruction.id, mark.name], mark) for mark in instruction.marks]
    return sorted(placed, key=lambda entry: entry[0])


def _started_by_marks(instructions: Sequence[Instruction]) -> dict[tuple[str, str], list[str]]:
    """By the token and the mark that start them: the tokens of communication, in the order of the list."""
    started: dict[tuple[str, str], list[str]] = {}
    for item in instructions:
        for name in item.after:
            token, has_mark, mark = name.partition("!")
            if has_mark:
                started.setdefault((token, mark), []).append(item.token)
    return started


def _buffer(instruction: Instruction) -> list[torch.Tensor]:
    """What is sent or received; of gathers and scatters the whole, and a rank's share."""
    if not instruction.group:
        return [torch.zeros(instruction.nbytes, dtype=torch.uint8)]
    # Sums of bytes would be cheaper than the sums of numbers that a run makes.
    count = max(1, instruction.nbytes // torch.float32.itemsize)
    if instruction.kind not in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
        return [torch.zeros(count)]
    share = -(-count // len(instruction.group))
    return [torch.zeros(share * len(instruction.group)), torch.zeros(share)]


def _issue(instruction: Instruction, buffers: Sequence[torch.Tensor], channels: Channels) -> object:
    kind, group = instruction.kind, instruction.group
    if kind in SENDS or kind in RECEIVES:
        if instruction.peer is None:
            raise InputError(f"{instruction.id} must name a peer")
        way = channels.send if kind in SENDS else channels.receive
        return way(buffers[0], instruction.peer)
    if kind is Kind.BROADCAST:
        return channels.broadcast(buffers[0], group, instruction.root_rank)
    if kind is Kind.REDUCE:
        return channels.reduce(buffers[0], group, instruction.root_rank)
    if kind is Kind.ALL_GATHER:
        return channels.all_gather(buffers[0], buffers[1], group)
    if kind is Kind.REDUCE_SCATTER:
        return channels.reduce_scatter(buffers[1], buffers[0], group)
    return channels.all_reduce(buffers[0], group)
