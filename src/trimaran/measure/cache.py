"""Measured costs are kept on disk and not measured again.

One JSON file a fingerprint, under `$TRIMARAN_CACHE/costs` or `~/.cache/trimaran/costs`. Two runs at once may both
write: each merges what it found into what is there, under a lock, and puts the new file in place of the old one in
one step, so that a reader never sees half a file. A damaged file is set aside, not deleted, and its content is
measured again.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError
from trimaran.base.files import put_in_place
from trimaran.pricing.table_files import decode_table, encode_table
from trimaran.pricing.tables import CostTable, Fingerprint, merge

_LOG = logging.getLogger(__name__)


def cache_directory() -> Path:
    """Where measured costs are kept: `$TRIMARAN_CACHE`, else `$XDG_CACHE_HOME/trimaran`, else `~/.cache/trimaran`."""
    chosen = os.environ.get("TRIMARAN_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trimaran"


def cache_path(fingerprint: Fingerprint) -> Path:
    """The file of a fingerprint."""
    digest = hashlib.sha256(msgspec.json.encode(fingerprint)).hexdigest()[:16]
    return cache_directory() / "costs" / f"{digest}.json"


def load_cached(fingerprint: Fingerprint) -> CostTable:
    """The known costs of a fingerprint; an empty table where there are none.

    A damaged file, or one of another version, is renamed to `<name>.damaged` and logged.
    """
    path = cache_path(fingerprint)
    try:
        return _read(path, fingerprint)
    except (CorruptDataError, InputError):
        with _locked(path.with_suffix(".lock")):
            return _read_or_set_aside(path, fingerprint)


def store(table: CostTable) -> CostTable:
    """Add a table to what is kept.

    Args:
        table: what was measured just now; it counts where the file says otherwise

    Returns:
        What is kept now: the file's content and the table's.

    Raises:
        EnvironmentProblem: the directory cannot be written
    """
    path = cache_path(table.fingerprint)
    with cache_written(path, "measured costs"), _locked(path.with_suffix(".lock")):
        merged = merge([_read_or_set_aside(path, table.fingerprint), table])
        put_in_place(path, encode_table(merged))
    return merged


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
            f"cannot write {content} to {path} ({error.strerror}); set TRIMARAN_CACHE to a directory that can be "
            "written",
            code="cache.unwritable",
            path=str(path),
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path, fingerprint: Fingerprint) -> CostTable:
    try:
        data = path.read_bytes()
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            _LOG.warning("cannot read %s (%s), measuring again", path, error.strerror)
        return CostTable(fingerprint=fingerprint)
    table = decode_table(data, origin=str(path))
    return table if table.fingerprint == fingerprint else CostTable(fingerprint=fingerprint)


def _read_or_set_aside(path: Path, fingerprint: Fingerprint) -> CostTable:
    # Under the lock: another run may have put a sound file in place since the damage was seen.
    try:
        return _read(path, fingerprint)
    except (CorruptDataError, InputError) as error:
        aside = path.with_suffix(".damaged")
        with suppress(OSError):
            path.replace(aside)
        _LOG.warning("%s: set aside as %s, measuring again", error.message, aside.name)
        return CostTable(fingerprint=fingerprint)
