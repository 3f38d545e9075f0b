"""The step of a row that differs from others in what feeds it, were its data always there.

It is that of synthetic data with as many devices, where it was published; one device's own, which others start from;
else modelled, from one device's step with the same loader where that was measured. Without anchors it is always
modelled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trimaran.session.validation.intervals import deviation, interval
from trimaran.session.validation.loader_rates_settings import LoaderRow
from trimaran.session.validation.quantities import step_of
from trimaran.session.validation.sources import recipe_of
from trimaran.session.validation.steps import row_step
from trimaran.session.validation.types import Anchor, Row, Setup

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
