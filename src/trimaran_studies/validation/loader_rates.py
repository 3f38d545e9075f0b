"""Rows that differ in what feeds them: with one rate of each loader known, what are the others?

    step = max(compute and exchange of the group, samples of a node / rate of its loader)
    step = compute and exchange of the group + samples of a device / rate of a worker        without workers

Compute and exchange are the figure of synthetic data, where it was published for as many devices, or else follow from
the figure of one device with the same loader; without anchors they are modelled, and synthetic data are predicted too.
The rate is fitted on one row of each loader, in any case: nothing else says it. That is, of the rows that wait for it,
as far as their steps without waiting are known, the one in which it handed over most, of a worker where workers are
said, else of the host. Where no row waits, or the loader handed over more in one that does not, it is nowhere the
limit, and nothing is fitted. Rows that figures were taken from are not predicted.

Which rows of published measurements differ in nothing but what feeds them, and how each is fed.

A row is told apart by its words: "synthetic" data need no loader; "DALI" is one; what names neither is the loader of
the script. Workers count where a row says how many there are. Batches may differ: a loader hands over samples.

The step of a row that differs from others in what feeds it, were its data always there.

It is that of synthetic data with as many devices, where it was published; one device's own, which others start from;
else modelled, from one device's step with the same loader where that was measured. Without anchors it is always
modelled.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trimaran.base.errors import InputError
from trimaran.pricing.input_pipeline import LoaderThroughput
from trimaran_studies.published.rows import FED_FAMILIES
from trimaran_studies.validation.intervals import deviation, interval
from trimaran_studies.validation.measurement import (
    Anchor,
    Answer,
    Row,
    Setup,
    attempt,
    cells_read,
    figure_of,
    is_time,
    step_of,
)
from trimaran_studies.validation.recipes import lowered
from trimaran_studies.validation.setups import recipe_of, understand
from trimaran_studies.validation.steps import row_step

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


WAITS = 0.05
"""So much longer than without waiting is a step that its loader limits; more where the step without is modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfed:
    """A row's step, were its data always there.

    Attributes:
        step_s: of the group [s]
        added: of it, what several devices add, as a share; 0 where the step itself was measured
        own: deviation of the step on one device, by its curves; None where it was measured
        given: why the row is not predicted: its figure is what others are predicted from; ""
        anchors: rows that the step was taken from
    """

    step_s: float
    added: float
    own: float | None = None
    given: str = ""
    anchors: tuple[str, ...] = ()

    def deviation(self, family: str, *, waits_s: float = 0.0) -> float:
        """The deviation of the step with waits for data [s], as a standard deviation of its logarithm."""
        share = (self.added * self.step_s + waits_s) / (self.step_s + waits_s)
        return deviation(family, own=self.own, share=share, known=True)

    def is_exceeded_by(self, step_s: float, family: str) -> bool:
        """Whether a step that was measured is longer than can be without waiting for data."""
        unsure = 0.0 if self.own is None else interval(1.0, self.deviation(family), time=True)[1] - 1.0
        return step_s > self.step_s * (1 + max(WAITS, unsure))


def unfed_step(
    place: int,
    rows: Mapping[int, LoaderRow],
    setups: Mapping[int, Setup],
    anchor: Anchor,
) -> Unfed:
    """The step of a row, were its data always there.

    Args:
        place: of the row
        rows: all, by place
        setups: what they stand for
        anchor: whether published figures may stand for it, or for one device's

    Raises:
        TrimaranError: its network or its machine cannot be priced
    """
    one, setup = rows[place], setups[place]
    if anchor == "none":
        return _modelled(one.row, setup)
    if one.setting.kind == "synthetic":
        return Unfed(step_s=measured_s(one, setup), added=0.0, given="its data are always there: others start from it")
    twin = next((other for other in rows.values() if other.setting.kind == "synthetic" and other.like(one)), None)
    if twin is not None:
        return Unfed(step_s=measured_s(twin, setup), added=0.0, anchors=(twin.row.row_id,))
    if setup.devices == 1:
        return Unfed(step_s=measured_s(one, setup), added=0.0, given="one device's figure: others start from it")
    if one.row.anchor is None:
        return _modelled(one.row, setup)
    anchor_s = step_of(one.row, setup, one.row.anchor, devices=1)
    return replace(_modelled(one.row, setup, anchor_s=anchor_s), anchors=_one_device(one, rows, setups))


def _modelled(row: Row, setup: Setup, *, anchor_s: float | None = None) -> Unfed:
    """The step of a row's network on its devices, from one device's step where it was measured [s]."""
    recipe = replace(recipe_of(row), feed_samples_per_s=0.0)
    step = row_step(row, replace(setup, real_data=False), recipe, anchor_s=anchor_s)
    own = step.deviation if anchor_s is None else None
    return Unfed(step_s=step.seconds, added=step.added_share or 0.0, own=own)


def _one_device(one: LoaderRow, rows: Mapping[int, LoaderRow], setups: Mapping[int, Setup]) -> tuple[str, ...]:
    """The row of one device whose figure a row's anchor is, where it is among the rows."""
    return tuple(
        other.row.row_id
        for place, other in rows.items()
        if other.group == one.group
        and other.setting == one.setting
        and setups[place].devices == 1
        and other.row.measured == one.row.anchor
    )[:1]


def measured_s(one: LoaderRow, setup: Setup) -> float:
    """The step of a row as it was published [s]."""
    return step_of(one.row, setup, one.row.measured, devices=setup.devices)


