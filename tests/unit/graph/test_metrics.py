"""A metric is computed over all evaluation data, where outputs can be put together."""

from typing import Any

import pytest
import torch
from tests.unit.graph.test_examine_state import look, make_data, make_job
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import trimaran
from trimaran.graph.behaviour import WholeMetric, weighed
from trimaran.graph.metrics import can_gather

COUNT = 12


def hits(output: Tensor, target: Tensor) -> Tensor:
    return output.argmax(-1) == target


def accuracy(output: Tensor, target: Tensor) -> float:
    return float(hits(output, target).double().mean())


def f1(output: Tensor, target: Tensor) -> float:
    found = float((hits(output, target) & (target == 1)).sum())
    return 2 * found / max(1.0, float((output.argmax(1) == 1).sum() + (target == 1).sum()))


@pytest.mark.parametrize(
    ("outputs", "targets", "samples", "gathers"),
    [
        ((COUNT, 3), (COUNT,), 100, True),
        ((COUNT, 3), (COUNT,), 1 << 40, False),
        ((COUNT, 3), (2, COUNT), 100, False),
        ((7, COUNT), (7, COUNT), 100, True),
        ((), (COUNT,), 100, False),
    ],
)
def test_outputs_are_gathered_where_their_first_dims_grow_with_the_batch(
    outputs: tuple[int, ...], targets: tuple[int, ...], samples: int, gathers: bool
) -> None:
    whole = torch.randn(outputs), torch.zeros(targets)
    part = (whole[0][:4] if outputs else whole[0], whole[1][:4])
    assert can_gather([whole, part], samples=samples) == gathers
    assert not can_gather([whole, whole], samples=samples)


def test_outputs_of_other_shapes_are_not_gathered() -> None:
    output, target = torch.randn(COUNT, 5, 3), torch.arange(COUNT) % 3
    assert not can_gather([(output, target), (output[:8, :4], target[:8])], samples=100)


@pytest.mark.parametrize("samples", [1, 2])
def test_few_samples_of_an_evaluation_are_enough(samples: int) -> None:
    """Of one there are no parts."""
    few = TensorDataset(*make_data()[:samples])
    assert look(make_job(evaluation_dataset=lambda: few, metric=f1)).metric == "gathered"


class Words(Dataset[Any]):
    """Of each sample another number of words."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 + index % 5, 6), float(index % 3), dtype=torch.float64), torch.tensor(index % 3)


def padded(samples: list[Any]) -> Any:
    inputs = nn.utils.rnn.pad_sequence([one for one, _ in samples], batch_first=True)
    return inputs, torch.stack([one for _, one in samples])


def test_where_outputs_have_other_shapes_the_metric_is_a_mean_over_parts() -> None:
    class Model(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3, bias=False)

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).cumsum(1)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output[:, 0], target)

    job = make_job(
        model=Model, loss=loss, dataset=Words, collate=padded, evaluation_dataset=Words,
        metric=lambda output, target: float(output.max()),
    )  # fmt: skip
    assert look(job).metric == "mean"


class Counting:
    """A metric that keeps the number of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> float:
        self.calls += 1
        return f1(output, target)


def test_a_session_computes_it_once_over_all_samples() -> None:
    """24 samples in batches of 7; a look leaves the metric as it was."""
    metric = Counting()
    job = make_job(evaluation_dataset=make_data, metric=metric, global_batch_size=7)
    session = trimaran.init(job)
    try:
        assert metric.calls == 0
        found = session.evaluate()
        assert metric.calls == 1
        inputs, target = make_data().tensors
        assert found == f1(session.model(inputs), target)
    finally:
        session.close()


def keep_most(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    kept = [one for one in samples if one[0][0] < 0.8]
    return torch.stack([one[0] for one in kept]), torch.stack([one[1] for one in kept])


def keep_through_a_helper(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*samples, strict=True)
    kept = torch.stack(inputs)[:, 0] < 0.8
    return torch.stack(inputs)[kept], torch.stack(targets)[kept]


@pytest.mark.parametrize("collate", [keep_most, keep_through_a_helper])
def test_a_mean_over_the_samples_that_a_collate_leaves_is_that_of_all_of_them(collate: Any) -> None:
    """Batches of which it leaves more or less would count alike otherwise."""
    metric = accuracy
    inputs, target = make_data().tensors
    job = make_job(
        dataset=lambda: TensorDataset(inputs.clamp(max=0.5), target),
        evaluation_dataset=make_data,
        metric=metric,
        global_batch_size=7,
        collate=collate,
    )
    session = trimaran.init(job)
    try:
        inputs, target = collate(list(make_data()))
        assert 0 < len(inputs) < len(make_data())
        assert session.evaluate() == pytest.approx(metric(session.model(inputs), target))
    finally:
        session.close()


def test_a_metric_is_gathered_where_there_are_evaluation_data() -> None:
    whole = make_job(evaluation_dataset=make_data, metric=f1)
    assert isinstance(weighed(whole, look(whole), splits=False).metric, WholeMetric)
    assert look(make_job(metric=f1)).metric == ""  # without evaluation data nothing is computed
