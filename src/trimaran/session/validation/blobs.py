"""What Caffe calls the memory required for data: the outputs of all layers of a network, as its log sums them.

Every output counts, also of a layer that writes over its input; a tensor that several layers read counts once more for
each of them, since Caffe splits it. Images count where a layer makes them. Gradients do not count.

Source:
    BVLC/caffe, src/caffe/net.cpp (the sum that it logs), src/caffe/util/insert_splits.cpp.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from trimaran.session.network_jobs import network_job

_LAYERS = (
    "conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear", "relu", "relu_", "max_pool2d", "_max_pool2d",
    "avg_pool2d", "adaptive_avg_pool2d", "batch_norm", "cat", "concat",
    "lstm", "sigmoid", "tanh",
)  # fmt: skip
"""Functions that are layers of Caffe. A pooling that does not change its input is left out; so is dropout."""

_ELEMENT = 4
"""Bytes of an element: 32-bit floats."""


class _Outputs(TorchFunctionMode):
    """Adds up outputs of layers, and splits."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: int = 0
        self._readers: Counter[int] = Counter()
        self._held: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name not in _LAYERS or not isinstance(output, torch.Tensor):
            return output
        read = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
        if name == "adaptive_avg_pool2d" and output.shape == read[0].shape:
            return output
        self.elements += output.numel()
        self._held.append(output)
        if output is read[0]:
            return output
        for tensor in read:
            self._readers[id(tensor)] += 1
            self._held.append(tensor)
            if self._readers[id(tensor)] > 1:
                self.elements += tensor.numel() * (2 if self._readers[id(tensor)] == 2 else 1)
        return output


def blob_bytes(reference: str, *, batch: int, images: bool) -> int:
    """Bytes of all outputs of a network's layers, as Caffe sums them.

    Args:
        reference: of a network, such as "alexnet"
        batch: images
        images: they are made by a layer, and so counted

    Returns:
        [bytes]
    """
    job = network_job(reference)
    sample = job.dataset()[0][0] if callable(job.dataset) else job.dataset[0][0]
    with torch.device("meta"):
        network = job.model().train()
        data = torch.empty((1, *sample.shape), device="meta")
        with _Outputs() as outputs, torch.no_grad():
            network(data)
    elements: int = outputs.elements + (int(data.numel()) if images else 0)
    return elements * batch * _ELEMENT
