"""Fits how unsure a training is that is predicted from a smaller one, to rows of calibration that come with Trimaran.

    python benchmarks/fits/trainings.py

Rows are trainings of tables, each predicted from the smallest of its table, and throughputs, each predicted from one
device's. (Calibration has no submissions.) The three constants of a width are those whose mean interval score is
smallest, a machine and network with many rows weighing less than their number. They are then multiplied as those of
intervals.py are and for the same reason: what is asked for later are machines and networks on which no constant of the
model was fitted. Printed are the constants, which stand in trimaran_studies/time_to_train/from_submissions.py, and how
many rows they hold; also where the constants of each machine and network come from all others.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from intervals import BASES, UNSEEN_SCALING

from trimaran.base.errors import TrimaranError
from trimaran_studies.facts.sizes import SIZED
from trimaran_studies.published.rows import published_rows
from trimaran_studies.time_to_train.from_submissions import TrainingWidth
from trimaran_studies.time_to_train.from_tables import answer_tables, published_step_s
from trimaran_studies.validation.intervals import interval
from trimaran_studies.validation.measurement import Row, Setup, is_time
from trimaran_studies.validation.scores import interval_score
from trimaran_studies.validation.setups import recipe_of
from trimaran_studies.validation.steps import row_step
from trimaran_studies.validation.validate import row_forecast

PER_DOUBLING = [0.01 * step for step in range(9)]
SLOPES = [0.0, *(0.1 * 1.25**step for step in range(13))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A row predicted from a smaller set-up.

    Attributes:
        group: machine and network
        ratio: measured over predicted time
        doublings: of devices
        share: of the step that devices add
        built: whether Trimaran builds the network
    """

    group: tuple[str, str]
    ratio: float
    doublings: float
    share: float
    built: bool


def main() -> None:
    pairs = [*trainings(), *throughputs()]
    for name, built in (("BUILT", True), ("SIZE_ONLY", False)):
        say(name, [pair for pair in pairs if pair.built == built])


def say(name: str, pairs: Sequence[Pair]) -> None:
    """Fit a width and print it, with how many rows it holds."""
    width, others = fit(pairs), fits_of_others(pairs)
    print(f"{name} = {printed(scaled(width, UNSEEN_SCALING))}")
    print(f"  {len(pairs)} rows in {len(others)} groups: {printed(width)}, then x {UNSEEN_SCALING}")
    for factor in (1.0, UNSEEN_SCALING):
        all_in = inside(pairs, lambda _, factor=factor: scaled(width, factor))
        left_out = inside(pairs, lambda pair, factor=factor: scaled(others[pair.group], factor))
        print(f"  x {factor}: inside {all_in:.0%}, groups left out {left_out:.0%}")


def trainings() -> Iterator[Pair]:
    """Trainings of tables from the smallest of their table."""
    rows = [row for row in published_rows("time_to_train") if row.fields["use"] == "calibrate"]
    answers = answer_tables(rows)
    devices = {found.row.row_id: found.setup.devices for found in answers if found.setup}
    for found in answers:
        if found.setup and found.predicted and found.anchors:
            doublings = math.log2(found.setup.devices / devices[found.anchors[0]])
            share = share_of(found.row, found.setup)
            yield pair_of(found.setup, found.row.measured / found.predicted, doublings, share)


def throughputs() -> Iterator[Pair]:
    """Throughputs of several devices from that of one."""
    for row in (*published_rows("dp_throughput"), *published_rows("dp_step_time")):
        if row.fields["use"] != "calibrate" or row.anchor is None or row.flag:
            continue
        try:
            setup, step, predicted = row_forecast(row, anchor="single")
        except TrimaranError:
            continue
        if step.added_share is not None:
            ratio = row.measured / predicted
            yield pair_of(setup, ratio if is_time(row) else 1 / ratio, math.log2(setup.devices), step.added_share)


def share_of(row: Row, setup: Setup) -> float:
    """Of a training's step that devices add."""
    recipe = recipe_of(row)
    anchor_s = published_step_s(setup, recipe) if setup.network.startswith(SIZED) else None
    return row_step(row, setup, recipe, anchor_s=anchor_s).added_share or 0.0


def pair_of(setup: Setup, ratio: float, doublings: float, share: float) -> Pair:
    return Pair(
        group=(setup.machine.node.name, setup.network),
        ratio=ratio,
        doublings=doublings,
        share=share,
        built=not setup.network.startswith(SIZED),
    )


def fit(pairs: Sequence[Pair]) -> TrainingWidth:
    """The width whose mean interval score is smallest."""
    weights = weights_of(pairs)

    def loss(width: TrainingWidth) -> float:
        ends = [ends_of(pair, width) for pair in pairs]
        return sum(
            weight * interval_score(pair.ratio, *end) for weight, pair, end in zip(weights, pairs, ends, strict=True)
        )

    every = itertools.product(BASES, PER_DOUBLING, SLOPES)
    return min((TrainingWidth(base=a, per_doubling=b, slope=c) for a, b, c in every), key=loss)


def fits_of_others(pairs: Sequence[Pair]) -> dict[tuple[str, str], TrainingWidth]:
    """For each group the width that all other groups give."""
    return {
        group: fit([pair for pair in pairs if pair.group != group]) for group in sorted({pair.group for pair in pairs})
    }


def inside(pairs: Sequence[Pair], width: Callable[[Pair], TrainingWidth]) -> float:
    """Share of rows in their 90 % interval, by weight."""
    weights = weights_of(pairs)
    ends = [ends_of(pair, width(pair)) for pair in pairs]
    return sum(
        weight * (low <= pair.ratio <= high) for weight, pair, (low, high) in zip(weights, pairs, ends, strict=True)
    )


def ends_of(pair: Pair, width: TrainingWidth) -> tuple[float, float]:
    """The interval of a ratio."""
    return interval(1.0, width.deviation(pair.doublings, pair.share), time=True)


def weights_of(pairs: Sequence[Pair]) -> list[float]:
    """Of each row: one over the root of its group's rows, in all 1."""
    counts = Counter(pair.group for pair in pairs)
    weights = [1 / math.sqrt(counts[pair.group]) for pair in pairs]
    return [weight / sum(weights) for weight in weights]


def scaled(width: TrainingWidth, factor: float) -> TrainingWidth:
    return replace(
        width, base=width.base * factor, per_doubling=width.per_doubling * factor, slope=width.slope * factor
    )


def printed(width: TrainingWidth) -> str:
    return f"TrainingWidth(base={width.base:.3g}, per_doubling={width.per_doubling:.3g}, slope={width.slope:.3g})"


if __name__ == "__main__":
    main()
