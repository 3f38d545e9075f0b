"""Benchmarks of one device: convnet-benchmarks, cnn-benchmarks, MXNet's tables, timm's, NeuSight's.

Source:
    soumith/convnet-benchmarks: README.md (January 2016: cuDNN R4), logs; jcjohnson/cnn-benchmarks: README.md, outputs
    (Torch7 with the cuDNN that the row names, models converted from Caffe and from fb.resnet.torch); apache/mxnet:
    docs/…/perf.md (MXNet 1.2 of 2018), example/image-classification/README.md (2016); rwightman's timm: results/
    (torch 1.12, AMP, synthetic); sitar-lab/NeuSight: scripts/asplos/label (Hugging Face models on torch 2.1).
"""

import re
from dataclasses import replace

from trimaran.costs.software import Software
from trimaran.session.validation.recipes import Recipe, lowered
from trimaran.session.validation.types import Row

_CUDNN_YEARS = {"2": 2015.2, "3": 2015.6, "4": 2016.1, "5": 2016.4, "51": 2016.6, "6": 2017.3, "7": 2017.8, "8": 2021.0}


def convnet_benchmarks(row: Row) -> Recipe:
    """A row of convnet-benchmarks; the framework's column names the library of kernels."""
    text = lowered(row, "framework")
    found = re.search(r"cudnn\[r(\d)\]", text)
    library = f"cudnn-{found.group(1)}.0" if found else re.sub(r"[^a-z0-9]+", "-", text).strip("-")
    if text == "cudnn":
        library = "cudnn-4.0"
    framework = "tensorflow" if "tensorflow" in text else "caffe" if "caffe" in text else "torch7"
    year = _CUDNN_YEARS.get(found.group(1), 2016.0) if found else 2015.8
    return Recipe(
        network=re.sub(r"\(.*", "", row.fields.get("model", "")).strip(),
        software=Software(
            framework=framework, year=year, libraries=library, source="soumith/convnet-benchmarks: README.md"
        ),
        real_data=False,
    )


def cnn_benchmarks(row: Row) -> Recipe:
    """A row of cnn-benchmarks."""
    text = lowered(row, "framework", "config")
    found = re.search(r"cudnn[ _]?(\d)(\d)?0?(\d)?", text)
    library, year = "nn", 2016.5
    if "no cudnn" not in text and found:
        major, minor = found.group(1), found.group(2) or "0"
        library = f"cudnn-{major}.{minor}"
        year = _CUDNN_YEARS.get(major + (minor if minor != "0" else ""), 2016.5)
    return Recipe(
        network=row.fields.get("model", ""),
        software=Software(
            framework="torch7", year=year, libraries=library, source="jcjohnson/cnn-benchmarks: README.md"
        ),
        real_data=False,
    )


def mxnet_tables(row: Row) -> Recipe:
    """A row of MXNet's page on speed, or of its read-me of image classification (K80, 2016)."""
    old = "image-classification" in lowered(row, "source_path") or "k80_scaling" in lowered(row, "source_file")
    several = row.fields.get("n_nodes", "1") not in ("", "1")
    return Recipe(
        network=re.sub(r"[\\(].*", "", row.fields.get("model", "")).strip(),
        software=Software(
            framework="mxnet",
            year=2016.8 if old else 2018.4,
            source="apache/mxnet: example/image-classification/README.md" if old else "apache/mxnet: faq/perf.md",
        ),
        sync="server" if several else "p2p",
        batch_factor=_FACTOR if "*16" in lowered(row, "model").replace("\\", "") else 1,
        real_data=old,
    )


_FACTOR = 16
"""AlexNet's batches in MXNet's page are so many times those of the column."""


def timm(row: Row) -> Recipe:
    """A row of timm's training benchmark; "img N" in `config` is the edge of the image."""
    text = lowered(row, "framework", "config", "source_path")
    edge = re.search(r"img (\d+)", text)
    release = re.search(r"pt(1\d{1,2}|\d{2})", text)
    return Recipe(
        network=row.fields.get("model", ""),
        options={"image": edge.group(1)} if edge else {},
        software=Software(
            framework="pytorch",
            year=_torch_year(release.group(1)) if release else 2022.5,
            compiled=any(word in text for word in ("dynamo", "inductor", "aot")),
            channels_last="nhwc" in text,
            source="rwightman's pytorch-image-models: results/",
        ),
        real_data=False,
    )


def _torch_year(release: str) -> float:
    """Of a release of torch, such as "112" for 1.12 or "21" for 2.1.

    There are three a year; 1.12 was of June 2022, 2.0 of the next spring.

    Example:
        >>> _torch_year("112"), _torch_year("24")
        (2022.5, 2024.5)
    """
    if release.startswith("1"):
        return 2022.5 + (int(release[1:]) - 12) * 0.3
    return 2023.2 + int(release[1:]) * 0.325


def neusight(row: Row) -> Recipe:
    """A row of NeuSight: Hugging Face's models in eager mode; matrix products in true FP32."""
    sequence = row.fields.get("seq_len", "")
    recipe = Recipe(
        network=row.fields.get("model", ""),
        options={"sequence": sequence, "optimizer": "adam"} if sequence else {},
        software=Software(framework="pytorch", year=2023.8, source="sitar-lab/NeuSight: PyTorch 2.1, transformers"),
        real_data=False,
    )
    if "bert" not in lowered(row, "model"):
        return recipe
    return replace(recipe, options={**recipe.options, "head": "squad"})
