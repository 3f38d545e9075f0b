"""Ranks agree, or it is said who does not, in what, and at which line."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rehearsal.made_records import Maker

from trimaran.base.errors import InputError
from trimaran.rehearsal.agreement import AgreementReport, Finding, agree
from trimaran.rehearsal.calls import ASIDE
from trimaran.rehearsal.kinds import affordable, choose_ranks, find_axes, represent
from trimaran.rehearsal.record import Ending, Invented, Record, TensorForm

Write = Callable[[Maker], None]


def ranks_of(world: int, write: Write) -> list[Record]:
    """Every rank writes its record."""
    records = []
    for rank in range(world):
        maker = Maker(rank, world)
        write(maker)
        records.append(maker.record)
    return records


def agreement_of(world: int, write: Write, **more) -> AgreementReport:
    return agree(ranks_of(world, write), **more)


def lines_of(finding: Finding) -> set[int]:
    return {frame.line for side in finding.sides for frame in side.lines}


def only(answer: AgreementReport) -> Finding:
    """The one finding."""
    assert len(answer.findings) == 1, [finding.text for finding in answer.findings]
    assert not answer.ok
    return answer.findings[0]


# ---------------------------------------------------------------------------------------------------------------------
# Single faults


def test_equal_calls_agree() -> None:
    def write(maker: Maker) -> None:
        for _ in range(3):
            maker.all_reduce(line=10)
            maker.call("all_gather", "0", (4,), (16,), line=11)
            maker.call("barrier", "0", (), line=12)
            maker.step()

    answer = agreement_of(4, write)
    assert answer.ok
    assert not answer.findings
    assert not answer.waits
    assert not answer.unsure
    assert (answer.groups, answer.calls) == (1, 4 * 9)


def test_a_call_of_one_rank_alone_is_named_even_where_an_equal_one_follows() -> None:
    def write(maker: Maker) -> None:
        for _ in range(4):
            maker.all_reduce(elements=1000, line=10)
            if maker.record.rank == 0:
                maker.all_reduce(elements=1, line=30)
            maker.all_reduce(elements=1, line=35)
            maker.step()

    finding = only(agreement_of(4, write))
    assert finding.kind == "alone"
    assert finding.position == 1
    assert [side.ranks for side in finding.sides] == [(0,), (1, 2, 3)]
    assert finding.sides[0].lines[0].line == 30
    assert "train.py:30" in finding.text


SCATTER = {"operation": "reduce_scatter", "reduction": "sum"}
EXCHANGE = {"operation": "all_to_all", "given": (8,), "got": (8,)}


@pytest.mark.parametrize(
    ("kind", "ours", "theirs"),
    [
        ("operation", {"operation": "all_reduce", "reduction": "sum"}, {"operation": "broadcast", "peer": 0}),
        ("reduction", {"reduction": "sum"}, {"reduction": "max"}),
        ("root", {"operation": "broadcast", "peer": 0}, {"operation": "broadcast", "peer": 1}),
        ("type", {}, {"dtype": "bfloat16"}),
        ("shape", {"given": (4,)}, {"given": (5,)}),
        ("shape", {"operation": "all_gather", "got": (16,)}, {"operation": "all_gather", "given": (5,), "got": (20,)}),
        ("shape", {"operation": "all_gather", "got": (16,)}, {"operation": "all_gather", "got": (12,)}),
        ("shape", SCATTER | {"given": (16,), "got": (4,)}, SCATTER | {"given": (8,), "got": (2,)}),
        ("shape", EXCHANGE, EXCHANGE | {"sizes": ((5, 1, 1, 1), ())}),
    ],
)  # fmt: skip
def test_what_differs_is_named(kind: str, ours: dict[str, object], theirs: dict[str, object]) -> None:
    def write(maker: Maker) -> None:
        maker.all_reduce(line=5)
        is_other = maker.record.rank == 2
        maker.call(**({"operation": "all_reduce", "line": 20} | (theirs if is_other else ours)))  # type: ignore[arg-type]
        maker.all_reduce(line=40)

    finding = only(agreement_of(4, write))
    assert finding.kind == kind
    assert finding.position == 1
    assert lines_of(finding) == {20}
    assert {2} in [set(side.ranks) for side in finding.sides]
    assert finding.remedy


def test_elements_matter_and_not_their_shape() -> None:
    records = ranks_of(2, lambda maker: maker.all_reduce(elements=6) and None)
    changed = (TensorForm((2, 3), "float32"),)
    records[1].collectives[0] = msgspec.structs.replace(records[1].collectives[0], inputs=changed, outputs=changed)
    assert agree(records).ok


def test_uneven_parts_that_fit_each_other_agree() -> None:
    sends = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]

    def write(maker: Maker) -> None:
        rank = maker.record.rank
        gives, gets = tuple(sends[rank]), tuple(row[rank] for row in sends)
        maker.call("all_to_all", "0", (sum(gives) * 2,), (sum(gets) * 2,), sizes=(gives, gets))
        maker.call("all_gather", "0", (rank + 1,), (1, 2, 3))
        maker.call("reduce_scatter", "0", (1, 2, 3), (rank + 1,), reduction="sum")
        maker.call("gather", "0", (4,), (4, 4, 4) if rank == 1 else (), peer=1)
        maker.call("scatter", "0", (4, 4, 4) if rank == 1 else (), (4,), peer=1)

    assert agreement_of(3, write).ok


def test_one_uneven_part_that_does_not_fit_is_found() -> None:
    def write(maker: Maker) -> None:
        rank = maker.record.rank
        maker.call("all_gather", "0", (rank + 1,), (1, 2, 3) if rank != 2 else (1, 3, 3), line=8)

    finding = only(agreement_of(3, write))
    assert finding.kind == "shape"
    assert lines_of(finding) == {8}


def test_gradients_in_another_order_are_an_order() -> None:
    def write(maker: Maker) -> None:
        sizes = [100, 200, 300] if maker.record.rank else [200, 100, 300]
        for _ in range(2):
            for elements in sizes:
                number = maker.all_reduce(elements=elements, line=9, asynchronous=True)
                maker.wait(number)
            maker.step()

    finding = only(agreement_of(2, write))
    assert finding.kind == "order"
    assert finding.position == 0


def test_equal_sizes_from_other_modules_are_an_order_that_does_not_stop() -> None:
    def write(maker: Maker) -> None:
        names = ["a", "b"] if maker.record.rank != 1 else ["b", "a"]
        for name in names:
            maker.call("all_gather", "0", (4,), (12,), module=name, line=12)
        maker.step()

    answer = agreement_of(3, write)
    finding = only(answer)
    assert finding.kind == "order"
    assert not answer.waits
    assert {side.module for side in finding.sides} == {"a", "b"}
    assert "mixed" in finding.text


def test_where_the_main_thread_is_while_another_asks_is_no_order() -> None:
    def write(maker: Maker) -> None:
        aside = f"0{ASIDE}"
        maker.record.groups[aside] = msgspec.structs.replace(maker.record.groups["0"], name=aside, order=1_000_000)
        for name in ["a", ""] if maker.record.rank != 1 else ["", "a"]:
            maker.call("gather_object", aside, (), peer=0, module=name, line=12)
        maker.step()

    assert agreement_of(2, write).ok


def test_branches_of_their_own_lines_are_no_fault() -> None:
    def write(maker: Maker) -> None:
        for _ in range(3):
            maker.call("broadcast", "0", (4,), peer=0, line=10 if maker.record.rank == 0 else 12)
            maker.step()

    assert agreement_of(3, write).ok


def test_fewer_steps_say_how_many() -> None:
    def write(maker: Maker) -> None:
        for _ in range(4 if maker.record.rank == 0 else 3):
            maker.all_reduce(line=10)
            maker.step()

    answer = agreement_of(2, write)
    finding = only(answer)
    assert finding.kind == "steps"
    assert "3 steps" in finding.text
    assert "4 steps" in finding.text
    assert [(wait.call.rank, wait.waits_for) for wait in answer.waits] == [(0, (1,))]


@pytest.mark.parametrize(("how", "word"), [("exit", "status 3"), ("error", "ValueError: no")])
def test_a_rank_that_leaves_says_where(how: str, word: str) -> None:
    def write(maker: Maker) -> None:
        maker.all_reduce(line=10)
        if maker.record.rank == 1:
            maker.end(how, 3, "ValueError: no", line=33)  # type: ignore[arg-type]
        else:
            maker.all_reduce(line=11)

    finding = only(agreement_of(2, write))
    assert finding.kind == "ended"
    assert lines_of(finding) == {11, 33}
    assert word in finding.text


def test_a_failure_that_leaves_no_call_unanswered_is_told() -> None:
    def write(maker: Maker) -> None:
        maker.all_reduce(line=10)
        if maker.record.rank == 1:
            maker.end("error", 1, "ValueError: no", line=33)

    finding = only(agreement_of(2, write))
    assert finding.kind == "ended"
    assert lines_of(finding) == {33}


def test_the_same_failure_of_all_is_no_disagreement() -> None:
    def write(maker: Maker) -> None:
        maker.all_reduce(line=10)
        maker.end("error", 1, "ValueError: no", line=33)

    answer = agreement_of(2, write)
    assert answer.ok
    assert [unsure.kind for unsure in answer.unsure] == ["failed"]


def test_a_stopped_rank_is_compared_as_far_as_it_came() -> None:
    def write(maker: Maker) -> None:
        for _ in range(3 if maker.record.rank else 5):
            maker.all_reduce(line=10)
            maker.step()
        maker.end("seconds" if maker.record.rank else "finished")

    answer = agreement_of(2, write)
    assert answer.ok
    assert not answer.waits
    assert [unsure.kind for unsure in answer.unsure] == ["stopped"]


def test_ranks_that_were_stopped_alike_are_told_at_once() -> None:
    def write(maker: Maker) -> None:
        for _ in range(2 if maker.record.rank else 3):
            maker.all_reduce(line=10)
            maker.step()
        maker.end("seconds" if maker.record.rank else "finished")

    (unsure,) = agreement_of(4, write).unsure
    assert unsure.text.startswith("Ranks 1–3 were stopped (seconds) at ")


def test_ranks_stopped_after_the_same_step_are_compared_to_it() -> None:
    def write(maker: Maker) -> None:
        for step in range(3):
            for _ in range(1 if maker.record.rank and step == 2 else 2):
                maker.all_reduce(line=10)
            maker.step()
        maker.end("steps")

    assert only(agreement_of(2, write)).kind == "alone"


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_rank_that_begins_a_step_that_another_does_not_is_not_sure(stopped: int) -> None:
    def write(maker: Maker) -> None:
        for _ in range(3):
            maker.all_reduce(line=10)
            maker.step()
        if maker.record.rank < stopped:
            maker.end("steps")

    answer = agreement_of(2, write)
    assert answer.ok
    assert [unsure.kind for unsure in answer.unsure] == (["stopped"] if stopped == 1 else [])


# ---------------------------------------------------------------------------------------------------------------------
# Groups


def test_groups_in_another_order_are_named_with_their_lines() -> None:
    def write(maker: Maker) -> None:
        pairs = [(0, 1), (2, 3)]
        for ranks in pairs if maker.record.rank < 2 else pairs[::-1]:
            maker.group(ranks, line=7 if maker.record.rank < 2 else 9)

    finding = only(agreement_of(4, write))
    assert finding.kind == "groups"
    assert finding.group is None
    assert finding.position == 0
    assert lines_of(finding) == {7, 9}


def test_a_group_that_its_members_alone_make_is_found() -> None:
    def write(maker: Maker) -> None:
        maker.group((0, 1, 2, 3), line=5)
        if maker.record.rank < 2:
            maker.group((0, 1), line=7)

    finding = only(agreement_of(4, write))
    assert finding.kind == "groups"
    assert {side.ranks for side in finding.sides} == {(0, 1), (2, 3)}


def test_two_groups_of_the_same_ranks_are_told_apart() -> None:
    def write(maker: Maker) -> None:
        one, other = maker.group((0, 1), "a"), maker.group((0, 1), "b")
        maker.all_reduce(one, 4)
        maker.all_reduce(other, 8)

    assert agreement_of(2, write).ok


def test_a_group_with_one_rehearsed_member_is_not_sure() -> None:
    def write(maker: Maker) -> None:
        group = maker.group((0, 1), "mesh_tp")
        maker.group((2, 3), "mesh_tp")
        if maker.record.rank < 2:
            maker.all_reduce(group)

    answer = agree(ranks_of(4, write)[:1])
    assert answer.ok
    assert [unsure.kind for unsure in answer.unsure] == ["single"]
    assert '"mesh_tp"' in answer.unsure[0].text


def test_a_mesh_dimension_is_named() -> None:
    def write(maker: Maker) -> None:
        group = maker.group((0, 1), "mesh_tp")
        maker.all_reduce(group, 4 + maker.record.rank)

    finding = only(agreement_of(2, write))
    assert finding.group is not None
    assert finding.group.dimension == "tp"
    assert 'group "tp" of ranks 0 and 1' in finding.text


def mesh(maker: Maker) -> tuple[str, str]:
    """Two by two: groups of rows and of columns; those of this rank."""
    rows = [maker.group(ranks, "mesh_dp") for ranks in ((0, 2), (1, 3))]
    columns = [maker.group(ranks, "mesh_tp") for ranks in ((0, 1), (2, 3))]
    return rows[maker.record.rank % 2], columns[maker.record.rank // 2]


def test_a_rank_that_is_not_rehearsed_is_played_by_its_kind() -> None:
    def write(maker: Maker, *, fault: bool) -> None:
        _, tp = mesh(maker)
        maker.all_reduce(tp, 5 if fault and maker.record.rank == 3 else 4, line=20)

    for fault in (False, True):
        records = ranks_of(4, lambda maker, fault=fault: write(maker, fault=fault))
        alone = agree([records[0], records[3]])
        assert {unsure.kind for unsure in alone.unsure} == {"single"}
        answer = agree([records[0], records[3]], kinds={1: 3, 2: 0})
        assert answer.ok is not fault
        if fault:
            assert answer.findings[0].kind == "shape"
            assert "rank 1: taken to do what rank 3 does" in answer.findings[0].text
        else:
            assert not answer.unsure
            assert set(answer.ranks) >= {0, 1, 3}


def test_messages_to_a_rank_that_is_played_are_not_waited_for() -> None:
    """It is played for the collectives of its stage group; to whom it sends is not known."""

    def write(maker: Maker) -> None:
        _, stages = mesh(maker)
        rank = maker.record.rank
        if rank % 2:
            maker.receive(rank - 1, group=stages, line=20)
        else:
            maker.send(rank + 1, group=stages, line=20)
        maker.all_reduce(stages, line=21)

    answer = agree(ranks_of(4, write)[:3], kinds={3: 1})
    assert 3 in answer.ranks
    assert answer.ok


# ---------------------------------------------------------------------------------------------------------------------
# Messages


def test_messages_that_fit_agree() -> None:
    def write(maker: Maker) -> None:
        if maker.record.rank == 0:
            maker.send(1, 4)
            maker.send(1, 8)
            maker.receive(1, 2)
        else:
            maker.receive(0, 4)
            maker.receive(0, 8)
            maker.send(0, 2)

    assert agreement_of(2, write).ok


@pytest.mark.parametrize(
    ("sent", "got", "kind"),
    [([4, 8], [4, 9], "shape"), ([4, 8], [8, 4], "order"), ([4, 8, 8], [4, 8], "alone")],
)
def test_messages_that_do_not_fit(sent: Sequence[int], got: Sequence[int], kind: str) -> None:
    def write(maker: Maker) -> None:
        for elements in sent if maker.record.rank == 0 else got:
            if maker.record.rank == 0:
                maker.send(1, elements, line=10)
            else:
                maker.receive(0, elements, line=20)

    finding = only(agreement_of(2, write))
    assert finding.kind == kind
    assert 10 in lines_of(finding)


def test_messages_of_another_type() -> None:
    def write(maker: Maker) -> None:
        if maker.record.rank == 0:
            maker.send(1, dtype="bfloat16")
        else:
            maker.receive(0, dtype="float32")

    assert only(agreement_of(2, write)).kind == "type"


# ---------------------------------------------------------------------------------------------------------------------
# Deadlocks


@pytest.mark.parametrize("how", ["finished", "steps"])
def test_two_groups_in_another_order_wait_for_each_other(how: Ending) -> None:
    def write(maker: Maker) -> None:
        one, other = maker.group((0, 1), "a"), maker.group((0, 1), "b")
        if maker.record.rank == 0:
            maker.all_reduce(one, line=10)
            maker.all_reduce(other, line=11)
        else:
            maker.all_reduce(other, line=21)
            maker.all_reduce(one, line=20)
        maker.step()
        maker.end(how)

    answer = agreement_of(2, write)
    finding = only(answer)
    assert finding.kind == "deadlock"
    assert lines_of(finding) == {10, 21}
    assert [(wait.call.rank, wait.waits_for, wait.call.lines[0].line) for wait in answer.waits] == [
        (0, (1,), 10),
        (1, (0,), 21),
    ]


def test_a_circle_of_three_is_found() -> None:
    def write(maker: Maker) -> None:
        groups = [maker.group(ranks) for ranks in ((0, 1), (1, 2), (0, 2))]
        rank = maker.record.rank
        first, second = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]
        maker.all_reduce(groups[first], line=10 + rank)
        maker.all_reduce(groups[second], line=20 + rank)

    finding = only(agreement_of(3, write))
    assert finding.kind == "deadlock"
    assert lines_of(finding) == {10, 11, 12}


def test_asynchronous_calls_in_another_order_are_not_sure() -> None:
    def write(maker: Maker) -> None:
        one, other = maker.group((0, 1), "a"), maker.group((0, 1), "b")
        order = [one, other] if maker.record.rank == 0 else [other, one]
        numbers = [maker.all_reduce(group, asynchronous=True) for group in order]
        for number in numbers:
            maker.wait(number)

    answer = agreement_of(2, write)
    assert answer.ok
    assert [unsure.kind for unsure in answer.unsure] == ["launch_order"]


@pytest.mark.parametrize("batched", [False, True])
def test_both_send_first(batched: bool) -> None:
    def write(maker: Maker) -> None:
        other = 1 - maker.record.rank
        if batched:
            maker.begin_batch()
        maker.send(other, line=10, asynchronous=batched)
        number = maker.receive(other, line=11, asynchronous=batched)
        maker.end_batch()
        if batched:
            maker.wait(number)

    answer = agreement_of(2, write)
    assert answer.ok is batched
    if not batched:
        assert only(answer).kind == "deadlock"
        assert lines_of(answer.findings[0]) == {10}
        assert "batch_isend_irecv" in answer.findings[0].remedy


def test_a_ring_of_sends_blocks_and_one_with_a_first_receiver_does_not() -> None:
    def write(maker: Maker, *, alternate: bool) -> None:
        rank, world = maker.record.rank, maker.record.world
        after, before = (rank + 1) % world, (rank - 1) % world
        if alternate and rank % 2:
            maker.receive(before)
            maker.send(after)
        else:
            maker.send(after)
            maker.receive(before)

    assert agreement_of(4, lambda maker: write(maker, alternate=True)).ok
    assert only(agreement_of(4, lambda maker: write(maker, alternate=False))).kind == "deadlock"


def test_a_host_that_waits_for_its_device_blocks_what_it_would_ask_next() -> None:
    def write(maker: Maker, *, item: bool) -> None:
        one, other = maker.group((0, 1), "a"), maker.group((0, 1), "b")
        order = [one, other] if maker.record.rank == 0 else [other, one]
        for group in order:
            number = maker.all_reduce(group, line=10, asynchronous=True)
            if item:
                maker.wait(number)
                maker.synchronize(0, line=12)
        if not item:
            maker.synchronize(-1)

    assert agreement_of(2, lambda maker: write(maker, item=False)).ok
    answer = agreement_of(2, lambda maker: write(maker, item=True))
    assert only(answer).kind == "deadlock"
    assert answer.waits[0].held_at[0].line == 12


def test_an_event_carries_a_wait_to_another_stream() -> None:
    def write(maker: Maker) -> None:
        one, other = maker.group((0, 1), "a"), maker.group((0, 1), "b")
        if maker.record.rank == 0:
            maker.all_reduce(one, stream=1)
            maker.mark(0, 1)
            maker.await_(0, 0)
            maker.all_reduce(other, stream=0)
        else:
            maker.all_reduce(other, stream=0)
            maker.mark(0, 0)
            maker.await_(0, 1)
            maker.all_reduce(one, stream=1)

    assert only(agreement_of(2, write)).kind == "deadlock"


def test_a_result_that_is_never_waited_for() -> None:
    def write(maker: Maker, *, waits: bool) -> None:
        for _ in range(3):
            number = maker.all_reduce(line=10, asynchronous=True)
            if waits:
                maker.wait(number)
            maker.step()

    assert agreement_of(2, lambda maker: write(maker, waits=True)).ok
    finding = only(agreement_of(2, lambda maker: write(maker, waits=False)))
    assert finding.kind == "wait"
    assert finding.sides[0].ranks == (0, 1)
    assert lines_of(finding) == {10}


def test_a_result_that_waits_when_it_is_used_needs_no_wait() -> None:
    records = ranks_of(2, lambda maker: maker.all_reduce(line=10, asynchronous=True) and None)
    for record in records:
        record.collectives[0] = msgspec.structs.replace(record.collectives[0], waits_when_used=True)
    assert agree(records).ok


def test_a_branch_by_data_is_not_sure() -> None:
    def write(maker: Maker) -> None:
        maker.record.invented = [Invented("loss", "bool", "False", maker.line(44), 3)]

    answer = agreement_of(2, write)
    assert answer.ok
    assert [(unsure.kind, unsure.lines[0].line) for unsure in answer.unsure] == [("branch", 44)]


# ---------------------------------------------------------------------------------------------------------------------
# Input


def test_records_that_cannot_be_compared() -> None:
    one = Maker(0, 2).record
    with pytest.raises(InputError, match="two or more") as told:
        agree([])
    assert told.value.code == "rehearse.no-records"
    with pytest.raises(InputError, match="Rank 0 has 2") as told:
        agree([one, one])
    assert told.value.code == "rehearse.rank-twice"
    with pytest.raises(InputError, match="of 2 and of 4") as told:
        agree([one, Maker(1, 4).record])
    assert told.value.code == "rehearse.worlds-differ"


# ---------------------------------------------------------------------------------------------------------------------
# Laws


@dataclass(frozen=True)
class Exchange:
    """One call of a job that runs one after another: legal whatever ranks do in between."""

    operation: str
    group: int
    elements: int
    line: int
    reduction: str = ""
    dtype: str = "float32"
    peer: int = -1
    source: int = -1
    waits_later: bool = False


@dataclass(frozen=True)
class Job:
    world: int
    groups: tuple[tuple[int, ...], ...]
    exchanges: tuple[Exchange, ...]
    steps: int


def drawn_job(draw: random.Random) -> Job:
    """Random groups, and a random order of calls in them that is repeated each step."""
    world = draw.randint(2, 6)
    groups = [tuple(range(world))]
    sizes = [draw.randint(2, world) for _ in range(draw.randint(0, 3))]
    groups += [tuple(sorted(draw.sample(range(world), size))) for size in sizes]
    exchanges = []
    for number in range(draw.randint(2, 8)):
        group = draw.randrange(len(groups))
        operation = draw.choice(["all_reduce", "all_gather", "broadcast", "barrier", "message", "batch"])
        source, peer = draw.sample(groups[group], 2)
        exchanges.append(
            Exchange(
                operation=operation,
                group=group,
                elements=draw.randint(1, 3),
                line=10 + number,
                reduction=draw.choice(["sum", "max"]) if operation == "all_reduce" else "",
                peer=peer,
                source=source,
                waits_later=operation in ("all_reduce", "all_gather") and draw.random() < 0.3,
            )
        )
    return Job(world, tuple(groups), tuple(exchanges), draw.randint(1, 3))


def orders_of(job: Job, rank: int) -> list[Exchange | None]:
    """What a rank asks for; None: a step is over."""
    orders: list[Exchange | None] = []
    for _ in range(job.steps):
        for exchange in job.exchanges:
            takes_part = rank in job.groups[exchange.group]
            if exchange.operation in ("message", "batch"):
                takes_part = rank in (exchange.source, exchange.peer)
            if takes_part:
                orders.append(exchange)
        orders.append(None)
    return orders


def written(job: Job, rank: int, orders: Sequence[Exchange | None]) -> Record:
    maker = Maker(rank, job.world)
    names = ["0"] + [maker.group(ranks) for ranks in job.groups[1:]]
    late: list[int] = []
    for order in orders:
        if order is None:
            for number in late:
                maker.wait(number)
            late.clear()
            maker.step()
            continue
        group, size = names[order.group], len(job.groups[order.group])
        same = {"line": order.line, "dtype": order.dtype, "asynchronous": order.waits_later}
        number = -1
        if order.operation == "all_reduce":
            number = maker.all_reduce(group, order.elements, reduction=order.reduction, **same)
        elif order.operation == "all_gather":
            number = maker.call("all_gather", group, (order.elements,), (order.elements * size,), **same)
        elif order.operation == "broadcast":
            maker.call("broadcast", group, (order.elements,), peer=order.peer, **same)
        elif order.operation == "barrier":
            maker.call("barrier", group, (), line=order.line)
        elif order.operation == "message":
            write = maker.send if rank == order.source else maker.receive
            write(order.peer if rank == order.source else order.source, order.elements, group=group, **same)
        else:  # both send and receive at once, each in its own order
            other = order.peer if rank == order.source else order.source
            maker.begin_batch()
            for write in (maker.send, maker.receive) if rank == order.source else (maker.receive, maker.send):
                number = write(other, order.elements, group=group, **(same | {"asynchronous": True}))
            maker.end_batch()
            maker.wait(number)
        if order.waits_later:
            late.append(number)
    return maker.record


@settings(max_examples=120, deadline=None)
@given(st.randoms(use_true_random=False))
def test_legal_jobs_agree(draw: random.Random) -> None:
    job = drawn_job(draw)
    answer = agree([written(job, rank, orders_of(job, rank)) for rank in range(job.world)])
    assert answer.ok, [finding.text for finding in answer.findings]
    assert not answer.waits


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_legal_jobs_agree_by_some_of_their_ranks(draw: random.Random) -> None:
    job = drawn_job(draw)
    ranks = draw.sample(range(job.world), draw.randint(1, job.world))
    answer = agree([written(job, rank, orders_of(job, rank)) for rank in ranks])
    assert answer.ok, [finding.text for finding in answer.findings]
    assert not answer.waits


def mutated(
    job: Job, orders: list[Exchange | None], draw: random.Random
) -> tuple[list[Exchange | None], str, set[int]]:
    """One fault of one rank: its orders, what it is, the lines that may be named."""
    calls = [place for place, order in enumerate(orders) if order is not None]
    place = draw.choice(calls)
    order = orders[place]
    assert order is not None
    ways = ["left out", "twice", "early"]
    if order.operation != "barrier":
        ways += ["elements", "type"]
    if order.operation == "all_reduce":
        ways += ["reduction", "operation"]
    if order.operation == "broadcast":
        ways.append("root")
    way = draw.choice(ways)
    made = list(orders)
    if way == "left out":
        del made[place]
    elif way == "twice":
        made.insert(place, replace(order, line=99))
    elif way == "early":
        made = made[:place]
    elif way == "elements":
        made[place] = replace(order, elements=order.elements + 7)
    elif way == "type":
        made[place] = replace(order, dtype="int64")
    elif way == "reduction":
        made[place] = replace(order, reduction="min")
    elif way == "operation":
        made[place] = replace(order, operation="broadcast", reduction="")
    else:
        others = [rank for rank in job.groups[order.group] if rank != order.peer]
        made[place] = replace(order, peer=others[0])
    return made, way, {order.line, 99}


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_one_fault_of_one_rank_is_found(draw: random.Random) -> None:
    job = drawn_job(draw)
    rank = draw.randrange(job.world)
    if not any(orders_of(job, rank)):
        return
    orders, way, lines = mutated(job, orders_of(job, rank), draw)
    records = [written(job, other, orders if other == rank else orders_of(job, other)) for other in range(job.world)]
    answer = agree(records)
    assert not answer.ok, way
    named = set().union(*(lines_of(finding) for finding in answer.findings))
    if way in ("elements", "type", "reduction", "root", "operation"):
        assert named & lines, (way, [finding.text for finding in answer.findings])
    assert any(rank in side.ranks for finding in answer.findings for side in finding.sides)


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_two_neighbouring_calls_of_one_rank_that_are_exchanged_are_found(draw: random.Random) -> None:
    job = drawn_job(draw)
    rank = draw.randrange(job.world)
    orders = orders_of(job, rank)

    def members(order: Exchange) -> set[int]:
        both = (order.source, order.peer)
        return set(both if order.operation in ("message", "batch") else job.groups[order.group])

    def parted(one: Exchange | None, other: Exchange | None) -> bool:
        """Whether another rank takes part in both, and neither can wait."""
        if one is None or other is None or one.waits_later or other.waits_later:
            return False
        if len(members(one) & members(other)) < 2:
            return False
        same = replace(one, line=0) == replace(other, line=0)
        return not same and {one.operation, other.operation}.isdisjoint({"message", "batch"})

    places = [place for place in range(len(orders) - 1) if parted(orders[place], orders[place + 1])]
    if not places:
        return
    place = draw.choice(places)
    orders[place], orders[place + 1] = orders[place + 1], orders[place]
    records = [written(job, other, orders if other == rank else orders_of(job, other)) for other in range(job.world)]
    answer = agree(records)
    one, other = orders[place], orders[place + 1]
    assert one is not None
    assert other is not None
    assert not answer.ok
    assert answer.findings[0].kind in ("order", "deadlock", "operation", "root", "type", "shape", "reduction", "alone")
    assert lines_of(answer.findings[0]) & {one.line, other.line}


# ---------------------------------------------------------------------------------------------------------------------
# With the ranks that are rehearsed by default


@pytest.mark.parametrize("stage", [0, 6, 11])
def test_a_fault_of_one_of_two_members_of_a_stage_is_found_by_the_ranks_that_are_rehearsed(stage: int) -> None:
    """Twelve stages of four ranks: more than the number up to which every stage is whole whatever it costs."""
    stages, size = 12, 4
    faulty = stage * size + size - 1

    def write(maker: Maker) -> None:
        columns = [tuple(range(first, stages * size, size)) for first in range(size)]
        rows = [tuple(range(first, first + size)) for first in range(0, stages * size, size)]
        for ranks in columns:
            maker.group(ranks, "mesh_pp")
        names = {ranks: maker.group(ranks, "mesh_dp") for ranks in rows}
        (row,) = (ranks for ranks in rows if maker.record.rank in ranks)
        maker.all_reduce(names[row], 8 if maker.record.rank == faulty else 4, line=20)

    records = ranks_of(stages * size, write)
    axes = find_axes(records[:1])
    chosen = choose_ranks(stages * size, axes, affordable(records[:1]))
    assert len(chosen) == 2 * stages
    answer = agree([records[rank] for rank in chosen], represent(stages * size, axes, chosen))
    found = only(answer)
    assert found.kind == "shape"
    assert lines_of(found) == {20}
