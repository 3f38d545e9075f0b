"""The transformer families and their sizes by name: figures only, without torch.

A family is one architecture; a size is how wide and deep it is. What makes a module of a size
is the family's own file (`bert.py`, `gpt.py`, `llama.py`, `transformer.py`, `transformer_xl.py`). A size may
have several names, and `FAMILIES` says which of them is listed.

How large the published transformers are: figures only, without torch.

What families these sizes make up, and how a size is found by its name, is in `sizes.py`. Names of sizes are the
customary ones.

Source:
    The papers and configurations named above each table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trimaran.base.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSize:
    """How large a transformer is.

    Attributes:
        width: size of a token's state
        layers: blocks; of a network of two stacks, in each of them
        heads: of each attention
        dense: width inside the dense layers of a block
        vocabulary: number of different tokens
        positions: longest window that it was trained with [tokens]
        kv_heads: heads of keys and values, where they are fewer; 0: as many
        tied: the embedding is the head's matrix too
    """

    width: int
    layers: int
    heads: int
    dense: int
    vocabulary: int
    positions: int
    kv_heads: int = 0
    tied: bool = True

    @property
    def head_size(self) -> int:
        """Elements of one head."""
        return self.width // self.heads

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads


def _square(vocabulary: int, positions: int, rows: str) -> dict[str, TransformerSize]:
    """Sizes whose dense layers are four times as wide as a state; a row is a name, width, layers and heads."""
    sizes = {}
    for row in rows.strip().splitlines():
        name, width, layers, heads = row.split()
        sizes[name] = TransformerSize(
            width=int(width),
            layers=int(layers),
            heads=int(heads),
            dense=4 * int(width),
            vocabulary=vocabulary,
            positions=positions,
        )
    return sizes


# Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, table 2.
GPT2 = _square(
    50_257,
    1024,
    """
    124m  768 12 12
    355m 1024 24 16
    774m 1280 36 20
    1.5b 1600 48 25
    """,
)

# Brown et al., arXiv:2005.14165, 2020, table 2.1; the 1.3 B there has 24 heads of 128, which do not make 2048: 16 here,
# and 5120 for the 5140 of 13 B. 5 B, 20 B and 40 B are those of NVIDIA's NeMo launcher.
GPT3 = _square(
    50_257,
    2048,
    """
    125m   768 12 12
    350m  1024 24 16
    760m  1536 24 16
    1.3b  2048 24 16
    2.7b  2560 32 32
    5b    4096 24 32
    6.7b  4096 32 32
    13b   5120 40 40
    20b   6144 44 48
    40b   8192 48 64
    175b 12288 96 96
    """,
)

# Narayanan et al., SC 2021, table 1 (1.7b to 1t); Shoeybi et al., arXiv:1909.08053, table 1 (1.2b to 8.3b); Korthikanti
# et al., MLSys 2023, table 3 (22b, 175b, 530b); Zheng et al., OSDI 2022, table 5 (1.3b, 2.6b, 6.7b, 15b).
GPT = _square(
    51_200,
    2048,
    """
    125m    768  12  12
    345m   1024  24  16
    760m   1536  24  16
    1.2b   1536  40  16
    1.3b   2048  24  32
    1.7b   2304  24  24
    2.5b   1920  54  20
    2.6b   2560  32  32
    3.6b   3072  30  32
    4.2b   2304  64  24
    6.7b   4096  32  32
    7.5b   4096  36  32
    8.3b   3072  72  32
    13b    5120  40  40
    15b    5120  48  40
    18.4b  6144  40  48
    22b    6144  48  64
    39.1b  8192  48  64
    76.1b 10240  60  80
    145.6b 12288 80  96
    175b  12288  96  96
    310.1b 16384 96 128
    530b  20480 105 128
    1t    25600 128 160
    """,
)

# Zhang et al., arXiv:2205.01068, 2022, table 1; the vocabulary is that of its published configurations.
OPT = _square(
    50_272,
    2048,
    """
    125m   768 12 12
    1.3b  2048 24 32
    2.7b  2560 32 32
    6.7b  4096 32 32
    13b   5120 40 40
    30b   7168 48 56
    66b   9216 64 72
    175b 12288 96 96
    """,
)

# mosaicml/llm-foundry, scripts/train/yamls/pretrain/mpt-*.yaml and scripts/train/benchmarking.
MPT = _square(
    50_368,
    2048,
    """
    125m  768 12 12
    350m 1024 24 16
    760m 1536 24 12
    1b   2048 24 16
    3b   2560 32 20
    7b   4096 32 32
    13b  5120 40 40
    30b  7168 48 56
    70b  8192 80 64
    """,
)


def _llama(
    width: int,
    layers: int,
    heads: int,
    dense: int,
    *,
    kv: int = 0,
    three: bool = False,
    positions: int,
    tied: bool = False,
) -> TransformerSize:
    return TransformerSize(
        width=width,
        layers=layers,
        heads=heads,
        dense=dense,
        vocabulary=128_256 if three else 32_000,
        positions=positions,
        kv_heads=kv,
        tied=tied,
    )


# Touvron et al., arXiv:2302.13971, 2023, table 2; the dense widths are those of the published configurations.
LLAMA1 = {
    "7b": _llama(4096, 32, 32, 11_008, positions=2048),
    "13b": _llama(5120, 40, 40, 13_824, positions=2048),
    "33b": _llama(6656, 60, 52, 17_920, positions=2048),
    "65b": _llama(8192, 80, 64, 22_016, positions=2048),
}
# Touvron et al., arXiv:2307.09288, 2023; 34b as published for Code Llama.
LLAMA2 = {
    "7b": _llama(4096, 32, 32, 11_008, positions=4096),
    "13b": _llama(5120, 40, 40, 13_824, positions=4096),
    "34b": _llama(8192, 48, 64, 22_016, kv=8, positions=4096),
    "70b": _llama(8192, 80, 64, 28_672, kv=8, positions=4096),
}
# Grattafiori et al., arXiv:2407.21783, 2024, table 3; 1b and 3b as published for Llama 3.2.
LLAMA3 = {
    "1b": _llama(2048, 16, 32, 8192, kv=8, three=True, positions=8192, tied=True),
    "3b": _llama(3072, 28, 24, 8192, kv=8, three=True, positions=8192, tied=True),
    "8b": _llama(4096, 32, 32, 14_336, kv=8, three=True, positions=8192),
    "70b": _llama(8192, 80, 64, 28_672, kv=8, three=True, positions=8192),
    "405b": _llama(16_384, 126, 128, 53_248, kv=8, three=True, positions=8192),
}

# Devlin et al., NAACL 2019.
BERT = _square(
    30_522,
    512,
    """
    base   768 12 12
    large 1024 24 16
    """,
)

# Vaswani et al., NeurIPS 2017, table 3, with its shared vocabulary of about 37,000 pieces of English and German.
TRANSFORMER = _square(
    37_000,
    1024,
    """
    base  512 6  8
    big  1024 6 16
    """,
)

# NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/Transformer-XL/pytorch/wt103_base.yaml and wt103_large.yaml.
TRANSFORMER_XL = {
    "base": TransformerSize(width=512, layers=16, heads=8, dense=2048, vocabulary=267_735, positions=192),
    "large": TransformerSize(width=1024, layers=18, heads=16, dense=4096, vocabulary=267_735, positions=384),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Sizes of one architecture.

    Attributes:
        title: for people
        sizes: by name
        default: the size where none is named
        sequence: usual window where none is asked for [tokens]
        aliases: other names of sizes
        batch: usual global batch of a job
    """

    title: str
    sizes: Mapping[str, TransformerSize]
    default: str
    sequence: int
    aliases: Mapping[str, str] = field(default_factory=dict)
    batch: int = 8