FEEDING = "feeding"
"""The family of these answers; their rows are data-parallel steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRate:
    """What a loader hands over, as one row shows it.

    Attributes:
        samples_per_s: of a worker where rows say how many there are, else of the host of a node [samples/s]
        of_worker: which of both
        row_id: of the row
    """

    samples_per_s: float
    of_worker: bool
    row_id: str


def answer_feeding(rows: Sequence[Row], *, anchor: Anchor) -> tuple[Answer, ...]:
    """What we say of rows that differ in what feeds them.

    Args:
        rows: of any families, all together, because one is predicted from another
        anchor: "single": published figures of the step without waiting may be used; "none": they may not

    Returns:
        Answers for those of them that have another row beside them with another loader, in their order.
    """
    found = loader_groups([row for row in rows if row.family in (*FED_FAMILIES, FEEDING)])
    setups: dict[int, Setup] = {}
    reasons: dict[int, str] = {}
    for place, one in enumerate(found):
        setup = attempt(one.row, functools.partial(_understood, one.row))
        if isinstance(setup, str):
            reasons[place] = setup
        else:
            setups[place] = setup
    known = {place: found[place] for place in setups}
    unfed: dict[int, Unfed] = {}
    for place in known:
        step = attempt(known[place].row, functools.partial(unfed_step, place, known, setups, anchor))
        if isinstance(step, str):
            reasons[place] = step
        else:
            unfed[place] = step
    limiting = _limiting_rates(known, setups, unfed)
    # Rows are told apart by their places: files of their own may number them alike.
    shown = {place for place, _ in limiting.values()}
    return tuple(
        _skipped(one, reasons[place], setups.get(place))
        if place in reasons
        else _answer(one, setups[place], unfed[place], limiting.get(one.loader, (0, None))[1], shows=place in shown)
        for place, one in enumerate(found)
    )


def _understood(row: Row) -> Setup:
    if row.measured <= 0:
        raise InputError(f"row {row.row_id}: a measured figure of {row.measured} cannot be compared with")
    with cells_read(row):
        return understand(row)


def _limiting_rates(
    rows: Mapping[int, LoaderRow], setups: Mapping[int, Setup], unfed: Mapping[int, Unfed]
) -> dict[tuple[str, ...], tuple[int, LoaderRate]]:
    """For each loader that limits a step: the row of these that it handed over most in, by its place, and that rate.

    A loader that handed over more where nobody waited for it is not the limit at that rate. A process that loads for
    itself does so while it does not train, and shows no rate of a loader beside it.
    """
    beside = {place: one for place, one in rows.items() if one.setting.workers != 0}
    said: dict[tuple[str, ...], bool] = {}
    for one in beside.values():
        said[one.loader] = said.get(one.loader, True) and one.setting.workers is not None
    found: dict[tuple[str, ...], tuple[int, LoaderRate]] = {}
    most: dict[tuple[str, ...], float] = {}
    for place, one in beside.items():
        if place not in unfed or unfed[place].given or one.setting.kind == "synthetic":
            continue
        setup, loader = setups[place], one.loader
        step_s = measured_s(one, setup)
        rate = _samples(setup) / setup.nodes / step_s / (_working(one, setup) if said[loader] else 1)
        most[loader] = max(rate, most.get(loader, 0.0))
        before = found[loader][1].samples_per_s if loader in found else 0.0
        if rate > before and unfed[place].is_exceeded_by(step_s, one.row.family):
            found[loader] = place, LoaderRate(samples_per_s=rate, of_worker=said[loader], row_id=one.row.row_id)
    return {loader: one for loader, one in found.items() if most[loader] <= (1 + WAITS) * one[1].samples_per_s}


def _answer(one: LoaderRow, setup: Setup, unfed: Unfed, rate: LoaderRate | None, *, shows: bool) -> Answer:
    if unfed.given:
        return _skipped(one, unfed.given, setup)
    if rate is not None and shows:
        what = "a worker" if rate.of_worker else "the host"
        return _skipped(
            one, f"its loader's rate was taken from it: {rate.samples_per_s:,.0f} samples/s of {what}", setup
        )
    waits = 0.0
    if one.setting.workers == 0:
        if rate is None or not rate.of_worker:
            return _skipped(one, "its processes load for themselves, and no row shows what a worker hands over", setup)
        waits = setup.local_batch * setup.accumulation / rate.samples_per_s
    elif rate is not None:
        per_s = rate.samples_per_s * (_working(one, setup) if rate.of_worker else 1)
        feed = LoaderThroughput(samples_per_s=per_s, source=f"row {rate.row_id}")
        batch = setup.local_batch * setup.accumulation
        waits = feed.wait_s(batch, devices=-(-setup.devices // setup.nodes), step_s=unfed.step_s)
    step_s = unfed.step_s + waits
    row = replace(one.row, family=FEEDING)
    predicted = figure_of(row, setup, step_s)
    low, high = interval(predicted, unfed.deviation(one.row.family, waits_s=waits), time=is_time(row))
    return Answer(
        row=row,
        predicted=predicted,
        low=low,
        high=high,
        baselines={"data always there": figure_of(row, setup, unfed.step_s)},
        setup=setup,
        basis=one.setting.name,
        anchors=(*unfed.anchors, *((rate.row_id,) if waits and rate else ())),
    )


def _skipped(one: LoaderRow, why: str, setup: Setup | None) -> Answer:
    row = replace(one.row, family=FEEDING)
    return Answer(row=row, predicted=None, skipped=why, setup=setup, basis=one.setting.name)


def _samples(setup: Setup) -> int:
    return setup.local_batch * setup.accumulation * setup.devices


def _working(one: LoaderRow, setup: Setup) -> int:
    """Workers that have a core each."""
    workers = one.setting.workers or 1
    return min(workers, setup.machine.node.cpu_cores or workers)
