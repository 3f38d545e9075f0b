"""What networks are called: in references to jobs, and as people and publications spell them.

A reference such as `vgg16`, `gpt2:1.5b` or `bert:large:sequence=512,head=squad` is a name, then the size where the
network has several, then options. Dashes and underscores are the same in names, and upper case does not count. Torch is
not needed to read one; what makes the job is `jobs/published_jobs.py`.

Which network a spelling means: the answer is a job reference, one of `trimaran catalog jobs`, with the size where the
spelling says one. A network that is not ours is never taken for one that is: "resnest50", "efficientnetv2_s" and
"resnet50d" are None.

A spelling is split into words and numbers. Words that say nothing about the network are left out; the rest must be,
as a whole, one of the spellings below, or the name of a family of language with words that it may have.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.files import packaged_toml
from trimaran.base.units import MOST_SEQUENCE, whole_number
from trimaran.networks.sizes import FAMILIES, size_name

# ---------------------------------------------------------------------------------------------------------------------
# The published networks that jobs can be made of: figures only. `published.toml` has them, a row each: what people are
# told, the usual batch, and what makes the module.


_PIXELS = 224  # of a side, where the row does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNetwork:
    """A network on synthetic data.

    Attributes:
        summary: a line for people; M is a million parameters, of the usual size where there are several
        options: that a reference may have
        module: what makes the network of images; "" for one of language
        settings: of what makes it
        image: pixels of a side
        channels: of an image
        classes: of the data
        batch: usual global batch
    """

    summary: str
    options: tuple[str, ...]
    module: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    image: int = _PIXELS
    channels: int = 3
    classes: int = 1000
    batch: int = 64


_TABLE = packaged_toml("trimaran.networks", "published.toml")


def _published(name: str, row: dict[str, Any]) -> PublishedNetwork:
    family, pixels = FAMILIES.get(name), row.get("image", _PIXELS)
    title = row.pop("title", "") if family is None else family.title
    data = row.pop("data", f"images of {pixels} × {pixels}")
    sizes = "" if family is None else f"; sizes {', '.join(family.sizes)}"
    summary = f"{title}, {row.pop('millions')} M; synthetic {data}{sizes}{row.pop('more', '')}"
    options = row.pop("options", ("image",) if "module" in row else ("sequence",))
    return PublishedNetwork(summary=summary, options=tuple(options), **row)


PUBLISHED: Mapping[str, PublishedNetwork] = {
    name: _published(name, row) for name, row in (_TABLE["images"] | _TABLE["language"]).items()
}
"""By name, in the order in which they are listed."""

ALIASES: Mapping[str, str] = _TABLE["aliases"]
"""Other names, and the references that they stand for."""


# ---------------------------------------------------------------------------------------------------------------------
# Names of published networks in references to jobs


GNMT_LAYERS: Mapping[str, int] = {"8": 4, "16": 8}
"""Layers of GNMT's encoder, and of its decoder, by their sum, which is how its sizes are named."""

