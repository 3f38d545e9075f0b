"""Decoders by the names that people use, as the figures of their published configurations.

A name stands for a `config.json`: `mixtral:8x7b`, `deepseek-v3`, `qwen3:235b-a22b`. Dashes, underscores, blanks and
upper case do not count, and the size may be joined to the name by a dash: "Qwen3-235B-A22B" and "llama_3.1_405b" are
known. A size may be left out where the family has a usual one.

Figures are facts of the configuration files that the models were published with, without what transformers has as
default for the model type. Sequences are those of the first stage of pre-training, as the reports tell; where none
does, the usual 4,096 tokens are assumed, and plans say so.

Source:
    `config.json` of the models on huggingface.co: deepseek-ai, mistralai, Qwen, nvidia, google, microsoft, tiiuae,
    openai, meta-llama, allenai, stabilityai, CohereLabs, EleutherAI, bigscience, bigcode, zai-org, moonshotai; for
    Grok-1 run.py of xai-org/grok-1.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """Published decoders of one name.

    Attributes:
        title: for people
        model_type: of transformers
        sizes: figures of each size by name; those of no size are the defaults of the model type
        default: the size where none is named
        sequence: tokens of a training sequence; 0: not published
        aliases: other names of the family
        size_aliases: other names of sizes
    """

    title: str
    model_type: str
    sizes: Mapping[str, Mapping[str, Any]]
    default: str
    sequence: int = 0
    aliases: tuple[str, ...] = ()
    size_aliases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDecoder:
    """A published decoder, as it was asked for.

    Attributes:
        name: the shortest reference to it, without options
        values: of its configuration
        sequence: tokens of a training sequence; None: not published
        options: that followed the name
    """

    name: str
    values: Mapping[str, Any]
    sequence: int | None
    options: str = ""


def _rows(text: str, **same: Any) -> dict[str, dict[str, Any]]:
    """Sizes: a row is a name, hidden size, inner size, layers, heads, heads of keys and vocabulary, then more."""
    sizes = {}
    for row in filter(str.strip, text.splitlines()):
        name, *figures = row.split()
        more = dict(pair.split("=") for pair in figures[6:])
        sizes[name] = {
            **same,
            **{key: int(figure) for key, figure in zip(_ROW, figures[:6], strict=True)},
            **{_SHORT.get(key, key): _figure(figure) for key, figure in more.items()},
        }
    return sizes


_ROW = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size"),
)
_SHORT = {
    "positions": "max_position_embeddings",
    "head": "head_dim",
    "tied": "tie_word_embeddings",
    "window": "sliding_window",
    "moe": "moe_intermediate_size",
    "experts": "num_experts",
    "active": "num_experts_per_tok",
}


def _figure(text: str) -> object:
    return {"true": True, "false": False, "null": None}[text] if text in ("true", "false", "null") else int(text)


_LLAMA3 = """
8b    4096 14336  32  32 8 128256 positions=131072
70b   8192 28672  80  64 8 128256 positions=131072
405b 16384 53248 126 128 8 128256 positions=131072
"""
_QWEN2 = """
0.5b  896  4864 24 14 2 151936 tied=true positions=131072
1.5b 1536  8960 28 12 2 151936 tied=true positions=131072
7b   3584 18944 28 28 4 152064 positions=131072
72b  8192 29568 80 64 8 152064 positions=131072
"""

DECODER_FAMILIES: Mapping[str, DecoderFamily] = {
    "llama3.1": DecoderFamily(title="Llama 3.1", model_type="llama", sizes=_rows(_LLAMA3), default="8b", sequence=8192),
    "llama3.2": DecoderFamily(
        title="Llama 3.2",
        model_type="llama",
        sizes=_rows(
            """
            1b 2048 8192 16 32 8 128256 tied=true head=64 positions=131072
            3b 3072 8192 28 24 8 128256 tied=true head=128 positions=131072
            """
        ),
        default="1b",
        sequence=8192,
    ),
    "llama3.3": DecoderFamily(
        title="Llama 3.3",
        model_type="llama",
        sizes={"70b": _rows(_LLAMA3)["70b"]},
        default="70b",
        sequence=8192,
    ),
    "llama4": DecoderFamily(
        title="Llama 4, the text decoder",
        model_type="llama4_text",
        sizes={
            "scout": {"num_local_experts": 16, "interleave_moe_layer_step": 1, "max_position_embeddings": 10485760},
            "maverick": {
                "num_local_experts": 128,
                "interleave_moe_layer_step": 2,
                "use_qk_norm": False,
                "max_position_embeddings": 1048576,
            },
        },
        default="scout",
        sequence=8192,
        size_aliases={"109b": "scout", "400b": "maverick", "17b-16e": "scout", "17b-128e": "maverick"},
    ),
    "mistral": DecoderFamily(
        title="Mistral",
        model_type="mistral",
        sizes=_rows(
            """
            7b    4096 14336 32 32 8  32000 window=4096 positions=32768
            nemo  5120 14336 40 32 8 131072 window=null head=128 positions=131072
            small 5120 32768 40 32 8 131072 window=null head=128 positions=32768
            large 12288 28672 88 96 8 32768 window=null positions=32768
            """
        ),
        default="7b",
        sequence=8192,
        size_aliases={"12b": "nemo", "24b": "small", "123b": "large"},
    ),
    "mixtral": DecoderFamily(
        title="Mixtral",
        model_type="mixtral",
        sizes=_rows(
            """
            8x7b  4096 14336 32 32 8 32000 positions=32768
            8x22b 6144 16384 56 48 8 32000 positions=65536
            """
        ),
        default="8x7b",
    ),
    "qwen2": DecoderFamily(title="Qwen 2", model_type="qwen2", sizes=_rows(_QWEN2), default="7b", sequence=4096),
    "qwen2-moe": DecoderFamily(
        title="Qwen 2, mixtures of experts",
        model_type="qwen2_moe",
        sizes={
            "a2.7b": {"max_position_embeddings": 8192},
            "57b-a14b": {
                **_rows("57b 3584 18944 28 28 4 151936 positions=32768 moe=2560 experts=64 active=8")["57b"],
                "shared_expert_intermediate_size": 20480,
            },
        },
        default="57b-a14b",
        sequence=4096,
        aliases=("qwen1.5-moe",),
    ),
    "qwen2.5": DecoderFamily(
        title="Qwen 2.5",
        model_type="qwen2",
        sizes=_rows(
            _QWEN2
            + """
            3b   2048 11008 36 16 2 151936 tied=true positions=32768
            14b  5120 13824 48 40 8 152064 positions=131072
            32b  5120 27648 64 40 8 152064 positions=131072
            """
        ),
        default="7b",
        sequence=4096,
    ),
    "qwen3": DecoderFamily(
        title="Qwen 3",
        model_type="qwen3",
        sizes={
            **_rows(
                """
                0.6b 1024  3072 28 16 8 151936 head=128 tied=true positions=40960
                1.7b 2048  6144 28 16 8 151936 head=128 tied=true positions=40960
                4b   2560  9728 36 32 8 151936 head=128 tied=true positions=40960
                8b   4096 12288 36 32 8 151936 head=128 positions=40960
                14b  5120 17408 40 40 8 151936 head=128 positions=40960
                32b  5120 25600 64 64 8 151936 head=128 positions=40960
                """
            ),
            **_rows(
                """
                30b-a3b   2048  6144 48 32 4 151936 head=128 positions=40960 moe=768 experts=128 active=8
                235b-a22b 4096 12288 94 64 4 151936 head=128 positions=40960 moe=1536 experts=128 active=8
                """,
                model_type="qwen3_moe",
            ),
        },
        default="8b",
        sequence=4096,
        size_aliases={"30b": "30b-a3b", "235b": "235b-a22b"},
    ),
    "gemma": DecoderFamily(
        title="Gemma",
        model_type="gemma",
        sizes=_rows(
            """
            2b 2048 16384 18  8  1 256000 head=256 positions=8192
            7b 3072 24576 28 16 16 256000 head=256 positions=8192
            """
        ),
        default="7b",
        sequence=8192,
    ),
    "gemma2": DecoderFamily(
        title="Gemma 2",
        model_type="gemma2",
        sizes=_rows(
            """
            2b  2304  9216 26  8  4 256000 head=256 positions=8192
            9b  3584 14336 42 16  8 256000 head=256 positions=8192
            27b 4608 36864 46 32 16 256000 head=128 positions=8192
            """
        ),
        default="9b",
        sequence=8192,
    ),
    "gemma3": DecoderFamily(
        title="Gemma 3, the text decoder",
        model_type="gemma3_text",
        sizes=_rows(
            """
            1b  1152  6912 26  4  1 262144 head=256 window=512 positions=32768
            4b  2560 10240 34  8  4 262208 head=256 window=1024 positions=131072
            12b 3840 15360 48 16  8 262208 head=256 window=1024 positions=131072
            27b 5376 21504 62 32 16 262208 head=128 window=1024 positions=131072
            """
        ),
        default="27b",
        sequence=32768,
    ),
    "phi-2": DecoderFamily(
        title="Phi-2",
        model_type="phi",
        sizes=_rows("2.7b 2560 10240 32 32 32 51200 positions=2048"),
        default="2.7b",
        sequence=2048,
    ),
    "phi-3": DecoderFamily(
        title="Phi-3",
        model_type="phi3",
        sizes=_rows(
            """
            mini   3072  8192 32 32 32 32064 window=2047 positions=4096
            medium 5120 17920 40 40 10 32064 window=2047 positions=4096
            """
        ),
        default="mini",
        sequence=4096,
        size_aliases={"3.8b": "mini", "14b": "medium"},
    ),
    "phi-3.5-moe": DecoderFamily(
        title="Phi-3.5, mixture of experts",
        model_type="phimoe",
        sizes={"42b": {"attention_bias": True, "lm_head_bias": True, "sliding_window": 131072}},
        default="42b",
        sequence=4096,
    ),
    "phi-4": DecoderFamily(
        title="Phi-4",
        model_type="phi3",
        sizes=_rows(
            """
            14b  5120 17920 40 40 10 100352 positions=16384
            mini 3072  8192 32 24  8 200064 positions=131072 window=262144 tied=true
            """
        ),
        default="14b",
        sequence=4096,
    ),
    "falcon": DecoderFamily(
        title="Falcon",
        model_type="falcon",
        sizes={
            "7b": {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71},
            "40b": {
                "hidden_size": 8192,
                "num_hidden_layers": 60,
                "num_attention_heads": 128,
                "num_kv_heads": 8,
                "new_decoder_architecture": True,
            },
            "180b": {
                "hidden_size": 14848,
                "num_hidden_layers": 80,
                "num_attention_heads": 232,
                "num_kv_heads": 8,
                "new_decoder_architecture": True,
            },
        },
        default="7b",
        sequence=2048,
    ),
    "deepseek-v2": DecoderFamily(
        title="DeepSeek-V2",
        model_type="deepseek_v2",
        sizes={
            "236b": {
                "hidden_size": 5120,
                "intermediate_size": 12288,
                "moe_intermediate_size": 1536,
                "num_hidden_layers": 60,
                "num_attention_heads": 128,
                "n_routed_experts": 160,
                "num_experts_per_tok": 6,
                "first_k_dense_replace": 1,
                "max_position_embeddings": 163840,
            },
            "lite": {
                "hidden_size": 2048,
                "intermediate_size": 10944,
                "moe_intermediate_size": 1408,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "q_lora_rank": None,
                "num_experts_per_tok": 6,
                "first_k_dense_replace": 1,
                "max_position_embeddings": 163840,
            },
        },
        default="236b",
        sequence=4096,
        size_aliases={"16b": "lite"},
    ),
    "deepseek-v3": DecoderFamily(
        title="DeepSeek-V3",
        model_type="deepseek_v3",
        sizes={"671b": {"max_position_embeddings": 163840}},
        default="671b",
        sequence=4096,
        aliases=("deepseek-r1",),
    ),
    "kimi-k2": DecoderFamily(
        title="Kimi K2",
        model_type="deepseek_v3",
        sizes={
            "1t": {
                "num_attention_heads": 64,
                "num_key_value_heads": 64,
                "n_routed_experts": 384,
                "first_k_dense_replace": 1,
                "vocab_size": 163840,
                "num_nextn_predict_layers": 0,
                "max_position_embeddings": 131072,
            }
        },
        default="1t",
        sequence=4096,
    ),
    "glm-4.5": DecoderFamily(
        title="GLM-4.5",
        model_type="glm4_moe",
        sizes={
            "355b": {
                "hidden_size": 5120,
                "intermediate_size": 12288,
                "moe_intermediate_size": 1536,
                "num_hidden_layers": 92,
                "head_dim": 128,
                "n_routed_experts": 160,
                "first_k_dense_replace": 3,
                "attention_bias": True,
                "use_qk_norm": True,
            },
            "air": {"head_dim": 128, "attention_bias": True},
        },
        default="355b",
        sequence=4096,
        size_aliases={"106b": "air"},
    ),
    "gpt-oss": DecoderFamily(
        title="GPT-OSS",
        model_type="gpt_oss",
        sizes={"20b": {"num_hidden_layers": 24, "num_local_experts": 32}, "120b": {}},
        default="120b",
    ),
    "grok-1": DecoderFamily(title="Grok-1", model_type="grok-1", sizes={"314b": {}}, default="314b", sequence=8192),
    "nemotron-4": DecoderFamily(
        title="Nemotron-4",
        model_type="nemotron",
        sizes=_rows(
            """
            15b   6144 24576 32 48 8 256000 positions=4096
            340b 18432 73728 96 96 8 256000 positions=4096
            """
        ),
        default="15b",
        sequence=4096,
        aliases=("nemotron",),
    ),
    "olmo": DecoderFamily(
        title="OLMo",
        model_type="olmo",
        sizes=_rows(
            """
            1b 2048  8192 16 16 16 50304 positions=2048 tied=true
            7b 4096 11008 32 32 32 50304 positions=2048
            """
        ),
        default="7b",
        sequence=2048,
    ),
    "olmo2": DecoderFamily(
        title="OLMo 2",
        model_type="olmo2",
        sizes=_rows(
            """
            7b  4096 11008 32 32 32 100352 positions=4096
            13b 5120 13824 40 40 40 100352 positions=4096
            32b 5120 27648 64 40  8 100352 positions=4096
            """
        ),
        default="7b",
        sequence=4096,
    ),
    "olmoe": DecoderFamily(
        title="OLMoE, mixture of experts",
        model_type="olmoe",
        sizes=_rows("1b-7b 2048 1024 16 16 16 50304 positions=4096 experts=64 active=8"),
        default="1b-7b",
        sequence=4096,
        size_aliases={"7b": "1b-7b"},
    ),
    "stablelm": DecoderFamily(
        title="StableLM",
        model_type="stablelm",
        sizes=_rows(
            """
            1.6b 2048  5632 24 32 32 100352 use_qkv_bias=true positions=4096
            3b   2560  6912 32 32 32  50304 positions=4096
            12b  5120 13824 40 32  8 100352 qk_layernorm=true use_parallel_residual=true positions=4096
            """
        ),
        default="3b",
        sequence=4096,
    ),
    "command-r": DecoderFamily(
        title="Command R",
        model_type="cohere",
        sizes=_rows(
            """
            35b   8192 22528 40 64 64 256000 positions=8192
            104b 12288 33792 64 96  8 256000 positions=8192 use_qk_norm=true
            """
        ),
        default="35b",
        size_aliases={"plus": "104b"},
    ),
    "gpt-neox": DecoderFamily(title="GPT-NeoX", model_type="gpt_neox", sizes={"20b": {}}, default="20b", sequence=2048),
    "pythia": DecoderFamily(
        title="Pythia",
        model_type="gpt_neox",
        sizes=_rows(
            """
            1.4b 2048  8192 24 16 16 50304 positions=2048
            2.8b 2560 10240 32 32 32 50304 positions=2048
            6.9b 4096 16384 32 32 32 50432 positions=2048
            12b  5120 20480 36 40 40 50688 positions=2048
            """
        ),
        default="6.9b",
        sequence=2048,
    ),
    "gpt-j": DecoderFamily(title="GPT-J", model_type="gptj", sizes={"6b": {}}, default="6b", sequence=2048),
    "bloom": DecoderFamily(
        title="BLOOM",
        model_type="bloom",
        sizes={
            "7.1b": {"hidden_size": 4096, "n_layer": 30, "n_head": 32},
            "176b": {"hidden_size": 14336, "n_layer": 70, "n_head": 112},
        },
        default="176b",
        sequence=2048,
    ),
    "starcoder2": DecoderFamily(
        title="StarCoder2",
        model_type="starcoder2",
        sizes=_rows(
            """
            3b  3072 12288 30 24 2 49152 window=4096 positions=16384
            7b  4608 18432 32 36 4 49152 window=4096 positions=16384
            15b 6144 24576 40 48 4 49152 window=4096 positions=16384
            """
        ),
        default="15b",
        sequence=4096,
    ),
}
"""Families by the name that is listed."""


def find_published(reference: str) -> PublishedDecoder | None:
    """The published decoder that a reference names.

    Args:
        reference: name and size, and options behind another colon

    Returns:
        The decoder; None where the name is that of none.

    Example:
        >>> found = find_published("Qwen3-235B-A22B:sequence=8192")
        >>> found.name, found.values["num_hidden_layers"], found.options
        ('qwen3:235b-a22b', 94, 'sequence=8192')
        >>> find_published("deepseek-v3").sequence, find_published("vgg16"), find_published("mixtral:9x9b")
        (4096, None, None)
    """
    name, options = reference, ""
    if "=" in reference:
        name, _, options = reference.rpartition(":")
    known = _spellings().get(_plain(name))
    if known is None:
        return None
    family, size = known
    found = DECODER_FAMILIES[family]
    values = {"model_type": found.model_type, **found.sizes[size]}
    listed = family if len(found.sizes) == 1 else f"{family}:{size}"
    return PublishedDecoder(name=listed, values=values, sequence=found.sequence or None, options=options)


def unknown_size(reference: str) -> tuple[str, tuple[str, ...]] | None:
    """A family of decoders and its sizes, where a reference names the family and a size that it has not.

    Example:
        >>> unknown_size("mixtral:9x9b"), unknown_size("vgg16")
        (('mixtral', ('8x7b', '8x22b')), None)
    """
    family, colon, _ = reference.partition(":")
    known = _spellings().get(_plain(family))
    if not colon or known is None or find_published(reference) is not None:
        return None
    return known[0], tuple(DECODER_FAMILIES[known[0]].sizes)


def _plain(text: str) -> str:
    return re.sub(r"[-_: ]", "", text.strip().lower())


@functools.cache
def _spellings() -> Mapping[str, tuple[str, str]]:
    """Family and size by each spelling, without dashes and colons."""
    known: dict[str, tuple[str, str]] = {}
    for name, family in DECODER_FAMILIES.items():
        for called in (name, *family.aliases):
            known[_plain(called)] = name, family.default
            for size in (*family.sizes, *family.size_aliases):
                known[_plain(called + size)] = name, family.size_aliases.get(size, size)
    return known
