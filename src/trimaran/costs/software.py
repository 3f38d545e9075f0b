"""Which software computes, as far as its speed depends on it.

The same network on the same device ran several times faster in 2020 than in 2016, through libraries alone; frameworks
of one year differ by what they fuse and how much they ask of the host for each operation.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A framework at a time.

    Attributes:
        framework: "pytorch", "tensorflow", "mxnet", "torch7", "caffe", "paddle", "oneflow", "mindspore", "megatron", …
        year: of its release, with the part of the year, such as 2017.5
        libraries: of kernels, where that is known and differs from what the framework brings: "cudnn-5.1", "neon", …
        compiled: kernels are fused by a compiler (XLA, TorchInductor)
        channels_last: images are kept with channels last
        source: where this comes from
    """

    framework: str = "pytorch"
    year: float = 2024.0
    libraries: str = ""
    compiled: bool = False
    channels_last: bool = False
    source: str = "assumed: PyTorch of 2024"
