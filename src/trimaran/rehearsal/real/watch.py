"""What a rank does, seen from its loaders, its outermost modules and its optimizers.

    batch from a loader ─▶ forward of an outermost module ─▶ backward ─▶ gradients ─▶ optimizer's step
    kept                   weights kept, once a round                    kept         figures kept

A round ends with the first forward after an optimizer's step. A rank keeps `most_steps` rounds and the weights after
them. Then it goes on, as others may wait for it, until all have come so far.
"""

import gc
import hashlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as loaders

from trimaran.rehearsal.device.replaced import replace
from trimaran.user_code.batches import copied_batch, name_tensors

_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_forward_module.")
_LOADER = "_trimaran_loader"
_MOST_BYTES = 256 * 2**20

FOUND = "found.json"
"""What one process found, in the folder of the ranks."""

ONE_BY_ONE = "one-by-one"
"""File in that folder: batches of ranks come one after another."""

DEVICES = "devices"
"""File in that folder: how many devices one process sees."""

MOVED = "moved"
"""File in that folder: what is added to weights of each rank, by name."""

ROLLED = "rolled"
"""File in that folder: ranks that draw the same numbers have them in another order."""


class Unmatched(BaseException):
    """One process cannot have what the ranks had. No handler of a script's catches it."""


def seen_file(meeting: Path, rank: int) -> Path:
    """What a rank did."""
    return meeting / f"rank{rank}.seen"


@dataclass(slots=True)
class TensorShare:
    """What a rank has of a tensor.

    Attributes:
        values: of it
        shape: of the whole
        offset: of the first value in the whole; None: the script has said nothing, so it is taken for the whole
    """

    values: torch.Tensor
    shape: tuple[int, ...]
    offset: tuple[int, ...] | None = None


@dataclass(slots=True)
class OptimizerStep:
    """A step of one optimizer.

    Attributes:
        gradients: by name of the parameter; None: it has none
        settings: numbers of each group of parameters, such as the learning rate
        lines: of the script that asked for it, innermost first
        backward: those that asked for the last backward
    """

    gradients: dict[str, TensorShare | None]
    settings: list[dict[str, Any]]
    lines: list[str]
    backward: list[str]

    @property
    def where(self) -> tuple[str, ...]:
        """The innermost lines of the backward and of the step."""
        return tuple(dict.fromkeys([*self.backward[:1], *self.lines[:1]]))


@dataclass(slots=True)
class WatchedRound:
    """Forwards, backwards, and steps of optimizers until the next forward.

    Attributes:
        weights: before it, by name
        updates: in order
        norms: to which gradients were clipped, in order
        pulls: batches of each loader, and tensors of each line that draws random numbers, that were taken by its end
        loss: sum of all that a backward began with
        left: digests of the weights that the last step has left, by name
    """

    weights: dict[str, TensorShare] = field(default_factory=dict)
    updates: list[OptimizerStep] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    pulls: dict[int | str, int] = field(default_factory=dict)
    loss: float = 0.0
    left: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class WatchedRank:
    """What a rank has done.

    Attributes:
        rounds: in order; the last one has weights alone where the script went on
        batches: of each loader, in order
        draws: tensors of random numbers by function and line of the script, in order
        inputs: digest of what modules were called with in the first round
        first: that of the first call
        world: ranks of the default group at the first step; 1: there is none
        replaced: what the stand-in has replaced
    """

    rounds: list[WatchedRound] = field(default_factory=list)
    batches: dict[int, list[Any]] = field(default_factory=dict)
    draws: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    inputs: str = ""
    first: str = ""
    world: int = 0
    replaced: dict[str, None] = field(default_factory=dict)


