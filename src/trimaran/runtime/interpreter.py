"""Run a program, instruction by instruction, on one rank.

The instructions of a rank are issued in the order of its list. Each kind has one method; there is no other control
flow. Compute runs when it is issued; communication is started when it is issued, and waited for by the first
instruction whose `after` names it. An instruction of a microbatch that is empty, in a small last batch, is left out;
all ranks leave out the same.

A segment works on its own leaves of autograd, without the history of the tensors that it reads; the gradient of a leaf
goes where the tensor came from. So a segment of this rank and one of another rank are treated alike, and gradients are
those of one graph.

The buffer of a sent message is freed when the peer has certainly received it. A transport need not tell when a send has
ended (gloo's does not), and asking would wait. But a message from the peer shows that the peer has done everything that
it had posted before.

    this rank    SEND a ───────────────┐           RECV b ─▶ a has been received: waiting for it takes no time
    peer                        RECV a ▼  ...  SEND b

So every receive releases the sends to the same peer whose own receives stand before that peer's send in its list.
Without this, a 1F1B pipeline would keep the gradients of all its microbatches until the end of the step.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.timeline import COMPUTE, HOST
from trimaran.graph.behaviour import Weight, WholeMetric
from trimaran.graph.trace.record import loading
from trimaran.graph.types import TensorSpec
from trimaran.launch.activity import ACTIVITY, DOING, padded
from trimaran.program.lowering.schedules import COMPLETING, FORWARDS
from trimaran.program.overlap import of_batch
from trimaran.program.types import COLLECTIVES, RECEIVES, SENDS, Instruction, Kind, Program
from trimaran.runtime.communication.point_to_point import Exchanges, microbatch_of, segment_of
from trimaran.runtime.communication.reduce import Reductions
from trimaran.runtime.parts.part import Splittable, Stage
from trimaran.runtime.precision import LossScaler, autocast
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.step.dgrad_wgrad import Deferred
from trimaran.runtime.step.losses import as_number, loss_term
from trimaran.runtime.step.stashing import Stash
from trimaran.runtime.step.state import Passage, State
from trimaran.user_code.alone import alone
from trimaran.user_code.batches import split_batch

# ---------------------------------------------------------------------------------------------------------------------
# Last uses of batches and tensors on a rank, after which they are freed


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """What the list of a rank says about last uses.

    Attributes:
        batches: tokens of the forwards that read a microbatch last
        values: for the token of each forward or send, the names of the tensors that it uses last
        completing: for each segment, the microbatches of its backwards (or of their wgrads), in order
        split: segments whose backward is split into dgrad and wgrad
        notes: for each instruction what stands on the page of the rank while it is under way
    """

    batches: Collection[str]
    values: Mapping[str, Sequence[str]]
    completing: Mapping[int, Sequence[int]]
    split: Collection[int]
    notes: Sequence[bytes] = ()


def find_uses(
    instructions: Sequence[Instruction],
    reads: Mapping[int, Sequence[str]],
    sends: Callable[[Instruction], Sequence[str]],
) -> Uses:
    """Go through the list of a rank.

    Args:
        instructions: of the rank
        reads: for each segment of the rank, names of the tensors of other segments that it reads
        sends: names of the tensors that a message carries
    """
    batches: dict[int | None, str] = {}
    last: dict[tuple[int | None, str], str] = {}
    completing: dict[int, list[int]] = {}
    split = set()
    for instruction in instructions:
        microbatch, segment = instruction.microbatch, instruction.segment
        names: Sequence[str] = ()
        if instruction.kind in FORWARDS:
            batches[microbatch] = instruction.token
            names = reads.get(segment, ()) if segment is not None else ()
        elif instruction.kind is Kind.SEND_FORWARD:
            names = sends(instruction)
        elif instruction.kind in COMPLETING and segment is not None and microbatch is not None:
            completing.setdefault(segment, []).append(microbatch)
        if instruction.kind is Kind.BACKWARD_INPUT:
            split.add(segment)
        for name in names:
            last[microbatch, name] = instruction.token
    values: dict[str, list[str]] = {}
    for (_, name), token in last.items():
        values.setdefault(token, []).append(name)
    return Uses(
        batches=frozenset(batches.values()),
        values=values,
        completing=completing,
        split=frozenset(segment for segment in split if segment is not None),
        notes=tuple(padded(instruction.token) for instruction in instructions),
    )


StepList = Sequence[tuple[Instruction, int, bytes]]
"""A step of those that overlap: instructions, how many steps behind each is, and what stands on the page meanwhile."""


def cycle_of(program: Program, rank: int) -> tuple[StepList, ...]:
    """The steps of a rank whose steps overlap, as they repeat: global batches are numbered in a circle.

    No two global batches under way have the same number, so that no message, pass or sum has the name of another.

    Args:
        program: whose steps overlap
        rank: number of the rank
    """
    size, instructions = program.behind + 1, program.ranks[rank]
    batches = [of_batch(instructions, number) for number in range(size)]
    return tuple(
        tuple((batches[(place - one.behind) % size][one.token], one.behind, padded(one.token)) for one in instructions)
        for place in range(size)
    )


def backward_roots(
    passage: Passage, microbatch: int, state: State
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Where a backward starts: the loss, and tensors for other segments, with the gradients that came back for them."""
    roots: list[torch.Tensor] = []
    gradients: list[torch.Tensor | None] = []
    if passage.root is not None and passage.root.requires_grad:
        roots.append(passage.root)
        gradients.append(None)
    for name, made in passage.made.items():
        gradient = state.take_gradient(microbatch, name)
        if gradient is not None and made.requires_grad:
            roots.append(made)
            gradients.append(gradient.to(made.dtype))
    return roots, gradients


