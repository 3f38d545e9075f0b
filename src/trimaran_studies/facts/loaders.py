"""Which library decodes the photographs of a published training, and how fast a node is fed by it."""

from trimaran.machine.types import Node
from trimaran.pricing.input_pipeline import LOADERS, InputPipeline, given_samples
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


def rate_of_host(samples_per_s: float, *, source: str) -> InputPipeline:
    """A loader of which only the rate is known, however many workers it has.

    Args:
        samples_per_s: to all devices of a node together [samples/s]
        source: of the figure
    """
    samples = given_samples(shared_s=1.0 / samples_per_s, source=source)
    return InputPipeline(samples=samples, workers=1, copies_ahead=0, cores=1, source=source)


def photograph_feed(node: Node, *, loader: str, cores: int | None = None) -> InputPipeline:
    """The input pipeline of photographs that a node's cores decode.

    Args:
        node: whose cores decode
        loader: one of `LOADERS`
        cores: that decode; None: all of the node
    """
    found, total = LOADERS[loader], node.cpu_cores if cores is None else cores
    source = f"{loader} on {total} cores: {found.source}"
    samples = given_samples(decode_s=1.0 / found.images_per_core_s, source=source)
    return InputPipeline(samples=samples, workers=total, copies_ahead=0, cores=total, source=source)


def most_samples_per_s(feed: InputPipeline, *, devices: int) -> float:
    """Rate at which a node hands samples to some devices, whatever these do [samples/s].

    Args:
        feed: of the node
        devices: of the node that take part
    """
    return devices / feed.fed(0.0, batch=1, devices=devices).seconds
