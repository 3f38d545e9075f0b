"""Simulated annealing over devices and orders, compiled.

A state is the device of each node and a sequence of all tasks in which none comes before its inputs. The decoder goes
through the sequence: a task runs as soon as its device is free of earlier ones and its inputs are there; a transfer
takes the first gap of its links from the moment at which its tensor is there, when the first task that needs it is met.

A move changes the device of a node, or of several that feed one another, or exchanges the devices of two, or moves a
task within the sequence. Nothing before the first task that a move touches changes: the decoder begins there, with the
transfers that were met later taken off their links, and ends as soon as the step is known to be too long: when a task
ends so late that those after it, or what is left for its device, cannot end in time.

Everything is counted in steps (tasks that the decoder goes through, and some for each move), and moves are drawn by a
generator that is part of the state: the same problem, seed and number of steps give the same answer on any machine.
Functions are compiled by Numba when they are first called; what it compiles is kept for the next process. They hold no
lock of the interpreter, so several searches run at once in threads.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_F = TypeVar("_F", bound=Callable[..., object])

_EVERY = 32
"""Positions of the sequence from one to the next before which the state of the devices is kept."""

_MOVE = 12
"""Steps that a move counts for, on top of the tasks that it makes the decoder go through."""

_FOCUS = 0.7
"""Share of moves that touch a task on the critical path."""

_MOST = 128
"""Nodes that a move takes to another device at most."""

_SECONDS, _SIZE, _TAIL = range(3)
_LATENCY, _RATE = range(2)
_FREE_FROM, _USED, _LAST = range(3)
_KEY, _LINK, _AT, _BEFORE, _AFTER = range(5)
_MET, _NEW, _SPARE = range(3)
# Places of `AnnealingState.counts` and `AnnealingState.figures`.
_N_MET, _N_KEPT, _N_NEW, _N_SPARE, _STOPPED, _MARK, _PATH, STEPS, ACCEPTED, MOVES = range(10)
NOW, BEST, _COST = range(3)


def _compiled(function: _F) -> _F:
    """A function that Numba compiles at its first call; where nothing can be kept on disk, in each process again."""
    try:
        return cast(_F, numba.njit(function, cache=True, nogil=True, error_model="numpy"))
    except RuntimeError:
        return cast(_F, numba.njit(function, nogil=True, error_model="numpy"))


class Numbers(NamedTuple):
    """A problem as arrays. A task needs others: a forward its producers, a backward the backwards of its readers.

    Attributes:
        needs_at: where the needs of each task begin in `needs`; one more than tasks
        needs: tasks
        tasks: of each task its time [s], the bytes of the output or gradient that its node sends, and the longest way
            from its end to the end of the step, with no transfer [s]
        pairs: of each ordered pair of devices latency [s], infinite where there is no wire, and rate [bytes/s]
        ways_at: where the links of each pair begin in `ways`; one more than pairs
        ways: links
        free: 1 for each node that may change its device
        held: state and saved bytes of each node [bytes]
        memory: of each device [bytes]
        price: seconds for a byte that is not there, and for any at all; 0: memory costs nothing [s/byte], [s]
    """

    needs_at: Ints
    needs: Ints
    tasks: Floats
    pairs: Floats
    ways_at: Ints
    ways: Ints
    free: Ints
    held: Floats
    memory: Floats
    price: Floats


class AnnealingState(NamedTuple):
    """Where an annealing is.

    Attributes:
        on: device of each node
        seq: tasks in order
        pos: position of each task
        ends: end of each task, and what it was before the move that is tried [s]
        causes: task for whose end each waited, or which ran before it on its device, -1 for none; likewise before
        load: work of each device [s]
        kept: before every `_EVERY`th position, of each device: moment from which it is free [s], work done [s], last
            task; the second copy is that of the move which is tried
        device: the same at the position that the decoder is at
        arrival: when each node's output is on each device; -1: not yet met [s]
        records: of each record of a transfer on a link: what it carries (node and device, or those plus as many again
            for a gradient), its link or -1, the position of the task that needed it first, and the records before and
            after it on its link or -1
        times: begin and end of each record [s]
        last: last record of each link; -1: none
        stacks: records in the order in which they were met; those that the move which is tried has met; of no use
        away: latest end of a gradient on each device [s], and its task
        group: nodes that a move takes elsewhere
        mark: number of the move that last took each node
        path: critical tasks, last first
        best_on: `on` of the best step so far
        best_seq: `seq` of it
        counts: see the places above
        figures: see the places above [s]
        random: of the generator
    """

    on: Ints
    seq: Ints
    pos: Ints
    ends: NDArray[np.float64]
    causes: NDArray[np.int64]
    load: Floats
    kept: NDArray[np.float64]
    device: NDArray[np.float64]
    arrival: Floats
    records: NDArray[np.int64]
    times: NDArray[np.float64]
    last: Ints
    stacks: NDArray[np.int64]
    away: NDArray[np.float64]
    group: Ints
    mark: Ints
    path: Ints
    best_on: Ints
    best_seq: Ints
    counts: Ints
    figures: Floats
    random: NDArray[np.uint64]


def begin(numbers: Numbers, on: Sequence[int], sequence: Sequence[int], links: int, seed: int) -> AnnealingState:
    """The state at the start of an annealing.

    Args:
        numbers: the problem
        on: device of each node
        sequence: all tasks, none before its inputs
        links: how many there are
        seed: of the generator
    """
    n, devices = len(numbers.free), len(numbers.memory)
    blocks = 2 * n // _EVERY + 2
    widest = int(np.diff(numbers.ways_at).max(initial=1))
    readers = np.diff(numbers.needs_at)[n:]
    records = 2 * max(1, widest) * int(np.minimum(readers, devices - 1).sum()) + 1
    stacks = np.zeros((3, 2 * records), dtype=np.int64)
    stacks[_SPARE] = np.arange(2 * records)[::-1]
    state = AnnealingState(
        on=np.array(on, dtype=np.int64),
        seq=np.array(sequence, dtype=np.int64),
        pos=np.zeros(2 * n, dtype=np.int64),
        ends=np.zeros((2 * n, 2)),
        causes=np.full((2 * n, 2), -1, dtype=np.int64),
        load=np.zeros(devices),
        kept=np.zeros((2, blocks, 3, devices)),
        device=np.zeros((3, devices)),
        arrival=np.full(n * devices, -1.0),
        records=np.full((2 * records, 5), -1, dtype=np.int64),
        times=np.zeros((2 * records, 2)),
        last=np.full(max(1, links), -1, dtype=np.int64),
        stacks=stacks,
        away=np.full((2, devices), -1.0),
        group=np.zeros(_MOST, dtype=np.int64),
        mark=np.zeros(n, dtype=np.int64),
        path=np.zeros(2 * n, dtype=np.int64),
        best_on=np.array(on, dtype=np.int64),
        best_seq=np.array(sequence, dtype=np.int64),
        counts=np.zeros(10, dtype=np.int64),
        figures=np.full(3, np.inf),
        random=np.array([_mixed(seed)], dtype=np.uint64),
    )
    state.kept[:, :, _LAST] = -1.0
    state.counts[_N_SPARE] = 2 * records
    return state


def compiled() -> bool:
    """Whether a process before this one, or this one, has compiled the search on this machine."""
    if anneal.signatures:  # type: ignore[attr-defined]
        return True
    kept = anneal.stats.cache_path  # type: ignore[attr-defined]
    source_s = Path(__file__).stat().st_mtime
    return kept is not None and any(
        index.stat().st_mtime >= source_s for index in Path(kept).glob("kernel.anneal-*.nbi")
    )


def met(state: AnnealingState) -> list[tuple[int, float, float]]:
    """The transfers of the last decoding: what each carries (as in `records`), its begin and its end [s]."""
    found = {}
    for number in range(int(state.counts[_N_MET])):
        record = int(state.stacks[_MET, number])
        begin_s, end_s = state.times[record]
        found[int(state.records[record, _KEY])] = (float(begin_s), float(end_s))
    return [(key, begin_s, end_s) for key, (begin_s, end_s) in found.items()]


def _mixed(seed: int) -> int:
    """A step of splitmix64, so that neighbouring seeds begin far apart."""
    word = (1 << 64) - 1
    mixed = (seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & word
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & word
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & word
    return (mixed ^ mixed >> 31) or 1


@_compiled
def _draw(random: NDArray[np.uint64]) -> float:
    """A number from 0 to 1, the latter not included (xorshift64*)."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


