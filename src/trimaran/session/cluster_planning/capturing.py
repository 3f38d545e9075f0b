"""The graph of a job without its weights: traced on meta tensors, then read from disk.

What a machine that is not here would run is not compared with the model here: the graph is that of the same export as
elsewhere, with the same digest. Graphs are kept beside workloads, under the same keys, in one file each.
"""

import dataclasses
import functools
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trimaran.errors import InputError
from trimaran.graph import Graph
from trimaran.job import Job
from trimaran.measure.cache import cache_directory, put_in_place
from trimaran.session.jobs import resolve
from trimaran.session.workloads.references import Request

if TYPE_CHECKING:
    from torch import nn

_LOG = logging.getLogger(__name__)
_DECODER = msgspec.msgpack.Decoder(Graph)
_ENCODER = msgspec.msgpack.Encoder()


def graph_of(request: Request) -> Graph:
    """The graph of a job.

    Args:
        request: the job, as for its workload; its optimizer and precision do not matter

    Raises:
        InputError: the model, the data or the loss of the job cannot be used
    """
    return _graph(dataclasses.replace(request, optimizer="", precision="float32"))


@functools.lru_cache(maxsize=16)
def _graph(request: Request) -> Graph:
    path = cache_directory() / "graphs" / f"{request.key}.msgpack"
    kept = _load(path) if request.lasting else None
    if kept is not None:
        return kept
    made = _capture(request.reference)
    if request.lasting:
        _store(path, made)
        return made
    from trimaran.graph.capture import looked_at

    # Only a user's own code may do what no graph shows.
    return looked_at(resolve(request.reference), made)


def _capture(reference: str) -> Graph:
    """Trace the model where its weights take no memory; where its own code cannot, where they do."""
    import torch

    from trimaran.graph.batches import name_tensors
    from trimaran.graph.capture import capture
    from trimaran.graph.describe import describe_flow
    from trimaran.graph.exports import NotExportableError
    from trimaran.graph.flow import make_flow
    from trimaran.graph.sample import sample_batch

    job = resolve(reference)
    try:
        model = _weightless(job)
        batch = sample_batch(job, next(model.parameters()).device)
        with torch.enable_grad():
            return describe_flow(job, model, make_flow(job, model, batch), batch, name_tensors(batch))
    except (NotExportableError, InputError, NotImplementedError, RuntimeError, StopIteration) as error:
        _LOG.info("%s: not captured without weights (%s), making them", reference, error)
    return capture(job).graph


def _weightless(job: Job) -> "nn.Module":
    """The model with weights that nobody writes to.

    Without a device a recurrent layer is looked at step by step, which takes minutes. So a network that has some gets
    memory of the host, which takes none until it is written to.
    """
    import torch
    from torch import nn

    from trimaran.graph.sample import make_model

    with torch.device("meta"):
        model = make_model(job)
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        model = model.to_empty(device="cpu")
        for buffer in model.buffers():
            buffer.zero_()
    return model


def _load(path: Path) -> Graph | None:
    try:
        return _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        _LOG.warning("cannot read %s (%s), capturing again", path, error.strerror)
    except msgspec.MsgspecError:
        with suppress(OSError):
            path.replace(path.with_suffix(".damaged"))
        _LOG.warning("%s is damaged: set aside, capturing again", path)
    return None


def _store(path: Path, graph: Graph) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(path, _ENCODER.encode(graph))
    except OSError as error:
        _LOG.warning("cannot write %s (%s): it will be captured again", path, error.strerror)
