"""Shapes from Hugging Face configurations: as many parameters as the models of transformers, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.networks.published_decoders import DECODER_FAMILIES, find_published
from trimaran.pricing.analytical.huggingface_config import FAMILIES, rough_count, shape_of_configuration
from trimaran.pricing.analytical.layers import active_count, parameter_count, prediction_count
from trimaran.pricing.analytical.shapes import vocabulary_rows

OF_TRANSFORMERS = [kind for kind in FAMILIES if kind != "grok-1"]

PUBLISHED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "published_configurations.json").read_text())
"""Figures of published `config.json` files, as they were written, without what says nothing of the shape."""


def counted_by_transformers(values: dict[str, Any]) -> int:
    """Parameters of the model that transformers builds on the meta device."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(dict(values))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def counted(values: dict[str, Any], sequence: int | None = None) -> int:
    return parameter_count(shape_of_configuration(values, sequence=sequence).shape)


BY_DEFAULT = [kind for kind in OF_TRANSFORMERS if kind not in ("nemotron", "hunyuan_v1_dense")]
"""Those whose defaults alone transformers can build."""


@pytest.mark.parametrize("kind", BY_DEFAULT)
def test_defaults_of_a_model_type_are_those_of_transformers(kind: str) -> None:
    """A file that says its type only, and one that says everything, are the same network."""
    transformers = pytest.importorskip("transformers")
    written = json.loads(transformers.CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    assert counted(written) == counted({"model_type": kind}) == counted_by_transformers(written)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_have_as_many_parameters_as_their_models(name: str) -> None:
    assert counted(PUBLISHED[name]) == counted_by_transformers(PUBLISHED[name])


SMALL = st.integers(1, 4)


@st.composite
def drawn(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """A small network of a model type with its switches drawn."""
    kv, groups, size = draw(SMALL), draw(SMALL), 8 * draw(SMALL)
    heads, layers = kv * groups, draw(st.integers(1, 6))
    family = FAMILIES[kind]
    values: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": heads * size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": draw(st.integers(20, 300)),
        "max_position_embeddings": 32,
        "tie_word_embeddings": kind in ("bert", "roberta") or draw(st.booleans()),
        "pad_token_id": 0,
    }
    if kind not in ("mpt", "bloom"):
        values["intermediate_size"] = 16 * draw(SMALL)
    if kind not in ("gpt2", "gptj", "gpt_neox", "gpt_neo", "gpt_bigcode", "opt", "mpt", "bloom", "bert", "roberta"):
        values["num_key_value_heads"] = kv
    if kind in ("helium", "hunyuan_v1_dense"):
        values["head_dim"] = size
    if kind == "gpt_neo":
        values["attention_types"] = [[["local"], 1], [["global"], layers - 1]]
    for switch in (
        *("attention_bias", "mlp_bias", "use_parallel_residual", "use_qkv_bias", "qkv_bias", "enable_bias"),
        *("use_qk_norm", "qk_layernorm", "bias", "parallel_attn", "new_decoder_architecture", "use_bias"),
        *("attention_out_bias", "multi_query"),
    ):
        if switch in family.defaults and switch not in family.needs and (switch, kind) != ("multi_query", "falcon"):
            values[switch] = draw(st.booleans())
    if family.experts:
        values["num_experts"] = draw(st.integers(2, 6))
        values["num_experts_per_tok"] = draw(st.integers(1, 2))
        if family.defaults["moe_intermediate_size"] is not None:
            values["moe_intermediate_size"] = 8 * draw(SMALL)
    for name, most in (
        *(("first_k_dense_replace", layers), ("n_shared_experts", 3), ("decoder_sparse_step", 3)),
        *(("moe_num_shared_experts", 3), ("moe_layer_start_index", layers), ("moe_layer_interval", 3)),
        *(("interleave_moe_layer_step", 3), ("q_lora_rank", 24), ("kv_lora_rank", 24), ("qk_rope_head_dim", 3)),
    ):
        if name in family.defaults and (name != "decoder_sparse_step" or kind.startswith("qwen")):
            values[name] = draw(st.integers(1, most)) * (2 if name == "qk_rope_head_dim" else 1)
    return {_spelled(kind, name): value for name, value in values.items()}


def _spelled(kind: str, name: str) -> str:
    """A figure's name in files of a model type."""
    names = FAMILIES[kind].names.get(name, (name,))
    return name if name in FAMILIES[kind].defaults and kind not in _OTHER_NAMES else names[0]


_OTHER_NAMES = frozenset(
    {
        "gpt2",
        "gptj",
        "gpt_neo",
        "gpt_bigcode",
        "opt",
        "bloom",
        "mpt",
        "falcon",
        "mixtral",
        "granitemoe",
        "minimax_m2",
        "ernie4_5_moe",
        "phimoe",
        "gpt_oss",
        "llama4_text",
        "glm4_moe",
        "deepseek_v3",
    }
)


@pytest.mark.parametrize("kind", OF_TRANSFORMERS)
def test_drawn_networks_have_as_many_parameters_as_their_models(kind: str) -> None:
    @given(drawn(kind))
    @settings(max_examples=8, deadline=None, derandomize=True)
    def check(values: dict[str, Any]) -> None:
        assert counted(values) == counted_by_transformers(values)

    check()


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("deepseek-v3", 671.0, 37.6),  # DeepSeek-V3's report: 671 and 37, the embedding not counted
        ("mixtral:8x7b", 46.7, 12.9),
        ("qwen3:235b-a22b", 235.1, 22.2),
        ("qwen3:next-80b-a3b", 79.7, 3.9),  # its card: 80 and 3, the embedding not counted
        ("gpt-oss:120b", 116.8, 5.7),
        ("nemotron-4:340b", 341.0, 341.0),
        ("grok-1", 315.7, 83.8),
        ("falcon:180b", 178.6, 178.6),
        ("gemma2:27b", 27.2, 27.2),
        ("phi-3:mini", 3.8, 3.8),
        ("llama3.1:405b", 405.9, 405.9),
        ("olmo2:13b", 13.7, 13.7),
        ("gpt-neox:20b", 20.6, 20.6),
    ],
)
def test_names_mean_networks_of_published_sizes(name: str, billions: float, active: float) -> None:
    published = find_published(name)
    assert published is not None
    shape = shape_of_configuration(published.values, sequence=published.sequence).shape
    assert parameter_count(shape) / 1e9 == pytest.approx(billions, abs=0.06)
    assert active_count(shape) / 1e9 == pytest.approx(active, abs=0.06)


