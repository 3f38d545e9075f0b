"""Which gradients and parameters of a rank collectives have touched, followed through what holds them.

Every part of a block of memory on the device has a label:

    None          not known, or no gradient
    {}            a gradient of this rank's batch alone: what a backward makes
    {"0", "3"}    a gradient, or parameter, that collectives of these groups have touched

Copies, casts and lists keep labels part by part, so buckets and flat buffers bring them back. A sum of gradients is
touched where all of them are. Numbers by which gradients are scaled, as to clip them, pass nothing on. In torch's
formulas of the backward only copies and sums do, since what they make is a new gradient; elsewhere everything does, so
that nothing is called untouched that an exchanged value went into.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trimaran.rehearsal.record import Update
from trimaran.rehearsal.recorder import ScriptRecorder

Label = frozenset[str] | None

_OWN: frozenset[str] = frozenset()

_COPIES = {"copy", "_to_copy", "clone", "cat", "stack", "chunk_cat", "_chunk_cat", "split_with_sizes_copy"}
_SUMS = {"add", "sub", "rsub"}
_SCALES = {"mul", "div"}
"""Operators that pass labels on in the backward, by name without `_foreach_` and a last underscore."""

_ONE_AFTER_ANOTHER = {"cat", "stack"}
_BLANKS = {"zero", "fill"}


class Gradients:
    """Follows labels, and keeps what optimizers found.

    Args:
        recorder: knows blocks, and takes what was found
    """

    def __init__(self, recorder: ScriptRecorder) -> None:
        self._recorder = recorder
        self._labels: dict[int, list[tuple[int, int, Label]]] = recorder.labels  # of bytes of a block, from and to
        self._updates: dict[int, tuple[weakref.ref[torch.Tensor], Update]] = {}
        self._names: dict[int, str] = {}
        self._had_own: set[int] = set()  # parameters whose gradients are this rank's in the step that runs
        self._alone: dict[int, tuple[int, int]] = {}  # steps since a parameter was exchanged, and the most before that
        self.are_followed = False  # from the first backward on
        recorder.last_look = self._look

    # -----------------------------------------------------------------------------------------------------------------
    # Labels

    def of(self, tensor: torch.Tensor) -> Label:
        """What has touched a tensor."""
        whole = self._whole(tensor)
        if whole is not None:
            return whole[0]
        place = self._place(tensor)
        if place is None:
            return None
        block, low, high, _ = place
        rest = high - low
        label: Label = None
        for start, stop, there in self._labels.get(block.block, ()):
            if start < high and low < stop:
                rest -= min(stop, high) - max(start, low)
                if there is not None:
                    label = there if label is None else label | there
        return _OWN if label is None and rest > 0 and block.part == "backward" else label

    def _whole(self, tensor: torch.Tensor) -> tuple[Label] | None:
        """The label of a tensor by that of its block, where this has one alone; None: it has several."""
        block = self._recorder.block_of(tensor) if isinstance(tensor, FakeTensor) else None
        if block is None or not tensor.numel():
            return (None,)
        parts = self._labels.get(block.block)
        if not parts:
            return (_OWN if block.part == "backward" else None,)
        low, high, label = parts[0]
        return (label,) if len(parts) == 1 and not low and high >= tensor.untyped_storage().nbytes() else None

    def any_of(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether one of these is a gradient, or was touched."""
        return self.are_followed and any(self.of(tensor) is not None for tensor in tensors)

    def _write(self, tensor: torch.Tensor, label: Label) -> None:
        place = self._place(tensor)
        if place is None:
            return
        block, low, high, is_dense = place
        if not is_dense:  # others lie between
            before = self.of(tensor)
            label = label | (before or _OWN) if label else before
        self._set(block.block, low, high, label)

    def _set(self, block: int, low: int, high: int, label: Label) -> None:
        parts = self._labels.get(block, ())
        kept = [(start, min(stop, low), there) for start, stop, there in parts if start < low]
        kept += [(max(start, high), stop, there) for start, stop, there in parts if stop > high]
        self._labels[block] = [*kept, (low, high, label)]

    def _place(self, tensor: torch.Tensor) -> tuple[Any, int, int, bool] | None:
        """Block of a tensor, its first byte and the one after its last, and whether all of these are its own."""
        block = self._recorder.block_of(tensor) if isinstance(tensor, FakeTensor) else None
        if block is None or not tensor.numel():
            return None
        each, low = tensor.element_size(), int(tensor.storage_offset())
        past = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return block, low * each, (low + past) * each, past == tensor.numel()

    # -----------------------------------------------------------------------------------------------------------------
    # Operations

    def follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[torch.Tensor]) -> None:
        """An operation that is no view has run."""
        if not self.are_followed:
            return
        values = (*args, *kwargs.values()) if kwargs else args
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        is_mutable = func._schema.is_mutable
        makes = not is_mutable and torch.is_grad_enabled()
        if makes and (self._recorder.lines.are_in_module or any(one.requires_grad for one in tensors)):
            return  # a forward
        lists = [value for value in values if isinstance(value, (list, tuple)) and _holds_tensors(value)]
        name = func._schema.name.rpartition("::")[2].rstrip("_")
        if lists and name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
            targets = lists[0] if is_mutable else outs
            for place, target in enumerate(targets):
                sources = [one[place] for one in lists if place < len(one)]
                self._pass(name.removeprefix("_foreach_"), sources, [target], is_mutable)
            return
        if is_mutable and not outs:
            said = func._schema.arguments
            named = {one.name: value for one, value in zip(said, args, strict=False)} | dict(kwargs)
            written = [named[one.name] for one in said if one.name in named and _is_written(one)]
            outs = [one for value in written for one in _flat(value)]
        if name in _ONE_AFTER_ANOTHER and lists and len(outs) == 1 and self._in_order(args, kwargs, lists[0], outs[0]):
            return
        self._pass(name, [*tensors, *(one for value in lists for one in _flat(value))], outs, is_mutable)

    def _in_order(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], parts: Sequence[Any], out: torch.Tensor
    ) -> bool:
        """A list becomes one tensor whose parts lie one after another; whether it does."""
        place = self._place(out)
        if place is None or not out.is_contiguous() or kwargs.get("dim", args[1] if len(args) > 1 else 0) != 0:
            return False
        block, low, _, _ = place
        each = out.element_size()
        for part in parts:
            high = low + part.numel() * each
            label = self.of(part)
            if label is not None and high > low:
                self._set(block.block, low, high, label)
            low = high
        return True

    def _pass(
        self, name: str, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], is_mutable: bool
    ) -> None:
        """Targets are made of sources; those of a mutable operation were there before."""
        in_backward = torch._C._current_graph_task_id() != -1
        from_host = name == "_to_copy" and sources[0].device.type == "cpu"
        if not targets or not (is_mutable or not in_backward or from_host or any(map(self._has_label, sources))):
            return
        if name in _BLANKS:
            for target in targets:
                self._write(target, None)
            return
        overwrites = name == "copy" or (is_mutable and bool(sources) and sources[0] is not targets[0])
        if overwrites:  # a target that is read, too, is there twice
            before = [sources[:place] for place in range(len(sources))]
            sources = [
                one
                for one, earlier in zip(sources, before, strict=True)
                if _is_in(one, earlier) or not _is_in(one, targets)
            ]
        most = max(target.numel() for target in targets)
        labels = [self.of(source) for source in sources if source.numel() > 1 or most == 1]
        known = [label for label in labels if label is not None]
        passes = name in _COPIES or name in _SUMS or (name in _SCALES and len(labels) < 2)
        label: Label = None
        if not passes and in_backward and _in_formula():
            label = _OWN
        elif known:
            label = frozenset.intersection(*known) if name in _SUMS else frozenset.union(*known)
        elif not overwrites and not from_host:
            return
        for target in targets:
            self._write(target, label)

    def _has_label(self, tensor: torch.Tensor) -> bool:
        block = self._recorder.block_of(tensor) if isinstance(tensor, FakeTensor) else None
        return block is not None and block.block in self._labels

    def exchanged(self, given: Sequence[torch.Tensor], got: Iterable[torch.Tensor], group: str, size: int) -> None:
        """A collective has been asked for."""
        if not self.are_followed:
            return
        known = [label for label in map(self.of, given) if label is not None]
        label: Label = frozenset.union(*known) if known else None
        if size > 1:
            label = (label or _OWN) | {group}
        for tensor in got:
            self._write(tensor, label)

    # -----------------------------------------------------------------------------------------------------------------
    # Optimizers

    def before(self, optimizer: Optimizer) -> None:
        """An optimizer begins to step."""
        self._look()
        self._had_own.clear()
        self._judge(optimizer)

    def after(self, optimizer: Optimizer) -> None:
        """It has stepped: gradients that its closure made are there, and parameters exchanged within."""
        self._judge(optimizer)
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for key in stepped & self._updates.keys():
            parameter, update = self._updates[key]
            here = parameter()
            if here is None or update.groups is None:
                continue
            if key not in self._had_own or self._label_of(here):
                self._touch(key, self._label_of(here) if key in self._had_own else None)
                self._met(key)
            else:
                since, most = self._alone.get(key, (0, 0))
                self._alone[key] = since + 1, most
            for part in _parts(here):  # what came of gradients that were exchanged later is no exchange
                self._write(part, None)

    def _judge(self, optimizer: Optimizer) -> None:
        lines = self._recorder.lines.stack()
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                key = id(parameter)
                known = self._updates.get(key)
                if parameter.grad is None:
                    continue
                label = self._label_of(parameter.grad)
                if label == _OWN:
                    self._had_own.add(key)
                if known is not None and (known[1].groups is not None or label is None):
                    continue
                groups = None if label is None else tuple(sorted(label))
                name = self._name(parameter) or f"parameter {place} of group {number} of {type(optimizer).__name__}"
                self._updates[key] = weakref.ref(parameter), Update(name, groups, lines)

    def _name(self, parameter: torch.Tensor) -> str:
        if id(parameter) not in self._names:
            self._names |= self._recorder.lines.parameters()
        return self._names.setdefault(id(parameter), "")

    def _label_of(self, tensor: torch.Tensor) -> Label:
        labels = [label for part in _parts(tensor) if (label := self.of(part)) is not None]
        return frozenset.union(*labels) if labels else None

    def _touch(self, key: int, label: Label) -> None:
        parameter, update = self._updates[key]
        if label and not update.groups:
            self._updates[key] = parameter, Update(update.parameter, tuple(sorted(label)), update.lines)

    def _met(self, key: int) -> None:
        since, most = self._alone.get(key, (0, 0))
        self._alone[key] = 0, max(most, since)

    def _look(self) -> None:
        """Parameters that were exchanged themselves, by now; those that are no more, for longer than ever before."""
        updates = self._recorder.record.updates = []
        for key, (parameter, update) in self._updates.items():
            here = parameter()
            label = None if here is None else self._label_of(here)
            if label:
                self._met(key)
                self._touch(key, label)
            since, most = self._alone.get(key, (0, 0))
            update = self._updates[key][1]
            drifts = bool(update.groups) and since > max(most, 1)
            updates.append(Update(update.parameter, (), update.lines, since) if drifts else update)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """A tensor, or those that one of several is made of, as the share of a DTensor."""
    whole: Any = tensor
    if not is_traceable_wrapper_subclass(whole):
        return [whole]
    return [one for name in whole.__tensor_flatten__()[0] for one in _parts(getattr(whole, name))]


def _flat(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]


def _holds_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(one, torch.Tensor) for one in values)


def _is_in(tensor: torch.Tensor, tensors: Iterable[torch.Tensor]) -> bool:
    return any(one is tensor for one in tensors)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _in_formula() -> bool:
    """Whether a formula of torch's runs, whose nodes end in a number, as MmBackward0; others and hooks may exchange."""
    node: Any = torch._C._current_autograd_node()
    return node is not None and node.name()[-1:].isdigit()
