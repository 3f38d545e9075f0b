"""Files that are there whole or not at all."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from trimaran.base.errors import EnvironmentProblem


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Args:
        path: where; an existing file is replaced
        content: of the file

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    with _unfinished(path) as unfinished:
        unfinished.write_bytes(content)
        unfinished.replace(path)


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before the work for it is done.

    Args:
        path: where it will be written; nothing is there afterwards that was not there before

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    with _unfinished(path) as unfinished:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        unfinished.write_bytes(b"")


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A name beside a file, for what is not whole yet; nothing is left under it."""
    unfinished = path.parent / f".{path.name}.{os.getpid()}"
    try:
        yield unfinished
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written: {error.strerror}", code="report.unwritable", path=str(path)
        ) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
