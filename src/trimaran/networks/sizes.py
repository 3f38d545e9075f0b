"""The transformer families and their sizes by name: figures only, without torch.

A family is one architecture; a size is how wide and deep it is (`transformer_sizes.py`). What makes a module of a size
is the family's own file (`bert.py`, `gpt2.py`, `llama.py`, `mpt.py`, `transformer.py`, `transformer_xl.py`). A size may
have several names, and `FAMILIES` says which of them is listed.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from trimaran.errors import InputError
from trimaran.networks.transformer_sizes import (
    BERT,
    GPT,
    GPT2,
    GPT3,
    LLAMA1,
    LLAMA2,
    LLAMA3,
    MPT,
    OPT,
    TRANSFORMER,
    TRANSFORMER_XL,
    TransformerSize,
)


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


def _known(name: str, names: Mapping[str, object], what: str, also: Mapping[str, str] | None = None) -> str:
    if name in names:
        return name
    near = difflib.get_close_matches(name, [*names, *(also or {})], n=1)
    hint = f'; did you mean "{near[0]}"?' if near else "."
    raise InputError(f'no {what} "{name}"{hint} There are {", ".join(names)}', code="transformer.unknown", name=name)
