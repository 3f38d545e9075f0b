"""A disk that stops, fails and loses power where a test says, in memory.

What a file system keeps when the power is lost is that which was synced, and of the rest anything: each write to a file
may be there whole, in part, as zeros, or not at all, and each name that was made or removed in a directory may be so or
not, in any combination (POSIX promises no order without a sync). Only the sync of a directory keeps its names.
"""

import errno
import itertools
import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimaran.checkpoint_files.disk import Bytes, DirectoryEntry


class Stopped(BaseException):
    """The process was stopped: nothing that it does afterwards has an effect."""


@dataclass(eq=False)
class Node:
    """A file or directory: as processes see it, and as it is on the disk."""

    is_directory: bool
    entries: dict[str, "Node"] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    disk_entries: dict[str, "Node"] = field(default_factory=dict)
    disk_data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class Write:
    """Data that was written to a file and not synced."""

    node: Node
    offset: int
    data: bytes

    options = 4

    def apply(self, data: bytearray, choice: int) -> None:
        """Nothing, all, the first half, or zeros in its place."""
        if choice:
            kept = {1: self.data, 2: self.data[: len(self.data) // 2], 3: bytes(len(self.data))}[choice]
            data.extend(bytes(max(0, self.offset - len(data))))
            data[self.offset : self.offset + len(kept)] = kept


@dataclass(frozen=True)
class Entry:
    """A name that was made (or removed, without a child) in a directory that was not synced."""

    node: Node
    name: str
    child: Node | None

    options = 2

    def apply(self, entries: dict[str, Node], choice: int) -> None:
        if choice and self.child is not None:
            entries[self.name] = self.child
        elif choice:
            entries.pop(self.name, None)


class SimulatedDisk:
    """The files of a machine.

    Attributes:
        pending: what is not on the disk yet, in the order in which it was done
        operations: kind and path of all that changed something
        after: is called after each of these
        turns: lets processes take turns, if given
    """

    def __init__(self) -> None:
        self.root = Node(is_directory=True)
        self.pending: list[Write | Entry] = []
        self.operations: list[tuple[str, Path]] = []
        self.holds: list[tuple[SimulatedProcess, Path, bool]] = []
        self.after: Callable[[], None] | None = None
        self.turns: Turns | None = None

    def process(self, **faults: Any) -> "SimulatedProcess":
        """A process of this machine."""
        return SimulatedProcess(self, **faults)

    def find(self, path: Path) -> Node:
        node = self.root
        for part in path.parts[1:]:
            if not node.is_directory:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = node.entries[part]
        return node

    def set_entry(self, path: Path, child: Node | None) -> None:
        parent = self.find(path.parent)
        if child is None:
            del parent.entries[path.name]
        else:
            parent.entries[path.name] = child
        self.pending.append(Entry(parent, path.name, child))

    def append(self, node: Node, data: bytes) -> None:
        self.pending.append(Write(node, len(node.data), data))
        node.data += data

    def sync(self, node: Node) -> None:
        node.disk_entries, node.disk_data = dict(node.entries), bytearray(node.data)
        self.pending = [one for one in self.pending if one.node is not node]

    def restarted(self) -> "SimulatedDisk":
        """The machine when its processes have ended, memory intact, as another one to go on with."""
        memo: dict[int, Node] = {}

        def copy(node: Node) -> Node:
            if id(node) not in memo:
                made = memo[id(node)] = Node(node.is_directory, data=node.data[:], disk_data=node.disk_data[:])
                made.entries = {name: copy(child) for name, child in node.entries.items()}
                made.disk_entries = {name: copy(child) for name, child in node.disk_entries.items()}
            return memo[id(node)]

        other = SimulatedDisk()
        other.root = copy(self.root)
        for one in self.pending:
            if isinstance(one, Write):
                other.pending.append(Write(copy(one.node), one.offset, one.data))
            else:
                child = None if one.child is None else copy(one.child)
                other.pending.append(Entry(copy(one.node), one.name, child))
        return other

    def combinations(self) -> int:
        """In how many ways what was not synced may be there or not."""
        return math.prod(one.options for one in self.pending)

    def without_power(self, most: int, draw: random.Random) -> Iterator["SimulatedDisk"]:
        """The disk after the power was lost, in each way in which that can be, or in `most` of them drawn at random."""
        options = [range(one.options) for one in self.pending]
        if self.combinations() <= most:
            choices: Any = itertools.product(*options)
        else:
            drawn = [[draw.choice(option) for option in options] for _ in range(most - 2)]
            choices = [[0] * len(options), [1] * len(options), *drawn]
        for choice in choices:
            yield self._kept(choice)

    def _kept(self, choice: list[int]) -> "SimulatedDisk":
        effects: dict[int, list[tuple[Write | Entry, int]]] = {}
        for one, chosen in zip(self.pending, choice, strict=True):
            effects.setdefault(id(one.node), []).append((one, chosen))
        memo: dict[int, Node] = {}

        def copy(node: Node) -> Node:
            if id(node) in memo:
                return memo[id(node)]
            made = memo[id(node)] = Node(node.is_directory)
            entries, data = dict(node.disk_entries), bytearray(node.disk_data)
            for one, chosen in effects.get(id(node), ()):
                if isinstance(one, Write):
                    one.apply(data, chosen)
                else:
                    one.apply(entries, chosen)
            made.data, made.disk_data = data, data[:]
            made.entries = {name: copy(child) for name, child in entries.items()}
            made.disk_entries = dict(made.entries)
            return made

        other = SimulatedDisk()
        other.root = copy(self.root)
        return other


class SimulatedProcess:
    """What a process sees of the disk: `Disk`, with faults.

    Args:
        disk: of the machine
        stop_at: the process is stopped at this operation that changes something, counted from 0
        half: stopped in the middle of a write, not before it
        fail_at: this operation fails, counted from 0
        fail_with: the number of its error; half of a write is done
        again: later operations of the same kind fail too

    Attributes:
        done: operations that it did
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        *,
        stop_at: int | None = None,
        half: bool = False,
        fail_at: int | None = None,
        fail_with: int = errno.ENOSPC,
        again: bool = False,
    ) -> None:
        self._disk = disk
        self.stop_at, self.half = stop_at, half
        self.fail_at, self.fail_with, self.again = fail_at, fail_with, again
        self._failing: str | None = None
        self.stopped = False
        self.done = 0
        self.failed = False

    def _begin(self, kind: str, path: Path, half: Callable[[], None] | None = None) -> None:
        """Before an operation that changes something."""
        if self._disk.turns is not None:
            self._disk.turns.wait()
        if not self.stopped and self.done == self.stop_at:
            self.stop()
            if half is not None and self.half:
                half()
        if self.stopped:
            raise Stopped
        if self.done == self.fail_at or (self.again and kind == self._failing):
            self._failing, self.failed = kind, True
            if half is not None:
                half()
            self.done += 1
            raise OSError(self.fail_with, os.strerror(self.fail_with), str(path))

    def _end(self, kind: str, path: Path) -> None:
        self.done += 1
        self._disk.operations.append((kind, path))
        if self._disk.after is not None:
            self._disk.after()

    def _look(self) -> None:
        if self.stopped:
            raise Stopped

    def stop(self) -> None:
        """End the process: what it holds is let go."""
        self.stopped = True
        self._disk.holds = [one for one in self._disk.holds if one[0] is not self]

    def make_directory(self, path: Path) -> None:
        self._make(path, Node(is_directory=True), "mkdir")

    def create(self, path: Path) -> "SimulatedWriting":
        node = Node(is_directory=False)
        self._make(path, node, "create")
        return SimulatedWriting(self, node, path)

    def _make(self, path: Path, node: Node, kind: str) -> None:
        self._look()
        if path.name in self._disk.find(path.parent).entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._begin(kind, path)
        self._disk.set_entry(path, node)
        self._end(kind, path)

    def sync_directory(self, path: Path) -> None:
        self._begin("syncdir", path)
        self._disk.sync(self._disk.find(path))
        self._end("syncdir", path)

    def unlink(self, path: Path) -> None:
        self._remove(path, "unlink")

    def remove_directory(self, path: Path) -> None:
        self._look()
        if self._disk.find(path).entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self._remove(path, "rmdir")

    def _remove(self, path: Path, kind: str) -> None:
        self._look()
        self._disk.find(path)
        self._begin(kind, path)
        self._disk.set_entry(path, None)
        self._end(kind, path)

    def list(self, path: Path, *, follow: bool = False) -> list[DirectoryEntry]:
        self._look()
        return [
            DirectoryEntry(
                name, "directory" if node.is_directory else "file", 0 if node.is_directory else len(node.data)
            )
            for name, node in sorted(self._disk.find(path).entries.items())
        ]

    def open(self, path: Path) -> "SimulatedReading":
        self._look()
        return SimulatedReading(self._disk, self._disk.find(path))

    def free_bytes(self, path: Path) -> int:
        """Much: what is asked is whether a write that fails is survived."""
        self._look()
        return 2**40

    def hold(self, path: Path, *, shared: bool = False) -> Callable[[], None] | None:
        self._look()
        self._disk.find(path)
        for _, held, both in self._disk.holds:
            if held == path and not (shared and both):
                return None
        mine = (self, path, shared)
        self._disk.holds.append(mine)

        def release() -> None:
            if mine in self._disk.holds:
                self._disk.holds.remove(mine)

        return release


@dataclass
class SimulatedWriting:
    """A file that is written."""

    process: SimulatedProcess
    node: Node
    path: Path

    def write(self, data: Bytes) -> None:
        content = bytes(data)
        disk = self.process._disk
        self.process._begin("write", self.path, lambda: disk.append(self.node, content[: len(content) // 2]))
        disk.append(self.node, content)
        self.process._end("write", self.path)

    def sync(self) -> None:
        self.process._begin("sync", self.path)
        self.process._disk.sync(self.node)
        self.process._end("sync", self.path)

    def close(self) -> None:
        self.process._look()


class SimulatedReading:
    """A file that is read."""

    def __init__(self, disk: SimulatedDisk, node: Node) -> None:
        self._disk, self._node = disk, node
        self.size = len(node.data)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        found = self._node.data[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def forget(self) -> None:
        self._disk.sync(self._node)

    def close(self) -> None:
        pass


class Turns:
    """Threads that do one operation at a time, in an order that a seed decides.

    Args:
        seed: of the order
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._condition = threading.Condition()
        self._waiting: set[int] = set()
        self._alive: set[int] = set()
        self._next: int | None = None

    def run(self, tasks: list[Callable[[], None]]) -> None:
        """Do all tasks, each in a thread; they may raise what they keep for themselves."""
        self._alive = set(range(len(tasks)))
        threads = [
            threading.Thread(target=self._task, args=(number, task), name=f"turn-{number}")
            for number, task in enumerate(tasks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def wait(self) -> None:
        """Wait for a turn; threads that are not of `run` do not wait."""
        name = threading.current_thread().name
        if not name.startswith("turn-"):
            return
        number = int(name.removeprefix("turn-"))
        with self._condition:
            self._waiting.add(number)
            self._choose()
            self._condition.wait_for(lambda: self._next == number)
            self._next = None
            self._waiting.remove(number)

    def _choose(self) -> None:
        if self._alive and self._waiting == self._alive and self._next is None:
            self._next = self._draw.choice(sorted(self._waiting))
            self._condition.notify_all()

    def _task(self, number: int, task: Callable[[], None]) -> None:
        try:
            task()
        finally:
            with self._condition:
                self._alive.remove(number)
                self._choose()
