"""What a checkpoint asks of a file system, one small operation each.

`Store` does all that it does to files through a `LocalDisk`. A test gives it one that stops, fails or loses power at
any of these operations. Any POSIX file system will do, with or without atomic rename, which is not used.

A checkpoint may be a symbolic link to a directory elsewhere, which is read and never removed. No other link is followed
below the folder of the checkpoints, and nothing but a regular file is read.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trimaran.base.system import lock_file, needs_linux, reason_of

Bytes = bytes | bytearray | memoryview
Kind = Literal["file", "directory", "link", "other"]
"""Pipes and devices are "other", and so is what cannot be looked at."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """An entry of a directory.

    Attributes:
        name: of the entry
        kind: what it is
        size: of a file [bytes], 0 for others
        problem: why it cannot be looked at; empty: it can
    """

    name: str
    kind: Kind
    size: int = 0
    problem: str = ""


class Writing:
    """A new file that is open for writing, from its start to its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Bytes) -> None:
        """Append all of the data; where that fails an unknown part of it may have been written."""
        left = memoryview(data).cast("B")
        while left:
            left = left[os.write(self._descriptor, left) :]

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; what was not synced may be lost with the power."""
        os.close(self._descriptor)


class OpenFile:
    """A regular file that is open for reading; `size` is what it had when it was opened [bytes]."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer from a place of the file; several threads may.

        Returns:
            Bytes that were read: fewer than the buffer has where the file ends.
        """
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor, [buffer[done:]], offset + done)
            if not count:
                break
            done += count
        return done

    def forget(self) -> None:
        """Put on the disk what is not there yet, and drop what memory keeps of the file where possible."""
        # A file that is open for reading can be synced too; where it cannot, reading says what is wrong. Pages that are
        # not on the disk yet would stay in memory.
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class LocalDisk:
    """The file systems of this machine.

    Every method raises `OSError` when it fails, and leaves nothing half done but a write.

    Raises:
        EnvironmentProblem: this is not Linux
    """

    def __init__(self) -> None:
        needs_linux("reading and writing checkpoints")

    def make_directory(self, path: Path) -> None:
        """Make a directory; `FileExistsError` where there is anything of that name."""
        path.mkdir()

    def create(self, path: Path) -> Writing:
        """Make a file; `FileExistsError` where there is anything of that name, a dangling link too."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return Writing(os.open(path, flags, 0o666))

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a directory are on the disk."""
        with _directory(path, follow=True) as descriptor:
            try:
                os.fsync(descriptor)
            except OSError as error:
                # Some network file systems have no sync of directories: their servers write names at once.
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise

    def unlink(self, path: Path) -> None:
        """Remove a name that is no directory's; a link, not what it points to."""
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def list(self, path: Path, *, follow: bool = False) -> list[DirectoryEntry]:
        """The entries of a directory, in the order of their names.

        Args:
            path: of the directory
            follow: it may be a link to one
        """
        found = []
        with _directory(path, follow=follow) as descriptor:
            # Of this very directory, whatever its path leads to now.
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208
                try:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except OSError as error:
                    # What was removed meanwhile is not there; all else is, whatever it is.
                    if not isinstance(error, FileNotFoundError) or name in os.listdir(descriptor):  # noqa: PTH208
                        found.append(DirectoryEntry(name, "other", problem=reason_of(error)))
                    continue
                kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
                found.append(DirectoryEntry(name, kind, status.st_size if kind == "file" else 0))
        return found

    def open(self, path: Path) -> OpenFile:
        """Open a regular file, which is no link; `OSError` with ELOOP or EINVAL where it is something else."""
        # A pipe would block until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file")
        return OpenFile(descriptor, status.st_size)

    def free_bytes(self, path: Path) -> int:
        """What this process may still write below a directory, or its nearest parent that exists [bytes]."""
        while True:
            try:
                figures = os.statvfs(path)
            except FileNotFoundError:
                if path == path.parent:
                    raise
                path = path.parent
            else:
                return figures.f_bavail * figures.f_frsize

    def hold(self, path: Path, *, shared: bool = False) -> Callable[[], None] | None:
        """Mark a directory as in use until it is released, or this process ends.

        Args:
            path: of the directory
            shared: others may hold it too, if they share it; then it may be a link to a directory

        Returns:
            What releases it; None: another holds it. A file system that cannot tell says it is free.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if shared else os.O_NOFOLLOW))
        try:
            lock_file(descriptor, wait=False, shared=shared)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            # A network file system without locks, or one that locks only files that are written to.
            os.close(descriptor)
            return lambda: None

        def release() -> None:
            import fcntl

            # A forked process has the descriptor too: closing it here would not release it.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

        return release


def read_bounded(disk: LocalDisk, path: Path, most: int, *, from_disk: bool = False) -> bytes:
    """A small file, whole.

    Args:
        disk: it is on
        path: of the file
        most: larger files are not read [bytes]
        from_disk: not what memory keeps of it

    Raises:
        OSError: it cannot be read; EFBIG: it is larger
    """
    file = disk.open(path)
    try:
        if file.size > most:
            raise OSError(errno.EINVAL, f"{file.size} bytes, at most {most} were expected")
        if from_disk:
            file.forget()
        content = bytearray(file.size)
        return bytes(content[: file.read_into(memoryview(content), 0)])
    finally:
        file.close()


_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


@contextlib.contextmanager
def _directory(path: Path, *, follow: bool) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        yield descriptor
    finally:
        os.close(descriptor)
