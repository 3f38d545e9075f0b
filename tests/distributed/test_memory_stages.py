"""Stages of a pipeline under a memory plan, several microbatches in flight: bit for bit those without a plan."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.distributed.training import Run, captured, open_executor, take_steps
from tests.forks.client import launch
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.launch.world import World
from trimaran.memory_budget import planned_memory
from trimaran.program.lowering.lower import lower
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


def train_each(world: World, runs: list[Run], share: float) -> list[dict[str, Any]]:
    """Each run without a plan, with room for everything, and in a budget between the least and that, by stage."""
    found = []
    for run in runs:
        plain, roomy = (train_under(world, run, nbytes) for nbytes in (None, ROOM))
        report: MemoryReport = roomy["report"]
        least, most = report.minimum_memory_bytes or 0, report.keep_peak_bytes or 0
        tight = train_under(world, run, least + int(share * (most - least)))
        found.append({"plain": plain, "roomy": roomy, "tight": tight})
    return found


PIPELINES = [
    builders.strategy(pp=2, schedule="1f1b", microbatches=4),
    builders.strategy(pp=2, schedule="gpipe", microbatches=4),
    builders.strategy(pp=2, schedule="interleaved", chunks=2, microbatches=4),
]


@pytest.mark.timeout(300)
def test_a_pipeline_under_a_memory_plan_is_bit_equal(tmp_path: Path) -> None:
    runs = [Run(job="large", strategy=strategy, steps=STEPS) for strategy in PIPELINES]
    ranks = launch(train_each, (runs, 0.5), ranks=2, captured=["large"], log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        for rank, found in enumerate(one[number] for one in ranks):
            where = f"{run.name}, rank {rank}"
            plain, report = found["plain"], found["tight"]["report"]
            assert len(plain["losses"]) == STEPS
            for under in (found["roomy"], found["tight"]):
                assert under["losses"] == plain["losses"], where
                assert under["weights"].keys() == plain["weights"].keys()
                for name, weight in plain["weights"].items():
                    assert torch.equal(under["weights"][name], weight), f"{where}, {name}"
            assert found["roomy"]["report"].to_host_bytes == 0, where
            assert (report.phase, report.fallback_steps) == ("run", 0), where
            assert report.to_host_bytes == report.to_device_bytes > 0, where
            assert report.predicted_peak_bytes <= report.budget_bytes < report.keep_peak_bytes, where


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
