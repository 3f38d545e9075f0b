"""Request for a workload or a graph of a job, and the workload as a function of the batch.

A request has a job, options, an optimizer and a precision. Its key holds the version of Trimaran and of torch, the last
change of the sources that a workload depends on, and the content of a Hugging Face configuration. A user's file may
import anything, so its traces are not kept on disk.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from trimaran.base import VERSION
from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.precision import Precision, parse_precision
from trimaran.graph.kernels.workload import KERNEL_PRECISIONS, AffineWorkload
from trimaran.graph.trace.live_bytes import StepMemory
from trimaran.jobs.huggingface import is_configuration, read_configuration
from trimaran.networks.names import parse_network
from trimaran.networks.names import with_options as add_options

_SOURCES = (
    "networks/*.py",
    "graph/**/*.py",
    "user_code/*.py",
    "jobs/*.py",
    "planning/tracing/*.py",
)
"""Files whose code decides the content of a workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """Request for a workload.

    Attributes:
        reference: of the job, options included
        precision: "fp32", "bf16" or "fp16": "tf32" and "ieee" have the works of "fp32"
        optimizer: in place of the job's; "" for the job's
    """

    reference: str
    precision: Precision
    optimizer: str

    @property
    def lasting(self) -> bool:
        """Whether it may be kept on disk."""
        return ".py:" not in self.reference

    @property
    def key(self) -> str:
        """Name of its file."""
        parts = [_versions(), _content(self.reference), self.reference, self.precision, self.optimizer]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def make_request(
    reference: str, *, precision: str, options: Mapping[str, str] | None, optimizer: str | None
) -> TraceRequest:
    """Request for a workload, in one form.

    Args:
        reference: of a job
        precision: one of `KERNEL_PRECISIONS`, or a long name of it
        options: of the job; "optimizer" among them is as the argument
        optimizer: in place of the job's

    Raises:
        InputError: an unknown precision, or an option that the job does not have
    """
    computed = parse_precision(precision, known=KERNEL_PRECISIONS)
    given = dict(options or {})
    asked = given.pop("optimizer", None)
    return TraceRequest(
        reference=in_full(reference, given),
        precision="fp32" if computed in ("ieee", "tf32") else computed,
        optimizer=(optimizer or asked or "").lower(),
    )


def in_full(reference: str, options: Mapping[str, str]) -> str:
    """One spelling of a reference, with options behind it.

    Args:
        reference: of a job
        options: of the job, such as {"sequence": "512"}

    Raises:
        InputError: the job has no such option, or no such value of it

    Example:
        >>> in_full("ResNet50", {"image": "32"}), in_full("models/config.json", {"sequence": "64"})
        ('resnet50:image=32', 'models/config.json:sequence=64')
    """
    network = parse_network(reference)
    if network is not None:
        return add_options(reference, options) if options else str(network)
    if not options:
        return reference
    if not is_configuration(reference):
        raise InputError(
            f'"{reference}" has no options; {", ".join(options)} was given: published networks and Hugging Face '
            "configurations have some",
            code="workload.no-options",
            options=sorted(options),
        )
    path = reference.rpartition(":")[0] if "=" in reference else reference
    return f"{path}:{','.join(f'{name}={value}' for name, value in options.items())}"


@functools.cache
def _versions() -> str:
    root = Path(__file__).parents[2]
    changed = [
        (str(path.relative_to(root)), stat.st_mtime_ns, stat.st_size)
        for pattern in _SOURCES
        for path in sorted(root.glob(pattern))
        if (stat := path.stat())
    ]
    return json.dumps([VERSION, metadata.version("torch"), changed])


def _content(reference: str) -> str:
    """Of a configuration: the content of its file."""
    if parse_network(reference) is not None or not is_configuration(reference):
        return ""
    try:
        return metadata.version("transformers") + json.dumps(dict(read_configuration(reference).values), default=str)
    except (TrimaranError, metadata.PackageNotFoundError):
        return ""  # the code that makes the job reports the error


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineStep:
    """A job's step as a function of the batch.

    Attributes:
        workload: its work on a device
        memory: its memory there
    """

    workload: AffineWorkload
    memory: StepMemory
