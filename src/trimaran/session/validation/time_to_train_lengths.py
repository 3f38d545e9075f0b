"""How many samples the trainings of published tables are. Facts of public scripts, not fitted."""

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Of the trainings of a read-me's tables.

    Attributes:
        path: its path begins like this, in small letters
        since: tables made before this year are not meant
        epochs: of a training
        samples: of an epoch
        source: where this comes from
    """

    path: str
    since: float
    epochs: float
    samples: int
    source: str


def training_of(path: str, year: float, epochs: str = "") -> int | None:
    """Samples of a training; None where that is not known.

    Args:
        path: of the read-me, in small letters
        year: when its tables were made
        epochs: as the row says them; "": it does not

    Example:
        >>> training_of("mxnet/classification/rn50v1.5/readme.md", 2020.9)
        115305030
    """
    for length in _lengths():
        if path.startswith(length.path) and year >= length.since:
            return round(length.samples * (float(epochs) if epochs.isdigit() else length.epochs))
    return None


@functools.cache
def _lengths() -> tuple[Length, ...]:
    text = resources.files("trimaran.session.validation.facts").joinpath("trainings.toml").read_text("utf-8")
    return tuple(
        Length(
            path=entry["path"],
            since=entry.get("since", 0.0),
            epochs=entry["epochs"],
            samples=entry["samples"],
            source=entry["source"],
        )
        for entry in tomllib.loads(text)["trainings"]
    )
