"""Curve files: the points of a curve with task, source and learning-rate recipe, as TOML or JSON; CSV is read too.

    schema_version = 1
    task = "digits to accuracy 0.97"
    unit = "epochs"
    points = [
      {global_batch = 64, amount = 4.1, runs = 2, deviation = 0.14, values = [4.0, 4.2]},
    ]

Fitted constants are not stored: they follow from the points. The path of a learning-rate rule is relative to the folder
of the curve file, not to the folder of the command that reads it.

Curves that were published, by name: reference convergence points, and projections that are known only as ratios.

`catalog.toml` is written by benchmarks/convergence/catalog.py from tables of published points.
"""

import csv
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimaran.base.decoding import check_version, decode_object, decode_toml, from_plain
from trimaran.base.errors import EnvironmentProblem, InputError, TrimaranError, did_you_mean
from trimaran.base.files import packaged_toml, put_in_place, read_text, toml_text
from trimaran.convergence.curve import Curve, fit_curve
from trimaran.convergence.run_tables import read_table
from trimaran.convergence.types import CurveTable, check_table
from trimaran.jobs.learning_rate import rule_seen_from
from trimaran.program.json_files import to_plain

CURVE_VERSION = 1


def read_curve(path: Path) -> Curve:
    """The curve of a file.

    Args:
        path: a curve file (.toml, .json), or a table of runs (anything else, read as CSV)

    Raises:
        InputError: it cannot be read, or a place in it is wrong: the message names it
        CorruptDataError: its content does not match its name, as in a truncated file
    """
    try:
        return fit_curve(_read(path))
    except TrimaranError:
        raise
    except (ArithmeticError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path}: a figure or a cell in it is too large to be worked with ({error}): correct it",
            code="curve-file.figure-too-large",
            file=str(path),
        ) from None


def _read(path: Path) -> CurveTable:
    if path.suffix.lower() not in (".toml", ".json"):
        return read_table(path)
    text = read_text(path)
    if path.suffix.lower() == ".json":
        plain = decode_object(text, source=str(path))
    else:
        plain = decode_toml(text, source=str(path))
    check_version(plain, CURVE_VERSION, source=str(path))
    return _with_rule(table_of(plain, source=str(path)), path.parent, relative=False)


def _with_rule(table: CurveTable, folder: Path, *, relative: bool) -> CurveTable:
    if table.recipe is None:
        return table
    rule = rule_seen_from(table.recipe.rule, folder, relative=relative)
    return replace(table, recipe=replace(table.recipe, rule=rule))


def write_curve(path: Path, table: CurveTable) -> None:
    """Write a curve file that `read_curve` reads back as the same table.

    Args:
        path: ends in .toml or .json; an existing file is replaced
        table: to write

    Raises:
        InputError: another ending
        EnvironmentProblem: it cannot be written there
    """
    plain = {"schema_version": CURVE_VERSION} | plain_table(_with_rule(table, path.parent, relative=True))
    if path.suffix.lower() == ".json":
        text = json.dumps(plain, indent=2, allow_nan=False) + "\n"
    elif path.suffix.lower() == ".toml":
        text = toml_text(plain)
    else:
        raise InputError(
            f"{path}: a curve file ends in .toml or .json", code="curve-file.unknown-suffix", file=str(path)
        )
    try:
        put_in_place(path, text.encode())
    except (OSError, UnicodeError) as error:
        raise EnvironmentProblem(
            f"{path} cannot be written: {error}", code="curve-file.unwritable", path=str(path)
        ) from error


def plain_table(table: CurveTable) -> dict[str, Any]:
    """A table as JSON data, without default values; points last."""
    plain: dict[str, Any] = to_plain(table, defaults=False)
    points = plain.pop("points")
    return plain | {"points": points}


def table_of(plain: Mapping[str, Any], *, source: str) -> CurveTable:
    """JSON data as a table, checked.

    Args:
        plain: content of a file, without its schema version
        source: its name in errors

    Raises:
        InputError: a missing or unknown key, a figure out of range
    """
    table = from_plain(dict(plain), CurveTable, source=source)
    check_table(table, source=source)
    return replace(table, points=tuple(sorted(table.points, key=lambda point: point.global_batch)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DoublingRatio:
    """Published effect of one doubling of the batch, where a study names neither batch nor epochs.

    Attributes:
        name: in the catalog
        network: reference of the network
        ratio: epochs at twice the batch over epochs at the batch
        source: how it is known
    """

    name: str
    network: str
    ratio: float
    source: str


def catalog_names() -> tuple[str, ...]:
    """Names of the curves, sorted."""
    return tuple(sorted(_catalog()["curves"]))


def doubling_ratios() -> tuple[DoublingRatio, ...]:
    """Projections that are known only as the ratio of one doubling."""
    return tuple(
        DoublingRatio(name=name, network=entry["network"], ratio=float(entry["ratio"]), source=entry["source"])
        for name, entry in sorted(_catalog()["ratios"].items())
    )


def find_curve(name_or_path: str | Path) -> Curve:
    """A curve by its name in the catalog, or of a file.

    Args:
        name_or_path: such as "resnet50", or a curve file or a table of runs

    Raises:
        InputError: no such name and no such file, or a file that is no curve
    """
    text = str(name_or_path)
    name = text.strip().lower().replace("_", "-")
    if name in _catalog()["curves"]:
        return _curve(name)
    path = Path(text)
    if _exists(path):
        return read_curve(path)
    for known in doubling_ratios():
        if known.name == name:
            raise InputError(
                f'"{name}" is no curve: the study tells only that twice the batch needs {known.ratio:g} times the '
                "epochs, and not at which batch; measure one with trimaran crossover --measure",
                code="curve.ratio-only",
                name=name,
                ratio=known.ratio,
            )
    raise InputError(
        f'"{text}": no curve of the catalog and no file{did_you_mean(name, catalog_names())}',
        code="curve.unknown",
        name=text,
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        # Too long for the name of a file, or with a null in it.
        return False


@functools.cache
def _curve(name: str) -> Curve:
    return fit_curve(table_of(_catalog()["curves"][name], source=f'catalog curve "{name}"'))


@functools.cache
def _catalog() -> Mapping[str, Mapping[str, Any]]:
    return packaged_toml("trimaran.convergence", "catalog.toml")
