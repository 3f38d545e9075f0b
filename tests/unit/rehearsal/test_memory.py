"""Memory of rehearsed ranks, from records made by hand whose figures follow by addition."""

import random

import pytest

from trimaran.base.remedies import CATALOGUE, MemoryHelp
from trimaran.base.units import format_bytes
from trimaran.machine.catalog import find_device
from trimaran.pricing.analytical.fits_device import COMMUNICATOR_BYTES
from trimaran.rehearsal.memory import (
    Story,
    first_short,
    outside_of,
    play_blocks,
    read_memory,
    starred,
)
from trimaran.rehearsal.record import (
    Collective,
    Empty,
    End,
    Enter,
    Frame,
    Give,
    Group,
    Issue,
    Kernel,
    Name,
    Part,
    Purpose,
    Record,
    Run,
    Step,
    Sync,
    Take,
    TensorForm,
    Use,
)
from trimaran.rehearsal.remedies import Change, StepThen, memory_remedies
from trimaran.simulator.allocator import MIB, Settings

CONTEXT = find_device("h100").memory.context_bytes


class Tale:
    """Makes a record: blocks of so many MiB, in parts of a step."""

    def __init__(self, memory_bytes: int = 80 * 2**30, rank: int = 0) -> None:
        self.record = Record(
            rank=rank,
            world=2,
            per_node=2,
            device="h100",
            memory_bytes=memory_bytes,
            script=["train.py"],
            kernels=[Kernel("aten.add.Tensor", (TensorForm((8,), "float32"),), (), {}, 0)],
            end=End("finished", 0, "", -1),
        )
        self.part: Part = "setup"
        self.blocks = 0
        self.steps = 0

    def enter(self, part: Part) -> None:
        self.part = part
        self.record.events.append(Enter(part))

    def take(self, mib: float, purpose: Purpose = "activation", *, module: str = "", line: int = 1) -> int:
        record = self.record
        if module not in record.modules:
            record.modules.append(module)
        lines = (Frame("train.py", line, "main"),)
        if lines not in record.lines:
            record.lines.append(lines)
        self.blocks += 1
        record.events.append(
            Take(
                self.blocks,
                int(mib * MIB),
                0,
                purpose,
                record.lines.index(lines),
                record.modules.index(module),
                self.part,
            )
        )
        return self.blocks

    def give(self, *blocks: int) -> None:
        self.record.events.extend(Give(block) for block in blocks)

    def name(self, block: int, purpose: Purpose) -> None:
        self.record.events.append(Name(block, purpose))

    def run(self, module: str) -> None:
        if module not in self.record.modules:
            self.record.modules.append(module)
        self.record.events.append(Run(0, 0, 0, self.record.modules.index(module), self.part))

    def step(self) -> None:
        self.record.events.append(Step(self.steps))
        self.steps += 1

    def exchange(
        self,
        operation: str = "all_reduce",
        *,
        ranks: tuple[int, ...] = (0, 1),
        mib: int = 50,
        stream: int = 0,
        issued: bool = False,
    ) -> None:
        record = self.record
        record.groups["0"] = Group("0", ranks, "", 0, 0)
        record.collectives.append(
            Collective(operation, "sum", "0", (), (), mib * MIB, -1, stream, True, -1, (), 0, 0, self.part)
        )
        if issued:
            record.events.append(Issue(len(record.collectives) - 1))


def _training(
    tale: Tale,
    *,
    steps: int = 2,
    layers: int = 3,
    own: float = 100,
    kept: float = 40,
    state: bool = True,
    launches: bool = False,
) -> Tale:
    """Parameters of 30 MiB a layer; each keeps `own` and its output of `kept`; state of Adam from the first update."""
    for layer in range(layers):
        tale.take(30, "parameter", module=f"layers.{layer}", line=2)
    there = not state
    for _ in range(steps):
        tale.enter("forward")
        saved = []
        for layer in range(layers):
            if launches:
                tale.run(f"layers.{layer}")
            inner = tale.take(own, module=f"layers.{layer}.up", line=10)
            saved.append((inner, tale.take(kept, module=f"layers.{layer}", line=11)))
        tale.enter("backward")
        gradients = []
        for layer in reversed(range(layers)):
            tale.run(f"layers.{layer}")
            passing = tale.take(own, "temporary", module=f"layers.{layer}.up", line=10)
            gradients.append(tale.take(30, "temporary", module=f"layers.{layer}.up", line=10))
            tale.name(gradients[-1], "gradient")
            tale.give(passing, *saved[layer])
        tale.enter("update")
        if not there:
            for block in [tale.take(60, "temporary", line=20) for _ in range(layers)]:
                tale.name(block, "optimizer")
        there = True
        tale.give(*gradients)
        tale.step()
    return tale


