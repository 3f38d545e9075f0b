"""Steps made by hand, and the classes that they are split into."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.measure.stalls.test_exchanges import program, span, waits

from trimaran.base.timeline import COMPUTE, HOST, Timeline
from trimaran.measure.observe.records import mean_step
from trimaran.measure.stalls.steps import (
    CLASSES,
    StepSplit,
    TimedStep,
    calm,
    divide_loading,
    split_steps,
    sum_loadings,
)
from trimaran.program.types import Kind
from trimaran.runtime.data.prefetch import LoadingTimes


def split(**classes: float) -> StepSplit:
    return StepSplit(**dict.fromkeys(CLASSES, 0.0) | classes)


def timed(loading: LoadingTimes | None = None, **fields: float) -> TimedStep:
    return TimedStep(number=0, way="cached", block=0, loading=loading, **fields)  # type: ignore[arg-type]


def test_a_step_is_split_by_its_record() -> None:
    """Of 20 s: 1 until the share is named; 4 of loading, of which 3 are known; waits of 6, of which 3 are the exchange.

    Compute is 7.5 s of a backward, of which 1 are spent handing a bucket over, and 1 of the update. Of no class are 1 s
    of the loading, 0.5 between it and the backward, and 1 after the update; on rank 1, 2 after all.
    """
    timeline = Timeline(
        [
            span(0, HOST, "IN0", 0.0, 4.0),
            span(0, COMPUTE, "0B0", 4.5, 12.0),
            *waits(0, 6.0, b0=1.0),
            *waits(0, 12.0, b1=5.0),
            span(0, COMPUTE, "U", 17.0, 18.0),
            span(1, COMPUTE, "0B0", 0.0, 15.0),
            *waits(1, 3.0, b0=1.0),
            *waits(1, 15.0, b1=2.0),
        ]
    )
    loading = LoadingTimes(samples=4, read_s=2.0, prepared_s=0.75, copied_s=0.25)
    plain = program()
    loads = dataclasses.replace(plain.ranks[0][0], kind=Kind.LOAD, segment=None, stream=HOST)
    reading = dataclasses.replace(plain, ranks=((loads, *plain.ranks[0]), plain.ranks[1]))
    steps = [[timed(loading, asked_s=1.0, step_s=19.0)], [timed(asked_s=0.0, step_s=19.0)]]
    own, other = split_steps(reading, [timeline], steps)
    assert own[0] == split(
        fetch=2.0,
        prepare=1.75,
        copy=0.25,
        compute=7.5,
        communication=3.0,
        synchronization=3.0,
        unattributed=2.5,
    )
    assert other[0] == split(compute=14.0, communication=3.0, unattributed=2.0)


def test_work_that_no_instruction_records_is_unattributed() -> None:
    """A step of 10 s, of which the record knows 9."""
    timeline = Timeline([span(0, COMPUTE, "0B0", 0.0, 9.0)])
    (own,) = split_steps(program(), [timeline], [[timed(asked_s=0.0, step_s=10.0)]])
    assert own[0] == split(compute=9.0, unattributed=1.0)


def test_a_step_that_was_not_recorded_is_left_out() -> None:
    assert split_steps(program(), [Timeline([])], [[timed(asked_s=0.0, step_s=1.0)]]) == [{}]


TIMES = st.floats(0.0, 10.0)


@given(
    read=TIMES,
    prepared=TIMES,
    waited=TIMES,
    taken=TIMES,
    copied=TIMES,
    load=TIMES,
    in_line=st.booleans(),
    host=st.booleans(),
)
def test_parts_of_a_loading_sum_to_it(
    read: float, prepared: float, waited: float, taken: float, copied: float, load: float, in_line: bool, host: bool
) -> None:
    loading = LoadingTimes(
        samples=1,
        read_s=read,
        prepared_s=prepared,
        waited_s=0.0 if in_line else waited,
        taken_s=0.0 if in_line else taken,
        copied_s=copied,
        in_line=in_line,
    )
    parts = divide_loading(loading, load, host_blocks=host)
    each = dataclasses.astuple(parts)
    assert sum(each) == pytest.approx(load)
    assert min(each) >= -1e-9


def test_a_device_copies_in_what_the_host_did_not_wait_for() -> None:
    parts = divide_loading(LoadingTimes(samples=1, prepared_s=1.0), 3.0, host_blocks=False)
    assert (parts.prepare, parts.copy, parts.rest) == (1.0, 2.0, 0.0)


def test_loadings_of_microbatches_add_up() -> None:
    both = sum_loadings([LoadingTimes(samples=3, read_s=1.0), LoadingTimes(samples=2, waited_s=2.0, in_line=False)])
    assert both == LoadingTimes(samples=5, read_s=1.0, waited_s=2.0, in_line=False)
    assert sum_loadings([]) is None


def test_blocks_that_were_disturbed_do_not_count() -> None:
    blocks = [split(compute=seconds) for seconds in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 30.0)]
    assert calm(blocks) == [2, 3, 4, 5]
    assert mean_step([blocks[number] for number in calm(blocks)]).compute == pytest.approx(1.35)
    assert calm(blocks[:2]) == [0, 1]
