"""Predicts rows that differ only in their input pipeline, from one fitted rate of each loader.

    step = max(compute and exchange of the group, samples of a node / rate of its loader)
    step = compute and exchange of the group + samples of a device / rate of a worker        without workers

Compute and exchange are the published figure of synthetic data on the same number of devices. Where there is none, they
are modelled, from the step of one device with the same loader where that was measured. Without anchors they are always
modelled, and rows of synthetic data are predicted too.

The rate of a loader is fitted on one row, because no other source has it. Among the rows that wait for the loader, it
is the row with the highest rate: of a worker where the number of workers is known, else of the host. If no row waits,
or a row that does not wait has a higher rate, the loader is no bottleneck and nothing is fitted. Rows that a figure was
taken from are not predicted.

The words of a row say its loader: "synthetic" data need none; "DALI" is one; otherwise it is the loader of the script.
Workers are known where the row gives their number. Batches may differ: a loader delivers samples.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trimaran.base.errors import InputError
from trimaran_studies.facts.loaders import rate_of_host
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
    """The input pipeline of a row.

    Attributes:
        kind: "synthetic": samples are on the device or in memory; "dali"; "own": the loader of the script
        workers: of all devices of a node together; 0: each training process loads its samples; None: not published
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
        setting: its input pipeline
        group: its cells that are equal in all rows of the group
    """

    row: Row
    setting: LoaderSetting
    group: tuple[str, ...]

    @property
    def loader(self) -> tuple[str, ...]:
        """The loader that limits it: the script's loader of this kind on this machine, for any network."""
        return (*(lowered(self.row, name) for name in (*_SCRIPT, "machine")), self.setting.kind)

    def like(self, other: "LoaderRow") -> bool:
        """Whether another row differs in its loader alone, batch and devices included."""
        same = ("batch_per_gpu", "global_batch", "n_gpus", "n_nodes")
        return self.group == other.group and all(
            self.row.fields.get(name, "") == other.row.fields.get(name, "") for name in same
        )


def loader_setting(row: Row) -> LoaderSetting:
    """The input pipeline of a row, by its words.

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
    """The rows of groups whose rows differ in their input pipeline.

    Args:
        rows: of data-parallel steps

    Returns:
        In their order, without other rows and without known errors of their source.
    """
    known = [LoaderRow(row=row, setting=loader_setting(row), group=_group(row)) for row in rows if not row.flag]
    settings: dict[tuple[str, ...], set[LoaderSetting]] = {}
    for one in known:
        settings.setdefault(one.group, set()).add(one.setting)
    return tuple(one for one in known if len(settings[one.group]) > 1)


def _group(row: Row) -> tuple[str, ...]:
    names = (*_SCRIPT, "model", "machine", "gpu", "precision")
    return (*(lowered(row, name) for name in names), _without_loading(lowered(row, "config")))


def _without_loading(config: str) -> str:
    """The words of a row's configuration, except those on loading and batch."""
    text = _WITH.sub(r"\1 ", _SAID_OF_LOADING.sub(" ", config.split("|")[0]))
    return " ".join(re.findall(r"[^\s&,;]+", text))


WAITS = 0.05
"""Smallest wait of a loader-limited step, as a share of the step without waiting; more where that step is modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyDataStep:
    """A row's step with data always ready.

    Attributes:
        step_s: of the group [s]
        added: share of it that several devices add; 0 where the step itself was measured
        own: deviation of the step on one device, by its curves; None where it was measured
        given: why the row is not predicted: other rows are predicted from its figure; "": it is predicted
        anchors: rows that the step was taken from
    """

    step_s: float
    added: float
    own: float | None = None
    given: str = ""
    anchors: tuple[str, ...] = ()

    def deviation(self, family: str, *, waits_s: float = 0.0) -> float:
        """Standard deviation of the logarithm of the step, waits for data [s] included."""
        share = (self.added * self.step_s + waits_s) / (self.step_s + waits_s)
        return deviation(family, own=self.own, share=share, known=True)

    def is_exceeded_by(self, step_s: float, family: str) -> bool:
        """Whether a measured step is longer than possible without waiting for data."""
        unsure = 0.0 if self.own is None else interval(1.0, self.deviation(family), time=True)[1] - 1.0
        return step_s > self.step_s * (1 + max(WAITS, unsure))


def ready_data_step(
    place: int,
    rows: Mapping[int, LoaderRow],
    setups: Mapping[int, Setup],
    anchor: Anchor,
) -> ReadyDataStep:
    """The step of a row with data always ready.

    Args:
        place: of the row
        rows: all, by place
        setups: of the rows, by place
        anchor: whether published figures of it, or of one device, may be used

    Raises:
        TrimaranError: its network or its machine cannot be priced
    """
    one, setup = rows[place], setups[place]
    if anchor == "none":
        return _modelled(one.row, setup)
    if one.setting.kind == "synthetic":
        return ReadyDataStep(
            step_s=measured_s(one, setup),
            added=0.0,
            given="its data are always ready: other rows are predicted from it",
        )
    twin = next((other for other in rows.values() if other.setting.kind == "synthetic" and other.like(one)), None)
    if twin is not None:
        return ReadyDataStep(step_s=measured_s(twin, setup), added=0.0, anchors=(twin.row.row_id,))
    if setup.devices == 1:
        return ReadyDataStep(
            step_s=measured_s(one, setup), added=0.0, given="one device's figure: other rows are predicted from it"
        )
    if one.row.anchor is None:
        return _modelled(one.row, setup)
    anchor_s = step_of(one.row, setup, one.row.anchor, devices=1)
    return replace(_modelled(one.row, setup, anchor_s=anchor_s), anchors=_one_device(one, rows, setups))


def _modelled(row: Row, setup: Setup, *, anchor_s: float | None = None) -> ReadyDataStep:
    """The step of a row's network on its devices, from one device's step where it was measured [s]."""
    recipe = replace(recipe_of(row), feed_samples_per_s=0.0)
    step = row_step(row, replace(setup, real_data=False), recipe, anchor_s=anchor_s)
    own = step.deviation if anchor_s is None else None
    return ReadyDataStep(step_s=step.seconds, added=step.added_share or 0.0, own=own)


def _one_device(one: LoaderRow, rows: Mapping[int, LoaderRow], setups: Mapping[int, Setup]) -> tuple[str, ...]:
    """The row of one device whose figure is a row's anchor; empty where it is not among the rows."""
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
    """The rate of a loader in one row.

    Attributes:
        samples_per_s: of a worker where rows give their number, else of the host of a node [samples/s]
        of_worker: whether the rate is of a worker
        row_id: of the row
    """

    samples_per_s: float
    of_worker: bool
    row_id: str


