"""A metric that is no mean over samples is told from one that is, and is computed over all evaluation data."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.unit.graph.test_examine_state import REPLICAS, look, make_data, make_job, refused
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import trimaran
from trimaran.graph.behaviour import Metric, WholeMetric, weighed
from trimaran.graph.metrics import kind_of_metric

COUNT = 12
SIZES = [8, 4]


def hits(output: Tensor, target: Tensor) -> Tensor:
    return output.argmax(-1) == target


def f1(output: Tensor, target: Tensor) -> float:
    found = float((hits(output, target) & (target == 1)).sum())
    return 2 * found / max(1.0, float((output.argmax(1) == 1).sum() + (target == 1).sum()))


def auc(output: Tensor, target: Tensor) -> float:
    score = output[:, 1]
    return float((score[target == 1][:, None] > score[target != 1][None]).double().mean())


METRICS: dict[str, tuple[Callable[[Tensor, Tensor], float], Metric]] = {
    "accuracy": (lambda output, target: float(hits(output, target).double().mean()), "mean"),
    "negative loss": (lambda output, target: -float(functional.cross_entropy(output, target)), "mean"),
    "of two best": (
        lambda output, target: float((output.topk(2).indices == target[:, None]).any(1).double().mean()), "mean"
    ),
    "a constant": (lambda output, target: 0.5, "mean"),
    "f1": (f1, "whole"),
    "auc": (auc, "whole"),
    "recall": (lambda output, target: float(hits(output, target)[target == 1].double().mean()), "whole"),
    "perplexity": (lambda output, target: -math.exp(float(functional.cross_entropy(output, target))), "whole"),
    "root": (lambda output, target: -float(functional.cross_entropy(output, target).sqrt()), "whole"),
    "count": (lambda output, target: float(hits(output, target).sum()), "whole"),
    "largest": (lambda output, target: float(output.max()), "whole"),
    "median": (lambda output, target: float(output.median()), "whole"),
    "share of classes": (lambda output, target: len(output.argmax(1).unique()) / 3, "whole"),
}  # fmt: skip


@pytest.mark.parametrize("name", METRICS)
def test_a_mean_is_told_although_a_network_guesses_one_class(name: str) -> None:
    """All outputs are the same: of these alone, F1 and recall are zeros, whole and in parts."""
    metric, kind = METRICS[name]
    output = torch.tensor([[1.0, 0.2, 0.1]], dtype=torch.float64).repeat(COUNT, 1)
    target = torch.arange(COUNT) % 3
    parts = [(output[:8], target[:8]), (output[8:], target[8:])]
    assert kind_of_metric(metric, (output, target), parts, SIZES, samples=100) == kind


@pytest.mark.parametrize("name", ["accuracy", "negative loss", "f1", "recall", "auc"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_mean_is_told_where_no_sample_that_was_read_is_of_a_rare_class(name: str, classes: int) -> None:
    metric, kind = METRICS[name]
    output = torch.randn(COUNT, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.zeros(COUNT, dtype=torch.long)
    parts = [(output[:8], target[:8]), (output[8:], target[8:])]
    assert kind_of_metric(metric, (output, target), parts, SIZES, samples=100) == kind


def test_labels_of_zeros_and_ones_are_told_as_those_of_classes() -> None:
    def hit(output: Tensor, target: Tensor) -> float:
        return float((target * output.sigmoid()).sum() / target.sum().clamp(min=1))

    output, target = torch.randn(COUNT, 1), torch.zeros(COUNT, 1)
    parts = [(output[:8], target[:8]), (output[8:], target[8:])]
    assert kind_of_metric(hit, (output, target), parts, SIZES, samples=100) == "whole"


@pytest.mark.parametrize("samples", [1, 2])
def test_few_samples_of_an_evaluation_are_enough(samples: int) -> None:
    """Of one there are no parts."""
    few = TensorDataset(*make_data()[:samples])
    root, accuracy = (
        look(make_job(evaluation_dataset=lambda: few, metric=METRICS[name][0])).metric for name in ("root", "accuracy")
    )
    assert (root, accuracy) == ("whole" if samples > 1 else "mean", "mean")


def test_outputs_that_cannot_be_put_together_are_told() -> None:
    output, target = torch.randn(COUNT, 5, 3), torch.arange(COUNT) % 3
    first, second = (output[:8, :4], target[:8]), (output[8:], target[8:])

    def largest(output: Tensor, target: Tensor) -> float:
        return float(output.max())

    assert kind_of_metric(largest, (output, target), [first, second], SIZES, samples=100) == "parts"
    whole = [(output[:8], target[:8]), (output[8:], target[8:])]
    assert kind_of_metric(largest, (output, target), whole, SIZES, samples=100) == "whole"
    assert kind_of_metric(largest, (output, target), whole, SIZES, samples=1 << 40) == "parts"


class Words(Dataset[Any]):
    """Of each sample another number of words."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 + index % 5, 6), float(index % 3), dtype=torch.float64), torch.tensor(index % 3)


def padded(samples: list[Any]) -> Any:
    inputs = nn.utils.rnn.pad_sequence([one for one, _ in samples], batch_first=True)
    return inputs, torch.stack([one for _, one in samples])


def test_a_metric_that_is_no_mean_is_refused_where_outputs_have_other_shapes() -> None:
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
    found = refused(job)
    assert found.keys() >= REPLICAS | {"accumulation"}
    assert "Job.metric is no mean over samples" in found["data parallel"]
    mean = replace(job, metric=lambda output, target: float(hits(output[:, 0], target).double().mean()))
    assert look(mean).metric == "mean"


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
    metric = METRICS["accuracy"][0]
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


def test_only_a_metric_that_is_no_mean_is_replaced() -> None:
    whole = make_job(evaluation_dataset=make_data, metric=f1)
    mean = replace(whole, metric=METRICS["accuracy"][0])
    assert isinstance(weighed(whole, look(whole), splits=False).metric, WholeMetric)
    assert weighed(mean, look(mean)).metric is mean.metric
    assert look(make_job(metric=f1)).metric == ""  # without evaluation data nothing is computed
