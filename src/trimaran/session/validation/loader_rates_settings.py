"""Which rows of published measurements differ in nothing but what feeds them, and how each is fed.

A row is told apart by its words: "synthetic" data need no loader; "DALI" is one; what names neither is the loader of
the script. Workers count where a row says how many there are. Batches may differ: a loader hands over samples.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trimaran.session.validation.recipes import lowered
from trimaran.session.validation.types import Row

LoaderKind = Literal["synthetic", "dali", "own"]

_WORKERS = re.compile(r"\bworkers?\s*=\s*(\d+)")
_SAID_OF_LOADING = re.compile(
    r"(real|synthetic) data|with dali|dali|\bworkers?\s*=\s*\d+|batch[ _]?size\s*=\s*\d+(\s*\(max\))?"
)
_WITH = re.compile(r"\b(with|without)(?=xla)")
_SCRIPT = ("source_repo", "source_file", "framework")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSetting:
    """How a row's devices get their samples.

    Attributes:
        kind: "synthetic": they lie on the device or in memory; "dali"; "own": the loader of the script
        workers: of all devices of a node together; 0: each training process loads for itself; None: not said
    """

    kind: LoaderKind
    workers: int | None = None

    @property
    def name(self) -> str:
        """In words.

        Example:
            >>> LoaderSetting(kind="own", workers=8).name, LoaderSetting(kind="synthetic").name
            ('own loader, 8 workers', 'synthetic data')
            >>> LoaderSetting(kind="own", workers=0).name
            'own loader, no workers'
        """
        words = {"synthetic": "synthetic data", "dali": "DALI", "own": "own loader"}[self.kind]
        return words if self.workers is None else f"{words}, {self.workers or 'no'} workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRow:
    """A row of a group.

    Attributes:
        row: as published
        setting: how it is fed
        group: what it has in common with the other rows of its group
    """

    row: Row
    setting: LoaderSetting
    group: tuple[str, ...]

    @property
    def loader(self) -> tuple[str, ...]:
        """Whose rate it shows: the script's loader of this kind on this machine, whatever network it feeds."""
        return (*(lowered(self.row, name) for name in (*_SCRIPT, "machine")), self.setting.kind)

    def like(self, other: "LoaderRow") -> bool:
        """Whether another row differs in its loader alone, batch and devices included."""
        same = ("batch_per_gpu", "global_batch", "n_gpus", "n_nodes")
        return self.group == other.group and all(
            self.row.fields.get(name, "") == other.row.fields.get(name, "") for name in same
        )


def loader_setting(row: Row) -> LoaderSetting:
    """How a row is fed, by its words.

    Args:
        row: of a data-parallel step
    """
    config = lowered(row, "config")
    said = f"{config.split('|')[0]} {lowered(row, 'dataset')}"
    workers = _WORKERS.search(config)
    if "synth" in said:
        return LoaderSetting(kind="synthetic")
    return LoaderSetting(kind="dali" if "dali" in config else "own", workers=int(workers[1]) if workers else None)


def loader_groups(rows: Sequence[Row]) -> tuple[LoaderRow, ...]:
    """The rows that have others beside them which differ in what feeds them.

    Args:
        rows: of data-parallel steps

    Returns:
        In their order; rows without such others, and known slips of their source, are left out.
    """
    known = [LoaderRow(row=row, setting=loader_setting(row), group=_group(row)) for row in rows if not row.flag]
    settings: dict[tuple[str, ...], set[LoaderSetting]] = {}
    for one in known:
        settings.setdefault(one.group, set()).add(one.setting)
    return tuple(one for one in known if len(settings[one.group]) > 1)


def _group(row: Row) -> tuple[str, ...]:
    names = (*_SCRIPT, "model", "machine", "gpu", "precision")
    return (*(lowered(row, name) for name in names), _beside_loading(lowered(row, "config")))


def _beside_loading(config: str) -> str:
    """What a row's configuration says of other things than loading and batch, as words."""
    text = _WITH.sub(r"\1 ", _SAID_OF_LOADING.sub(" ", config.split("|")[0]))
    return " ".join(re.findall(r"[^\s&,;]+", text))
