"""When the tables of NVIDIA's examples were made: by the container that a read-me names, or by a row's revision."""

import functools
from importlib import resources

from trimaran.session.validation.recipes import lowered
from trimaran.session.validation.types import Row

_CURRENT = 2023.9
"""Revisions since then change no table: what stands in them is as old as its container."""

_DELAY_YEARS = 0.1
"""Between a container's release and the table made with it."""

_CONTAINERS = (
    ("mxnet/classification/rn50v1.5", 2020.9),
    ("paddlepaddle/", 2022.5),
    ("pytorch/classification/", 2021.2),
    ("pytorch/detection/ssd", 2022.75),
    ("pytorch/languagemodeling/bart", 2022.6),
    ("pytorch/languagemodeling/bert", 2021.85),
    ("pytorch/translation/transformer", 2022.45),
    ("pytorch/", 2020.45),
    ("tensorflow/languagemodeling/bert/biobert", 2019.6),
    ("tensorflow/translation/gnmt", 2019.5),
    ("tensorflow2/languagemodeling/bert", 2021.1),
    ("tensorflow2/classification/", 2021.7),
    ("tensorflow2/segmentation/", 2021.1),
    ("tensorflow2/", 2021.5),
    ("tensorflow/segmentation/unet_3d", 2021.8),
    ("tensorflow", 2020.45),
)
"""Releases of the containers that read-me files of the last revision name, by the beginning of their path."""


def table_year(row: Row) -> float:
    """When the container of a row was made: by its read-me, by its revision, else by its device."""
    path, device = lowered(row, "source_path"), lowered(row, "gpu", "machine")
    revision = revisions().get(row.fields.get("commit", "")[:8])
    if revision is not None and revision < _CURRENT:
        return revision - _DELAY_YEARS
    for part, year in _CONTAINERS:
        if part in path:
            return year
    if "h100" in device or "h200" in device:
        return 2023.0
    return 2021.0 if "a100" in device else 2020.4


@functools.cache
def revisions() -> dict[str, float]:
    """Revisions of read-me files, by the first eight characters of the commit, as years."""
    text = resources.files("trimaran.session.validation.facts").joinpath("nvidia_revisions.csv").read_text("utf-8")
    dates = (line.split(",") for line in text.splitlines()[1:])
    return {commit: int(date[:4]) + (int(date[5:7]) - 0.5) / 12 for commit, date in dates}
