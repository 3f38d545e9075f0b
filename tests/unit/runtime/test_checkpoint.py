"""Files of weights."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tests import zoo
from tests.raising import raises
from tests.weights import read_weights
from torch import nn

from trimaran.base.errors import CorruptDataError, ExecutionError
from trimaran.runtime.checkpoint.weights import write_weights


def save(model: nn.Module, path: Path) -> None:
    write_weights(model.state_dict(), path)


def test_a_file_has_every_name_of_the_state_dict(tmp_path: Path) -> None:
    """Tied names each, buffers too."""
    for model in (zoo.Gpt(), zoo.Cnn()):
        save(model, tmp_path / "folder" / "model.safetensors")
        stored = load_file(tmp_path / "folder" / "model.safetensors")
        expected = model.state_dict()
        assert stored.keys() == expected.keys()
        assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model.safetensors"]


def test_weights_come_back_into_another_model(tmp_path: Path) -> None:
    first, second = zoo.Gpt(), zoo.Gpt()
    save(first, tmp_path / "model.safetensors")
    read_weights(second, tmp_path / "model.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert second.head.weight is second.token.weight


def test_weights_have_the_mode_of_every_other_file(tmp_path: Path) -> None:
    """Nobody else could read them. They go where a link leads, too."""
    (tmp_path / "link").symlink_to("model.safetensors")
    save(zoo.Cnn(), tmp_path / "link")
    (tmp_path / "other").touch()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_missing_and_unexpected_names_are_listed_and_nothing_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(1, 1), "surplus": torch.zeros(1)}, path)
    model = nn.Linear(1, 1)
    before = model.weight.item()
    with raises("weights.other-model") as caught:
        read_weights(model, path)
    assert (caught.value.figures["missing"], caught.value.figures["unexpected"]) == (("bias",), ("surplus",))
    assert model.weight.item() == before


def test_other_shapes_are_listed(tmp_path: Path) -> None:
    save(nn.Linear(3, 1), tmp_path / "model.safetensors")
    with raises("weights.other-shapes", match="1, 3.*1, 2"):
        read_weights(nn.Linear(2, 1), tmp_path / "model.safetensors")


def test_a_damaged_file_is_told_from_a_wrong_one(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(nn.Linear(50, 50), path)
    path.write_bytes(path.read_bytes()[:-100])
    with raises("tensors.damaged", CorruptDataError):
        read_weights(nn.Linear(50, 50), path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises("weights.missing-file"):
        read_weights(nn.Linear(1, 1), tmp_path / "model.safetensors")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("in the way")
    with raises("weights.unwritable", ExecutionError):
        save(nn.Linear(1, 1), tmp_path / "folder" / "model.safetensors")
    (tmp_path / "target").mkdir()
    with raises("weights.unwritable", ExecutionError):
        save(nn.Linear(1, 1), tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "target"]


def test_a_dtype_without_a_name_in_the_format_is_told(tmp_path: Path) -> None:
    with raises("tensors.cannot-be-written", match="complex128.*view_as_real"):
        write_weights({"weight": torch.ones(2, dtype=torch.complex128)}, tmp_path / "model.safetensors")
