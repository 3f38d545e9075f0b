"""The shape of a transformer from its Hugging Face configuration: one row a model type, nothing is built or traced.

A configuration is what a `config.json` says, or what a configuration object of transformers gives as a dictionary. A
row says how the figures of a model type are called and what they are where the file is silent (the defaults of
transformers), and which of the features of `TransformerShape` the type has. Families whose figures need arithmetic have
a function that brings them into the common names.

Refused, with what is missing: model types without a row, activations and kinds of attention that no row knows, stacks
of encoder and decoder, heads other than that of a language model. A vision tower of a model for text and images is left
out, and the answer says so. Training programs of Megatron pad the vocabulary to a multiple of 128; the count of
parameters is that of the network, without padding.

Counts of parameters equal those of the model that transformers builds on the meta device, which tests show for the
defaults of every type, published files and drawn networks. What changes the network and has no field in the shape is
refused. transformers is not imported for its defaults: that takes a second, and torch.

Source:
    huggingface/transformers 5, src/transformers/models/*/configuration_*.py and modeling_*.py: names, defaults, and
    which linear layers have biases.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trimaran.base.errors import InputError, did_you_mean
from trimaran.networks.published_decoders import assumed_sequence_words, usual_sequence
from trimaran.pricing.analytical.shapes import (
    LAYER_BIASES,
    NO_BIASES,
    PADDING,
    Biased,
    Experts,
    LatentAttention,
    LinearAttention,
    TransformerShape,
)

Values = Mapping[str, Any]
"""Figures of a configuration by name."""

_ACTIVATIONS = (
    *("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "gelu_accurate"),
    *("quick_gelu", "relu", "relu2"),
)
_COMPOSED = ("gelu_new", "gelu_fast", "gelu_python", "gelu_accurate")
"""Written operation by operation (huggingface/transformers, activations.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """A transformer read from a configuration.

    Attributes:
        shape: of the network
        assumed: what the configuration does not say, or what of it is left out, one sentence each
    """

    shape: TransformerShape
    assumed: tuple[str, ...] = ()


Attended = Literal["none", "every", "late", "early", "period", "chunks"]
"""Which layers have a window of attention where the file has no `layer_types`:

    none     no layer
    every    all layers, where `sliding_window` is a number
    late     layers from `max_window_layers` on, where `use_sliding_window` (Qwen)
    early    every second layer before `max_window_layers`, where `use_sliding_window` (Qwen 2's mixtures)
    period   all but every n-th layer, n of `sliding_window_pattern` or of the row
    chunks   layers that rotate queries and keys attend inside chunks of `attention_chunk_size` (Llama 4)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Networks of one model type.

    Attributes:
        defaults: figures where a file is silent, by the common names; None: it follows from others
        names: other names of a figure in files, by the common name
        shape: fields of `TransformerShape` that all networks of the type have
        biases: linear layers that always have biases
        bias_keys: linear layers that have biases where a figure is true
        drops: names of the probabilities of dropout, of sub-layers and of attention's probabilities
        windows: which layers have a window
        period: of `windows`
        query_key_norm: kind of norm where `use_qk_norm` or `qk_layernorm` is true, or always where these are no figures
        parallel_norms: norms of a layer where `parallel` is true: attention and feed-forward network start together
        needs: figures that must have a value, as another one changes the network in ways that no shape says
        prepare: brings figures into the common names
        positions: of learned positions, that come before those of a sequence; None: positions are not learned
        is_bounded: a table that is not learned has a row for each position, so that no sequence is longer
    """

    defaults: Values
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shape: Values = field(default_factory=dict)
    biases: frozenset[Biased] = NO_BIASES
    bias_keys: Mapping[str, tuple[Biased, ...]] = field(default_factory=dict)
    drops: tuple[str, str] = ("", "")
    windows: Attended = "none"
    period: int = 0
    query_key_norm: Literal["head", "whole", "bare"] | None = None
    parallel_norms: int = 2
    needs: Values = field(default_factory=dict)
    prepare: Callable[[dict[str, Any]], None] | None = None
    positions: int | None = None
    is_bounded: bool = False

    @property
    def latent(self) -> bool:
        """Whether attention is latent."""
        return "kv_lora_rank" in self.defaults

    @property
    def experts(self) -> bool:
        """Whether there may be experts."""
        return "num_experts" in self.defaults


def _figures(
    hidden: int,
    ffn: int | None,
    layers: int,
    heads: int,
    kv_heads: int | None,
    vocabulary: int,
    positions: int,
    **more: Any,
) -> dict[str, Any]:
    """Defaults by the common names."""
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": None,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **more,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Figures that follow from others


def _complete(values: dict[str, Any]) -> None:
    """What files of all families leave to be followed.

    Feed-forward networks are four times as wide as the stream, and experts as wide as they; several shared experts are
    one wide one; all heads of queries share one of keys, or each has one.
    """
    if values["intermediate_size"] is None:
        values["intermediate_size"] = 4 * values["hidden_size"]
    if "num_experts" in values and values.get("moe_intermediate_size") is None:
        values["moe_intermediate_size"] = values["intermediate_size"]
    if "n_shared_experts" in values:
        values["shared_expert_intermediate_size"] = (values["n_shared_experts"] or 0) * values["moe_intermediate_size"]
    if "multi_query" in values and not values.get("new_decoder_architecture"):
        values["num_key_value_heads"] = 1 if values["multi_query"] else values["num_attention_heads"]


def _falcon(values: dict[str, Any]) -> None:
    """Falcon: one or two norms of a parallel block."""
    new, norms = values["new_decoder_architecture"], values["num_ln_in_parallel_attn"]
    values["parallel_norms"] = 2 if norms == 2 or (norms is None and new) else 1


def _glm_moe(values: dict[str, Any]) -> None:
    """GLM: heads may be narrower than their share of the stream."""
    if values["head_dim"] is None:
        values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]


