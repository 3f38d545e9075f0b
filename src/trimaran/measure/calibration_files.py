"""Calibrations as JSON files, and the one of this machine that is kept.

A file carries a digest of its content, so that a truncated or edited one is refused instead of believed. The one that
is kept lies beside the measured costs, in `calibrations/<machine>.json` of the cache directory; a later calibration of
the same machine takes its place.
"""

import hashlib
import logging
import os
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from trimaran.costs.noise import Noise
from trimaran.costs.table_files import decode_table, encode_table
from trimaran.costs.tables import Fingerprint
from trimaran.errors import CorruptDataError, EnvironmentProblem, InputError, TrimaranError
from trimaran.measure.cache import cache_directory
from trimaran.measure.calibration import Calibration, DeviceFigures, LinkFigures

CALIBRATION_VERSION = 1

_LOG = logging.getLogger(__name__)


class CalibrationBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a calibration file holds beside its version and its digest.

    Attributes:
        fingerprint: where and how it was measured
        date: when it was finished, such as "2026-11-20T09:30:00+00:00"
        devices: the devices, one entry for those that are alike
        links: the transfers between them
        noise: how far identical runs are from each other, by number of ranks
        costs: cost tables as in the cache, one for the machine and one for each rate that links were held to
    """

    fingerprint: Fingerprint
    date: str
    devices: tuple[DeviceFigures, ...]
    links: tuple[LinkFigures, ...]
    noise: tuple[Noise, ...]
    costs: tuple[msgspec.Raw, ...]


class _File(CalibrationBody, frozen=True, forbid_unknown_fields=True):
    schema_version: int
    digest: str


def encode_calibration(calibration: Calibration) -> bytes:
    """A calibration as JSON; the same bytes for equal ones."""
    body = _body(calibration)
    content = {item: getattr(body, item) for item in body.__struct_fields__}
    whole = {"schema_version": CALIBRATION_VERSION, "digest": _digest(body), **content}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def decode_calibration(data: bytes, *, source: str = "calibration") -> Calibration:
    """The calibration in a JSON text that `encode_calibration` made.

    Args:
        data: the text
        source: what to call it in errors

    Raises:
        CorruptDataError: truncated or edited
        InputError: JSON, but no calibration; or written by another version of Trimaran
    """
    try:
        plain: Any = msgspec.json.decode(data)
        _check_version(plain, source)
        file = msgspec.json.decode(data, type=_File)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{source} is not a calibration: {error}", code="calibration.malformed", source=source
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptDataError(
            f"{source} is not JSON, it may have been truncated ({error}): calibrate again",
            code="calibration.not-json",
            source=source,
        ) from error
    costs = tuple(msgspec.Raw(msgspec.json.format(bytes(raw), indent=-1)) for raw in file.costs)
    content = {name: getattr(file, name) for name in CalibrationBody.__struct_fields__}
    if _digest(CalibrationBody(**{**content, "costs": costs})) != file.digest:
        raise CorruptDataError(
            f"{source} was edited or damaged after it was written, its digest does not match: calibrate again",
            code="calibration.digest-mismatch",
            source=source,
        )
    tables = tuple(decode_table(bytes(raw), origin=source) for raw in costs)
    del content["costs"]
    return Calibration(**content, tables=tables)


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file.

    Raises:
        InputError: no such file, no calibration, or written by another version of Trimaran
        CorruptDataError: truncated or edited
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}", code="calibration.unreadable", source=str(path)
        ) from error
    return decode_calibration(data, source=str(path))


def kept_path(fingerprint: Fingerprint) -> Path:
    """Where the calibration of a machine is kept, whatever the number of ranks and their links."""
    machine = replace(fingerprint, ranks=0, link="")
    values = [getattr(machine, item.name) for item in fields(Fingerprint)]
    digest = hashlib.sha256(msgspec.json.encode(values)).hexdigest()[:16]
    return cache_directory() / "calibrations" / f"{digest}.json"


def keep_calibration(calibration: Calibration) -> Path:
    """Keep a calibration as that of its machine.

    Returns:
        Where it is.

    Raises:
        EnvironmentProblem: the cache cannot be written
    """
    path = kept_path(calibration.fingerprint)
    unfinished = path.with_name(f"{path.stem}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(encode_calibration(calibration))
        unfinished.replace(path)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write the calibration to {path} ({error.strerror}); set TRIMARAN_CACHE to a directory that can be "
            "written",
            code="calibration.unwritable",
            path=str(path),
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return path


def kept_calibration(fingerprint: Fingerprint) -> Calibration | None:
    """The calibration that is kept of a machine; None where there is none, or it is damaged, which is logged."""
    path = kept_path(fingerprint)
    if not path.exists():
        return None
    try:
        return read_calibration(path)
    except TrimaranError as error:
        _LOG.warning("%s", error.message)
        return None


def _body(calibration: Calibration) -> CalibrationBody:
    return CalibrationBody(
        fingerprint=calibration.fingerprint,
        date=calibration.date,
        devices=calibration.devices,
        links=calibration.links,
        noise=calibration.noise,
        costs=tuple(
            msgspec.Raw(msgspec.json.format(encode_table(table).strip(), indent=-1)) for table in calibration.tables
        ),
    )


def _digest(body: CalibrationBody) -> str:
    return hashlib.sha256(msgspec.json.encode(body)).hexdigest()


def _check_version(plain: Any, source: str) -> None:
    found = plain.get("schema_version") if isinstance(plain, dict) else None
    if found is not None and found != CALIBRATION_VERSION:
        raise InputError(
            f"{source}: schema version {found}, this Trimaran reads {CALIBRATION_VERSION}; calibrate again",
            code="calibration.schema-version",
            found=found,
            expected=CALIBRATION_VERSION,
        )
