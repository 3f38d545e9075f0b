"""The commit protocol of checkpoints: after any crash the newest committed one is whole, or it is named as damaged.

    checkpoints/
      step-00000500/          a new directory each, never overwritten; "-2" is added where the name is taken
        FORMAT                says that the directory is Trimaran's
        rank0.safetensors …   what each rank wrote
        state.json …          documents of rank 0
        manifest.json         size and checksums of all of these
        COMMITTED             size and digest of manifest.json

    rank 0   mkdir, hold, FORMAT, sync ─▶ write, sync ─┐            ┌▶ documents, manifest, sync ─▶ COMMITTED, sync
    rank r           join the same     ─▶ write, sync ─┴─ all did it ┘

A directory is committed if and only if COMMITTED has the digest of manifest.json as it lies there. No file is renamed
or written twice, so that a file system without atomic rename serves as well. Each step is on the disk before the next
one starts: whatever order a file system writes in, the marker is never there before what it stands for. A directory
that nobody holds and that has no marker is left from a crash; the next `begin` removes it. A kill between the moment
when there is room for the marker and its write leaves a blank one: such a directory is named, and the one before is
taken.

Of several committed ones the newest is the one with the highest serial number: a training that went back to an earlier
step commits that step again, after a later one.

No torch here, and no communication: whoever calls this carries names and entries between ranks.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import msgspec

from trimaran.base.decoding import decode_object
from trimaran.base.errors import CorruptDataError, EnvironmentProblem, ExecutionError, InputError, TrimaranError
from trimaran.base.files import entries, looked_at
from trimaran.base.system import reason_of
from trimaran.checkpoint_files.disk import Bytes, DirectoryEntry, LocalDisk, OpenFile, Writing, read_bounded

BLOCK_BYTES = 16 * 2**20
"""A file has one checksum for each block."""

FOLDER = "checkpoints"
"""Of a run: the folder of its checkpoints."""
MANIFEST, MARKER, FORMAT = "manifest.json", "COMMITTED", "FORMAT"
_REMOVED = "it is being removed"
BLANK = "it is blank: the save was cut off before its last write, or the file was emptied"
_FORMAT_TEXT = b"A checkpoint of Trimaran, format 1. It is complete only with the file COMMITTED.\n"
_VERSION = 1
_DIRECTORY = re.compile(r"step-(?P<step>\d{8,18})(?:-(?P<copy>[1-9]\d{0,8}))?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_LARGEST_MARKER, _LARGEST_MANIFEST, _LARGEST_DOCUMENT = 4096, 256 * 2**20, 1024 * 2**20
_MOST_VALUES = 32_000_000
_LARGEST_INTEGER = 2**128 + 1
"""Generators of random numbers have states of 128 bits."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_OF_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What a process or a machine lacks, which says nothing of a checkpoint."""
_PIECE_BYTES = 16 * 2**20
"""Bytes of one call of write."""
_SMALL_BYTES = 2 * 2**20
"""For fewer no threads are started."""


def has_checkpoints(path: Path) -> bool:
    """Whether a folder has committed checkpoints, or may have: what cannot be read, or is a link, says so when opened.

    Args:
        path: any
    """
    with contextlib.suppress(EnvironmentProblem, OSError):
        found = looked_at(path)
        there = entries(path) if found is not None and stat.S_ISDIR(found.st_mode) else []
        return any(looked_at(one / MARKER) or one.is_symlink() for one in there if is_checkpoint_name(one.name))
    return True


def is_checkpoint_name(name: str) -> bool:
    """Whether a directory of a name may be a checkpoint.

    Example:
        >>> is_checkpoint_name("step-00000500"), is_checkpoint_name("digits")
        (True, False)
    """
    return _DIRECTORY.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a checkpoint, as a manifest has it. It can be sent to another process.

    Attributes:
        name: of the file
        size: of the file [bytes]
        checksums: CRC-32 of each block of `BLOCK_BYTES`, the last one shorter
    """

    name: str
    size: int
    checksums: tuple[int, ...]


_FORMAT_ENTRY = FileEntry(FORMAT, len(_FORMAT_TEXT), (zlib.crc32(_FORMAT_TEXT),))


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a file of a checkpoint.

    Attributes:
        file: its name; ".": of the directory
        what: is wrong with it
    """

    file: str
    what: str

    def __str__(self) -> str:
        return self.what if self.file == "." else f"{ascii(self.file)[1:-1]}: {self.what}"


