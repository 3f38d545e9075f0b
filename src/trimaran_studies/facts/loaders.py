"""Rates at which libraries of published trainings decode and augment photographs. Facts, not fitted."""

from dataclasses import dataclass

from trimaran.machine.types import Node
from trimaran.pricing.input_pipeline import LoaderThroughput
from trimaran.pricing.kernels.software import Software


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A library that decodes and augments photographs of ImageNet's size (about 110 kB, 500 x 375) to 224 x 224.

    Attributes:
        images_per_core_s: of one core [images/s]
        workers: processes or threads of a device's loader; 0: one for each core
        source: where the figures come from
    """

    images_per_core_s: float
    workers: int = 0
    source: str


LOADERS = {
    "torchvision": Loader(
        images_per_core_s=110.0, source="Pillow 7 to 9 resized crop of ImageNet: about 100 to 130 images/s a core"
    ),
    "tensorflow": Loader(
        images_per_core_s=180.0, source="tf.image decode_and_crop_jpeg, distortions: 150 to 200 images/s a core"
    ),
    "mxnet": Loader(
        images_per_core_s=250.0, source="MXNet RecordIO with OpenCV, images resized beforehand to 480 pixels"
    ),
    "dali-cpu": Loader(
        images_per_core_s=205.0,
        source="NVIDIA DALI: 7,800 to 8,300 images/s on the 40 cores of a DGX-1, NVIDIA/DeepLearningExamples "
        "PyTorch/Classification/ConvNets (EfficientNet-B0 and ResNet-50 in half precision on 8 GPUs)",
    ),
    "dali": Loader(images_per_core_s=500.0, source="NVIDIA DALI, entropy decoding on cores, the rest on the device"),
}


def photograph_feed(
    node: Node, *, loader: str, cores: int | None = None, devices: int | None = None
) -> LoaderThroughput:
    """The input pipeline of photographs that a node's cores decode.

    Args:
        node: whose cores decode
        loader: one of `LOADERS`
        cores: that decode; None: all of the node
        devices: that share these cores, where each loader has its workers; None: all of the node
    """
    found = LOADERS[loader]
    total = node.cpu_cores if cores is None else cores
    per_device = found.workers or total
    return LoaderThroughput(
        samples_per_s=min(total, per_device * (devices or node.devices)) * found.images_per_core_s,
        device_samples_per_s=per_device * found.images_per_core_s,
        source=f"{loader} on {total} cores: {found.source}",
    )


def loader_of(software: Software) -> str:
    """The loader that a framework's own examples use for photographs.

    Example:
        >>> loader_of(Software(framework="mxnet", year=2017.0))
        'mxnet'
    """
    for name in ("dali-cpu", "dali"):
        if name in software.libraries:
            return name
    return software.framework if software.framework in LOADERS else "torchvision"
