"""torch's modules, autograd, optimizers and loaders write into the ledger.

Functions and classes of torch are wrapped, objects of the script are not touched: hooks on a model would travel with
its copies and its pickles. Inside torch.compile every wrapper steps aside. An error of the watch is said once and ends
the watching, never the step.
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
    EXPOSED,
    LEDGER,
    LOAD,
    LOAD_CPU,
    OTHER,
    OWN,
    START,
    UPDATE,
)
from trimaran_watch.roots import SEEN, end_learning, give_up, learn_again, learn_more

Function = Callable[..., Any]

# Steps of another optimizer, with none of ours between them, after which that one counts.
_ADOPT_STEPS = 50
_thread = threading.get_ident
_compiling = torch.compiler.is_compiling


def timed(
    original: Function,
    kind: int,
    *,
    counted: int | None = None,
    skips: Callable[[Any], bool] | None = None,
    begins: Callable[..., object] | None = None,
    ends: Callable[[Any], object] | None = None,
) -> Function:
    """A function whose time goes to a kind.

    Args:
        original: the function
        kind: what its time is spent on
        counted: which of the counts says how often
        skips: whether a call with such arguments is none of it
        begins: called before, with the arguments
        ends: called after, with what `begins` gave
    """

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ledger = LEDGER
        if _compiling() or _thread() != ledger.thread or (skips is not None and skips(args)):
            return original(*args, **kwargs)
        if counted is not None:
            ledger.counts[counted] += 1
        begun = None if begins is None else begins(*args, **kwargs)
        depth = ledger.enter(kind)
        try:
            return original(*args, **kwargs)
        finally:
            ledger.leave(depth)
            if ends is not None:
                ends(begun)

    return wrapper


def install_hooks() -> None:
    """Wrap what trains, but for the roots."""
    torch.autograd.backward = timed(
        torch.autograd.backward, BACKWARD, counted=BACKWARDS, begins=_tell_when_computed, ends=_backward_ended
    )
    torch.autograd.grad = timed(torch.autograd.grad, BACKWARD)
    optimizers = torch.optim.Optimizer
    setattr(optimizers, "zero_grad", timed(optimizers.zero_grad, UPDATE))  # noqa: B010  mypy refuses the plain form
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        setattr(torch.nn.utils, name, timed(getattr(torch.nn.utils, name), UPDATE))
    register_optimizer_step_pre_hook(_before_update)
    register_optimizer_step_post_hook(_after_update)
    setattr(torch.nn.Module, "train", _set_mode(torch.nn.Module.train))  # noqa: B010
    # Before a forward DDP sends buffers, for which a rank waits until the slowest has come: no part of the forward.
    setattr(DistributedDataParallel, "_sync_buffers", timed(DistributedDataParallel._sync_buffers, EXPOSED))  # noqa: B010
    iterator = loaders._BaseDataLoaderIter
    following = timed(iterator.__next__, LOAD, counted=BATCHES, begins=_load_begins, ends=_load_ended)
    setattr(iterator, "__next__", following)  # noqa: B010
    setattr(DataLoader, "__iter__", timed(DataLoader.__iter__, START, begins=_meet_loader))  # noqa: B010


def _set_mode(original: Function) -> Function:
    @functools.wraps(original)
    def train(self: torch.nn.Module, mode: bool = True) -> Any:
        if not mode and _thread() == LEDGER.thread and not _compiling():
            learn_more()
        return original(self, mode)

    return train


def _backward_ended(handle: Any) -> None:
    LEDGER.stack[0] = OTHER
    if handle is not None:
        handle.remove()


def _tell_when_computed(tensors: Any, *_: Any, **__: Any) -> Any:
    """Ask autograd to call us when all gradients are there.

    Callbacks of the engine run in the order in which they were queued. Ours is queued as the backward begins; DDP
    queues its own, which waits for the exchange, when the last bucket is full. So the time from ours to the end of the
    backward is what the exchange is exposed.
    """
    try:
        main = SEEN.main
        if not isinstance(main, DistributedDataParallel) or not main.require_backward_grad_sync:
            return None
        first: Any = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        return None if getattr(first, "grad_fn", None) is None else first.register_hook(_queue)
    except Exception as error:  # noqa: BLE001  the script must go on whatever it differentiates
        return give_up(error)


def _queue(_gradient: torch.Tensor) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(_computed)


def _computed() -> None:
    if _thread() == LEDGER.thread and LEDGER.stack[-1] == BACKWARD:
        LEDGER.turn(EXPOSED)


def _before_update(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if _thread() != LEDGER.thread:
        return None
    LEDGER.enter(UPDATE)
    # The optimizer itself is the first argument, its closure the second.
    if len(args) > 1 and callable(args[1]):
        return (args[0], outside_update(args[1]), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, kwargs | {"closure": outside_update(kwargs["closure"])}
    return None


def outside_update(closure: Function) -> Function:
    """A closure whose time is not the update's: an optimizer calls it to compute the loss and the gradients."""

    @functools.wraps(closure)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ledger = LEDGER
        if _thread() != ledger.thread or UPDATE not in ledger.stack:
            return closure(*args, **kwargs)
        ledger.leave(ledger.stack.index(UPDATE))
        result = closure(*args, **kwargs)
        ledger.enter(UPDATE)
        return result

    return wrapper


def _after_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    ledger = LEDGER
    if _thread() != ledger.thread:
        return
    ledger.leave(ledger.stack.index(UPDATE) if UPDATE in ledger.stack else 1)
    try:
        if _counts(optimizer):
            ledger.stack[0] = OTHER
            depth = ledger.enter(OWN)
            ledger.end_step()
            end_learning()
            if SEEN.each_step is not None:
                SEEN.each_step()
            ledger.leave(depth)
    except Exception as error:  # noqa: BLE001  the script must go on whatever was to be written
        give_up(error)


def _counts(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step ends with this optimizer's."""
    if SEEN.optimizer is None:
        SEEN.optimizer = optimizer
    if optimizer is SEEN.optimizer:
        SEEN.strange.clear()
        return True
    SEEN.others = True
    steps = SEEN.strange[id(optimizer)] = SEEN.strange.get(id(optimizer), 0) + 1
    if steps < _ADOPT_STEPS:
        return False
    SEEN.optimizer = optimizer
    SEEN.strange.clear()
    learn_again()
    return True


def _load_begins(_: Any) -> tuple[int, tuple[int, int, int]]:
    LEDGER.stack[0] = OTHER
    return time.thread_time_ns(), LEDGER.begin_load()


def _load_ended(begun: tuple[int, tuple[int, int, int]]) -> None:
    LEDGER.counts[LOAD_CPU] += time.thread_time_ns() - begun[0]
    LEDGER.end_load(begun[1])


def _meet_loader(loader: DataLoader[Any]) -> None:
    if SEEN.loader is None or torch.is_grad_enabled():
        SEEN.loader = loader
