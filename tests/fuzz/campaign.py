"""Runs readers on mutated files, in processes of their own with bounded memory, and counts what should not be.

    parent ── reader, numbers ──▶ worker    memory of 2 GB, reads one input after another
           ◀── begun, ended ──────          silent for `LIMIT_S` of its processor: killed, counted as a hang

Foreign is an exception that is no `TrimaranError`, or the end of the process. Out of memory is counted by itself, also
where an error of Trimaran says it, and so is a call that a file has made: of a command, of a connection, or of what
leaves a mark (`mutations.MARK`).
"""

import hashlib
import math
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.mutations import MARK
from tests.fuzz.readers import seeds_by_reader

LIMIT_S = 10.0
"""Of one input [s]."""

MOST_BYTES = 2 * 10**9
"""Address space of a worker beyond what it has at its start [bytes]."""

FOREIGN_BYTES = 2**30
"""The same where it reads checkpoints of others [bytes]."""

_START_S = 300.0
_BLOCKED_S = 0.02
"""A process that takes less of a processor in `LIMIT_S` waits for something [s]."""


@dataclass(slots=True)
class Count:
    """What became of the inputs of one reader.

    Attributes:
        inputs: that were read
        accepted: read as if nothing were wrong with them
        refused: by an error of Trimaran
        foreign: exceptions of others, and processes that ended
        hangs: inputs that took longer than `LIMIT_S`
        memory: inputs for which memory was not enough
        calls: inputs that had something called
        slowest_s: most processor time of an input that ended [s]
        peak_bytes: most memory of a worker, with what it imports [bytes]
        kinds: how often each foreign exception was seen, by its type and innermost line of ours
        examples: a number for each kind
    """

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    foreign: int = 0
    hangs: int = 0
    memory: int = 0
    calls: int = 0
    slowest_s: float = 0.0
    peak_bytes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    examples: dict[str, int] = field(default_factory=dict)

    @property
    def bad(self) -> int:
        """Inputs that did what none may do."""
        return self.foreign + self.hangs + self.memory + self.calls

    def note(self, kind: str, number: int) -> None:
        """Count an example of a kind."""
        self.kinds[kind] += 1
        self.examples.setdefault(kind, number)


def made_input(reader: str, seed: int, number: int) -> bytes:
    """One input of a campaign.

    Args:
        reader: name of it
        seed: of the campaign
        number: of the input
    """
    from tests.fuzz.mutations import flip_bits, mutate
    from tests.fuzz.readers import READERS, all_seeds, seeds_of

    asked = READERS[reader]
    seeds = seeds_of(reader)
    draw = random.Random(hashlib.sha256(f"{reader}/{seed}/{number}".encode()).digest())
    chosen = draw.choice(seeds)
    try:
        content = mutate(chosen, all_seeds(), asked.form, draw)
    except (MemoryError, RecursionError, ValueError):
        # Mutations of mutations multiply.
        content = flip_bits(chosen, draw)
    return asked.seal(content) if asked.seal is not None and draw.random() < 0.7 else content


def run(
    readers: Sequence[str],
    inputs: int,
    *,
    seed: int,
    workers: int = 2,
    limit_s: float = LIMIT_S,
    start: str = "spawn",
    say: bool = False,
    most_bytes: int = MOST_BYTES,
) -> dict[str, Count]:
    """Read mutated files.

    Args:
        readers: their names
        inputs: of each
        seed: of the campaign
        workers: processes at a time
        limit_s: of one input [s]
        start: of the workers: "spawn", or "fork" where this process has imported everything
        say: write a line for each reader that is done
        most_bytes: of a worker, beyond what it has at its start [bytes]

    Returns:
        Counts by reader.
    """
    counts: dict[str, Count] = {}
    seeds_by_reader()
    lock = threading.Lock()

    def one(part: Sequence[str]) -> None:
        with _Worker(limit_s, start, most_bytes) as worker:
            for name in part:
                started = time.monotonic()
                count = worker.read(name, seed, range(inputs))
                with lock:
                    counts[name] = count
                    if say:
                        _say(name, count, time.monotonic() - started)

    workers = min(workers, len(readers))
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, [readers[part::workers] for part in range(workers)]))
    return {name: counts[name] for name in readers}


def _say(name: str, count: Count, took_s: float) -> None:
    print(  # noqa: T201
        f"{name:24} {count.inputs:7} inputs  {count.accepted:6} accepted  {count.refused:7} refused  "
        f"{count.foreign:5} foreign  {count.hangs:3} hangs  {count.memory:3} memory  {count.calls:3} calls  "
        f"slowest {count.slowest_s:5.2f} s  peak {count.peak_bytes / 1e6:6.0f} MB  {took_s:6.0f} s",
        flush=True,
    )
    for kind, times in count.kinds.most_common():
        print(f"    {times:5} × {kind}   input {count.examples[kind]}", flush=True)  # noqa: T201


