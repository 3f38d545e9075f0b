"""A Hugging Face configuration as a job. Only the file is read."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.raising import raises
from torch.utils.data import default_collate

import trimaran
from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError
from trimaran.features.check import check_job
from trimaran.jobs.huggingface import traced_notes
from trimaran.jobs.resolve import JobSource, check_room, resolve
from trimaran.planning.estimated import Estimated
from trimaran.planning.plan import find_backend
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.analytical.huggingface_config import shape_of_configuration
from trimaran.user_code.batches import call_model, compute_loss

pytest.importorskip("transformers")

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
GPT2 = {"model_type": "gpt2", "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}
LLAMA = {"model_type": "llama", "max_position_embeddings": 16, "num_key_value_heads": 2, **SMALL}
BERT = {"model_type": "bert", "max_position_embeddings": 16, **SMALL}
ROBERTA = {"model_type": "roberta", "max_position_embeddings": 18, **SMALL}
VIT = {"model_type": "vit", "image_size": 16, "patch_size": 4, **SMALL}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
    "layer_type": "basic",
}
T5 = {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64}

CASES: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "gpt2": (GPT2 | {"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel", ["input_ids", "labels"]),
    "llama": (LLAMA, "LlamaForCausalLM", ["input_ids", "labels"]),
    "bert": (BERT, "BertForMaskedLM", ["input_ids", "labels"]),
    "bert without a head": (BERT | {"architectures": ["BertModel"]}, "BertForMaskedLM", ["input_ids", "labels"]),
    "bert with labels": (
        BERT | {"architectures": ["BertForSequenceClassification"]},
        "BertForSequenceClassification",
        ["input_ids", "labels"],
    ),
    "bert with a label a token": (
        BERT | {"architectures": ["BertForTokenClassification"]},
        "BertForTokenClassification",
        ["input_ids", "labels"],
    ),
    "roberta": (ROBERTA | {"architectures": ["RobertaForMaskedLM"]}, "RobertaForMaskedLM", ["input_ids", "labels"]),
    "vit": (VIT, "ViTForImageClassification", ["pixel_values", "labels"]),
    "resnet": (RESNET, "ResNetForImageClassification", ["pixel_values", "labels"]),
    "t5": (T5 | {"decoder_start_token_id": 0}, "T5ForConditionalGeneration", ["input_ids", "labels"]),
}


def written(folder: Path, values: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_configuration_is_trained(name: str, tmp_path: Path) -> None:
    values, kind, fields = CASES[name]
    job = resolve(str(written(tmp_path, values)))
    model = job.model()
    assert type(model).__name__ == kind
    data = job.dataset()
    batch = default_collate([data[0], data[1]])
    assert list(batch) == fields
    total, _ = compute_loss(job, call_model(job, model, batch), batch)
    total.backward()
    assert total.isfinite()
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_a_configuration_without_room_for_its_weights_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = str(written(tmp_path, LLAMA))
    model = resolve(reference).model()
    needed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    monkeypatch.setattr("trimaran.machine.detect.free_memory_bytes", lambda: needed)
    check_room(resolve(reference), reference)
    monkeypatch.setattr("trimaran.machine.detect.free_memory_bytes", lambda: needed - 1)
    with raises("job.no-room", match=f"trimaran plan {re.escape(reference)} --cluster"):
        check_job(JobSource(reference=reference))


@pytest.mark.skipif(sys.platform != "linux", reason="the free memory is known on Linux only")
def test_a_configuration_that_no_model_can_be_made_of_is_told_as_such(tmp_path: Path) -> None:
    reference = str(written(tmp_path, LLAMA | {"hidden_act": "none"}))
    with raises("user.raised", match=r"Job\.model"):
        check_room(resolve(reference), reference)


@pytest.mark.parametrize("name", CASES)
def test_a_configuration_makes_no_weights_on_the_meta_device(name: str, tmp_path: Path) -> None:
    job = resolve(str(written(tmp_path, CASES[name][0])))
    with torch.device("meta"):
        model = job.model()
    assert all(parameter.is_meta for parameter in model.parameters())


def test_what_a_trace_assumes_and_an_activation_of_many_kernels_are_told(tmp_path: Path) -> None:
    """GELU by tanh is one kernel under one name and eight under another."""
    reference = str(written(tmp_path, GPT2))
    assumed, separate = traced_notes(reference)
    assert "16 tokens" in assumed
    assert '"activation_function": "gelu_pytorch_tanh"' in separate
    assert traced_notes(f"{reference}:sequence=16") == (separate,)
    plan = find_backend(JobSource(reference=reference), PlanRequest(cluster="h100", execution="eager"))
    assert isinstance(plan, Estimated)
    assert {assumed, separate} <= set(plan._notes)
    assert {assumed, separate} <= set(trimaran.predict_scaling(reference, cluster="h100", devices=1).notes)
    written(tmp_path, GPT2 | {"activation_function": "gelu_pytorch_tanh"})
    assert traced_notes(f"{reference}:sequence=16") == traced_notes("gpt2") == ()


def test_a_folder_and_a_file_with_the_prefix_are_references_too(tmp_path: Path) -> None:
    path = written(tmp_path, GPT2)
    assert resolve(f"hf:{tmp_path}").name == resolve(f"hf:{path}").name == "gpt2"


@pytest.mark.parametrize(("positions", "length"), [(16, 16), (514, 512), (131072, 4096)])
def test_a_window_is_as_long_as_the_model_allows_and_not_longer_than_4096(
    positions: int, length: int, tmp_path: Path
) -> None:
    path = written(tmp_path, BERT | {"max_position_embeddings": positions})
    assert resolve(str(path)).dataset()[0]["input_ids"].shape == (length,)


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_the_length_of_a_window_can_be_said(prefix: str, tmp_path: Path) -> None:
    job = resolve(f"{prefix}{written(tmp_path, GPT2)}:sequence=12")
    assert job.dataset()[0]["labels"].shape == (12,)


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bf16"), ("float32", "fp32")])
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_bfloat16_means_autocast_over_fp32_weights(key: str, dtype: str, precision: str, tmp_path: Path) -> None:
    job = resolve(str(written(tmp_path, LLAMA | {key: dtype})))
    assert job.precision == precision
    assert {parameter.dtype for parameter in job.model().parameters()} == {torch.float32}


def test_keys_and_values_are_not_kept_for_generation(tmp_path: Path) -> None:
    job = resolve(str(written(tmp_path, LLAMA)))
    batch = default_collate([job.dataset()[0]])
    assert job.model()(**batch).past_key_values is None


def test_a_model_can_be_made_twice(tmp_path: Path) -> None:
    job = resolve(str(written(tmp_path, GPT2)))
    torch.manual_seed(0)
    first = job.model().state_dict()
    torch.manual_seed(0)
    second = job.model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("values", "code", "figures"),
    [
        ([1, 2], "file.not-an-object", {"match": "config"}),
        ({"hidden_size": 3}, "configuration.no-model-type", {"match": '"model_type"'}),
        ({"model_type": "gpt-2"}, "configuration.unknown-model-type", {"model_type": "gpt-2"}),
        (LLAMA | {"hidden_size": 30}, "configuration.rejected", {"match": r"config\.json.*\b30\b"}),
        (
            BERT | {"architectures": ["BertForMultipleChoice"]},
            "configuration.unsupported-architecture",
            {"match": "BertForMultipleChoice"},
        ),
        ({"model_type": "wav2vec2"}, "configuration.unsupported-architecture", {"match": '"wav2vec2"'}),
    ],
)
def test_a_configuration_that_cannot_be_used_is_told_why(
    values: Any, code: str, figures: dict[str, Any], tmp_path: Path
) -> None:
    with raises(code, **figures):
        resolve(str(written(tmp_path, values)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", "many"),
        ("max_position_embeddings", 10**12),
        ("architectures", [1]),
        ("architectures", "LlamaForCausalLM"),
    ],
)
def test_a_figure_that_no_model_has_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA | {key: value})
    with pytest.raises(InputError, match=rf"config\.json.*{key}"):
        resolve(str(path))


def test_a_torn_file_is_told_where(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": ')
    with raises("file.not-json", CorruptDataError, match=r"config\.json.*\b1\b.*\b16\b"):
        resolve(str(path))


@pytest.mark.parametrize("reference", ["absent.json", "hf:gpt2", "absent.json:sequence=4"])
def test_a_missing_configuration_is_named(reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with raises("configuration.missing-file", match=r"(absent\.json|gpt2)"):
        resolve(reference)


@pytest.mark.parametrize("option", ["sequence=0", "sequence=x", "length=8", "8"])
def test_a_wrong_option_is_told_the_right_one(option: str, tmp_path: Path) -> None:
    with raises("configuration.bad-option", match="sequence=N"):
        resolve(f"{written(tmp_path, GPT2)}:{option}")


def test_a_window_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    with raises("configuration.window-too-long", sequence=17, positions=16):
        resolve(f"{written(tmp_path, GPT2)}:sequence=17")


@pytest.mark.parametrize("sequence", [None, 17, 4096])
def test_a_window_is_as_long_in_the_job_as_in_the_shape(sequence: int | None, tmp_path: Path) -> None:
    """Rotary positions are computed for any window; where none is asked for, both take the usual one."""
    for positions in (16, 24, 8192):
        values = LLAMA | {"max_position_embeddings": positions}
        job = resolve(f"{written(tmp_path, values)}{'' if sequence is None else f':sequence={sequence}'}")
        assert len(job.dataset()[0]["input_ids"]) == shape_of_configuration(values, sequence=sequence).shape.sequence


def test_tables_of_positions_bound_the_window_of_the_job_and_of_the_shape(tmp_path: Path) -> None:
    values = {"model_type": "gptj", "n_embd": 32, "n_head": 2, "n_layer": 1, "rotary_dim": 8, "n_positions": 16}
    with raises("configuration.window-too-long", sequence=17, positions=16):
        resolve(f"{written(tmp_path, values)}:sequence=17")
    with raises("shape.sequence-too-long", sequence=17, positions=16):
        shape_of_configuration(values, sequence=17)


def test_without_transformers_it_is_told_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, GPT2)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with raises("configuration.needs-transformers", EnvironmentProblem):
        resolve(str(path))
