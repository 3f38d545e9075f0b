"""How large the published transformers are: figures only, without torch.

What families these sizes make up, and how a size is found by its name, is in `sizes.py`. Names of sizes are the
customary ones.

Source:
    The papers and configurations named beside each table.
"""

from dataclasses import dataclass


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
