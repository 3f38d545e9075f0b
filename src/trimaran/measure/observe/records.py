"""What each observed process wrote."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimaran.errors import CorruptDataError

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessRecord:
    """One process.

    Attributes:
        rank: in its group; 0 where there is none
        world: ranks of the group
        steps: how many it took
        facts: model, loader, optimizer, memory, versions, by name
        columns: position of each column of the rows
        rows: the latest steps, one row each; times in ns
        again: the model timed again after the script; None where it was not
    """

    rank: int
    world: int
    steps: int
    facts: Mapping[str, Any]
    columns: Mapping[str, int]
    rows: NDArray[np.int64]
    again: Mapping[str, Any] | None

    def column(self, name: str) -> NDArray[np.int64]:
        """A column of the rows."""
        return self.rows[:, self.columns[name]]


def parse_record(plain: Mapping[str, Any], *, source: str) -> ProcessRecord:
    """A record from its JSON object.

    Args:
        plain: the object
        source: where it came from, for messages

    Raises:
        CorruptDataError: it is of another version, or lacks something
    """
    try:
        version = plain["schema_version"]
        if version != RECORD_VERSION:
            raise CorruptDataError(
                f"{source}: a record of version {version}, expected {RECORD_VERSION}",
                code="observe.record-version",
                source=source,
            )
        columns = {name: number for number, name in enumerate(plain["columns"])}
        rows = np.asarray(plain["rows"], dtype=np.int64).reshape(-1, len(columns))
        return ProcessRecord(
            rank=plain["rank"],
            world=plain["world"],
            steps=plain["steps"],
            facts={name: value for name, value in plain.items() if name not in ("columns", "rows", "again")},
            columns=columns,
            rows=rows,
            again=plain["again"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{source}: not a record of an observed process: {error!r}", source=source) from error


def read_records(folder: Path) -> Sequence[ProcessRecord]:
    """All records in a folder, by rank.

    Args:
        folder: that `watched_environment` named

    Raises:
        CorruptDataError: a file is not a record
    """
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CorruptDataError(f"{path}: not JSON: {error}", path=str(path)) from error
        records.append(parse_record(plain, source=str(path)))
    return sorted(records, key=lambda record: (record.rank, -record.steps))