OnDamage = Callable[[str, Sequence[Fault]], None]
"""Is told the name of a checkpoint that was passed over, and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A committed checkpoint. In a `with` it is not removed by another process that prunes.

    Attributes:
        folder: of the checkpoints
        name: of its directory
        step: of the training
        serial: grows from one checkpoint of the folder to the next
        ranks: that wrote it
        files: by name
        contents: that `Draft.commit` was given
    """

    folder: Path
    name: str
    step: int
    serial: int
    ranks: int
    files: Mapping[str, FileEntry]
    contents: Mapping[str, Any] = field(repr=False)
    _disk: LocalDisk = field(repr=False, compare=False)
    _held: list[Callable[[], None]] = field(repr=False, compare=False, default_factory=list)

    @property
    def path(self) -> Path:
        """Its directory."""
        return self.folder / self.name

    def path_of(self, name: str) -> Path:
        """Where a file of it lies.

        Args:
            name: of the file

        Raises:
            CorruptDataError: it has no such file
        """
        if name not in self.files:
            raise CorruptDataError(
                f"{self.path} has no file {name!a}: it was not written as a checkpoint of this kind",
                code="checkpoint.no-such-file",
                path=str(self.path),
                file=name,
            )
        return self.path / name

    def document(self, name: str) -> dict[str, Any]:
        """A document that `Draft.commit` was given; its checksum is compared as it is read.

        Args:
            name: of the file

        Raises:
            CorruptDataError: it is missing or damaged
        """
        path = self.path_of(name)
        try:
            content = read_bounded(self._disk, path, _LARGEST_DOCUMENT)
        except OSError as error:
            _refuse(path, f"it cannot be read: {reason_of(error)}")
        entry = self.files[name]
        if len(content) != entry.size or _checksums(content) != entry.checksums:
            _refuse(path, "its bytes are not those that were written")
        return _decode(content, path)

    def __enter__(self) -> "Checkpoint":
        try:
            release = self._disk.hold(self.path, shared=True)
        except FileNotFoundError:
            release = None
        except OSError as error:
            _refuse(self.path, f"it cannot be read: {reason_of(error)}")
        if release is None:
            _refuse(self.path, _REMOVED)
        self._held.append(release)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.pop()()


