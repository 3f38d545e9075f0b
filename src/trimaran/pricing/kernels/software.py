"""Which software computes, as far as its speed depends on it.

The same network on the same device ran several times faster in 2020 than in 2016, through libraries alone; frameworks
of one year differ in the operations that they fuse and in the host's work for each operation.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A framework at a time.

    Attributes:
        framework: of `FRAMEWORKS`, or of decoders by their shape, such as "megatron"
        year: of its release, with the part of the year, such as 2017.5
        libraries: of kernels, where they are known and differ from the framework's: "cudnn-5.1", "neon", …
        compiled: kernels are fused by a compiler (XLA, TorchInductor)
        channels_last: images are kept with channels last
        gradient_views: of replicas, gradients are views of the buckets of their exchange, as Trimaran's runtime has
            them; else they are copied into buckets, as PyTorch's DistributedDataParallel does unless told otherwise
        source: where this comes from
    """

    framework: str = "pytorch"
    year: float = 2024.0
    libraries: str = ""
    compiled: bool = False
    channels_last: bool = False
    gradient_views: bool = False
    source: str = "assumed: PyTorch of 2024"

    @property
    def text(self) -> str:
        """As the command line has it.

        Example:
            >>> Software(framework="megatron", year=2023.5).text, Software(gradient_views=True).text
            ('megatron:2023.5', 'trimaran:2024')
        """
        return f"{'trimaran' if self.gradient_views else self.framework}:{self.year:g}"


FRAMEWORKS = ("pytorch", "tensorflow", "mxnet", "torch7", "caffe", "chainer", "paddle", "oneflow", "mindspore")
"""Frameworks for whose kernels or exchanges there are figures."""

RUNTIME = Software(gradient_views=True, source="assumed: PyTorch of 2024 under Trimaran's runtime")
"""What runs a plan, unless a user says other software."""


# ---------------------------------------------------------------------------------------------------------------------
# Libraries of kernels and their years, by the names in published figures


CUDNN_YEARS = {
    "1": 2014.7,
    "2": 2015.2,
    "3": 2015.7,
    "4": 2016.1,
    "5.0": 2016.4,
    "5.1": 2016.7,
    "6": 2017.3,
    "7.0": 2017.7,
    "7.1": 2018.2,
    "7.3": 2018.7,
    "7.4": 2018.9,
    "7.5": 2019.2,
    "7.6": 2019.6,
    "8": 2020.6,
    "9": 2024.1,
}
"""Versions of cuDNN and when they came out. Source: NVIDIA, cuDNN release notes."""

UNFOLDING = ("nn", "caffe", "clnn", "greentea")
"""Libraries that unfold the input of a convolution into a matrix, as their sources show."""

_NAMES = (
    ("greentea", "greentea"),
    ("clnn", "clnn"),
    ("cl-nn", "clnn"),
    ("neon", "neon"),
    ("fbfft", "fbfft"),
    ("fbnn", "fbfft"),
    ("fbcunn", "fbfft"),
    ("convnet2", "convnet2"),
    ("chainer", "chainer"),
    ("torch-7-native", "nn"),
    ("torch-7", "nn"),
    ("caffe", "caffe"),
    ("native", "nn"),
)


def library_name(software: Software) -> str:
    """Name of the library, "" for the device maker's own.

    Example:
        >>> library_name(Software(libraries="CL-nn (Torch)")), library_name(Software(libraries="cudnn-5.1"))
        ('clnn', '')
    """
    text = software.libraries.lower()
    if "cudnn" in text or not text:
        return ""
    if text in ("nn", "caffe"):
        return "nn" if text == "nn" else ""  # Caffe alone is built with cuDNN
    return next((name for part, name in _NAMES if part in text), "")


def libraries_year(software: Software) -> float:
    """When the kernels of a software are from.

    Example:
        >>> libraries_year(Software(framework="torch7", year=2016.8, libraries="cudnn-5.0", source="example"))
        2016.4
    """
    found = re.search(r"cudnn\D{0,2}(\d)(?:\.?(\d))?", software.libraries.lower())
    if not found:
        return software.year
    major, minor = found.group(1), found.group(2) or "0"
    known = CUDNN_YEARS.get(f"{major}.{minor}", CUDNN_YEARS.get(major))
    return software.year if known is None else known
