"""Checkpoints: the same plan goes on bit for bit, any other one from the same state, and no sample is left out.

Trainings have dropout, batch norm, schedules, momentum; they are cut in the middle of an epoch.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.distributed.resuming import (
    Change,
    Changed,
    Cut,
    Halves,
    change_all,
    cut_all,
    open_session,
    refuse_all,
    save_all,
    train_on,
)
from tests.distributed.test_zero import UNITS
from tests.distributed.training import Run
from tests.forks.client import launch
from tests.representative import some_and_rest

from trimaran.launch.world import World
from trimaran.program.gradients import Compression
from trimaran.program.strategy import Feeding, Strategy
from trimaran.runtime.whole_state import WholeState

strategy = builders.strategy
SMALL = 512
WORKERS = Feeding(workers=1, copies_ahead=1)


INTERLEAVED = strategy(pp=2, schedule="interleaved", chunks=2, microbatches=4)
MIB = 2**20


def cut(
    job: str,
    plan: Strategy,
    *,
    steps: int = 9,
    at: int = 6,
    waits: bool = True,
    draw: int | None = None,
    shared: bool = False,
) -> Cut:
    return Cut(run=Run(job=job, strategy=plan, steps=steps, draw=draw, shared=shared), at=at, waits=waits)


CUTS = {
    1: [
        cut("normed", strategy(), waits=False),
        cut(
            "normed_plateau", strategy(microbatches=2), steps=14, at=10
        ),  # between the last step of an epoch and its end
        cut("gpt_fp16", strategy(), steps=6, at=3),
        cut("streamed_counting", strategy(), steps=10, at=6),
        cut("sampled", strategy(), steps=10, at=5),
        cut("rows_drawn_twice", strategy(feeding=WORKERS), at=7, waits=False),
        # Storages on the host, and the optimizer's state; saved while steps are observed, and when they are planned.
        cut("large", strategy(memory_bytes=9 * MIB), at=1),
        cut("large", strategy(memory_bytes=9 * MIB, microbatches=2)),
        cut("large_state", strategy(memory_bytes=13 * MIB), waits=False),
    ],
    2: [
        cut("normed", strategy(dp=2), waits=False),
        cut("normed", strategy(dp=2, sync="p2p", bucket_bytes=SMALL)),
        cut("normed_plateau", strategy(dp=2, zero=1, bucket_bytes=SMALL), at=5),
        cut("dropped_twice", strategy(dp=2, zero=2), waits=False),
        cut("dropped_twice", strategy(dp=2, zero=3, microbatches=2)),
        cut("dropped_twice", strategy(pp=2, microbatches=2, schedule="1f1b"), waits=False),
        cut("dropped_twice", strategy(tp=2)),
        cut("gpt_named", strategy(pp=2, microbatches=2, schedule="zero-bubble"), steps=6, at=3),
        cut("dropped_twice", strategy(dp=2, compression=Compression(method="fp16"))),
        cut("dropped_twice", strategy(dp=2, compression=Compression(method="powersgd", rank=1))),
        cut("streamed_counting", strategy(dp=2), steps=10, at=6),
        cut("rows_drawn_twice", strategy(dp=2, feeding=WORKERS), at=7),
        cut("normed_wide", INTERLEAVED, waits=False),
        cut("normed_wide", strategy(pp=2, microbatches=2), draw=1, waits=False),
        cut("unet", strategy(pp=2, microbatches=4), steps=6, at=3, draw=2),
        cut("normed_wide", strategy(dp=2, microbatches=2), shared=True, waits=False),
        cut("large", strategy(dp=2, memory_bytes=6 * MIB)),
        cut("large_state", strategy(dp=2, memory_bytes=13 * MIB)),
        cut("large", strategy(dp=2, zero=1, memory_bytes=6 * MIB)),
        cut("large", strategy(pp=2, microbatches=4, schedule="1f1b", memory_bytes=7 * MIB)),
    ],
    3: [
        cut("dropped_twice", strategy(dp=3), waits=False),
        cut("dropped_twice", strategy(dp=3, compression=Compression(method="bf16"))),
        cut("unet", strategy(pp=3, microbatches=2), steps=6, at=3, draw=3),
        cut("gpt_named", strategy(pp=3, microbatches=3, schedule="zero-bubble"), steps=6, at=3),
    ],
    4: [
        cut("dropped_twice", strategy(dp=4, sync="hierarchical", nodes=2)),
        cut("normed", strategy(dp=2, pp=2, microbatches=2, schedule="1f1b")),
        cut("normed_wide", replace(INTERLEAVED, dp=2, microbatches=2), waits=False),
        cut("normed_wide", strategy(dp=2, pp=2, microbatches=2), draw=4),
        cut("normed_wide", strategy(dp=2, tp=2, zero=1, bucket_bytes=SMALL), waits=False),
        cut("normed_wide", strategy(dp=2, pp=2, microbatches=2, compression=Compression(method="powersgd", rank=1))),
        cut("normed_wide", strategy(pp=2, tp=2, microbatches=2)),
        cut("dropped_twice", strategy(dp=4), shared=True),
    ],
}


# Each stage compresses the gradient of its own uses of a weight that both hold.
TIED = cut("gpt_named", strategy(dp=2, pp=2, microbatches=2, compression=Compression(method="bf16")), steps=4, at=2)

# Each kind of state of a checkpoint, and each kind of plan that has its own.
SOME = [CUTS[2][number] for number in (0, 1, 2, 4, 6, 7, 9, 10, 11, 12, 14, 15, 17)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "cuts",
    [
        *some_and_rest("2", SOME, CUTS[2]),
        pytest.param([TIED], id="tied"),
        *(pytest.param(CUTS[ranks], id=str(ranks), marks=pytest.mark.sweep) for ranks in CUTS if ranks != 2),
    ],
)
def test_the_same_plan_goes_on_bit_for_bit(cuts: Sequence[Cut], tmp_path: Path) -> None:
    ranks = cuts[0].run.strategy.devices
    jobs = [one.run.job for one in cuts]
    by_rank: list[list[Halves]] = launch(
        cut_all, (list(cuts), str(tmp_path)), ranks=ranks, captured=jobs, log_dir=tmp_path / "logs", device="cpu"
    )
    for number, one in enumerate(cuts):
        for rank, halves in enumerate(found[number] for found in by_rank):
            where = f"{one.run.name}, rank {rank}"
            assert len(halves.losses) == one.run.steps, where
            assert halves.resumed == halves.losses[one.at :], where
            assert halves.weights.keys() == halves.resumed_weights.keys()
            for name, weight in halves.weights.items():
                assert torch.equal(weight, halves.resumed_weights[name]), f"{where}, {name}"
            assert str(halves.history) == str(halves.resumed_history), where
            assert halves.moved is None if one.run.strategy.memory_bytes is None else halves.moved, where


# ---------------------------------------------------------------------------------------------------------------------
# Any plan to any plan


def plans(job: str, ranks: int) -> list[Run]:
    """Those that a job can take on so many ranks."""
    found = _large_plans(ranks) if job.startswith("large") else _plans(job, ranks)
    return [replace(run, job=job) for run in found]


def planned(plan: Strategy, **options: Any) -> Run:
    return Run(job="", strategy=plan, steps=3, **options)


def _plans(job: str, ranks: int) -> list[Run]:
    units = UNITS.get(job.split("_")[0], ())
    low_rank, halved = Compression(method="powersgd", rank=1), Compression(method="bf16")
    found = {
        1: [planned(strategy()), planned(strategy(microbatches=2))],
        2: [
            planned(strategy(dp=2)),
            planned(strategy(dp=2, sync="p2p", bucket_bytes=SMALL)),
            planned(strategy(dp=2, zero=1, bucket_bytes=SMALL)),
            planned(strategy(dp=2, zero=2, units=units)),
            planned(strategy(dp=2, zero=3, units=units)),
            planned(strategy(dp=2, compression=low_rank)),
            planned(strategy(dp=2, compression=halved)),
            planned(strategy(pp=2, microbatches=2, schedule="1f1b")),
            planned(strategy(pp=2, microbatches=2, schedule="zero-bubble")),
            planned(INTERLEAVED),
            planned(strategy(pp=2, microbatches=2), draw=1),
        ],
        3: [
            planned(strategy(dp=3)),
            planned(strategy(dp=3, zero=1, bucket_bytes=SMALL)),
            planned(strategy(dp=3, zero=3, units=units)),
            planned(strategy(dp=3, compression=halved)),
            planned(strategy(pp=3, microbatches=2)),
            planned(strategy(pp=3, microbatches=2), draw=2),
        ],
        4: [
            planned(strategy(dp=4, zero=2, units=units)),
            planned(strategy(dp=4, sync="hierarchical", nodes=2)),
            planned(strategy(dp=4, compression=low_rank)),
            planned(strategy(dp=2, pp=2, microbatches=2, schedule="1f1b")),
            planned(strategy(dp=2, pp=2, zero=1, microbatches=2, schedule="1f1b")),
            planned(strategy(dp=2, pp=2, microbatches=2, compression=low_rank)),
            planned(replace(INTERLEAVED, dp=2, microbatches=2)),
            planned(strategy(dp=2, pp=2, microbatches=2), draw=3),
        ],
    }[ranks]
    if not job.startswith("cnn"):
        shared = {
            2: [planned(strategy(tp=2)), *([planned(strategy(dp=2), shared=True)] if job == "normed_wide" else [])],
            4: [
                planned(strategy(dp=2, tp=2)),
                planned(strategy(dp=2, tp=2, zero=1, bucket_bytes=SMALL)),
                planned(strategy(pp=2, tp=2, microbatches=2)),
            ],
        }
        found += shared.get(ranks, [])
    return found


def _large_plans(ranks: int) -> list[Run]:
    """With memory plans, which move activations and the optimizer's state to the host, and without."""
    return {
        1: [planned(strategy()), planned(strategy(memory_bytes=13 * MIB))],
        2: [
            planned(strategy(dp=2, memory_bytes=13 * MIB)),
            planned(strategy(dp=2, zero=1, memory_bytes=13 * MIB)),
            planned(strategy(tp=2)),
        ],
        3: [planned(strategy(dp=3, zero=3)), planned(strategy(pp=3, microbatches=2), draw=4)],
        4: [planned(strategy(dp=2, pp=2, microbatches=2))],
    }[ranks]


