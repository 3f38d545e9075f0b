"""Do what a program says, instruction by instruction, on one rank.

The instructions of a rank are issued in the order of its list. Each kind has one method; there is no other control
flow. Compute runs when it is issued; communication is started when it is issued, and waited for by the first
instruction whose `after` names it. An instruction of a microbatch that is empty, in a small last batch, is left out;
all ranks leave out the same.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from trimaran.errors import InputError
from trimaran.graph.batches import split_batch
from trimaran.graph.types import TensorSpec
from trimaran.job import Job
from trimaran.program.types import Instruction, Kind
from trimaran.runtime.channels import Channels
from trimaran.runtime.losses import loss_term
from trimaran.runtime.messages import MessageLayout
from trimaran.runtime.pending import InFlight, Pending
from trimaran.runtime.precision import autocast, place_batch
from trimaran.runtime.record import Recorder
from trimaran.runtime.reductions import Reductions
from trimaran.runtime.stages import Stage
from trimaran.runtime.state import State
from trimaran.runtime.streams import Stamp
from trimaran.timeline import COMPUTE, HOST


class Interpreter:
    """Runs the instructions of one rank.

    Args:
        job: has the loss and the metric
        device: of the rank
        stage: computes
        channels: communicate
        in_flight: communication under way
        reductions: everything about collectives, and the update
        recorder: writes down what happened
        crossing: for each `(producer, consumer)` pair of segments, the tensors that they exchange
        released: for each receive, the sends that it shows to have been received, by token
    """

    def __init__(
        self,
        job: Job,
        device: str,
        *,
        stage: Stage,
        channels: Channels,
        in_flight: InFlight,
        reductions: Reductions,
        recorder: Recorder,
        crossing: Mapping[tuple[int, int], Sequence[TensorSpec]],
        released: Mapping[str, Sequence[str]],
    ) -> None:
        self._job = job
        self._device = device
        self._stage = stage
        self._channels = channels
        self._in_flight = in_flight
        self._reductions = reductions
        self._recorder = recorder
        self._crossing = crossing
        self._released = released
        self._layouts: dict[tuple[str, int], MessageLayout] = {}

    def check(self, instructions: Sequence[Instruction]) -> None:
        """Refuse instructions that cannot be run.

        Args:
            instructions: of this rank

        Raises:
            InputError: a kind that has no method here
        """
        for instruction in instructions:
            if instruction.kind not in _METHODS:
                raise InputError(
                    f'{instruction.id}: the runtime cannot run "{instruction.kind}" yet; it runs '
                    f"{', '.join(sorted(_METHODS))}",
                    kind=str(instruction.kind),
                )

    def run(self, instructions: Sequence[Instruction], state: State) -> None:
        """Run one step, or the evaluation of one batch.

        Args:
            instructions: of this rank, in order
            state: of the step; filled

        Raises:
            ExecutionError: another rank is gone
            InputError: the loss is no scalar
        """
        state.completing = _last_backward(instructions, state.sizes)
        for instruction in instructions:
            if instruction.microbatch is not None and not state.sizes[instruction.microbatch]:
                continue
            _METHODS[instruction.kind](self, instruction, state)
        self._in_flight.wait_for_all()

    def _all_reduce(self, instruction: Instruction, state: State) -> None:
        self._reductions.all_reduce(instruction, state)

    def _reduce(self, instruction: Instruction, state: State) -> None:
        """Nothing: a mark has started it."""

    def _broadcast(self, instruction: Instruction, state: State) -> None:
        self._reductions.broadcast(instruction, state)

    def _clip(self, instruction: Instruction, state: State) -> None:
        self._reductions.clip(instruction, state)

    def _update(self, instruction: Instruction, state: State) -> None:
        self._reductions.update(instruction, state)

    def _load(self, instruction: Instruction, state: State) -> None:
        start = self._recorder.stamp()
        microbatch = _microbatch(instruction)
        state.batches[microbatch] = place_batch(
            state.source(microbatch), precision=self._job.precision, device=self._device
        )
        self._recorder.add(instruction.token, HOST, start, self._recorder.stamp(), instruction.nbytes)

    def _forward(self, instruction: Instruction, state: State) -> None:
        self._wait(instruction)
        start = self._recorder.stamp()
        microbatch = _microbatch(instruction)
        samples = state.sizes[microbatch]
        batch = state.batches.pop(microbatch, None)
        received = state.received.setdefault(microbatch, {})
        with autocast(self._job.precision, self._device):
            state.made[microbatch], output = self._stage.forward(
                batch, received, samples, completing=microbatch == state.completing
            )
            if self._stage.is_last:
                root, term = loss_term(self._job, output, batch, samples=samples, of=state.samples)
                state.roots[microbatch] = root
                state.terms.append(term)
        self._recorder.add(instruction.token, COMPUTE, start, self._recorder.stamp())
        if self._stage.is_last:
            self._reductions.fetch_loss(state)

    def _backward(self, instruction: Instruction, state: State) -> None:
        self._wait(instruction)
        start = self._recorder.stamp()
        microbatch = _microbatch(instruction)
        made, arrived = state.made.pop(microbatch), state.arrived.pop(microbatch, {})
        roots: list[torch.Tensor] = []
        gradients: list[torch.Tensor | None] = []
        if microbatch in state.roots:
            roots.append(state.roots.pop(microbatch))
            gradients.append(None)
        for name, parts in arrived.items():
            roots.append(made[name])
            gradients.append(_sum(parts).to(made[name].dtype))
        needed = [number for number, root in enumerate(roots) if root.requires_grad]
        self._stage.backward(
            [roots[number] for number in needed],
            [gradients[number] for number in needed],
            completing=microbatch == state.completing,
        )
        received = state.received.pop(microbatch)
        state.returning[microbatch] = {name: tensor.grad for name, tensor in received.items()}
        self._recorder.add(instruction.token, COMPUTE, start, self._recorder.stamp())

    def _evaluate(self, instruction: Instruction, state: State) -> None:
        self._wait(instruction)
        microbatch = _microbatch(instruction)
        batch = state.batches.pop(microbatch, None)
        received = state.received.pop(microbatch, {})
        with autocast(self._job.precision, self._device):
            state.made[microbatch], output = self._stage.evaluate(batch, received, state.sizes[microbatch])
        if self._stage.is_last and self._job.metric is not None:
            target = split_batch(batch, own_loss=self._job.loss is None)[2]
            value = float(self._job.metric(output, target))
            state.metrics.append((value, state.sizes[microbatch]))

    def _send_forward(self, instruction: Instruction, state: State) -> None:
        self._send(instruction, state, state.made[_microbatch(instruction)])

    def _send_backward(self, instruction: Instruction, state: State) -> None:
        self._send(instruction, state, state.returning[_microbatch(instruction)])

    def _receive_forward(self, instruction: Instruction, state: State) -> None:
        received = state.received.setdefault(_microbatch(instruction), {})
        wanted = {spec.name: spec.requires_grad for spec in self._specs(instruction)}

        def store(tensors: dict[str, torch.Tensor]) -> None:
            for name, tensor in tensors.items():
                received[name] = tensor.requires_grad_(wanted[name] and torch.is_grad_enabled())

        self._receive(instruction, state, store)

    def _receive_backward(self, instruction: Instruction, state: State) -> None:
        arrived = state.arrived.setdefault(_microbatch(instruction), {})

        def store(tensors: dict[str, torch.Tensor]) -> None:
            for name, tensor in tensors.items():
                arrived.setdefault(name, []).append(tensor)

        self._receive(instruction, state, store)

    def _send(self, instruction: Instruction, state: State, tensors: Mapping[str, torch.Tensor | None]) -> None:
        start = self._recorder.stamp()
        buffer = self._layout(instruction, state).pack(tensors, self._device)
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
        pending = Pending(
            token=instruction.token,
            nbytes=buffer.nbytes,
            works=[operation(buffer, _peer(instruction))],
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

    def _wait(self, instruction: Instruction) -> None:
        for token in instruction.after:
            self._in_flight.wait(token)
            for sent in self._released.get(token, ()):
                self._in_flight.wait(sent)

    def _specs(self, instruction: Instruction) -> Sequence[TensorSpec]:
        ends = (instruction.segment, instruction.peer_segment)
        outward = instruction.kind in (Kind.SEND_FORWARD, Kind.RECEIVE_BACKWARD)
        producer, consumer = ends if outward else reversed(ends)
        specs = self._crossing[producer, consumer]  # type: ignore[index]
        if instruction.kind in (Kind.SEND_BACKWARD, Kind.RECEIVE_BACKWARD):
            return [spec for spec in specs if spec.requires_grad]
        return specs

    def _layout(self, instruction: Instruction, state: State) -> MessageLayout:
        samples = state.sizes[_microbatch(instruction)]
        key = (instruction.token, samples)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = MessageLayout(self._specs(instruction), samples)
        return layout


# Functions, not bound methods: an interpreter that held itself would outlive its process groups.
_METHODS: dict[Kind, Callable[[Interpreter, Instruction, State], None]] = {
    Kind.LOAD: Interpreter._load,
    Kind.FORWARD: Interpreter._forward,
    Kind.BACKWARD: Interpreter._backward,
    Kind.EVALUATE: Interpreter._evaluate,
    Kind.SEND_FORWARD: Interpreter._send_forward,
    Kind.SEND_BACKWARD: Interpreter._send_backward,
    Kind.RECEIVE_FORWARD: Interpreter._receive_forward,
    Kind.RECEIVE_BACKWARD: Interpreter._receive_backward,
    Kind.ALL_REDUCE: Interpreter._all_reduce,
    Kind.BROADCAST: Interpreter._broadcast,
    Kind.REDUCE: Interpreter._reduce,
    Kind.CLIP: Interpreter._clip,
    Kind.UPDATE: Interpreter._update,
}


def _last_backward(instructions: Sequence[Instruction], sizes: Sequence[int]) -> int | None:
    """The microbatch whose backward completes the gradients; None in an evaluation."""
    backwards = (
        _microbatch(instruction) for instruction in reversed(instructions) if instruction.kind is Kind.BACKWARD
    )
    return next((microbatch for microbatch in backwards if sizes[microbatch]), None)


def _microbatch(instruction: Instruction) -> int:
    if instruction.microbatch is None:
        raise InputError(f"{instruction.id} must name a microbatch")
    return instruction.microbatch


def _peer(instruction: Instruction) -> int:
    if instruction.peer is None:
        raise InputError(f"{instruction.id} must name a peer")
    return instruction.peer


def _sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
