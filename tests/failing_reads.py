"""Reads of a folder that fail, each once: what a process asks of its files, counted, and one of them refused.

`SimulatedDisk` fails what a save writes; this fails what Python reads of real files, whoever asks: open, stat, list and
read. What a library reads in C, as a file that is mapped, is opened by Python first or is out of reach.
"""

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BY_PATH = ("open", "stat", "lstat", "listdir", "scandir", "readlink")
_BY_DESCRIPTOR = ("read", "preadv", "fstat")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass
class Reads:
    """What was asked of a folder.

    Attributes:
        calls: kind and path of each
        failed: the one that failed; None: none has
    """

    calls: list[tuple[str, Path]] = field(default_factory=list)
    failed: tuple[str, Path] | None = None


@contextmanager
def failing(
    folder: Path, number: int, *, at: int | None = 0, counts: Callable[[str, Path], bool] = lambda kind, path: True
) -> Iterator[Reads]:
    """For as long as the block runs, one read of what is in a folder fails, once.

    Args:
        folder: of which all reads count, and of itself
        number: of the error
        at: which of them fails, counted from 0; None: none
        counts: whether a kind of read of a path counts
    """
    folder = folder.resolve()
    reads = Reads()
    inside = False

    def look(kind: str, path: Path | None) -> None:
        if path is None or folder not in (path, *path.parents) or not counts(kind, path):
            return
        reads.calls.append((kind, path))
        if len(reads.calls) - 1 == at:
            reads.failed = kind, path
            raise OSError(number, os.strerror(number), str(path))

    def wrap(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            nonlocal inside
            if not inside:
                inside = True
                try:
                    path = None if _is_write(kind, given, options) else _path_of(given, options)
                finally:
                    inside = False
                look(kind, path)
            return real(*given, **options)

        return call

    with _patched({(os, kind): wrap(kind, getattr(os, kind)) for kind in (*_BY_PATH, *_BY_DESCRIPTOR)}):
        opened = wrap("open", io.open)
        with _patched({(io, "open"): opened, (builtins, "open"): opened}):
            yield reads


def _is_write(kind: str, given: tuple[Any, ...], options: dict[str, Any]) -> bool:
    if kind != "open":
        return False
    how = given[1] if len(given) > 1 else options.get("mode", options.get("flags", "r"))
    return bool(how & _WRITES) if isinstance(how, int) else bool({*"wax+"} & {*how})


def _path_of(given: tuple[Any, ...], options: dict[str, Any]) -> Path | None:
    what = given[0] if given else "."
    with suppress(OSError, TypeError, ValueError):
        if isinstance(what, int):
            return Path(f"/proc/self/fd/{what}").readlink()
        where = options.get("dir_fd")
        start = Path.cwd() if where is None else Path(f"/proc/self/fd/{where}").readlink()
        return Path(os.path.normpath(start / os.fspath(what)))
    return None


@contextmanager
def _patched(new: dict[tuple[Any, str], Any]) -> Iterator[None]:
    before = {(owner, name): getattr(owner, name) for owner, name in new}
    for (owner, name), value in new.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)
