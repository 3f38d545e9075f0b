"""Workloads on disk: one file for each request, under `workloads` in the directory of measured costs.

A file is put in its place in one step, so a reader never sees half of one. A damaged file is renamed to
`<name>.damaged` and logged, and the job is traced again. Where the directory cannot be written, nothing is kept.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimaran.graph.workloads import AffineWorkload, StepMemory
from trimaran.measure.cache import cache_directory, put_in_place
from trimaran.session.workloads.references import Request

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineStep:
    """A job's step as a function of the batch.

    Attributes:
        workload: what it asks of a device
        memory: what it needs there
    """

    workload: AffineWorkload
    memory: StepMemory


_DECODER = msgspec.msgpack.Decoder(AffineStep)
_ENCODER = msgspec.msgpack.Encoder()


def path_of(request: Request) -> Path:
    """The file of a request."""
    return cache_directory() / "workloads" / f"{request.key}.msgpack"


def load(request: Request) -> AffineStep | None:
    """What is kept; None where there is nothing sound."""
    if not request.lasting:
        return None
    path = path_of(request)
    try:
        return _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        _LOG.warning("cannot read %s (%s), tracing again", path, error.strerror)
    except msgspec.MsgspecError:
        with suppress(OSError):
            path.replace(path.with_suffix(".damaged"))
        _LOG.warning("%s is damaged: set aside, tracing again", path)
    return None


def store(request: Request, form: AffineStep) -> None:
    """Keep a step."""
    if not request.lasting:
        return
    path = path_of(request)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(path, _ENCODER.encode(form))
    except OSError as error:
        _LOG.warning("cannot write %s (%s): it will be traced again", path, error.strerror)
