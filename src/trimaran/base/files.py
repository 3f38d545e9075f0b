"""Files: read or refused, written whole or not at all, and those that come with the package; TOML texts."""

import contextlib
import errno
import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError
from trimaran.base.signals import leaving


def put_in_place(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part of it.

    Args:
        path: where; an existing file is replaced
        content: of the file

    Raises:
        OSError: it cannot be written there
    """
    with unfinished(path) as part:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


def read_bytes(path: Path) -> bytes:
    """The content of a file that a person named.

    Args:
        path: the file

    Raises:
        InputError: it cannot be read
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{path} cannot be read: {reason}", code="file.unreadable", source=str(path)) from error


def read_text(path: Path) -> str:
    """The text of a file that a person named.

    Args:
        path: the file

    Raises:
        InputError: it cannot be read
        CorruptDataError: it is not text
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is not UTF-8 text: {error}", code="file.not-utf8", source=str(path)) from error


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
    with _reported(path), unfinished(path) as part:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        part.write_bytes(b"")


_LONGEST_NAME = 100


def file_name(name: str) -> str:
    """A name for a file or a folder, made of any name: it stays in its folder, and starts with no dot.

    Args:
        name: such as that of a job

    Example:
        >>> file_name("digits"), file_name("../../x"), file_name("a b/c"), file_name("..")
        ('digits', 'x', 'a-b-c', 'unnamed')
    """
    plain = re.sub(r"[^\w.+=@,-]+", "-", name).strip("-.")
    return plain.encode()[:_LONGEST_NAME].decode(errors="ignore") or "unnamed"


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A name in the folder of a file, for content that is not complete yet; no file of that name remains.

    Args:
        path: of the file, which the complete content replaces
    """
    part = path.parent / f".{path.name}.{os.getpid()}"
    with leaving(lambda _: part.unlink(missing_ok=True)):
        try:
            yield part
        finally:
            with contextlib.suppress(OSError):
                part.unlink()


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written: {error.strerror}", code="file.unwritable", path=str(path)
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


def toml_text(plain: Mapping[str, Any]) -> str:
    """TOML of keys whose values are figures, texts, lists and tables; a list of tables or of texts has one a line."""
    lines = []
    for key, value in plain.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping | str):
            lines.append(f"{key} = [")
            lines.extend(f"  {_toml(item)}," for item in value)
            lines.append("]")
        else:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # A JSON text is a TOML text, but for the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)
