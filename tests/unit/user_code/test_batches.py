"""The forms of a batch, and what is refused."""

from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.raising import raises
from tests.unit.graph.networks import OwnLoss, make_job
from torch import nn
from torch.nn import functional

from trimaran.user_code.batches import (
    call_model,
    cast_batch,
    compute_loss,
    copied_sample,
    count_samples,
    map_tensors,
    move_batch,
    name_tensors,
    rebuild_batch,
    slice_batch,
    split_batch,
)

X, Y = torch.arange(10.0).view(5, 2), torch.arange(5.0)


def test_pair_calls_model_with_input_and_loss_with_target() -> None:
    arguments, keywords, expected = split_batch((X, Y))
    assert arguments == (X,)
    assert keywords == {}
    assert expected is Y


def test_tuple_input_is_spread_over_arguments() -> None:
    assert split_batch(([X, Y], Y))[0] == (X, Y)


def test_dict_is_given_to_model_and_loss_as_it_is() -> None:
    batch = {"x": X, "y": Y}
    assert split_batch(batch) == ((batch,), {}, batch)


def test_dict_without_loss_becomes_keywords() -> None:
    assert split_batch({"x": X}, own_loss=True)[:2] == ((), {"x": X})


@pytest.mark.parametrize("batch", [[X], (X, Y, Y), X, "text"])
def test_other_forms_are_refused(batch: object) -> None:
    with raises("batch.bad-structure"):
        split_batch(batch)


@dataclass(frozen=True, slots=True)
class Pairs:
    x: Any
    y: Any

    @property
    def size(self) -> int:
        return len(self.x)


class Encoding(UserDict[str, Any]):
    @property
    def ids(self) -> Any:
        return self["ids"]


def test_a_dataclass_is_given_to_model_and_loss_and_its_parts_have_its_class() -> None:
    batch = Pairs(X, Y)
    assert split_batch(batch) == ((batch,), {}, batch)
    assert list(name_tensors(batch)) == ["x", "y"]
    part = slice_batch(cast_batch(batch, torch.float64), 1, 3)
    assert (type(part), part.size, part.x.dtype, batch.size, batch.x.dtype) == (
        Pairs, 2, torch.float64, 5, torch.float32,
    )  # fmt: skip
    assert map_tensors({"pairs": batch}, torch.neg)["pairs"].x.equal(-X)
    assert list(name_tensors({"pairs": batch})) == ["pairs.x", "pairs.y"]


def test_a_mapping_keeps_its_class() -> None:
    batch = Encoding({"ids": X})
    part = slice_batch(batch, 0, 2)
    assert (type(part), len(part.ids), len(batch.ids)) == (Encoding, 2, 5)


def test_an_object_that_can_be_moved_is_given_as_it_is() -> None:
    graphs = nn.Linear(2, 2)
    assert split_batch(graphs) == ((graphs,), {}, graphs)
    assert move_batch(graphs, "cpu") is graphs


def test_pair_without_loss_is_refused() -> None:
    with raises("batch.not-a-dict"):
        split_batch((X, Y), own_loss=True)


def test_tensors_have_names_by_their_place() -> None:
    assert list(name_tensors(((X, {"mask": X}), Y))) == ["input.0", "input.1.mask", "target"]
    assert list(name_tensors({"ids": X, "parts": [X, Y]})) == ["ids", "parts.0", "parts.1"]


def test_rebuilding_keeps_the_form() -> None:
    pair = namedtuple("pair", "left right")
    batch = (pair(X, [Y]), Y)
    doubled = rebuild_batch(batch, {name: tensor * 2 for name, tensor in name_tensors(batch).items()})
    assert isinstance(doubled[0], pair)
    assert torch.equal(doubled[0].right[0], Y * 2)


def test_what_is_no_tensor_goes_along() -> None:
    batch = {"x": {"name": "a", "values": X}, "none": None}
    others: list[object] = []
    assert list(name_tensors(batch, others)) == ["x.values"]
    assert others == ["a", None]
    assert map_tensors(batch, lambda tensor: tensor[:2])["x"]["name"] == "a"


def test_first_dims_that_disagree_are_listed() -> None:
    with raises("batch.sizes-differ", match=r"\b5\b.*\b4\b"):
        count_samples((X, Y[:4]))


def test_tensor_without_dims_is_refused() -> None:
    with raises("batch.sizes-differ"):
        count_samples((X, torch.tensor(1.0)))


