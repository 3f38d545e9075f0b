"""The noise scale of real steps on a loss whose gradients are known, and where it cannot be seen."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from tests import builders, zoo
from tests.raising import raises
from torch import nn
from torch.utils.data import TensorDataset

from trimaran.base.job import Job
from trimaran.convergence.noise_scale import StepNorms, estimate_noise_scale
from trimaran.features.training.session import Session
from trimaran.graph.capture.capture import capture
from trimaran.graph.types import Graph
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Shard, Strategy
from trimaran.runtime.executor import Executor
from trimaran.runtime.step.gradient_noise import GradientNoise, check_observable

SAMPLES = 4096
DIMS = 12


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(DIMS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.at


def quadratic() -> Job:
    """Half the squared distance of a point from each sample: a sample's gradient is the point minus the sample.

    The samples scatter by 1 in each of 12 dimensions about a mean of 0.25, and the point stays at 0.
    """
    return Job(
        name="quadratic",
        model=Point,
        loss=lambda distance, target: 0.5 * distance.square().sum(1).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        dataset=samples,
        global_batch_size=64,
        precision="fp64",
    )


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = 0.25 + torch.randn(SAMPLES, DIMS, generator=generator)
    return TensorDataset(x, torch.zeros(SAMPLES))


def train(job: Job, strategy: Strategy, steps: int | None = None, every: int = 1) -> tuple[StepNorms, ...]:
    """What the steps of an epoch note, on one device."""
    executor = _open(job, strategy, every)
    for share in executor.feed().shares():
        executor.step(share)
        if executor.steps == steps:
            break
    found = executor.observations()
    executor.close()
    return found


def _open(job: Job, strategy: Strategy, every: int) -> Executor:
    made = capture(job)
    batch = -(-job.global_batch_size // strategy.microbatches) * strategy.microbatches
    return Executor(
        job,
        strategy,
        lower(made.graph, strategy, batch=batch),
        lower_evaluation(made.graph, strategy, batch=batch),
        World(),
        capture=made,
        gradient_noise=every,
    )


def test_known_signal_and_noise_are_found_however_the_batch_is_split() -> None:
    """An epoch sees each sample once: the mean of its 64 batches is the gradient of all data, G, up to tr Σ / 4096.

    All splits see the same batches, so that |g|² is the same, and the estimates differ by how the noise is seen only:
    each within twice its interval about the truth, all within 15 % of each other.
    """
    x = samples().tensors[0].double()
    truth = float(x.var(dim=0).sum() / x.mean(dim=0).square().sum())
    found = [estimate_noise_scale(train(quadratic(), builders.strategy(microbatches=count))) for count in (2, 4, 16)]
    for one in found:
        low, high = one.interval
        assert low - (one.b_simple - low) <= truth <= high + (high - one.b_simple)
        assert one.noise == pytest.approx(float(x.var(dim=0).sum()), rel=0.1)
    assert max(one.b_simple for one in found) <= 1.15 * min(one.b_simple for one in found)


def test_data_without_scatter_have_no_noise() -> None:
    job = dataclasses.replace(quadratic(), dataset=lambda: TensorDataset(torch.ones(256, DIMS), torch.zeros(256)))
    found = estimate_noise_scale(train(job, builders.strategy(microbatches=4)))
    assert found.b_simple == pytest.approx(0.0, abs=1e-9)
    assert found.signal == pytest.approx(DIMS)


def test_a_step_of_one_piece_is_left_out() -> None:
    """Batches of 5 from 16 samples: the last one of a single sample, which no two microbatches can share."""
    job = dataclasses.replace(
        quadratic(), dataset=lambda: TensorDataset(*(part[:16] for part in samples().tensors)), global_batch_size=5
    )
    assert [(one.step, one.samples) for one in train(job, builders.strategy(microbatches=2))] == [
        (0, 5),
        (1, 5),
        (2, 5),
    ]


def test_one_step_of_so_many_is_observed() -> None:
    assert [one.step for one in train(quadratic(), builders.strategy(microbatches=2), steps=9, every=4)] == [0, 4, 8]


def test_clipping_comes_after() -> None:
    free = train(quadratic(), builders.strategy(microbatches=2), steps=2)
    assert train(dataclasses.replace(quadratic(), clip_norm=1e-3), builders.strategy(microbatches=2), steps=2) == free


def test_sparse_gradients_are_added_up_by_row() -> None:
    """Rows 1, 1 and 2 of an embedding, gradients of ones [3]: 2 · 1 in row 1 and 1 in row 2, squared 3 · 4 + 3 · 1."""
    layer = nn.Embedding(4, 3, sparse=True)
    noted: list[torch.Tensor] = []
    noise = GradientNoise([layer.weight], [layer.weight], add_up=noted.append)
    noise.begin(0)
    layer(torch.tensor([1, 1, 2])).sum().backward()
    noise.settle(_state(0), None)
    noise.observations()
    pieces, _, whole, *_ = noted[0][0].tolist()
    assert (pieces, whole) == pytest.approx((15.0, 15.0))


def test_half_precision_is_added_up_in_fp32() -> None:
    """4097 gradients of 1: in bf16 their sum of squares would be 4096 or 4128."""
    weight = nn.Parameter(torch.ones(4097, dtype=torch.bfloat16))
    noted: list[torch.Tensor] = []
    noise = GradientNoise([weight], [weight], add_up=noted.append)
    for step in range(2):
        noise.begin(step)
        weight.sum().backward()
        noise.settle(_state(step), None)
        weight.grad = None
    noise.observations()
    assert noted[0][:, 0].tolist() == pytest.approx([4097.0, 4097.0], rel=1e-6)


def test_an_element_without_earlier_gradients_does_not_count_for_all() -> None:
    """v = 1, 1, 1 and 0 of a mean square of 0.75, gradients of 1: 3 / (1 + f) + 1 / f with f = 0.01 · √0.75 = 0.00866.

    3 / 1.00866 + 115.47 = 118.44. By ε alone the last one would be 10⁸.
    """
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    moment = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    noted: list[torch.Tensor] = []
    noise = GradientNoise([weight], [weight], add_up=noted.append, second_moment=lambda parameter: (moment, 1.0))
    noise.begin(10)
    weight.sum().backward()
    noise.settle(_state(10), None)
    noise.observations()
    _, pieces, _, whole, *_ = noted[0][0].tolist()
    assert (pieces, whole) == pytest.approx((118.44, 118.44), rel=1e-4)


def test_no_hook_stays() -> None:
    weight = nn.Parameter(torch.ones(2))
    noise = GradientNoise([weight, weight], [weight], add_up=None)
    assert len(weight._backward_hooks or {}) == 1
    noise.close()
    assert not weight._backward_hooks


def test_a_session_tells_it_at_any_time() -> None:
    job = quadratic()
    made, strategy = capture(job), builders.strategy(microbatches=2)
    program = lower(made.graph, strategy, batch=64)
    with Session(job, strategy, program, made, World(), owns_world=False, gradient_noise=1) as session:
        for number, batch in enumerate(session.batches()):
            session.step(batch)
            if number == 5:
                break
        assert session.gradient_noise().steps == 6
    with (
        Session(job, strategy, program, capture(job), World(), owns_world=False) as session,
        raises("gradient-noise.not-recorded"),
    ):
        session.gradient_noise()


@pytest.mark.parametrize(
    ("job", "strategy", "reason"),
    [
        (zoo.lstm, builders.strategy(dp=2, zero=3), "zero=3"),
        (zoo.lstm, builders.strategy(dp=2, zero=2), "zero=2"),
        (zoo.gpt, builders.strategy(tp=2, shards=(Shard(op="head", style="column"),)), "share tensors"),
        (zoo.lstm, builders.strategy(pp=2, schedule="zero-bubble", microbatches=4), "zero-bubble"),
        (zoo.lstm, builders.strategy(), "one piece"),
        (zoo.gpt, builders.strategy(pp=2, schedule="1f1b", microbatches=4), "share a weight"),
    ],
)
def test_where_it_cannot_be_seen_the_reason_is_said(job: Callable[[], Job], strategy: Strategy, reason: str) -> None:
    graph = _graph(job)
    if strategy.pp > 1:
        strategy = dataclasses.replace(strategy, boundaries=_halves(graph.split_points))
    with raises("gradient-noise.strategy-unsupported", match=reason):
        check_observable(strategy, graph)


def test_a_pipeline_without_shared_weights_can_be_observed() -> None:
    graph = _graph(zoo.lstm)
    check_observable(
        builders.strategy(pp=2, schedule="1f1b", microbatches=4, boundaries=_halves(graph.split_points)), graph
    )


@functools.cache
def _graph(job: Callable[[], Job]) -> Graph:
    return capture(job()).graph


def _halves(cuts: Sequence[str]) -> tuple[str, ...]:
    return (cuts[len(cuts) // 2],)


def _state(step: int):  # type: ignore[no-untyped-def]  # of one microbatch, with nothing that is not read
    from trimaran.runtime.step.state import State

    return State(number=step, samples=1, sizes=(1,), source=lambda number: None)
