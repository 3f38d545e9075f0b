"""Models that cannot be exported become one operation, and the graph says what that costs."""

import pytest
import torch
from tests.raising import raises
from tests.unit.graph.networks import BranchesOnData, Layers, OwnOutput, make_job
from torch import nn
from torch.nn import functional

from trimaran.graph.capture.capture import capture, capture_and_look
from trimaran.graph.capture.segments import build_segment
from trimaran.program.refusals import objection
from trimaran.program.strategy import Strategy


def test_branch_on_data_falls_back_with_a_note() -> None:
    found = capture(make_job(BranchesOnData))
    assert found.flow is None
    assert [op.id for op in found.graph.ops] == ["model", "loss"]
    (note,) = found.graph.notes
    assert "no pipeline, no operator placement, and costs only of the whole model" in note
    assert "data-dependent" in note
    assert found.graph.split_points == ()


def test_whole_model_has_its_figures() -> None:
    """Linear 6→6 and 6→4: 2 * (36 + 24) FLOP a sample; the input wants no gradient: 2 * (36 + 48) for the backward."""
    graph = capture(make_job(BranchesOnData)).graph
    model, loss = graph.ops
    assert model.flops.per_sample == 2 * (36 + 24)
    assert model.backward_flops.per_sample == 2 * (36 + 48)
    assert model.parameters == ("first.weight", "first.bias", "last.weight", "last.bias")
    assert (model.inputs, loss.inputs) == (("input",), ("model:0", "target"))
    assert model.outputs[0].shape == ("B", 4)
    assert graph.storages["model/0"].per_sample > 0


def test_prints_of_the_exporter_stay_silent(capfd: pytest.CaptureFixture[str]) -> None:
    capture(make_job(BranchesOnData))
    assert capfd.readouterr() == ("", "")


def test_unknown_output_falls_back() -> None:
    found = capture(make_job(OwnOutput, loss=lambda output, target: functional.mse_loss(output.output, target)))
    assert found.flow is None
    assert "it returns a Heads" in found.graph.notes[0]


def test_fixed_batch_size_falls_back() -> None:
    class Fixed(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x)) * (1.0 if x.shape[0] == 3 else 2.0)  # type: ignore[no-any-return]

    found = capture(make_job(Fixed))
    assert found.flow is None


def test_a_sparse_gradient_is_refused_with_what_to_do() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(9, 4, sparse=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.rows((x.abs() * 4).long().clamp(max=8)).mean(dim=1)
            return found

    with raises("capture.sparse-tensor", match="9, 4.*sparse=False", layout="sparse_coo"):
        capture(make_job(Rows))


def test_a_sparse_buffer_is_refused_by_its_name() -> None:
    def make() -> nn.Module:
        model = nn.Linear(3, 2)
        model.register_buffer("edges", torch.eye(3).to_sparse())
        return model

    with raises("model.sparse", match="edges of the model is sparse.*index_add", name="edges"):
        capture(make_job(make))


def test_wrong_export_is_found_out() -> None:
    """The model behaves otherwise when it is traced: the comparison with the real one notices."""

    class Traced(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.last(self.first(x))
            return y * 3 if torch.compiler.is_exporting() else y  # type: ignore[no-any-return]

    found = capture(make_job(Traced))
    assert found.flow is None
    assert "its results differ from the model's in train mode" in found.graph.notes[0]


def test_name_that_torch_keeps_for_itself_falls_back() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.graph(x)  # type: ignore[no-any-return]

    assert 'a part named "graph"' in capture(make_job(Named)).graph.notes[0]


def test_loss_that_needs_data_is_run_on_data() -> None:
    """A loss over the samples that a mask selects cannot be seen without data; the model can still be cut."""
    found = capture(make_job(Layers, loss=lambda output, target: ((output - target) ** 2)[target > 0].mean()))
    assert found.graph.split_points == ("first", "relu")
    assert found.graph.ops[-1].inputs == ("last", "target")
    assert found.graph.ops[-1].bytes_moved.at(3) > 0


def test_no_segments_without_a_flow() -> None:
    with raises("segment.cannot-split"):
        build_segment(capture(make_job(BranchesOnData)), (), 0)


def in_dict(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return dict(zip(("x", "y"), map(torch.stack, zip(*samples, strict=True)), strict=True))


class PutsFeatures(Layers):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        batch["h"] = self.first(batch["x"]).tanh()
        return self.last(batch["h"])  # type: ignore[no-any-return]


class ReplacesTarget(Layers):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        batch["y"] = functional.one_hot(batch["y"].argmax(1), 4).float()
        return self.last(self.first(batch["x"]).tanh())  # type: ignore[no-any-return]


def with_features(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(output, batch["y"]) + batch["h"].square().mean()


def test_what_a_forward_puts_into_a_batch_is_there_for_the_loss() -> None:
    found = capture_and_look(make_job(PutsFeatures, loss=with_features, collate=in_dict)).graph
    assert 'its forward puts "h" into the batch' in found.notes[0]
    assert found.behaviour is not None
    assert (found.behaviour.not_looked, found.behaviour.reduction) == ("", "mean")


def test_a_forward_that_replaces_an_entry_of_its_batch_gets_another_one_each_time() -> None:
    loss = make_job(ReplacesTarget, loss=lambda o, b: functional.mse_loss(o, b["y"]), collate=in_dict)
    seen = capture_and_look(loss).graph.behaviour
    assert seen is not None
    assert objection(seen, Strategy(dp=2)) is None