def test_the_peak_and_what_it_is_for() -> None:
    tale = _training(Tale())
    found = read_memory(tale.record)
    # All activations, the first layer's gradient and what passes through it; and in the second step Adam's state.
    assert found.peak.allocated == (3 * 30 + 3 * 140 + 100 + 30 + 3 * 60) * MIB
    assert found.peak.purposes == {
        "parameter": 90 * MIB,
        "gradient": 30 * MIB,
        "optimizer": 180 * MIB,
        "activation": 420 * MIB,
        "temporary": 100 * MIB,
    }
    assert (found.peak.step, found.peak.part) == (1, "backward")
    assert found.steps == (640 * MIB, 820 * MIB)
    assert found.peak.line is not None
    assert found.peak.line.line == 10  # of three activations of 100 MiB
    assert found.fit.verdict == "fits"
    assert found.short is None


@pytest.mark.parametrize(
    ("buffers", "verdict", "short"),
    [
        (COMMUNICATOR_BYTES[1], "fits", False),
        (COMMUNICATOR_BYTES[1] - MIB, "not sure", True),
        (COMMUNICATOR_BYTES[0], "not sure", True),
        (COMMUNICATOR_BYTES[0] - 2 * MIB, "does not fit", True),
    ],
)
def test_the_buffers_of_nccl_decide_in_between(buffers: int, verdict: str, short: bool) -> None:
    tale = _training(Tale(), steps=1)
    tale.exchange()
    needed = read_memory(tale.record).reserved
    assert needed == 640 * MIB
    tale.record.memory_bytes = needed + CONTEXT + buffers
    found = read_memory(tale.record)
    assert found.fit.verdict == verdict, found.fit.why
    assert (found.short is not None) is short
    assert found.fit.needed == needed
    assert "NCCL" in found.fit.why


@pytest.mark.parametrize("room", [300, 510, 560, 640, 700, 819, 900])
def test_what_is_asked_for_at_once_says_no_more_than_playing_it(room: int) -> None:
    story = Story(_training(Tale()).record)
    assert story.least == 820 * MIB
    short = play_blocks(story, Settings(), room * MIB, ends_short=True).short
    assert (short is not None) is (story.least > room * MIB)


def test_a_record_without_a_whole_step_is_not_sure_to_fit() -> None:
    tale = Tale()
    tale.take(10, "parameter")
    assert read_memory(tale.record).fit.verdict == "not sure"
    stopped = _training(Tale())
    stopped.record.end = End("error", 1, "RuntimeError", 0)
    assert read_memory(stopped.record).fit.verdict == "not sure"
    stopped.record.memory_bytes = CONTEXT + 100 * MIB
    assert read_memory(stopped.record).fit.verdict == "does not fit"


def test_the_first_shortage_has_its_line_and_what_was_there() -> None:
    tale = _training(Tale(memory_bytes=CONTEXT + 560 * MIB))
    found = read_memory(tale.record).short
    assert found is not None
    # 90 of parameters and 420 of activations fit; 100 more, in the backward of the last layer, do not.
    assert (found.asked, found.at.allocated, found.at.part) == (100 * MIB, 510 * MIB, "backward")
    assert (found.lines[0].line, found.module) == (10, "layers.2.up")
    assert read_memory(tale.record).fit.verdict == "does not fit"


def test_the_rank_that_runs_out_first() -> None:
    later = _training(Tale(memory_bytes=CONTEXT + 700 * MIB, rank=3))  # with Adam's state, so in the second step
    first = _training(Tale(memory_bytes=CONTEXT + 560 * MIB, rank=5))
    fits = _training(Tale(rank=0))
    found = [read_memory(tale.record) for tale in (fits, later, first)]
    shortest = first_short(found)
    assert shortest is not None
    assert (shortest.rank, shortest.at.step) == (5, 0)
    assert first_short(found[:1]) is None