def share_of(tensor: torch.Tensor) -> TensorShare:
    """A copy of what this rank has of a tensor; of one that is a sum over ranks, all of these take part."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return TensorShare(tensor.clone(), tuple(tensor.shape))
    if any(one.is_partial() for one in tensor.placements):
        tensor = tensor.redistribute(placements=[Replicate() if one.is_partial() else one for one in tensor.placements])
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return TensorShare(tensor.to_local().clone(), tuple(tensor.shape), tuple(offset))


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor that this process has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def digest_of(values: torch.Tensor) -> str:
    """The same for tensors of the same bits."""
    plain = values.detach().to("cpu").contiguous()
    said = f"{plain.dtype}{tuple(plain.shape)}".encode()
    return hashlib.blake2b(said + plain.reshape(-1).view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch, whatever its form."""
    return list(name_tensors({"batch": batch}).values())


def copied(batch: Any) -> Any:
    """A copy of a batch, whatever its form."""
    return copied_batch({"batch": batch})["batch"]


def samples_of(batches: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The samples of batches: rows of the first tensor of each."""
    for batch in batches:
        first = next((one for one in tensors_of(batch) if one.dim() > 1), None)
        if first is not None:
            yield from first


def plain_name(name: str) -> str:
    """A parameter's name without those of wrappers."""
    for wrapper in _WRAPPERS[1:]:
        name = name.replace(wrapper, "")
    return name.removeprefix(_WRAPPERS[0])


class ProcessWatch:
    """Keeps what one process does.

    Args:
        folder: of the script, whose lines are told
        most_rounds: that are kept
        ended: called once they are there, and from then on at each step; may end the process
        moved: what is added to weights before the first round, of which alone the rest is kept
        rolled: places by which random numbers of the script are moved
    """

    def __init__(
        self,
        folder: str,
        most_rounds: int,
        ended: Callable[[], None],
        moved: Mapping[str, torch.Tensor] | None = None,
        rolled: int = 0,
    ) -> None:
        self.seen = WatchedRank()
        self._moved, self._rolled = moved, rolled
        self._parameters: dict[str, torch.Tensor] = {}
        self._folder, self._most, self._ended = folder, most_rounds, ended
        self._thread = threading.get_ident()
        self._depth = self._loading = 0
        self.is_over = False
        self._opened: set[int] = set()
        self._begins = True
        self._loaders: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._names: dict[int, str] = {}
        self._owners: dict[str, int] = {}
        self._paths: dict[int, str] = {}  # by identity
        self._inputs = hashlib.blake2b(digest_size=16)
        self._backward: list[str] = []
        self._kept_bytes = 0

    def install(self) -> None:
        """Watch from now on."""
        call, backward = nn.Module.__call__, torch.autograd.backward
        clip = torch.nn.utils.clip_grad_norm_
        following, begin = loaders._BaseDataLoaderIter.__next__, DataLoader.__iter__
        watch = self

        def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not watch._is_main() or not torch.is_grad_enabled():
                return call(self, *args, **kwargs)
            if not watch._depth:
                watch.enter(self)
            if len(watch.seen.rounds) == 1:
                watch._note_inputs((args, kwargs))
            watch._depth += 1
            try:
                return call(self, *args, **kwargs)
            finally:
                watch._depth -= 1

        def differentiate(*args: Any, **kwargs: Any) -> Any:
            watch._backward = watch.lines()
            losses = args[0] if args else kwargs["tensors"]
            watch._note_loss(losses, args[1] if len(args) > 1 else kwargs.get("grad_tensors"))
            return backward(*args, **kwargs)

        def clipped(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            if watch.seen.rounds and not watch.is_over:
                whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
                watch.seen.rounds[-1].norms.append(float(whole))
            return norm

        def next_batch(self: Any) -> Any:
            number = getattr(self, _LOADER, None)
            if not watch._is_main() or number is None:
                return following(self)
            watch._loading += 1
            try:
                batch = following(self)
            finally:
                watch._loading -= 1
            return watch.pulled(number, batch)

        def iterate(self: Any) -> Any:
            watch._loading += 1
            try:
                iterator = begin(self)
            finally:
                watch._loading -= 1
            if torch.is_grad_enabled():  # else it evaluates, as some ranks may alone
                if self not in watch._loaders:
                    watch._loaders[self] = next(watch._numbers)
                setattr(iterator, _LOADER, watch._loaders[self])
            return iterator

        replace(nn.Module, __call__=called)
        gradients = torch.autograd.grad

        def differentiate_by(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            watch._note_loss(outputs, args[1] if len(args) > 1 else kwargs.get("grad_outputs"))
            return gradients(outputs, *args, **kwargs)

        replace(torch.autograd, backward=differentiate, grad=differentiate_by)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            replace(owner, clip_grad_norm_=clipped)
        replace(loaders._BaseDataLoaderIter, __next__=next_batch)
        replace(DataLoader, __iter__=iterate)
        register_optimizer_step_pre_hook(self._update)
        register_optimizer_step_post_hook(self._note_left)

    def _is_main(self) -> bool:
        return threading.get_ident() == self._thread

    # -----------------------------------------------------------------------------------------------------------------
    # Data

    def pulled(self, loader: int, batch: Any) -> Any:
        """A loader has given a batch; what the script gets."""
        if self.is_over:
            return batch
        kept = self.seen.batches.setdefault(loader, [])
        self._keep(tensors_of(batch))
        kept.append(copied(batch))
        return batch

    def drawn(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Random numbers were drawn; what the script gets."""
        if (place := self._place_of(name)) and not self.is_over:
            self._keep([values])
            if self._rolled:
                with torch.no_grad():
                    values.copy_(values.flatten().roll(self._rolled).view_as(values))
            self.seen.draws.setdefault(place, []).append(values.detach().clone())
        return values

    def _place_of(self, name: str) -> str:
        """Where the script draws numbers that are data; nothing: they are of a loader, or weights of a module."""
        if self._loading or not self._is_main() or not torch.is_grad_enabled():
            return ""
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), nn.Module):
                return ""
            if self._is_of_script(code.co_filename):
                return f"{name} at {code.co_filename[len(self._folder) + 1 :]}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def _keep(self, tensors: Iterable[torch.Tensor]) -> None:
        self._kept_bytes += sum(one.numel() * one.element_size() for one in tensors)
        if self._kept_bytes > _MOST_BYTES:
            raise Unmatched(
                f"its batches and random numbers take more than {_MOST_BYTES >> 20} MiB: take a smaller job"
            )

    # -----------------------------------------------------------------------------------------------------------------
    # Steps

    def enter(self, module: nn.Module) -> None:
        """The script calls a module."""
        if self.is_over:
            self._ended()
            return
        if id(module) in self._opened and not self._begins:
            return
        named = list(self._named(module))
        if not named:
            return
        if self._begins:
            self._begins = False
            self._opened.clear()
            self.seen.rounds.append(WatchedRound())
        self._opened |= {id(one) for one in module.modules()}
        self._parameters |= dict(named)
        for name, parameter in named:
            self._names.setdefault(id(parameter), name)
        self.take_weights(named)
        if len(self.seen.rounds) > self._most:
            self._end()

    def _named(self, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters of an outermost module; a name that another one has, too, is told with the class."""
        if any(id(parameter) not in self._paths for parameter in module.parameters()):
            self._paths |= {number: name for number, name in paths_of_all().items() if number not in self._paths}
        for name, parameter in named_weights(module):
            number = id(parameter)
            name = self._paths.setdefault(number, name)
            if self._owners.setdefault(name, number) != number:
                name = next(
                    other
                    for place in itertools.count(2)
                    if self._owners.setdefault(other := f"{type(module).__name__}{place}.{name}", number) == number
                )
            yield name, parameter

    def _end(self) -> None:
        self.is_over = True
        self._ended()

    def take_weights(self, named: list[tuple[str, torch.Tensor]]) -> None:
        """The parameters of an outermost module, before its first forward of a round."""
        self.seen.rounds[-1].weights |= {name: share_of(parameter) for name, parameter in named}
        if self._moved is not None and len(self.seen.rounds) == 1:
            for name, parameter in named:
                if name in self._moved:
                    parameter.data += self._moved[name]

    def _note_loss(self, losses: Any, given: Any) -> None:
        """A backward begins; what is given a gradient of the next stage is no loss."""
        if not self._is_main() or not self.seen.rounds or self.is_over:
            return
        tensors = (losses,) if isinstance(losses, torch.Tensor) else tuple(losses)
        gradients = (given,) if given is None or isinstance(given, torch.Tensor) else tuple(given)
        for loss, gradient in zip(
            tensors, gradients * len(tensors) if len(gradients) == 1 else gradients, strict=False
        ):
            if gradient is None or (loss.numel() == 1 and bool((gradient == 1).all())):
                whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
                self.seen.rounds[-1].loss += float(whole.detach().sum())

    def _note_inputs(self, given: Any) -> None:
        for value in pytree.tree_leaves(given):
            if isinstance(value, torch.Tensor):
                self._inputs.update(digest_of(local_of(value)).encode())
        self.seen.inputs = self._inputs.hexdigest()
        self.seen.first = self.seen.first or self.seen.inputs

    def _update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return self._note_update(optimizer)
        first = iter((optimizer,))

        def differentiated() -> Any:
            loss = closure()
            for one in first:
                self._note_update(one)
            return loss

        return args[:1], {**kwargs, "closure": differentiated}

    def _note_update(self, optimizer: Optimizer) -> None:
        if self.is_over:
            self._ended()
        if not self._is_main() or not self.seen.rounds or self.is_over:
            return
        self.seen.world = self.seen.world or (dist.get_world_size() if dist.is_initialized() else 1)
        now = self.seen.rounds[-1]
        update = OptimizerStep(
            gradients={
                name: None if parameter.grad is None else share_of(parameter.grad)
                for name, parameter in self._of(optimizer)
            },
            settings=[settings_of(group) for group in optimizer.param_groups],
            lines=self.lines(),
            backward=self._backward,
        )
        now.updates.append(update)
        now.pulls = {loader: len(taken) for loader, taken in self.seen.batches.items()}
        now.pulls |= {place: len(taken) for place, taken in self.seen.draws.items()}
        self._begins = True
        if self._moved is not None:
            self._end()
        self.updated(optimizer, update)

    def updated(self, optimizer: Optimizer, update: OptimizerStep) -> None:
        """An optimizer is about to step."""

    def _note_left(self, *_: Any) -> None:
        if self._is_main() and self.seen.rounds and not self.is_over:
            self.seen.rounds[-1].left = {name: digest_of(local_of(one)) for name, one in self._parameters.items()}

    def _of(self, optimizer: Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        for place, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                yield self._names.get(id(parameter), f"parameter {position} of group {place}"), parameter

    def _is_of_script(self, file: str) -> bool:
        return file.startswith(self._folder) and "site-packages" not in file

    def lines(self) -> list[str]:
        """Lines of the script that run, innermost first."""
        found: list[str] = []
        frame: Any = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if self._is_of_script(file):
                found.append(f"{file[len(self._folder) + 1 :]}:{frame.f_lineno} in {frame.f_code.co_name}")
            frame = frame.f_back
        return found[:5]


def named_weights(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters of a module that are there, by names without those of wrappers: modules with one child, `module`."""
    wrappers = [f"{path}.module.".lstrip(".") for path, one in module.named_modules() if [*one._modules] == ["module"]]
    wrappers.sort(key=len, reverse=True)
    for name, parameter in module.named_parameters():
        for wrapper in wrappers:
            if name.startswith(wrapper):
                name = wrapper.removesuffix("module.") + name[len(wrapper) :]
        yield plain_name(name), parameter


def paths_of_all() -> dict[int, str]:
    """Names of all parameters, by identity, in the largest module that has them: a stage may call its layers alone."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_modules" in one.__dict__]
    inner = {id(child) for one in modules for child in one._modules.values()}
    roots = [list(named_weights(one)) for one in modules if id(one) not in inner]
    paths: dict[int, str] = {}
    for root in sorted(roots, key=len, reverse=True):
        for name, parameter in root:
            paths.setdefault(id(parameter), name)
    return paths


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a group of an optimizer."""
    return {
        name: float(value) if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if isinstance(value, bool | int | float | tuple) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    }
