"""The transformer families and their sizes by name: figures only, without torch.

A family is one architecture; a size is how wide and deep it is. What makes a module of a size
is the family's own file (`bert.py`, `gpt.py`, `llama.py`, `transformer.py`, `transformer_xl.py`). A size may
have several names, and `FAMILIES` says which of them is listed. The figures and their sources are in `sizes.toml`;
names of sizes are the customary ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.files import packaged_toml


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


def size_rows(text: str, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Sizes as the tables of `sizes.toml` and `decoders.toml` write them.

    Args:
        text: a row a size: its name, then a figure for each column or for none of them, then others by name
        columns: names of the figures that come first

    Returns:
        Figures of each size by name.

    Example:
        >>> size_rows("2b 2304 26 head=256 tied=true", ("width", "layers"))
        {'2b': {'width': 2304, 'layers': 26, 'head': 256, 'tied': True}}
    """
    sizes = {}
    for name, *words in (row.split() for row in text.splitlines() if row):
        first = [word for word in words if "=" not in word]
        named = dict(zip(columns, first, strict=True)) if first else {}
        named |= name_pairs(" ".join(words[len(first) :]))
        sizes[name] = {key: _figure(figure) for key, figure in named.items()}
    return sizes


def _figure(text: str) -> int | bool | str | None:
    words = {"true": True, "false": False, "null": None}
    return words[text] if text in words else int(text) if text.isdecimal() else text


def name_pairs(text: str) -> dict[str, str]:
    """Names with an equals sign and what they stand for, apart by blanks."""
    return dict(pair.split("=") for pair in text.split())


def _family(table: Mapping[str, Any]) -> Family:
    common = {name: table[name] for name in ("vocabulary", "positions", "tied") if name in table}
    sizes = {
        name: TransformerSize(**{"dense": 4 * row["width"], **common, **row})
        for name, row in size_rows(table["sizes"], ("width", "layers", "heads")).items()
    }
    own = {name: table[name] for name in ("title", "default", "sequence", "batch") if name in table}
    return Family(sizes=sizes, aliases=name_pairs(table.get("aliases", "")), **own)


FAMILIES: Mapping[str, Family] = {
    name: _family(table) for name, table in packaged_toml("trimaran.networks", "sizes.toml").items()
}
"""Families of transformers by name, each with its published sizes (`sizes.toml`)."""


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
