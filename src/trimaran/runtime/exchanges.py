"""Sends and receives of one rank: between the pools of tensors of a step and the ranks around.

A message is packed and handed over when its instruction is issued, and waited for by the first instruction that names
it. What a pair of segments exchanges in which order of bytes follows from the graph, so that both ends know it.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from trimaran.errors import InputError
from trimaran.graph.types import TensorSpec
from trimaran.program.types import Instruction, Kind
from trimaran.runtime.channels import Channels
from trimaran.runtime.messages import MessageLayout
from trimaran.runtime.pending import InFlight, Pending
from trimaran.runtime.record import Recorder
from trimaran.runtime.state import State
from trimaran.runtime.streams import Stamp

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
        released: for each receive, the sends that it shows to have been received, by token
    """

    def __init__(
        self,
        device: str,
        *,
        channels: Channels,
        in_flight: InFlight,
        recorder: Recorder,
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
        """Wait for everything that an instruction names, and for the sends that are then known to have arrived."""
        for token in instruction.after:
            self._in_flight.wait(token)
            for sent in self._released.get(token, ()):
                self._in_flight.wait(sent)

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
                f"{instruction.id}: segment {pair[0]} makes nothing that segment {pair[1]} reads: lower the program "
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
        pending = Pending(
            token=instruction.token,
            nbytes=buffer.nbytes,
            works=[operation(buffer, instruction.peer)],
            buffers=[buffer],
            start=start,
        )
        self._in_flight.add(
            pending,
            f"{instruction.kind} {instruction.peer}",
            collective=False,
            stood_still=True,
        )
        return pending

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
