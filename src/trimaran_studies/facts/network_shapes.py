"""The shape of a transformer that a published row names.

Families and sizes of Trimaran's networks come from `networks/sizes.py`; a row can also contain a shape ("GPT h2048
L20"). This module adds networks that are only in published tables.
"""

import re
from collections.abc import Mapping

from trimaran.networks.sizes import FAMILIES
from trimaran.pricing.analytical.shapes import (
    LAYER_BIASES,
    NO_BIASES,
    Experts,
    LatentAttention,
    TransformerShape,
    decoder_of,
    gpt_shape,
)


def _decoder(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocabulary: int,
    *,
    gated: bool = True,
    head_size: int = 0,
) -> TransformerShape:
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size or hidden // heads,
        ffn=ffn,
        vocabulary=vocabulary,
        sequence=4096,
        gated=gated,
        biases=NO_BIASES,
        tied=False,
        rotary=True,
        centred_norm=False,
    )


def _with(shape: TransformerShape, **changes: object) -> TransformerShape:
    values = {name: getattr(shape, name) for name in TransformerShape.__slots__}
    return TransformerShape(**{**values, **changes})


_OTHERS: Mapping[str, TransformerShape] = {
    # NVIDIA/NeMo, scripts/llm and nemo/collections/llm/gpt/model/{nemotron,mixtral,qwen3,deepseek,gpt_oss}.py
    "nemotron 8b": _decoder(32, 4096, 32, 32, 16384, 256000, gated=False),
    "nemotron 15b": _decoder(32, 6144, 48, 8, 24576, 256000, gated=False),
    "nemotron 22b": _decoder(40, 6144, 48, 48, 24576, 256000, gated=False),
    "nemotron 340b": _decoder(96, 18432, 96, 8, 73728, 256000, gated=False),
    "mixtral 8x7b": _with(_decoder(32, 4096, 32, 8, 14336, 32000), experts=Experts(count=8, active=2, ffn=14336)),
    "mixtral 8x22b": _with(_decoder(56, 6144, 48, 8, 16384, 32000), experts=Experts(count=8, active=2, ffn=16384)),
    "qwen3 30b": _with(
        _decoder(48, 2048, 32, 4, 6144, 151936, head_size=128),
        query_key_norm="head",
        experts=Experts(count=128, active=8, ffn=768),
    ),
    "qwen3 235b": _with(
        _decoder(94, 4096, 64, 4, 12288, 151936, head_size=128),
        query_key_norm="head",
        experts=Experts(count=128, active=8, ffn=1536),
    ),
    "deepseekv3": _with(
        _decoder(61, 7168, 128, 128, 18432, 129280, head_size=128),
        experts=Experts(count=256, active=8, ffn=2048, shared_ffn=2048, dense_layers=3),
        latent=LatentAttention(query_rank=1536, key_rank=512, head_size=128, rotary_size=64, value_size=128),
    ),
    # Configurations on huggingface.co: mistralai, Qwen, google, tiiuae, bigscience, EleutherAI, TinyLlama, openlm
    "mistral 7b": _decoder(32, 4096, 32, 8, 14336, 32000),
    "qwen2 7b": _decoder(28, 3584, 28, 4, 18944, 152064),
    "qwen2 72b": _decoder(80, 8192, 64, 8, 29568, 152064),
    "gemma 2b": _decoder(18, 2048, 8, 1, 16384, 256000, head_size=256),
    "gemma 7b": _decoder(28, 3072, 16, 16, 24576, 256000, head_size=256),
    "falcon 7b": _decoder(32, 4544, 71, 1, 18176, 65024, gated=False, head_size=64),
    "falcon 40b": _decoder(60, 8192, 128, 8, 32768, 65024, gated=False, head_size=64),
    "falcon 180b": _decoder(80, 14848, 232, 8, 59392, 65024, gated=False, head_size=64),
    "bloom 7b": _decoder(30, 4096, 32, 32, 16384, 250880, gated=False),
    "bloom 7.1b": _decoder(30, 4096, 32, 32, 16384, 250880, gated=False),
    "bloom 176b": _decoder(70, 14336, 112, 112, 57344, 250880, gated=False),
    "gpt neox 20b": _decoder(44, 6144, 64, 64, 24576, 50432, gated=False),
    "gpt j 6b": _decoder(28, 4096, 16, 16, 16384, 50400, gated=False),
    "tinyllama 1.1b": _decoder(22, 2048, 32, 4, 5632, 32000),
    "llama 1.1b": _decoder(22, 2048, 32, 4, 5632, 32000),
    "openllama 3b": _decoder(26, 3200, 32, 32, 8640, 32000),
    # princeton-nlp/LLM-Shearing, llmshearing/configs
    "llama 1.3b": _decoder(24, 2048, 16, 16, 5504, 32000),
    "llama 2.7b": _decoder(32, 2560, 20, 20, 6912, 32000),
    "gpt oss 120b": _with(
        _decoder(36, 2880, 64, 8, 2880, 201088, head_size=64),
        experts=Experts(count=128, active=4, ffn=2880),
        biases=LAYER_BIASES | {"router"},
    ),
}
"""Networks of published tables that Trimaran has no job of, all with one sequence length; a row has its own."""

