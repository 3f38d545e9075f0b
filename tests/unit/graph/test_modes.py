"""One graph for train and eval mode."""

import torch
from tests.raising import raises
from tests.unit.graph.chain import assert_equal_to_model, build_chain, evaluate_chain, make_batch
from tests.unit.graph.networks import AuxiliaryHead, FrozenNorm, FunctionalDropout, make_job
from torch import nn

from trimaran.graph.capture.capture import capture
from trimaran.graph.capture.segments import build_segment


def test_functional_dropout_follows_the_mode() -> None:
    job = make_job(FunctionalDropout)
    found = capture(job)
    batch = make_batch(job, 8)
    segments = build_chain(found, ("first",))
    segments[0].train()
    drawn = [evaluate_chain(segments, batch) for _ in range(2)]
    assert not torch.equal(*drawn)
    segments[0].eval()
    drawn = [evaluate_chain(segments, batch) for _ in range(2)]
    assert torch.equal(*drawn)


def test_mode_is_that_of_the_users_module() -> None:
    """The user keeps one block in eval mode even in training: its functional dropout stays off."""
    job = make_job(FrozenNorm)
    found = capture(job)
    batch = make_batch(job, 8)
    segments = build_chain(found, ("norm",))
    for segment in segments:
        segment.train()
    assert found.model.training
    assert torch.equal(evaluate_chain(segments, batch), evaluate_chain(segments, batch))


def test_attention_dropout_follows_the_mode() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.view(-1, 1, 3, 2)
            dropout = 0.4 if self.training else 0.0
            y = nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=dropout)
            return self.project(y.reshape(-1, 6))  # type: ignore[no-any-return]

    job = make_job(Attention)
    found = capture(job)
    assert found.graph.notes == ()
    segment = build_segment(found, (), 0)
    batch = make_batch(job, 8)
    segment.eval()
    assert torch.equal(evaluate_chain([segment], batch), found.model(batch[0]))
    segment.train()
    assert not torch.equal(evaluate_chain([segment], batch), evaluate_chain([segment], batch))


def test_transformer_encoder_layers_are_whole() -> None:
    layer = lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)  # noqa: E731
    model = lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), layer(), layer(), nn.Flatten(), nn.Linear(6, 4))  # noqa: E731
    job = make_job(model)
    found = capture(job)
    assert [op.id for op in found.graph.ops] == ["0", "1", "2", "3", "4", "loss"]
    assert_equal_to_model(job, found, ("1",))


def test_other_operations_in_training_forbid_cuts() -> None:
    found = capture(make_job(AuxiliaryHead))
    assert found.graph.split_points == ()
    assert "auxiliary" in [op.id for op in found.graph.ops]
    (note,) = found.graph.notes
    assert note.startswith("no pipeline: the forward does other things in training than in evaluation (auxiliary")
    with raises("segment.bad-boundaries"):
        build_segment(found, ("relu",), 0)
