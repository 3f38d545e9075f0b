"""Values of tensors that have no data: kept where they are small and can be computed, else plausible and listed.

    twin     a real tensor on the host with the same value, kept with small tensors and computed along with them
    density  the share of ones in a map made by scatter, so that its sums are known
    hint     what kind of number it is: a loss, a norm, "is it finite"

What a script asks for is answered in this order; anything invented is listed with its line.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from trimaran.rehearsal.recorder import Recorder

MOST_ELEMENTS = 4096
MOST_BYTES = 16384
"""Of a tensor that has a twin: one or the other. The state of a random number generator has 5,056 bytes."""

DEFAULTS: Mapping[str, float] = {"loss": 2.0, "norm": 1.0, "finite": 1.0, "routing_load": 1.0}
"""Values by kind; loss: of a cross-entropy; routing_load: of the busiest expert over the balanced load."""

_aten = torch.ops.aten

_WITHOUT_VALUE = {
    _aten.empty,
    _aten.empty_strided,
    _aten.empty_like,
    _aten.new_empty,
    _aten.new_empty_strided,
    _aten.randn,
    _aten.rand,
    _aten.randint,
    _aten.randperm,
    _aten.normal_,
    _aten.uniform_,
    _aten.random_,
    _aten.native_dropout,
    _aten.bernoulli_,
    _aten.bernoulli,
    _aten.multinomial,
}
"""Operators whose results are random, or nothing yet."""
_COPIES = {_aten._to_copy.default, _aten.lift_fresh.default, _aten.clone.default}
_KEEPS_HINT = {
    "aten::view", "aten::detach", "aten::clone", "aten::_to_copy", "aten::squeeze", "aten::mean", "aten::alias",
    "aten::stack", "aten::mul", "aten::div", "aten::add", "aten::sum", "aten::unsqueeze", "aten::expand",
}  # fmt: skip


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor may have a twin."""
    elements = tensor.numel()
    return elements <= MOST_ELEMENTS or elements * tensor.element_size() <= MOST_BYTES


