"""Rows that differ in what feeds them: with one rate of each loader known, what are the others?

    step = max(compute and exchange of the group, samples of a node / rate of its loader)

The left side of the maximum is the figure of synthetic data, where it was published for as many devices, or else
follows from the figure of one device with the same loader. The rate is fitted on one row of each loader: the one that
handed over most, of a worker where workers are said, else of the host. Where that row does not wait for its loader, the
loader is nowhere the limit, and nothing is fitted. Rows that figures were taken from are not predicted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.costs.feeding import Feed
from trimaran.errors import InputError, TrimaranError
from trimaran.session.validation.intervals import deviation, interval
from trimaran.session.validation.loader_rates_settings import LoaderRow, loader_groups
from trimaran.session.validation.quantities import figure_of, is_time, step_of
from trimaran.session.validation.rows import FED_FAMILIES
from trimaran.session.validation.setups import understand
from trimaran.session.validation.sources import recipe_of
from trimaran.session.validation.steps import row_step
from trimaran.session.validation.types import Anchor, Answer, Row, Setup

FEEDING = "feeding"
"""The family of these answers; their rows are data-parallel steps."""

_WAITS = 0.05
"""A step that is so much slower than it would be without waiting is limited by its loader."""

_REASONS = (TrimaranError, ArithmeticError, LookupError, ValueError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unfed:
    """A row's step, were its data always there.

    Attributes:
        step_s: of the group [s]
        added: of it, what several devices add, as a share; 0 where the step itself was measured
        given: why the row is not predicted: its figure is what others are predicted from; ""
        anchors: rows that the step was taken from
    """

    step_s: float
    added: float
    given: str = ""
    anchors: tuple[str, ...] = ()


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
        anchor: "single": figures of one device may be used; "none": they may not

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
    unfed: dict[int, _Unfed] = {}
    for place in known:
        try:
            unfed[place] = _unfed(place, known, setups, anchor)
        except _REASONS as error:
            reasons[place] = _reason(known[place].row, error)
    limiting = {
        loader: (place, rate)
        for loader, (place, rate) in _rates(known, setups, unfed).items()
        if _seconds(known[place], setups[place]) > unfed[place].step_s * (1 + _WAITS)
    }
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
    if isinstance(error, TrimaranError):
        return error.message
    return f"row {row.row_id}: Trimaran failed on it: {type(error).__name__}: {error}"


def _rates(
    rows: Mapping[int, LoaderRow], setups: Mapping[int, Setup], unfed: Mapping[int, _Unfed]
) -> dict[tuple[str, ...], tuple[int, LoaderRate]]:
    """For each loader, the row that it handed over most in, by its place, and that rate; of rows that are predicted."""
    said: dict[tuple[str, ...], bool] = {}
    for one in rows.values():
        said[one.loader] = said.get(one.loader, True) and one.setting.workers > 0
    found: dict[tuple[str, ...], tuple[int, LoaderRate]] = {}
    for place, one in rows.items():
        if place not in unfed or unfed[place].given:
            continue
        setup = setups[place]
        rate = _samples(setup) / setup.nodes / _seconds(one, setup)
        if said[one.loader]:
            rate /= _working(one, setup)
        if one.loader not in found or rate > found[one.loader][1].samples_per_s:
            found[one.loader] = place, LoaderRate(samples_per_s=rate, of_worker=said[one.loader], row_id=one.row.row_id)
    return found


def _unfed(
    place: int,
    rows: Mapping[int, LoaderRow],
    setups: Mapping[int, Setup],
    anchor: Anchor,
) -> _Unfed:
    one, setup = rows[place], setups[place]
    if one.setting.kind == "synthetic":
        return _Unfed(step_s=_seconds(one, setup), added=0.0, given="its data are always there: others start from it")
    twin = next((other for other in rows.values() if other.setting.kind == "synthetic" and other.like(one)), None)
    if twin is not None:
        return _Unfed(step_s=_seconds(twin, setup), added=0.0, anchors=(twin.row.row_id,))
    if setup.devices == 1 and anchor == "single":
        return _Unfed(step_s=_seconds(one, setup), added=0.0, given="one device's figure: others start from it")
    anchor_s: float | None = None
    source: tuple[str, ...] = ()
    if anchor == "single" and one.row.anchor is not None:
        anchor_s = step_of(one.row, setup, one.row.anchor, devices=1)
        source = _one_device(one, rows, setups)
    recipe = replace(recipe_of(one.row), feed_samples_per_s=0.0)
    step = row_step(one.row, replace(setup, real_data=False), recipe, anchor_s=anchor_s)
    return _Unfed(step_s=step.seconds, added=step.added_share or 0.0, anchors=source)


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


def _answer(one: LoaderRow, setup: Setup, unfed: _Unfed, rate: LoaderRate | None, *, shows: bool) -> Answer:
    if unfed.given:
        return _skipped(one, unfed.given, setup)
    if rate is not None and shows:
        what = "a worker" if rate.of_worker else "the host"
        return _skipped(
            one, f"its loader's rate was taken from it: {rate.samples_per_s:,.0f} samples/s of {what}", setup
        )
    waits = 0.0
    if rate is not None:
        per_s = rate.samples_per_s * (_working(one, setup) if rate.of_worker else 1)
        feed = Feed(samples_per_s=per_s, source=f"row {rate.row_id}")
        batch = setup.batch_per_device * setup.accumulation
        waits = feed.wait_s(batch, devices=-(-setup.devices // setup.nodes), step_s=unfed.step_s)
    step_s = unfed.step_s + waits
    row = replace(one.row, family=FEEDING)
    predicted = figure_of(row, setup, step_s)
    spread = deviation(one.row.family, own=None, share=(unfed.added * unfed.step_s + waits) / step_s, known=True)
    low, high = interval(predicted, spread, time=is_time(row))
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


def _seconds(one: LoaderRow, setup: Setup) -> float:
    return step_of(one.row, setup, one.row.measured, devices=setup.devices)


def _samples(setup: Setup) -> int:
    return setup.batch_per_device * setup.accumulation * setup.devices


def _working(one: LoaderRow, setup: Setup) -> int:
    """Workers that have a core each."""
    return max(1, min(one.setting.workers, setup.machine.node.cpu_cores or one.setting.workers))
