"""A user's own loop by a plan that holds the rank to a memory budget."""

import torch
from sklearn.datasets import load_digits
from tests import builders
from torch import nn
from torch.utils.data import TensorDataset

import trimaran
from trimaran.graph.capture.capture import capture
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import program_lines
from trimaran.program.strategy import Strategy

STEPS = 6
BATCH = 64


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16 * 64, 10),
    )


def digits() -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return TensorDataset(x, torch.tensor(labels))


JOB = trimaran.Job(
    name="small",
    model=make_model,
    loss=nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    dataset=digits,
    global_batch_size=BATCH,
    epochs=1,
)


def losses(strategy: Strategy) -> list[float]:
    graph = capture(JOB).graph
    program = lower(graph, strategy, batch=BATCH)
    plan = builders.plan(
        job="small",
        strategy=strategy,
        premises=builders.premises(
            graph_digest=graph.digest, global_batch_size=BATCH, devices=("cpu",), memory_bytes=(2**30,)
        ),
        prediction=builders.prediction(step_time_s=1.0, interval_s=(1.0, 1.0)),
        program=program_lines(program),
    )
    with trimaran.init(JOB, plan=plan) as session:
        found = [session.step(batch) for batch, _ in zip(session.batches(), range(STEPS), strict=False)]
        report = session.memory
    if strategy.memory_bytes is None:
        assert report is None
    else:
        assert report is not None
        assert report.fits is False
        assert report.decisions
        assert report.predicted_peak_bytes is not None
        assert report.predicted_peak_bytes <= strategy.memory_bytes
    return found


def test_losses_are_those_without_a_budget_bit_for_bit() -> None:
    """Maps of 256 KiB, and half a MiB of data; the floor is 1.4 MiB, and 2.1 MiB are needed to keep all."""
    assert losses(builders.strategy(memory_bytes=1_700_000)) == losses(builders.strategy())


def test_accumulated_microbatches_too() -> None:
    strategy = builders.strategy(microbatches=2)
    held = builders.strategy(microbatches=2, memory_bytes=1_200_000)
    assert losses(held) == losses(strategy)
