"""The state of any plan, put together on rank 0, is that of one process that trains plainly.

Parameters, buffers, the gradients of the last step before they were clipped, and the state of AdamW, in fp64 to 1e-10
after three steps. Copies of a parameter on several ranks are alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.distributed.jobs import gpt_clipped, make_job
from tests.distributed.reference import _batches, add_gradients
from tests.distributed.test_zero import CNN, GPT
from tests.distributed.training import Run, captured, full_batch
from tests.forks.client import launch
from torch import nn

from trimaran.base.job import Job
from trimaran.graph.types import Graph
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.tensor_parallel import find_shards
from trimaran.program.strategy import Strategy
from trimaran.runtime.executor import Executor
from trimaran.runtime.whole_state import WholeState

STEPS = 3
EXACT = 1e-10
SMALL = 8192

RUNS = {
    2: [
        builders.strategy(dp=2, sync="p2p", bucket_bytes=SMALL),
        builders.strategy(dp=2, zero=1, bucket_bytes=SMALL),
        builders.strategy(dp=2, zero=3, units=GPT, microbatches=2),
        builders.strategy(pp=2, microbatches=2, schedule="zero-bubble"),
        builders.strategy(tp=2),
    ],
    4: [
        builders.strategy(dp=2, pp=2, zero=1, microbatches=2, schedule="1f1b"),
        builders.strategy(pp=2, tp=2, microbatches=2, schedule="1f1b"),
    ],
}


def decayed(parameters: Any) -> torch.optim.Optimizer:
    """AdamW with two groups: matrices decay."""
    parameters = list(parameters)
    groups = [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": 0.1},
        {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-3)


def make(name: str) -> Job:
    return replace(gpt_clipped() if name == "gpt_fp64" else make_job(name), optimizer=decayed)


def gather_states(world: World, runs: Sequence[Run]) -> list[WholeState]:
    """The state after some steps, of several runs in one world."""
    return [_run(world, run) for run in runs]


def _run(world: World, run: Run) -> WholeState:
    job, made = make(run.job), captured(run.job)
    strategy = _fit(run, made.graph)
    batch = full_batch(job.global_batch_size, strategy)
    programs = (
        lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None),
        lower_evaluation(made.graph, strategy, batch=batch),
    )
    executor = Executor(job, strategy, *programs, world, capture=made)
    shares = executor.feed().shares()
    for step in range(STEPS):
        executor.step(next(shares), keep_gradients=step == STEPS - 1)
    state = executor.full_state(compare=True)
    assert not executor.full_state(kinds=("buffer",)).parameters
    executor.close()
    return state


def _fit(run: Run, graph: Graph) -> Strategy:
    shards = find_shards(graph, run.strategy.tp) if run.strategy.tp > 1 else ()
    return replace(run, strategy=replace(run.strategy, shards=shards)).fit(graph)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("ranks", RUNS)
def test_the_state_of_any_plan_is_that_of_one_process(ranks: int, tmp_path: Path) -> None:
    runs = [Run(job="gpt_fp64", strategy=strategy, steps=STEPS) for strategy in RUNS[ranks]]
    if ranks == 2:
        buffered = (builders.strategy(dp=2, zero=3, units=CNN), builders.strategy(pp=2, microbatches=2))
        runs += [Run(job="cnn_fp64", strategy=strategy, steps=STEPS) for strategy in buffered]
    by_rank = launch(gather_states, (runs,), ranks=ranks, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        check(make(run.job), run.strategy, by_rank[0][number])
        assert by_rank[-1][number] == WholeState()


def check(job: Job, strategy: Strategy, found: WholeState) -> None:
    """What one process has after the same steps."""
    torch.manual_seed(job.seed)
    model = job.model().double()
    optimizer = job.optimizer(model.parameters())
    gradients: dict[str, torch.Tensor] = {}
    for indices in _batches(job, STEPS):
        optimizer.zero_grad()
        add_gradients(job, model, indices, strategy.dp, strategy.microbatches, torch.float64)
        gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        if job.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
        optimizer.step()
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    expected = WholeState(
        parameters={name: one.detach() for name, one in model.named_parameters()},
        buffers=dict(model.named_buffers()),
        gradients=gradients,
        optimizer={names[one]: state for one, state in optimizer.state.items()},
    )
    for kind in ("parameters", "buffers", "gradients"):
        _close(getattr(found, kind), getattr(expected, kind), f"{strategy.name}, {kind}")
    assert found.optimizer.keys() == expected.optimizer.keys(), strategy.name
    for name, state in expected.optimizer.items():
        _close(found.optimizer[name], state, f"{strategy.name}, {name}")
    assert not found.differing, strategy.name
    decays = {name: group.options["weight_decay"] for group in found.groups for name in group.names}
    assert decays == {name: 0.1 if one.ndim > 1 else 0.0 for name, one in model.named_parameters()}, strategy.name


def _close(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], what: str) -> None:
    assert found.keys() == expected.keys(), what
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, f"{what}, {name}"
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=EXACT, msg=f"{what}, {name}")
