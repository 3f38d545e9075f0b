"""How a job reference names a published network: `vgg16`, `gpt2:1.5b`, `bert:large:sequence=512,head=squad`.

A name, then the size where the network has several, then options. Dashes and underscores are the same in names, and
upper case does not count. Torch is not needed to read one; what makes the job is `network_jobs.py`.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.errors import InputError
from trimaran.networks.sizes import FAMILIES, size_name
from trimaran.session.network_summaries import NETWORK_SUMMARIES

GNMT_LAYERS: Mapping[str, int] = {"8": 4, "16": 8}
"""Layers of GNMT's encoder, and of its decoder, by their sum, which is how its sizes are named."""

_GNMT_SIZE = "16"
_ALIASES = {
    "biglstm": "big-lstm",
    "googlenet-v1": "googlenet",
    "inception3": "inception-v3",
    "inceptionv3": "inception-v3",
    "inception4": "inception-v4",
    "inceptionv4": "inception-v4",
    "resnet50-v1.5": "resnet50",
    "resnext50-32x4d": "resnext50",
    "resnext101-32x4d": "resnext101",
    "se-resnext50-32x4d": "se-resnext50",
    "se-resnext101-32x4d": "se-resnext101",
    "seresnet50": "se-resnet50",
    "seresnext50": "se-resnext50",
    "seresnext101": "se-resnext101",
    "gpt2-small": "gpt2:124m",
    "gpt2-medium": "gpt2:355m",
    "gpt2-large": "gpt2:774m",
    "gpt2-xl": "gpt2:1.5b",
    "bert-base": "bert:base",
    "bert-large": "bert:large",
    "transformer-base": "transformer:base",
    "transformer-big": "transformer:big",
    "megatron": "gpt",
}
_LANGUAGE = frozenset({*FAMILIES, "gnmt", "lstm", "lstm-wikitext2", "big-lstm"})
_AUXILIARY = frozenset({"googlenet", "googlenet-2014", "inception-v3"})
_FIXED = frozenset({"lenet"})  # made for images of one size
_WORDS = {"head": ("pretraining", "squad"), "auxiliary": ("yes", "no")}
"""Options whose values are words; all others are whole numbers from 1 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkReference:
    """A published network, as it was asked for.

    Attributes:
        name: as `trimaran jobs` lists it
        size: by the name that is listed; "" for networks of one size
        options: checked, by name
    """

    name: str
    size: str
    options: Mapping[str, str]

    def number(self, option: str, usual: int) -> int:
        """The value of an option that is a whole number."""
        return int(self.options.get(option, usual))

    def __str__(self) -> str:
        """The shortest reference to the same network.

        Example:
            >>> str(parse_network("GPT2:XL:sequence=512"))
            'gpt2:1.5b:sequence=512'
        """
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        size = "" if self.size == _usual_size(self.name) else self.size
        return ":".join(part for part in (self.name, size, options) if part)


def parse_network(reference: str) -> NetworkReference | None:
    """What a reference says of a published network.

    Args:
        reference: name, size and options

    Returns:
        The network; None where the name is that of none.

    Raises:
        InputError: the network has no such size or option, or the option no such value

    Example:
        >>> parse_network("gnmt:8").size, parse_network("inception_v3").name, parse_network("job.py:make")
        ('8', 'inception-v3', None)
    """
    first, *rest = reference.split(":")
    first = first.strip().lower().replace("_", "-")
    name, *own = _ALIASES.get(first, first).split(":")
    if name not in NETWORK_SUMMARIES:
        return None
    parts = [part.strip() for text in (*own, *rest) for part in text.split(",")]
    sizes = [part for part in parts if "=" not in part and part]
    pairs = [part for part in parts if "=" in part]
    if len(sizes) > 1:
        raise InputError(
            f'"{reference}" names two sizes, {sizes[0]} and {sizes[1]}: name one', code="network.two-sizes", sizes=sizes
        )
    size = _size(name, sizes[0] if sizes else "", reference)
    return NetworkReference(name=name, size=size, options=dict(_option(name, pair, reference) for pair in pairs))


def with_options(reference: str, options: Mapping[str, str]) -> str:
    """A reference to the same network with more options; those that it has give way.

    Args:
        reference: of a published network
        options: by name

    Raises:
        InputError: it names no published network, or the network has no such option

    Example:
        >>> with_options("bert:large:head=squad", {"sequence": "384"})
        'bert:large:head=squad,sequence=384'
    """
    known = parse_network(reference)
    if known is None:
        raise InputError(f'"{reference}" is no published network, so it has no options', reference=reference)
    pairs = ",".join(f"{name}={value}" for name, value in {**known.options, **options}.items())
    return str(parse_network(":".join(part for part in (known.name, known.size, pairs) if part)))


def option_names(name: str) -> tuple[str, ...]:
    """The options that a network has.

    Example:
        >>> option_names("vgg16"), option_names("gnmt")
        (('image',), ('sequence',))
    """
    if name == "bert":
        return ("sequence", "head", "guesses")
    if name == "transformer":
        return ("sequence", "vocabulary")
    if name in _LANGUAGE:
        return ("sequence",)
    if name in _FIXED:
        return ()
    return ("image", "auxiliary") if name in _AUXILIARY else ("image",)


def sizes_of(name: str) -> tuple[str, ...]:
    """The sizes that a network has; none where it has one only."""
    if name == "gnmt":
        return tuple(GNMT_LAYERS)
    return tuple(FAMILIES[name].sizes) if name in FAMILIES else ()


def _usual_size(name: str) -> str:
    if name == "gnmt":
        return _GNMT_SIZE
    return FAMILIES[name].default if name in FAMILIES else ""


def _size(name: str, size: str, reference: str) -> str:
    if name in FAMILIES:
        try:
            return size_name(name, size)
        except InputError as error:
            raise InputError(f'"{reference}": {error.message}', code=error.code, **error.figures) from None
    known = sizes_of(name)
    if not size:
        return _usual_size(name)
    if size in known:
        return size
    told = f"{name} has the sizes {', '.join(known)}" if known else f"{name} has one size"
    raise InputError(f'"{reference}": no size "{size}"; {told}', code="network.unknown-size", size=size)


def _option(name: str, pair: str, reference: str) -> tuple[str, str]:
    option, _, value = (part.strip().lower() for part in pair.partition("="))
    known = option_names(name)
    if option not in known:
        near = difflib.get_close_matches(option, known, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ";"
        told = f"{name} has {', '.join(known)}" if known else f"{name} has none"
        raise InputError(
            f'"{reference}": no option "{option}"{hint} {told}', code="network.unknown-option", option=option
        )
    words = _WORDS.get(option)
    if words is None and not (value.isdecimal() and int(value) >= 1):
        raise InputError(
            f'"{reference}": {option} must be a whole number from 1 on, not "{value}"',
            code="network.not-a-count",
            value=value,
        )
    if words is not None and value not in words:
        raise InputError(
            f'"{reference}": {option} must be {" or ".join(words)}, not "{value}"',
            code="network.unknown-value",
            value=value,
        )
    return option, value
