"""What others would run: replicas alone, states of all devices divided (FSDP, ZeRO-3), the field's rule of thumb.

The rule of thumb: the least model parallelism that fits, inside a node by layers first, then by stages; states of the
optimizer divided over replicas, an ordinary 1F1B pipeline of stages as even as can be, the largest microbatch that
fits, and layers computed again only where nothing fits without.
"""

from collections import Counter
from dataclasses import replace

from trimaran.planner.divisions.candidates import groups, members
from trimaran.planner.divisions.pricing import memory_limit, pricer
from trimaran.planner.divisions.types import Baseline, DivisionPins, DivisionTask, PricedDivision

_NO_MODEL = frozenset({"tp", "pp", "cp"})


def baselines(task: DivisionTask) -> tuple[Baseline, ...]:
    """Each baseline with its cost, or the reason why it cannot be run; pins of the task do not bind them."""
    return (
        _best(task, "ddp", DivisionPins(sharding="none", forbid=_NO_MODEL)),
        _best(task, "fsdp", DivisionPins(sharding="parameters", forbid=_NO_MODEL)),
        _rule_of_thumb(task),
    )


def _fitting(task: DivisionTask, pins: DivisionPins) -> tuple[list[PricedDivision], str]:
    free = replace(task, pins=pins)
    pricing, limit, rejected = pricer(free), memory_limit(free), Counter[str]()
    every = [pricing.priced(each) for group in groups(free, rejected) for each in members(free, group)]
    fitting = [found for found in every if found.memory.peak <= limit]
    if fitting:
        return fitting, ""
    if every:
        least = min(found.memory.peak for found in every)
        return [], f"needs at least {least / 1e9:.1f} GB on a rank, of {limit / 1e9:.1f} GB"
    return [], next(iter(rejected), "cannot be built")


def _best(task: DivisionTask, name: str, pins: DivisionPins) -> Baseline:
    fitting, reason = _fitting(task, pins)
    return Baseline(name=name, priced=min(fitting, key=lambda found: found.rank, default=None), reason=reason)


def _rule_of_thumb(task: DivisionTask) -> Baseline:
    pins = DivisionPins(chunks=1, sharding="optimizer", forbid=frozenset({"cp"}))
    if task.devices == 1:
        pins = replace(pins, sharding="none")
    fitting, reason = _fitting(task, pins)

    def order(found: PricedDivision) -> tuple[int, int, bool, int]:
        division = found.division
        again = bool(division.recomputed)
        return (division.tensor * division.pipeline, division.pipeline, again, -division.microbatch)

    return Baseline(name="rule of thumb", priced=min(fitting, key=order, default=None), reason=reason)