def return_gradients(passage: Passage, microbatch: int, state: State) -> None:
    """Give the gradients of the tensors that a segment has read to where these came from."""
    for name, leaf in passage.read.items():
        if leaf.grad is not None:
            state.add_gradient(microbatch, name, leaf.grad)
            leaf.grad = None


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
        overlaps: steps overlap, so that a backward needs earlier weights
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
        recorder: RunRecorder,
        overlaps: bool = False,
    ) -> None:
        self._job = job
        self._device = device
        self._stages = stages
        self._reads = reads
        self._exchanges = exchanges
        self._reductions = reductions
        self._scaler = scaler
        self._recorder = recorder
        self._overlaps = overlaps
        self._stash = Stash(one for stage in stages.values() for one in stage.module.parameters())
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
        for instruction, note in zip(instructions, uses.notes, strict=True):
            if instruction.microbatch is not None and not state.sizes[instruction.microbatch]:
                continue
            ACTIVITY.instruction = instruction
            ACTIVITY.page[DOING] = note
            ACTIVITY.started += 1
            _METHODS[instruction.kind](self, instruction, state)
        self._reductions.wait_for_all()

    def go_on(self, listed: StepList, uses: Uses, states: Mapping[int, State]) -> None:
        """Run one step of those that overlap; what it has begun may end in later ones.

        Args:
            listed: what this rank does
            uses: what `check` said of all steps of the cycle
            states: of the global batches under way, by how many steps before they began

        Raises:
            ExecutionError: another rank is gone
            InputError: the loss is no scalar
        """
        self._uses = uses
        for instruction, behind, note in listed:
            state = states.get(behind)
            if state is None:
                continue
            ACTIVITY.instruction = instruction
            ACTIVITY.page[DOING] = note
            ACTIVITY.started += 1
            if instruction.kind in SENDS:
                # The one before it in the circle of numbers, which its channel delivers first.
                self._exchanges.finish(instruction.token)
            if instruction.kind is Kind.UPDATE and any(one.passages for one in states.values()):
                self._stash.renew()
            _METHODS[instruction.kind](self, instruction, state)

    def end(self) -> None:
        """Wait for all communication, when no global batch is under way."""
        self._reductions.wait_for_all()

    def _load(self, instruction: Instruction, state: State) -> None:
        start = self._recorder.stamp()
        microbatch = microbatch_of(instruction)
        with loading():
            state.batches[microbatch] = state.source(microbatch)
        self._recorder.add(instruction.token, HOST, start, self._recorder.stamp(), instruction.nbytes)

    def _forward(self, instruction: Instruction, state: State) -> None:
        self._exchanges.wait(instruction)
        start = self._recorder.stamp()
        segment, microbatch = segment_of(instruction), microbatch_of(instruction)
        stage, samples = self._stages[segment], state.sizes[microbatch]
        batch = state.batches.get(microbatch)
        passage = Passage(read=self._leaves(instruction, state))
        if segment in self._uses.split and passage.is_awaited and isinstance(stage, Splittable) and stage.splits:
            passage.deferred = Deferred()
        stashing = self._stash.keeping() if self._overlaps else nullcontext()
        with autocast(self._job.precision, self._device), stashing:
            with nullcontext() if passage.deferred is None else passage.deferred.recording():
                passage.made, output = stage.forward(
                    batch, passage.read, samples, completing=microbatch == state.completing.get(segment)
                )
            if stage.is_last:
                counted = state.counted(microbatch)
                passage.root, term = loss_term(self._job, output, batch, samples=counted, of=state.samples)
                state.terms.append(term)
        if self._scaler is not None and passage.root is not None:
            if state.terms[-1].weighted and not isinstance(self._job.loss_weight, Weight):
                raise InputError(
                    "a loss that is (sum, weight) cannot be scaled for fp16, as its divisor is known only after the "
                    'backward: return a mean, or use precision="bf16"'
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
        passage, stage = state.passages.pop((segment, microbatch)), self._stages[segment]
        roots = backward_roots(passage, microbatch, state)
        stage.backward(*roots, completing=microbatch == state.completing[segment])
        return_gradients(passage, microbatch, state)
        self._recorder.add(instruction.token, COMPUTE, start, self._recorder.stamp())

    def _backward_input(self, instruction: Instruction, state: State) -> None:
        """The gradients of the inputs, where another segment waits for them."""
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
        """The gradients of the weights."""
        self._exchanges.wait(instruction)
        start = self._recorder.stamp()
        segment, microbatch = segment_of(instruction), microbatch_of(instruction)
        passage = state.passages.pop((segment, microbatch))
        stage, completing = self._stages[segment], microbatch == state.completing[segment]
        if passage.deferred is not None and isinstance(stage, Splittable):
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
            if isinstance(self._job.metric, WholeMetric):
                if state.counted(microbatch):
                    state.outputs[microbatch] = (output, target)
                return
            with alone():
                state.metrics.append((as_number(self._job.metric(output, target)), state.counted(microbatch)))

    def _send_forward(self, instruction: Instruction, state: State) -> None:
        self._exchanges.send_forward(instruction, state)
        self._let_go(instruction, state)

    def _leaves(self, instruction: Instruction, state: State) -> dict[str, torch.Tensor]:
        """The tensors of other segments that a segment reads, as leaves of autograd."""
        values = state.values.get(microbatch_of(instruction), {})
        grad = torch.is_grad_enabled()
        return {
            spec.name: values[spec.name].detach().requires_grad_(spec.requires_grad and grad)
            for spec in self._reads.get(segment_of(instruction), ())
        }

    def _keep(self, instruction: Instruction, state: State, made: Mapping[str, torch.Tensor]) -> None:
        """Keep the tensors that a forward has made for others, and drop those that are not needed after it."""
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
    Kind.SEND_BACKWARD: lambda rank, item, state: rank._exchanges.send_backward(item, state),
    Kind.RECEIVE_FORWARD: lambda rank, item, state: rank._exchanges.receive_forward(item, state),
    Kind.RECEIVE_BACKWARD: lambda rank, item, state: rank._exchanges.receive_backward(item, state),
    **dict.fromkeys(COLLECTIVES, lambda rank, item, state: rank._reductions.run(item, state)),
    Kind.CLIP: lambda rank, item, state: rank._reductions.clip(item, state),
    Kind.UPDATE: lambda rank, item, state: rank._reductions.update(item, state),
}