def test_communicators_are_those_that_are_used() -> None:
    tale = _training(Tale())
    assert outside_of(tale.record).most == 0
    tale.exchange(ranks=(0,))
    assert outside_of(tale.record).most == 0
    tale.record.collectives.clear()
    tale.exchange("all_gather_object")
    assert outside_of(tale.record).most == 0
    tale.exchange()
    tale.exchange()
    found = outside_of(tale.record)
    assert (found.communicators, found.least, found.most) == (1, *COMMUNICATOR_BYTES)
    assert found.least <= found.usual <= found.most
    tale.exchange("send")
    assert outside_of(tale.record).most == 2 * COMMUNICATOR_BYTES[1]


def test_memory_lent_to_another_stream_counts_until_the_host_waits() -> None:
    tale = Tale()
    tale.enter("forward")
    for number in range(4):
        block = tale.take(64)
        tale.record.events.append(Use(block, 7))
        tale.give(block)
        if number == 1:
            tale.record.events.append(Sync(7, 0))
    tale.step()
    found = read_memory(tale.record)
    assert found.reserved == 128 * MIB
    assert found.peak.allocated == 64 * MIB


def test_settings_are_those_of_the_record() -> None:
    tale = Tale()
    tale.enter("forward")
    for number in range(20):
        tale.give(tale.take(100 + 2 * number))
    tale.step()
    plain = read_memory(tale.record).reserved
    tale.record.allocator = "expandable_segments:True"
    assert read_memory(tale.record).reserved < plain
    assert read_memory(tale.record, settings=Settings()).reserved == plain
    tale.record.allocator = "backend:cudaMallocAsync"
    found = read_memory(tale.record)
    assert found.fit.verdict == "not sure"
    assert "not modelled" in found.fit.why


def test_an_emptied_cache_is_not_reserved() -> None:
    for emptied, reserved in ((False, 220), (True, 120)):
        tale = Tale()
        tale.enter("forward")
        tale.give(tale.take(100))
        if emptied:
            tale.record.events.append(Empty())
        tale.take(120)
        tale.step()
        assert read_memory(tale.record).reserved == reserved * MIB


def test_what_fits_as_segments_go_back_reserves_no_more_than_the_device_has() -> None:
    tale = Tale(memory_bytes=CONTEXT + 200 * MIB)
    tale.enter("forward")
    tale.give(tale.take(100))
    tale.take(120)
    tale.step()
    found = read_memory(tale.record)
    assert (found.fit.verdict, found.retries) == ("fits", 1)
    assert (found.reserved, found.unlimited) == (120 * MIB, 220 * MIB)


# ---------------------------------------------------------------------------------------------------------------------
# What would help


def _by_name(record: Record) -> dict[str, MemoryHelp]:
    return {remedy.name: remedy for remedy in memory_remedies(record)}


def test_remedies_save_what_addition_says() -> None:
    tale = Tale()
    tale.part = "update"
    for _ in range(3):
        tale.take(60, "optimizer", line=20)
    _training(tale, steps=1, state=False)
    tale.part = "backward"
    tale.exchange()
    before = read_memory(tale.record).reserved
    assert before == 820 * MIB
    found = _by_name(tale.record)
    assert all(remedy.id in CATALOGUE for remedy in found.values())
    assert found["recompute layers.*"].saves_bytes == pytest.approx(
        200 * MIB, abs=2 * MIB
    )  # one of three is there at a time
    assert found["activations of layers.* on the host"].saves_bytes == found["recompute layers.*"].saves_bytes
    # The state goes to the host. The peak moves nowhere else: gradients are less than what passes through.
    assert found["state of the optimizer on the host"].saves_bytes == 180 * MIB
    assert found["state of the optimizer sharded over 2 ranks"].saves_bytes == 90 * MIB
    # Half of parameters, gradient and state; two layers of 30 MiB are gathered.
    sharded = found["parameters, gradients and state sharded over 2 ranks"]
    assert sharded.saves_bytes == pytest.approx((45 + 15 + 90 - 60) * MIB, abs=6 * MIB)
    # Half of what follows the batch, less the gradients of the first half, of which one was there before.
    assert found["half the microbatch"].saves_bytes == pytest.approx(((420 + 100) / 2 - 60) * MIB, abs=12 * MIB)
    for remedy in found.values():
        assert remedy.reserved_bytes == before - remedy.saves_bytes
        assert remedy.fits
    # Without a step to take the time of, by what they save.
    assert [one.saves_bytes for one in memory_remedies(tale.record)] == sorted(
        (one.saves_bytes for one in found.values()), reverse=True
    )


