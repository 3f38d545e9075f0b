"""Segments together are the user's model: outputs, gradients, buffers, names of the state."""

import copy
from collections.abc import Callable

import pytest
import torch
from tests.distributed.drawn import draw_parts
from tests.raising import raises
from tests.unit.graph.chain import (
    NETWORKS,
    assert_equal_to_model,
    build_chain,
    captured,
    evaluate_chain,
    gradients,
    make_batch,
    train_chain,
    train_whole,
)
from tests.unit.graph.networks import (
    Codes,
    FrozenNorm,
    FunctionalDropout,
    InPlace,
    Layers,
    LeakyLeaf,
    NestedOutput,
    ReadsDict,
    RecurrentLoop,
    Regions,
    SharedNorm,
    SizesOfBatch,
    TwoInputs,
    make_job,
)
from torch import nn
from torch.nn import functional

from trimaran.graph.capture.capture import Capture, capture
from trimaran.graph.capture.segments import build_part, build_segment
from trimaran.user_code.batches import call_model, name_tensors


def spread(found: Capture, parts: int) -> tuple[str, ...]:
    """Boundaries at even distances among the legal cuts."""
    cuts = found.graph.split_points
    return tuple(cuts[len(cuts) * part // parts] for part in range(1, parts))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_cut_gives_the_same_step(name: str) -> None:
    job, found = captured(name)
    assert len(found.graph.split_points) >= 4
    for cut in found.graph.split_points[:: 4 if name == "gpt" else 1]:
        assert_equal_to_model(job, found, (cut,))


@pytest.mark.parametrize("parts", [3, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_several_segments_give_the_same_step(name: str, parts: int) -> None:
    job, found = captured(name)
    assert_equal_to_model(job, found, spread(found, parts), samples=6)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_parts_that_are_no_chain_give_the_same_step(name: str, seed: int) -> None:
    """Drawn at random for three rows; to rounding, as gradients of several readers are added up in another order."""
    job, found = captured(name)
    ops = {op.id: op for op in found.graph.ops}
    parts = [[ops[op] for op in part.ops] for part in draw_parts(found.graph, 3, seed)]
    segments = [build_part(found, parts, number) for number in range(len(parts))]
    assert_equal_to_model(job, found, (), tolerance=1e-6, segments=segments)


@pytest.mark.parametrize(
    "model",
    [Codes, FunctionalDropout, FrozenNorm, InPlace, LeakyLeaf, RecurrentLoop, Regions, SharedNorm, SizesOfBatch],
    ids=lambda model: model.__name__,
)
def test_every_cut_of_odd_models_gives_the_same_step(model: Callable[[], nn.Module]) -> None:
    """To the last bit, but where sums over the uses of a layer or over the batch have another order."""
    job = make_job(model)
    found = capture(job)
    assert found.graph.split_points, found.graph.notes
    tolerance = 1e-6 if model in (RecurrentLoop, SizesOfBatch) else 0.0
    for boundaries in [*((cut,) for cut in found.graph.split_points), found.graph.split_points]:
        assert_equal_to_model(job, found, boundaries, tolerance=tolerance)


def test_several_inputs_go_to_the_segments_that_read_them() -> None:
    data = [((torch.randn(6), torch.randn(3)), torch.randn(4)) for _ in range(8)]
    job = make_job(TwoInputs, dataset=lambda: data)
    found = capture(job)
    first, second = build_chain(found, ("tanh",))
    assert (first.inputs, first.reads, first.writes) == (("input.0",), (), ("tanh",))
    assert (second.inputs, second.reads, second.writes) == (("input.1",), ("tanh",), ())
    assert_equal_to_model(job, found, ("tanh",))


def test_dict_batches_work() -> None:
    data = [{"x": torch.randn(6), "y": torch.randn(4)} for _ in range(8)]
    loss = lambda output, batch: functional.mse_loss(output, batch["y"])  # noqa: E731
    job = make_job(ReadsDict, dataset=lambda: data, loss=loss)
    assert_equal_to_model(job, capture(job), ("relu",))


def test_output_of_an_early_segment_reaches_the_last() -> None:
    loss = lambda output, target: functional.mse_loss(output["parts"][0], target) + output["early"].mean()  # noqa: E731
    job = make_job(NestedOutput, loss=loss)
    found = capture(job)
    assert build_segment(found, ("relu",), 1).reads == ("first", "relu")
    assert_equal_to_model(job, found, ("relu",))


@pytest.mark.parametrize("samples", [1, 4, 9])
@pytest.mark.parametrize("name", NETWORKS)
def test_evaluation_with_any_batch_size(name: str, samples: int) -> None:
    job, found = captured(name)
    batch = make_batch(job, samples)
    segments = build_chain(found, spread(found, 3))
    for segment in segments:
        segment.eval()
    twin = copy.deepcopy(found.model).eval()
    with torch.no_grad():
        assert torch.equal(evaluate_chain(segments, batch), call_model(job, twin, batch))


@pytest.mark.parametrize("name", NETWORKS)
def test_state_has_the_names_and_objects_of_the_model(name: str) -> None:
    _, found = captured(name)
    whole = found.model.state_dict(keep_vars=True)
    segments = build_chain(found, spread(found, 3))
    parts: dict[str, torch.Tensor] = {}
    for segment in segments:
        for key, tensor in segment.state_dict(keep_vars=True).items():
            assert tensor is whole[key]
            parts[key] = tensor
        assert {key for key, _ in segment.named_parameters()} <= set(whole)
    assert set(parts) == set(whole)


def test_state_leaves_out_buffers_that_the_model_leaves_out() -> None:
    found = capture(make_job(Regions))
    states = [set(segment.state_dict()) for segment in build_chain(found, ("tanh",))]
    assert states == [{"first.weight", "first.bias", "count"}, {"last.weight", "last.bias"}]


def test_segment_loads_its_part_of_a_state() -> None:
    job = make_job(Layers)
    found, other = capture(job), Layers()
    first, second = build_chain(found, ("relu",))
    first.load_state_dict({key: value for key, value in other.state_dict().items() if key.startswith("first")})
    second.load_state_dict({key: value for key, value in other.state_dict().items() if key.startswith("last")})
    torch.testing.assert_close(found.model.state_dict(), other.state_dict(), rtol=0.0, atol=0.0)


def test_tied_weight_is_one_object_in_both_segments() -> None:
    _, found = captured("gpt")
    first, last = build_chain(found, spread(found, 2))
    assert first.state_dict(keep_vars=True)["token.weight"] is last.state_dict(keep_vars=True)["head.weight"]


def test_leaves_are_the_modules_of_the_user() -> None:
    _, found = captured("cnn")
    first = build_segment(found, spread(found, 2), 0)
    assert dict(first.named_modules())["stem.conv"] is found.model.stem.conv


def test_compiled_segments_give_the_same_step() -> None:
    """In one piece and without a break; to rounding, as compiled code may fuse."""
    job, found = captured("cnn")
    batch = make_batch(job, 6)
    twin = copy.deepcopy(found.model).train()
    expected = train_whole(job, twin, batch)
    before = copy.deepcopy(found.model.state_dict())
    segments = build_chain(found, spread(found, 2))
    for segment in segments:
        segment.compile(backend="aot_eager", fullgraph=True)
        segment.train()
    loss = train_chain(job, segments, found.model, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(found.model), gradients(twin), rtol=1e-4, atol=1e-5)
    for segment in segments:
        segment.eval()
    smaller = make_batch(job, 3)
    found.model.zero_grad()
    found.model.load_state_dict(before)
    with torch.no_grad():
        expected = call_model(job, found.model, smaller)
    torch.testing.assert_close(evaluate_chain(segments, smaller), expected, rtol=1e-4, atol=1e-5)


def test_parts_may_be_named_like_attributes_of_a_segment() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs = nn.Linear(6, 6)
            self.body = nn.Linear(6, 6)
            self.reads = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.reads(self.body(self.inputs(x)))  # type: ignore[no-any-return]

    job = make_job(Clash)
    found = capture(job)
    assert set(build_segment(found, ("inputs",), 1).state_dict()) == {
        "body.weight",
        "body.bias",
        "reads.weight",
        "reads.bias",
    }
    assert_equal_to_model(job, found, ("inputs",))


def test_input_of_another_length_is_refused() -> None:
    _, found = captured("gpt")
    segment = build_segment(found, (), 0)
    batch = (torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long))
    with raises("segment.wrong-shape", match='"input".*2, 9'):
        segment(name_tensors(batch), 2)


def test_missing_tensor_is_named() -> None:
    _, found = captured("cnn")
    with raises("segment.missing-input", match=r'"stem\.relu"'):
        build_segment(found, ("stem.relu",), 1)({"input": torch.zeros(2, 1, 16, 16)}, 2)


@pytest.mark.parametrize(
    ("boundaries", "index"),
    [(("stem.norm",), 0), (("mix.relu", "stem.relu"), 0), (("mix.relu", "mix.relu"), 0), (("nowhere",), 0)],
)
def test_boundaries_that_are_no_cuts_are_refused(boundaries: tuple[str, ...], index: int) -> None:
    _, found = captured("cnn")
    with raises("segment.bad-boundaries"):
        build_segment(found, boundaries, index)


def test_segment_that_is_not_there_is_refused() -> None:
    _, found = captured("cnn")
    with raises("segment.no-such-segment", index=2):
        build_segment(found, ("mix.relu",), 2)