_OTHER_END = {
    Kind.SEND_FORWARD: Kind.RECEIVE_FORWARD,
    Kind.SEND_BACKWARD: Kind.RECEIVE_BACKWARD,
    Kind.RECEIVE_FORWARD: Kind.SEND_FORWARD,
    Kind.RECEIVE_BACKWARD: Kind.SEND_BACKWARD,
}

_End = tuple[Kind, int | None, int | None, int | None]


def released_sends(program: Program, rank: int) -> Mapping[str, tuple[str, ...]]:
    """The sends of a rank whose messages each of its receives shows to have arrived.

    Args:
        program: of a step
        rank: whose

    Returns:
        For the token of each receive, the tokens of sends; each send is there once, at the first receive that shows it.
    """
    own = {instruction.token: instruction for instruction in program.ranks[rank]}
    peers = {instruction.peer for instruction in own.values() if instruction.peer is not None}
    positions = {peer: _positions(program.ranks[peer]) for peer in peers}
    released: dict[str, tuple[str, ...]] = {}
    sent: dict[int, list[Instruction]] = {peer: [] for peer in peers}
    for instruction in own.values():
        # A receive is waited for where it is needed, which may be long after it was posted.
        for receive in (own[token] for token in instruction.after if token in own):
            if receive.kind not in RECEIVES or receive.peer is None or receive.token in released:
                continue
            theirs, waiting = positions[receive.peer], sent[receive.peer]
            reached = theirs[_other_end(receive)]
            shown = [send for send in waiting if theirs[_other_end(send)] < reached]
            sent[receive.peer] = [send for send in waiting if send not in shown]
            released[receive.token] = tuple(send.token for send in shown)
        if instruction.kind in SENDS and instruction.peer is not None:
            sent[instruction.peer].append(instruction)
    return {token: sends for token, sends in released.items() if sends}


def _positions(instructions: tuple[Instruction, ...]) -> dict[_End, int]:
    return {
        (instruction.kind, instruction.segment, instruction.peer_segment, instruction.microbatch): position
        for position, instruction in enumerate(instructions)
    }


def _other_end(instruction: Instruction) -> _End:
    return _OTHER_END[instruction.kind], instruction.peer_segment, instruction.segment, instruction.microbatch