# ---------------------------------------------------------------------------------------------------------------------
# Transfers on their links


@_compiled
def _gap(records: Ints, times: Floats, newest: int, ready: float, length: float) -> float:
    """The first moment from which the link of its newest record is free long enough [s]."""
    following = -1
    record = newest
    while record >= 0 and times[record, 1] > ready:
        following = record
        record = records[record, _BEFORE]
    while following >= 0 and times[following, 0] < ready + length:
        ready = max(ready, times[following, 1])
        following = records[following, _AFTER]
    return ready


@_compiled
def _tell_neighbours(records: Ints, last: Ints, record: int, after: int, before: int) -> None:
    """Say to the records before and after one on its link what comes after the one, and before the other."""
    previous, following = records[record, _BEFORE], records[record, _AFTER]
    if previous >= 0:
        records[previous, _AFTER] = after
    if following >= 0:
        records[following, _BEFORE] = before
    else:
        last[records[record, _LINK]] = before


@_compiled
def _chained(records: Ints, times: Floats, last: Ints, record: int) -> None:
    """Put a record on its link, whose times are in a gap."""
    begin = times[record, 0]
    following = -1
    previous = last[records[record, _LINK]]
    # Of what begins at the same moment, what takes no time comes first.
    while previous >= 0 and (
        times[previous, 0] > begin or (times[previous, 0] == begin and times[previous, 1] > times[record, 1])
    ):
        following = previous
        previous = records[previous, _BEFORE]
    records[record, _BEFORE] = previous
    records[record, _AFTER] = following
    _tell_neighbours(records, last, record, record, record)


