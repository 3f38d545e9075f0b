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
