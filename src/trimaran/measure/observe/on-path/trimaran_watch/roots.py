"""Which modules the script calls itself (the roots), what it calls them with, and the time of their forwards.

Roots are learned in the first steps by a wrapper around `Module.__call__`, which is away while a root runs and gone
afterwards; then only the roots' classes are wrapped. They are learned again until the end of the step where a module is
set to evaluation: a trainer may evaluate the module that it has wrapped for training. Inside torch.compile every
wrapper steps aside.
"""

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, get_worker_info

from trimaran_watch.ledger import EVALUATION, FORWARD, FORWARDS, LEDGER, LOSS, SAMPLES

Function = Callable[..., Any]

_LEARN_STEPS = 3
# A process that calls modules so often without an optimizer's step does not train.
_MOST_LEARNED = 10_000
_thread = threading.get_ident
_compiling = torch.compiler.is_compiling


class HookedObjects:
    """The objects that the hooks met.

    Attributes:
        roots: modules that the script calls itself, by their class
        main: the root with most parameters, once a step was taken
        given: whether the script named the main root
        optimizer: the one whose steps count
        others: whether other optimizers took steps
        strange: steps of other optimizers, by their id, since the last one that counts
        loader: the loader that feeds the steps
        inputs: what the main root was called with in one step, for timing it again afterwards
        keep_from: step from which on the inputs are kept
        each_step: called at the end of each step
        each_forward: called before each forward of the main root
    """

    def __init__(self) -> None:
        self.renew(None)

    def renew(self, main: torch.nn.Module | None) -> None:
        """Forget everything but the main root, where it is given."""
        self.roots: dict[type, torch.nn.Module] = {}
        self.main = main
        self.given = main is not None
        self.optimizer: torch.optim.Optimizer | None = None
        self.others = False
        self.strange: dict[int, int] = {}
        self.loader: DataLoader[Any] | None = None
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.keep_from = _LEARN_STEPS + 1
        self.each_step: Callable[[], None] | None = None
        self.each_forward: Callable[[], None] | None = None


SEEN = HookedObjects()

# `Module.__call__` as it was, while a wrapper is in its place.
_plain_call: list[Function] = []
# Wrappers of classes' `__call__`, and what the class itself had there.
_watched: dict[type, tuple[Function, Function | None]] = {}
# The step at whose end there is nothing more to learn.
_learned_at = [0]


def give_up(error: Exception) -> None:
    """Watch no longer, and say so: the script goes on.

    Args:
        error: of the watch
    """
    LEDGER.thread = 0
    _stop_learning()
    sys.stderr.write(f"trimaran observe: this process is watched no longer: {error!r}\n")


def watch_roots(model: torch.nn.Module | None) -> None:
    """Forget what was met, and begin anew.

    Args:
        model: the root, where it is known
    """
    _unwatch()
    SEEN.renew(model)
    if model is None:
        _learn()
    else:
        _watch_class(type(model), model)


def learn_again() -> None:
    """Learn the roots anew, unless the script named its own."""
    SEEN.inputs, SEEN.keep_from = None, LEDGER.steps + _LEARN_STEPS + 1
    if not SEEN.given:
        _unwatch()
        SEEN.roots, SEEN.main = {}, None
        _learn()


def learn_more() -> None:
    """A module is set to evaluation: learn which ones are called until the step ends. The main root stays."""
    if not _plain_call:
        _learn(steps=1, settled=True)


def end_learning() -> None:
    """A step has ended: from now on only the classes of known roots are wrapped, if enough was learned."""
    if _plain_call and LEDGER.steps >= _learned_at[0]:
        _stop_learning()
        _watch_all()


def _watch_all() -> None:
    for kind, module in SEEN.roots.items():
        if kind not in _watched:
            _watch_class(kind, module)


def _unwatch() -> None:
    _stop_learning()
    for kind, (wrapper, own) in _watched.items():
        if kind.__dict__.get("__call__") is not wrapper:
            continue
        if own is None:
            del kind.__call__
        else:
            kind.__call__ = own  # type: ignore[method-assign]
    _watched.clear()


