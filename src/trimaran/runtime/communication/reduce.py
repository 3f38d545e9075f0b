"""The collectives of a step, and the update that they lead to.

By label:

- "b<k>" adds up a bucket of gradients over the replicas. A mark of the last backward starts it, so that its instruction
  does nothing here. A scatter and a gather of "b<k>" are parts of a hierarchical all-reduce (`hierarchical`). A reduce
  of "b<k>" adds the bucket up at its owner only, and a broadcast of "b<k>" sends its weights from there to the others.
- "loss" and "metric" add up sums and weights over all ranks, and how many of them have a request, as to stop.
- "tie<k>" adds up the gradients of a weight that several stages hold.
- "norm" adds up squares over the stages, or over owners.
- "buffers" copies those of replica 0.
- "f<k>", "g<k>", "u<k>", "v<k>", "s<k>", "x<k>" and "y<k>": a library communicates them inside an instruction of
  compute, so that their instructions do nothing here.

Where replicas may use different parameters (`Used`), the all-reduce of the losses waits for the end of the backward,
and also adds up how many replicas have used each parameter. Gradients of parameters that no replica has used are
dropped first.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from trimaran.base.errors import InputError
from trimaran.base.timeline import COMPUTE
from trimaran.launch.activity import ACTIVITY
from trimaran.launch.world import World
from trimaran.program.types import Instruction, Kind
from trimaran.runtime.communication.channels import Channels, InFlight, Pending, pack, unpack
from trimaran.runtime.communication.compression import CompressedBuckets
from trimaran.runtime.communication.hierarchical import HierarchicalSums
from trimaran.runtime.parts.part import RankPart, Used
from trimaran.runtime.precision import LossScaler
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.step.gradient_noise import GradientNoise
from trimaran.runtime.step.losses import LossSums, own_loss, own_metric
from trimaran.runtime.step.on_nan import OnNan
from trimaran.runtime.step.state import State
from trimaran.runtime.step.updates import Updater
from trimaran.runtime.streams import Stamp
from trimaran.user_code.model import call_waiting, count_gradient_hooks


class Reductions:
    """The collectives of one rank, and its update.

    Args:
        world: this process's
        channels: communicate
        in_flight: communication under way
        recorder: writes down what happened
        part: of this rank
        updater: optimizer of this rank
        scaler: unscales gradients, and says which steps are left out; None: there is no scale
        compressed: adds up buckets of gradients with compression; None: there is none
        hierarchical: adds up buckets of gradients within nodes and then across them; None: all replicas at once
        typical: weight of a sample by which weighted losses are scaled already (`Job.loss_weight`); None: they are not
        on_nan: what to do where the loss of a step is not a finite number

    Attributes:
        losses: sums of losses and metrics
        gradient_noise: notes the norms of gradients; None: they are not noted
        settled: called when the gradients are those of the global batch, before they are clipped; None: nothing is
    """

    def __init__(
        self,
        world: World,
        *,
        channels: Channels,
        in_flight: InFlight,
        recorder: RunRecorder,
        part: RankPart,
        updater: Updater,
        scaler: LossScaler | None = None,
        typical: float | None = None,
        on_nan: OnNan = "stop",
        compressed: CompressedBuckets | None = None,
        hierarchical: HierarchicalSums | None = None,
    ) -> None:
        self._world = world
        self._channels = channels
        self._in_flight = in_flight
        self._recorder = recorder
        self._updater = updater
        self._tied, self._owned = part.tied, part.buckets
        self._used, self._never = part.used, part.never
        trained = dict.fromkeys((*part.parameters, *part.counted))
        self._hooked = [one for one in trained if count_gradient_hooks(one)]
        self._buffers = {number: tuple(stage.module.buffers()) for number, stage in part.stages.items()}
        self._scaler = scaler
        self._typical = typical
        self._compressed = compressed
        self._hierarchical = hierarchical
        self._weighted: bool | None = None
        self.losses = LossSums(world, channels.agreement.first_rank, on_nan)
        self.gradient_noise: GradientNoise | None = None
        self.settled: Callable[[], None] | None = None

    def run(self, instruction: Instruction, state: State) -> None:
        """Run a collective, by its kind and label."""
        if instruction.kind is Kind.BROADCAST:
            self.broadcast(instruction)
            return
        if self._hierarchical is not None and instruction.kind is Kind.ALL_GATHER:
            self._hierarchical.gather(instruction)
            return
        name = instruction.label.rstrip("0123456789")
        if name in _ELSEWHERE and name != instruction.label:
            return
        method = _METHODS.get(name)
        if method is None or instruction.kind is not Kind.ALL_REDUCE:
            raise InputError(f'{instruction.id}: the runtime knows no {instruction.kind} "{instruction.label}"')
        method(self, instruction, state)

    def wait_for_all(self) -> None:
        """Wait for all communication that is under way."""
        self._in_flight.wait_for_all()

    def forget(self) -> None:
        """Drop all communication that is under way, after a failure."""
        self._in_flight.forget()
        if self._hierarchical is not None:
            self._hierarchical.forget()

    def start_bucket(self, instruction: Instruction, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        """Add up a bucket of gradients.

        Args:
            instruction: of the bucket
            flat: its gradients; the sum replaces them, at least at its owner
            parameters: whose gradients they are, in order
        """
        if self._compressed is not None:
            self._compressed.start(instruction, flat, parameters)
            return
        if self._hierarchical is not None:
            self._hierarchical.start(instruction, flat)
            return
        start = self._recorder.stamp()
        if instruction.kind is Kind.REDUCE:
            work = self._channels.reduce(flat, instruction.group, instruction.root_rank)
        else:
            work = self._channels.all_reduce(flat, instruction.group)
        self._in_flight.add(instruction, [work], [flat], start=start)

    def broadcast(self, instruction: Instruction) -> None:
        """Copy the buffers of replica 0 to the others, or the weights of a bucket from its owner."""
        self._wait(instruction)
        if instruction.label in self._owned:
            tensors = [weight.detach() for weight in self._owned[instruction.label]]
        else:
            tensors = list(self._buffers.get(instruction.segment or 0, ()))
        start = self._recorder.stamp()
        packed = pack(tensors)
        flats = [flat for flat, _ in packed]
        works = [self._channels.broadcast(flat, instruction.group, instruction.root_rank) for flat in flats]
        pending = self._in_flight.add(instruction, works, flats, start=start, blocking=True)
        if instruction.root_rank != self._world.rank:
            pending.finish = partial(unpack, packed)

    def share_buffers(self, instructions: Sequence[Instruction]) -> None:
        """Copy the buffers of replica 0 to the others, where a program does that.

        Args:
            instructions: of this rank, in a training step
        """
        for instruction in instructions:
            if instruction.kind is Kind.BROADCAST and instruction.label not in self._owned:
                self.broadcast(instruction)
                self._in_flight.wait(instruction.token)

    def clip(self, instruction: Instruction, state: State) -> None:
        """Clip the gradients by their global norm."""
        self._wait(instruction)
        self._settle_gradients(state)
        start = self._recorder.stamp()
        self._updater.clip(self._updater.norm(self._world.device) if state.norm is None else state.norm.sqrt())
        self._recorder.add(instruction.token, COMPUTE, start, self._recorder.stamp())

    def update(self, instruction: Instruction, state: State) -> None:
        """Update the parameters, unless the loss is not a finite number, or scaled gradients are not."""
        self._wait(instruction)
        self._settle_gradients(state)
        # The check comes before the weights are lost. A GPU is waited for there, and it for the others.
        start = self._recorder.stamp()
        if self._world.device == "cpu":
            finite = self.losses.check(state)
        else:
            with ACTIVITY.waiting(f"{Kind.ALL_REDUCE}#loss"):
                finite = self.losses.check(state)
            start = self._recorder.stamp()
        if finite and (self._scaler is None or self._scaler.agree()):
            self._updater.update()
        else:
            self._updater.drop_gradients()
        self._recorder.add(instruction.token, COMPUTE, start, self._recorder.stamp())

    def _mean_loss(self, instruction: Instruction, state: State) -> None:
        if self._used is None:
            self._add_up(instruction, state, own_loss)
        else:
            state.late_loss = instruction

    def _mean_loss_and_use(self, used: Used, instruction: Instruction, state: State) -> None:
        start, device = self._recorder.stamp(), self._world.device
        own = torch.cat([own_loss(state, device), used.take(device)])

        def store() -> None:
            state.mean, state.used = own[:3], own[3:]

        self._sum(instruction, own, start).finish = store

    def _mean_metric(self, instruction: Instruction, state: State) -> None:
        self._add_up(instruction, state, own_metric)

    def _add_up(self, instruction: Instruction, state: State, sums: Callable[[State, str], torch.Tensor]) -> None:
        start = self._recorder.stamp()
        own = sums(state, self._world.device)

        def store() -> None:
            state.mean = own

        self._sum(instruction, own, start).finish = store

    def _norm(self, instruction: Instruction, state: State) -> None:
        self._wait(instruction)
        self._settle_gradients(state)
        before = self._recorder.stamp()
        squared = self._updater.square_norm(self._world.device).reshape(1)
        # The first half of clipping.
        self._recorder.add(Kind.CLIP, COMPUTE, before, self._recorder.stamp())

        def store() -> None:
            state.norm = squared[0]

        self._sum(instruction, squared).finish = store

    def _tie(self, instruction: Instruction, state: State) -> None:
        self._wait(instruction)
        parameter = self._tied[instruction.label]
        found = parameter.grad
        if found is None and isinstance(parameter, torch.Tensor):
            found = torch.zeros_like(parameter)
        if found is None:
            raise InputError(f"{instruction.id}: there is no gradient to add up", label=instruction.label)
        gradient = found.contiguous()
        parameter.grad = gradient
        self._sum(instruction, gradient)

    def _sum(self, instruction: Instruction, tensor: torch.Tensor, start: Stamp | None = None) -> Pending:
        """Start to add a tensor up over the group of an instruction, in place; `start` is when its packing began."""
        start = self._recorder.stamp() if start is None else start
        work = self._channels.all_reduce(tensor, instruction.group)
        return self._in_flight.add(instruction, [work], [tensor], start=start, blocking=True)

    def _settle_gradients(self, state: State) -> None:
        """Make the gradients those of the global batch."""
        if state.gradients_ready:
            return
        state.gradients_ready = True
        if self._used is not None and state.late_loss is not None:
            self._mean_loss_and_use(self._used, state.late_loss, state)
        # Also buckets that the program does not have: DDP makes its own in the first step.
        if self._hierarchical is not None:
            self._hierarchical.settle()
        self._in_flight.wait_for_all(_carries_gradients)
        if self._used is not None and state.late_loss is not None:
            self._in_flight.wait(state.late_loss.token)
            self._drop_unused(self._used, state)
        for parameter in self._never:
            parameter.grad = None
        divisor = weights = None
        if self._agree_on_weighted(state):
            self._in_flight.wait(f"{Kind.ALL_REDUCE}#loss")
            before = self._recorder.stamp()
            weights = self.losses.mean(state)[1]
            divisor = weights if self._typical is None else weights / (state.samples * self._typical)
            # To ask a GPU would be to wait for it.
            if self._world.device != "cpu" or float(divisor) != 1.0:
                self._updater.divide(divisor)
            self._recorder.add(Kind.UPDATE, COMPUTE, before, self._recorder.stamp())
        if self._scaler is not None:
            self._scaler.unscale(self._updater.gradients())
        if self.gradient_noise is not None:
            self.gradient_noise.settle(state, divisor, weights)
        with torch.no_grad():
            call_waiting(self._hooked)
        if self.settled is not None:
            self.settled()

    def _drop_unused(self, used: Used, state: State) -> None:
        """Leave parameters that no replica has used without a gradient, as a plain loop does."""
        if state.used is None:
            return
        for parameter in used.unused(state.used):
            if self._compressed is not None and parameter.grad is not None:
                self._compressed.give_back(parameter, parameter.grad)
            parameter.grad = None

    def _agree_on_weighted(self, state: State) -> bool:
        """Whether the loss is (sum, weight): only the last stage has seen it, so it is asked, once in a run."""
        if self._weighted is None:
            own = any(term.weighted for term in state.terms)
            self._weighted = self._channels.agreement.first_rank(own) is not None
        return self._weighted

    def _wait(self, instruction: Instruction) -> None:
        if self._compressed is not None:
            self._compressed.go_on()
        for token in instruction.after:
            self._in_flight.wait(token)


def _carries_gradients(token: str) -> bool:
    summed = f"{Kind.ALL_REDUCE}#" in token and not token.endswith("#loss")
    hierarchical = f"{Kind.REDUCE_SCATTER}#b" in token or f"{Kind.ALL_GATHER}#b" in token
    return summed or hierarchical or f"{Kind.REDUCE}#" in token


_METHODS: dict[str, Callable[[Reductions, Instruction, State], None]] = {
    "loss": Reductions._mean_loss,
    "metric": Reductions._mean_metric,
    "norm": Reductions._norm,
    "tie": Reductions._tie,
    "q": Reductions._tie,
}

# Started by a mark, or done by a library.
_ELSEWHERE = frozenset("bfguvsxy")
