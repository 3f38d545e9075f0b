"""In fp32, from equal weights, any plan's gradients are as near to the exact ones as those of one process.

One process may sum the samples of a microbatch in any order, and each order rounds otherwise. The distance of a plan's
gradient from the one in fp64 must not exceed the largest distance among such orders by more than half: with eight
orders drawn, a ninth one of the same kind stays within that.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests import builders, zoo
from tests.distributed.jobs import with_gradients
from tests.distributed.reference import add_gradients
from tests.distributed.training import Run, train_all
from tests.forks.client import launch
from tests.representative import each
from torch import nn

from trimaran.runtime.data.orders import sample_order

ORDERS = 8
MARGIN = 1.5
# With the seed of the placement where the network is dealt out at random.
STRATEGIES = (
    (builders.strategy(dp=2, bucket_bytes=8192), None),
    (builders.strategy(pp=2, schedule="gpipe", microbatches=4), None),
    (builders.strategy(pp=2, schedule="1f1b", microbatches=4), None),
    (builders.strategy(pp=2, schedule="zero-bubble", microbatches=4), None),
    (builders.strategy(pp=2, schedule="interleaved", chunks=2, microbatches=4), None),
    (builders.strategy(pp=2), 3),
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", each(["cnn", "unet", "lstm", "gpt"], "cnn", "lstm", "gpt"))
def test_gradients_are_within_the_spread_of_summation_orders(name: str, tmp_path: Path) -> None:
    runs = [Run(job=f"{name}_gradients", strategy=strategy, steps=1, draw=draw) for strategy, draw in STRATEGIES]
    outcomes = launch(train_all, (runs,), ranks=2, log_dir=tmp_path, device="cpu")[0]
    for (strategy, _), outcome in zip(STRATEGIES, outcomes, strict=True):
        exact, spread = exact_and_spread(name, strategy.dp, strategy.microbatches)
        found = {key: tensor for key, tensor in outcome.weights.items() if key in exact}
        assert found.keys() == exact.keys()
        assert 0 < spread < 1e-5
        assert distance(found, exact) <= MARGIN * spread, strategy.name


@functools.cache
def exact_and_spread(name: str, replicas: int, microbatches: int) -> tuple[dict[str, torch.Tensor], float]:
    """Gradients in fp64, and how far the orders are from them in fp32; schedules do not change either."""
    exact = plain_gradients(name, "fp64", replicas, microbatches, order=0)
    orders = (plain_gradients(name, "fp32", replicas, microbatches, order=order) for order in range(ORDERS))
    return exact, max(distance(found, exact) for found in orders)


def plain_gradients(
    name: str, precision: str, replicas: int, microbatches: int, *, order: int
) -> dict[str, torch.Tensor]:
    """Gradients of the first global batch in one process; order 0 is that of the plan, others shuffle microbatches."""
    job = with_gradients(name, precision)
    torch.manual_seed(job.seed)
    dtype = torch.float64 if precision == "fp64" else torch.float32
    model: nn.Module = job.model().to(dtype)
    samples = sample_order(zoo.SAMPLES, seed=job.seed, epoch=0)[: job.global_batch_size]
    indices = shuffle_parts(samples, replicas * microbatches, order)
    add_gradients(job, model, indices, replicas, microbatches, dtype)
    parameters = model.named_parameters(remove_duplicate=False)
    return {key: parameter.grad for key, parameter in parameters if parameter.grad is not None}


def shuffle_parts(samples: torch.Tensor, parts: int, order: int) -> list[int]:
    if not order:
        return samples.tolist()
    generator = torch.Generator().manual_seed(order)
    shuffled = [part[torch.randperm(len(part), generator=generator)] for part in samples.tensor_split(parts)]
    return torch.cat(shuffled).tolist()


def distance(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm of the exact gradient, all parameters together."""
    names: Sequence[str] = sorted(exact)
    difference = torch.cat([(found[name].double() - exact[name].double()).flatten() for name in names])
    return float(difference.norm() / torch.cat([exact[name].flatten() for name in names]).norm())
