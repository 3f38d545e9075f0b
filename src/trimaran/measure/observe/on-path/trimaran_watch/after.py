"""Once the script is over, a copy of its model is timed again, on its own batch and on larger ones.

What a larger batch, or another form of the update, would give cannot be seen while the script runs without disturbing
it. Here nothing is disturbed: the copy has its own gradients and statistics, and random states are put back.

Durations are taken in rounds, each size once a round, so that a slow moment of the machine touches all sizes alike.
"""

import contextlib
import copy
import inspect
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from trimaran_watch.roots import SEEN

FACTORS = (1, 2, 4, 8)

_BUDGET_S = 2.0
_MOST_ROUNDS = 30
_LEAST_ROUNDS = 3
_MOST_COPIED_NBYTES = 2 * 2**30
_MOST_COUNTING_S = 0.3
_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


def time_again(samples: int) -> dict[str, Any]:
    """Time the main root on copies of its batch, count its operators, and time the update in its other forms.

    Args:
        samples: first dimension of the batch that was kept

    Returns:
        `factors` and for each the durations of a forward with its backward [s]; `operators`, `pointwise` and the cost
        of an empty one, `operator_s`; `updates`, durations [s] by form. `why_not` where larger batches were not timed.
    """
    try:
        with _quiet():
            return _all(samples)
    except Exception as error:  # noqa: BLE001  whatever a model may raise: the script is over and must end well
        return {"why_not": f"{type(error).__name__}: {error}"[:200]}


def _all(samples: int) -> dict[str, Any]:
    root, inputs = SEEN.main, SEEN.inputs
    if root is None or inputs is None:
        return {"why_not": "no batch was kept"}
    obstacle = _obstacle(root)
    if obstacle is not None:
        return {"why_not": obstacle}
    own_module = root.module if isinstance(root, DistributedDataParallel) else root
    if not _takes(own_module, inputs):
        # As where a trainer has put another method in the place of the forward while the script ran.
        return {"why_not": f"{type(own_module).__name__} was not called as its forward is"}
    model = copy.deepcopy(own_module)
    model.train(root.training)
    step = _once(model)
    own = _enlarge(inputs, samples, 1)
    counting = _Counting()
    with counting:
        took_s = _duration(lambda: step(own))
    found = {"operators": counting.operators, "pointwise": counting.pointwise, "operator_s": _empty_operator_s()}
    if took_s > _MOST_COUNTING_S:
        return found | {"why_not": f"one step of a copy took over {_MOST_COUNTING_S} s"}
    if not is_batched(inputs, samples):
        return found | {"why_not": "the batch dimension was not found", "updates": _updates(model)}
    batches = {factor: _enlarge(inputs, samples, factor) for factor in FACTORS}
    found |= _in_rounds({factor: _bound(step, batch) for factor, batch in batches.items()})
    return found | {"updates": _updates(model)}


def _obstacle(root: torch.nn.Module) -> str | None:
    """Why no copy of the model can be timed."""
    parameters = list(root.parameters())
    if _nbytes(root) * 3 > _MOST_COPIED_NBYTES:
        return "the model is too large to be copied"
    if any(hasattr(parameter, "device_mesh") for parameter in parameters):
        return "its parameters are spread over ranks"
    others = {parameter.device.type for parameter in parameters} - {"cpu", "cuda"}
    return f"the device is {others.pop()}" if others else None


def _takes(model: torch.nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether the forward of a model takes such arguments."""
    args, kwargs = inputs
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a forward without a signature
        pass
    return True


def is_batched(inputs: Any, samples: int) -> bool:
    """Whether some input has the samples as its first dimension, so that it can be made larger.

    Args:
        inputs: of the main root
        samples: first dimension of the batch; 0: not known
    """
    leaves = (leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.dim())
    return samples > 0 and any(leaf.size(0) == samples for leaf in leaves)


def _nbytes(model: torch.nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def _bound(step: Callable[[Any], None], batch: Any) -> Callable[[], None]:
    return lambda: step(batch)


def _once(model: torch.nn.Module) -> Callable[[Any], None]:
    def step(batch: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        model.zero_grad(set_to_none=True)
        args, kwargs = batch
        leaves = [leaf for leaf in tree_leaves(_plain(model(*args, **kwargs))) if isinstance(leaf, torch.Tensor)]
        total = sum(leaf.float().mean() for leaf in leaves if leaf.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()

    return step


def _plain(output: Any) -> Any:
    return dict(output) if hasattr(output, "keys") and not isinstance(output, dict) else output


def _enlarge(inputs: tuple[tuple[Any, ...], dict[str, Any]], samples: int, factor: int) -> Any:
    def grown(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach()
        return torch.cat([value] * factor) if value.dim() and value.size(0) == samples else value

    return tree_map(grown, inputs)


def _in_rounds(steps: dict[int, Callable[[], None]]) -> dict[str, Any]:
    began = time.perf_counter()
    taken: dict[int, list[float]] = {}
    for factor, step in steps.items():
        first = _duration(step)
        if taken and _LEAST_ROUNDS * first > _BUDGET_S / 2:
            break
        _duration(step)
        taken[factor] = []
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.perf_counter() - began > _BUDGET_S:
            break
        for factor, durations in taken.items():
            durations.append(_duration(steps[factor]))
    return {"factors": list(taken), "durations_s": list(taken.values())}


def _duration(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _empty_operator_s() -> float:
    """Cost of an operator without work: dispatch, autograd's record, a tiny result."""
    one = torch.ones(1, requires_grad=True)
    durations = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(300):
            one.mul(one)
        durations.append((time.perf_counter() - start) / 300)
    return min(durations)


class _Counting(TorchDispatchMode):
    """Counts the operators that reach a kernel, and those of them that work element by element."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = 0
        self.pointwise = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not getattr(func, "is_view", False):
            self.operators += 1
            self.pointwise += torch.Tag.pointwise in func.tags
        return func(*args, **(kwargs or {}))


def _updates(model: torch.nn.Module) -> dict[str, list[float]]:
    """Durations of the optimizer's step in the form in use and in the fused one, on the copy."""
    optimizer = SEEN.optimizer
    if type(optimizer) not in _FUSED or optimizer is None or optimizer.defaults.get("fused"):
        return {}
    own = [parameter for parameter in model.parameters() if parameter.grad is not None]
    if not own:
        return {}
    # An optimizer may keep defaults that it does not take: AdamW has its parent's.
    taken_names = set(inspect.signature(type(optimizer)).parameters) - {"fused", "foreach"}
    settings = {name: value for name, value in optimizer.defaults.items() if name in taken_names}
    now = {"foreach": optimizer.defaults.get("foreach")}
    forms: dict[str, dict[str, Any]] = {"now": now, "fused": {"fused": True}}
    steps: dict[str, Callable[[], Any]] = {
        name: type(optimizer)(own, **(settings | form)).step for name, form in forms.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(_LEAST_ROUNDS + 12):
        for name, step in steps.items():
            duration = _duration(step)
            if number > 2:
                taken[name].append(duration)
    return taken


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # A GPU that the model does not use is not asked for its random state: that would initialise it.
    parameters = SEEN.main.parameters() if SEEN.main is not None else ()
    gpus = sorted({parameter.device.index for parameter in parameters if parameter.is_cuda})
    with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=gpus), torch.enable_grad():
        yield
