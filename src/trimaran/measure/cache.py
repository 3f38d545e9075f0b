"""Measured costs are kept on disk and not measured again.

One JSON file a fingerprint, under `$TRIMARAN_CACHE/costs` or `~/.cache/trimaran/costs`. Two runs at once may both
write: each merges what it found into what is there, under a lock, and puts the new file in place of the old one in
one step, so that a reader never sees half a file. A damaged file is set aside, not deleted, and its content is
measured again.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from trimaran.base.errors import EnvironmentProblem, InputError, TrimaranError
from trimaran.base.files import given, locked, put_in_place, read_bytes, set_aside
from trimaran.base.system import reason_of
from trimaran.pricing.table_files import decode_table, encode_table
from trimaran.pricing.tables import CostTable, Fingerprint, merge

_LOG = logging.getLogger(__name__)

Kept = TypeVar("Kept")


def cache_directory() -> Path:
    """Where measured costs are kept: `$TRIMARAN_CACHE`, else `$XDG_CACHE_HOME/trimaran`, else `~/.cache/trimaran`."""
    chosen = os.environ.get("TRIMARAN_CACHE")
    if chosen:
        return given(Path(chosen))
    base = os.environ.get("XDG_CACHE_HOME")
    return (given(Path(base)) if base else Path.home() / ".cache") / "trimaran"


def cache_path(fingerprint: Fingerprint) -> Path:
    """The file of a fingerprint."""
    digest = hashlib.sha256(msgspec.json.encode(fingerprint)).hexdigest()[:16]
    return cache_directory() / "costs" / f"{digest}.json"


def load_cached(fingerprint: Fingerprint) -> CostTable:
    """The known costs of a fingerprint; an empty table where there are none.

    A damaged file, or one of another version, is renamed to `<name>.damaged` and logged.
    """
    path = cache_path(fingerprint)
    return _table(path, fingerprint, lock=path.with_suffix(".lock"))


def store(table: CostTable) -> CostTable:
    """Add a table to what is kept.

    Args:
        table: what was measured just now; it counts where the file says otherwise

    Returns:
        What is kept now: the file's content and the table's.

    Raises:
        EnvironmentProblem: the directory cannot be written
    """
    return change_kept(table.fingerprint, lambda kept: merge([kept, table]))


def change_kept(fingerprint: Fingerprint, change: Callable[[CostTable], CostTable]) -> CostTable:
    """Put a table in place of the one that is kept.

    Args:
        fingerprint: of both
        change: makes the new one of the old one

    Returns:
        What is kept now.

    Raises:
        EnvironmentProblem: the directory cannot be written
    """
    path = cache_path(fingerprint)
    with cache_written(path, "measured costs"), locked(path.with_suffix(".lock")):
        changed = change(_table(path, fingerprint, lock=None))
        put_in_place(path, encode_table(changed))
    return changed


@contextmanager
def cache_written(path: Path, content: str) -> Iterator[None]:
    """Make the folder of a file in the cache, for the content that is written meanwhile.

    Args:
        path: of the file
        content: what to call it in errors, such as "measured costs"

    Raises:
        EnvironmentProblem: the folder cannot be made, or the file cannot be written
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write {content} to {path} ({reason_of(error)}); set TRIMARAN_CACHE to a directory that can be "
            "written",
            code="cache.unwritable",
            path=str(path),
        ) from error


def read_kept(path: Path, decode: Callable[[bytes], Kept], *, then: str, lock: Path | None = None) -> Kept | None:
    """The content of a file of the cache. A damaged file, or one of another version, is set aside and said once.

    Args:
        path: of the file
        decode: makes its content a value, or raises a `TrimaranError`
        then: what is done without it, such as "measuring again"
        lock: of those who write the file; None: each writes it whole, and the last one counts

    Returns:
        The content; None where there is none that can be used.
    """
    try:
        return _decoded(path, decode, then)
    except TrimaranError as error:
        damage = error
    with suppress(OSError), nullcontext() if lock is None else locked(lock):
        # Another process may have put a sound file in place since the damage was seen.
        try:
            return _decoded(path, decode, then)
        except TrimaranError as error:
            _LOG.warning("%s: set aside as %s, %s", error.message, set_aside(path).name, then)
            return None
    _LOG.warning("%s: %s", damage.message, then)
    return None


def _decoded(path: Path, decode: Callable[[bytes], Kept], then: str) -> Kept | None:
    try:
        content = read_bytes(path)
    except InputError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        if not isinstance(error.__cause__, FileNotFoundError):
            _LOG.warning("%s, %s", error.message, then)
        return None
    return decode(content)


def _table(path: Path, fingerprint: Fingerprint, *, lock: Path | None) -> CostTable:
    table = read_kept(path, partial(decode_table, origin=str(path)), then="measuring again", lock=lock)
    return table if table is not None and table.fingerprint == fingerprint else CostTable(fingerprint=fingerprint)
