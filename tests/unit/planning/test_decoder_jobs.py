"""Decoders by name and by configuration go to the analytical model, without a trace; what has no shape is refused."""

import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.job import Job
from trimaran.jobs.huggingface import configuration_of_job
from trimaran.jobs.resolve import JobSource, resolve
from trimaran.machine.catalog import find_device
from trimaran.planning.analytical import Analytical, decoder_of_job, shape_of
from trimaran.planning.answer.evidence import Modelled
from trimaran.planning.plan import find_backend, make_plan
from trimaran.planning.precision import ANALYTICAL_PRECISIONS, choose_precision
from trimaran.planning.requests import PlanRequest, parse_request
from trimaran.pricing.analytical.layers import parameter_count

FEW = PlanRequest(cluster="dgx-h100:1")
MANY = PlanRequest(cluster="dgx-h100:16")


def written(folder: Path, values: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads", "kv_heads", "ffn", "rows"),
    [
        # Runs of the field: networks as their tables have them.
        ("nemotron-4:340b", 96, 18432, 96, 8, 73728, 256000),
        ("nemotron-4:15b", 32, 6144, 48, 8, 24576, 256000),
        ("llama3:405b", 126, 16384, 128, 8, 53248, 128256),
        ("llama3:70b", 80, 8192, 64, 8, 28672, 128256),
        ("llama3:8b", 32, 4096, 32, 8, 14336, 128256),
        ("gpt3:175b", 96, 12288, 96, 96, 49152, 50257),
        ("grok-1", 64, 6144, 48, 8, 32768, 131072),
        ("llama2:7b", 32, 4096, 32, 32, 11008, 32000),
        ("llama2:34b", 48, 8192, 64, 8, 22016, 32000),
        ("llama2:70b", 80, 8192, 64, 8, 28672, 32000),
        ("gpt-neox:20b", 44, 6144, 64, 64, 24576, 50432),
        ("opt:175b", 96, 12288, 96, 96, 49152, 50272),
        ("gpt:1t", 128, 25600, 160, 160, 102400, 51200),
        ("gpt:145.6b", 80, 12288, 96, 96, 49152, 51200),
    ],
)
def test_networks_of_the_field_are_askable_by_name(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, rows: int
) -> None:
    found = decoder_of_job(name, MANY)
    assert found is not None
    shape = found.shape
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads) == (layers, hidden, heads, kv_heads)
    assert (shape.ffn, shape.vocabulary) == (ffn, rows)


@pytest.mark.parametrize("spelled", ["Qwen3-235B-A22B", "qwen3:235b", "qwen_3:235b-a22b", "QWEN3 235B A22B"])
def test_names_are_known_however_they_are_spelled(spelled: str) -> None:
    found = decoder_of_job(spelled, MANY)
    assert found is not None
    assert found.shape.layers == 94


def test_a_configuration_is_planned_without_a_trace(tmp_path: Path) -> None:
    reference = written(tmp_path, {"model_type": "mistral", "num_hidden_layers": 4, "hidden_size": 512})
    for asked in (reference, str(tmp_path), f"hf:{tmp_path}", f"{reference}:sequence=2048"):
        planned = make_plan(asked, PlanRequest(cluster="dgx-h100:1", batch=16))
        assert isinstance(planned.evidence, Modelled)
        sequence = planned.evidence.problem.shape.sequence
        assert sequence == (2048 if "=" in asked else 4096)
        assert any("4,096 tokens are assumed" in note for note in planned.notes) == ("=" not in asked)


@pytest.mark.alone
@pytest.mark.parametrize(
    "name",
    ["mistral:7b", "gemma2:9b", "phi-3:mini", "falcon:7b", "olmo2:13b", "stablelm:3b", "command-r", "gpt-oss:20b"],
)
def test_decoders_of_each_kind_are_planned_in_seconds_of_work(name: str) -> None:
    """Processor time; a windowed, a parallel and a four-norm block, shared heads, experts with sinks."""
    start_s = time.process_time()
    planned = make_plan(name, PlanRequest(cluster="dgx-h100:1", batch=64))
    assert isinstance(planned.evidence, Modelled)
    assert time.process_time() - start_s < 3.0
    assert 0.1 < planned.evidence.chosen.utilization < 0.8


def test_the_length_of_sequences_is_an_option(tmp_path: Path) -> None:
    request = parse_request(cluster="dgx-h100:1", sequence=8192)
    for asked in ("mixtral:8x7b", "llama3:8b", written(tmp_path, {"model_type": "llama"})):
        found = decoder_of_job(asked, request)
        assert found is not None
        assert found.shape.sequence == 8192
        assert found.assumed == ()


