"""Whether an optimizer treats its parameters one by one, found out by trying it.

A copy of the optimizer updates three small parameters together, another copy updates the same ones one after the other.
Parameters, state and groups must come out equal, bit for bit. What counts its own steps for a whole group, takes a norm
over all parameters or searches along a line does not pass, whatever its name.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from trimaran.base.errors import InputError
from trimaran.graph.optimizers import same

_STEPS = 3
_PARAMETERS = 3
_SIDE = 8

Step = Callable[..., Any]


def check_place(optimizer: Optimizer) -> None:
    """See that an optimizer's step may be taken over.

    Raises:
        InputError: its parameters are sharded, or its step was replaced
    """
    name = _name(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if any(base.__name__ == "DTensor" for base in type(parameter).__mro__):
                raise InputError(
                    f"{name} has sharded parameters (DTensor): let FSDP2 keep their state on the host, with "
                    f"fully_shard(..., offload_policy=CPUOffloadPolicy())",
                    optimizer=name,
                )
    step = vars(optimizer).get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        raise InputError(
            f"the step of this {name} has been replaced: keep its state on the host first, and replace it afterwards",
            code="host-state.step-replaced",
            optimizer=name,
        )


def plain_step(optimizer: Optimizer) -> Step:
    """The step of an optimizer's class, without the hooks that torch wraps around it."""
    step: Any = type(optimizer).step
    plain: Step = step.__wrapped__ if getattr(step, "hooked", False) else step
    return plain


def state_per_parameter_byte(optimizer: Optimizer) -> float:
    """Bytes of state that the optimizer keeps for a byte of parameters.

    Args:
        optimizer: nothing of it is changed

    Returns:
        The larger share, where groups differ [1].

    Raises:
        InputError: it does not treat its parameters one by one
    """
    _check_holds_nothing_else(optimizer)
    try:
        together, apart = _try(optimizer, _copy)
    except Exception as error:  # noqa: BLE001 whatever it is, it is reported below
        try:
            # Some make their state when they are made, not in their first step.
            together, apart = _try(optimizer, _make)
        except Exception:  # noqa: BLE001 the first error is the one that says what is wrong
            raise InputError(
                f"{_name(optimizer)} cannot update some of its parameters alone ({type(error).__name__}: {error}): its "
                f"state must stay where it is. Streaming works for optimizers such as SGD, Adam, AdamW and RMSprop",
                code="host-state.partial-update-fails",
                optimizer=_name(optimizer),
            ) from error
    for one, other in zip(together, apart, strict=True):
        if not same(_contents(one), _contents(other)):
            raise InputError(
                f"{_name(optimizer)} updates a parameter differently when others are updated with it: its state must "
                f"stay where it is. Streaming works for optimizers such as SGD, Adam, AdamW and RMSprop",
                code="host-state.partial-update-differs",
                optimizer=_name(optimizer),
            )
    return max((_share(trial) for trial in together), default=0.0)


def _name(optimizer: Optimizer) -> str:
    return type(optimizer).__name__


def _check_holds_nothing_else(optimizer: Optimizer) -> None:
    """Before anything is tried: a step must reach no parameter but those of its groups."""
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, value in vars(optimizer).items():
        if name in ("param_groups", "state"):
            continue
        for held in _flat(value):
            if isinstance(held, Optimizer) or id(held) in known:
                raise InputError(
                    f"{_name(optimizer)}.{name} holds parameters or another optimizer, so that its step cannot be "
                    f"narrowed to some parameters: its state must stay where it is",
                    code="host-state.cannot-narrow",
                    optimizer=_name(optimizer),
                )


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for member in value:
            yield from _flat(member)
    else:
        yield value


_Small = Callable[[Optimizer, dict[str, Any]], Optimizer]
"""Makes an optimizer like another one, of one group with small parameters."""


def _copy(optimizer: Optimizer, group: dict[str, Any]) -> Optimizer:
    small = copy.copy(optimizer)
    small.param_groups = [group]
    small.state = defaultdict(dict)
    return small


def _make(optimizer: Optimizer, group: dict[str, Any]) -> Optimizer:
    kind: Any = type(optimizer)
    small: Optimizer = kind([group], **optimizer.defaults)
    return small


def _try(optimizer: Optimizer, small: _Small) -> tuple[list[Optimizer], list[Optimizer]]:
    with torch.random.fork_rng(devices=_gpus(optimizer)):
        return _run(optimizer, small, split=False), _run(optimizer, small, split=True)


def _gpus(optimizer: Optimizer) -> list[int]:
    """Those that have parameters: a trial may draw random numbers there."""
    devices = {parameter.device for group in optimizer.param_groups for parameter in group["params"]}
    return sorted(device.index for device in devices if device.type == "cuda")


def _seed(optimizer: Optimizer) -> None:
    """The generators of the host and of these GPUs. `torch.manual_seed` would seed all others too, for good."""
    torch.default_generator.manual_seed(0)
    for index in _gpus(optimizer):
        torch.cuda.default_generators[index].manual_seed(0)


def _run(optimizer: Optimizer, make: _Small, *, split: bool) -> list[Optimizer]:
    """One optimizer for each group, after some steps over small parameters."""
    done = []
    for group in optimizer.param_groups:
        if not group["params"]:
            continue
        generator = torch.Generator().manual_seed(0)
        _seed(optimizer)
        like = group["params"][0]
        parameters = [_draw(like, generator).requires_grad_() for _ in range(_PARAMETERS)]
        options = {name: copy.deepcopy(value) for name, value in group.items() if name not in ("params", "param_names")}
        small = make(optimizer, {**options, "params": parameters})
        for _ in range(_STEPS):
            for parameter in parameters:
                parameter.grad = _draw(like, generator)
            for chosen in [[parameter] for parameter in parameters] if split else [parameters]:
                small.param_groups[0]["params"] = chosen
                plain_step(optimizer)(small)
        small.param_groups[0]["params"] = parameters
        done.append(small)
    return done


def _draw(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.randn(_SIDE, _SIDE, generator=generator, dtype=torch.float32)
    return drawn.to(device=like.device, dtype=like.dtype)


def _contents(optimizer: Optimizer) -> list[object]:
    group = optimizer.param_groups[0]
    options = {name: value for name, value in group.items() if name != "params"}
    return [options, *group["params"], *(optimizer.state[parameter] for parameter in group["params"])]


def _share(optimizer: Optimizer) -> float:
    parameters = optimizer.param_groups[0]["params"]
    kept = [value for parameter in parameters for value in optimizer.state[parameter].values()]
    nbytes = sum(value.nbytes for value in kept if isinstance(value, torch.Tensor) and value.dim())
    share: float = nbytes / sum(parameter.nbytes for parameter in parameters)
    return share