def _aliases(text: str) -> dict[str, str]:
    """Other names of sizes, each with an equals sign and the name that is listed."""
    return dict(pair.split("=") for pair in text.split())


FAMILIES: Mapping[str, Family] = {
    "bert": Family(title="BERT", sizes=BERT, default="base", sequence=128, batch=64),
    "transformer": Family(title="Transformer", sizes=TRANSFORMER, default="base", sequence=32, batch=128),
    "transformer-xl": Family(title="Transformer-XL", sizes=TRANSFORMER_XL, default="base", sequence=192, batch=256),
    "gpt2": Family(
        title="GPT-2",
        sizes=GPT2,
        default="124m",
        sequence=1024,
        aliases=_aliases(
            "small=124m medium=355m large=774m xl=1.5b 117m=124m 345m=355m 762m=774m 1542m=1.5b 1558m=1.5b 1.6b=1.5b"
        ),
    ),
    "gpt3": Family(
        title="GPT-3",
        sizes=GPT3,
        default="175b",
        sequence=2048,
        aliases={"small": "125m", "medium": "350m", "large": "760m", "xl": "1.3b", "126m": "125m", "357m": "350m"},
    ),
    "gpt": Family(
        title="GPT of Megatron",
        sizes=GPT,
        default="345m",
        sequence=2048,
        aliases=_aliases(
            "126m=125m 350m=345m 355m=345m 357m=345m 2.7b=2.6b 18b=18.4b 39b=39.1b "
            "76b=76.1b 145b=145.6b 146b=145.6b 310b=310.1b 529.6b=530b 1008b=1t 1000b=1t"
        ),
    ),
    "opt": Family(title="OPT", sizes=OPT, default="125m", sequence=2048),
    "mpt": Family(title="MPT", sizes=MPT, default="7b", sequence=2048, aliases={"1.3b": "1b"}),
    "llama": Family(
        title="Llama",
        sizes={
            **{size: LLAMA3[size] for size in ("1b", "3b")},
            **{size: LLAMA2[size] for size in ("7b", "13b")},
            "8b": LLAMA3["8b"],
            **{size: LLAMA1[size] for size in ("33b", "65b")},
            **{size: LLAMA2[size] for size in ("34b", "70b")},
            "405b": LLAMA3["405b"],
        },
        default="7b",
        sequence=2048,
        aliases={"30b": "33b"},
    ),
    "llama1": Family(title="Llama 1", sizes=LLAMA1, default="7b", sequence=2048, aliases={"30b": "33b"}),
    "llama2": Family(title="Llama 2", sizes=LLAMA2, default="7b", sequence=4096),
    "llama3": Family(title="Llama 3", sizes=LLAMA3, default="8b", sequence=8192),
}
"""Families of transformers by name, each with its published sizes."""


