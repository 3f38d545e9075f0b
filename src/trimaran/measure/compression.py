"""How many bytes of a real step are left when what comes after a ReLU is coded, storage by storage.

Zeros depend on data and on how far a network is trained, so a ratio is measured in a step of the job at hand. A step is
recorded for its trace; a second one on the same batch shows each packed storage to a codec. Nothing is kept.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from trimaran.costs.compression import after_relu
from trimaran.errors import ExecutionError
from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.types import StepTrace
from trimaran.runtime.memory.codecs import SparseCodec
from trimaran.runtime.memory.coding import Codec, Coding, Traffic, bytes_at

MakeCodec = Callable[[], Codec]


def measure_coding(
    step: Callable[[], Any], model: torch.nn.Module | None = None, *, make_codec: MakeCodec = SparseCodec
) -> tuple[StepTrace, Mapping[int, Traffic]]:
    """Code what comes after a ReLU in a step.

    Args:
        step: a forward and its backward on the CPU, the same operations each time
        model: for names of modules
        make_codec: makes a codec for each storage

    Returns:
        The trace of the step, and what was coded by number of the storage.

    Raises:
        ExecutionError: the step packs other tensors the second time
    """
    with Recorder(model) as recorder:
        step()
    trace = recorder.recording.trace
    wanted = after_relu(trace)
    found: dict[int, Traffic] = {}
    packs = iter(trace.packs)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        tick = next(packs, None)
        if tick is None or tuple(tensor.shape) != tick.view.shape:
            raise ExecutionError(
                "the step packs other tensors than when it was recorded: give one that runs the same operations each "
                "time, on a batch of its own",
                code="compression.step-changed",
            )
        if tick.storage in wanted and tick.storage not in found:
            codec = make_codec()
            storage = tensor.untyped_storage()
            device = bytes_at(storage.data_ptr(), storage.nbytes())
            Coding(codec).save(device, np.empty_like(device))
            found[tick.storage] = codec.traffic
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return trace, found


def total(traffic: Mapping[int, Traffic]) -> Traffic:
    """All of it together."""
    return Traffic(
        raw_bytes=sum(one.raw_bytes for one in traffic.values()),
        coded_bytes=sum(one.coded_bytes for one in traffic.values()),
    )