def test_all_names_have_a_shape() -> None:
    for family, found in DECODER_FAMILIES.items():
        for size in found.sizes:
            published = find_published(f"{family}:{size}")
            assert published is not None
            assert shape_of_configuration(published.values, sequence=published.sequence).shape.layers > 1


def test_prediction_modules_are_counted_apart() -> None:
    """One layer of 256 experts of DeepSeek-V3, a projection 2 · 7168² and three norms."""
    shape = shape_of_configuration({"model_type": "deepseek_v3"}).shape
    assert shape.prediction_layers == 1
    attention = 7168 * 1536 + 1536 * (128 * 192 + 1) + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 257 * 3 * 7168 * 2048 + 256 * 7168
    assert prediction_count(shape) == attention + experts + 2 * 7168 + 2 * 7168**2 + 3 * 7168


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({"model_type": "mistral"}, (4096,)),
        ({"model_type": "mistral", "sliding_window": None}, ()),
        ({"model_type": "gemma2"}, (4096, 0)),
        ({"model_type": "gpt_neo"}, (0, 256)),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLLG"}, (4096, 4096, 4096, 0)),
        ({"model_type": "gemma3_text", "sliding_window": 1024}, (1024, 1024, 1024, 1024, 1024, 0)),
        ({"model_type": "gpt_oss"}, (128, 0)),
        ({"model_type": "cohere2"}, (4096, 4096, 4096, 0)),
        ({"model_type": "llama4_text"}, (8192, 8192, 8192, 0)),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 4, "max_window_layers": 3},
            (0, 0, 0, 4096),
        ),
        ({"model_type": "qwen2"}, ()),
        (
            {
                "model_type": "gemma2",
                "num_hidden_layers": 3,
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            },
            (0, 4096, 4096),
        ),
    ],
)
def test_windows_of_attention_follow_the_type_or_the_file(values: dict[str, Any], windows: tuple[int, ...]) -> None:
    found = shape_of_configuration(values).shape.windows
    assert found == windows