class _Worker:
    """A process that reads, and its successors where it is killed."""

    def __init__(self, limit_s: float, start: str, most_bytes: int) -> None:
        self._limit_s, self._spent_s, self._most_bytes = limit_s, 0.0, most_bytes
        self._context = multiprocessing.get_context(start)
        self._folder = tempfile.TemporaryDirectory(prefix="trimaran-fuzz-")

    def __enter__(self) -> "_Worker":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def _start(self) -> None:
        self._ours, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=_work, args=(theirs, self._folder.name, seeds_by_reader(), self._most_bytes), daemon=True
        )
        self._process.start()
        theirs.close()
        if not self._ours.poll(_START_S):
            raise RuntimeError("a worker did not start")
        self._ours.recv()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()

    def _is_kept_waiting(self, limit_s: float) -> bool:
        """Whether an input ends after all: while the process works, others may have most of the processors.

        Args:
            limit_s: of processor time, and of time in which the process does not work [s]
        """
        last, now = -math.inf, _processor_s(self._process.pid)
        while now - last > _BLOCKED_S and now - self._spent_s < limit_s:
            if self._ours.poll(limit_s):
                return True
            last, now = now, _processor_s(self._process.pid)
        return False

    def read(self, reader: str, seed: int, numbers: range) -> Count:
        """Read inputs of a reader."""
        count = Count()
        self._ours.send((reader, seed, numbers.start, numbers.stop))
        now, is_reading = numbers.start, False
        while True:
            try:
                # Making an input is not reading it: it has no limit but that of a start.
                limit_s = self._limit_s if is_reading else _START_S
                said = self._ours.recv() if self._ours.poll(limit_s) or self._is_kept_waiting(limit_s) else None
            except EOFError:
                self._process.join()
                said = ("died", self._process.exitcode)
            if said is None and not is_reading:
                raise RuntimeError(f"an input of {reader} behind {now} was not made within {_START_S:g} s")
            if said is None or said[0] == "died":
                count.inputs += 1
                if said is None:
                    count.hangs += 1
                    count.note("hang", now)
                else:
                    count.foreign += 1
                    count.note(f"the process ended, exit code {said[1]}", now)
                self._end()
                self._start()
                if now + 1 >= numbers.stop:
                    return count
                is_reading = False
                self._ours.send((reader, seed, now + 1, numbers.stop))
            elif said[0] == "not made":
                raise RuntimeError(f"an input of {reader} behind {now} cannot be made: {said[1]}")
            elif said[0] == "begun":
                now, is_reading = said[1], True
                self._spent_s = said[2]
            elif said[0] == "done":
                count.peak_bytes = max(count.peak_bytes, said[1])
                return count
            else:
                _, kind, took_s = said
                is_reading = False
                count.inputs += 1
                count.slowest_s = max(count.slowest_s, took_s)
                if kind == "accepted":
                    count.accepted += 1
                elif kind == "refused":
                    count.refused += 1
                elif kind in ("memory", "call"):
                    count.memory += kind == "memory"
                    count.calls += kind == "call"
                    count.note(kind, now)
                else:
                    count.foreign += 1
                    count.note(kind, now)


def _work(connection: Connection, folder: str, seeds: dict[str, tuple[bytes, ...]], most_bytes: int) -> None:
    """Read what is asked for, in a process with bounded memory."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TRIMARAN_CACHE"] = str(Path(folder) / "cache")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    import numpy

    numpy.seterr(all="ignore")
    import torch

    torch.set_num_threads(1)
    # A fork has the addresses of the process that it was forked from.
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + most_bytes, used + most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from tests.fuzz.readers import READERS, seeds_of, take_seeds

    take_seeds(seeds)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    connection.send("ready")
    for reader, seed, start, stop in _asked(connection):
        asked = READERS[reader]
        path = Path(folder) / asked.file_name
        for content in seeds_of(reader):
            path.write_bytes(content)
            outcome(asked.read, path)  # so that what is imported at the first use is not counted as its time
        for number in range(start, stop):
            try:
                content = made_input(reader, seed, number)
            except Exception:  # noqa: BLE001 handed on
                connection.send(("not made", traceback.format_exc()))
                return
            path.write_bytes(content)
            began = time.process_time()
            connection.send(("begun", number, began))
            kind = outcome(asked.read, path)
            connection.send(("ended", kind, time.process_time() - began))
        connection.send(("done", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def _processor_s(process: int | None) -> float:
    """Processor time of a process [s]."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _asked(connection: Connection) -> Iterator[tuple[str, int, int, int]]:
    while True:
        try:
            yield connection.recv()
        except (EOFError, OSError):
            return


def outcome(read: object, path: Path) -> str:
    """What a reader does with a file: "accepted", "refused", "memory", "call", or the foreign exception."""
    _called.clear()
    said = _ending(read, path)
    return "call" if _called else said


_CALLS = frozenset((
    *(MARK, "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect"),
    *("shutil.rmtree", "webbrowser.open", "urllib.Request"),
))  # fmt: skip
_called: list[str] = []


def _note_call(event: str, _: object) -> None:
    if event in _CALLS:
        _called.append(event)


sys.addaudithook(_note_call)


def _ending(read: object, path: Path) -> str:
    from trimaran.base.errors import TrimaranError

    try:
        read(path)  # type: ignore[operator]
    except TrimaranError as error:
        cause = error.__cause__ or error.__context__
        refused_memory = isinstance(cause, MemoryError) or "allocate memory" in str(cause)
        return "memory" if refused_memory else "refused"
    except MemoryError:
        return "memory"
    except Exception as error:  # noqa: BLE001 counted
        if isinstance(error.__cause__, MemoryError) or "memory" in str(error).lower()[:200]:
            return "memory"
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/trimaran" in frame.filename]
        place = f"{ours[-1].filename.rpartition('/src/')[2]}:{ours[-1].lineno}" if ours else "?"
        return f"{type(error).__name__} {place}"
    return "accepted"
