"""Do what a program says, instruction by instruction, on one rank.

The instructions of a rank are issued in the order of its list. Each kind has one method; there is no other control
flow. Compute runs when it is issued; communication is started when it is issued, and waited for by the first
instruction whose `after` names it. An instruction of a microbatch that is empty, in a small last batch, is left out;
all ranks leave out the same. Where the gradients of a segment go is said in `passages`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import torch

from trimaran.errors import InputError
from trimaran.graph.batches import split_batch
from trimaran.graph.types import TensorSpec
from trimaran.job import Job
from trimaran.program.types import COLLECTIVES, Instruction, Kind
from trimaran.runtime.deferral import Deferred
from trimaran.runtime.exchanges import Exchanges, microbatch_of, segment_of
from trimaran.runtime.loss_sums import as_number
from trimaran.runtime.losses import loss_term
from trimaran.runtime.passages import backward_roots, return_gradients
from trimaran.runtime.precision import autocast
from trimaran.runtime.record import Recorder
from trimaran.runtime.reductions import Reductions
from trimaran.runtime.scaling import LossScaler
from trimaran.runtime.stages import Divided, Stage
from trimaran.runtime.state import Passage, State
from trimaran.runtime.uses import Uses, find_uses
from trimaran.timeline import COMPUTE, HOST


class Interpreter:
    """Runs the instructions of one rank.

    Args:
        job: has the loss and the metric
        device: of the rank
        stages: compute, by number of the segment
        reads: for each of these segments, the tensors of other segments that it reads
        exchanges: messages
        reductions: everything about collectives, and the update
        scaler: scales losses; None: they are propagated as they are
        recorder: writes down what happened
    """

    def __init__(
        self,
        job: Job,
        device: str,
        *,
        stages: Mapping[int, Stage],
        reads: Mapping[int, Sequence[TensorSpec]],
        exchanges: Exchanges,
        reductions: Reductions,
        scaler: LossScaler | None = None,
        recorder: Recorder,
    ) -> None:
        self._job = job
        self._device = device
        self._stages = stages
        self._reads = reads
        self._exchanges = exchanges
        self._reductions = reductions
        self._scaler = scaler
        self._recorder = recorder
        self._uses: Uses = find_uses((), {}, lambda instruction: ())

    def check(self, instructions: Sequence[Instruction]) -> Uses:
        """Refuse instructions that cannot be run.

        Args:
            instructions: of this rank

        Returns:
            What `run` needs to know of them.

        Raises:
            InputError: a kind that has no method here, or a segment that is not on this rank
        """
        for instruction in instructions:
            if instruction.kind not in _METHODS:
                raise InputError(
                    f'{instruction.id}: the runtime cannot run "{instruction.kind}" yet; it runs '
                    f"{', '.join(sorted(_METHODS))}",
                    kind=str(instruction.kind),
                )
            if instruction.segment is not None and instruction.segment not in self._stages:
                raise InputError(
                    f"{instruction.id}: this rank has the segments {', '.join(map(str, self._stages))}",
                    segment=instruction.segment,
                )
        names = {segment: [spec.name for spec in specs] for segment, specs in self._reads.items()}
        return find_uses(instructions, names, lambda sent: [spec.name for spec in self._exchanges.carried(sent)])

    def run(self, instructions: Sequence[Instruction], uses: Uses, state: State) -> None:
        """Run one step, or the evaluation of one batch.

        Args:
            instructions: of this rank, in order
            uses: what `check` said of them
            state: of the step; filled

        Raises:
            ExecutionError: another rank is gone
            InputError: the loss is no scalar
        """
        self._uses = uses
        for segment, microbatches in uses.completing.items():
            state.completing.update((segment, number) for number in microbatches if state.sizes[number])
        for instruction in instructions:
            if instruction.microbatch is not None and not state.sizes[instruction.microbatch]:
                continue
            _METHODS[instruction.kind](self, instruction, state)
        self._reductions.wait_for_all()

    def _collective(self, instruction: Instruction, state: State) -> None:
        self._reductions.run(instruction, state)

    def _clip(self, instruction: Instruction, state: State) -> None:
        self._reductions.clip(instruction, state)

    def _update(self, instruction: Instruction, state: State) -> None:
        self._reductions.update(instruction, state)

    def _load(self, instruction: Instruction, state: State) -> None:
        start = self._recorder.stamp()
        microbatch = microbatch_of(instruction)
        state.batches[microbatch] = state.source(microbatch)
        self._recorder.add(instruction.token, HOST, start, self._recorder.stamp(), instruction.nbytes)

    def _forward(self, instruction: Instruction, state: State) -> None:
        self._exchanges.wait(instruction)
        start = self._recorder.stamp()
        segment, microbatch = segment_of(instruction), microbatch_of(instruction)
        stage, samples = self._stages[segment], state.sizes[microbatch]
        batch = state.batches.get(microbatch)
        passage = Passage(read=self._leaves(instruction, state))
        if segment in self._uses.split and passage.is_awaited and isinstance(stage, Divided) and stage.divides:
            passage.deferred = Deferred()
        with autocast(self._job.precision, self._device):
            with nullcontext() if passage.deferred is None else passage.deferred.recording():
                passage.made, output = stage.forward(
                    batch, passage.read, samples, completing=microbatch == state.completing.get(segment)
                )
            if stage.is_last:
                passage.root, term = loss_term(self._job, output, batch, samples=samples, of=state.samples)
                state.terms.append(term)
        if self._scaler is not None and passage.root is not None:
            if state.terms[-1].weighted:
                raise InputError(
                    "a loss that is (sum, weight) cannot be scaled for fp16, as its divisor is known only after the "
                    'backward: return a mean over the samples, or use precision="bf16"'
                )
            passage.root = self._scaler.scale(passage.root)
        state.passages[segment, microbatch] = passage
        self._keep(instruction, state, passage.made)
        self._recorder.add(instruction.token, COMPUTE, start, self._recorder.stamp())
        if stage.is_last:
            self._reductions.losses.fetch(state)

    def _backward(self, instruction: Instruction, state: State) -> None:
        self._exchanges.wait(instruction)
        start = self._recorder.stamp()
        segment, microbatch = segment_of(instruction), microbatch_of(instruction)
        passage = state.passages.pop((segment, microbatch))
        self._stages[segment].backward(
            *backward_roots(passage, microbatch, state), completing=microbatch == state.completing[segment]
        )
        return_gradients(passage, microbatch, state)
        self._recorder.add(instruction.token, COMPUTE, start, self._recorder.stamp())

    def _backward_input(self, instruction: Instruction, state: State) -> None:
        """What others wait for; where nobody does, nothing."""
        self._exchanges.wait(instruction)
        start = self._recorder.stamp()
        segment, microbatch = segment_of(instruction), microbatch_of(instruction)
        passage = state.passages[segment, microbatch]
        passage.roots = backward_roots(passage, microbatch, state)
        if passage.is_awaited:
            self._stages[segment].backward(*passage.roots, completing=False)
            return_gradients(passage, microbatch, state)
            passage.roots = (), ()
        passage.read, passage.made, passage.root = {}, {}, None
        self._recorder.add(instruction.token, COMPUTE, start, self._recorder.stamp())

    def _backward_weight(self, instruction: Instruction, state: State) -> None:
        """What was put off."""
        self._exchanges.wait(instruction)
        start = self._recorder.stamp()
        segment, microbatch = segment_of(instruction), microbatch_of(instruction)
        passage = state.passages.pop((segment, microbatch))
        stage, completing = self._stages[segment], microbatch == state.completing[segment]
        if passage.deferred is not None and isinstance(stage, Divided):
            stage.backward_weights(passage.deferred, completing=completing)
        else:
            stage.backward(*passage.roots, completing=completing)
        self._recorder.add(instruction.token, COMPUTE, start, self._recorder.stamp())

    def _evaluate(self, instruction: Instruction, state: State) -> None:
        self._exchanges.wait(instruction)
        segment, microbatch = segment_of(instruction), microbatch_of(instruction)
        stage, batch = self._stages[segment], state.batches.get(microbatch)
        received = self._leaves(instruction, state)
        with autocast(self._job.precision, self._device):
            made, output = stage.evaluate(batch, received, state.sizes[microbatch])
        self._keep(instruction, state, made)
        if stage.is_last and self._job.metric is not None:
            target = split_batch(batch, own_loss=self._job.loss is None)[2]
            state.metrics.append((as_number(self._job.metric(output, target)), state.sizes[microbatch]))

    def _send_forward(self, instruction: Instruction, state: State) -> None:
        self._exchanges.send_forward(instruction, state)
        self._let_go(instruction, state)

    def _send_backward(self, instruction: Instruction, state: State) -> None:
        self._exchanges.send_backward(instruction, state)

    def _receive_forward(self, instruction: Instruction, state: State) -> None:
        self._exchanges.receive_forward(instruction, state)

    def _receive_backward(self, instruction: Instruction, state: State) -> None:
        self._exchanges.receive_backward(instruction, state)

    def _leaves(self, instruction: Instruction, state: State) -> dict[str, torch.Tensor]:
        """What a segment reads of others, as leaves of its own."""
        values = state.values.get(microbatch_of(instruction), {})
        grad = torch.is_grad_enabled()
        return {
            spec.name: values[spec.name].detach().requires_grad_(spec.requires_grad and grad)
            for spec in self._reads.get(segment_of(instruction), ())
        }

    def _keep(self, instruction: Instruction, state: State, made: Mapping[str, torch.Tensor]) -> None:
        """Keep what a forward has made for others, and let go of what nobody needs after it."""
        values = state.values.setdefault(microbatch_of(instruction), {})
        values.update((name, tensor.detach()) for name, tensor in made.items())
        self._let_go(instruction, state)
        if instruction.token in self._uses.batches:
            state.batches.pop(microbatch_of(instruction), None)

    def _let_go(self, instruction: Instruction, state: State) -> None:
        values = state.values[microbatch_of(instruction)]
        for name in self._uses.values.get(instruction.token, ()):
            values.pop(name, None)


# Functions, not bound methods: an interpreter that held itself would outlive its process groups.
_METHODS: dict[Kind, Callable[[Interpreter, Instruction, State], None]] = {
    Kind.LOAD: Interpreter._load,
    Kind.FORWARD: Interpreter._forward,
    Kind.BACKWARD: Interpreter._backward,
    Kind.BACKWARD_INPUT: Interpreter._backward_input,
    Kind.BACKWARD_WEIGHT: Interpreter._backward_weight,
    Kind.EVALUATE: Interpreter._evaluate,
    Kind.SEND_FORWARD: Interpreter._send_forward,
    Kind.SEND_BACKWARD: Interpreter._send_backward,
    Kind.RECEIVE_FORWARD: Interpreter._receive_forward,
    Kind.RECEIVE_BACKWARD: Interpreter._receive_backward,
    **dict.fromkeys(COLLECTIVES, Interpreter._collective),
    Kind.CLIP: Interpreter._clip,
    Kind.UPDATE: Interpreter._update,
}
