"""Workloads and graphs of jobs: from the memory of this process, from disk, or traced.

torch is imported only where something must be traced.

A request has a job, options, an optimizer and a precision. Its key holds the version of Trimaran and of torch, the last
change of the sources that a workload depends on, and the content of a Hugging Face configuration. A user's file may
import anything, so its traces are not kept on disk.

A file is put in its place in one step, so a reader never sees half of one. A damaged file is renamed to
`<name>.damaged` and logged, and the job is traced again. Where the directory cannot be written, nothing is kept.
"""

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from trimaran.base import VERSION
from trimaran.base.decoding import decode_typed
from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.files import put_in_place
from trimaran.base.precision import Precision, parse_precision
from trimaran.graph.kernels.workload import KERNEL_PRECISIONS, AffineWorkload, Workload
from trimaran.graph.trace.live_bytes import StepMemory
from trimaran.graph.types import Graph
from trimaran.jobs.huggingface import is_configuration, read_configuration
from trimaran.measure.cache import cache_directory, read_kept
from trimaran.networks.names import parse_network
from trimaran.networks.names import with_options as add_options

if TYPE_CHECKING:
    from trimaran.planning.workload_tracing import WorkloadTracer


_SOURCES = (
    "networks/*.py",
    "graph/**/*.py",
    "user_code/*.py",
    "jobs/*.py",
    "planning/workload*.py",
    "planning/meta_trace.py",
)
"""Files whose code decides the content of a workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request for a workload.

    Attributes:
        reference: of the job, options included
        precision: "fp32", "bf16" or "fp16": "tf32" has the works of "fp32"
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
) -> Request:
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
    return Request(
        reference=in_full(reference, given),
        precision="fp32" if computed == "tf32" else computed,
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
    root = Path(__file__).parents[1]
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


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineStep:
    """A job's step as a function of the batch.

    Attributes:
        workload: its work on a device
        memory: its memory there
    """

    workload: AffineWorkload
    memory: StepMemory


Made = TypeVar("Made")


class Kept(Generic[Made]):
    """Results for requests on disk, one file each.

    Args:
        folder: in the directory of measured costs
        kind: type of the kept results
        again: the work without the file, such as "tracing"
    """

    def __init__(self, folder: str, kind: type[Made], again: str) -> None:
        self._folder, self._kind, self._again = folder, kind, again

    def path(self, request: Request) -> Path:
        """The file of a request."""
        return cache_directory() / self._folder / f"{request.key}.msgpack"

    def load(self, request: Request) -> Made | None:
        """The kept result; None where there is no sound file."""
        if not request.lasting:
            return None
        path = self.path(request)
        decode = partial(decode_typed, wanted=self._kind, source=str(path), packed=True)
        return read_kept(path, decode, then=f"{self._again} again")

    def store(self, request: Request, made: Made) -> None:
        """Keep it."""
        if not request.lasting:
            return
        path = self.path(request)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put_in_place(path, msgspec.msgpack.encode(made))
        except OSError as error:
            _LOG.warning("cannot write %s (%s): next time needs %s again", path, error.strerror, self._again)


STEPS = Kept("workloads", AffineStep, "tracing")
GRAPHS = Kept("graphs", Graph, "capturing")


def graph_of(request: Request) -> Graph:
    """The graph of a job, captured without its weights: that of the same export as elsewhere, with the same digest.

    Args:
        request: the job, as for its workload; its optimizer and precision do not matter

    Raises:
        InputError: the model, the data or the loss of the job cannot be used
    """
    return _graph(dataclasses.replace(request, optimizer="", precision="fp32"))


@functools.lru_cache(maxsize=16)
def _graph(request: Request) -> Graph:
    kept = GRAPHS.load(request)
    if kept is not None:
        return kept
    from trimaran.planning.workload_tracing import capture_without_weights

    made = capture_without_weights(request)
    GRAPHS.store(request, made)
    return made


def workload(
    reference: str,
    *,
    batch: int,
    precision: Precision = "fp32",
    options: Mapping[str, str] | None = None,
    optimizer: str | None = None,
) -> Workload:
    """Workload of one step of a job.

    Args:
        reference: of a job: a built-in name, a network, `file.py:factory`, a Hugging Face configuration
        batch: samples of the step
        precision: "fp32"; "tf32", which has the same works; "bf16" and "fp16" are autocast
        options: of the job, such as {"sequence": "512"}; "optimizer" is as the argument
        optimizer: in place of the job's, such as "adam"

    Raises:
        InputError: no such job, option, optimizer or precision; a batch below 1; the job cannot be traced
    """
    request = _request(reference, batch, precision, options, optimizer)
    return dataclasses.replace(_at(request, batch)[0], precision=precision)


def memory_of_step(
    reference: str,
    *,
    batch: int,
    precision: Precision = "fp32",
    options: Mapping[str, str] | None = None,
) -> StepMemory:
    """Memory of one step of a job on one device.

    Args:
        reference: as for `workload`
        batch: samples of the step. The result holds for any batch, unless the job's kernels depend on the batch
        precision: as for `workload`
        options: as for `workload`

    Raises:
        InputError: as for `workload`
    """
    return _at(_request(reference, batch, precision, options, None), batch)[1]


def _request(
    reference: str, batch: int, precision: str, options: Mapping[str, str] | None, optimizer: str | None
) -> Request:
    if batch < 1:
        raise InputError(f"a step needs at least one sample, not {batch}", code="workload.no-sample", batch=batch)
    return make_request(reference, precision=precision, options=options, optimizer=optimizer)


@functools.lru_cache(maxsize=128)
def _at(request: Request, batch: int) -> tuple[Workload, StepMemory]:
    form = _form(request)
    return _tracer(request).direct(batch) if form is None else (form.workload.at(batch), form.memory)


@functools.lru_cache(maxsize=128)
def _form(request: Request) -> AffineStep | None:
    kept = STEPS.load(request)
    if kept is not None:
        return kept
    made = _tracer(request).affine()
    if made is not None:
        STEPS.store(request, made)
    return made


@functools.lru_cache(maxsize=1)
def _tracer(request: Request) -> "WorkloadTracer":
    from trimaran.planning.workload_tracing import WorkloadTracer

    return WorkloadTracer(request)
