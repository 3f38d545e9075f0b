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
from trimaran.base.user_errors import summary
from trimaran.graph.optimizers import Trial, same

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
    errors: list[Exception] = []
    devices = {parameter.device for group in optimizer.param_groups for parameter in group["params"]}
    # Some make their state when they are made, not in their first step.
    for make in (_copy, _make):
        try:
            with torch.random.fork_rng(devices=[one.index for one in devices if one.type == "cuda"]):
                return max(
                    (_try(optimizer, group, make) for group in optimizer.param_groups if group["params"]), default=0.0
                )
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 the first is the one that says what is wrong
            errors.append(error)
    raise InputError(
        f"{_name(optimizer)} cannot update some of its parameters alone ({summary(errors[0])}): its state must stay "
        "where it is. Streaming works for optimizers such as SGD, Adam, AdamW and RMSprop",
        code="host-state.partial-update-fails",
        optimizer=_name(optimizer),
    ) from errors[0]


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
    members = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple | set):
        yield from (held for member in members for held in _flat(member))  # type: ignore[attr-defined]
    else:
        yield value


def _copy(optimizer: Optimizer, group: dict[str, Any]) -> Optimizer:
    small = copy.copy(optimizer)
    small.param_groups = [group]
    small.state = defaultdict(dict)
    return small


def _make(optimizer: Optimizer, group: dict[str, Any]) -> Optimizer:
    kind: Any = type(optimizer)
    small: Optimizer = kind([group], **optimizer.defaults)
    return small


def _try(optimizer: Optimizer, group: dict[str, Any], small: Callable[[Optimizer, dict[str, Any]], Optimizer]) -> float:
    """Update small parameters of a group together and one after the other: bytes of state for a byte of them.

    Raises:
        InputError: they come out otherwise
        Exception: of the optimizer
    """
    options = {key: one for key, one in group.items() if key not in ("params", "param_names")}
    like, generator = group["params"][0], torch.Generator().manual_seed(0)
    drawn = torch.randn(_STEPS + 1, _PARAMETERS, _SIDE, _SIDE, generator=generator).to(like)
    starts = [(str(place), one) for place, one in enumerate(drawn[0])]

    def taken(*, apart: bool) -> Trial:
        # `torch.manual_seed` would seed other GPUs, too.
        on_gpu = [torch.cuda.default_generators[like.get_device()]] if like.is_cuda else []
        for one in [torch.default_generator, *on_gpu]:
            one.manual_seed(0)
        trial = Trial(lambda given: small(optimizer, {**copy.deepcopy(options), "params": list(given)}), starts)

        def step() -> None:
            for some in [[one] for one in trial.given] if apart else [list(trial.given)]:
                trial.optimizer.param_groups[0]["params"] = some
                plain_step(optimizer)(trial.optimizer)
            trial.optimizer.param_groups[0]["params"] = list(trial.given)

        return trial.take([list(one) for one in drawn[1:]], step=step)

    together, apart = taken(apart=False), taken(apart=True)
    groups = ([{**one, "params": ()} for one in trial.optimizer.param_groups] for trial in (together, apart))
    if not same(together.values, apart.values) or not same(together.states(), apart.states()) or not same(*groups):
        raise InputError(
            f"{_name(optimizer)} updates a parameter differently when others are updated with it: its state must stay "
            "where it is. Streaming works for optimizers such as SGD, Adam, AdamW and RMSprop",
            code="host-state.partial-update-differs",
            optimizer=_name(optimizer),
        )
    kept = [one for state in together.states() for one in state.values() if isinstance(one, torch.Tensor)]
    return sum(one.nbytes for one in kept if one.dim()) / drawn[0].nbytes
