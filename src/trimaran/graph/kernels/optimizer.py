"""The optimizer: one work a parameter, with as many launches as it has operations.

An optimizer that runs parameter by parameter starts every one of these kernels; one that takes lists of parameters
(`foreach`) moves the same bytes with few launches; a fused one moves fewer. Which a framework does is for the cost
model to say: `launches` and `nbytes` are those of the first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trimaran.graph.kernels.operators import count, has_kernel
from trimaran.graph.kernels.workload import WeightGradient, Work, WorkKind
from trimaran.graph.trace.types import Role, StepTrace, TraceOp
from trimaran.graph.types import Phase

_TENSORS_OF_A_LAUNCH = 110


class Updates:
    """The update of a traced step, parameter by parameter.

    Args:
        trace: the step

    Attributes:
        separate: whether no operation touches several parameters, as clipping does and optimizers that take lists
    """

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self._groups = _Groups(trace)
        kept = [op for op in trace.ops if op.phase is Phase.UPDATE and has_kernel(op) and _on_device(trace, op)]
        for op in kept:
            self._groups.join(op)
        self._own: dict[int, Work] = {}
        self._loose: list[Work] = []
        for op in kept:
            owner = self._groups.owner(op)
            if owner is None:
                self._loose.append(_work(op, trace.optimizer, "", _changed_elements(op)))
            else:
                module = trace.names.get(owner, "").rpartition(".")[0]
                elements = self._groups.elements.get(owner, 0)
                self._own[owner] = _work(op, trace.optimizer, module, elements, self._own.get(owner))
        self.separate = not self._loose

    def works(self, like: Mapping[str, str]) -> list[Work]:
        """One work a parameter, in the order of their first operations; then those of several parameters.

        Args:
            like: by name of each parameter, the one whose update was traced for it; empty: all were
        """
        if not like:
            return [*self._own.values(), *self._loose]
        numbers = {self._trace.names.get(number, ""): number for number in self._trace.gradients}
        each = [
            replace(self._own[numbers[traced]], module=name.rpartition(".")[0])
            for name, traced in like.items()
            if name in numbers and numbers.get(traced) in self._own
        ]
        return [*each, *self._loose]

    def untraced_bytes(self, like: Mapping[str, str]) -> int:
        """State of the parameters whose update was not traced [bytes].

        Args:
            like: as for `works`
        """
        named = {name for number, name in self._trace.names.items() if number in self._trace.gradients}
        state = self._groups.state_bytes()
        return sum(state.get(traced, 0) for name, traced in like.items() if name != traced and name in named)


def unscaling(gradients: Sequence[WeightGradient]) -> Work:
    """Losses are scaled in fp16: all gradients are divided by the scale and looked through, some tensors a launch.

    Source:
        torch.amp.GradScaler; pytorch aten/src/ATen/native/cuda/MultiTensorApply.cuh: 110 tensors of one list a launch.
    """
    return Work(
        kind=WorkKind.OPTIMIZER,
        phase=Phase.UPDATE,
        module="",
        name="GradScaler",
        dtype="float32",
        flops=0.0,
        nbytes=2 * sum(gradient.nbytes for gradient in gradients),
        dims=(sum(gradient.elements for gradient in gradients),),
        launches=-(-len(gradients) // _TENSORS_OF_A_LAUNCH),
    )


def _work(op: TraceOp, optimizer: str, module: str, elements: int, before: Work | None = None) -> Work:
    return Work(
        kind=WorkKind.OPTIMIZER,
        phase=Phase.UPDATE,
        module=module,
        name=optimizer,
        dtype=op.dtype if before is None else before.dtype,
        flops=0.0,
        nbytes=op.nbytes + (before.nbytes if before else 0),
        dims=(elements,),
        launches=1 + (before.launches if before else 0),
        moments=(*(before.moments if before else ()), op.moment),
    )


def _changed_elements(op: TraceOp) -> int:
    """Elements that an operation on several tensors makes or changes."""
    written = {number for number, _ in op.writes}
    changed = sum(count(shape) for number, shape in op.operands if number in written)
    return changed or sum(map(count, op.results))


def _on_device(trace: StepTrace, op: TraceOp) -> bool:
    return any(trace.storages[number].nbytes for number, _ in (*op.operands, *op.writes))


class _Groups:
    """Storages that belong to one parameter: its own, its gradient, its state and what is made from these."""

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self._parent: dict[int, int] = {}
        self._owner = dict.fromkeys(trace.gradients, 0)
        self.elements: dict[int, int] = {}
        for parameter, gradient in trace.gradients.items():
            self._parent[self._root(gradient)] = self._root(parameter)

    def join(self, op: TraceOp) -> None:
        """The storages of an operation belong together, unless it takes several parameters' at once."""
        roots = {self._root(number) for number in self._touched(op)}
        owned = [root for root in roots if root in self._owner]
        if len(owned) <= 1:
            top = owned[0] if owned else min(roots, default=-1)
            for root in roots:
                self._parent[root] = top
        for number, shape in op.operands:
            if number in self._owner:
                self.elements[number] = count(shape)

    def owner(self, op: TraceOp) -> int | None:
        """The parameter of an operation; None: several, or none."""
        owned = {root for number in self._touched(op) if (root := self._root(number)) in self._owner}
        return owned.pop() if len(owned) == 1 else None

    def state_bytes(self) -> dict[str, int]:
        """State of the optimizer by name of the parameter that it belongs to [bytes]."""
        found: dict[str, int] = {}
        for storage in self._trace.storages:
            root = self._root(storage.number)
            if storage.role is Role.OPTIMIZER and root in self._owner:
                name = self._trace.names.get(root, "")
                found[name] = found.get(name, 0) + storage.nbytes
        return found

    def _touched(self, op: TraceOp) -> Iterable[int]:
        numbers = {number for number, _ in (*op.reads, *op.writes)}
        return [n for n in numbers if self._trace.storages[n].role is not Role.INPUT]

    def _root(self, number: int) -> int:
        while (above := self._parent.get(number, number)) != number:
            number = above
        return number
