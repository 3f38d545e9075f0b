"""The published networks that jobs can be made of: figures only, without torch.

`published.toml` has them, a row each: what people are told, the usual batch, and what makes the module.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimaran.base.files import packaged_toml
from trimaran.networks.sizes import FAMILIES

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