def whole(state: WholeState) -> dict[str, Any]:
    """What is compared: tensors by name, and for each parameter its options."""
    options = {
        f"options of {name}": sorted((key, repr(value)) for key, value in group.options.items())
        for group in state.groups
        for name in group.names
    }
    kept = {f"{name} {key}": value for name, of in state.optimizer.items() for key, value in of.items()}
    return {**state.parameters, **state.buffers, **kept, **options}


def assert_same(one: WholeState, other: WholeState, where: str) -> None:
    found, expected = whole(one), whole(other)
    assert found.keys() == expected.keys(), where
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, f"{where}, {name}"
            assert torch.equal(found[name], value), f"{where}, {name}"
        else:
            assert found[name] == value, f"{where}, {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A run that was saved.

    Attributes:
        folder: of its checkpoint
        run: that was saved
        state: of the moment
        in_memory: the same from `Session.state_dict`
    """

    folder: Path
    run: Run
    state: WholeState
    in_memory: dict[str, Any]


def of_all_ranks(job: str) -> list[Run]:
    return [run for ranks in (1, 2, 3, 4) for run in plans(job, ranks)]


def drawn_pairs(jobs: Sequence[str], number: int, seed: int) -> list[tuple[Run, Run]]:
    """Two plans of one job each, drawn from all pairs."""
    pairs = [(one, other) for job in jobs for one in of_all_ranks(job) for other in of_all_ranks(job)]
    return random.Random(seed).sample(pairs, number)


def each_once(job: str, seed: int) -> list[tuple[Run, Run]]:
    """Every plan of a job in one pair with another one, as drawn."""
    drawn = of_all_ranks(job)
    random.Random(seed).shuffle(drawn)
    return [*zip(drawn[::2], [*drawn[1::2], drawn[0]], strict=False)]


def change_plans(pairs: Sequence[tuple[Run, Run]], folder: Path) -> None:
    """Save a training under a plan, go on under another one, and from there back."""
    jobs = sorted({one.job for one, _ in pairs})
    origins: dict[str, Origin] = {}
    for ranks in (1, 2, 3, 4):
        runs = [*{one.name: one for one, _ in pairs if one.strategy.devices == ranks}.values()]
        if not runs:
            continue
        place = folder / str(ranks)
        made = launch(save_all, (runs, str(place)), ranks=ranks, captured=jobs, log_dir=folder / "logs", device="cpu")
        for number, (run, (state, in_memory)) in enumerate(zip(runs, made[0], strict=True)):
            origins[run.name] = Origin(folder=place / str(number), run=run, state=state, in_memory=in_memory)
    # One in four from memory.
    there = [
        (
            one,
            Change(
                source=one.in_memory if number % 4 == 3 else str(one.folder), run=run, back=f"{folder}/back/{number}"
            ),
        )
        for number, (one, run) in enumerate((origins[one.name], run) for one, run in pairs)
    ]
    losses: dict[str, list[float]] = {}
    for (one, change), found in take_changes(there, folder):
        where = f"{one.run.name} to {change.run.name}"
        assert_same(found[0].state, one.state, where)
        assert_lost(found[0].tensors, one, change.run, where)
        # The next global batch is that of all plans, and but for dropout the loss is its.
        assert all(rank.loss == found[0].loss for rank in found), where
        if one.run.strategy.compression is None:
            losses.setdefault(change.run.job, []).append(found[0].loss)
        same = replace(one.run, strategy=replace(one.run.strategy, feeding=change.run.strategy.feeding)) == change.run
        assert any("random generators were seeded anew" in note for note in found[0].notes) != same, where
        assert not any("in the checkpoint, " in note for note in found[0].notes), where
    for job, of in losses.items():
        if job == "gpt_named":  # the others draw, or normalize batches
            assert max(of) - min(of) < 1e-9, job
    back = [(one, Change(source=change.back, run=one.run, back=f"{change.back}-back")) for one, change in there]
    for (one, change), found in take_changes(back, folder):
        where = f"{one.run.name}, back from {change.source}"
        assert_same(found[0].state, one.state, where)


def take_changes(
    changes: Sequence[tuple[Origin, Change]], folder: Path
) -> Iterator[tuple[tuple[Origin, Change], list[Changed]]]:
    """Each change, and what its ranks found."""
    for ranks in (1, 2, 3, 4):
        work = [(one, change) for one, change in changes if change.run.strategy.devices == ranks]
        if not work:
            continue
        jobs = sorted({change.run.job for _, change in work})
        made: list[list[Changed]] = launch(
            change_all,
            ([change for _, change in work],),
            ranks=ranks,
            captured=jobs,
            log_dir=folder / "logs",
            device="cpu",
        )
        yield from zip(work, map(list, zip(*made, strict=True)), strict=True)


def assert_lost(found: Mapping[str, torch.Tensor], one: Origin, run: Run, where: str) -> None:
    """What compression has lost is the same on as many replicas, else the first one's is the sum; or it is dropped."""
    before = {name: tensor for name, tensor in one.in_memory["tensors"].items() if name.startswith("residual/")}
    after = {name: tensor for name, tensor in found.items() if name.startswith("residual/")}
    assert bool(before) == (one.run.strategy.compression is not None), where
    if run.strategy.compression is None or not before:
        assert not any(tensor.any() for tensor in after.values()), where
        return
    same = replace(one.run.strategy, feeding=run.strategy.feeding) == run.strategy
    expected: dict[str, torch.Tensor] = {}
    # Each stage that holds a tied weight has lost its own, which the first one owes under another plan.
    for name, tensor in sorted(before.items()):
        what, _, by = name.rpartition("/")
        replica = by.partition(" ")[0] if run.strategy.dp == one.run.strategy.dp else "0"
        owed = name if same else f"{what}/{replica}"
        expected[owed] = expected[owed] + tensor if owed in expected else tensor
    for name, tensor in expected.items():
        assert torch.equal(after[name], tensor), f"{where}, {name}"
    others = [tensor for name, tensor in after.items() if run.strategy.dp != one.run.strategy.dp and name[-2:] != "/0"]
    assert not any(tensor.any() for tensor in others), where


