"""torch's modules, autograd, optimizers and loaders write into the ledger.

Functions and classes of torch are wrapped, objects of the script are not touched: hooks on a model would travel with
its copies and its pickles. Which modules the script calls itself (the roots) is learned in the first steps by a wrapper
around `Module.__call__`, which is away while a root runs and gone afterwards; then only the roots' classes are wrapped.
Inside torch.compile every wrapper steps aside.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as loaders

from trimaran_watch.ledger import (
    BACKWARD,
    BACKWARDS,
    BATCHES,
    EVALUATION,
    EXPOSED,
    FORWARD,
    FORWARDS,
    LEDGER,
    LOAD,
    LOAD_CPU,
    LOSS,
    OTHER,
    SAMPLES,
    START,
    UPDATE,
)

Function = Callable[..., Any]

_LEARN_STEPS = 3
_thread = threading.get_ident
_compiling = torch.compiler.is_compiling


class Seen:
    """What the hooks met.

    Attributes:
        roots: modules that the script calls itself, by their class
        main: the root with most parameters, once a step was taken
        optimizer: the one whose steps count
        others: whether other optimizers took steps
        loader: the loader that feeds the steps
        inputs: what the main root was called with in one step, for timing it again afterwards
        each_step: called at the end of each step
        each_forward: called before each forward of the main root
    """

    def __init__(self) -> None:
        self.roots: dict[type, torch.nn.Module] = {}
        self.main: torch.nn.Module | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.others = False
        self.loader: DataLoader[Any] | None = None
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.each_step: Callable[[], None] | None = None
        self.each_forward: Callable[[], None] | None = None


SEEN = Seen()


def timed(original: Function, kind: int) -> Function:
    """A function whose time goes to a kind."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _compiling() or _thread() != LEDGER.thread:
            return original(*args, **kwargs)
        depth = LEDGER.enter(kind)
        try:
            return original(*args, **kwargs)
        finally:
            LEDGER.leave(depth)

    return wrapper


def install_hooks(model: torch.nn.Module | None = None) -> None:
    """Wrap what trains.

    Args:
        model: the root, where it is known
    """
    if model is None:
        _learn_roots()
    else:
        SEEN.main = model
        _watch_class(type(model), model)
    torch.autograd.backward = _backward(torch.autograd.backward)
    torch.autograd.grad = timed(torch.autograd.grad, BACKWARD)
    optimizers = torch.optim.Optimizer
    setattr(optimizers, "zero_grad", timed(optimizers.zero_grad, UPDATE))  # noqa: B010  mypy refuses the plain form
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        setattr(torch.nn.utils, name, timed(getattr(torch.nn.utils, name), UPDATE))
    register_optimizer_step_pre_hook(_before_update)
    register_optimizer_step_post_hook(_after_update)
    iterator = loaders._BaseDataLoaderIter
    setattr(iterator, "__next__", _next_batch(iterator.__next__))  # noqa: B010
    setattr(DataLoader, "__iter__", _new_iterator(DataLoader.__iter__))  # noqa: B010


def _learn_roots() -> None:
    original = torch.nn.Module.__call__

    @functools.wraps(original)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _compiling() or _thread() != LEDGER.thread or len(LEDGER.stack) > 1:
            return original(self, *args, **kwargs)
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]
        try:
            if torch.is_grad_enabled():
                SEEN.roots.setdefault(type(self), self)
                _note_main(self)
            return _forward(original, self, args, kwargs)
        finally:
            if LEDGER.steps < _LEARN_STEPS:
                torch.nn.Module.__call__ = call  # type: ignore[method-assign]
            else:
                for kind, module in SEEN.roots.items():
                    _watch_class(kind, module)

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]


