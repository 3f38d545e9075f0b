"""Devices by the labels that people give them: "NVIDIA_A100_80GB_PCIe", "RTX 2080 MAX-Q", "- K80 (single GPU)".

A device is known by the words of one of its names that no other kind has ("v100", "2080 ti"). All of them must be in
the label, the device with most of them wins, and memory and form choose between those that share a name.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.cluster.catalog import CatalogDevice, catalog, entries_of
from trimaran.cluster.labels import Label, read_label

_GENERAL = frozenset(
    (
        *(
            "nvidia",
            "tesla",
            "geforce",
            "quadro",
            "amd",
            "radeon",
            "instinct",
            "generation",
            "gpu",
            "gpus",
            "gcd",
            "die",
        ),
        *(
            "pcie",
            "sxm",
            "sxm2",
            "sxm3",
            "sxm4",
            "sxm5",
            "oam",
            "mobile",
            "laptop",
            "intel",
            "xeon",
            "core",
            "blackwell",
            "edition",
            "server",
        ),
    )
)
"""Words that many devices share."""

_SERIES = frozenset(("rtx", "gtx"))
_FORMS = {"pcie": ("pcie",), "sxm": ("sxm", "oam")} | dict.fromkeys(("sxm2", "sxm3", "sxm4", "sxm5"), ("sxm",))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedDevice:
    """A device that a label means.

    Attributes:
        device: of the catalog
        assumed: what the label does not say and was taken for granted, in words
        possible: all devices that the label may mean as well, this one among them
    """

    device: CatalogDevice
    assumed: tuple[str, ...] = ()
    possible: tuple[CatalogDevice, ...] = ()


def match_device(text: str, memory_gb: float | None = None) -> MatchedDevice | None:
    """The device that a label means.

    Args:
        text: the label
        memory_gb: of the device, where the source says it apart [GB]

    Returns:
        The device and what was assumed; None where the label names none that is known.

    Example:
        >>> match_device("RTX 2080Ti NVLink").device.name, match_device("NVIDIA_A100_80GB_PCIe").device.name
        ('rtx-2080-ti', 'a100-pcie-80gb')
    """
    return match_words(read_label(text), memory_gb)


def match_words(label: Label, memory_gb: float | None = None) -> MatchedDevice | None:
    """The device that the words of a label mean."""
    found = _best(set(label.words), _identities(processors=False)) or _best(
        set(label.words), _identities(processors=True)
    )
    return _chosen([catalog()[name] for name in found], label, memory_gb or label.memory_gb or None) if found else None


def _best(words: set[str], kinds: Mapping[str, tuple[frozenset[str], ...]]) -> list[str]:
    """Those of which most words are there."""
    best: list[str] = []
    most = 0
    for name, identities in kinds.items():
        known = max((len(identity) for identity in identities if identity <= words), default=0)
        if known > most:
            best, most = [name], known
        elif known and known == most:
            best.append(name)
    return best


def _chosen(devices: list[CatalogDevice], label: Label, memory_gb: float | None) -> MatchedDevice:
    forms = next((forms for word, forms in _FORMS.items() if word in label.words), None)
    if forms is not None:
        devices = [device for device in devices if device.form in forms] or devices
    if "sxm3" in label.words:
        devices = [device for device in devices if "sxm3" in device.name] or devices
    nearest = min(abs(device.memory.nbytes / 2**30 - memory_gb) for device in devices) if memory_gb else 0.0
    # Far off, it is the memory of something else: "GH200 480GB" says that of its processor.
    if memory_gb and nearest < memory_gb / 2:
        devices = [device for device in devices if abs(device.memory.nbytes / 2**30 - memory_gb) == nearest]
    possible, assumed = tuple(devices), []
    if len({device.form for device in devices}) > 1:
        assumed.append(f"form not said: {devices[0].form} assumed")
        devices = [device for device in devices if device.form == devices[0].form]
    if len({device.memory.nbytes for device in devices}) > 1:
        devices = [next((device for device in devices if _bare(device)), devices[0])]
        assumed.append(f"memory not said: {devices[0].memory.nbytes / 2**30:g} GiB assumed")
    return MatchedDevice(device=devices[0], assumed=tuple(assumed), possible=possible)


def _bare(device: CatalogDevice) -> bool:
    """Whether its family's name, with no more than its form, is its own."""
    return any(not any(part.endswith("gb") for part in name.split("-")) for name in (device.name, *device.aliases))


@functools.cache
def _identities(*, processors: bool) -> Mapping[str, tuple[frozenset[str], ...]]:
    """By device, sets of words that mean it. Processors apart: a label that names both means the device beside it."""
    found = {}
    for entry in entries_of("devices"):
        if (entry.text("form", "pcie") == "cpu") is not processors:
            continue
        names = (entry.text("name"), *entry.texts("aliases", ()), entry.text("title", "").split(",")[0])
        found[entry.text("name")] = tuple({_identity(name) for name in names if name})
    return found


def _identity(name: str) -> frozenset[str]:
    words = frozenset(word for word in read_label(name).words if word not in _GENERAL)
    shorter = words - _SERIES
    return shorter if any(any(letter.isdigit() for letter in word) for word in shorter) else words