def test_models_for_text_and_images_are_planned_without_their_tower_and_say_so() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 256, "head_dim": 32, "num_hidden_layers": 2}
    whole = shape_of_configuration({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 9}})
    assert whole.shape == shape_of_configuration(text).shape
    assert "vision tower is left out" in whole.assumed[0]


def test_models_for_text_and_images_without_a_row_say_which_part_of_them_has_one() -> None:
    with raises("shape.unknown-model-type", match="text_config is a part"):
        shape_of_configuration({"model_type": "llava", "text_config": {"model_type": "llama"}})


def test_roberta_keeps_two_positions() -> None:
    """RoBERTa's published 514 positions are 512 tokens, and its table has 514 rows."""
    shape = shape_of_configuration({"model_type": "roberta", "max_position_embeddings": 514}, sequence=512).shape
    assert shape.positions == 514
    with raises("shape.sequence-too-long"):
        shape_of_configuration({"model_type": "roberta", "max_position_embeddings": 514}, sequence=513)


def test_the_assumed_sequence_is_said() -> None:
    found = shape_of_configuration({"model_type": "llama", "max_position_embeddings": 131072})
    assert found.shape.sequence == 4096
    assert "4,096 tokens are assumed" in found.assumed[0]
    assert shape_of_configuration({"model_type": "llama"}, sequence=8192).assumed == ()


def test_vocabularies_are_padded_on_ranks_and_not_in_counts() -> None:
    shape = shape_of_configuration({"model_type": "gpt2"}).shape
    assert parameter_count(shape) == 124_439_808
    assert vocabulary_rows(shape) == 50304


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"model_type": "mamba2"}, "shape.unknown-model-type"),
        (
            {
                "model_type": "qwen3_next",
                "num_hidden_layers": 4,
                "layer_types": ["full_attention", "linear_attention"] * 2,
            },
            "shape.unknown-figure",
        ),
        ({"model_type": "t5", "is_encoder_decoder": True}, "shape.two-stacks"),
        ({"model_type": "llama", "hidden_act": "snake"}, "shape.unknown-activation"),
        (
            {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
            "shape.no-language-head",
        ),
        ({"model_type": "gemma2", "layer_types": ["linear_attention"] * 26}, "shape.unknown-attention"),
        (
            {"model_type": "gemma2", "layer_types": ["full_attention", "sliding_attention"]},
            "shape.unknown-figure",
        ),
        ({"model_type": "opt", "do_layer_norm_before": False}, "shape.unknown-figure"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "shape.unknown-figure"),
        ({"model_type": "bert", "is_decoder": True}, "shape.unknown-figure"),
        ({"model_type": "qwen2_moe", "mlp_only_layers": [3, 7]}, "shape.unknown-figure"),
        ({"model_type": "ernie4_5_moe", "moe_layer_end_index": 9}, "shape.unknown-figure"),
        ({"model_type": "gpt_neo", "attention_types": ["global"]}, "shape.unknown-figure"),
        ({"model_type": "smollm3", "use_sliding_window": True}, "shape.unknown-figure"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "shape.bad-figure"),
        ({"model_type": "llama", "hidden_size": "wide"}, "shape.bad-figure"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "shape.unknown-figure"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "shape.bad-figure"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_no_shape_is_known_for_is_refused_with_what_is_missing(values: dict[str, Any], code: str) -> None:
    with raises(code):
        shape_of_configuration(values)


def test_learned_positions_bound_the_sequence() -> None:
    with raises("shape.sequence-too-long"):
        shape_of_configuration({"model_type": "gpt2"}, sequence=2048)
    assert shape_of_configuration({"model_type": "llama"}, sequence=65536).shape.sequence == 65536


def test_rough_counts_are_near_exact_ones() -> None:
    for kind in OF_TRANSFORMERS:
        exact = counted({"model_type": kind})
        if "moe_intermediate_size" not in FAMILIES[kind].defaults and exact > 1e8:
            values = {**FAMILIES[kind].defaults, "model_type": kind}
            assert rough_count(values) == pytest.approx(exact, rel=0.6), kind