_GNMT_SIZE = "16"
_WORDS = {"head": ("pretraining", "squad"), "auxiliary": ("yes", "no")}
"""Options whose values are words; all others are whole numbers from 1 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkReference:
    """A published network, as it was asked for.

    Attributes:
        name: as `trimaran catalog jobs` lists it
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
    """The published network that a reference names.

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
    name, *own = ALIASES.get(first, first).split(":")
    if name not in PUBLISHED:
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
    return PUBLISHED[name].options


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
        hint = did_you_mean(option, known) or f"; {name} has none"
        raise InputError(f'"{reference}": no option "{option}"{hint}', code="network.unknown-option", option=option)
    words = _WORDS.get(option)
    if words is None and whole_number(value, least=1, most=MOST_SEQUENCE) is None:
        raise InputError(
            f'"{reference}": {option} must be a whole number from 1 to {MOST_SEQUENCE:,}, not "{value}"',
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


# ---------------------------------------------------------------------------------------------------------------------
# Spellings of the networks that look at images, once they are split into words


_DEPTHS = r"(?P<depth>18|26|34|50|101|152|200)"

Found = re.Match[str]


def _resnet(found: Found) -> str | None:
    depth, form = found["depth"], (found["before"] or found["after"] or "").replace(" ", "")
    if found["small"]:
        return "resnet18-cifar" if depth == "18" else None
    first = form in ("v1", "v1.0") and depth in ("50", "101", "152")
    return f"resnet{depth}-v1" if first else f"resnet{depth}"


_RESNEXTS = {
    "50 32x4": "resnext50",
    "101 32x4": "resnext101",
    "101 32x8": "resnext101-32x8d",
    "101 32x16": "resnext101-32x16d",
    "101 64x4": "resnext101-64x4d",
}
_WITHOUT_SQUEEZE = frozenset({"resnext101-32x16d"})


def _resnext(found: Found) -> str | None:
    form = (found["form"] or "32 x 4").replace(" ", "").removesuffix("d")
    known = _RESNEXTS.get(f"{found['depth']} {form}")
    if known is None or not found["se"]:
        return known
    return None if known in _WITHOUT_SQUEEZE else f"se-{known}"


def _is_first(found: Found) -> bool:
    return bool(found["own"] or found["first"]) and found["depth"] not in ("18", "34")


_VGG = {"a": "11", "b": "13", "d": "16", "e": "19", "": "16"}

_IMAGE_SPELLINGS: tuple[tuple[str, Callable[[Found], str | None]], ...] = (
    (r"lenet(?: ?5)?", lambda found: "lenet"),
    (r"alexnet(?: v ?2| 2014)?", lambda found: "alexnet"),
    (r"alexnet (?:v ?1|2012|original)|bvlc alexnet|caffenet", lambda found: "alexnet-2012"),
    (r"alexnet ungrouped", lambda found: "alexnet-ungrouped"),
    (r"overfeat(?: fast)?", lambda found: "overfeat"),
    (
        r"vgg ?(?P<layers>11|13|16|19|116|216|316|416)(?: [ade])?(?P<norm> bn| batch norm)?",
        lambda found: f"vgg{found['layers']}" + ("-bn" if found["norm"] else ""),
    ),
    (r"(?:vgg|oxfordnet) ?(?P<letter>[abde]?)", lambda found: f"vgg{_VGG[found['letter']]}"),
    (r"googlenet(?: v ?1| bn)?|inception v ?1", lambda found: "googlenet"),
    (r"bvlc googlenet|googlenet 2014", lambda found: "googlenet-2014"),
    (r"inception (?:v )?3", lambda found: "inception-v3"),
    (r"inception (?:v )?3 aux(?:iliary)?(?: head| logits)?", lambda found: "inception-v3:auxiliary=yes"),
    (r"inception (?:v )?4", lambda found: "inception-v4"),
    (r"resnet", lambda found: "resnet50"),
    (
        rf"resnet(?: (?P<before>v [12]))? {_DEPTHS}(?: (?P<after>v (?:1 b|1\.0|1\.5|15|1|2)))?"
        r"(?P<small> (?:for )?cifar(?: 100?)?)?",
        _resnet,
    ),
    (r"wide resnet (?P<depth>50|101)(?: 2)?", lambda found: f"wide-resnet{found['depth']}"),
    (r"(?:legacy )?(?P<se>se )?resnext (?P<depth>50|101)(?: (?P<form>\d+ x \d+(?: d)?))?", _resnext),
    # What timm calls "legacy" are the authors' own, with the stride in the first convolution.
    (
        r"(?P<own>legacy )?se resnet (?P<depth>18|34|50|101|152)(?P<first> v 1)?",
        lambda found: f"se-resnet{found['depth']}" + ("-v1" if _is_first(found) else ""),
    ),
    (r"densenet (?P<depth>121|161|169|201)", lambda found: f"densenet{found['depth']}"),
    (r"mobilenet ?v 2(?: 100)?", lambda found: "mobilenet-v2"),
    (r"mobilenet ?v 3 (?P<size>small|large)(?: 100)?", lambda found: f"mobilenet-v3-{found['size']}"),
    (r"efficientnet b (?P<number>[0-7])", lambda found: f"efficientnet-b{found['number']}"),
    (
        r"(?:vit|deit) (?P<size>t|ti|tiny|s|small|b|base|l|large)(?: patch)? (?P<patch>16|32)(?: (?P<image>384))?",
        lambda found: f"vit-{found['size'][0]}-{found['patch']}" + (":image=384" if found["image"] else ""),
    ),
    (r"unet", lambda found: "unet"),
    (r"lstm wikitext ?2", lambda found: "lstm-wikitext2"),
)


def image_network(spelled: str) -> str | None:
    """The network of images that words mean.

    Args:
        spelled: words and numbers in lower case, with a blank between them

    Returns:
        A job reference; None for any other network.

    Example:
        >>> image_network("se resnext 50 32 x 4 d"), image_network("resnet 50 d")
        ('se-resnext50', None)
    """
    for pattern, meant in _IMAGE_SPELLINGS:
        found = re.fullmatch(pattern, spelled)
        if found:
            return meant(found)
    return None


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SPELLINGS = (
    (r"\bgoogle nmt\b", "gnmt"),
    (r"\bvery deep\b", " "),
    (r"\bcode ?llama\b", "code llama"),
    (r"\bres ?ne ?xt", "resnext"),
    (r"\b(?:res net|rn)(?=\b| ?\d)", "resnet"),
    (r"\bse ?(?=resne)", "se "),
    (r"\bgoo?gl?e? ?le ?net", "googlenet"),
    (r"\b(alex|over|dense|vgg|le) (net|feat)", r"\1\2"),
    (r"\bu net\b", "unet"),
    (r"\bvggnet", "vgg"),
    (r"\b(inception|resnet|googlenet|llama|gnmt|alexnet)v(?=\d| |$)", r"\1 v"),
    (r"\btransformer ?xl", "transformerxl "),
    (r"\b(?:one weird trick|owt)\b", "2014"),
    (r"\bfine ?tun(?:e|ed|ing)\b", "finetuning"),
    (r"\b(?:fp|bf|tf|float|int) ?(?:8|16|32|64)\b", " "),
    (r"\(? ?\\?\* ?\d+ ?\)?", " "),  # a batch size that is a multiple of the table's
    (r"\b(?:batch(?: ?size)?|bs) ?\d+\b", " "),
    (r"\bimage ?net ?(?:1k|2012)?\b", " "),
    (r"\b(?:seq|sequence|seqlen|window) ?(?:len|length)? ?\d+\b", " "),
    (r"\b(?:224|227|231|299)(?: ?x ?(?:224|227|231|299))?$", " "),
)
_EMPTY = _words_of(
    """
    adv amp apex arch architecture benchmark benchmarking benchmarks caffe classification cnn convnet convnets
    dali data dataset ddp distributed dle dynamo eager example examples facebook gluon google gpu gpus hf
    horovod huggingface ig inductor input jit keras layer layers lm md meta mindspore mixed mlperf mnist model
    modeling modelling models mxnet name nchw network nhwc nvidia official oneflow paddle paddlepaddle paper
    precision pretrain pretrained pretraining pytorch readme real samples ssl swsl synthetic tensorflow tf
    throughput timm torch torchvision train trained training translation tv with xla
    """
)
_BERT_WORDS = _words_of(
    "v 1.1 base large b l squad finetuning qa question questions answering uncased cased pre phase 1 2 lamb ner"
)
_BERT_SIZES = {"110m": "base", "109m": "base", "336m": "large", "340m": "large"}
_TRANSFORMER_WORDS = _words_of("v base big large vanilla wmt 14 16 17 en de fr nmt fairseq")
_SIZED = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?) ?([mbt])\b|\b(small|medium|large|xl)\b")
_DECIMALS = {"13": "1.3b", "27": "2.7b", "67": "6.7b"}  # sizes that are written without the point and the unit
_GENERATIONS = {
    r"(?:megatron )?gpt 2(?: megatron)?": ("gpt2", "gpt"),
    r"gpt 3": ("gpt3", "gpt"),
    r"(?:megatron )?gpt|megatron|gpt megatron": ("gpt", "gpt3"),
    r"opt": ("opt",),
    r"mpt": ("mpt",),
    r"llama": ("llama", "llama3", "llama2"),
    r"llama (?:v )?1|open llama": ("llama1",),
    r"llama (?:v )?2|code llama": ("llama2",),
    r"llama (?:v )?3(?:\.?[0123])?": ("llama3",),
}


def canonical_network(text: str) -> str | None:
    """The network that a name means.

    Args:
        text: the name, or a path that ends in it

    Returns:
        A job reference, such as "vgg16" or "bert:large:head=squad"; a family without a size where the name says none.
        None: another network, or not known.

    Example:
        >>> [canonical_network(name) for name in ("ResNet-50 v1.5", "InceptionV3", "LLAMA3-8B", "resnest50d")]
        ['resnet50', 'inception-v3', 'llama3:8b', None]
    """
    if text in ("alexnet-tf", "alexnet-mxnet"):  # elsewhere the framework says nothing of the network
        return text
    words = _words(text)
    return image_network(" ".join(words)) or _language(words) if words else None


def _words(text: str) -> list[str]:
    """The words of the last part of a path that says something; a data set alone does not ("ResNet-18/CIFAR-10")."""
    parts = text.lower().split("/")
    for number, part in enumerate(reversed(parts), start=1):
        words = _split(part.rpartition("=")[2])
        if words and words[0] == "cifar" and number < len(parts):
            return [*_split(parts[-number - 1]), *words]
        if words:
            return words
    return []


def _split(part: str) -> list[str]:
    plain = re.sub(r"^(?:torchvision|tf|keras|timm)\.(?:[a-z_]+\.)*", "", part)
    # Names of weights have a tag behind a point: "resnet50.a1_in1k".
    plain = re.sub(r"(?<=\w)\.[a-z]\w*$", "", plain)
    plain = " ".join(re.sub(r"[\s_\-–:,;()\[\]]+", " ", plain).split())
    for spelled, meant in _SPELLINGS:
        plain = re.sub(spelled, meant, plain)
    return [word for word in re.findall(r"[a-z]+|\d+(?:\.\d+)?", plain) if word not in _EMPTY]


def _language(words: list[str]) -> str | None:
    first = words[0]
    if "bert" in words or "biobert" in words:
        return _bert(words)
    if "transformer" in words:
        others = set(words) - {"transformer"}
        size = ":big" if others & {"big", "large"} else ":base" if "base" in others else ""
        return f"transformer{size}" if others <= _TRANSFORMER_WORDS else None
    if first == "transformerxl":
        size = " ".join(words[1:])
        return {"": "transformer-xl", "base": "transformer-xl:base", "large": "transformer-xl:large"}.get(size)
    if first == "gnmt":
        return _gnmt(words[1:])
    if words in (["biglstm"], ["big", "lstm"]):
        return "big-lstm"
    return _generation(" ".join(words))


def _bert(words: list[str]) -> str | None:
    counted = {_BERT_SIZES.get(f"{number}{unit}", "") for number, unit in pairwise(words)} - {""}
    if counted:
        words = [word for word in words if word != "m" and f"{word}m" not in _BERT_SIZES]
    others = (set(words) | counted) - {"bert", "biobert"}
    if not others <= _BERT_WORDS:
        return None
    size = ":large" if others & {"large", "l"} else ":base" if others & {"base", "b"} or "biobert" in words else ""
    asked = others & {"squad", "finetuning", "qa", "question", "questions", "ner"} or "biobert" in words
    return f"bert{size}" + (":head=squad" if asked else "")


def _gnmt(others: list[str]) -> str | None:
    # What is called GNMT without a number is nearly always the smaller one, of the usual training code.
    if others in ([], ["v", "2"], ["8"], ["4"]):
        return "gnmt:8"
    return "gnmt:16" if others in (["16"], ["large"], ["v", "1"]) else None


def _generation(spelled: str) -> str | None:
    size = ""
    found = _SIZED.search(spelled)
    if found:
        size = found[3] or found[1] + found[2]
        spelled = f"{spelled[: found.start()]} {spelled[found.end() :]}"
    rest = [word for word in spelled.split() if word not in ("chat", "instruct", "base", "finetuning", "sft")]
    if not size and len(rest) > 1 and rest[-1].isdecimal() and rest[0] in ("gpt", "opt") and rest[1:] != ["2"]:
        size = _DECIMALS.get(rest[-1], "") if len(rest) > 2 or rest[0] == "opt" else ""
        rest = rest[:-1] if size else rest
    for pattern, families in _GENERATIONS.items():
        if re.fullmatch(pattern, " ".join(rest)):
            return _of_size(families, size)
    return None


def _of_size(families: tuple[str, ...], size: str) -> str | None:
    if not size:
        return families[0] if families[0] not in ("gpt", "opt", "mpt") else None
    for family in families:
        try:
            return f"{family}:{size_name(family, _plain(size))}"
        except InputError:
            continue
    return None


def _plain(size: str) -> str:
    """Sizes as they are listed: "7.0b" is "7b", "1.30b" is "1.3b", "0.35b" is "350m"."""
    number = float(size[:-1]) if size[-1] in "mbt" and size[0].isdigit() else None
    if number is not None and number < 1 and size[-1] in "bt":
        return f"{number * 1000:g}{'m' if size[-1] == 'b' else 'b'}"
    return size if number is None else f"{number:g}{size[-1]}"
