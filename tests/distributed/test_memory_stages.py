"""Stages of a pipeline under a memory plan, several microbatches in flight: bit for bit those without a plan."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests import builders
from tests.distributed.jobs import large
from tests.distributed.training import Run, captured, open_executor, take_steps
from tests.forks.client import launch
from tests.raising import raises

from trimaran import memory_budget
from trimaran.base.errors import InputError
from trimaran.graph.trace.live_bytes import live_kept
from trimaran.launch.world import World
from trimaran.measure.offload import CopyRates
from trimaran.measure.tracing import trace_on_rank
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.stages import passes_of, segmented, stage_step
from trimaran.memory_budget import device, planned_memory
from trimaran.memory_budget.options import Options
from trimaran.planner.memory_plans import ring_bytes
from trimaran.pricing.memory import rank_states
from trimaran.pricing.offload_costs import TracedStep
from trimaran.program.lowering.lower import lower
from trimaran.program.memory import parse_codec
from trimaran.report.virtual_memory import MemoryReport

MIB = 2**20
STEPS = 8
ROOM = 2**40


def train_under(world: World, run: Run, memory_bytes: int | None) -> dict[str, Any]:
    """Losses, weights and gradients of this rank, and what its memory plan did; with `ROOM`, everything fits."""
    asked = replace(run, strategy=replace(run.strategy, memory_bytes=memory_bytes))
    executor = open_executor(world, asked, captured(run.job))
    with planned_memory(asked.strategy, local_ranks=world.local_size) as memory:
        losses = take_steps(executor, STEPS)
        report = None if memory is None else memory.report()
    weights = executor.weights()
    executor.close()
    return {"losses": losses, "weights": weights, "report": report}


def coded_under(world: World, run: Run, memory_bytes: int) -> dict[str, Any]:
    """The same with what comes after ReLUs coded: nothing is recomputed, and copies are taken to be so slow."""
    slow = CopyRates(to_host_bytes_per_s=20e6, to_device_bytes_per_s=20e6, latency_s=0.0)
    coded = replace(run, strategy=replace(run.strategy, codec=parse_codec("sparse")))
    with (
        patch.dict(device._known, cpu=slow),
        patch.object(memory_budget, "Options", partial(Options, recompute=False)),
    ):
        return train_under(world, coded, memory_bytes)


def train_each(world: World, runs: list[Run], share: float) -> list[dict[str, Any]]:
    """Each run without a plan, with room for everything, and in a budget between the least and that, by stage."""
    found = []
    for run in runs:
        plain, roomy = (train_under(world, run, nbytes) for nbytes in (None, ROOM))
        report: MemoryReport = roomy["report"]
        least, most = report.minimum_memory_bytes or 0, report.keep_peak_bytes or 0
        budget = least + int(share * (most - least))
        tight, coded = train_under(world, run, budget), None
        if run is runs[0]:
            coded = coded_under(world, run, budget)
        found.append({"plain": plain, "roomy": roomy, "tight": tight, "coded": coded})
    return found


PIPELINES = [
    builders.strategy(pp=2, schedule="1f1b", microbatches=4),
    builders.strategy(pp=2, schedule="gpipe", microbatches=4),
    builders.strategy(pp=2, schedule="interleaved", chunks=2, microbatches=4),
]


def predicted(runs: list[Run], traced: TracedStep) -> list[list[tuple[int, int]]]:
    """For each run and rank, the peak without a plan and the least that a plan can reach, from a whole network's step.

    Parameters, their gradients and the two states of AdamW are there all the time, and rings for messages.
    """
    graph, found = captured("large").graph, []
    for run in runs:
        strategy = run.fit(graph)
        program = lower(graph, strategy, batch=1024)
        whole = segmented(traced, graph, [[op.id for op in ops] for ops in graph.parts(strategy.boundaries)])
        own = []
        for rank, state in enumerate(rank_states(program, graph, strategy)):
            step = stage_step(whole, passes_of(program.ranks[rank])).trace
            stays = state.resident_bytes(state_bytes_per_byte=2.0) + ring_bytes(program, rank)
            own.append((stays + int(live_kept(step).max()), stays + minimum_memory(step).nbytes))
        found.append(own)
    return found


@pytest.mark.timeout(300)
def test_a_pipeline_under_a_memory_plan_is_bit_equal_and_needs_what_was_predicted(tmp_path: Path) -> None:
    runs = [Run(job="large", strategy=strategy, steps=STEPS) for strategy in PIPELINES]
    ranks = launch(train_each, (runs, 0.5), ranks=2, captured=["large"], log_dir=tmp_path, device="cpu")
    sizes = {1024 // run.strategy.microbatches for run in runs}
    (traced,) = launch(trace_on_rank, (large, tuple(sizes)), ranks=1, captured=["large"], log_dir=tmp_path)[0].values()
    for number, own in enumerate(predicted(runs, traced)):
        for rank, figures in enumerate(own):
            report = ranks[rank][number]["roomy"]["report"]
            recorded = report.keep_peak_bytes, report.minimum_memory_bytes
            assert figures == pytest.approx(recorded, rel=0.05), f"{runs[number].name}, rank {rank}"
    for number, run in enumerate(runs):
        for rank, found in enumerate(one[number] for one in ranks):
            where = f"{run.name}, rank {rank}"
            plain, report = found["plain"], found["tight"]["report"]
            assert len(plain["losses"]) == STEPS
            for under in filter(None, (found["roomy"], found["tight"], found["coded"])):
                assert under["losses"] == plain["losses"], where
                assert under["weights"].keys() == plain["weights"].keys()
                for name, weight in plain["weights"].items():
                    assert torch.equal(under["weights"][name], weight), f"{where}, {name}"
            assert found["roomy"]["report"].to_host_bytes == 0, where
            assert (report.phase, report.fallback_steps) == ("run", 0), where
            assert report.to_host_bytes == report.to_device_bytes > 0, where
            assert report.predicted_peak_bytes <= report.budget_bytes < report.keep_peak_bytes, where
            if found["coded"] is not None:
                assert found["coded"]["report"].coding_ratio > 1.3, where


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "zero-bubble"}, "splits backwards"),
        ({"schedule": "pipedream", "microbatches": 1}, "overlaps steps"),
        ({"execution": "compiled"}, "compiled"),
        ({"pp": 1, "tp": 2}, "sharded"),
    ],
)
def test_what_cannot_keep_a_budget_is_refused_with_the_reason(change: dict[str, Any], said: str) -> None:
    made = captured("large")
    plan = builders.strategy(pp=2, schedule="1f1b", microbatches=2, memory_bytes=ROOM)
    strategy = Run(job="large", strategy=replace(plan, **change), steps=1).fit(made.graph)
    with raises("strategy.memory-form", InputError, match=said):
        lower(made.graph, strategy, batch=1024)
