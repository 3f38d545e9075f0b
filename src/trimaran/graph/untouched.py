"""Looking at a model without leaving a trace.

A capture runs the user's model, traces it and calls its modules on fake tensors. What that changes on the way is put
back: buffers (running statistics), attributes that a forward assigns, train and eval flags, and every random state.
"""

import io
import logging
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from trimaran.job import Job, Precision

AUTOCAST: Mapping[Precision, torch.dtype] = MappingProxyType({"bf16": torch.bfloat16, "fp16": torch.float16})
"""To what the forward of a job is cast, by its precision; others run as they are."""


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back everything in the model but the values of its parameters, and every random state."""
    modules = list(model.modules())
    attributes = [dict(vars(module)) for module in modules]
    contents = [[(value, value.copy()) for value in vars(module).values() if _is_plain(value)] for module in modules]
    buffers = [(tensor, tensor.detach().clone()) for tensor in model.buffers()]
    with preserved_randomness(model):
        try:
            yield
        finally:
            for module, saved, plain in zip(modules, attributes, contents, strict=True):
                vars(module).clear()
                vars(module).update(saved)
                for value, content in plain:
                    _refill(value, content)
            with torch.no_grad():
                for tensor, value in buffers:
                    tensor.copy_(value)


@contextmanager
def preserved_randomness(model: nn.Module | None = None) -> Iterator[None]:
    """Put back the random states of torch, of Python and, where it is loaded, of NumPy."""
    cuda = {tensor.device for tensor in _tensors(model) if tensor.is_cuda}
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numbers = numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(devices=sorted(device.index or 0 for device in cuda)):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numbers)


def uncompiled() -> AbstractContextManager[Any]:
    """Run what the user has compiled as it is written.

    Under the modes by which a model is looked at, torch's compiler gives up, and would pass over that code ever after.
    """
    # Nothing is compiled where it has not been loaded, and that takes a second.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch and the user's model say while the model is looked at: what matters becomes a note.

    Where `torch.export` fails it also prints the graph that it has so far.
    """
    before = logging.root.manager.disable
    nowhere = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def precision_context(job: Job, device: torch.device) -> Any:
    """What the forward of a job runs in: autocast for bf16 and fp16, nothing otherwise."""
    lower = AUTOCAST.get(job.precision)
    return nullcontext() if lower is None else torch.autocast(device.type, dtype=lower)


def device_of(model: nn.Module) -> torch.device:
    """The device of the model: that of its first parameter or buffer."""
    return next((tensor.device for tensor in _tensors(model)), torch.device("cpu"))


def _tensors(model: nn.Module | None) -> Iterator[Tensor]:
    if model is not None:
        yield from model.parameters()
        yield from model.buffers()


def _is_plain(value: object) -> bool:
    """Whether it is a container whose content a forward may change: a list, a dict (those of nn.Module too), a set."""
    return isinstance(value, list | dict | set)


def _refill(value: Any, content: Any) -> None:
    if isinstance(value, list):
        value[:] = content
        return
    value.clear()
    if isinstance(value, MutableMapping):
        value.update(content)
    else:
        value |= content