def _stop_learning() -> None:
    if _plain_call:
        torch.nn.Module.__call__ = _plain_call.pop()  # type: ignore[method-assign]


def _learn(*, steps: int = _LEARN_STEPS, settled: bool = False) -> None:
    original = torch.nn.Module.__call__
    until = _learned_at[0] = LEDGER.steps + steps
    calls = 0

    @functools.wraps(original)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if _compiling() or _thread() != LEDGER.thread or len(LEDGER.stack) > 1:
            return original(self, *args, **kwargs)
        calls += 1
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]
        if get_worker_info() is not None:
            # A loader's worker trains nothing.
            _plain_call.clear()
            LEDGER.thread = 0
            return original(self, *args, **kwargs)
        try:
            _note(self, settled=settled and SEEN.main is not None)
            return _forward(original, self, args, kwargs)
        finally:
            if _plain_call and LEDGER.steps < until and calls < _MOST_LEARNED:
                torch.nn.Module.__call__ = call  # type: ignore[method-assign]
            elif _plain_call:
                _plain_call.clear()
                _watch_all()

    _plain_call.append(original)
    torch.nn.Module.__call__ = call  # type: ignore[method-assign]


def _note(module: torch.nn.Module, *, settled: bool) -> None:
    try:
        if not torch.is_grad_enabled():
            # A teacher's or a target network's forward belongs to the step, a metric's does not.
            if next(module.parameters(), None) is not None:
                SEEN.roots.setdefault(type(module), module)
            return
        SEEN.roots.setdefault(type(module), module)
        if not settled and module is not SEEN.main and (SEEN.main is None or _size(module) > _size(SEEN.main)):
            SEEN.main = module
    except Exception as error:  # noqa: BLE001  the script must go on whatever its modules are
        give_up(error)


def _size(module: torch.nn.Module) -> int:
    parameters = (parameter for parameter in module.parameters() if not is_lazy(parameter))
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad)


def _watch_class(kind: type, module: torch.nn.Module) -> None:
    original = kind.__call__
    SEEN.roots[kind] = module

    @functools.wraps(original)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _compiling() or _thread() != LEDGER.thread or len(LEDGER.stack) > 1:
            return original(self, *args, **kwargs)
        return _forward(original, self, args, kwargs)

    _watched[kind] = (call, kind.__dict__.get("__call__"))
    kind.__call__ = call  # type: ignore[method-assign]


def _forward(original: Function, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    ledger = LEDGER
    learning = torch.is_grad_enabled()
    if learning and module is SEEN.main:
        _count(args, kwargs)
    depth = ledger.enter(FORWARD if learning else EVALUATION)
    try:
        return original(module, *args, **kwargs)
    finally:
        ledger.leave(depth)
        if learning:
            ledger.stack[0] = LOSS


def _count(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        LEDGER.counts[FORWARDS] += 1
        LEDGER.counts[SAMPLES] += count_samples(args, kwargs)
        if SEEN.each_forward is not None:
            SEEN.each_forward()
        if SEEN.inputs is None and LEDGER.steps >= SEEN.keep_from:
            SEEN.inputs = (args, kwargs)
    except Exception as error:  # noqa: BLE001  the script must go on whatever its batches are
        give_up(error)


def count_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Samples of a batch: the first dimension of the first tensor in it; 0: there is none.

    Also inside of mappings, and of sequences of unlike tensors with one first dimension, as inputs with their targets
    are. Like tensors in a sequence may be samples each, as images for a detector are, and do not count.
    """
    return next((samples for value in (*args, *kwargs.values()) if (samples := _samples(value))), 0)


def _samples(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.size(0)) if value.dim() else 0
    if isinstance(value, Mapping):
        return count_samples((), dict(value))
    if isinstance(value, list | tuple):
        parts = [part for part in value if isinstance(part, torch.Tensor) and part.dim()]
        alike = len({(part.dim(), part.dtype) for part in parts}) == 1
        return int(parts[0].size(0)) if parts and not alike and len({part.size(0) for part in parts}) == 1 else 0
    return 0