def test_a_remedy_says_whether_it_is_enough() -> None:
    tale = _training(Tale(memory_bytes=CONTEXT + 640 * MIB))
    assert read_memory(tale.record).fit.verdict == "does not fit"
    found = _by_name(tale.record)
    assert found["recompute layers.*"].fits
    assert found["state of the optimizer on the host"].fits
    tale.record.memory_bytes = CONTEXT + 610 * MIB
    assert not _by_name(tale.record)["recompute layers.*"].fits


def test_segments_that_grow_are_played() -> None:
    tale = Tale()
    tale.enter("forward")
    for number in range(20):
        tale.give(tale.take(100 + 2 * number))
    tale.step()
    found = _by_name(tale.record)
    before = read_memory(tale.record).reserved
    growing = read_memory(tale.record, settings=Settings(expandable=True)).reserved
    assert found["segments that grow"].saves_bytes == before - growing > 1000 * MIB
    assert "segments that grow" not in {
        one.name for one in memory_remedies(tale.record, settings=Settings(expandable=True))
    }


def _step_then() -> StepThen:
    """A second for each kernel and each MiB of a collective in a step with a change, 9 for what the host updates."""

    def seconds(change: Change, then: Record, on_host: bool) -> float:
        runs = sum(type(event) is Run for event in then.events)
        sent = sum(then.collectives[event.collective].nbytes for event in then.events if type(event) is Issue)
        return runs + sent / MIB + 9.0 * on_host

    return seconds


def test_remedies_that_are_enough_come_first_and_of_these_the_quickest() -> None:
    """Each of three forwards and backwards is a kernel; each layer that is copied has one block, out and back."""
    tale = Tale(memory_bytes=CONTEXT + 680 * MIB)
    _training(tale, steps=2, launches=True)
    found = memory_remedies(tale.record, step_then=_step_then())
    assert {one.name: one.step_time_s for one in found if one.fits} == {
        "half the microbatch": 24.0,  # each of 12 twice
        "recompute layers.*": 18.0,
        "activations of layers.* on the host": 24.0,
        "state of the optimizer on the host": 21.0,
    }
    keys = [(not one.fits, one.step_time_s) for one in found]
    assert keys == sorted(keys)
    assert found[0].name == "recompute layers.*"


@pytest.mark.parametrize(("room", "fits"), [(None, True), (300 * MIB, True), (199 * MIB, False), (0, False)])
def test_what_the_hosts_memory_does_not_hold_is_refused_with_both_figures(room: int | None, fits: bool) -> None:
    """Activations of three layers, 100 MiB each, are away at once; the state of the optimizer is 180 MiB."""
    tale = _training(Tale(), steps=1)
    for one in memory_remedies(tale.record, host_room=room):
        needed = {"offload": 300 * MIB, "offload-state": 180 * MIB}.get(one.id, 0)
        assert one.host_bytes == 2 * needed  # of the two ranks of a node
        assert one.fits == (room is None or needed <= room)
        assert bool(one.refused) is not one.fits
        if one.refused:
            assert format_bytes(2 * needed) in one.refused
            assert format_bytes(2 * (room or 0)) in one.refused


def test_a_forward_that_runs_again_repeats_its_own_collectives_and_gathers_no_parameters_again() -> None:
    tale = Tale()
    tale.take(30, "parameter", module="layers.0")
    tale.enter("forward")
    for stream in (0, 7):
        inner = tale.take(100, module="layers.0.up")
        tale.exchange("all_gather", mib=10, stream=stream, issued=True)
        out = tale.take(40, module="layers.0")
        tale.run("layers.0")
    tale.give(tale.take(300))  # after the layer, where most is there
    tale.enter("backward")
    tale.run("layers.0")
    tale.give(inner, out)
    tale.step()
    seconds = _step_then()
    found = {one.id: one for one in memory_remedies(tale.record, step_then=seconds)}
    assert seconds(lambda story: story.record, tale.record, False) == 3 + 2 * 10
    assert found["recompute"].step_time_s == 3 + 2 * 10 + 2 + 10


def test_a_smaller_microbatch_gathers_twice_and_sums_gradients_once() -> None:
    tale = _training(Tale(), steps=1)
    tale.part = "forward"
    tale.exchange("all_gather", mib=10, issued=True)
    tale.part = "backward"
    tale.exchange("all_reduce", mib=1000, issued=True)
    tale.step()
    found = {one.id: one for one in memory_remedies(tale.record, step_then=_step_then())}
    assert found["smaller-microbatch"].step_time_s == 2 * 3 + 2 * 10 + 1000  # three backwards are kernels


