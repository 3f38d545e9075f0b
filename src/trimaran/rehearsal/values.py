"""Values of tensors that have no data: kept where they are small and can be computed, else plausible and listed.

    twin     a real tensor on the host with the same value, kept with small tensors and computed along with them
    density  the share of ones in a map made by scatter, so that its sums are known
    choices  of how many each element is the index of one, as topk makes
    truth    whether all elements of a condition hold: numbers are finite, equal themselves, compare as their hints do
    hint     what kind of number it is: a loss, a norm

The twin of a view is a view of the twin, so that writing into one writes into the other; what is written that is not
known makes all of it unknown.

What a script asks for is answered in this order; anything invented is listed with its line.
"""

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from trimaran.rehearsal.recorder import ScriptRecorder

MOST_ELEMENTS = 4096
MOST_BYTES = 16384
"""Of a tensor that has a twin: one or the other. The state of a random number generator has 5,056 bytes."""

DEFAULTS: Mapping[str, float] = {"loss": 2.0, "norm": 1.0, "finite": 1.0, "routing_load": 1.0, "count": 0.0}
"""Values by kind; loss: of a cross-entropy; routing_load: of the busiest expert over the balanced load; count: integers
that follow from data, 0: the elements of a mask whose sum it is, else 1."""

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
_SHAPES_ONLY = {
    _aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.new_zeros, _aten.new_ones, _aten.new_full,
}  # fmt: skip
"""Operators that take only the shape of their first tensor."""
_MOVES = {
    "view", "detach", "clone", "_to_copy", "squeeze", "unsqueeze", "expand", "alias", "stack", "cat", "reshape",
    "_unsafe_view", "permute", "transpose", "t", "select", "slice", "flatten", "copy", "index", "repeat",
}  # fmt: skip
"""Operators whose results hold elements of their tensors, by name without a last underscore."""
_KEEPS_TRUTH = _MOVES | {"mean", "amax", "amin", "max", "min", "prod"}
_KEEPS_HINT = _MOVES | {"mean", "mul", "div", "add", "sum"}
_KEEPS_CHOICES = {_aten.clone, _aten._to_copy, _aten._unsafe_view, _aten.index, _aten.index_select}
_CHOOSES = {_aten.topk: 1, _aten.max: 1, _aten.sort: 1, _aten.argmax: 0, _aten.argmin: 0, _aten.argsort: 0}
"""Which result of an operator is of indices along a dimension."""
_COMPARISONS: Mapping[str, Any] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
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

    def __init__(self, recorder: ScriptRecorder, hints: Mapping[str, float]) -> None:
        self._recorder = recorder
        self._hints = {**DEFAULTS, **hints}
        self.all_true = False  # whether masks that are not known select everything, as where empty inputs are left out

    def of(self, tensor: torch.Tensor, asked: str) -> torch.Tensor:
        """The value of a tensor, as a real tensor of its shape and type on the host."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        twin = twin_of(tensor)
        if twin is not None:
            return twin
        kind = getattr(tensor, "_trimaran_hint", None)
        truth = getattr(tensor, "_trimaran_truth", None)
        value: float
        if tensor.dtype == torch.bool:
            kind, value = ("condition", 0.0) if truth is None else ("finite", float(truth))
        elif kind is not None:
            value = self._hints[kind]
        elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            kind, value = "number", 1.0
        elif hasattr(tensor, "_trimaran_choices"):
            kind, value = "index", 0.0
        else:
            kind, value = "count", self._hints["count"] or 1.0
        self._recorder.invent(kind, asked, value if tensor.dtype != torch.bool else bool(value))
        with _disable_current_modes():
            return torch.full(tuple(tensor.shape), value).to(tensor.dtype)

    def take_as(self, tensor: torch.Tensor, kind: str) -> None:
        """A tensor without data is a number of a kind that has a hint."""
        tensor._trimaran_hint = kind  # type: ignore[attr-defined]

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
        packet, name = func._overloadpacket, func._schema.name
        if packet in _WITHOUT_VALUE:
            for out in outs:
                forget(out)
            return
        if len(outs) == 1:
            out = outs[0]
            if self._follow_counts(func, args, out):
                return
            if is_small(out) and isinstance(out, FakeTensor):
                self._compute(func, args, kwargs, out)
            elif func._schema.is_mutable:
                forget(out)
            if out.dtype == torch.bool and isinstance(out, FakeTensor):
                out._trimaran_truth = self._truth(packet.__name__.rstrip("_"), args)  # type: ignore[attr-defined]
            elif isinstance(out, FakeTensor) and twin_of(out) is None and args and isinstance(args[0], FakeTensor):
                self._follow_conditions(packet.__name__.rstrip("_"), args[0], out)
        elif name.startswith("aten::_foreach") or (outs and all(map(is_small, outs))):
            self._compute_several(func, args, kwargs, outs)
        self._follow_choices(func, args, kwargs, outs)
        for out in outs:
            if twin_of(out) is None:
                self._hint(packet.__name__.rstrip("_"), args, out)

    def _follow_conditions(self, name: str, source: FakeTensor, out: FakeTensor) -> None:
        """Numbers made of a condition: copies of it, and how many elements hold."""
        if source.dtype != torch.bool and not hasattr(source, "_trimaran_truth"):
            return
        truth, adds = getattr(source, "_trimaran_truth", None), name in ("sum", "count_nonzero")
        each = source.numel() // max(1, out.numel()) if adds else 1
        if name in _MOVES and (truth is None or not is_small(out)):
            out._trimaran_truth = truth  # type: ignore[attr-defined]
        elif (adds or (truth is not None and name in _KEEPS_TRUTH)) and is_small(out):
            value = float(each * truth) if truth is not None else self._hints["count"] or float(each)
            self._recorder.invent("count" if truth is None else "finite", name, value)
            with _disable_current_modes():
                set_twin(out, torch.full(tuple(out.shape), value).to(out.dtype))

    def _follow_choices(self, func: Any, args: Any, kwargs: Mapping[str, Any], outs: list[torch.Tensor]) -> None:
        """Of how many the indices are that an operator chose."""
        place = _CHOOSES.get(func._overloadpacket)
        if place is None or place >= len(outs) or not args or not isinstance(args[0], FakeTensor) or not args[0].dim():
            return
        names = [argument.name for argument in func._schema.arguments]
        dimension = kwargs.get("dim", args[names.index("dim")] if "dim" in names[: len(args)] else -1)
        if isinstance(dimension, int):
            outs[place]._trimaran_choices = args[0].shape[dimension]  # type: ignore[attr-defined]

    def _follow_counts(self, func: Any, args: Any, out: torch.Tensor) -> bool:
        """Maps of ones and counts of them, as routing makes; whether that is what this was."""
        packet = func._overloadpacket
        if packet in (_aten.scatter, _aten.scatter_) and isinstance(args[2], torch.Tensor):
            out._trimaran_density = args[2].numel() / max(1, out.numel())  # type: ignore[attr-defined]
            set_twin(out, None)
            return True
        if not args or not isinstance(args[0], FakeTensor):
            return False
        source: Any = args[0]
        choices = getattr(source, "_trimaran_choices", None)
        if choices is not None:
            if packet is _aten.eq and isinstance(args[1], (int, float)) and twin_of(source) is None:
                out._trimaran_density = self._share_of(int(args[1]), choices)  # type: ignore[attr-defined]
                set_twin(out, None)
                return True
            if func.is_view or packet in _KEEPS_CHOICES:
                out._trimaran_choices = choices  # type: ignore[attr-defined]
        density = getattr(source, "_trimaran_density", None)
        if density is not None:
            if func is _aten.sum.dim_IntList:
                shares = self.balanced(round(density * args[0].numel()), max(1, out.numel()))
                with _disable_current_modes():
                    set_twin(out, shares.reshape(tuple(out.shape)).to(out.dtype))
                self._recorder.invent("routing", "sum", "balanced")
                return True
            if out.numel() == source.numel() or func.is_view:
                out._trimaran_density = density  # type: ignore[attr-defined]
        if func is _aten.histc.default:
            shares = self.balanced(args[0].numel(), out.numel())
            with _disable_current_modes():
                set_twin(out, shares.to(out.dtype))
            self._recorder.invent("routing", "histc", "balanced")
            return True
        return False

    def _share_of(self, choice: int, choices: int) -> float:
        """Share of elements that are one of several choices; the first has `routing_load` times its part."""
        if choices < 2:
            return 1.0
        first = min(1.0, self._hints["routing_load"] / choices)
        return first if choice == 0 else (1.0 - first) / (choices - 1)

    def _compute(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: torch.Tensor) -> None:
        packet = func._overloadpacket
        made: Any = _UNKNOWN
        if packet in (_aten.copy_, _aten.fill_, _aten.zero_) and twin_of(out) is None:
            # Whatever was there is written over.
            with _disable_current_modes():
                blank = torch.empty(tuple(out.shape), dtype=out.dtype)
            made = self._with_twins(func, (blank, *args[1:]), kwargs)
        elif packet in _SHAPES_ONLY:
            with _disable_current_modes():
                blank = torch.empty(tuple(args[0].shape), dtype=args[0].dtype)
            made = self._with_twins(func, (blank, *args[1:]), kwargs)
        else:
            made = self._with_twins(func, args, kwargs)
            if isinstance(made, (tuple, list)) and len(made) == 1:  # the only part, as of one element
                (made,) = made
            if made is _UNKNOWN:
                made = _whatever_the_other_is(packet.__name__.rstrip("_"), args, out)
            if made is _UNKNOWN and packet is _aten.isin:  # what is generated has no token that would end it
                self._recorder.invent("special tokens", "isin", "none")
                with _disable_current_modes():
                    made = torch.full(tuple(out.shape), bool(kwargs.get("invert")))
        if isinstance(made, torch.Tensor):
            set_twin(out, made)
        elif func._schema.is_mutable:
            forget(out)

    def _truth(self, name: str, args: Any) -> bool | None:
        """Whether all elements of a condition hold; None: nothing tells."""
        first = args[0] if args else None
        if name in ("isnan", "isinf", "isposinf", "isneginf"):
            return not self._hints["finite"]
        if name in _COMPARISONS and len(args) > 1:
            if first is args[1]:
                return bool(self._hints["finite"]) == (name in ("eq", "le", "ge"))
            values = [self._likely(arg) for arg in args[:2]]
            if any(value is not None and math.isinf(value) for value in values):
                values = [1.0 if value is None else value for value in values]
                finite = bool(self._hints["finite"])
                return finite == bool(_COMPARISONS[name](*values))
            if name in ("eq", "ne") and None in values and _are_numbers_of_one_form(*args[:2]):
                # Asked where copies are compared, as weights of two ranks; as `torch.equal` answers.
                return name == "eq"
            return None if None in values else bool(_COMPARISONS[name](*values))
        truths = [self._known_truth(arg) for arg in (first if isinstance(first, (list, tuple)) else args[:2])]
        if name in ("logical_not", "bitwise_not"):
            return None if truths[0] is None else not truths[0]
        if name in ("logical_and", "bitwise_and", "mul", "__and__", "__iand__"):
            return False if False in truths else (True if None not in truths else None)
        if name in ("logical_or", "bitwise_or", "__or__", "__ior__"):
            return True if True in truths else (False if None not in truths else None)
        if name in _MOVES or name in ("any", "all", "where", "minimum", "maximum", "_is_all_true", "_is_any_true"):
            if name == "copy":
                return truths[1]
            return (
                truths[0]
                if truths and (len(truths) < 2 or name not in ("cat", "stack") or len(set(truths)) == 1)
                else None
            )
        return None

    def _likely(self, value: Any) -> float | None:
        """The value of a number, or of a tensor that has a hint or is one number that is known."""
        if isinstance(value, (bool, int, float)):
            return float(value)
        if isinstance(value, torch.Tensor):
            twin = twin_of(value) if isinstance(value, FakeTensor) else value
            if twin is not None and twin.numel() == 1 and not twin.is_complex():
                with _disable_current_modes():
                    return float(twin.item())
            kind = getattr(value, "_trimaran_hint", None)
            return self._hints[kind] if kind is not None else None
        return None

    @staticmethod
    def _known_truth(value: Any) -> bool | None:
        if isinstance(value, bool):
            return value
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            twin = twin_of(value)
            if twin is not None and twin.numel():
                with _disable_current_modes():
                    first = bool(twin.flatten()[0])
                    return first if bool((twin == first).all()) else None
            return getattr(value, "_trimaran_truth", None)
        return None

    def _compute_several(self, func: Any, args: Any, kwargs: Mapping[str, Any], outs: list[torch.Tensor]) -> None:
        """An operation of several results, or on lists of tensors; step counters of optimizers are such."""
        made = self._with_twins(func, args, kwargs)
        if made is _UNKNOWN and func._schema.is_mutable and isinstance(args[0], (list, tuple)):
            for tensor in args[0]:
                forget(tensor)
        elif isinstance(made, (tuple, list)):
            twins = [value for value in made if isinstance(value, torch.Tensor)]
            for out, twin in zip(outs, twins if len(twins) == len(outs) else (), strict=False):
                set_twin(out, twin)

    def _with_twins(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The operation on the twins of its tensors; `_UNKNOWN` where one has none."""
        if any(isinstance(arg, FakeTensor) and twin_of(arg) is None for arg in args):
            return _UNKNOWN
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
        if name in ("nll_loss_forward", "nll_loss2d_forward") and out.dim() == 0:
            kind: str | None = "loss"
        elif "norm" in name and out.dim() == 0:
            kind = "norm"
        elif name in _KEEPS_HINT:
            sources = args[0] if args and isinstance(args[0], (list, tuple)) else args
            kind = next((found for arg in sources if (found := getattr(arg, "_trimaran_hint", None))), None)
        else:
            kind = None
        if kind is not None:
            self.take_as(out, kind)