def _note_main(module: torch.nn.Module) -> None:
    if module is not SEEN.main and (SEEN.main is None or _size(module) > _size(SEEN.main)):
        SEEN.main = module


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def _watch_class(kind: type, module: torch.nn.Module) -> None:
    original = kind.__call__
    SEEN.roots[kind] = module

    @functools.wraps(original)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _compiling() or _thread() != LEDGER.thread or len(LEDGER.stack) > 1:
            return original(self, *args, **kwargs)
        return _forward(original, self, args, kwargs)

    kind.__call__ = call  # type: ignore[method-assign]


def _forward(original: Function, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    ledger = LEDGER
    learning = torch.is_grad_enabled()
    if learning and module is SEEN.main:
        ledger.counts[FORWARDS] += 1
        ledger.counts[SAMPLES] += count_samples(args, kwargs)
        if SEEN.each_forward is not None:
            SEEN.each_forward()
        if SEEN.inputs is None and ledger.steps == _LEARN_STEPS + 1:
            SEEN.inputs = (args, kwargs)
    depth = ledger.enter(FORWARD if learning else EVALUATION)
    try:
        return original(module, *args, **kwargs)
    finally:
        ledger.leave(depth)
        if learning:
            ledger.stack[0] = LOSS


def count_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Samples of a batch: the first dimension of the first tensor in it."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim():
            return int(value.shape[0])
    return 0


def _backward(original: Function) -> Function:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        ledger = LEDGER
        if _thread() != ledger.thread:
            return original(tensors, *args, **kwargs)
        ledger.counts[BACKWARDS] += 1
        handle = _tell_when_computed(tensors) if isinstance(SEEN.main, DistributedDataParallel) else None
        depth = ledger.enter(BACKWARD)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            ledger.leave(depth)
            ledger.stack[0] = OTHER
            if handle is not None:
                handle.remove()

    return backward


def _tell_when_computed(tensors: Any) -> Any:
    """Ask autograd to call us when all gradients are there.

    Callbacks of the engine run in the order in which they were queued. Ours is queued as the backward begins; DDP
    queues its own, which waits for the exchange, when the last bucket is full. So the time from ours to the end of the
    backward is what the exchange is exposed.
    """
    first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
    if first is None or first.grad_fn is None or not SEEN.main.require_backward_grad_sync:  # type: ignore[union-attr]
        return None
    return first.register_hook(_queue)


def _queue(_gradient: torch.Tensor) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(_computed)


def _computed() -> None:
    if _thread() == LEDGER.thread and LEDGER.stack[-1] == BACKWARD:
        LEDGER.turn(EXPOSED)


def _before_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if _thread() == LEDGER.thread:
        LEDGER.enter(UPDATE)


def _after_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    ledger = LEDGER
    if _thread() != ledger.thread:
        return
    ledger.leave(ledger.stack.index(UPDATE) if UPDATE in ledger.stack else 1)
    if SEEN.optimizer is None:
        SEEN.optimizer = optimizer
    if optimizer is not SEEN.optimizer:
        SEEN.others = True
        return
    ledger.stack[0] = OTHER
    ledger.end_step()
    if SEEN.each_step is not None:
        SEEN.each_step()


def _next_batch(original: Function) -> Function:
    @functools.wraps(original)
    def following(self: Any) -> Any:
        ledger = LEDGER
        if _thread() != ledger.thread:
            return original(self)
        ledger.stack[0] = OTHER
        depth = ledger.enter(LOAD)
        before = time.thread_time_ns()
        try:
            return original(self)
        finally:
            ledger.counts[LOAD_CPU] += time.thread_time_ns() - before
            ledger.counts[BATCHES] += 1
            ledger.leave(depth)

    return following


def _new_iterator(original: Function) -> Function:
    @functools.wraps(original)
    def iterate(self: DataLoader[Any]) -> Any:
        if _thread() != LEDGER.thread:
            return original(self)
        if SEEN.loader is None or torch.is_grad_enabled():
            SEEN.loader = self
        depth = LEDGER.enter(START)
        try:
            return original(self)
        finally:
            LEDGER.leave(depth)

    return iterate
