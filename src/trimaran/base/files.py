"""Files: read within bounds or refused, written whole or not at all, and those that come with the package; TOML texts.

Whatever a person, another program or an earlier run left is read by `read_bytes` and `read_text`, and its content is
decoded by `trimaran.base.decoding`. They open regular files only, so that a pipe that nobody writes or a device without
end is refused instead of waited for, and read no more than a bound.
"""

import contextlib
import errno
import json
import math
import os
import re
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError
from trimaran.base.signals import leaving
from trimaran.base.system import lock_file, open_flags, reason_of

MOST_BYTES = 64 * 2**20
"""Of a file, where its reader names no other bound [bytes]."""

MOST_TEXT_BYTES = 16 * 2**20
"""Of a text, which takes up to a hundred times its size as values [bytes]."""

_AT_A_TIME = 2**20

# A pipe without a writer would be waited for, and a terminal would become that of the process.
_READING = open_flags("O_RDONLY", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC")

# ---------------------------------------------------------------------------------------------------------------------
# Paths that were given to a command


_commands: list[Path | None] = []


@contextlib.contextmanager
def given_from_here() -> Iterator[None]:
    """For as long as the block runs, relative paths are meant from the folder in which it began.

    The code of the user's job runs in this process too, and may go into another folder (`os.chdir`).
    """
    here = None
    with contextlib.suppress(OSError):  # it is gone
        here = Path.cwd()
    _commands.append(here)
    try:
        yield
    finally:
        _commands.pop()


def folder_of_command() -> Path | None:
    """The folder in which the command was given; None: no command is under way, or its folder was gone."""
    return _commands[-1] if _commands else None


def given(path: Path) -> Path:
    """Where a path leads: from the folder in which the command was given, else from that of now.

    Example:
        >>> given(Path("runs")), given(Path("/tmp/runs"))
        (PosixPath('runs'), PosixPath('/tmp/runs'))
    """
    folder = folder_of_command()
    return path if folder is None else folder / path


def shown_path(path: Path) -> str:
    """A path as it is seen from the folder in which the command was given, or from that of now."""
    with contextlib.suppress(OSError):
        folder = folder_of_command() or Path.cwd()
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return str(path)


def is_file(path: Path | str) -> bool:
    """Whether there is a file of a name; there is none of a name that no file can have, as one that is too long.

    Args:
        path: of the file

    Example:
        >>> is_file("x" * 5000)
        False
    """
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def looked_at(path: Path) -> os.stat_result | None:
    """What a path leads to; None: nothing is there, as of a name that no file can have.

    Args:
        path: file, folder or link

    Raises:
        EnvironmentProblem: it cannot be looked at, or is a link that leads nowhere

    Example:
        >>> looked_at(Path("/nothing")), looked_at(Path("x" * 5000))
        (None, None)
    """
    reason = "the link leads nowhere"
    try:
        return path.stat()
    except ValueError:
        return None
    except OSError as error:
        if error.errno in _NOTHING:
            try:
                path.lstat()
            except OSError as other:
                if other.errno in _NOTHING:
                    return None
                reason = reason_of(other)
        else:
            reason = reason_of(error)
    raise _no_access(path, "read", reason)


_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def entries(folder: Path) -> list[Path]:
    """What is in a folder, by name.

    Raises:
        EnvironmentProblem: it cannot be listed
    """
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise _no_access(folder, "listed", reason_of(error)) from error


def _no_access(path: Path, what: str, reason: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{path} cannot be {what}: {reason}. Give this user the right to read it, or take another copy",
        code="file.no-access",
        path=str(path),
    )


@contextlib.contextmanager
def temporary_folder(prefix: str, inside: Path | None = None) -> Iterator[Path]:
    """A folder that is gone, with all that is in it, when the block ends.

    Args:
        prefix: of its name
        inside: another folder; None: that of temporary files (`$TMPDIR`)

    Raises:
        EnvironmentProblem: it cannot be made
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=None if inside is None else given(inside)))
    except OSError as error:
        where = "the folder of temporary files" if inside is None else shown_path(inside)
        how = "set TMPDIR to a folder that can be" if inside is None else "make room there, or take another folder"
        raise EnvironmentProblem(
            f"a folder cannot be made in {where}: {reason_of(error)}; {how}",
            code="file.no-temporary-folder",
            path=str(inside or os.environ.get("TMPDIR", "")),
        ) from error
    try:
        yield folder.absolute()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------------------------------------
# Read and written


def read_bytes(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file.

    Args:
        path: the file
        most_bytes: that it may have [bytes]

    Raises:
        InputError: it cannot be read, is no regular file, or has more bytes
    """
    try:
        descriptor = os.open(given(path), _READING)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "no file")
                raise InputError(
                    f"{path} cannot be read: it is {kind}. Give a regular file", code="file.not-regular", path=str(path)
                )
            content = bytearray()
            # The size is a hint: files of the kernel say 0, and another process may write.
            expected = found.st_size
            while expected <= most_bytes and (
                part := os.read(descriptor, min(_AT_A_TIME, most_bytes + 1 - len(content)))
            ):
                content += part
                expected = max(expected, len(content))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {reason_of(error)}", code="file.unreadable", source=str(path)
        ) from error
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no name of a file: {error}", code="file.bad-name", source=str(path)) from error
    if expected > most_bytes:
        raise InputError(
            f"{path} is larger than the limit of {most_bytes:,} bytes: give a smaller file",
            code="file.too-long",
            path=str(path),
            most_bytes=most_bytes,
        )
    return bytes(content)


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_text(path: Path, *, most_bytes: int = MOST_TEXT_BYTES) -> str:
    """The text of a file, without a byte order mark.

    Args:
        path: the file
        most_bytes: that it may have [bytes]

    Raises:
        InputError: it cannot be read, is no regular file, or has more bytes
        CorruptDataError: it is not text
    """
    content = read_bytes(path, most_bytes=most_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CorruptDataError(
            f"{path} is not UTF-8 text, in line {line}: {error}", code="file.not-utf8", source=str(path), line=line
        ) from error


def read_end(path: Path, *, most_bytes: int = _AT_A_TIME) -> str:
    """The end of a log, of which anything may be the rest; "" where it cannot be read.

    Args:
        path: of the log, which may be of any length
        most_bytes: from the end [bytes]
    """
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, _READING)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode):
                os.lseek(descriptor, max(0, found.st_size - most_bytes), os.SEEK_SET)
                return os.read(descriptor, most_bytes).decode(errors="replace")
        finally:
            os.close(descriptor)
    return ""


