"""Times to train in the tables of read-me files: from the smallest set-up of a table to the larger ones.

    time = start + (anchor's time − start) × (step / batch) / (anchor's step / anchor's batch)

All rows of a table train the same epochs, so only the ratio of the steps is predicted, by the predictor of throughput
(`setups`, `steps`). A network of known size only is modelled as a chain of matrix products.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.files import packaged_toml
from trimaran.pricing.kernels.estimate import estimate_step
from trimaran_studies.facts.sizes import SIZED
from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation.intervals import deviation, interval
from trimaran_studies.validation.measurement import (
    Answer,
    Row,
    Setup,
    accumulation,
    attempt,
    cells_read,
    step_of,
    whole,
)
from trimaran_studies.validation.recipes import Recipe, lowered, said
from trimaran_studies.validation.setups import recipe_of, understand
from trimaran_studies.validation.steps import RowStep, row_step, row_workload, scaling_baselines

# ---------------------------------------------------------------------------------------------------------------------
# Speed of networks of known size only: by published steps of one device, in rows of calibration


def _alone_s(setup: Setup, recipe: Recipe) -> float:
    """A step on one device, modelled [s]."""
    one = estimate_step(row_workload(setup, recipe), setup.machine.node.device, setup.software)
    return setup.accumulation * (one.forward.seconds + one.backward.seconds) + one.update.seconds


def published_step_s(setup: Setup, recipe: Recipe) -> float:
    """The step of one device of a set-up, scaled by the published steps of its network [s].

    Args:
        setup: of a network of known size only
        recipe: of its script
    """
    return _alone_s(setup, recipe) * _slower(setup.network, setup.precision)


@functools.cache
def _slower(network: str, precision: str) -> float:
    """Median ratio of published steps of one device to the products that stand for a network."""
    found = _all_slower()
    for known in ((network, precision), (network,), ()):
        factors = [factor for name, factor in found if name[: len(known)] == known]
        if factors:
            return median(factors)
    return 1.0


@functools.cache
def _all_slower() -> tuple[tuple[tuple[str, str], float], ...]:
    """Ratios by network and precision, of rows of calibration."""
    found = []
    for row in published_rows("dp_throughput"):
        figure = row.measured if row.fields.get("n_gpus", "1") == "1" else row.anchor
        if row.fields.get("use") != "calibrate" or not figure or row.flag:
            continue
        try:
            setup, recipe = understand(row), recipe_of(row)
            if setup.network.startswith(SIZED):
                seconds = step_of(row, setup, figure, devices=1)
                found.append(((setup.network, setup.precision), seconds / _alone_s(setup, recipe)))
        except (InputError, InfeasibleError):
            continue
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------------------
# Numbers of samples of the trainings in published tables. Facts of public scripts, not fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Length of the trainings in a read-me's tables.

    Attributes:
        path: beginning of its path, in small letters
        since: year of the first table to which it applies
        epochs: of a training
        samples: of an epoch
        source: of these figures
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
        year: of its tables
        epochs: in the row; "": it has none

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
    return tuple(
        Length(
            path=entry["path"],
            since=entry.get("since", 0.0),
            epochs=entry["epochs"],
            samples=entry["samples"],
            source=entry["source"],
        )
        for entry in packaged_toml("trimaran_studies.facts", "trainings.toml")["trainings"]
    )


_SECONDS = (
    (r"\bs\b|\bsec(?:ond)?s?\b", 1.0),
    (r"\bmin(?:ute)?s?\b", 60.0),
    (r"\bh(?:r|rs|ours?)?\b", 3600.0),
    (r"\bdays?\b", 86400.0),
)
_TABLE = (
    "source_repo", "source_path", "commit", "framework", "model", "dataset", "mode", "precision", "metric", "seq_len",
)  # fmt: skip
_PLACE = ("machine", "gpu", "gpu_mem_gb")
_COUNTS = re.compile(r"# of GPUs|Number o[fg] GPUs|DGX System|accumulat", re.IGNORECASE)
"""Parts of the column `config` that change with the number of devices."""

_START_S = {"tensorflow": 40.0}
_START_ELSE_S = 10.0
"""Fixed time of a training: from rows of calibration whose trainings take minutes [s]."""

_UNSAID_S = 3600.0
"""Unit of tables without one: tables of long trainings count hours [s]."""

_COARSE = 2.0
"""Whole figures up to here are truncated or rounded too much to predict another from them."""

_SIZED = 0.3
"""Deviation of a whole training beyond that of its throughput, for a network of known size only: from calibration."""

_ROUNDED = 0.29
"""Deviation of a figure that was rounded to a whole number: that of a uniform distribution of width 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of a table, as understood.

    Attributes:
        row: the row
        setup: its devices and batch
        recipe: of its script
        table: key of its table; rows of the same table are compared
        place: among the rows of the same table and number of devices, in the order of the file
        unit_s: of its figure; None where the table has no unit [s]
    """

    row: Row
    setup: Setup
    recipe: Recipe
    table: tuple[str, ...]
    place: int
    unit_s: float | None

    @property
    def samples(self) -> int:
        """Samples of a step of all devices."""
        return self.setup.local_batch * self.setup.accumulation * self.setup.devices


def answer_tables(rows: Sequence[Row]) -> tuple[Answer, ...]:
    """Predict rows of tables; answers are in their order.

    Args:
        rows: all of them together, because one is predicted from another
    """
    seen: dict[tuple[object, ...], int] = {}
    entries = [attempt(row, functools.partial(_entry, row, seen)) for row in rows]
    known = [one for one in entries if isinstance(one, Entry)]
    return tuple(
        _answer(one, known) if isinstance(one, Entry) else Answer(row=row, predicted=None, skipped=one)
        for row, one in zip(rows, entries, strict=True)
    )


def _entry(row: Row, seen: dict[tuple[object, ...], int]) -> Entry:
    if row.measured <= 0:
        raise InputError(f"row {row.row_id}: no time to train is published", row=row.row_id)
    with cells_read(row):
        setup, recipe = understand(_counted(row)), recipe_of(row)
    parts = row.fields.get("config", "").split(";")
    config = ";".join(part for part in parts if not _COUNTS.search(part))
    table = (*(lowered(row, name) for name in (*_TABLE, *_PLACE)), config.strip().lower())
    place = seen[(table, setup.devices)] = seen.get((table, setup.devices), -1) + 1
    return Entry(row=row, setup=setup, recipe=recipe, table=table, place=place, unit_s=_unit_s(row.unit))


def _counted(row: Row) -> Row:
    """The row with the numbers of devices and nodes of its settings."""
    given = said(row, "Number og GPUs") or said(row, "Number of GPUs")
    if given.isdigit():
        return replace(row, fields={**row.fields, "n_gpus": given})
    systems = re.match(r"(\d+)\s*x\b", said(row, "DGX System"))
    if systems is not None and int(systems.group(1)) > 1:
        nodes = int(systems.group(1))
        devices = nodes * int(row.fields.get("n_gpus") or 8)
        return replace(row, fields={**row.fields, "n_gpus": str(devices), "n_nodes": str(nodes)})
    return row


def _unit_s(unit: str) -> float | None:
    for pattern, seconds in _SECONDS:
        if re.search(pattern, unit.lower()):
            return seconds
    return None


def _anchor(target: Entry, every: Sequence[Entry]) -> Entry | None:
    """The smallest set-up of the same table; of several the one with the same batch, then the same place."""
    smaller = [one for one in every if one.table == target.table and one.setup.devices < target.setup.devices]
    if not smaller:
        return None
    least = min(one.setup.devices for one in smaller)
    batch = target.setup.local_batch
    equal = [one for one in smaller if one.setup.devices == least]
    return min(equal, key=lambda one: (one.setup.local_batch != batch, one.place != target.place))


def _answer(target: Entry, every: Sequence[Entry]) -> Answer:
    anchor = _anchor(target, every)
    found = attempt(target.row, lambda: _alone(target) if anchor is None else _predicted(anchor, target))
    if isinstance(found, str):
        return Answer(row=target.row, predicted=None, setup=target.setup, skipped=found)
    return found


def _alone(target: Entry) -> Answer:
    """Answer for a row without an anchor: epochs and data of its script, and a step by curves alone."""
    row, setup = target.row, target.setup
    training = training_of(lowered(row, "source_path"), setup.software.year, said(row, "Epochs"))
    if training is None or setup.network.startswith(SIZED):
        raise InputError(
            f"row {row.row_id}: no smaller set-up in its table, and of its training neither length nor step are known",
            row=row.row_id,
        )
    unit_s = target.unit_s or _UNSAID_S
    step = row_step(row, setup, target.recipe, anchor_s=None)
    predicted = (_START_ELSE_S + training / target.samples * step.seconds) / unit_s
    spread = deviation("dp_throughput", own=step.deviation, share=step.added_share, known=True)
    low, high = interval(predicted, spread, time=True)
    basis = "from epochs and data of its script"
    return Answer(row=row, predicted=predicted, low=low, high=high, setup=setup, basis=basis)


def _predicted(anchor: Entry, target: Entry) -> Answer:
    in_whole = anchor.row.measured == round(anchor.row.measured)
    if in_whole and anchor.row.measured <= _COARSE:
        raise InputError(
            f'row {target.row.row_id}: its anchor, row {anchor.row.row_id}, says "{anchor.row.measured:.0f}", which is '
            "truncated or rounded too much to predict from it",
            row=target.row.row_id,
        )
    anchor, target = _microbatches(anchor, target)
    target = _with_whole_batch(anchor, target)
    before, after = _step(anchor), _step(target)
    scale = (after.seconds / target.samples) / (before.seconds / anchor.samples)
    start = _start(anchor, target)
    units = anchor.unit_s / target.unit_s if anchor.unit_s and target.unit_s else 1.0
    predicted = (start + (anchor.row.measured - start) * scale) * units
    share = after.added_share or 0.0
    sized = target.setup.network.startswith(SIZED)
    spread = deviation("dp_throughput", own=None, share=share, known=not sized)
    rounding = (_ROUNDED / anchor.row.measured, _ROUNDED / predicted) if in_whole else ()
    low, high = interval(predicted, math.hypot(spread, _SIZED if sized else 0.0, *rounding), time=True)
    return Answer(
        row=target.row,
        predicted=predicted,
        low=low,
        high=high,
        baselines=_baselines(anchor, target, units),
        setup=target.setup,
        basis="from the smallest of its table",
        anchors=(anchor.row.row_id,),
    )


def _microbatches(anchor: Entry, target: Entry) -> tuple[Entry, Entry]:
    """Both rows with the column as the microbatch, if their steps then train equal numbers of samples."""
    cells = [(whole(one.row, "batch_per_gpu"), accumulation(one.row)) for one in (anchor, target)]
    products = [
        (own or 0) * steps * one.setup.devices for (own, steps), one in zip(cells, (anchor, target), strict=True)
    ]
    if products[0] != products[1] or not products[0] or all(steps == 1 for _, steps in cells):
        return anchor, target
    before, after = (
        replace(one, setup=replace(one.setup, local_batch=own or 1, accumulation=steps))
        for (own, steps), one in zip(cells, (anchor, target), strict=True)
    )
    return before, after


def _with_whole_batch(anchor: Entry, target: Entry) -> Entry:
    """The row with its whole batch, where the cell was truncated at its comma: "072" or "131" of 131,072.

    The batch is the anchor's global batch by the devices, or the anchor's local batch: the one with those digits.
    """
    cell = re.sub(r"\.0+$", "", target.row.fields.get("batch_per_gpu", ""))
    own = target.setup.local_batch
    for meant in (anchor.samples // target.setup.devices, anchor.setup.local_batch):
        text = str(meant)
        truncated = len(text) > 3 and cell in (text[-3:], text[:-3]) and int(cell or 0) != meant
        if truncated and own != meant:
            return replace(target, setup=replace(target.setup, local_batch=meant))
    return target


def _step(entry: Entry) -> RowStep:
    """The step of a row, by curves; for a network of known size only, by published steps of one device."""
    setup, anchor_s = entry.setup, None
    if setup.network.startswith(SIZED):
        anchor_s = published_step_s(setup, entry.recipe)
    return row_step(entry.row, setup, entry.recipe, anchor_s=anchor_s)


def _start(anchor: Entry, target: Entry) -> float:
    """Fixed time of a training, in the anchor's unit, at most half of the anchor.

    A row without a unit has the unit of the other row.
    """
    unit_s = anchor.unit_s or target.unit_s
    if unit_s is None:
        return 0.0
    start_s = _START_S.get(target.setup.software.framework, _START_ELSE_S)
    return min(start_s / unit_s, anchor.row.measured / 2)


def _baselines(anchor: Entry, target: Entry, units: float) -> Mapping[str, float]:
    before, after = (scaling_baselines(1.0, one.setup.devices) for one in (anchor, target))
    return {name: anchor.row.measured * units * before[name] / after[name] for name in before}