@_compiled
def _carried(
    ways_at: Ints,
    ways: Ints,
    records: Ints,
    times: Floats,
    last: Ints,
    stacks: Ints,
    counts: Ints,
    key: int,
    pair: int,
    length: float,
    ready: float,
    at: int,
) -> float:
    """When a transfer ends that takes the first gap of its links; it is put on them [s]."""
    first, beyond = ways_at[pair], ways_at[pair + 1]
    if beyond - first == 1:
        ready = _gap(records, times, last[ways[first]], ready, length)
    elif beyond > first:
        before = -1.0
        while before != ready:
            before = ready
            for way in range(first, beyond):
                ready = _gap(records, times, last[ways[way]], ready, length)
    for way in range(first, max(beyond, first + 1)):
        counts[_N_SPARE] -= 1
        record = stacks[_SPARE, counts[_N_SPARE]]
        stacks[_NEW, counts[_N_NEW]] = record
        counts[_N_NEW] += 1
        times[record, 0] = ready
        times[record, 1] = ready + length
        records[record, _KEY] = key
        records[record, _AT] = at
        records[record, _LINK] = -1
        if way < beyond:
            records[record, _LINK] = ways[way]
            _chained(records, times, last, record)
    return ready + length


@_compiled
def _off(records: Ints, last: Ints, arrival: Floats, record: int) -> None:
    """Take a record off its link."""
    key = records[record, _KEY]
    if key < len(arrival):
        arrival[key] = -1.0
    if records[record, _LINK] >= 0:
        _tell_neighbours(records, last, record, records[record, _AFTER], records[record, _BEFORE])