def test_slice_cuts_every_tensor() -> None:
    part = slice_batch({"x": X, "deep": [Y]}, 1, 3)
    assert torch.equal(part["x"], X[1:3])
    assert torch.equal(part["deep"][0], Y[1:3])


def test_cast_leaves_integers() -> None:
    batch = cast_batch((X, torch.arange(5)), torch.float64)
    assert batch[0].dtype == torch.float64
    assert batch[1].dtype == torch.int64


def test_move_keeps_values() -> None:
    assert torch.equal(move_batch((X, Y), "cpu")[1], Y)


def test_mean_loss_is_weighted_by_samples() -> None:
    """Mean of squares of (1, 3) over 2 samples is 5: the sum is 10, the weight 2."""
    job = make_job(nn.Identity)
    output = torch.tensor([1.0, 3.0], requires_grad=True)
    total, weight = compute_loss(job, output, (torch.zeros(2), torch.zeros(2)))
    assert (float(total.detach()), weight) == (10.0, 2.0)


def test_sum_and_weight_are_taken_as_given() -> None:
    job = make_job(nn.Identity, loss=lambda output, target: (output.sum(), (target > 0).sum()))
    output = torch.tensor([1.0, 3.0], requires_grad=True)
    total, weight = compute_loss(job, output, (torch.zeros(2), torch.tensor([1.0, -1.0])))
    assert float(total.detach()) == 4.0
    assert int(weight) == 1


def test_own_loss_of_the_model_is_used() -> None:
    job = make_job(OwnLoss, loss=None)
    batch = {"x": torch.randn(3, 6), "y": torch.randn(3, 4)}
    output = call_model(job, OwnLoss(), batch)
    total, weight = compute_loss(job, output, batch)
    assert weight == 3.0
    torch.testing.assert_close(total, output["loss"] * 3)


def test_own_loss_that_is_missing_is_refused() -> None:
    with raises("loss.model-returns-none"):
        compute_loss(make_job(OwnLoss, loss=None), {"loss": None}, {"x": X})


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        (lambda output, target: (output - target) ** 2, "loss.not-a-scalar"),
        (lambda output, target: 3.0, "loss.not-a-scalar"),
        (lambda output, target: (output - target).long().sum(), "loss.not-a-scalar"),
        (lambda output, target: ((output - target).sum(), "many"), "loss.bad-weight"),
    ],
    ids=["vector", "float", "integer", "weight"],
)
def test_loss_that_is_no_floating_scalar_is_refused(loss: object, code: str) -> None:
    output = torch.zeros(2, requires_grad=True)
    with raises(code):
        compute_loss(make_job(nn.Identity, loss=loss), output, (X[:2], torch.ones(2)))


def test_loss_without_gradient_is_refused_in_training() -> None:
    job = make_job(nn.Identity, loss=functional.mse_loss)
    batch = (torch.zeros(2), torch.ones(2))
    with raises("loss.nothing-to-train"):
        compute_loss(job, torch.zeros(2), batch)
    with torch.no_grad():
        assert compute_loss(job, torch.zeros(2), batch)[1] == 2.0


class Marked(torch.Tensor):
    """A subclass that does not say how it is copied."""


def test_a_sample_of_a_subclass_is_copied_with_its_attributes() -> None:
    sample = torch.ones(2).as_subclass(Marked)
    sample.boxes = [1]  # type: ignore[attr-defined]
    copied = copied_sample([sample])[0]
    copied.boxes.append(2)  # type: ignore[attr-defined]
    assert type(copied) is Marked
    assert copied.data_ptr() != sample.data_ptr()
    assert sample.boxes == [1]  # type: ignore[attr-defined]


def test_a_copied_sample_has_its_own_elements_and_not_all_of_the_data() -> None:
    """A row is a part of the memory of all rows, which `copy.deepcopy` copies with it."""
    rows = torch.utils.data.TensorDataset(torch.arange(4000.0).view(1000, 4), torch.arange(1000))
    value, number = copied_sample(rows[7])
    assert (value.tolist(), number.item()) == ([28.0, 29.0, 30.0, 31.0], 7)
    assert (value.untyped_storage().nbytes(), number.untyped_storage().nbytes()) == (16, 8)
    value.zero_()
    assert rows[7][0].tolist() == [28.0, 29.0, 30.0, 31.0]
