"""Decoders by the names that people use, as the figures of their published configurations.

A name stands for a `config.json`: `mixtral:8x7b`, `deepseek-v3`, `qwen3:235b-a22b`. Dashes, underscores, blanks and
upper case do not count, and the size may be joined to the name by a dash: "Qwen3-235B-A22B" and "llama_3.1_405b" are
known. A size may be left out where the family has a usual one.

The figures and their sources are in `decoders.toml`. Where no report tells how long sequences of pre-training were, the
usual 4,096 tokens are assumed, and plans say so.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimaran.base.files import packaged_toml
from trimaran.networks.sizes import name_pairs, size_rows

USUAL_SEQUENCE = 4096
"""Tokens of a sequence where nothing says how long training sequences are; fewer where there are fewer positions."""


def usual_sequence(positions: int) -> int:
    """Tokens of a training sequence of a model whose configuration does not say, as all commands assume it.

    A power of two: some models keep a few of their positions for themselves.

    Args:
        positions: of the model

    Example:
        >>> usual_sequence(514), usual_sequence(131072)
        (512, 4096)
    """
    return min(USUAL_SEQUENCE, 1 << (positions.bit_length() - 1))


def assumed_sequence_words(sequence: int, positions: int) -> str:
    """A note on the tokens of a training sequence that no configuration says.

    Args:
        sequence: tokens that are assumed
        positions: of the model; 0: it has any number
    """
    said = f"{positions:,} positions, not" if positions else "neither a number of positions nor"
    return (
        f"sequences of {sequence:,} tokens are assumed: the configuration says {said} how long training sequences are; "
        "--sequence changes it"
    )


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


_COLUMNS = (
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


def _family(table: Mapping[str, Any]) -> DecoderFamily:
    rows = size_rows(table["sizes"], _COLUMNS)
    return DecoderFamily(
        title=table["title"],
        model_type=table["model_type"],
        sizes={name: {_SHORT.get(key, key): value for key, value in row.items()} for name, row in rows.items()},
        default=table["default"],
        sequence=table.get("sequence", 0),
        aliases=tuple(table.get("aliases", "").split()),
        size_aliases=name_pairs(table.get("size_aliases", "")),
    )


DECODER_FAMILIES: Mapping[str, DecoderFamily] = {
    name: _family(table) for name, table in packaged_toml("trimaran.networks", "decoders.toml").items()
}
"""Families by the name that is listed (`decoders.toml`)."""


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