def test_the_length_of_sequences_is_refused_where_a_job_has_its_data() -> None:
    with raises("plan.option-needs-cluster"):
        parse_request(sequence=512)
    with raises("network.unknown-option"):
        make_plan("resnet50", parse_request(cluster="dgx-h100:1", sequence=512))


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "mamba2", "hidden_size": 8192, "num_hidden_layers": 64, "vocab_size": 128000},
        {"model_type": "t5", "d_model": 4096, "d_ff": 16384, "num_layers": 48, "is_encoder_decoder": True},
        {"model_type": "opt", "hidden_size": 8192, "num_hidden_layers": 48, "do_layer_norm_before": False},
    ],
    ids=["unknown type", "two stacks", "unknown norms"],
)
def test_large_networks_without_a_shape_are_refused_at_once(values: dict[str, Any], tmp_path: Path) -> None:
    start_s = time.process_time()
    with pytest.raises(Exception, match=r"shape|one stack") as caught:
        find_backend(JobSource(reference=written(tmp_path, values)), FEW)
    assert getattr(caught.value, "code", "").startswith("shape.")
    assert time.process_time() - start_s < 1.0


def test_small_networks_without_a_shape_are_traced(tmp_path: Path) -> None:
    assert shape_of(written(tmp_path, {"model_type": "resnet"}), FEW) is None
    with raises("shape.unknown-model-type"):
        shape_of(written(tmp_path, {"model_type": "resnet"}), MANY)


def test_small_decoders_are_simulated_where_only_a_program_answers(tmp_path: Path) -> None:
    reference = written(tmp_path, {"model_type": "gpt2"})
    assert shape_of(reference, FEW) is not None
    assert shape_of(reference, parse_request(cluster="dgx-h100:1", execution="eager")) is None
    # Experts cannot be traced, however few they are.
    experts = written(tmp_path, {"model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 64})
    assert shape_of(experts, parse_request(cluster="dgx-h100:1", execution="eager")) is not None


def test_an_unknown_size_is_told_which_there_are() -> None:
    with raises("job.unknown", match="8x7b, 8x22b"):
        resolve("mixtral:9x9b")


def test_experts_are_not_traced_for_memory() -> None:
    pytest.importorskip("transformers")
    from trimaran.planning.tracing.meta_trace import check_traceable

    with raises("decoder.not-traced", match="`trimaran plan`", parameters=46_702_792_704):
        check_traceable(resolve("mixtral:8x7b"))
    check_traceable(resolve("qwen2.5:0.5b"))


def test_a_job_made_of_a_configuration_alone_has_its_shape(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(num_hidden_layers=40)
    make = transformers.AutoModelForCausalLM.from_config
    job = resolve("digits")
    found = configuration_of_job(_with_model(job, functools.partial(make, config)))
    assert found is not None
    assert found["num_hidden_layers"] == 40
    assert configuration_of_job(_with_model(job, lambda: make(config))) is None
    file = tmp_path / "job.py"
    file.write_text(
        "import functools, dataclasses, transformers\n"
        "from trimaran.jobs.resolve import resolve\n"
        "def make():\n"
        "    config = transformers.LlamaConfig(num_hidden_layers=40)\n"
        "    model = functools.partial(transformers.AutoModelForCausalLM.from_config, config)\n"
        "    return dataclasses.replace(resolve('digits'), model=model)\n"
    )
    shape = shape_of(f"{file}:make", MANY)
    assert shape is not None
    assert shape.layers == 40


def _with_model(job: Job, model: Any) -> Job:
    import dataclasses

    return dataclasses.replace(job, model=model)


@pytest.mark.parametrize(
    ("dtype", "precision"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "bf16"), (None, "bf16")]
)
def test_types_of_16_bits_in_a_configuration_are_the_precision(
    dtype: str | None, precision: str, tmp_path: Path
) -> None:
    reference = written(tmp_path, {"model_type": "llama", "torch_dtype": dtype})
    device = find_device("h100")
    chosen = choose_precision(reference, None, device, ANALYTICAL_PRECISIONS, by_shape=True)
    assert chosen.name == precision
    assert ("assumed" in chosen.source) == (dtype in (None, "float32"))


def test_a_name_is_planned_by_the_shape_of_its_configuration() -> None:
    backend = find_backend(JobSource(reference="deepseek-v3"), PlanRequest(cluster="dgx-h100:64", batch=1024))
    assert isinstance(backend, Analytical)
    assert parameter_count(backend.shape) == 671_026_404_352


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", ["h100", "v100"])
def test_a_configuration_has_one_precision_in_every_command(dtype: str | None, name: str, tmp_path: Path) -> None:
    """That of the analytical model: the type of 16 bits that it names and the device has, else the usual one."""
    values = {"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2}
    values |= {"intermediate_size": 32, "num_attention_heads": 2, "torch_dtype": dtype}
    device, reference = find_device(name), written(tmp_path, values)
    modelled = choose_precision(reference, None, device, ANALYTICAL_PRECISIONS, by_shape=True)
    assert choose_precision(reference, None, device) == modelled
    said = modelled.name == {"bfloat16": "bf16", "float16": "fp16"}.get(dtype or "")
    assert ("usual for decoders" in modelled.source) is not said
    encoder = choose_precision(written(tmp_path, values | {"model_type": "bert", "torch_dtype": None}), None, device)
    assert "usual for encoders" in encoder.source
