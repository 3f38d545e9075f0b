"""Rows that differ in what feeds them: with one rate of each loader known, what are the others?

    step = max(compute and exchange of the group, samples of a node / rate of its loader)
    step = compute and exchange of the group + samples of a device / rate of a worker        without workers

Compute and exchange are the figure of synthetic data, where it was published for as many devices, or else follow from
the figure of one device with the same loader; without anchors they are modelled, and synthetic data are predicted too.
The rate is fitted on one row of each loader, in any case: nothing else says it. That is, of the rows that wait for it,
as far as their steps without waiting are known, the one in which it handed over most, of a worker where workers are
said, else of the host. Where no row waits, or the loader handed over more in one that does not, it is nowhere the
limit, and nothing is fitted. Rows that figures were taken from are not predicted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.costs.feeding import Feed
from trimaran.errors import InputError, TrimaranError
from trimaran.session.validation.intervals import interval
from trimaran.session.validation.loader_rates_settings import LoaderRow, loader_groups
from trimaran.session.validation.loader_rates_unfed import WAITS, Unfed, measured_s, unfed_step
from trimaran.session.validation.quantities import figure_of, is_time
from trimaran.session.validation.rows import FED_FAMILIES
from trimaran.session.validation.setups import understand
from trimaran.session.validation.types import Anchor, Answer, Row, Setup

FEEDING = "feeding"
"""The family of these answers; their rows are data-parallel steps."""

_REASONS = (TrimaranError, ArithmeticError, LookupError, ValueError, TypeError)


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
        try:
            setups[place] = _understood(one.row)
        except _REASONS as error:
            reasons[place] = _reason(one.row, error)
    known = {place: found[place] for place in setups}
    unfed: dict[int, Unfed] = {}
    for place in known:
        try:
            unfed[place] = unfed_step(place, known, setups, anchor)
        except _REASONS as error:
            reasons[place] = _reason(known[place].row, error)
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
    return understand(row)


def _reason(row: Row, error: Exception) -> str:
    # A row that nobody thought of must not cost the others their answers; the reason is told all the same.
    failed = f"row {row.row_id}: Trimaran failed on it: {type(error).__name__}: {error}"
    return error.message if isinstance(error, TrimaranError) else failed


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
        waits = setup.batch_per_device * setup.accumulation / rate.samples_per_s
    elif rate is not None:
        per_s = rate.samples_per_s * (_working(one, setup) if rate.of_worker else 1)
        feed = Feed(samples_per_s=per_s, source=f"row {rate.row_id}")
        batch = setup.batch_per_device * setup.accumulation
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
    return setup.batch_per_device * setup.accumulation * setup.devices


def _working(one: LoaderRow, setup: Setup) -> int:
    """Workers that have a core each."""
    workers = one.setting.workers or 1
    return min(workers, setup.machine.node.cpu_cores or workers)