def answer_feeding(rows: Sequence[Row], *, anchor: Anchor) -> tuple[Answer, ...]:
    """Predict rows that differ only in their input pipeline.

    Args:
        rows: of any families, all together, because one is predicted from another
        anchor: "single": published figures of the step without waiting may be used; "none": they may not

    Returns:
        Answers for the rows of groups with several loaders, in their order.
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
    ready: dict[int, ReadyDataStep] = {}
    for place in known:
        step = attempt(known[place].row, functools.partial(ready_data_step, place, known, setups, anchor))
        if isinstance(step, str):
            reasons[place] = step
        else:
            ready[place] = step
    limiting = _limiting_rates(known, setups, ready)
    # Rows are identified by their places: several files may use the same numbers.
    shown = {place for place, _ in limiting.values()}
    return tuple(
        _skipped(one, reasons[place], setups.get(place))
        if place in reasons
        else _answer(one, setups[place], ready[place], limiting.get(one.loader, (0, None))[1], shows=place in shown)
        for place, one in enumerate(found)
    )


def _understood(row: Row) -> Setup:
    if row.measured <= 0:
        raise InputError(f"row {row.row_id}: a measured figure of {row.measured} cannot be compared with")
    with cells_read(row):
        return understand(row)


def _limiting_rates(
    rows: Mapping[int, LoaderRow], setups: Mapping[int, Setup], ready: Mapping[int, ReadyDataStep]
) -> dict[tuple[str, ...], tuple[int, LoaderRate]]:
    """For each loader that limits steps: the place of the row with its highest rate among them, and that rate.

    A loader with a higher rate in a row that does not wait is no bottleneck at the lower one. Rows without workers show
    no rate of a loader, because the training process loads and trains by turns.
    """
    with_workers = {place: one for place, one in rows.items() if one.setting.workers != 0}
    said: dict[tuple[str, ...], bool] = {}
    for one in with_workers.values():
        said[one.loader] = said.get(one.loader, True) and one.setting.workers is not None
    found: dict[tuple[str, ...], tuple[int, LoaderRate]] = {}
    most: dict[tuple[str, ...], float] = {}
    for place, one in with_workers.items():
        if place not in ready or ready[place].given or one.setting.kind == "synthetic":
            continue
        setup, loader = setups[place], one.loader
        step_s = measured_s(one, setup)
        rate = _samples(setup) / setup.nodes / step_s / (_working(one, setup) if said[loader] else 1)
        most[loader] = max(rate, most.get(loader, 0.0))
        before = found[loader][1].samples_per_s if loader in found else 0.0
        if rate > before and ready[place].is_exceeded_by(step_s, one.row.family):
            found[loader] = place, LoaderRate(samples_per_s=rate, of_worker=said[loader], row_id=one.row.row_id)
    return {loader: one for loader, one in found.items() if most[loader] <= (1 + WAITS) * one[1].samples_per_s}


def _answer(one: LoaderRow, setup: Setup, ready: ReadyDataStep, rate: LoaderRate | None, *, shows: bool) -> Answer:
    if ready.given:
        return _skipped(one, ready.given, setup)
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
        feed = rate_of_host(per_s, source=f"row {rate.row_id}")
        batch = setup.local_batch * setup.accumulation
        waits = feed.fed(ready.step_s, batch=batch, devices=-(-setup.devices // setup.nodes)).wait_s
    step_s = ready.step_s + waits
    row = replace(one.row, family=FEEDING)
    predicted = figure_of(row, setup, step_s)
    low, high = interval(predicted, ready.deviation(one.row.family, waits_s=waits), time=is_time(row))
    return Answer(
        row=row,
        predicted=predicted,
        low=low,
        high=high,
        baselines={"data always there": figure_of(row, setup, ready.step_s)},
        setup=setup,
        basis=one.setting.name,
        anchors=(*ready.anchors, *((rate.row_id,) if waits and rate else ())),
    )


def _skipped(one: LoaderRow, why: str, setup: Setup | None) -> Answer:
    row = replace(one.row, family=FEEDING)
    return Answer(row=row, predicted=None, skipped=why, setup=setup, basis=one.setting.name)


def _samples(setup: Setup) -> int:
    return setup.local_batch * setup.accumulation * setup.devices


def _working(one: LoaderRow, setup: Setup) -> int:
    """Number of workers that have a core each."""
    workers = one.setting.workers or 1
    return min(workers, setup.machine.node.cpu_cores or workers)
