"""Which library decodes the photographs of a published training."""

from trimaran.pricing.input_pipeline import LOADERS
from trimaran.pricing.kernels.software import Software


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