def find_size(family: str, size: str = "") -> TransformerSize:
    """The figures of a size.

    Args:
        family: one of `FAMILIES`
        size: by one of its names, without regard to case; "": the usual one

    Raises:
        InputError: no such family or size

    Example:
        >>> find_size("llama3", "70B").layers, find_size("gpt3", "xl").width
        (80, 2048)
    """
    return FAMILIES[_known(family, FAMILIES, "family")].sizes[size_name(family, size)]


def size_name(family: str, size: str = "") -> str:
    """The name under which a size is listed.

    Args:
        family: one of `FAMILIES`
        size: by one of its names; "": the usual one

    Raises:
        InputError: no such family or size

    Example:
        >>> size_name("gpt2", "XL"), size_name("bert")
        ('1.5b', 'base')
    """
    found = FAMILIES[_known(family, FAMILIES, "family")]
    name = size.lower() or found.default
    return _known(found.aliases.get(name, name), found.sizes, f"size of {found.title}", also=found.aliases)


def _known(name: str, names: Mapping[str, object], what: str, *, also: Iterable[str] = ()) -> str:
    if name in names:
        return name
    hint = did_you_mean(name, names, also=also)
    raise InputError(f'no {what} "{name}"{hint}', code="transformer.unknown", name=name)


# ---------------------------------------------------------------------------------------------------------------------
# How wide a reduced network is: every family takes a `width` that multiplies the channels of the published form


def scaled(channels: int, width: float) -> int:
    """Channels of a layer in a network of another width; at least one.

    Args:
        channels: of the published form
        width: what to multiply them by; 1 leaves them as they are

    Example:
        >>> scaled(64, 0.125)
        8
    """
    return max(1, round(channels * width))