def set_aside(path: Path) -> Path:
    """Rename a damaged file of a cache to `<name>.damaged`, so that work goes on without it and a person may look.

    Args:
        path: of the file

    Returns:
        Its new name; the file has it, but where its folder cannot be written.
    """
    aside = path.with_suffix(".damaged")
    with contextlib.suppress(OSError):
        path.replace(aside)
    return aside


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file that is there for nothing else; it is made where there is none, and stays.

    Args:
        path: of the file; a symbolic link is refused, since its target would be another file
        wait: until no other process holds it

    Raises:
        OSError: the file cannot be made, or is no regular file
        BlockingIOError: another process holds it, and `wait` is false
    """
    flags = open_flags("O_RDWR", "O_CREAT", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
    descriptor = os.open(path, flags, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        lock_file(descriptor, wait=wait)
        yield
    finally:
        os.close(descriptor)


def put_in_place(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part of it.

    Args:
        path: where; an existing file is replaced, that to which a link leads too, and what is none, such as a device or
            a pipe, is written to
        content: of the file, or its pieces

    Raises:
        OSError: it cannot be written there
    """
    pieces = [content] if isinstance(content, bytes) else content
    if is_stream(path):
        with path.open("wb") as stream:
            stream.writelines(pieces)
        return
    target = _behind_link(path)
    with unfinished(target) as part:
        part.unlink(missing_ok=True)
        # "x" follows no symbolic link that somebody left under this name.
        with part.open("xb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)


def _behind_link(path: Path) -> Path:
    """The file that is written under a name: a link stays, and what it leads to is replaced.

    Raises:
        OSError: links go in a circle
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def is_stream(path: Path) -> bool:
    """Whether a path leads to a device, a pipe or a socket, in whose place no file may be put.

    Example:
        >>> is_stream(Path("/dev/null")), is_stream(Path("/dev"))
        (True, False)
    """
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that the user asked for, as `put_in_place` does.

    Args:
        path: where; an existing file is replaced
        content: of the file

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    with _reported(path):
        put_in_place(given(path), content)


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before the work for it is done.

    Args:
        path: where it will be written; nothing is there afterwards that was not there before

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    with _reported(path), unfinished(_behind_link(given(path))) as part:
        if given(path).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_stream(given(path)):
            if not os.access(given(path), os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        part.unlink(missing_ok=True)
        part.open("xb").close()


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
    """A name next to a file or folder, for content that is not complete yet; nothing of that name remains.

    Args:
        path: of the file or folder, which the complete content replaces
    """
    part = path.parent / f".{path.name}.{os.getpid()}"

    def remove() -> None:
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)

    with contextlib.suppress(OSError):
        remove()
    with leaving(lambda _: remove()):
        try:
            yield part
        finally:
            with contextlib.suppress(OSError):
                remove()


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = reason_of(error)
        if isinstance(error, FileNotFoundError) and not given(path).parent.exists():
            why = f"there is no folder {path.parent}: make it first"
        elif isinstance(error, IsADirectoryError):
            why = "this is a folder: name a file in it"
        raise EnvironmentProblem(f"{path} cannot be written: {why}", code="file.unwritable", path=str(path)) from error


def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """A file of figures that comes with the package.

    Args:
        package: it is in, such as "trimaran.pricing.kernels"
        name: of the file, such as "constants.toml"

    Raises:
        FileNotFoundError: the package was installed without it
        tomllib.TOMLDecodeError: it was edited
    """
    return tomllib.loads(packaged_text(package, name))


def packaged_text(package: str, name: str) -> str:
    """The text of a file that comes with the package.

    Args:
        package: it is in
        name: of the file, with folders of the package before it

    Raises:
        FileNotFoundError: the package was installed without it
    """
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def packaged_names(folder: str) -> tuple[str, ...]:
    """The TOML files of a folder of the catalog, sorted.

    Args:
        folder: in `trimaran.machine`

    Returns:
        Names for `packaged_text`.
    """
    found = resources.files("trimaran.machine").joinpath(folder).iterdir()
    return tuple(sorted(f"{folder}/{file.name}" for file in found if file.name.endswith(".toml")))


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