def _llama4(values: dict[str, Any]) -> None:
    """Llama 4: `intermediate_size` is of experts, and every n-th layer has them."""
    values["moe_intermediate_size"] = values["shared_expert_intermediate_size"] = values["intermediate_size"]
    values["intermediate_size"] = values["intermediate_size_mlp"]
    step, layers = values["interleave_moe_layer_step"], values["num_hidden_layers"]
    said = values["moe_layers"]
    if said is not None and list(said) != list(range(step - 1, layers, step)):
        step = next((each for each in range(1, layers + 1) if list(said) == list(range(each - 1, layers, each))), 0)
        if not step:
            raise _unknown("moe_layers", said, "every n-th layer of the stack")
    values["decoder_sparse_step"] = step


def _ernie(values: dict[str, Any]) -> None:
    """ERNIE 4.5: all layers from one on have experts, every n-th of them."""
    if values["moe_layer_end_index"] not in (-1, values["num_hidden_layers"] - 1):
        raise _unknown("moe_layer_end_index", values["moe_layer_end_index"], "the last layer of the stack")


def _neo(values: dict[str, Any]) -> None:
    """GPT-Neo: kinds of attention by runs, such as [[["global", "local"], 12]]."""
    try:
        kinds = [kind for some, times in values["attention_types"] for kind in [*some] * times]
    except (TypeError, ValueError) as error:
        raise _unknown("attention_types", values["attention_types"], "runs of kinds") from error
    names = {"global": "full_attention", "local": "sliding_attention"}
    values["layer_types"] = [names.get(kind, kind) for kind in kinds]
    values["sliding_window"] = values["window_size"]


def _roberta(values: dict[str, Any]) -> None:
    """RoBERTa: BERT, whose first positions are kept for padding."""
    _bert(values)
    values["max_position_embeddings"] = _count(values, "max_position_embeddings", least=3) - _ROBERTA_KEPT


_ROBERTA_KEPT = 2
"""Positions up to that of padding, which is entry 1 of the vocabulary (modeling_roberta.py)."""


def _bert(values: dict[str, Any]) -> None:
    names = values.get("architectures") or ()
    values["head"] = "masked" if any(str(name).endswith("ForPreTraining") for name in names) else "masked_tokens"


def _four_times(values: dict[str, Any]) -> None:
    values["intermediate_size"] = 4 * values["hidden_size"]


def _mpt(values: dict[str, Any]) -> None:
    _four_times(values)
    attention = values.get("attn_config") or {}
    if not isinstance(attention, Mapping):
        raise _unknown("attn_config", attention, "figures by name")
    if attention.get("qk_ln") or attention.get("attn_type", "multihead_attention") != "multihead_attention":
        raise _unknown("attn_config", dict(attention), "multihead attention without norms of queries and keys")


# ---------------------------------------------------------------------------------------------------------------------
# The table

_RMS: Values = {"gated": True, "rotary": True, "centred_norm": False}
_SLIDING = {"sliding_window": None}
_GPT_NAMES = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
    "max_position_embeddings": ("n_positions",),
    "hidden_act": ("activation_function",),
}
_ATTENTION: Mapping[str, tuple[Biased, ...]] = {"attention_bias": ("qkv", "output")}
_BOTH: Mapping[str, tuple[Biased, ...]] = {**_ATTENTION, "mlp_bias": ("feed_forward",)}
_QWEN = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_SPARSE: dict[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": None}
_PLACES = ("first_k_dense_replace", *_SPARSE)
"""Figures that say which layers have experts; a type that has no such figure pays it no heed."""
_NEXT = {"num_nextn_predict_layers": ("num_mtp_layers",)}
_LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128}


def _experts(count: int, active: int, ffn: int | None = None, shared: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "num_experts": count,
        "num_experts_per_tok": active,
        "moe_intermediate_size": ffn,
        "shared_expert_intermediate_size": shared,
        **more,
    }


_ALL_LINEAR: tuple[Biased, ...] = ("qkv", "output", "feed_forward")
_LLAMA = _Family(
    defaults=_figures(4096, 11008, 32, 32, None, 32000, 2048, attention_bias=False, mlp_bias=False),
    shape=_RMS,
    bias_keys=_BOTH,
)

_BERT = _Family(
    defaults=_figures(768, 3072, 12, 12, None, 30522, 512, hidden_act="gelu", tie_word_embeddings=True)
    | {
        "type_vocab_size": 2,
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    }
    | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    names={"segments": ("type_vocab_size",)},
    biases=LAYER_BIASES,
    drops=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    needs={
        "tie_word_embeddings": True,
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    },
    prepare=_bert,
    positions=0,
)