def _are_numbers_of_one_form(one: Any, other: Any) -> bool:
    both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.is_floating_point()
    return both and one.numel() > 1 and (one.shape, one.dtype) == (other.shape, other.dtype)


_UNKNOWN = object()


def _whatever_the_other_is(name: str, args: Any, out: torch.Tensor) -> Any:
    """Of two numbers one decides: nothing and anything is nothing, true or anything is true; `_UNKNOWN`: it does not.

    A loop that generates ends so, where its length is reached and whether a sequence has ended is not known.
    """
    if out.is_floating_point() or out.is_complex() or len(args) < 2:
        return _UNKNOWN
    both = name in ("logical_and", "bitwise_and", "__and__", "__iand__", "mul")
    either = name in ("logical_or", "bitwise_or", "__or__", "__ior__") and out.dtype == torch.bool
    for arg in args[:2]:
        value = twin_of(arg) if isinstance(arg, FakeTensor) else arg
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or not value.numel():
            continue
        with _disable_current_modes():
            if both and not bool(value.any()):
                return torch.zeros(tuple(out.shape), dtype=out.dtype)
            if either and bool(value.all()):
                return torch.ones(tuple(out.shape), dtype=out.dtype)
    return _UNKNOWN


def twin_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The real tensor with the value of one without data; None: not known."""
    twin: torch.Tensor | None = getattr(tensor, "_trimaran_twin", None)
    if twin is not None and getattr(twin.untyped_storage(), "_trimaran_unknown", False):
        return None
    return twin


def set_twin(tensor: torch.Tensor, twin: torch.Tensor | None) -> None:
    """Keep the value of a tensor without data. None is kept of sparse ones, which have no storage."""
    if isinstance(tensor, FakeTensor):
        kept = twin if twin is not None and twin.layout == torch.strided else None
        tensor._trimaran_twin = kept  # type: ignore[attr-defined]


def forget(tensor: torch.Tensor) -> None:
    """What was written into a tensor is not known; nor are tensors that it is a view of, or that are views of it."""
    twin = getattr(tensor, "_trimaran_twin", None)
    if twin is not None:
        twin.untyped_storage()._trimaran_unknown = True
        tensor._trimaran_twin = None  # type: ignore[attr-defined]