_SCRIPTS: Mapping[str, tuple[int, int]] = {
    # bigscience-workshop/bigscience, experiments/gpt2-meg/*.slurm: billions of parameters -> layers, hidden size
    "7": (36, 4096), "7.5": (36, 4096), "14": (32, 6144), "18": (40, 6144), "22": (48, 6144), "24": (40, 7168),
    "25": (40, 7168), "30": (48, 7168), "39": (48, 8192), "50": (60, 8192), "52": (64, 8192), "65": (64, 9216),
    "78": (64, 10240), "81": (64, 10240), "97": (64, 11264), "116": (64, 12288), "136": (64, 13312), "158": (64, 14336),
    "181": (64, 15360), "206": (64, 16384),
}  # fmt: skip


def named_shape(text: str, *, sequence: int, source: str = "") -> TransformerShape | None:
    """The shape of a network, by its name in a row.

    Args:
        text: such as "LLAMA2-70B", "GPT h2048 L20", "Qwen3_30B_a3B"
        sequence: tokens of a sequence
        source: repository that the row is from: its scripts may have other sizes

    Returns:
        The shape; None where the name is not known.

    Example:
        >>> shape = named_shape("LLAMA3_70B", sequence=8192)
        >>> shape.layers, shape.kv_heads, shape.ffn
        (80, 8, 28672)
        >>> named_shape("GPT h2048 L20", sequence=1024).layers
        20
    """
    said = _SAID.search(text.lower())
    if said is not None:
        hidden, layers = int(said.group(1)), int(said.group(2))
        rows, heads = 51200, hidden // 128
        if "vTrain" in source:
            # VIA-Research/vTrain, config/validation and src/config.py: sixteen heads at least, entries not padded.
            rows, heads = 50257, 32 if hidden == 3072 else max(16, heads)
        heads = int(said.group(3) or max(1, heads))
        return gpt_shape(layers=layers, hidden=hidden, heads=heads, vocabulary=rows, sequence=sequence)
    if "bigscience" in source and (scripted := _of_script(text, sequence)) is not None:
        return scripted
    text = re.sub(r"(gpt[-_ ]\d)_(?=\d+b)", r"\1.", text.lower())
    plain = re.sub(r"[^a-z0-9.]+", " ", text).strip()
    plain = re.sub(r"^(nemotron|qwen)[ ]?4 (?=\d)", r"\1 ", plain).replace("qwen2.5", "qwen2")
    for name, shape in _OTHERS.items():
        if re.sub(r"(?<=[a-z])(?=\d)", " ", plain).replace(" ", "").startswith(name.replace(" ", "")):
            return _with(shape, sequence=sequence)
    return decoder_of(text, sequence) or _as_wide_as_gpt(plain, sequence)


_SAID = re.compile(
    r"h(?:idden)?(?:_?size)?[ =_]*(\d{2,6})[ ,_x]*l(?:ayers)?[ =_]*(\d{1,4})(?:[ ,_x]*(?:a|heads)[ =_]*(\d{1,4}))?"
)
"""A shape in words: hidden size, layers, heads."""


def _as_wide_as_gpt(plain: str, sequence: int) -> TransformerShape | None:
    """A decoder of a family with the sizes of Megatron's GPT, as in benchmarks of planners."""
    size = re.search(r"^(gpt|llama|falcon)\w*(?: \d+)*? ?(\d+(?:\.\d+)?) ?b\b", plain)
    if size is None:
        return None
    family, asked = size.group(1), float(size.group(2))
    known = {float(name[:-1]): figures for name, figures in FAMILIES["gpt"].sizes.items() if name.endswith("b")}
    # "3B" may be 3.6 billion, truncated.
    nearest = min(known, key=lambda each: (int(each) != asked, abs(each - asked)))
    if abs(nearest / asked - 1.0) > _NEAR:
        return None
    figures = known[nearest]
    if family == "gpt":
        return gpt_shape(
            layers=figures.layers, hidden=figures.width, heads=figures.heads, vocabulary=51200, sequence=sequence
        )
    # Three products of 8/3 h, as wide as a multiple of 256, in place of two of 4 h.
    inner = -(-8 * figures.width // 3 // 256) * 256 if family == "llama" else 4 * figures.width
    found = _decoder(figures.layers, figures.width, figures.heads, figures.heads, inner, 32000, gated=family == "llama")
    return _with(found, sequence=sequence)


_NEAR = 0.21
"""Largest difference of a size from its name, as a share of it: "3B" is 3.6 billion."""


def _of_script(text: str, sequence: int) -> TransformerShape | None:
    size = re.search(r"([\d.]+)\s*b\b", text.lower())
    known = _SCRIPTS.get(size.group(1)) if size else None
    if known is None:
        return None
    layers, width = known
    heads = width // 256 if width > 8192 else 32
    return gpt_shape(layers=layers, hidden=width, heads=heads, vocabulary=50688, sequence=sequence)