FAMILIES: Mapping[str, _Family] = {
    "gpt2": _Family(
        defaults=_figures(
            768,
            None,
            12,
            12,
            None,
            50257,
            1024,
            hidden_act="gelu_new",
            tie_word_embeddings=True,
        )
        | {"resid_pdrop": 0.1, "attn_pdrop": 0.1, "add_cross_attention": False},
        names=_GPT_NAMES,
        biases=LAYER_BIASES,
        drops=("resid_pdrop", "attn_pdrop"),
        needs={"add_cross_attention": False},
        positions=0,
    ),
    "gptj": _Family(
        defaults=_figures(4096, None, 28, 16, None, 50400, 2048, hidden_act="gelu_new")
        | {"resid_pdrop": 0.0, "attn_pdrop": 0.0},
        names=_GPT_NAMES,
        shape={"rotary": True, "parallel": True},
        biases=frozenset({"feed_forward", "head"}),
        drops=("resid_pdrop", "attn_pdrop"),
        parallel_norms=1,
        is_bounded=True,
    ),
    "gpt_neox": _Family(
        defaults=_figures(6144, 24576, 44, 64, None, 50432, 2048, hidden_act="gelu")
        | {"attention_bias": True, "use_parallel_residual": True, "hidden_dropout": 0.0, "attention_dropout": 0.0},
        names={"parallel": ("use_parallel_residual",)},
        shape={"rotary": True},
        biases=frozenset({"feed_forward"}),
        bias_keys=_ATTENTION,
        drops=("hidden_dropout", "attention_dropout"),
    ),
    "opt": _Family(
        defaults=_figures(768, 3072, 12, 12, None, 50272, 2048, hidden_act="relu", tie_word_embeddings=True)
        | {"enable_bias": True, "dropout": 0.1, "attention_dropout": 0.0, "do_layer_norm_before": True}
        | {"_remove_final_layer_norm": False, "word_embed_proj_dim": None, "layer_norm_elementwise_affine": True},
        names={"intermediate_size": ("ffn_dim",), "hidden_act": ("activation_function",)},
        bias_keys={"enable_bias": _ALL_LINEAR},
        drops=("dropout", "attention_dropout"),
        needs={"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True},
        positions=2,
    ),
    "bloom": _Family(
        defaults=_figures(64, 256, 2, 8, None, 250880, 2048, hidden_act="gelu", tie_word_embeddings=True)
        | {"hidden_dropout": 0.0, "attention_dropout": 0.0},
        names={"hidden_size": ("n_embed",), "num_hidden_layers": ("n_layer",), "num_attention_heads": ("n_head",)},
        shape={"embedding_norm": True},
        biases=LAYER_BIASES,
        drops=("hidden_dropout", "attention_dropout"),
        prepare=_four_times,
    ),
    "mpt": _Family(
        defaults=_figures(2048, 8192, 24, 16, None, 50368, 2048, hidden_act="gelu", tie_word_embeddings=True)
        | {"resid_pdrop": 0.0, "attn_config": None},
        names={
            "hidden_size": ("d_model",),
            "num_hidden_layers": ("n_layers",),
            "num_attention_heads": ("n_heads",),
            "max_position_embeddings": ("max_seq_len",),
        },
        shape={"centred_norm": False},
        drops=("resid_pdrop", ""),
        prepare=_mpt,
        is_bounded=True,
    ),
    "llama": _LLAMA,
    "granite": _LLAMA,
    "llama4_text": _Family(
        defaults=_figures(5120, 8192, 48, 40, 8, 202048, 131072, head_dim=128, attention_bias=False)
        | _experts(16, 1, intermediate_size_mlp=16384, interleave_moe_layer_step=1, moe_layers=None)
        | {"use_qk_norm": True, "no_rope_layers": None, "no_rope_layer_interval": 4, "attention_chunk_size": 8192},
        names={"num_experts": ("num_local_experts",)},
        shape={**_RMS, "chunked": True},
        bias_keys=_ATTENTION,
        query_key_norm="bare",
        windows="chunks",
        prepare=_llama4,
    ),
    "mistral": _Family(
        defaults=_figures(4096, 14336, 32, 32, 8, 32000, 131072, sliding_window=4096),
        shape=_RMS,
        windows="every",
    ),
    "mixtral": _Family(
        defaults=_figures(4096, 14336, 32, 32, 8, 32000, 131072, **_SLIDING) | _experts(8, 2),
        names={"num_experts": ("num_local_experts",)},
        shape=_RMS,
        windows="every",
    ),
    "grok-1": _Family(
        # xai-org/grok-1, run.py: not of transformers; figures by Mixtral's names.
        defaults=_figures(6144, 32768, 64, 48, 8, 131072, 8192, hidden_act="gelu", tie_word_embeddings=True)
        | _experts(8, 2),
        names={"num_experts": ("num_local_experts",)},
        shape={**_RMS, "norms": 4},
    ),
    "qwen2": _Family(
        defaults=_figures(4096, 22016, 32, 32, 32, 151936, 32768, **_QWEN),
        shape=_RMS,
        biases=frozenset({"qkv"}),
        windows="late",
    ),
    "qwen2_moe": _Family(
        defaults=_figures(2048, 5632, 24, 16, 16, 151936, 32768, qkv_bias=True, **_QWEN)
        | _experts(60, 4, 1408, 5632, **_SPARSE),
        names={"num_experts": ("num_local_experts",)},
        shape=_RMS,
        bias_keys={"qkv_bias": ("qkv",)},
        windows="early",
    ),
    "qwen3": _Family(
        defaults=_figures(4096, 22016, 32, 32, 32, 151936, 32768, head_dim=128, attention_bias=False, **_QWEN),
        shape=_RMS,
        bias_keys=_ATTENTION,
        query_key_norm="head",
        windows="late",
    ),
    "qwen3_next": _Family(
        defaults=_figures(2048, 5632, 48, 16, 2, 151936, 32768, head_dim=256, attention_bias=False)
        | _experts(512, 10, 512, 512, **_SPARSE)
        | {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
        | {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "full_attention_interval": 4},
        shape={**_RMS, "output_gate": True},
        query_key_norm="head",
        needs={"attention_bias": False},
    ),
    "qwen3_moe": _Family(
        defaults=_figures(
            2048, 6144, 24, 32, 4, 151936, 32768, attention_bias=False, use_sliding_window=False, sliding_window=4096
        )
        | _experts(128, 8, 768, **_SPARSE),
        names={"num_experts": ("num_local_experts",)},
        shape=_RMS,
        bias_keys=_ATTENTION,
        query_key_norm="head",
        windows="every",
    ),
    "gemma": _Family(
        defaults=_figures(3072, 24576, 28, 16, 16, 256000, 8192, head_dim=256, tie_word_embeddings=True)
        | {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "use_bidirectional_attention": None},
        shape=_RMS,
        bias_keys=_ATTENTION,
        needs={"use_bidirectional_attention": None},
    ),
    "gemma2": _Family(
        defaults=_figures(2304, 9216, 26, 8, 4, 256000, 8192, head_dim=256, tie_word_embeddings=True)
        | {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "sliding_window": 4096}
        | {"use_bidirectional_attention": None},
        names={"hidden_act": ("hidden_activation",)},
        shape={**_RMS, "norms": 4},
        bias_keys=_ATTENTION,
        windows="period",
        period=2,
        needs={"use_bidirectional_attention": None},
    ),
    "gemma3_text": _Family(
        defaults=_figures(2304, 9216, 26, 8, 4, 262208, 131072, head_dim=256, tie_word_embeddings=True)
        | {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "sliding_window": 4096}
        | {"use_bidirectional_attention": False},
        names={"hidden_act": ("hidden_activation",)},
        shape={**_RMS, "norms": 4},
        bias_keys=_ATTENTION,
        query_key_norm="head",
        windows="period",
        period=6,
        needs={"use_bidirectional_attention": False},
    ),
    "phi": _Family(
        defaults=_figures(2048, 8192, 24, 32, None, 51200, 2048, hidden_act="gelu_new", qk_layernorm=False)
        | {"resid_pdrop": 0.0, "attention_dropout": 0.0},
        shape={"rotary": True, "parallel": True},
        biases=LAYER_BIASES | {"head"},
        drops=("resid_pdrop", "attention_dropout"),
        query_key_norm="head",
        parallel_norms=1,
    ),
    "phi3": _Family(
        defaults=_figures(3072, 8192, 32, 32, None, 32064, 4096, resid_pdrop=0.0, **_SLIDING),
        shape=_RMS,
        drops=("resid_pdrop", ""),
        windows="every",
    ),
    "phimoe": _Family(
        defaults=_figures(4096, 6400, 32, 32, 8, 32064, 131072, attention_bias=False, lm_head_bias=False, **_SLIDING)
        | _experts(16, 2),
        names={"num_experts": ("num_local_experts",)},
        shape={"gated": True, "rotary": True},
        bias_keys={**_ATTENTION, "lm_head_bias": ("head",)},
        windows="every",
    ),
    "falcon": _Family(
        defaults=_figures(4544, None, 32, 71, None, 65024, 2048, hidden_act="gelu", tie_word_embeddings=True)
        | {"bias": False, "alibi": False, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False}
        | {"num_ln_in_parallel_attn": None, "hidden_dropout": 0.0, "attention_dropout": 0.0},
        names={
            "hidden_size": ("n_embed",),
            "intermediate_size": ("ffn_hidden_size",),
            "num_key_value_heads": ("num_kv_heads",),
            "hidden_act": ("activation",),
            "parallel": ("parallel_attn",),
        },
        bias_keys={"bias": _ALL_LINEAR},
        drops=("hidden_dropout", "attention_dropout"),
        prepare=_falcon,
    ),
    "deepseek_v2": _Family(
        defaults=_figures(4096, 11008, 32, 32, None, 102400, 2048, attention_bias=False, mlp_bias=False)
        | _LATENT
        # DeepSeek-V2 as published sends a token to 6 experts; transformers has no default.
        | _experts(64, 6, 1407, n_shared_experts=2, first_k_dense_replace=0)
        | {"num_nextn_predict_layers": 0, "moe_layer_freq": 1},
        names={"num_experts": ("n_routed_experts", "num_local_experts"), **_NEXT},
        shape=_RMS,
        bias_keys=_ATTENTION,
        needs={"mlp_bias": False, "moe_layer_freq": 1},
    ),
    "deepseek_v3": _Family(
        defaults=_figures(7168, 18432, 61, 128, 128, 129280, 4096, attention_bias=False)
        | _LATENT
        | _experts(256, 8, 2048, n_shared_experts=1, first_k_dense_replace=3)
        | {"num_nextn_predict_layers": 1, "moe_layer_freq": 1},
        names={"num_experts": ("n_routed_experts", "num_local_experts"), **_NEXT},
        shape=_RMS,
        bias_keys=_ATTENTION,
        needs={"moe_layer_freq": 1},
    ),
    "glm4_moe": _Family(
        defaults=_figures(4096, 10944, 46, 96, 8, 151552, 131072, attention_bias=False, use_qk_norm=False)
        | _experts(128, 8, 1408, n_shared_experts=1, first_k_dense_replace=1)
        | {"num_nextn_predict_layers": 1},
        names={"num_experts": ("n_routed_experts", "num_local_experts"), **_NEXT},
        shape=_RMS,
        bias_keys={"attention_bias": ("qkv",)},
        query_key_norm="head",
        prepare=_glm_moe,
    ),
    "gpt_oss": _Family(
        defaults=_figures(2880, 2880, 36, 64, 8, 201088, 131072, head_dim=64, attention_bias=True, sliding_window=128)
        | _experts(128, 4),
        names={"num_experts": ("num_local_experts",)},
        shape={**_RMS, "sinks": True},
        biases=frozenset({"feed_forward", "router"}),
        bias_keys=_ATTENTION,
        windows="period",
        period=2,
    ),
    "nemotron": _Family(
        defaults=_figures(6144, 24576, 32, 48, None, 256000, 4096, hidden_act="relu2", attention_bias=False)
        | {"mlp_bias": False},
        shape={"rotary": True},
        bias_keys=_BOTH,
    ),
    "olmo": _Family(
        defaults=_figures(4096, 11008, 32, 32, None, 50304, 2048, attention_bias=False),
        shape={**_RMS, "norm_scales": False},
        bias_keys=_ATTENTION,
    ),
    "olmo2": _Family(
        defaults=_figures(4096, 11008, 32, 32, None, 50304, 2048, attention_bias=False),
        shape=_RMS,
        bias_keys=_ATTENTION,
        query_key_norm="whole",
    ),
    "olmo3": _Family(
        defaults=_figures(4096, 11008, 32, 32, None, 50304, 2048, attention_bias=False, sliding_window=4096),
        shape=_RMS,
        bias_keys=_ATTENTION,
        query_key_norm="whole",
        windows="period",
        period=4,
    ),
    "olmoe": _Family(
        defaults=_figures(2048, 2048, 16, 16, None, 50304, 4096, attention_bias=False) | _experts(64, 8),
        names={"num_experts": ("num_local_experts",)},
        shape=_RMS,
        bias_keys=_ATTENTION,
        query_key_norm="whole",
    ),
    "stablelm": _Family(
        defaults=_figures(2560, 6912, 32, 32, 32, 50304, 4096, use_qkv_bias=False, qk_layernorm=False)
        | {"use_parallel_residual": False, "hidden_dropout": 0.0, "attention_dropout": 0.0},
        names={"parallel": ("use_parallel_residual",)},
        shape={"gated": True, "rotary": True},
        bias_keys={"use_qkv_bias": ("qkv",)},
        drops=("hidden_dropout", "attention_dropout"),
        query_key_norm="whole",
        parallel_norms=1,
    ),
    "cohere": _Family(
        defaults=_figures(8192, 22528, 40, 64, None, 256000, 8192, attention_bias=False, use_qk_norm=False)
        | {"tie_word_embeddings": True},
        shape={**_RMS, "parallel": True},
        bias_keys=_ATTENTION,
        query_key_norm="whole",
        parallel_norms=1,
    ),
    "cohere2": _Family(
        defaults=_figures(8192, 22528, 40, 64, None, 256000, 8192, attention_bias=False, sliding_window=4096)
        | {"tie_word_embeddings": True},
        shape={**_RMS, "parallel": True},
        bias_keys=_ATTENTION,
        windows="period",
        period=4,
        parallel_norms=1,
    ),
    "starcoder2": _Family(
        defaults=_figures(3072, 12288, 30, 24, 2, 49152, 4096, hidden_act="gelu_pytorch_tanh", use_bias=True)
        | {"tie_word_embeddings": True, "residual_dropout": 0.0, "attention_dropout": 0.0, **_SLIDING},
        shape={"rotary": True},
        bias_keys={"use_bias": _ALL_LINEAR},
        drops=("residual_dropout", "attention_dropout"),
        windows="every",
    ),
    "bert": _BERT,
    "roberta": replace(
        _BERT,
        defaults={**_BERT.defaults, "vocab_size": 50265},
        prepare=_roberta,
        positions=_ROBERTA_KEPT,
    ),
    "gpt_bigcode": _Family(
        defaults=_figures(768, None, 12, 12, None, 50257, 1024, hidden_act="gelu_pytorch_tanh")
        | {"tie_word_embeddings": True, "multi_query": True, "add_cross_attention": False}
        | {"resid_pdrop": 0.1, "attn_pdrop": 0.1},
        names=_GPT_NAMES,
        biases=LAYER_BIASES,
        drops=("resid_pdrop", "attn_pdrop"),
        needs={"add_cross_attention": False},
        positions=0,
    ),
    "gpt_neo": _Family(
        defaults=_figures(2048, None, 24, 16, None, 50257, 2048, hidden_act="gelu_new", tie_word_embeddings=True)
        | {"resid_dropout": 0.0, "attention_dropout": 0.0, "window_size": 256}
        | {"attention_types": [[["global", "local"], 12]]},
        names={
            "num_hidden_layers": ("num_layers",),
            "num_attention_heads": ("num_heads",),
            "hidden_act": ("activation_function",),
        },
        biases=frozenset({"output", "feed_forward"}),
        drops=("resid_dropout", "attention_dropout"),
        windows="every",
        prepare=_neo,
        positions=0,
    ),
    "glm": _Family(
        defaults=_figures(4096, 13696, 40, 32, 2, 151552, 131072, head_dim=128, attention_bias=True),
        shape=_RMS,
        bias_keys={"attention_bias": ("qkv",)},
    ),
    "glm4": _Family(
        defaults=_figures(4096, 13696, 40, 32, 2, 151552, 131072, head_dim=128, attention_bias=True),
        shape={**_RMS, "norms": 4},
        bias_keys={"attention_bias": ("qkv",)},
    ),
    "helium": _Family(
        defaults=_figures(2560, 7040, 24, 20, 20, 48000, 4096, head_dim=128, attention_bias=False, mlp_bias=False),
        shape=_RMS,
        bias_keys={"attention_bias": ("qkv",), "mlp_bias": ("feed_forward",)},
    ),
    "smollm3": _Family(
        defaults=_figures(2048, 11008, 36, 16, 4, 128256, 32768, tie_word_embeddings=True)
        | {"attention_bias": False, "mlp_bias": False, "use_sliding_window": False},
        shape=_RMS,
        bias_keys=_BOTH,
        needs={"use_sliding_window": False},
    ),
    "seed_oss": _Family(
        defaults=_figures(4096, 27648, 64, 80, 8, 155136, 524288, head_dim=128, residual_dropout=0.1)
        | {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False, "attention_dropout": 0.1},
        shape=_RMS,
        bias_keys={"attention_bias": ("qkv",), "attention_out_bias": ("output",), "mlp_bias": ("feed_forward",)},
        drops=("residual_dropout", "attention_dropout"),
    ),
    "arcee": _Family(
        defaults=_figures(2560, 18432, 32, 32, None, 32000, 4096, hidden_act="relu2")
        | {"attention_bias": False, "mlp_bias": False},
        shape={"rotary": True, "centred_norm": False},
        bias_keys=_BOTH,
    ),
    "ernie4_5": _Family(
        defaults=_figures(1024, 3072, 18, 16, 2, 103424, 131072, head_dim=128, tie_word_embeddings=True)
        | {"use_bias": False},
        shape=_RMS,
        bias_keys={"use_bias": _ALL_LINEAR},
    ),
    "ernie4_5_moe": _Family(
        # Routers add a correction to each expert's score, as a bias.
        defaults=_figures(2560, 12288, 28, 20, 4, 103424, 131072, tie_word_embeddings=True, use_bias=False)
        | _experts(64, 6, 1536, moe_num_shared_experts=2)
        | {"moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1},
        names={
            "num_experts": ("moe_num_experts",),
            "num_experts_per_tok": ("moe_k",),
            "n_shared_experts": ("moe_num_shared_experts",),
            "first_k_dense_replace": ("moe_layer_start_index",),
            "decoder_sparse_step": ("moe_layer_interval",),
        },
        shape=_RMS,
        biases=frozenset({"router"}),
        needs={"use_bias": False},
        prepare=_ernie,
    ),
    "hunyuan_v1_dense": _Family(
        defaults=_figures(4096, 11008, 32, 32, None, 290943, 2048, attention_bias=False),
        shape=_RMS,
        bias_keys=_ATTENTION,
        query_key_norm="head",
    ),
    "exaone4": _Family(
        defaults=_figures(4096, 16384, 32, 32, 32, 102400, 2048, sliding_window=4096, sliding_window_pattern=4),
        shape=_RMS,
        query_key_norm="head",
        windows="period",
        period=4,
    ),
    "granitemoe": _Family(
        defaults=_figures(4096, 11008, 32, 32, None, 32000, 2048, attention_bias=False) | _experts(8, 2),
        names={"num_experts": ("num_local_experts",)},
        shape=_RMS,
        bias_keys=_ATTENTION,
    ),
    "minimax_m2": _Family(
        defaults=_figures(3072, 1536, 62, 48, 8, 200064, 196608, head_dim=128) | _experts(256, 8),
        names={"num_experts": ("num_local_experts",)},
        shape=_RMS,
        query_key_norm="whole",
    ),
}
"""What is known of each model type of transformers, and of Grok-1."""

_WITH_TEXT = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
"""Models for text and images whose text decoder has a row: the figures of it are in `text_config`."""

_HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining", "ForConditionalGeneration")
"""How names of models with a head for language end."""


def is_known(model_type: object) -> bool:
    """Whether shapes of a model type are known.

    Example:
        >>> is_known("qwen3_moe"), is_known("mamba2")
        (True, False)
    """
    return model_type in FAMILIES or model_type in _WITH_TEXT


def rough_count(values: Values) -> int:
    """Parameters of a network of whatever type, roughly, by figures that most configurations have.

    Example:
        A stack of 24 layers, h = 1,024, with 65,536 inner channels: T5 of 11 billion has two of them.

        >>> values = {"d_model": 1024, "d_ff": 65536, "num_layers": 24, "vocab_size": 32128, "num_decoder_layers": 24}
        >>> round(rough_count(values) / 1e9, 1)
        6.7
    """

    def figure(*names: str, usual: int = 0) -> int:
        found = (values.get(name) for name in names)
        return next((one for one in found if isinstance(one, int) and not isinstance(one, bool)), usual)

    hidden = figure("hidden_size", "d_model", "n_embd", "dim")
    layers = figure("num_hidden_layers", "n_layer", "num_layers", "n_layers") + figure("num_decoder_layers")
    inner = figure("intermediate_size", "d_ff", "ffn_dim", "n_inner", usual=4 * hidden)
    experts = figure("num_experts", "num_local_experts", "n_routed_experts", usual=1)
    return hidden * (layers * (4 * hidden + 2 * max(1, experts) * inner) + figure("vocab_size"))


# ---------------------------------------------------------------------------------------------------------------------
# From figures to a shape


def shape_of_configuration(
    values: Values, *, sequence: int | None = None, source: str = "the configuration"
) -> Configured:
    """The shape of a network, by its configuration.

    Args:
        values: of a `config.json`, or of `to_dict()` of a configuration of transformers
        sequence: tokens of a sequence in training; None: what is usual (`usual_sequence`)
        source: of the values, for errors

    Returns:
        The shape, and what was assumed.

    Raises:
        InputError: a model type, an activation, a kind of attention or another figure without a known shape; a figure
            that no network has; a sequence longer than learned positions or a table of them

    Example:
        Mixtral 8x7B, all of whose figures are the defaults of its type, has 46,702,792,704 parameters:

        >>> from trimaran.pricing.analytical.layers import parameter_count
        >>> found = shape_of_configuration({"model_type": "mixtral"}, sequence=4096)
        >>> parameter_count(found.shape), found.shape.experts.count
        (46702792704, 8)
    """
    try:
        return _read(values, sequence)
    except InputError as error:
        raise InputError(f"{source}: {error.message}", code=error.code, **error.figures) from None


def _read(values: Values, sequence: int | None) -> Configured:
    kind, assumed = values.get("model_type"), []
    _check_kind(values)
    if kind in _WITH_TEXT:
        text = values.get("text_config")
        if text is not None and not isinstance(text, Mapping):
            raise _unknown("text_config", text, "figures by name")
        assumed.append(f"the text decoder of {kind} is planned, its vision tower is left out")
        # A file that leaves the text decoder to defaults has these of the text decoder.
        values = {"tie_word_embeddings": values["tie_word_embeddings"]} if "tie_word_embeddings" in values else {}
        values, kind = {**values, **(text or {})}, _WITH_TEXT[str(kind)]
    family = FAMILIES[str(kind)]
    found = _common(family, values)
    if family.experts and found["num_experts_per_tok"] is None:
        found["num_experts_per_tok"] = family.defaults["num_experts_per_tok"]
        assumed.append(f"{found['num_experts_per_tok']} experts a token are assumed: num_experts_per_tok is null")
    _complete(found)
    if family.prepare is not None:
        family.prepare(found)
    shape = _shape(family, found, sequence)
    if sequence is None:
        most = found["max_position_embeddings"]
        assumed.append(assumed_sequence_words(shape.sequence, most))
    return Configured(shape=shape, assumed=tuple(assumed))


def _check_kind(values: Values) -> None:
    kind = values.get("model_type")
    if values.get("is_encoder_decoder"):
        raise InputError(
            f'model type "{kind}" has an encoder and a decoder: the analytical model knows one stack only',
            code="shape.two-stacks",
            model_type=kind,
        )
    if not is_known(kind):
        known = sorted({*FAMILIES, *_WITH_TEXT})
        text = values.get("text_config")
        inner = text.get("model_type") if isinstance(text, Mapping) else None
        way = f"{did_you_mean(str(kind), known)}: known are {', '.join(known)}"
        if inner in FAMILIES:
            way = (
                f', of which text_config is a part: its type, "{inner}", has one, so write the figures of '
                "text_config into a config.json"
            )
        raise InputError(
            f'no shape is known for model type "{kind}"{way}',
            code="shape.unknown-model-type",
            model_type=kind,
        )
    names = [str(name) for name in values.get("architectures") or ()]
    # The bare model ("LlamaModel") means no other head than that of a language model.
    if any("For" in name for name in names) and not any(name.endswith(_HEADS) for name in names):
        raise InputError(
            f"architectures {', '.join(names)}: shapes are known of language models, whose names end in "
            f"{', '.join(_HEADS)}",
            code="shape.no-language-head",
            architectures=names,
        )


def _common(family: _Family, values: Values) -> dict[str, Any]:
    """Figures by the common names, with defaults."""
    found = {name: value for name, value in values.items() if name not in _PLACES}
    for name in {*family.defaults, *family.names}:
        spelled = (name, *family.names.get(name, ()))
        default = next((family.defaults[each] for each in spelled if each in family.defaults), None)
        found[name] = next((values[each] for each in spelled if each in values), default)
    for name, wanted in family.needs.items():
        if found[name] != wanted and (found[name] or wanted):
            raise _unknown(name, found[name], str(wanted))
    projected = found.get("word_embed_proj_dim")
    if projected not in (None, found["hidden_size"]):
        raise _unknown("word_embed_proj_dim", projected, f"hidden_size, {found['hidden_size']}")
    if found["hidden_act"] not in _ACTIVATIONS:
        raise InputError(
            f'no work is known of activation "{found["hidden_act"]}": known are {", ".join(sorted(_ACTIVATIONS))}',
            code="shape.unknown-activation",
            activation=str(found["hidden_act"]),
        )
    return found


def _shape(family: _Family, found: dict[str, Any], asked: int | None) -> TransformerShape:
    hidden, heads, layers = (
        _count(found, name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    kv_heads = heads if found["num_key_value_heads"] is None else _count(found, "num_key_value_heads")
    if heads % kv_heads:
        raise _unknown("num_key_value_heads", kv_heads, f"a divisor of {heads} heads")
    size = found["qk_nope_head_dim"] if family.latent else found["head_dim"]
    if size is None:
        if hidden % heads:
            raise _unknown("hidden_size", hidden, f"a multiple of {heads} heads, or head_dim")
        size = hidden // heads
    found["head_dim"] = size
    positions = _count(found, "max_position_embeddings", most=10**10)
    sequence = usual_sequence(positions) if asked is None else asked
    if sequence > positions and (family.is_bounded or family.positions is not None):
        key = next(iter(family.names.get("max_position_embeddings", ())), "max_position_embeddings")
        raise InputError(
            f"the model has {positions:,} positions, not {sequence:,}: take a shorter --sequence, or raise "
            f"{key} in the file",
            code="shape.sequence-too-long",
            sequence=sequence,
            positions=positions,
        )
    parallel = bool(found.get("parallel", family.shape.get("parallel", False)))
    norms = found.get("parallel_norms", family.parallel_norms) if parallel else 2
    biases = set(family.biases)
    for key, parts in family.bias_keys.items():
        biases.update(parts if found[key] else ())
    drops = [bool(found.get(name)) for name in family.drops]
    fields: dict[str, Any] = {
        "norms": norms,
        **family.shape,
        "parallel": parallel,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": _count(found, "head_dim"),
        "ffn": _count(found, "intermediate_size"),
        "vocabulary": _count(found, "vocab_size"),
        "sequence": sequence,
        "padding": PADDING,
        "biases": frozenset(biases),
        "tied": bool(found["tie_word_embeddings"]),
        "positions": 0 if family.positions is None else positions + family.positions,
        "segments": found.get("segments", 0),
        "query_key_norm": _query_key_norm(family, found),
        "windows": _windows(family, found, layers),
        "attention_dropout": drops[1],
        "experts": _experts_of(found, layers) if family.experts else None,
        "latent": _latent(found) if family.latent else None,
        "linear": _linear(found, layers) if "linear_num_key_heads" in family.defaults else None,
        "prediction_layers": _count({"num_nextn_predict_layers": 0, **found}, "num_nextn_predict_layers", least=0),
        "head": found.get("head", "causal"),
        "composed_activation": found["hidden_act"] in _COMPOSED,
    }
    return TransformerShape(hidden=hidden, hidden_dropout=drops[0], **fields)


def _query_key_norm(family: _Family, found: Values) -> str | None:
    switches = [found[name] for name in ("use_qk_norm", "qk_layernorm") if name in family.defaults]
    return family.query_key_norm if all(switches) else None


def _experts_of(found: Values, layers: int) -> Experts | None:
    count = _count(found, "num_experts", least=0)
    if not count:
        return None
    active = _count(found, "num_experts_per_tok", most=count)
    placed = {"decoder_sparse_step": 1, "first_k_dense_replace": 0, **found}
    every, dense = _count(placed, "decoder_sparse_step"), _count(placed, "first_k_dense_replace", least=0)
    plain = sorted(placed.get("mlp_only_layers") or ())
    if plain != list(range(len(plain))):
        raise _unknown("mlp_only_layers", plain, "the first layers of the stack")
    shared = _count(found, "shared_expert_intermediate_size", least=0)
    experts = Experts(
        count=count,
        active=active,
        ffn=_count(found, "moe_intermediate_size"),
        shared_ffn=shared,
        dense_layers=max(dense, len(plain)),
        every=every,
        shared_gate=shared > 0 and found.get("model_type") in ("qwen2_moe", "qwen3_next"),
    )
    return experts if any(layer >= experts.dense_layers for layer in range(every - 1, layers, every)) else None


def _latent(found: Values) -> LatentAttention:
    return LatentAttention(
        query_rank=_count(found, "q_lora_rank") if found["q_lora_rank"] is not None else 0,
        key_rank=_count(found, "kv_lora_rank"),
        head_size=_count(found, "qk_nope_head_dim"),
        rotary_size=_count(found, "qk_rope_head_dim"),
        value_size=_count(found, "v_head_dim"),
    )


def _linear(found: Values, layers: int) -> LinearAttention:
    every, kinds = _count(found, "full_attention_interval"), found.get("layer_types")
    if kinds is not None:
        every = [*kinds, "full_attention"].index("full_attention") + 1
        if [kind == "full_attention" for kind in kinds] != [(layer + 1) % every == 0 for layer in range(layers)]:
            raise _unknown("layer_types", kinds, "ordinary attention in every n-th layer of the stack")
    return LinearAttention(
        key_heads=_count(found, "linear_num_key_heads"),
        value_heads=_count(found, "linear_num_value_heads"),
        key_size=_count(found, "linear_key_head_dim"),
        value_size=_count(found, "linear_value_head_dim"),
        kernel=_count(found, "linear_conv_kernel_dim"),
        every=every,
    )


def _windows(family: _Family, found: Values, layers: int) -> tuple[int, ...]:
    """Windows of the layers, as short as their pattern repeats; empty: none."""
    if family.windows == "none":
        return ()
    size = found.get("attention_chunk_size" if family.windows == "chunks" else "sliding_window")
    if size is None or found.get("use_sliding_window") is False:
        return ()
    tokens = _count({"sliding_window": size}, "sliding_window")
    kinds = found.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return _repeated(_of_types(kinds, tokens, layers))
    return _repeated([tokens if slides else 0 for slides in _sliding(family, found, layers)])


def _of_types(kinds: Sequence[object], tokens: int, layers: int) -> list[int]:
    known = {"full_attention": 0, "sliding_attention": tokens, "chunked_attention": tokens}
    for kind in kinds:
        if kind not in known:
            raise InputError(
                f'no work is known of attention "{kind}" in layer_types: known are {", ".join(known)}',
                code="shape.unknown-attention",
                attention=str(kind),
            )
    if len(kinds) != layers:
        raise _unknown("layer_types", f"{len(kinds)} kinds", f"one for each of {layers} layers")
    return [known[str(kind)] for kind in kinds]


def _sliding(family: _Family, found: Values, layers: int) -> list[bool]:
    every = range(layers)
    if family.windows == "period":
        pattern = found.get("sliding_window_pattern") or family.period
        # EXAONE 4 may write it as letters, "LLLG".
        period = len(pattern) if isinstance(pattern, str) else pattern
        return [(layer + 1) % period != 0 for layer in every]
    if family.windows == "late":
        return [layer >= found["max_window_layers"] for layer in every]
    if family.windows == "early":
        return [layer % 2 == 0 and layer < found["max_window_layers"] for layer in every]
    if family.windows == "chunks":
        interval, rotated = found["no_rope_layer_interval"], found["no_rope_layers"]
        return [bool(rotated[layer]) if rotated else (layer + 1) % interval != 0 for layer in every]
    return [True] * layers


def _repeated(windows: list[int]) -> tuple[int, ...]:
    """The shortest pattern that repeats to the given windows; empty where no layer has one."""
    if not any(windows):
        return ()
    for period in range(1, len(windows) + 1):
        if all(each == windows[index % period] for index, each in enumerate(windows)):
            return tuple(windows[:period])
    return tuple(windows)


def _count(found: Values, name: str, *, least: int = 1, most: int = 10**9) -> int:
    value = found[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(
            f"{name}: expected a whole number from {least:,} to {most:,}, got {str(value)[:80]}",
            code="shape.bad-figure",
            key=name,
        )
    return value


def _unknown(name: str, value: object, wanted: str) -> InputError:
    return InputError(
        f"{name}: the shape is known for {wanted}, not for {str(value)[:80]}",
        code="shape.unknown-figure",
        key=name,
    )
