"""Files that are written whole or not at all, and those that come with the package."""

import contextlib
import errno
import os
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from trimaran.base.errors import EnvironmentProblem


def put_in_place(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part of it.

    Args:
        path: where; an existing file is replaced
        content: of the file

    Raises:
        OSError: it cannot be written there
    """
    with _unfinished(path) as unfinished:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that the user asked for, as `put_in_place` does.

    Args:
        path: where; an existing file is replaced
        content: of the file

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    with _reported(path):
        put_in_place(path, content)


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before the work for it is done.

    Args:
        path: where it will be written; nothing is there afterwards that was not there before

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    with _reported(path), _unfinished(path) as unfinished:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        unfinished.write_bytes(b"")


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A name in the folder of a file, for content that is not complete yet; no file of that name remains."""
    unfinished = path.parent / f".{path.name}.{os.getpid()}"
    try:
        yield unfinished
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written: {error.strerror}", code="report.unwritable", path=str(path)
        ) from error


def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """A file of figures that comes with the package.

    Args:
        package: it is in, such as "trimaran.pricing.kernels"
        name: of the file, such as "constants.toml"

    Raises:
        FileNotFoundError: the package was installed without it
        tomllib.TOMLDecodeError: it was edited
    """
    return tomllib.loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
