"""Whose script a row is from, and thereby which recipe holds; a source that is not known is told by its framework."""

import re
from collections.abc import Callable

from trimaran.costs.software import Software
from trimaran.session.validation.recipes import Recipe, compiled, lowered
from trimaran.session.validation.recipes_clusters import gavel, pollux
from trimaran.session.validation.recipes_dlperf import dlperf
from trimaran.session.validation.recipes_lambda import lambda_pytorch
from trimaran.session.validation.recipes_nvidia import nvidia_examples
from trimaran.session.validation.recipes_single import cnn_benchmarks, convnet_benchmarks, mxnet_tables, neusight, timm
from trimaran.session.validation.recipes_tensorflow import lambda_tensorflow, tensorflow_2017
from trimaran.session.validation.types import Row

_SOURCES: tuple[tuple[str, Callable[[Row], Recipe]], ...] = (
    ("dlperf", dlperf),
    ("lambda-tensorflow", lambda_tensorflow),
    ("lambdal/deeplearning-benchmark", lambda_pytorch),
    ("nvidia dle scripts", lambda_pytorch),
    ("deeplearningexamples", nvidia_examples),
    ("nvidia_dle", nvidia_examples),
    ("tf_cnn_benchmarks", tensorflow_2017),
    ("tensorflow/docs", tensorflow_2017),
    ("tensorflow_2017", tensorflow_2017),
    ("gavel", gavel),
    ("adaptdl", pollux),
    ("pollux", pollux),
    ("convnet-benchmarks", convnet_benchmarks),
    ("convnet_benchmarks", convnet_benchmarks),
    ("cnn-benchmarks", cnn_benchmarks),
    ("cnn_benchmarks", cnn_benchmarks),
    ("neusight", neusight),
    ("pytorch-image-models", timm),
    ("timm", timm),
    ("mxnet", mxnet_tables),
)
"""Words that name a source; the first that a row holds decides."""

_FRAMEWORKS = ("tensorflow", "mxnet", "paddle", "oneflow", "mindspore", "torch7", "caffe", "jax", "megatron", "pytorch")


def recipe_of(row: Row) -> Recipe:
    """What the script behind a row runs."""
    text = lowered(row, "source_repo", "source_file", "framework")
    for word, recipe in _SOURCES:
        if word in text:
            return recipe(row)
    return _by_framework(row)


def _by_framework(row: Row) -> Recipe:
    text = lowered(row, "framework", "source_repo")
    name = next((name for name in _FRAMEWORKS if name in text), "pytorch")
    dated = re.search(r"\b(20[12]\d)\b", lowered(row, "framework", "config", "date"))
    config = lowered(row, "config", "dataset")
    length = row.fields.get("seq_len", "")
    return Recipe(
        network=row.fields.get("model", ""),
        options={"sequence": length} if length else {},
        software=Software(
            framework=name,
            year=float(dated.group(1)) + 0.5 if dated else 2021.0,
            compiled=compiled(row),
            source=f"assumed: {name} of the year that the row names, else of 2021",
        ),
        real_data=False if "synth" in config else True if "real" in config else None,
        assumed=(f"the script is not known: {name} as it comes",),
    )
