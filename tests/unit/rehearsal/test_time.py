"""Laws of the step time of recorded ranks, and small cases by hand."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rehearsal.writing import collective, group, product, record, runs, small

from trimaran.base.errors import InputError
from trimaran.graph.kernels.workload import WorkKind
from trimaran.machine.find import find_machine
from trimaran.pricing.analytical.step_time import step_constants
from trimaran.pricing.collectives.algorithms import collective_cost, crossing_cost
from trimaran.pricing.collectives.links import crossing_of
from trimaran.pricing.exchange.unknowns import INTERFERENCE
from trimaran.pricing.kernels.constants import constants
from trimaran.pricing.kernels.corrections import KernelProfile, step_seconds
from trimaran.pricing.kernels.estimate import framework_constant
from trimaran.pricing.kernels.software import Software
from trimaran.program.types import Program
from trimaran.rehearsal.prices import Links, RehearsalCalibration, host_seconds, price_kernels, read_calibration
from trimaran.rehearsal.record import (
    Await,
    End,
    Event,
    EventMark,
    Issue,
    Kernel,
    Moves,
    Record,
    Run,
    Sync,
    TensorForm,
    Wait,
)
from trimaran.rehearsal.time import TODAY, StepTime, calibration_from_profile, step_time
from trimaran.report.trace import trace_document

H100 = find_machine("dgx-h100")
LARGE, TINY = product(8192), small()
HOST_S = host_seconds(TODAY)


def alone(kernel: Kernel, machine: str = "dgx-h100") -> float:
    return price_kernels([kernel], find_machine(machine).node.device, TODAY)[0].device_s


def timed(*records: Record, machine: str = "dgx-h100", kinds: dict[int, int] | None = None) -> StepTime:
    return step_time(records, find_machine(machine), kinds=kinds)


def steps(events: Sequence[Event], *collectives, **options) -> Record:  # type: ignore[no-untyped-def]
    return record(events, [LARGE, TINY], collectives, [group((0, 1))], **options)


def sums_up(found: StepTime) -> bool:
    return all(each.parts.seconds == pytest.approx(found.step.seconds, rel=1e-9) for each in found.ranks)


# ---------------------------------------------------------------------------------------------------------------------
# By hand


def test_kernels_of_one_stream_follow_one_another() -> None:
    found = timed(steps(runs(0, 10)))
    device_s = 10 * alone(LARGE)
    assert found.step.seconds == pytest.approx(device_s, rel=0.01)
    assert found.parts.compute_s == pytest.approx(device_s)
    assert sums_up(found)
    assert found.ranks[0].flops == pytest.approx(10 * 2 * 8192**3)
    assert found.mfu == pytest.approx(found.ranks[0].flops / found.step.seconds / 989e12, rel=1e-6)


def test_small_kernels_wait_for_the_host() -> None:
    found = timed(steps(runs(1, 1000)))
    device_s, host_s = 1000 * alone(TINY), 1000 * HOST_S
    together_s = step_seconds(device_s, host_s, framework_constant("overlap", Software(), constants()))
    assert found.step.seconds == pytest.approx(together_s, rel=0.01)
    assert found.parts.compute_s == pytest.approx(device_s, rel=0.01)
    assert found.parts.launches_s == pytest.approx(together_s - device_s, rel=0.02)
    assert sums_up(found)


def test_a_wait_for_the_device_keeps_the_host_from_running_ahead() -> None:
    events = [*runs(0, 3), *runs(1, 100)]
    without, waits = timed(steps(events)), timed(steps([*events, Sync(0, 0)]))
    # The host asks for the small kernels while the large ones run, in both; but the next step it asks for too late.
    assert waits.step.seconds >= without.step.seconds + 0.5 * HOST_S
    assert sums_up(waits)


def test_a_collective_that_is_waited_for_is_exposed_and_one_beside_kernels_is_not() -> None:
    machine = find_machine("dgx-h100")
    cost = collective_cost("all_reduce", 2**26, machine=machine, devices=2)
    waits = timed(steps([*runs(0, 4), Issue(0), Wait(0, 0), *runs(0, 4)], collective(), world=2))
    nobody = timed(steps([*runs(0, 4), Issue(0), *runs(0, 4)], collective(), world=2))
    plain = timed(steps(runs(0, 8), world=2))
    assert waits.parts.communication_s == pytest.approx(cost.seconds, rel=0.05)
    assert waits.step.seconds == pytest.approx(plain.step.seconds + cost.seconds, rel=0.01)
    assert nobody.parts.communication_s == 0.0
    slower_s = cost.seconds * (INTERFERENCE.value - 1)
    assert nobody.step.seconds - plain.step.seconds == pytest.approx(slower_s, abs=0.5 * slower_s + 1e-6)
    assert all(sums_up(one) for one in (waits, nobody, plain))


def test_a_collective_that_is_not_asynchronous_holds_its_stream() -> None:
    asked = collective(asynchronous=False)
    blocked = timed(steps([*runs(0, 2), Issue(0), *runs(0, 2)], asked, world=2))
    waited = timed(steps([*runs(0, 2), Issue(0), Wait(0, 0), *runs(0, 2)], collective(), world=2))
    assert blocked.step.seconds == pytest.approx(waited.step.seconds)


def test_streams_overlap_communication_and_share_the_device() -> None:
    side = collective(stream=7, asynchronous=False)
    beside = timed(steps([Issue(0), *runs(0, 8), EventMark(0, 7), Await(0, 0), *runs(1)], side, world=2))
    alone_s = timed(steps([*runs(0, 8), *runs(1)], world=2)).step.seconds
    blocked = timed(steps([*runs(0, 8), *runs(1), Issue(0), Wait(0, 0)], collective(), world=2)).step.seconds
    assert beside.step.seconds < alone_s + 0.3 * (blocked - alone_s)
    both = timed(steps([*runs(0, 4), *runs(0, 4, stream=3), EventMark(0, 3), Await(0, 0), *runs(1)]))
    one = timed(steps([*runs(0, 8), *runs(1)]))
    assert both.step.seconds == pytest.approx(one.step.seconds, rel=0.02)


def test_a_stream_waits_for_an_event_of_another() -> None:
    free = timed(steps([*runs(0, 4), *runs(0, 1, stream=2)]))
    chained = timed(
        steps([*runs(0, 4), EventMark(5, 0), Await(5, 2), *runs(0, 1, stream=2), EventMark(6, 2), Await(6, 0)])
    )
    assert chained.step.seconds >= free.step.seconds - 1e-9
    spans = [span for span in chained.timeline if span.stream == "stream 2"]
    before = [span for span in chained.timeline if span.stream == "compute"]
    assert spans[0].start_s >= max(span.end_s for span in before) - 1e-9


# ---------------------------------------------------------------------------------------------------------------------
# Several ranks


def pipeline(microbatches: int, *, batched: bool = False, steps: int = 3) -> list[Record]:
    """Two stages; the second computes twice as long."""
    events: list[list[Event]] = [[], []]
    collectives: list[list] = [[], []]  # type: ignore[type-arg]
    for number in range(microbatches):
        batch = 100 + number if batched else -1
        collectives[0].append(collective("send", 2**22, peer=1, coalesced=batch))
        collectives[1].append(collective("recv", 2**22, peer=0, coalesced=batch))
        events[0] += [*runs(0, 1), Issue(number)]
        events[1] += [Issue(number), Wait(number, 0), *runs(0, 2)]
    # Both end with a sum, as a norm of gradients is.
    for rank in (0, 1):
        collectives[rank].append(collective("all_reduce", 2**10, group="1"))
        events[rank] += [Issue(microbatches), Wait(microbatches, 0), *runs(1)]
    groups = [group((0, 1)), group((0, 1), name="1", description="norm")]
    return [
        record(events[rank], [LARGE, TINY], collectives[rank], groups, rank=rank, world=2, steps=steps)
        for rank in (0, 1)
    ]


@pytest.mark.parametrize("batched", [False, True])
def test_a_pipeline_has_the_bubble_of_its_filling(batched: bool) -> None:
    found = timed(*pipeline(4, batched=batched))
    one = alone(LARGE)
    # The second stage waits for the first microbatch; the first one for the rest of the second's.
    assert found.ranks[1].parts.bubble_s == pytest.approx(one, rel=0.05)
    assert found.ranks[0].parts.bubble_s == pytest.approx(5 * one, rel=0.06)
    assert found.step.seconds == pytest.approx(9 * one * step_constants().slowest_factor(2), rel=0.06)
    assert found.critical == 1
    assert sums_up(found)


def test_messages_before_the_first_forward_are_counted_on_both_sides() -> None:
    """Stages tell each other shapes: one does before its first forward, the other after it has begun."""
    stages = pipeline(3, steps=2)
    for found, operation, place in zip(stages, ("send", "recv"), (0, 1), strict=True):
        found.collectives.append(collective(operation, 8, peer=1 - found.rank))
        found.events.insert(place, Issue(len(found.collectives) - 1))
    assert timed(*stages).step.seconds == pytest.approx(timed(*pipeline(3)).step.seconds, rel=0.02)


def test_a_collective_starts_with_its_last_member() -> None:
    def rank(number: int, count: int) -> Record:
        events = [*runs(0, count), Issue(0), Wait(0, 0), *runs(1)]
        return steps(events, collective(), rank=number, world=2)

    found = timed(rank(0, 2), rank(1, 6))
    assert found.ranks[0].parts.bubble_s == pytest.approx(4 * alone(LARGE), rel=0.05)
    assert found.ranks[1].parts.bubble_s == pytest.approx(0.0, abs=1e-6)
    assert found.critical == 1
    assert sums_up(found)


def test_members_that_are_not_rehearsed_arrive_as_those_that_stand_for_them() -> None:
    """Ranks 0 and 1 of four: 1 is slow, and 3 is as slow; the group of 0 and 2 does not wait, that of 0 and 3 does."""

    def rank(number: int, count: int, members: tuple[int, int]) -> Record:
        own = group(members, name="5", description="mesh_rows", order=1)
        events = [*runs(0, count), Issue(0), Wait(0, 0), *runs(1)]
        return record(events, [LARGE, TINY], [collective(group="5")], [own], rank=number, world=4)

    beside = timed(rank(0, 1, (0, 2)), rank(1, 5, (1, 3)), kinds={0: 0, 1: 1, 2: 0, 3: 1})
    across = timed(rank(0, 1, (0, 3)), rank(1, 5, (1, 2)), kinds={0: 0, 1: 1, 2: 0, 3: 1})
    begun_s = [
        min(span.start_s for span in found.timeline if span.stream == "communication" and span.rank == 0)
        - min(span.start_s for span in found.timeline if span.rank == 0)
        for found in (beside, across)
    ]
    assert begun_s[1] > begun_s[0] + 3 * alone(LARGE)


def test_messages_to_ranks_that_are_not_rehearsed_wait_for_the_one_that_stands_for_them() -> None:
    """Two stages of two ranks; of the second stage only rank 2 is rehearsed, which stands for 3."""

    def sender(number: int) -> Record:
        asked = collective("send", 2**22, peer=number + 2, group="9")
        own = group((number, number + 2), name="9", description="mesh_stages", order=2)
        return record([*runs(0), Issue(0), Wait(0, 0), *runs(1)], [LARGE, TINY], [asked], [own], rank=number, world=4)

    own = group((0, 2), name="9", description="mesh_stages", order=2)
    asked = collective("recv", 2**22, peer=0, group="9")
    slow = record([*runs(0, 6), Issue(0), Wait(0, 0), *runs(1)], [LARGE, TINY], [asked], [own], rank=2, world=4)
    found = timed(sender(0), sender(1), slow, kinds={0: 0, 1: 1, 2: 2, 3: 2})
    for place in (0, 1):
        assert found.ranks[place].parts.bubble_s == pytest.approx(5 * alone(LARGE), rel=0.06)
    # Without it, rank 1 sends as soon as it can, and is done with all steps early on.
    free = timed(sender(0), sender(1), slow)
    assert free.ranks[1].parts.compute_s == 0.0


def test_ranks_that_wait_for_each_other_are_named() -> None:
    own = [group((0, 1))]

    def rank(number: int, *operations: str) -> Record:
        events = [event for place in (0, 1) for event in (Issue(place), Wait(place, 0), *runs(1))]
        asked = [collective(operation, 2**22, peer=1 - number) for operation in operations]
        return record(events, [LARGE, TINY], asked, own, rank=number, world=2)

    assert timed(rank(0, "send", "recv"), rank(1, "recv", "send")).step.seconds > 0.0
    crossed = [rank(0, "recv", "send"), rank(1, "recv", "send")]
    with pytest.raises(InputError, match="waits for") as error:
        timed(*crossed)
    assert error.value.code == "program.deadlock"


# ---------------------------------------------------------------------------------------------------------------------
# Laws


EVENTS = st.lists(
    st.sampled_from(
        [*runs(0), *runs(1), *runs(0, 1, stream=2), Issue(0), Wait(0, 0), EventMark(0, 2), Await(0, 0), Sync(0, 0),
         Sync(-1, 0)]
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(events=EVENTS)
def test_parts_sum_up_and_slower_is_never_faster(events: list[Event]) -> None:
    listed = [*runs(0), *events]
    count = sum(isinstance(event, Issue) for event in listed)
    number = iter(range(count))
    seen = -1
    placed: list[Event] = []
    for event in listed:
        if isinstance(event, Issue):
            seen = next(number)
            event = Issue(seen)
        elif isinstance(event, Wait):
            if seen < 0:
                continue
            event = Wait(seen, 0)
        placed.append(event)
    found = steps(placed, *[collective() for _ in range(count)], world=2)
    fast, slow = timed(found), timed(found, machine="dgx-a100")
    assert sums_up(fast)
    assert sums_up(slow)
    assert slow.step.seconds >= fast.step.seconds * (1 - 1e-9)
    assert fast.step.low <= fast.step.seconds <= fast.step.high
    assert min(fast.ranks[0].parts.compute_s, fast.parts.launches_s, fast.parts.communication_s) >= 0.0
    longer = step_time(
        [found], H100, calibration=RehearsalCalibration(collectives={"all_reduce": 3.0}, source="example")
    )
    # A kernel on a stream that nobody waits for runs into the next step, and no step is like the one before yet.
    beside = any(isinstance(event, Run) and event.stream for event in placed)
    assert beside or longer.step.seconds >= fast.step.seconds * (1 - 1e-9)


def test_steps_before_the_last_one_do_not_count() -> None:
    usual = steps(runs(0, 5))
    assert timed(steps(runs(0, 5), steps=6)).step.seconds == pytest.approx(timed(usual).step.seconds)
    first = timed(steps(runs(0, 5), steps=1))
    assert first.step.seconds == pytest.approx(timed(usual).step.seconds, rel=0.05)


def test_calibration_is_a_factor_on_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "factors.json"
    path.write_text('{"calibration": {"kernels": {"aten.mm": 2.0}, "host": 1.5, "spread": 0.01, "source": "one H100"}}')
    table = read_calibration(path)
    found, plain = step_time([steps(runs(0, 10))], H100, calibration=table), timed(steps(runs(0, 10)))
    assert found.step.seconds == pytest.approx(2 * plain.step.seconds, rel=0.01)
    assert found.step.high / found.step.low < plain.step.high / plain.step.low
    small_ones = step_time([steps(runs(1, 1000))], H100, calibration=table)
    assert small_ones.step.seconds == pytest.approx(1.5 * 1000 * HOST_S, rel=0.25)


def test_a_profile_of_one_device_calibrates_operators_and_their_kinds() -> None:
    """Products take twice as long as modelled, sums five times; operators that were not profiled as their kind."""
    add = Kernel("aten.add.Tensor", (TensorForm((2**24,), "float32"),) * 2, (TensorForm((2**24,), "float32"),), {}, 0)
    alike = Kernel("aten.mul.Tensor", add.inputs, add.outputs, {}, 0)
    found = record([*runs(0, 4), *runs(1, 4)], [LARGE, add])
    profile = KernelProfile(
        kinds_s={WorkKind.PRODUCT: 8 * alone(LARGE), WorkKind.ELEMENTWISE: 20 * alone(add)},
        step_s=8 * alone(LARGE) + 20 * alone(add),
        steps=1,
        source="one H100",
        operators_s={"aten::mm": 8 * alone(LARGE), "aten::add": 20 * alone(add)},
    )
    table = calibration_from_profile(profile, found, H100)
    assert table.kernels == {"aten.mm": pytest.approx(2.0), "aten.add": pytest.approx(5.0)}
    assert step_time([found], H100, calibration=table).step.seconds == pytest.approx(profile.step_s, rel=0.01)
    other = record([*runs(0, 4), *runs(1, 4)], [LARGE, alike])
    assert step_time([other], H100, calibration=table).step.seconds == pytest.approx(profile.step_s, rel=0.01)


def test_the_interval_of_long_steps_is_not_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    found = steps([*runs(0, 4), Issue(0), *runs(0, 2), Wait(0, 0), *runs(1)], collective(nbytes=2**30), world=2)
    played = timed(found).step
    monkeypatch.setattr("trimaran.rehearsal.time.MOST_TASKS", 0)
    quick = timed(found).step
    assert quick.seconds == played.seconds
    assert quick.low <= played.low * 1.001
    assert quick.high >= played.high * 0.999


@pytest.mark.parametrize("text", ['{"source": "x", "kernels": {"aten.mm": 0}}', '{"source": "x", "host": -1}'])
def test_factors_that_are_not_positive_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "factors.json"
    path.write_text(f'{{"calibration": {text}}}')
    with pytest.raises(InputError, match="above 0"):
        read_calibration(path)


def test_compiled_scripts_are_told_of() -> None:
    """Ten kernels, each of what the one before made, are one."""
    chain = [event for block in range(10) for event in (*runs(1), Moves((block,), (block + 1,), True))]
    found = timed(steps([*runs(0, 5), *chain], steps=1))
    assert "torch.compile" in found.notes[0]
    assert [share.name for share in found.kernels] == ["aten.mm", "inductor.fused"]
    eager = timed(steps([*runs(0, 5), *runs(1, 10)], steps=1))
    assert found.step.low < found.step.seconds < eager.step.seconds
    assert found.step.high / found.step.low < 2.5
    noted = timed(steps([*runs(0, 5), *runs(1, 10)], steps=1, notes=["torch.compile: rehearsed without it"]))
    assert noted.step.seconds == eager.step.seconds  # what is noted decides nothing
    assert timed(steps(runs(0, 5))).notes == ()
    assert "priced on a100" in timed(steps(runs(0, 5)), machine="dgx-a100").notes[0]


def test_tokens_and_samples_are_counted_once_a_microbatch() -> None:
    table, places = TensorForm((1000, 64), "bfloat16"), TensorForm((4, 32), "int64")
    look_up = Kernel("aten.embedding.default", (table, places), (TensorForm((4, 32, 64), "bfloat16"),), {}, 0)
    found = timed(record([*runs(0, 2), *runs(1)], [look_up, LARGE]))
    assert found.ranks[0].tokens == 2 * 4 * 32
    assert found.ranks[0].samples == 8
    assert found.tokens_per_s == pytest.approx(256 / found.step.seconds)
    image = Kernel(
        "aten.convolution.default",
        (TensorForm((16, 3, 8, 8), "float32"), TensorForm((8, 3, 3, 3), "float32")),
        (TensorForm((16, 8, 8, 8), "float32"),),
        {},
        100,
    )
    assert timed(record(runs(0), [image])).ranks[0].samples == 16


def test_the_timeline_is_drawn_for_perfetto() -> None:
    found = timed(*pipeline(2))
    assert found.timeline.ranks == (0, 1)
    document = trace_document(Program(ranks=(), segments=0, microbatches=0), found.timeline)
    names = [event["name"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert sum(name.startswith("aten.mm") for name in names) == 6
    assert sum(name.startswith("send") for name in names) == 4
    busy = [span for span in found.timeline if span.stream == "compute" and span.rank == 1]
    assert sum(span.seconds for span in busy) == pytest.approx(found.ranks[1].device_s, rel=0.05)


# ---------------------------------------------------------------------------------------------------------------------
# What is refused


def test_what_has_no_step_is_refused() -> None:
    lost = steps(runs(0), steps=0)
    lost.end = End("error", 1, "RuntimeError: no data", -1)
    with pytest.raises(InputError, match="RuntimeError: no data") as error:
        timed(lost)
    assert error.value.code == "rehearse.no-whole-step"
    with pytest.raises(InputError, match="no rank"):
        timed()
    with pytest.raises(InputError, match="rank 1 ended after step 1") as error:
        timed(steps(runs(0), world=2), steps(runs(0), rank=1, world=2, steps=2))
    assert error.value.code == "rehearse.different-steps"
    with pytest.raises(InputError, match="name a cluster of 2 nodes") as error:
        timed(steps(runs(0), world=16))
    assert error.value.code == "rehearse.cluster-too-small"


# ---------------------------------------------------------------------------------------------------------------------
# Collectives on a machine


def test_groups_share_cards_with_those_like_them() -> None:
    machine = find_machine("dgx-h100:4@1 ib-ndr")
    links = Links(machine, world=32, per_node=8, year=2024.0)
    ranks = (0, 8, 16, 24)
    found = links.transfer(collective("all_gather", 2**28), ranks, source=-1, target=-1)
    single = crossing_cost("all_gather", 2**28, machine=machine, crossing=crossing_of(machine, ranks, op="all_gather"))
    assert found.latency_s + found.flow_s > 4 * single.seconds
    assert found.links == ("network",)
    inside = links.transfer(collective("all_gather", 2**28), range(8), source=-1, target=-1)
    assert inside.links == ("inside",)
    assert inside.flow_s < found.flow_s


def test_a_message_is_dearer_between_nodes() -> None:
    links = Links(find_machine("dgx-h100:2"), world=16, per_node=8, year=2024.0)
    near, far = (links.transfer(collective("send", 2**26), (), source=0, target=end) for end in (4, 12))
    assert near.links == ("inside",)
    assert far.links == ("network",)
    assert far.flow_s > near.flow_s
