"""The set-up of a row in Trimaran's terms: network, batch, precision, machine, software.

A row names these in its source's terms. Devices and machines are matched leniently, because one machine has many names.
Facts of the script that are not in the row are in the recipes. A row without a batch gets the batch of the script, and
the set-up lists this as an assumption.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from trimaran.base.errors import InputError
from trimaran.base.precision import Precision
from trimaran.machine.types import Device, Machine
from trimaran.pricing.kernels.software import Software
from trimaran_studies.facts.machine_labels import MatchedMachine, match_machine
from trimaran_studies.facts.script_forms import trained_network
from trimaran_studies.facts.sizes import SIZED, sized_name
from trimaran_studies.published.rows import figure
from trimaran_studies.validation.measurement import FULL, REDUCED, Row, Setup, accumulation, count, whole, words
from trimaran_studies.validation.recipes import (
    Recipe,
    cnn_benchmarks,
    compiled,
    convnet_benchmarks,
    dlperf,
    gavel,
    lambda_tensorflow,
    lowered,
    mxnet_tables,
    neusight,
    pollux,
    said,
    tensorflow_2017,
    timm,
)
from trimaran_studies.validation.recipes_nvidia import lambda_pytorch, nvidia_examples

# ---------------------------------------------------------------------------------------------------------------------
# The recipe of a row: by its source, else by its framework


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
"""Words that name a source; the first match in a row counts."""

_FRAMEWORKS = ("tensorflow", "mxnet", "paddle", "oneflow", "mindspore", "torch7", "caffe", "jax", "megatron", "pytorch")


def recipe_of(row: Row) -> Recipe:
    """Facts of the script of a row."""
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


_SUPPORT_YEARS = 0.3
_ORIGINS = ("source_repo", "source_path", "source_file", "framework")


def understand(row: Row) -> Setup:
    """The set-up of a row.

    Args:
        row: of a family whose step is that of one rank, or of equal ranks

    Raises:
        InputError: its network, device or batch is not known
    """
    recipe = recipe_of(row)
    network = _network(row, recipe)
    devices, matched = _machine(row, recipe)
    machine = matched.machine
    micro, steps, assumed = _batch(row, recipe, devices)
    micro *= recipe.batch_factor
    if recipe.batch_in_items:
        micro = max(1, round(micro / recipe.items_per_sample))
    return Setup(
        network=network,
        options=recipe.options,
        local_batch=micro,
        accumulation=steps,
        precision=_precision(row, recipe, machine),
        machine=machine,
        device=matched.device.name,
        devices=devices,
        nodes=machine.nodes,
        software=_software(recipe.software, matched.device),
        sync="server" if recipe.sync == "kvstore" and machine.nodes > 1 else recipe.sync,
        real_data=recipe.real_data,
        items_per_sample=recipe.items_per_sample,
        assumed=(*recipe.assumed, *assumed, *matched.assumed),
    )


def _software(said: Software, device: Device) -> Software:
    """Software that is not older than its device: support of a new device comes some months after it."""
    return replace(said, year=max(said.year, device.year + _SUPPORT_YEARS))


def _network(row: Row, recipe: Recipe) -> str:
    for text in (recipe.network, row.fields.get("model", "")):
        found = trained_network(text, lowered(row, *_ORIGINS)) if text else None
        if found is not None:
            return found
        sized = sized_name(text)
        if sized is not None:
            return f"{SIZED}{sized}"
    raise InputError(
        f'row {row.row_id}: network "{recipe.network}" is not one that Trimaran has, nor one whose size it knows',
        code="row.unknown-network",
        row=row.row_id,
        network=recipe.network,
    )


def _machine(row: Row, recipe: Recipe) -> tuple[int, MatchedMachine]:
    """Total number of devices, and their machine."""
    devices, nodes = _counts(row)
    matched = _matched(row, recipe, devices, nodes)
    if recipe.devices_per_node and nodes is not None and nodes > 1 and devices <= matched.machine.node.devices:
        # Tables with columns of nodes and of GPUs count the GPUs of each node.
        devices *= nodes
        matched = _matched(row, recipe, devices, nodes)
    return devices, matched


def _counts(row: Row) -> tuple[int, int | None]:
    """Number of devices, and of nodes where the row has it."""
    given = said(row, "# of GPUs") or row.fields.get("n_gpus", "1")
    counted = whole(row, "n_gpus")
    devices = int(float(given)) if re.fullmatch(r"\d+(\.0)?", given) else counted or count(row, "n_gpus", 1)
    devices = max(1, devices)  # a CPU counts no GPU
    if "unconsolidated" in lowered(row, "config"):
        return devices, devices
    return devices, whole(row, "n_nodes") or None


def _matched(row: Row, recipe: Recipe, devices: int, nodes: int | None) -> MatchedMachine:
    named, gpu = recipe.machine or row.fields.get("machine", ""), row.fields.get("gpu", "")
    memory_gb = figure(row.fields.get("gpu_mem_gb", ""))
    for device in (gpu, recipe.device):
        found = match_machine(named, device, devices=devices, nodes=nodes, memory_gb=memory_gb)
        if found is not None:
            return found
    raise InputError(
        f'row {row.row_id}: no device of the catalog is meant by "{gpu or named}"',
        code="row.unknown-device",
        row=row.row_id,
        device=gpu,
    )


def _batch(row: Row, recipe: Recipe, devices: int) -> tuple[int, int, tuple[str, ...]]:
    """Samples of a microbatch on a device, microbatches of a step, assumptions."""
    if recipe.batch_fixed:
        return recipe.batch_fixed, 1, ()
    steps = accumulation(row)
    own, together = whole(row, "batch_per_gpu"), whole(row, "global_batch")
    if own is None and together is not None:
        own = max(1, together // devices)
    if own is None:
        own = recipe.batch
        return own, 1, (f"batch not said: {own} a device",)
    if steps > 1 and recipe.accumulated_batch and own >= steps and not _says_microbatch(row, own, devices, steps):
        return max(1, own // steps), steps, ()
    return own, steps, ()


def _says_microbatch(row: Row, own: int, devices: int, steps: int) -> bool:
    if "accumulated batch" in lowered(row, "config"):
        return True
    together = whole(row, "global_batch")
    return together is not None and together >= own * devices * steps


def _precision(row: Row, recipe: Recipe, machine: Machine) -> Precision:
    kinds = words(f"{row.fields.get('precision', '')} {row.unit}")
    if not row.fields.get("precision"):
        kinds |= words(row.fields.get("config", "").split("|")[0])
    if kinds & {"bf16", "bfloat16"}:
        return "bf16"
    if kinds & REDUCED:
        return "fp16"
    said_of = row.fields.get("precision", "")
    if said_of and not kinds & FULL:
        raise InputError(
            f'row {row.row_id}: column precision: expected FP32, TF32, AMP, FP16, BF16 or FP8, got "{said_of}"',
            code="row.no-precision",
            row=row.row_id,
        )
    able = "tf32" in machine.node.device.compute
    return "tf32" if able and ("tf32" in kinds or recipe.tf32) else "fp32"