class Store:
    """The checkpoints in a folder.

    Args:
        folder: of the checkpoints; made when the first one begins
        disk: that the folder is on
    """

    def __init__(self, folder: str | Path, *, disk: LocalDisk | None = None) -> None:
        self.folder = Path(os.path.realpath(folder))  # `resolve` raises no OSError where links go in a circle
        self._disk: LocalDisk = LocalDisk() if disk is None else disk
        self._sound: set[tuple[str, int]] = set()
        """Those that were read back from the disk: name and serial."""

    def check_space(self, needed: int) -> None:
        """Refuse what the disk has no room for.

        Args:
            needed: by the files that are to be written [bytes]

        Raises:
            EnvironmentProblem: less is free (`checkpoint.no-space`, with `needed` and `free` in bytes)
        """
        _check_space(self._disk, self.folder, needed)

    def begin(self, step: int, *, ranks: int = 1) -> "Draft":
        """Start a checkpoint, on rank 0. What crashes left is removed first.

        Args:
            step: of the training, at least 0
            ranks: that will write to it

        Returns:
            The draft, for this rank; the others `join` its name.

        Raises:
            EnvironmentProblem: the folder cannot be written to
        """
        if step < 0 or ranks < 1:
            raise InputError(
                f"a checkpoint has a step of at least 0 and at least 1 rank, got {step} and {ranks}",
                code="checkpoint.wrong-step",
                step=step,
                ranks=ranks,
            )
        try:
            self._make_folder(self.folder)
            self.sweep()
            marked = self._marked()
            before = [one.serial for one in marked if isinstance(one, Checkpoint)]
            # What cannot be read now may be read again later: it is older than this one then.
            serial = 1 + max(before, default=0) + len(marked) - len(before)
            name = self._make_directory(step)
            path = self.folder / name
            release = self._disk.hold(path)
            if release is None:
                raise FileExistsError(errno.EEXIST, "another process takes it for its own", str(path))
            draft = Draft(self.folder, name, self._disk, step=step, ranks=ranks, serial=serial, release=release)
        except OSError as error:
            _fail(self.folder, error, disk=self._disk)
        try:
            _put(self._disk, path / FORMAT, [_FORMAT_TEXT], len(_FORMAT_TEXT))
            self._disk.sync_directory(path)
            self._disk.sync_directory(self.folder)
        except BaseException as error:
            draft.abandon()
            if isinstance(error, OSError):
                _fail(path, error, disk=self._disk)
            raise
        return draft

    def join(self, name: str) -> "Draft":
        """Take part in a checkpoint that rank 0 began.

        Args:
            name: of its draft

        Raises:
            EnvironmentProblem: it is not there, since this rank sees another folder; or it cannot be read
        """
        path = self.folder / _directory_name(name)
        try:
            found = read_bounded(self._disk, path / FORMAT, _LARGEST_MARKER)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                _fail(path, error)
            raise EnvironmentProblem(
                f"{path}, which rank 0 made, cannot be seen here ({reason_of(error)}): all ranks write to one folder, "
                "take one on a file system that they share",
                code="checkpoint.folder-not-shared",
                path=str(path),
            ) from error
        if found != _FORMAT_TEXT:
            _refuse(path / FORMAT, "it is not that of a checkpoint")
        return Draft(self.folder, name, self._disk)

    def committed(self, on_damage: OnDamage | None = None) -> list[Checkpoint]:
        """The committed checkpoints, newest first. Their files were not verified.

        Args:
            on_damage: is told of each whose marker or manifest is damaged, or cannot be read

        Raises:
            EnvironmentProblem: the folder cannot be read
        """
        marked = self._marked()
        for found in marked:
            if on_damage is not None and not isinstance(found, Checkpoint):
                on_damage(found.name, [found.fault])
        return [found for found in marked if isinstance(found, Checkpoint)]

    def open(self, name: str) -> Checkpoint:
        """A committed checkpoint by its name. Its files are not verified.

        Args:
            name: of its directory

        Raises:
            CorruptDataError: it is not committed, or its marker or manifest is damaged
        """
        return self._read(_directory_name(name))

    def open_newest(self, on_damage: OnDamage | None = None) -> Checkpoint:
        """The newest committed checkpoint of which every file is as it was written.

        Args:
            on_damage: is told of each newer one that is damaged

        Raises:
            InputError: no checkpoint was ever committed there
            CorruptDataError: all are damaged
            EnvironmentProblem: the folder cannot be read
        """
        damaged: list[tuple[str, Sequence[Fault]]] = []
        for found in self._marked():
            if isinstance(found, Checkpoint):
                try:
                    with found:
                        faults = self.verify(found)
                except CorruptDataError as error:
                    if error.figures["what"] == _REMOVED:
                        # There are newer ones.
                        return self.open_newest(on_damage)
                    faults = [_fault_of(error)]
                if not faults:
                    return found
            else:
                faults = [found.fault]
            damaged.append((found.name, faults))
            if on_damage is not None:
                on_damage(found.name, faults)
        if not damaged:
            raise InputError(
                f"{self.folder} has no committed checkpoint: none was saved there (--save-every saves them), or its "
                "save did not end",
                code="checkpoint.none",
                path=str(self.folder),
            )
        raise CorruptDataError(
            f"every checkpoint in {self.folder} is damaged: "
            + "; ".join(f"{name} ({', '.join(map(str, faults))})" for name, faults in damaged),
            code="checkpoint.all-damaged",
            path=str(self.folder),
            damaged={name: [str(fault) for fault in faults] for name, faults in damaged},
        )

    def settle(self, checkpoint: Checkpoint) -> None:
        """Put on the disk that a checkpoint is committed, before a training goes on from it.

        A process that was stopped while it committed may have left the marker in the memory of the system alone; all
        else was on the disk before. Where the folder cannot be written to, nothing is done.

        Args:
            checkpoint: of this folder
        """
        with contextlib.suppress(OSError):
            self._disk.sync_directory(checkpoint.path)
            read_bounded(self._disk, checkpoint.path / MARKER, _LARGEST_MARKER, from_disk=True)

    def verify(self, checkpoint: Checkpoint, *, from_disk: bool = False) -> list[Fault]:
        """Compare every file with what was written.

        Args:
            checkpoint: of this folder
            from_disk: not with what memory keeps of a file, where the system lets that be dropped

        Returns:
            What is wrong; empty: nothing.
        """
        path = checkpoint.path
        try:
            if from_disk:
                self._disk.sync_directory(path)
            present = {found.name: found for found in self._disk.list(path, follow=True)}
            if self._read(checkpoint.name, from_disk=from_disk) != checkpoint:
                return [Fault(MANIFEST, "it is not the one that was opened")]
        except OSError as error:
            return [Fault(".", f"it cannot be read: {reason_of(error)}")]
        except CorruptDataError as error:
            return [_fault_of(error)]
        known = checkpoint.files.keys() | {MANIFEST, MARKER, FORMAT}
        faults = [Fault(name, "it is not in the manifest") for name in present if name not in known]
        sound = []
        for entry in (_FORMAT_ENTRY, *checkpoint.files.values()):
            found = present.get(entry.name)
            if found is None:
                faults.append(Fault(entry.name, "it is missing"))
            elif found.kind != "file":
                what = f"it cannot be read: {found.problem}" if found.problem else "it is a link or a special file"
                faults.append(Fault(entry.name, what))
            elif found.size != entry.size:
                faults.append(Fault(entry.name, f"it has {found.size} bytes, {entry.size} were written"))
            else:
                sound.append(entry)
        return faults + self._compare(path, sound, from_disk=from_disk)

    def verify_all(self, name: str | None = None) -> dict[str, list[Fault]]:
        """What is wrong with each checkpoint that was committed, by name, the newest first; empty: nothing.

        Args:
            name: of the only one that is asked for; None: all are

        Raises:
            EnvironmentProblem: the folder cannot be read
        """
        try:
            found = self._marked() if name is None else [self.open(name)]
        except CorruptDataError as error:
            if name is None:
                raise
            return {name: [_fault_of(error)]}
        return {one.name: self.verify(one) if isinstance(one, Checkpoint) else [one.fault] for one in found}

    def prune(self, keep: int = 2, on_damage: OnDamage | None = None) -> list[str]:
        """Remove old checkpoints; only those with at least `keep` newer ones that are as they were written.

        The newer ones are read back from the disk, each once in the life of this object.

        Args:
            keep: checkpoints that stay, at least 1
            on_damage: is told of each that is found damaged

        Returns:
            Names of what was removed.

        Raises:
            EnvironmentProblem: the folder cannot be read or written to
        """
        if keep < 1:
            raise InputError(f"at least 1 checkpoint is kept, got {keep}", code="checkpoint.keeps-none", keep=keep)
        sound, removed = 0, []
        for found in self._marked():
            if sound == keep:
                if self._remove(found.name):
                    removed.append(found.name)
                continue
            if isinstance(found, Checkpoint):
                faults = self._read_back(found)
            else:
                faults = [found.fault]
            sound += not faults
            if faults and on_damage is not None:
                on_damage(found.name, faults)
        return removed

    def sweep(self) -> list[str]:
        """Remove what saves left that did not end: directories of Trimaran without a marker, which nobody holds.

        Returns:
            Names of what was removed.

        Raises:
            EnvironmentProblem: the folder cannot be read or written to
        """
        return [name for name in self._named() if self._is_left(name) and self._remove(name)]

    # -----------------------------------------------------------------------------------------------------------------
    # The folder

    def _make_folder(self, path: Path) -> None:
        """Make a folder and those above it, each name on the disk before the next one is made below it."""
        try:
            self._disk.make_directory(path)
        except FileExistsError:
            pass
        except FileNotFoundError:
            self._make_folder(path.parent)
            with contextlib.suppress(FileExistsError):
                self._disk.make_directory(path)
        else:
            self._sync_above(path.parent)
        # Also of one that was there: a process that made it may have been stopped before this.
        self._sync_above(path)

    def _sync_above(self, path: Path) -> None:
        with contextlib.suppress(PermissionError):  # one that may be passed through and not read
            self._disk.sync_directory(path.parent)

    def _make_directory(self, step: int) -> str:
        """A new one for a step; its name."""
        taken = self._named()
        for copy in itertools.count(1):
            name = f"step-{step:08d}" + (f"-{copy}" if copy > 1 else "")
            if name not in taken:
                with contextlib.suppress(FileExistsError):
                    self._disk.make_directory(self.folder / name)
                    return name
        raise ExecutionError("no name is free")

    def _named(self) -> dict[str, DirectoryEntry]:
        """What may be a checkpoint, by name: directories, links, and what cannot be looked at."""
        try:
            found = self._disk.list(self.folder)
        except FileNotFoundError:
            return {}
        kinds = ("directory", "link")
        return {one.name: one for one in found if is_checkpoint_name(one.name) and (one.problem or one.kind in kinds)}

    def _marked(self) -> list["Checkpoint | _Damaged"]:
        """All that has a marker, newest first. One that cannot be read is placed by the step in its name."""
        whole: list[Checkpoint] = []
        damaged: list[_Damaged] = []
        try:
            for name in self._named():
                try:
                    if any(found.name == MARKER for found in self._disk.list(self.folder / name, follow=True)):
                        whole.append(self._read(name))
                except CorruptDataError as error:
                    damaged.append(_Damaged(name, _fault_of(error)))
                except OSError as error:
                    if error.errno in _OF_PROCESS:
                        raise
                    # Not one that was removed since it was listed.
                    if not isinstance(error, FileNotFoundError) or name in self._named():
                        damaged.append(_Damaged(name, Fault(".", f"it cannot be read: {reason_of(error)}")))
        except OSError as error:
            _fail(self.folder, error)
        placed: list[tuple[float, str, Checkpoint | _Damaged]] = [(one.serial, one.name, one) for one in whole]
        for one in damaged:
            before = [good.serial for good in whole if _order(good.name) < _order(one.name)]
            placed.append((max(before, default=0) + 0.5, one.name, one))
        return [one for _, _, one in sorted(placed, key=lambda entry: entry[:2], reverse=True)]

    def _read(self, name: str, *, from_disk: bool = False) -> Checkpoint:
        """A checkpoint from its marker and manifest; `CorruptDataError` where they are not as they were written."""
        path = self.folder / name
        marker = self._read_part(path / MARKER, _LARGEST_MARKER, from_disk=from_disk)
        if not marker.strip(b"\0"):
            _refuse(path / MARKER, BLANK)
        plain = _decode(marker, path / MARKER)
        stated = {key: plain.get(key) for key in ("format", "manifest_size", "manifest_sha256")}
        if _marker(stated) != marker:
            _refuse(path / MARKER, "it is not as it was written")
        if plain["format"] != _VERSION:
            _refuse(path / MARKER, f"it has format {plain['format']!r}, this version of Trimaran reads {_VERSION}")
        manifest = self._read_part(path / MANIFEST, _LARGEST_MANIFEST, from_disk=from_disk)
        if len(manifest) != plain["manifest_size"] or hashlib.sha256(manifest).hexdigest() != plain["manifest_sha256"]:
            _refuse(path / MANIFEST, f"it is not the one that {MARKER} stands for")
        return self._decode_manifest(_decode(manifest, path / MANIFEST), name)

    def _read_part(self, path: Path, most: int, *, from_disk: bool) -> bytes:
        try:
            return read_bounded(self._disk, path, most, from_disk=from_disk)
        except FileNotFoundError:
            _refuse(path, "it is missing")
        except OSError as error:
            _refuse(path, f"it cannot be read: {reason_of(error)}")

    def _decode_manifest(self, plain: Mapping[str, Any], name: str) -> Checkpoint:
        try:
            manifest = msgspec.convert(plain, _Manifest, strict=True)
            files = {
                file: FileEntry(file, entry.size, tuple(int(crc, 16) for crc in entry.crc32))
                for file, entry in manifest.files.items()
            }
        except (msgspec.ValidationError, ValueError) as error:
            _refuse(self.folder / name / MANIFEST, str(error))
        if manifest.step != _order(name)[0]:
            _refuse(self.folder / name / MANIFEST, f"it is that of step {manifest.step}")
        for file, entry in files.items():
            blocks = -(-entry.size // BLOCK_BYTES)
            if not _is_file_name(file) or len(entry.checksums) != blocks or manifest.block_bytes != BLOCK_BYTES:
                _refuse(self.folder / name / MANIFEST, f"its entry {file!a} is none of a checkpoint")
        return Checkpoint(
            folder=self.folder,
            name=name,
            step=manifest.step,
            serial=manifest.serial,
            ranks=manifest.ranks,
            files=files,
            contents=manifest.contents,
            _disk=self._disk,
        )

    # -----------------------------------------------------------------------------------------------------------------
    # Verification

    def _read_back(self, checkpoint: Checkpoint) -> list[Fault]:
        """What is wrong with it on the disk; once it was read back without a fault it is not read again."""
        key = (checkpoint.name, checkpoint.serial)
        if key in self._sound:
            return []
        faults = self.verify(checkpoint, from_disk=True)
        if not faults:
            self._sound.add(key)
        return faults

    def _compare(self, path: Path, entries: Sequence[FileEntry], *, from_disk: bool) -> list[Fault]:
        """What differs from the checksums, block by block, several at a time."""
        with contextlib.ExitStack() as opened:
            blocks: list[tuple[FileEntry, OpenFile, int]] = []
            faults = []
            for entry in entries:
                try:
                    file = self._disk.open(path / entry.name)
                except OSError as error:
                    faults.append(Fault(entry.name, f"it cannot be read: {reason_of(error)}"))
                    continue
                opened.callback(file.close)
                if from_disk:
                    file.forget()
                blocks += [(entry, file, number) for number in range(len(entry.checksums))]
            if sum(entry.size for entry in entries) <= _SMALL_BYTES:
                compared = list(itertools.starmap(_compare_block, blocks))
            else:
                with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
                    compared = list(pool.map(lambda block: _compare_block(*block), blocks))
        wrong: dict[str, list[str]] = {}
        for (entry, _, _), what in zip(blocks, compared, strict=True):
            if what is not None:
                wrong.setdefault(entry.name, []).append(what)
        for name, found in wrong.items():
            more = f" (and {len(found) - 1} more places)" if len(found) > 1 else ""
            faults.append(Fault(name, found[0] + more))
        return faults

    # -----------------------------------------------------------------------------------------------------------------
    # Removal

    def _is_left(self, name: str) -> bool:
        """Whether a directory is Trimaran's and has no marker. Other programs name directories alike."""
        path = self.folder / name
        try:
            found = {one.name: one.kind for one in self._disk.list(path)}
            if MARKER in found or any(kind == "directory" for kind in found.values()):
                return False
            if not found:
                return True
            if found.get(FORMAT) != "file":
                return False
            text = read_bounded(self._disk, path / FORMAT, _LARGEST_MARKER)
        except OSError:
            return False
        # The text was on the disk before any other file was made.
        return text == _FORMAT_TEXT or (len(found) == 1 and _FORMAT_TEXT.startswith(text.rstrip(b"\0")))

    def _remove(self, name: str) -> bool:
        """Remove a directory of Trimaran, the marker first; False: somebody holds it, or removes it too."""
        path = self.folder / name
        try:
            found = self._named().get(name)
            # What a link leads to is not of this folder; and what cannot be looked at is left alone.
            release = self._disk.hold(path) if found is not None and found.kind == "directory" else None
            if release is None:
                return False
            try:
                _remove_directory(self._disk, path)
                self._disk.sync_directory(self.folder)
            finally:
                release()
        except FileNotFoundError:
            return False
        except OSError as error:
            _fail(path, error)
        return True


class Draft:
    """A checkpoint that is being written; from `Store.begin` on rank 0, from `Store.join` on the others.

    Attributes:
        name: of its directory, for `Store.join`
        path: of its directory
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        disk: LocalDisk,
        *,
        step: int = 0,
        ranks: int = 0,
        serial: int = 0,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.path = folder / name
        self._folder, self._disk = folder, disk
        self._step, self._ranks, self._serial, self._release = step, ranks, serial, release

    def write(self, name: str, chunks: Iterable[Bytes], *, size: int) -> FileEntry:
        """Write a file; when this returns, it is on the disk. Checksums are computed meanwhile by another thread.

        Args:
            name: of the file, new in this checkpoint
            chunks: its content, such as a `TensorStream`; none of them may change until this returns
            size: of all chunks together [bytes]

        Returns:
            The entry for `commit`, which rank 0 calls.

        Raises:
            EnvironmentProblem: it cannot be written (`checkpoint.unwritable`), or there is no room for it
                (`checkpoint.no-space`, with `needed` and `free` in bytes); nothing of it remains
            InputError: the name cannot be that of a file of a checkpoint
        """
        if not _is_file_name(name):
            raise InputError(
                f"{name!a} cannot be a file of a checkpoint: letters, digits, dots, dashes and underscores make a "
                f"name, and {MANIFEST}, {MARKER} and {FORMAT} are taken",
                code="checkpoint.wrong-file-name",
                name=name,
            )
        path = self.path / name
        _check_space(self._disk, path, size)
        try:
            entry = FileEntry(name, size, _put(self._disk, path, chunks, size))
            self._disk.sync_directory(self.path)
        except OSError as error:
            _fail(path, error, needed=size, disk=self._disk)
        return entry

    def commit(
        self,
        entries: Sequence[FileEntry],
        documents: Mapping[str, Mapping[str, Any]] | None = None,
        contents: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Commit, on rank 0, when every rank has written. If this raises, there is no such checkpoint.

        Args:
            entries: of all files of all ranks
            documents: JSON objects by name of the file, such as "state.json"; figures in them are finite
            contents: a JSON object for the manifest, such as a table of the tensors

        Returns:
            The checkpoint.

        Raises:
            EnvironmentProblem: a file of a rank is not there, as when ranks write to different disks; or writing failed
            InputError: a document is no JSON
        """
        committed = False
        try:
            self._compare_sizes(entries)
            files = {entry.name: entry for entry in entries}
            for name, document in (documents or {}).items():
                text = _document(document, name, _LARGEST_DOCUMENT)
                files[name] = self.write(name, [text], size=len(text))
            manifest = _document(
                {
                    "format": _VERSION,
                    "step": self._step,
                    "serial": self._serial,
                    "ranks": self._ranks,
                    "block_bytes": BLOCK_BYTES,
                    "files": {
                        name: {"size": entry.size, "crc32": [f"{crc:08x}" for crc in entry.checksums]}
                        for name, entry in files.items()
                    },
                    "contents": dict(contents or {}),
                },
                MANIFEST,
                _LARGEST_MANIFEST,
            )
            digest = hashlib.sha256(manifest).hexdigest()
            marker = _marker({"format": _VERSION, "manifest_size": len(manifest), "manifest_sha256": digest})
            _check_space(self._disk, self.path, len(manifest) + len(marker))
            try:
                _put(self._disk, self.path / MANIFEST, [manifest], len(manifest))
                self._disk.sync_directory(self.path)
                _put(self._disk, self.path / MARKER, [marker], len(marker))
                self._disk.sync_directory(self.path)
            except OSError as error:
                _fail(self.path, error, needed=len(manifest) + len(marker), disk=self._disk)
            committed = True
        finally:
            if not committed:
                self.abandon()
        self._let_go()
        return Checkpoint(
            folder=self._folder,
            name=self.name,
            step=self._step,
            serial=self._serial,
            ranks=self._ranks,
            files=files,
            contents=_decode(manifest, self.path / MANIFEST)["contents"],
            _disk=self._disk,
        )

    def abandon(self) -> None:
        """Remove what was written, on rank 0. What cannot be removed now is removed when the next checkpoint begins."""
        with contextlib.suppress(OSError):
            _remove_directory(self._disk, self.path)
            self._disk.sync_directory(self._folder)
        self._let_go()

    def _let_go(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def _compare_sizes(self, entries: Sequence[FileEntry]) -> None:
        """Whether rank 0 sees what the ranks wrote."""
        try:
            found = {one.name: one.size for one in self._disk.list(self.path) if one.kind == "file"}
        except OSError as error:
            _fail(self.path, error)
        unseen = [entry.name for entry in entries if found.get(entry.name) != entry.size]
        if unseen:
            raise EnvironmentProblem(
                f"{', '.join(unseen)} cannot be seen in {self.path} by rank 0 as written by the other ranks: all ranks "
                "write to one folder, take one on a file system that they share",
                code="checkpoint.files-not-shared",
                path=str(self.path),
                files=tuple(unseen),
            )


class _Damaged(NamedTuple):
    """What has a marker and is no committed checkpoint."""

    name: str
    fault: Fault


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    size: _Count
    crc32: list[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]]


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    format: _Count
    step: _Count
    serial: _Count
    ranks: _Count
    block_bytes: _Count
    files: dict[str, _File]
    contents: dict[str, Any]


class _Checksums:
    """Checksums of the blocks of what is added."""

    def __init__(self) -> None:
        self._done: list[int] = []
        self._current, self._position = 0, 0

    def add(self, piece: memoryview) -> None:
        while piece:
            part = piece[: BLOCK_BYTES - self._position]
            self._current = zlib.crc32(part, self._current)
            self._position += len(part)
            piece = piece[len(part) :]
            if self._position == BLOCK_BYTES:
                self._done.append(self._current)
                self._current, self._position = 0, 0

    @property
    def of_blocks(self) -> tuple[int, ...]:
        return (*self._done, *([self._current] if self._position else []))


def _put(disk: LocalDisk, path: Path, chunks: Iterable[Bytes], size: int) -> tuple[int, ...]:
    """Write a new file, synced, or nothing; its checksums."""
    file = disk.create(path)
    try:
        try:
            checksums = _write(file, chunks, size, path)
            file.sync()
        finally:
            file.close()
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(path)
        raise
    return checksums


def _write(file: Writing, chunks: Iterable[Bytes], size: int, path: Path) -> tuple[int, ...]:
    """Write, and compute checksums meanwhile."""
    checksums, written = _Checksums(), 0
    with ThreadPoolExecutor(1, thread_name_prefix="checksums") as pool:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            for start in range(0, len(view), _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                if size > _SMALL_BYTES:
                    added = pool.submit(checksums.add, piece)
                    file.write(piece)
                    added.result()
                else:
                    checksums.add(piece)
                    file.write(piece)
            written += len(view)
    if written != size:
        raise ExecutionError(
            f"{path} was to have {size} bytes, its content has {written}: it changed while it was written",
            code="checkpoint.wrong-size",
            path=str(path),
            expected=size,
            written=written,
        )
    return checksums.of_blocks


def _checksums(content: bytes) -> tuple[int, ...]:
    checksums = _Checksums()
    checksums.add(memoryview(content))
    return checksums.of_blocks


def _remove_directory(disk: LocalDisk, path: Path) -> None:
    """Remove what is in a directory of Trimaran, and itself: marker, sync, the rest, sync, FORMAT.

    At each moment it is committed and whole, or has FORMAT and no marker, or is empty: a crash leaves nothing that
    would be loaded, and nothing that would not be removed later.
    """
    names = [found.name for found in disk.list(path)]
    if MARKER in names:
        disk.unlink(path / MARKER)
        disk.sync_directory(path)
    for name in names:
        if name not in (MARKER, FORMAT):
            disk.unlink(path / name)
    disk.sync_directory(path)
    left = [found.name for found in disk.list(path)]
    if left == [FORMAT]:
        disk.unlink(path / FORMAT)
    disk.remove_directory(path)


def _compare_block(entry: FileEntry, file: OpenFile, number: int) -> str | None:
    offset = number * BLOCK_BYTES
    size = min(BLOCK_BYTES, entry.size - offset)
    block = _thread_buffer(size)
    try:
        count = file.read_into(block, offset)
    except OSError as error:
        return f"it cannot be read: {reason_of(error)}"
    if count == size and zlib.crc32(block) == entry.checksums[number]:
        return None
    return f"bytes {offset} to {offset + size - 1} are not those that were written"


_buffers = threading.local()


def _thread_buffer(size: int) -> memoryview:
    """Memory of this thread, used again for the next block."""
    block: memoryview | None = getattr(_buffers, "block", None)
    if block is None or len(block) < size:
        block = _buffers.block = memoryview(bytearray(size))
    return block[:size]


def _order(name: str) -> tuple[int, int]:
    """Step and copy in the name of a directory."""
    match = _DIRECTORY.fullmatch(name)
    return (0, 0) if match is None else (int(match["step"]), int(match["copy"] or 1))


def _directory_name(name: str) -> str:
    if not is_checkpoint_name(name):
        raise InputError(
            f"{name!a} is no name of a checkpoint, such as step-00000500", code="checkpoint.wrong-name", name=name
        )
    return name


def _is_file_name(name: str) -> bool:
    return _FILE.fullmatch(name) is not None and name not in (MANIFEST, MARKER, FORMAT)


def _marker(stated: Mapping[str, Any]) -> bytes:
    """The content of a marker, with a checksum of what it states: so it is known which of two files is damaged."""
    return _encode({**stated, "crc32": f"{zlib.crc32(_encode(stated, MARKER)):08x}"}, MARKER)


def _document(plain: Mapping[str, Any], name: str, most: int) -> bytes:
    """JSON of an object that `_decode` will read: what could not be read again is not written."""
    content = _encode(plain, name)
    problem = f"it has {len(content)} bytes, and at most {most} are read again" if len(content) > most else ""
    try:
        if not problem:
            _parse(content, name)
    except TrimaranError as error:
        problem = error.message
    if problem:
        raise InputError(
            f"{name} cannot be part of a checkpoint: {problem}", code="checkpoint.unreadable-document", name=name
        )
    return content


def _encode(plain: Mapping[str, Any], name: str) -> bytes:
    """JSON of an object, the same for the same object."""
    try:
        return (json.dumps(plain, allow_nan=False, separators=(",", ":")) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} cannot be written as JSON: {error}", code="checkpoint.not-json", name=name) from error


def _decode(content: bytes, path: Path) -> dict[str, Any]:
    try:
        return _parse(content, path.name)
    except TrimaranError as error:
        _refuse(path, error.message)


def _parse(content: bytes, name: str) -> dict[str, Any]:
    """A JSON object; generators have integers of 128 bits, and names of a user's may hold any character."""
    return decode_object(
        content,
        source=name,
        nul=True,
        most_values=_MOST_VALUES,
        largest=_LARGEST_INTEGER,
        advice="another checkpoint may be whole",
    )


def _fault_of(error: CorruptDataError) -> Fault:
    return Fault(str(error.figures["file"]), str(error.figures["what"]))


def _refuse(path: Path, what: str) -> NoReturn:
    raise CorruptDataError(
        f"{path} is damaged: {what}", code="checkpoint.damaged", path=str(path), file=path.name, what=what
    )


def _check_space(disk: LocalDisk, path: Path, needed: int) -> None:
    try:
        free = disk.free_bytes(path)
    except OSError as error:
        _fail(path, error)
    if needed > free:
        _no_space(path, needed, free)


def _no_space(path: Path, needed: int, free: int, error: OSError | None = None) -> NoReturn:
    raise EnvironmentProblem(
        f"no room for {path}: {needed} bytes are needed, {free} are free. Free some, or take a folder on another disk",
        code="checkpoint.no-space",
        path=str(path),
        needed=needed,
        free=free,
    ) from error


def _fail(path: Path, error: OSError, *, needed: int = 0, disk: LocalDisk | None = None) -> NoReturn:
    if disk is not None and error.errno in _FULL:
        try:
            free = disk.free_bytes(path)
        except OSError:
            free = 0
        _no_space(path, needed, free, error)
    raise EnvironmentProblem(
        f"{path} cannot be read or written: {reason_of(error)}",
        code="checkpoint.unwritable",
        path=str(path),
        errno=error.errno,
    ) from error