@_compiled
def _on_again(records: Ints, times: Floats, last: Ints, arrival: Floats, record: int) -> None:
    """Put a record back: what was taken off later is back already."""
    key = records[record, _KEY]
    if key < len(arrival):
        arrival[key] = times[record, 1]
    if records[record, _LINK] >= 0:
        _tell_neighbours(records, last, record, record, record)


# ---------------------------------------------------------------------------------------------------------------------
# The decoder


@_compiled
def _decoded(p: Numbers, s: AnnealingState, first: int, limit: float) -> float:
    """End of the step, the tasks before a position as they were; infinite once it is known to be beyond a limit [s]."""
    needs_at, needs, tasks, pairs, ways_at, ways = p.needs_at, p.needs, p.tasks, p.pairs, p.ways_at, p.ways
    on, seq, ends, causes, load, device = s.on, s.seq, s.ends, s.causes, s.load, s.device
    arrival, records, times, last, stacks, counts = s.arrival, s.records, s.times, s.last, s.stacks, s.counts
    kept, away = s.kept, s.away
    n, devices = len(on), len(load)
    block = first // _EVERY
    for kind in range(3):
        for here in range(devices):
            device[kind, here] = kept[0, block, kind, here]
    for at in range(block * _EVERY, first):
        task = seq[at]
        here = on[task if task < n else task - n]
        device[_FREE_FROM, here] = ends[task, 0]
        device[_USED, here] += tasks[task, _SECONDS]
        device[_LAST, here] = task
    number = counts[_N_MET]
    while number > 0 and records[stacks[_MET, number - 1], _AT] >= first:
        number -= 1
        _off(records, last, arrival, stacks[_MET, number])
    counts[_N_KEPT] = number
    counts[_N_NEW] = 0
    limit *= 1 + 1e-12
    counts[_STOPPED] = first
    for here in range(devices):
        if device[_FREE_FROM, here] + load[here] - device[_USED, here] > limit:
            return np.inf
    for at in range(first, 2 * n):
        if at % _EVERY == 0:
            for kind in range(3):
                for here in range(devices):
                    kept[1, at // _EVERY, kind, here] = device[kind, here]
        task = seq[at]
        begin, beyond = needs_at[task], needs_at[task + 1]
        if task < n:
            here = on[task]
            ready = device[_FREE_FROM, here]
            why = int(device[_LAST, here])
            for edge in range(begin, beyond):
                producer = needs[edge]
                origin = on[producer]
                if origin == here:
                    moment = ends[producer, 0]
                else:
                    key = producer * devices + here
                    moment = arrival[key]
                    if moment < 0.0:
                        pair = origin * devices + here
                        length = pairs[pair, _LATENCY] + tasks[producer, _SIZE] / pairs[pair, _RATE]
                        moment = _carried(
                            ways_at,
                            ways,
                            records,
                            times,
                            last,
                            stacks,
                            counts,
                            key,
                            pair,
                            length,
                            ends[producer, 0],
                            at,
                        )
                        arrival[key] = moment
                if moment > ready:
                    ready = moment
                    why = producer
        else:
            node = task - n
            here = on[node]
            ready = device[_FREE_FROM, here]
            why = int(device[_LAST, here])
            if ends[node, 0] > ready:
                ready = ends[node, 0]
                why = node
            crosses = False
            for edge in range(begin, beyond):
                reader = needs[edge]
                moment = ends[reader, 0]
                there = on[reader - n]
                if there == here:
                    if moment > ready:
                        ready = moment
                        why = reader
                elif moment > away[0, there]:
                    crosses = True
                    away[0, there] = moment
                    away[1, there] = reader
            if crosses:
                for edge in range(begin, beyond):
                    there = on[needs[edge] - n]
                    if away[0, there] >= 0.0:
                        key = n * devices + node * devices + there
                        pair = there * devices + here
                        length = pairs[pair, _LATENCY] + tasks[task, _SIZE] / pairs[pair, _RATE]
                        moment = _carried(
                            ways_at, ways, records, times, last, stacks, counts, key, pair, length, away[0, there], at
                        )
                        if moment > ready:
                            ready = moment
                            why = int(away[1, there])
                        away[0, there] = -1.0
        seconds = tasks[task, _SECONDS]
        end = ready + seconds
        ends[task, 1] = ends[task, 0]
        ends[task, 0] = end
        causes[task, 1] = causes[task, 0]
        causes[task, 0] = why
        device[_FREE_FROM, here] = end
        device[_USED, here] += seconds
        device[_LAST, here] = task
        if end + tasks[task, _TAIL] > limit or end + load[here] - device[_USED, here] > limit:
            counts[_STOPPED] = at + 1
            return np.inf
    counts[_STOPPED] = 2 * n
    found = 0.0
    for here in range(devices):
        found = max(found, device[_FREE_FROM, here])
    return found


@_compiled
def _keep(s: AnnealingState, first: int) -> None:
    """Keep what was decoded from a position on."""
    kept, stacks, counts = s.kept, s.stacks, s.counts
    for number in range(counts[_N_KEPT], counts[_N_MET]):
        stacks[_SPARE, counts[_N_SPARE]] = stacks[_MET, number]
        counts[_N_SPARE] += 1
    for number in range(counts[_N_NEW]):
        stacks[_MET, counts[_N_KEPT] + number] = stacks[_NEW, number]
    counts[_N_MET] = counts[_N_KEPT] + counts[_N_NEW]
    for block in range((first + _EVERY - 1) // _EVERY, (len(s.seq) - 1) // _EVERY + 1):
        for kind in range(3):
            for here in range(kept.shape[3]):
                kept[0, block, kind, here] = kept[1, block, kind, here]
    counts[_PATH] = -1


@_compiled
def _drop(s: AnnealingState, first: int) -> None:
    """Forget what was decoded from a position on; the sequence is still that of the move."""
    seq, ends, causes, records, stacks, counts = s.seq, s.ends, s.causes, s.records, s.stacks, s.counts
    for at in range(first, counts[_STOPPED]):
        task = seq[at]
        ends[task, 0] = ends[task, 1]
        causes[task, 0] = causes[task, 1]
    for number in range(counts[_N_NEW] - 1, -1, -1):
        record = stacks[_NEW, number]
        _off(records, s.last, s.arrival, record)
        stacks[_SPARE, counts[_N_SPARE]] = record
        counts[_N_SPARE] += 1
    for number in range(counts[_N_KEPT], counts[_N_MET]):
        _on_again(records, s.times, s.last, s.arrival, stacks[_MET, number])


@_compiled
def _priced(p: Numbers, s: AnnealingState) -> float:
    """Seconds for the bytes that devices would lack if all that they ever hold were there at once [s]."""
    if p.price[0] <= 0.0:
        return 0.0
    needs_at, needs, tasks, on, away = p.needs_at, p.needs, p.tasks, s.on, s.away
    n, devices = len(on), len(p.memory)
    for here in range(devices):
        away[1, here] = 0.0
    for node in range(n):
        here = on[node]
        away[1, here] += p.held[node]
        for edge in range(needs_at[n + node], needs_at[n + node + 1]):
            there = on[needs[edge] - n]
            if there != here and away[0, there] < 0.0:
                away[0, there] = 0.0
                away[1, there] += tasks[node, _SIZE]
                away[1, here] += tasks[n + node, _SIZE]
        for edge in range(needs_at[n + node], needs_at[n + node + 1]):
            away[0, on[needs[edge] - n]] = -1.0
    over = 0.0
    for here in range(devices):
        over += max(0.0, away[1, here] - p.memory[here])
    return p.price[0] * over + p.price[1] if over > 0.0 else 0.0


def decode(p: Numbers, s: AnnealingState) -> None:
    """Go through all of a state, whatever its length; not compiled itself, or all that it calls would be once more."""
    n = len(s.on)
    s.pos[s.seq] = np.arange(2 * n)
    s.load[:] = np.bincount(np.tile(s.on, 2), weights=p.tasks[:, _SECONDS], minlength=len(s.load))
    now = _decoded(p, s, 0, np.inf)
    _keep(s, 0)
    s.figures[_COST] = _priced(p, s)
    s.figures[NOW] = now + s.figures[_COST]
    if s.figures[NOW] < s.figures[BEST]:
        s.figures[BEST] = s.figures[NOW]
        s.best_on[:] = s.on
        s.best_seq[:] = s.seq


# ---------------------------------------------------------------------------------------------------------------------
# Moves


@_compiled
def _critical(ends: Floats, causes: Ints, path: Ints) -> int:
    """Put the critical tasks into `path`, last first; how many."""
    task = 0
    for other in range(len(ends)):
        if ends[other, 0] > ends[task, 0]:
            task = other
    length = 0
    while task >= 0:
        path[length] = task
        length += 1
        task = causes[task, 0]
    return length


@_compiled
def _near(needs_at: Ints, needs: Ints, node: int, chance: float) -> int:
    """A node that another exchanges tensors with; -1: there is none."""
    n = len(needs_at) // 2
    before = needs_at[node + 1] - needs_at[node]
    around = before + needs_at[n + node + 1] - needs_at[n + node]
    if around == 0:
        return -1
    which = int(chance * around)
    if which < before:
        return int(needs[needs_at[node] + which])
    return int(needs[needs_at[n + node] + which - before]) - n


@_compiled
def _grouped(
    needs_at: Ints, needs: Ints, free: Ints, on: Ints, group: Ints, mark: Ints, random: NDArray[np.uint64], number: int
) -> int:
    """Add nodes on the device of the first that feed one another to a group; how many there are."""
    kind = _draw(random)
    more = 0.0 if kind < 0.3 else 0.6 if kind < 0.6 else 0.9 if kind < 0.85 else 0.97
    mark[group[0]] = number
    size = 1
    while size < len(group) and _draw(random) < more:
        member = group[size - 1] if _draw(random) < 0.6 else group[int(_draw(random) * size)]
        other = _near(needs_at, needs, member, _draw(random))
        if other >= 0 and on[other] == on[member] and mark[other] != number and free[other]:
            group[size] = other
            mark[other] = number
            size += 1
    return size


@_compiled
def _put(tasks: Floats, on: Ints, load: Floats, node: int, device: int) -> None:
    """Put a node on a device."""
    work = tasks[node, _SECONDS] + tasks[len(on) + node, _SECONDS]
    load[on[node]] -= work
    load[device] += work
    on[node] = device


@_compiled
def _shift(seq: Ints, pos: Ints, source: int, target: int) -> None:
    """Move the task at one position to another, those between by one."""
    task = seq[source]
    step = 1 if target > source else -1
    for at in range(source, target, step):
        seq[at] = seq[at + step]
        pos[seq[at]] = at
    seq[target] = task
    pos[task] = target


@_compiled
def _target(needs_at: Ints, needs: Ints, on: Ints, seq: Ints, pos: Ints, task: int, steps: int) -> int:
    """A position some steps away to which a task may move; its own where there is none.

    Passing tasks of other devices alone changes little: it goes on to one of the same device.

    Args:
        needs_at: of the problem
        needs: likewise
        on: of the state
        seq: likewise
        pos: likewise
        task: which
        steps: how far, negative towards the front
    """
    n, at = len(on), pos[task]
    node = task if task < n else task - n
    here = on[node]
    if steps < 0:
        least = 0 if task < n else pos[node] + 1
        for edge in range(needs_at[task], needs_at[task + 1]):
            least = max(least, pos[needs[edge]] + 1)
        found = max(least, at + steps)
        other = found
        while other > least and on[seq[other] % n] != here:
            other -= 1
        return int(other) if on[seq[other] % n] == here else int(found)
    # What needs a forward are the forwards of its readers, and its backward; what needs a backward, those of producers.
    most = pos[n + node] - 1 if task < n else 2 * n - 1
    opposite = n + node if task < n else node
    for edge in range(needs_at[opposite], needs_at[opposite + 1]):
        most = min(most, pos[needs[edge] - n if task < n else needs[edge] + n] - 1)
    found = min(most, at + steps)
    other = found
    while other < most and on[seq[other] % n] != here:
        other += 1
    return int(other) if on[seq[other] % n] == here else int(found)


@_compiled
def anneal(p: Numbers, s: AnnealingState, until: int, total: int, hot: float, cold: float, goal: float) -> None:
    """Try moves.

    Args:
        p: the problem
        s: where the annealing is, which has been decoded; changed
        until: steps, from its beginning, after which to return
        total: steps after which it is at its coldest
        hot: temperature at the beginning [s]
        cold: temperature at the end [s]
        goal: stop when the best is no longer than this [s]
    """
    needs_at, needs, tasks, free = p.needs_at, p.needs, p.tasks, p.free
    on, seq, pos, load, random, group = s.on, s.seq, s.pos, s.load, s.random, s.group
    counts, figures, path = s.counts, s.figures, s.path
    n, devices = len(on), len(load)
    ratio = np.log(cold / hot)
    temperature = hot
    turn = 0
    while counts[STEPS] < until and figures[BEST] > goal:
        if turn % 16 == 0:
            temperature = hot * np.exp(ratio * min(1.0, counts[STEPS] / total))
        turn += 1
        counts[MOVES] += 1
        counts[STEPS] += _MOVE
        limit = figures[NOW] - temperature * np.log(_draw(random) + 1e-300)
        if _draw(random) < _FOCUS:
            if counts[_PATH] < 0:
                counts[_PATH] = _critical(s.ends, s.causes, path)
            task = path[int(_draw(random) * counts[_PATH])]
        else:
            task = int(_draw(random) * 2 * n)
        node = task % n
        kind = _draw(random)
        cost = figures[_COST]
        size = 0
        old = device = other = source = target = -1
        if kind < 0.55:
            if not free[node]:
                continue
            old = on[node]
            if kind < 0.4:
                near = _near(needs_at, needs, node, _draw(random)) if devices > 2 and _draw(random) < 0.5 else -1
                device = on[near] if near >= 0 else old
                if device == old:
                    device = int(_draw(random) * (devices - 1))
                    device += device >= old
                counts[_MARK] += 1
                group[0] = node
                size = _grouped(needs_at, needs, free, on, group, s.mark, random, counts[_MARK])
                first = 2 * n
                for member in range(size):
                    first = min(first, pos[group[member]])
                    _put(tasks, on, load, group[member], device)
            else:
                far = 1 + int(-np.log(_draw(random) + 1e-300) * 0.02 * n)
                at = pos[node] + (far if _draw(random) < 0.5 else -far)
                if at < 0 or at >= 2 * n:
                    continue
                other = seq[at] % n
                device = on[other]
                if device == old or not free[other]:
                    continue
                first = min(pos[node], pos[other])
                _put(tasks, on, load, node, device)
                _put(tasks, on, load, other, old)
            cost = _priced(p, s)
        else:
            steps = 1 + int(-np.log(_draw(random) + 1e-300) * (1.0 + 0.03 * n))
            source = pos[task]
            target = _target(needs_at, needs, on, seq, pos, task, steps if _draw(random) < 0.5 else -steps)
            if target == source:
                continue
            first = min(source, target)
            _shift(seq, pos, source, target)
        then = _decoded(p, s, first, limit - cost) + cost
        counts[STEPS] += counts[_STOPPED] - first
        if then <= limit:
            _keep(s, first)
            figures[NOW] = then
            figures[_COST] = cost
            counts[ACCEPTED] += 1
            if then < figures[BEST]:
                figures[BEST] = then
                s.best_on[:] = on
                s.best_seq[:] = seq
            continue
        _drop(s, first)
        for member in range(size):
            _put(tasks, on, load, group[member], old)
        if other >= 0:
            _put(tasks, on, load, node, old)
            _put(tasks, on, load, other, device)
        if source >= 0:
            _shift(seq, pos, target, source)