@pytest.mark.parametrize(("shape", "offered"), [((1, 8), False), ((2, 8), True), ((16,), True)])
def test_a_microbatch_of_one_sample_is_not_halved(shape: tuple[int, ...], offered: bool) -> None:
    tale = _training(Tale(), steps=1)
    forms = TensorForm((100, 8), "float32"), TensorForm(shape, "int64")
    tale.record.kernels.append(Kernel("aten.embedding.default", forms, (), {}, 0))
    assert ("half the microbatch" in _by_name(tale.record)) is offered


@pytest.mark.parametrize("wide", ["float32", "bfloat16"])
def test_scores_of_classes_are_what_a_loss_in_chunks_saves(wide: str) -> None:
    """Scores of 1,024 tokens in 16 bits, converted, their logarithms and two gradients: each an eighth."""
    rows, classes, item = 1024, 32768, 4 if wide == "float32" else 2
    scores = TensorForm((rows, classes), "bfloat16"), TensorForm((rows, classes), wide)
    hidden, weight = TensorForm((rows, 8), "bfloat16"), TensorForm((classes, 8), "bfloat16")
    tale = Tale()
    for name, inputs, output, part in (
        ("aten.mm.default", (hidden, weight), scores[0], "forward"),
        ("aten._to_copy.default", scores[:1], scores[1], "forward"),
        ("aten.nll_loss_forward.default", (scores[1], TensorForm((rows,), "int64")), TensorForm((), wide), "forward"),
        ("aten._log_softmax_backward_data.default", scores[1:], scores[1], "backward"),
        ("aten.mm.default", (scores[1], hidden), weight, "backward"),
    ):
        tale.part = part  # type: ignore[assignment]
        tale.record.kernels.append(Kernel(name, inputs, (output,), {}, 0))
        tale.record.events.append(Run(len(tale.record.kernels) - 1, 0, 0, 0, tale.part))
        tale.take(rows * classes / MIB * {scores[0]: 2, scores[1]: item}.get(output, 1e-3))
    tale.step()
    found = {one.id: one for one in memory_remedies(tale.record, step_then=_step_then())}["chunked-loss"]
    whole = rows * classes * (2 + 2 * item)
    assert found.saves_bytes == pytest.approx(whole * 7 / 8, rel=0.1)  # segments are at least 20 MiB
    # Each of five in eight parts, the three of the forward again, and seven sums of the weight's gradient.
    assert found.step_time_s == 5 * 8 + 3 * 8 + 7
    assert "32,768 classes" in found.basis


def test_nothing_is_sharded_where_nothing_is_replicated() -> None:
    assert not [name for name in _by_name(_training(Tale()).record) if "sharded" in name]


# ---------------------------------------------------------------------------------------------------------------------
# Laws


@pytest.mark.parametrize("seed", range(6))
def test_parts_add_up_to_the_whole(seed: int) -> None:
    draw = random.Random(seed)
    tale, live = Tale(memory_bytes=CONTEXT + draw.choice([200, 2000]) * MIB), []
    purposes: tuple[Purpose, ...] = ("parameter", "gradient", "activation", "temporary", "other")
    for number in range(300):
        if number % 100 == 0:
            tale.enter("forward")
        if live and draw.random() < 0.4:
            tale.give(live.pop(draw.randrange(len(live))))
        else:
            live.append(tale.take(draw.random() * 20, draw.choice(purposes), module=f"a.{draw.randrange(3)}.b"))
            if draw.random() < 0.3:
                tale.name(live[-1], draw.choice(purposes))
        if number % 100 == 99:
            tale.step()
    found = read_memory(tale.record)
    for moment in [found.peak, *([found.short.at] if found.short else [])]:
        assert sum(moment.purposes.values()) == moment.allocated
    assert found.peak.allocated == max(found.steps) <= found.reserved
    assert (found.short is None) == (found.fit.verdict != "does not fit")
    if found.short is not None:
        assert found.short.at.allocated <= found.short.room


def test_numbers_of_layers_are_put_together() -> None:
    assert starred("model.layers.17.mlp") == "model.layers.*.mlp"
    assert starred("") == ""