@pytest.mark.timeout(240)
def test_a_state_is_the_same_under_another_plan(tmp_path: Path) -> None:
    change_plans(each_once("normed_wide", 1), tmp_path)


@pytest.mark.sweep
@pytest.mark.timeout(240)
def test_a_state_is_the_same_under_another_plan_of_memory(tmp_path: Path) -> None:
    change_plans(drawn_pairs(["large_state"], 16, 1), tmp_path)


def test_a_layer_that_no_stage_has_updated_is_in_the_group_of_one_process() -> None:
    """A pipeline saves its parameters in no group."""
    run = Run(job="with_spare", strategy=strategy(), steps=2)
    with open_session(World(), run) as session:
        session.step(next(session.batches()))
        state = session.state_dict()
    for group in state["state"]["groups"]:
        group["names"] = [name for name in group["names"] if not name.startswith("spare")]
    with open_session(World(), run) as session:
        session.load_state_dict(state)
        session.step(next(session.batches()))


@pytest.mark.timeout(120)
def test_what_one_rank_cannot_save_is_refused_on_all(tmp_path: Path) -> None:
    run = Run(job="normed", strategy=strategy(dp=2), steps=2)
    by_rank: list[list[str]] = launch(
        refuse_all,
        (run, str(tmp_path / "saved")),
        ranks=2,
        captured=["normed"],
        log_dir=tmp_path / "logs",
        device="cpu",
    )
    codes = ["checkpoint.no-space", "checkpoint.not-plain", "checkpoint.not-plain", "checkpoint.unlike-optimizers"]
    assert by_rank == [codes, codes]


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
def test_states_are_the_same_under_many_pairs_of_plans(seed: int, tmp_path: Path) -> None:
    change_plans(drawn_pairs(["gpt_named", "cnn_fp64", "normed_wide", "large_state"], 80, seed), tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# Samples


@pytest.mark.timeout(180)
def test_each_sample_is_trained_on_once_whatever_the_ranks(tmp_path: Path) -> None:
    """Three epochs of samples that are drawn anew each time; then the same in parts by 2, 4, 1 and 3 ranks."""
    job = "rows_drawn_twice"
    whole, _ = read_parts([(strategy(), 15)], job, tmp_path / "whole")
    assert [len(batch) for batch in whole] == [7, 7, 7, 7, 5] * 3
    for epoch in range(3):
        assert sorted(torch.cat(whole[5 * epoch : 5 * epoch + 5])[:, 0].tolist()) == list(range(33))
    parts = [
        (strategy(dp=2, microbatches=3), 3),
        (strategy(dp=4, feeding=WORKERS), 4),
        (strategy(), 3),
        (strategy(dp=3, zero=1, bucket_bytes=SMALL), 5),
    ]
    seen, epochs = read_parts(parts, job, tmp_path / "parts")
    assert len(seen) == 15
    assert all(torch.equal(one, other) for one, other in zip(whole, seen, strict=True))
    # The last epoch has not ended: that is done when the batch after its last one is asked for.
    assert epochs == [0, 1, 1, 2]


def read_parts(parts: Sequence[tuple[Strategy, int]], job: str, folder: Path) -> tuple[list[torch.Tensor], list[int]]:
    """The global batches of a training in parts, each of which goes on from the checkpoint of the one before it."""
    seen: list[torch.Tensor] = []
    epochs: list[int] = []
    for number, (plan, steps) in enumerate(parts):
        arguments = Run(job=job, strategy=plan, steps=steps), str(folder) if number else None, str(folder)
        ranks = launch(train_on, arguments, ranks=plan.devices, log_dir=folder / "logs", device="cpu")
        assert {rank.refused for rank in ranks} == {"session.saved-before-step"}
        seen += [torch.cat(shares) for shares in zip(*(rank.inputs for rank in ranks), strict=True)]
        epochs.append(ranks[0].epochs)
    return seen, epochs
