"""Sends and receives of one rank: tensors that cross from a segment of one rank to a segment of another.

A message is packed and handed over when its instruction is issued, and waited for by the first instruction that names
it. There is one message for each pair of segments and microbatch, because starting a message takes longer than a copy
in memory. A single tensor, the usual case, is sent from where it lies; several are packed one behind the other. Both
ends know the layout from the graph and the size of the microbatch, so that only elements are sent.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from trimaran.base.errors import ExecutionError, InputError
from trimaran.graph.trace.storages import dtype_of
from trimaran.graph.types import TensorSpec
from trimaran.program.types import Instruction, Kind
from trimaran.runtime.communication.channels import Channels, InFlight, Pending
from trimaran.runtime.communication.shared_memory import aligned
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.step.state import State
from trimaran.runtime.streams import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    nbytes: int


class MessageLayout:
    """Where each tensor of a message lies, for one size of microbatch.

    Args:
        specs: the tensors, in order
        batch: samples of the microbatch
    """

    def __init__(self, specs: Sequence[TensorSpec], batch: int) -> None:
        fields = []
        end = 0
        for spec in specs:
            shape = tuple(size_at(size, batch) for size in spec.shape)
            dtype = dtype_of(spec.dtype)
            nbytes = prod(shape) * dtype.itemsize
            start = aligned(end)
            end = start + nbytes
            fields.append(_Field(name=spec.name, shape=shape, dtype=dtype, start=start, nbytes=nbytes))
        self._fields = tuple(fields)
        self.nbytes = end

    def pack(
        self, tensors: Mapping[str, torch.Tensor | None], device: str, into: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A flat buffer of the tensors.

        Args:
            tensors: by name; None, as of a gradient that is missing, is sent as zeros
            device: where the buffer lies
            into: the buffer; None: a new one, or a tensor as it lies

        Returns:
            Bytes; of a single tensor a view where it can be one.

        Raises:
            ExecutionError: a tensor has another shape than the graph says
        """
        if len(self._fields) == 1 and into is None:
            field = self._fields[0]
            return _flat(self._checked(field, tensors[field.name], device))
        buffer = torch.empty(self.nbytes, dtype=torch.uint8, device=device) if into is None else into
        for field in self._fields:
            part = buffer[field.start : field.start + field.nbytes]
            part.copy_(_flat(self._checked(field, tensors[field.name], device)))
        return buffer

    def unpack(self, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors of a received buffer, as views of it.

        Args:
            buffer: bytes
        """
        return {
            field.name: buffer[field.start : field.start + field.nbytes].view(field.dtype).view(field.shape)
            for field in self._fields
        }

    def _checked(self, field: _Field, tensor: torch.Tensor | None, device: str) -> torch.Tensor:
        if tensor is None:
            return torch.zeros(field.shape, dtype=field.dtype, device=device)
        if tuple(tensor.shape) != field.shape:
            raise ExecutionError(
                f'tensor "{field.name}" has shape {tuple(tensor.shape)} in this run and {field.shape} in the captured '
                "graph: a tensor whose shape depends on the data cannot cross from stage to stage; plan again with "
                "other boundaries, or data parallel",
                code="message.other-shape",
                tensor=field.name,
            )
        # Under autocast an operation may give another dtype than the one that was captured.
        return tensor.detach().to(field.dtype)


def size_at(size: int | str, batch: int) -> int:
    """One size of a shape.

    Args:
        size: a number, or an expression in the batch size `B`
        batch: samples

    Raises:
        InputError: not such an expression

    Example:
        >>> size_at(7, 4), size_at("B", 4), size_at("2*B", 4), size_at("B*12 + 1", 4)
        (7, 4, 8, 49)
    """
    if isinstance(size, int):
        return size
    if size == "B":
        return batch
    try:
        return _evaluate(ast.parse(size, mode="eval").body, batch)
    except (SyntaxError, KeyError):
        raise InputError(
            f'a size of a tensor must be a number or an expression in B, got "{size}"',
            code="message.bad-size",
            size=size,
        ) from None


def _evaluate(node: ast.expr, batch: int) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and node.id == "B":
        return batch
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, batch), _evaluate(node.right, batch)
        operations = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
        return operations[type(node.op)]
    raise KeyError(type(node).__name__)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


Pair = tuple[int, int]
_OUTWARD = (Kind.SEND_FORWARD, Kind.RECEIVE_BACKWARD)


class Exchanges:
    """What one rank sends and receives.

    Args:
        device: of the rank
        channels: communicate
        in_flight: communication under way
        recorder: writes down what happened
        routes: for each `(producer, first consumer)` pair of segments on different ranks, the tensors of their messages
        released: for each receive, the sends that the peer must have received by then, by token
    """

    def __init__(
        self,
        device: str,
        *,
        channels: Channels,
        in_flight: InFlight,
        recorder: RunRecorder,
        routes: Mapping[Pair, Sequence[TensorSpec]],
        released: Mapping[str, Sequence[str]],
    ) -> None:
        self._device = device
        self._channels = channels
        self._in_flight = in_flight
        self._recorder = recorder
        self._routes = routes
        self._released = released
        self._layouts: dict[tuple[str, int], MessageLayout] = {}

    def send_forward(self, instruction: Instruction, state: State) -> None:
        """Send tensors to a segment of another rank."""
        self._send(instruction, state, state.values[microbatch_of(instruction)])

    def send_backward(self, instruction: Instruction, state: State) -> None:
        """Send back the gradients of received tensors, added up over those of this rank's segments that have run."""
        microbatch = microbatch_of(instruction)
        names = [spec.name for spec in self.carried(instruction)]
        self._send(instruction, state, {name: state.take_gradient(microbatch, name) for name in names})

    def receive_forward(self, instruction: Instruction, state: State) -> None:
        """Receive tensors of a segment of another rank."""
        self._receive(instruction, state, state.values.setdefault(microbatch_of(instruction), {}).update)

    def receive_backward(self, instruction: Instruction, state: State) -> None:
        """Receive gradients of tensors that were sent."""
        microbatch = microbatch_of(instruction)

        def store(tensors: Mapping[str, torch.Tensor]) -> None:
            for name, tensor in tensors.items():
                state.add_gradient(microbatch, name, tensor)

        self._receive(instruction, state, store)

    def wait(self, instruction: Instruction) -> None:
        """Wait for everything that an instruction names, and for sends that the peer has received by then."""
        for token in instruction.after:
            self._in_flight.wait(token)
            for sent in self._released.get(token, ()):
                self._in_flight.wait(sent)

    def finish(self, token: str) -> None:
        """Wait for one message to its end; nothing happens where it is not under way.

        Args:
            token: of the instruction
        """
        self._in_flight.wait(token)

    def carried(self, instruction: Instruction) -> Sequence[TensorSpec]:
        """The tensors whose values or gradients a message carries.

        Args:
            instruction: a send or receive

        Raises:
            InputError: its segments exchange nothing
        """
        ends = (instruction.segment, instruction.peer_segment)
        pair = ends if instruction.kind in _OUTWARD else ends[::-1]
        found = self._routes.get(pair)  # type: ignore[arg-type]
        if found is None:
            raise InputError(
                f"{instruction.id}: segment {pair[1]} reads no tensor of segment {pair[0]}: lower the program "
                "again for this graph",
                segments=pair,
            )
        if instruction.kind in (Kind.SEND_BACKWARD, Kind.RECEIVE_BACKWARD):
            return [spec for spec in found if spec.requires_grad]
        return found

    def _send(self, instruction: Instruction, state: State, tensors: Mapping[str, torch.Tensor | None]) -> None:
        start = self._recorder.stamp()
        layout = self._layout(instruction, state)
        room = None if instruction.peer is None else self._channels.room(layout.nbytes, instruction.peer)
        buffer = layout.pack(tensors, self._device, into=room)
        self._start(instruction, self._channels.send, buffer, start)

    def _receive(
        self, instruction: Instruction, state: State, store: Callable[[dict[str, torch.Tensor]], None]
    ) -> None:
        start = self._recorder.stamp()
        layout = self._layout(instruction, state)
        buffer = torch.empty(layout.nbytes, dtype=torch.uint8, device=self._device)
        pending = self._start(instruction, self._channels.receive, buffer, start)
        pending.finish = lambda: store(layout.unpack(buffer))

    def _start(
        self,
        instruction: Instruction,
        operation: Callable[[torch.Tensor, int], object],
        buffer: torch.Tensor,
        start: Stamp,
    ) -> Pending:
        if instruction.peer is None:
            raise InputError(f"{instruction.id} must name a peer")
        work = operation(buffer, instruction.peer)
        return self._in_flight.add(instruction, [work], [buffer], start=start, blocking=True)

    def _layout(self, instruction: Instruction, state: State) -> MessageLayout:
        samples = state.sizes[microbatch_of(instruction)]
        key = (instruction.token, samples)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = MessageLayout(self.carried(instruction), samples)
        return layout


def microbatch_of(instruction: Instruction) -> int:
    """The microbatch that an instruction is for.

    Raises:
        InputError: it names none
    """
    if instruction.microbatch is None:
        raise InputError(f"{instruction.id} must name a microbatch")
    return instruction.microbatch


def segment_of(instruction: Instruction) -> int:
    """The segment that an instruction is for.

    Raises:
        InputError: it names none
    """
    if instruction.segment is None:
        raise InputError(f"{instruction.id} must name a segment")
    return instruction.segment
