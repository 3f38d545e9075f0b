"""Spellings of the networks that look at images, once they are cut into words (`names.py`)."""

import re
from collections.abc import Callable

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

_IMAGES: tuple[tuple[str, Callable[[Found], str | None]], ...] = (
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
    for pattern, meant in _IMAGES:
        found = re.fullmatch(pattern, spelled)
        if found:
            return meant(found)
    return None
