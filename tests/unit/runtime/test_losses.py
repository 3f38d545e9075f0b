"""The loss of a global batch, from those of its microbatches."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.nn import functional

from trimaran.base.job import Job
from trimaran.runtime.step.losses import loss_term


def job(loss: Any) -> Job:
    return Job(
        model=lambda: nn.Linear(1, 1),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: torch.utils.data.TensorDataset(torch.zeros(1)),
        global_batch_size=1,
    )


def test_uneven_microbatches_of_a_mean_add_up_to_the_mean() -> None:
    """Squares 1, 4, 9 have the mean 14/3; in parts of 2 and 1: 2/3 * 2.5 + 1/3 * 9 = 14/3."""
    output, target = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.zeros(3)
    own = job(functional.mse_loss)
    parts = [(output[:2], target[:2]), (output[2:], target[2:])]
    terms = [loss_term(own, part[0], part, samples=len(part[1]), of=3) for part in parts]
    assert sum(root.item() for root, _ in terms) == pytest.approx(14 / 3, rel=1e-6)
    assert sum(float(term.total) for _, term in terms) / sum(float(term.weight) for _, term in terms) == pytest.approx(
        14 / 3, rel=1e-6
    )
    assert not any(term.weighted for _, term in terms)


def test_a_sum_and_its_weight_are_taken_as_they_are() -> None:
    total = torch.tensor(6.0, requires_grad=True)
    root, term = loss_term(job(lambda output, target: (output, 4)), total, (None, None), samples=3, of=9)
    assert (root.item(), float(term.total), float(term.weight), term.weighted) == (6.0, 6.0, 4.0, True)


def test_a_sum_beside_a_weight_that_is_given_is_divided_as_gradients_are() -> None:
    """The runtime divides gradients by 4/9 for nine samples of weight 1: from 6/9 that makes 6/4."""
    total = torch.tensor(6.0, requires_grad=True)
    own = dataclasses.replace(job(lambda output, target: (output, 4)), loss_weight=lambda batch: 4)
    root, term = loss_term(own, total, (None, None), samples=9, of=9)
    assert (root.item(), float(term.total), float(term.weight)) == (pytest.approx(6 / 9), 6.0, 4.0)


def test_a_mean_over_nothing_gives_no_gradient_that_is_no_number() -> None:
    """A learned weight of the term got 0 times a mean that is no number, and was none from then on."""
    output, scale = torch.zeros(2, 3, requires_grad=True), torch.ones((), requires_grad=True)
    target = torch.full((2,), -100)
    own = job(lambda output, target: functional.cross_entropy(output, target) * scale)
    own = dataclasses.replace(own, loss_weight=lambda batch: (batch[1] != -100).sum())
    root, term = loss_term(own, output, (output, target), samples=2, of=4)
    root.backward()
    assert (root.item(), float(term.total), float(term.weight)) == (0.0, 0.0, 0.0)
    assert scale.grad in (None, 0.0)
    assert torch.equal(output.grad, torch.zeros(2, 3))


def test_a_model_with_its_own_loss_is_asked_for_it() -> None:
    output = SimpleNamespace(loss=torch.tensor(2.0, requires_grad=True))
    root, term = loss_term(job(None), output, {"ids": None}, samples=2, of=4)
    assert (root.item(), float(term.total), float(term.weight)) == (1.0, 4.0, 2.0)


@pytest.mark.parametrize(("value", "named"), [(torch.zeros(3), "3,"), (0.5, "a float"), ((1, 2, 3), "a tuple")])
def test_a_loss_that_is_no_scalar_is_refused(value: Any, named: str) -> None:
    with raises("loss.not-reduced", match=named):
        loss_term(job(lambda output, target: value), None, (None, None), samples=1, of=1)