class Values:
    """Answers what a script asks of tensors without data.

    Args:
        recorder: lists what is invented
        hints: values by kind, in place of `DEFAULTS`
    """

    def __init__(self, recorder: Recorder, hints: Mapping[str, float]) -> None:
        self._recorder = recorder
        self._hints = {**DEFAULTS, **hints}
        self.all_true = False  # whether masks that are not known select everything, as where empty inputs are left out

    def of(self, tensor: torch.Tensor, asked: str) -> torch.Tensor:
        """The value of a tensor, as a real tensor of its shape and type on the host."""
        twin = twin_of(tensor)
        if twin is not None:
            return twin
        kind = getattr(tensor, "_trimaran_hint", None)
        if tensor.dtype == torch.bool:
            value: float = 0.0 if kind is None or self._hints["finite"] else 1.0
            kind = kind or "condition"
        elif kind is not None:
            value = self._hints[kind]
        elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            kind, value = "number", 1.0
        else:
            kind, value = "index", 0.0
        self._recorder.invent(kind, asked, value if tensor.dtype != torch.bool else bool(value))
        with _disable_current_modes():
            return torch.full(tuple(tensor.shape), value).to(tensor.dtype)

    def computed(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation whose tensors are all known; None: one is not."""
        made = self._with_twins(func, args, kwargs)
        return None if made is _UNKNOWN else made

    def balanced(self, total: int, parts: int) -> torch.Tensor:
        """`total` over `parts`; the first has `routing_load` times its share."""
        with _disable_current_modes():
            shares = torch.full((parts,), total // parts, dtype=torch.int64)
            shares[: total % parts] += 1
            load = self._hints["routing_load"]
            if load != 1.0 and parts > 1:
                busiest = min(total, round(load * total / parts))
                rest = total - busiest
                shares = torch.full((parts,), rest // (parts - 1), dtype=torch.int64)
                shares[0] = busiest
                shares[1 : 1 + rest % (parts - 1)] += 1
        return shares

    def follow(self, func: Any, args: Any, kwargs: Mapping[str, Any], outs: list[torch.Tensor]) -> None:
        """Keep the values of what an operation made."""
        if func._overloadpacket in _WITHOUT_VALUE:
            for out in outs:
                set_twin(out, None)
            return
        name = func._schema.name
        if len(outs) == 1:
            if self._follow_counts(func, args, outs[0]):
                return
            if is_small(outs[0]) and isinstance(outs[0], FakeTensor):
                self._compute(func, args, kwargs, outs[0])
            elif twin_of(outs[0]) is not None and func._schema.is_mutable:
                set_twin(outs[0], None)
        elif name.startswith("aten::_foreach") and args:
            self._compute_each(func, args, kwargs, outs)
        elif outs and all(map(is_small, outs)):
            self._compute_several(func, args, kwargs, outs)
        for out in outs:
            if twin_of(out) is None:
                self._hint(name, args, out)

    def _follow_counts(self, func: Any, args: Any, out: torch.Tensor) -> bool:
        """Maps of ones and counts of them, as routing makes; whether that is what this was."""
        packet = func._overloadpacket
        if packet in (_aten.scatter, _aten.scatter_) and isinstance(args[2], torch.Tensor):
            out._trimaran_density = args[2].numel() / max(1, out.numel())  # type: ignore[attr-defined]
            set_twin(out, None)
            return True
        density = getattr(args[0], "_trimaran_density", None) if args and isinstance(args[0], FakeTensor) else None
        if density is not None:
            if func is _aten.sum.dim_IntList:
                shares = self.balanced(round(density * args[0].numel()), max(1, out.numel()))
                with _disable_current_modes():
                    set_twin(out, shares.reshape(tuple(out.shape)).to(out.dtype))
                self._recorder.invent("routing", "sum", "balanced")
                return True
            if out.numel() == args[0].numel():
                out._trimaran_density = density  # type: ignore[attr-defined]
        if func is _aten.histc.default:
            shares = self.balanced(args[0].numel(), out.numel())
            with _disable_current_modes():
                set_twin(out, shares.to(out.dtype))
            self._recorder.invent("routing", "histc", "balanced")
            return True
        return False

    def _compute(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: torch.Tensor) -> None:
        made = self._with_twins(func, args, kwargs)
        if isinstance(made, torch.Tensor):
            set_twin(out, made)
        elif func._schema.is_mutable:
            set_twin(out, None)

    def _compute_several(self, func: Any, args: Any, kwargs: Mapping[str, Any], outs: list[torch.Tensor]) -> None:
        made = self._with_twins(func, args, kwargs)
        if isinstance(made, (tuple, list)):
            twins = [value for value in made if isinstance(value, torch.Tensor)]
            if len(twins) == len(outs):
                for out, twin in zip(outs, twins, strict=True):
                    set_twin(out, twin)

    def _compute_each(self, func: Any, args: Any, kwargs: Mapping[str, Any], outs: list[torch.Tensor]) -> None:
        """An operation on lists of tensors; step counters of optimizers are such."""
        mutable = func._schema.is_mutable
        first = args[0] if isinstance(args[0], (list, tuple)) else []
        if any(not is_small(tensor) or twin_of(tensor) is None for tensor in first):
            if mutable:
                for tensor in first:
                    set_twin(tensor, None)
            return
        made = self._with_twins(func, args, kwargs)
        if mutable:
            if made is _UNKNOWN:
                for tensor in first:
                    set_twin(tensor, None)
        elif isinstance(made, (tuple, list)) and len(made) == len(outs):
            for out, twin in zip(outs, made, strict=True):
                set_twin(out, twin)

    def _with_twins(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The operation on the twins of its tensors; `_UNKNOWN` where one has none."""
        known = True

        def real(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal known
            value = twin_of(tensor) if isinstance(tensor, FakeTensor) else tensor
            if value is None or not is_small(value) or isinstance(value, FakeTensor):
                known = False
                return tensor
            return value

        plain = tree_map_only(torch.Tensor, real, args)
        named = tree_map_only(torch.Tensor, real, dict(kwargs))
        if not known:
            return _UNKNOWN
        if named.get("device") is not None:
            named["device"] = "cpu"
        named.pop("pin_memory", None)
        try:
            with _disable_current_modes(), torch.no_grad():
                if func in _COPIES:
                    plain = tree_map_only(torch.Tensor, torch.Tensor.clone, plain)
                return func(*plain, **named)
        except Exception:  # noqa: BLE001  whatever an operator of the host raises, the value is not known
            return _UNKNOWN

    def _hint(self, name: str, args: Any, out: torch.Tensor) -> None:
        if name == "aten::nll_loss_forward" and out.dim() == 0:
            kind: str | None = "loss"
        elif name in ("aten::isnan", "aten::isinf", "aten::_amp_foreach_non_finite_check_and_unscale_"):
            kind = "finite"
        elif "norm" in name and out.dim() == 0:
            kind = "norm"
        elif name in _KEEPS_HINT:
            kind = next((found for arg in args if (found := getattr(arg, "_trimaran_hint", None))), None)
        else:
            kind = None
        if kind is not None:
            out._trimaran_hint = kind  # type: ignore[attr-defined]


_UNKNOWN = object()


def twin_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The real tensor with the value of one without data; None: not known."""
    return getattr(tensor, "_trimaran_twin", None)


def set_twin(tensor: torch.Tensor, twin: torch.Tensor | None) -> None:
    """Keep the value of a tensor without data."""
    if isinstance(tensor, FakeTensor):
        tensor._trimaran_twin = twin  # type: ignore[attr-defined]
