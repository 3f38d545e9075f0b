"""Networks that Trimaran cannot build but whose size is published: their training scales from one device's time.

A chain of equal matrix products with the same total work stands for such a network. Its weights grow towards the end,
as in most networks. The step time on one device has to be given; only the exchange of gradients is predicted.
"""

import functools
import re
from dataclasses import dataclass

from trimaran.base.files import packaged_toml
from trimaran.base.precision import Precision, product_dtype
from trimaran.graph.kernels.workload import Gradient, WeightGradient, Work, WorkKind, Workload
from trimaran.graph.types import Phase

SIZED = "published:"
"""Prefix of the names of such networks in a set-up."""

_LAYERS = 40
"""Layers of a network whose depth does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSize:
    """The size of a network.

    Attributes:
        name: of the network
        words: names in published rows
        whole: whether a word must be the whole name
        parameters: number of them on every rank
        forward_flops: of one sample [FLOP]
        tensors: number of parameter tensors
        split_parameters: of a layer that model parallelism splits
        layers: products that stand for a forward pass
        source: of the figures
    """

    name: str
    words: tuple[str, ...]
    whole: bool
    parameters: int
    forward_flops: float
    tensors: int
    split_parameters: int
    layers: int
    source: str


@functools.cache
def published_sizes() -> tuple[PublishedSize, ...]:
    """All published sizes, in the order in which their words are searched for."""
    return tuple(
        PublishedSize(
            name=entry["name"],
            words=tuple(entry["words"]),
            whole=entry.get("whole", False),
            parameters=entry["parameters"],
            forward_flops=entry["forward_flops"],
            tensors=entry["tensors"],
            split_parameters=entry.get("split_parameters", 0),
            layers=entry.get("layers", _LAYERS),
            source=entry["source"],
        )
        for entry in packaged_toml("trimaran_studies.facts", "sizes.toml")["networks"]
    )


def sized_name(text: str) -> str | None:
    """The network that a text names, or None.

    Example:
        >>> sized_name("Classification/ConvNets/efficientnet-b4"), sized_name("nothing of the kind")
        ('efficientnet-b4', None)
    """
    plain = text.lower()
    return next(
        (size.name for size in published_sizes() if any(_names(word, plain, size) for word in size.words)), None
    )


def _names(word: str, plain: str, size: PublishedSize) -> bool:
    """Whether a word stands in a name, not inside another word."""
    return word == plain if size.whole else re.search(rf"(?<![a-z]){re.escape(word)}", plain) is not None


def sized_workload(name: str, *, batch: int, precision: Precision, split: bool) -> Workload:
    """A chain of products of a network's work and weights.

    Args:
        name: of the network, as `sized_name` gives it
        batch: samples of the step
        precision: of the computation
        split: its largest layer is split among the ranks, so its gradients are not exchanged
    """
    size = next(one for one in published_sizes() if one.name == name)
    parameters = size.parameters + (0 if split else size.split_parameters)
    dtype = product_dtype(precision)
    layers = size.layers
    flops = size.forward_flops * batch / layers
    forward = [_product(flops, dtype, Phase.FORWARD, Gradient.NONE, block) for block in range(layers)]
    backward: list[Work] = []
    gradients: list[WeightGradient] = []
    for block in reversed(range(layers)):
        backward.append(_product(flops, dtype, Phase.BACKWARD, Gradient.INPUT, block))
        backward.append(_product(flops, dtype, Phase.BACKWARD, Gradient.WEIGHT, block))
        for elements in _tensors(size, block):
            gradients.append(_gradient(elements, block, len(gradients), len(forward) + len(backward) - 1))
        if block == layers - 1 and parameters > size.parameters:
            gradients.insert(0, _gradient(size.split_parameters, block, len(gradients), len(forward) + 1))
    update = Work(
        kind=WorkKind.OPTIMIZER,
        phase=Phase.UPDATE,
        module="",
        name="optimizer",
        dtype="float32",
        flops=4.0 * parameters,
        nbytes=20 * parameters,
        dims=(parameters,),
        launches=size.tensors,
    )
    return Workload(
        name=name,
        batch=batch,
        precision=precision,
        optimizer="SGD",
        works=(*forward, *backward, update),
        gradients=tuple(gradients),
        parameter_bytes=4 * parameters,
        buffer_bytes=0,
        optimizer_bytes=4 * parameters,
        input_bytes=0,
    )


def _product(flops: float, dtype: str, phase: Phase, gradient: Gradient, block: int) -> Work:
    edge = max(1, round((flops / 2) ** (1 / 3)))
    return Work(
        kind=WorkKind.PRODUCT,
        phase=phase,
        gradient=gradient,
        module=f"block{block}",
        name="aten.mm",
        dtype=dtype,
        flops=flops,
        nbytes=3 * edge * edge * (2 if "16" in dtype else 4),
        dims=(1, edge, edge, edge),
    )


def _tensors(size: PublishedSize, block: int) -> list[int]:
    """Elements of a block's tensors: later blocks have more, in proportion to their number."""
    share = 2 * (block + 1) / (size.layers * (size.layers + 1))
    number = max(1, round(size.tensors / size.layers))
    elements = max(1, round(size.parameters * share))
    return [max(1, elements // number)] * number


def _gradient(elements: int, block: int, number: int, work: int) -> WeightGradient:
    return WeightGradient(
        name=f"block{block}.{number}", module=f"block{block}", elements=elements, nbytes=4 * elements, work=work
    )
