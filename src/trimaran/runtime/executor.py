"""Train and evaluate a job by a program, on one rank of a world.

    executor = Executor(job, strategy, program, evaluation, world, capture=capture)
    feed = executor.feed()
    for share in feed.shares():           # one epoch
        loss = executor.step(share)       # of the global batch, the same on every rank
    accuracy = executor.evaluate(job.evaluation_dataset())
    executor.save("model.safetensors")

Every method but `fetch` is called on every rank, in the same order: they communicate.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.job import Job
from trimaran.base.timeline import HOST, Timeline
from trimaran.base.user_errors import asking, named
from trimaran.checkpoint_files.pieces import Entry
from trimaran.convergence.noise_scale import StepNorms
from trimaran.graph.behaviour import Behaviour, WholeMetric, for_evaluation, kept_outside, typical_weight
from trimaran.graph.capture.capture import Capture, unused_parameters
from trimaran.graph.metrics import Outputs
from trimaran.graph.optimizers import optimizer_traits
from trimaran.graph.types import ParameterUse, parameter_use
from trimaran.launch.activity import ACTIVITY, STEP
from trimaran.launch.world import World
from trimaran.program.layout import is_chained, strategy_layout
from trimaran.program.lowering.partition import routes_of, segment_ops
from trimaran.program.strategy import Feeding, Strategy
from trimaran.program.types import Kind, Program
from trimaran.runtime.checkpoint.foreign import TrainingState
from trimaran.runtime.checkpoint.put_back import Fill
from trimaran.runtime.checkpoint.recovered import Changed, Recovered
from trimaran.runtime.checkpoint.take import describe_modules
from trimaran.runtime.checkpoint.weights import (
    fit_weights,
    model_weights,
    open_weights,
    put_weights,
    write_weights,
)
from trimaran.runtime.communication.channels import Channels, InFlight, in_contact
from trimaran.runtime.communication.compression import CompressedBuckets, GradientCodec, open_codec
from trimaran.runtime.communication.hierarchical import HierarchicalSums
from trimaran.runtime.communication.point_to_point import Exchanges
from trimaran.runtime.communication.reduce import Reductions
from trimaran.runtime.data.batch_shares import BatchShares, Share, microbatch_sizes, partition_batch
from trimaran.runtime.data.datasets import dataset_length
from trimaran.runtime.data.pipeline import Feed, agree_on_data, open_feed
from trimaran.runtime.data.streaming import StreamReader
from trimaran.runtime.interpreter import Interpreter, cycle_of, released_sends
from trimaran.runtime.parts.part import Making, evaluating
from trimaran.runtime.parts.setup import (
    bucket_instructions,
    check_alike,
    check_capture,
    check_update,
    check_use,
    check_world,
    is_partitioned,
    make_part,
    make_updater,
    share_weights,
)
from trimaran.runtime.precision import LossScaler, check_synchronized, place_batch, place_model
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.step.gradient_noise import GradientNoise, check_observable
from trimaran.runtime.step.losses import Asking, as_number
from trimaran.runtime.step.on_nan import OnNan, check_on_nan
from trimaran.runtime.step.state import State
from trimaran.runtime.streams import open_streams
from trimaran.runtime.whole_state import EVERYTHING, StateGatherer, WholeState
from trimaran.runtime.whole_state import Kind as StateKind
from trimaran.user_code.batches import is_sliceable, move_batch
from trimaran.user_code.datasets import is_stream, stream_length
from trimaran.user_code.model import begin_training, hooks_wait, make_model
from trimaran.user_code.randomness import RandomState, derive_seed, seed_generators


class Executor:
    """One rank's part in a job.

    Args:
        job: what is trained
        strategy: what the programs were lowered from
        program: of a training step
        evaluation: of the evaluation of one batch
        world: this process's
        capture: graph and model; needed where the model is partitioned, or buckets have owners
        model: the model, where there is no capture; None: made under the job's seed
        record: write down what happens; `recording` switches it later
        gradient_noise: interval of steps in which the norms of gradients are noted, for `observations`; 0: never
        use: which parameters get a gradient; None: as the graph says, and without one it may depend on the data
        on_nan: what to do where the loss of a step is not a finite number

    Attributes:
        program: of a training step
        agreement: between all ranks
        model: the user's, with what this rank has of its weights
        updater: optimizer and schedule of what this rank updates
        scaler: scales losses in fp16, with the state that a checkpoint needs; None in any other precision
        reads: this rank reads data
        replica: number of the one that this rank is part of
        steps: training steps done
        training: the whole state of the training, to be taken and put back
        seen: of the job, before the first step; None: nobody has looked
        asked: a rank had a request (`launch.stop_requests`) in the last step, or in its last batch of an
            evaluation; the same on every rank after a step

    Raises:
        InputError: the strategy or the program does not fit the world, or the model cannot be partitioned; or gradient
            noise cannot be seen under the strategy; or the optimizer cannot update under it as in a plain loop; or a
            step cannot be left out under it
    """

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        program: Program,
        evaluation: Program,
        world: World,
        *,
        capture: Capture | None = None,
        model: nn.Module | None = None,
        record: bool = True,
        gradient_noise: int = 0,
        use: ParameterUse | None = None,
        on_nan: OnNan = "stop",
    ) -> None:
        check_on_nan(on_nan, strategy, observes="gradient_noise" if gradient_noise else "")
        if gradient_noise:
            check_observable(strategy, None if capture is None else capture.graph)
        check_world(strategy, (program, evaluation), world)
        check_capture(job, strategy, capture)
        if use is None:
            use = parameter_use(None if capture is None else capture.graph)
        if use == "always" and not is_partitioned(strategy) and (job.on_step or job.on_epoch):
            # By what a callback sets a forward may leave out a layer, or run it without gradients.
            use = "fixed"
        check_use(job, strategy, use)
        # While the model is where it was captured.
        never = (
            unused_parameters(job, capture) if capture and use == "fixed" and is_partitioned(strategy) else frozenset()
        )
        if model is None:
            model = make_model(job) if capture is None else capture.model
        begin_training(model)
        self._job, self._strategy, self._world = job, strategy, world
        behaviour = None if capture is None else capture.graph.behaviour
        self._sliceable = behaviour is None or behaviour.sliceable
        # A batch of the whole share is not what its microbatches are.
        self._by_part = behaviour is not None and (
            behaviour.collate_draws or not behaviour.sliceable or bool(behaviour.others) or behaviour.leaves_out
        )
        self._layout = strategy_layout(strategy)
        self.replica, row, _ = self._layout.place_of(world.rank)
        self.model = place_model(model, precision=job.precision, device=world.device)
        if strategy.devices * strategy.microbatches > 1:
            hooks_wait(self.model.parameters())
        self._asks = named("a step", self.model, job.loss, job.optimizer)
        if world.size > 1:
            check_synchronized(self.model, world.device)
        # Before the model is partitioned, and on every rank alike.
        self._traits = optimizer_traits(job, self.model)
        check_update(job, strategy, self._traits, gradient_noise=bool(gradient_noise))
        self.program = program
        self._instructions = program.ranks[world.rank]
        # Where steps overlap: what this rank does, step by step, and the global batches under way, the newest first.
        self._cycle = cycle_of(program, world.rank) if program.behind else ()
        self._begun = 0
        self._under_way: list[State | None] = []
        # Evaluation data that ranks have compared.
        self._compared: Any = None
        self._settled = 0
        self._evaluation = evaluation.ranks[world.rank]
        self._buckets = bucket_instructions(self._instructions)
        self._channels = Channels([program, evaluation], world)
        self.agreement = self._channels.agreement
        check_alike(self.model, self.agreement)
        share_weights(self.model, world, self._channels)
        # Before parameters are replaced by shares.
        self._state = StateGatherer(self.model)
        modules = describe_modules(self.model)
        making = Making(
            job=job,
            strategy=strategy,
            capture=capture,
            model=self.model,
            traits=self._traits,
            use=use,
            never=never,
            world=world,
            channels=self._channels,
            instructions=self._instructions,
            reduce_bucket=self._reduce_bucket,
        )
        self._part = make_part(making)
        self.reads = self._part.reads
        self.scaler = LossScaler(world.device, self.agreement.first_rank) if job.precision == "fp16" else None
        self.updater = self._part.updater or make_updater(job, strategy, self._part, self.model, self._traits)
        self._codec: GradientCodec | None = None
        if strategy.compression is not None and strategy.dp > 1:
            self._codec = open_codec(strategy.compression, replicas=strategy.dp, seed=job.seed)
        streams = open_streams(world.device)
        self._recorder = RunRecorder(world.rank, streams, self._channels.control, enabled=record)
        if self._part.record is not None:
            self._part.record(self._recorder)
        in_flight = InFlight(world.rank, streams, self._recorder)
        self._reductions = self._make_reductions(in_flight, on_nan)
        self._noise = self._make_noise(gradient_noise) if gradient_noise else None
        self._reductions.gradient_noise = self._noise
        self._interpreter = self._make_interpreter(capture, in_flight)
        numbered = tuple(item for listed in self._cycle for item, _, _ in listed)
        self._recorder.names = {
            item.token: one.token
            for listed in self._cycle
            for (item, _, _), one in zip(listed, self._instructions, strict=True)
        }
        self._uses = [self._interpreter.check(of) for of in (numbered or self._instructions, self._evaluation)]
        self.steps = 0
        self.asked = False
        self.seen: Behaviour | None = None
        # Ranks that share tensors add up losses apart from each other.
        self._asking = Asking(self._channels.control) if strategy.tp > 1 else None
        self._opened = ExitStack()
        self.training = TrainingState(
            making,
            self._part,
            updater=self.updater,
            scaler=self.scaler,
            codec=self._codec,
            gatherer=self._state,
            place=(self.replica, row),
            modules=modules,
        )
        seed_generators(derive_seed(job.seed, "rank", self.replica, row))

    @property
    def recording(self) -> bool:
        """Whether what happens is written down; may be set between steps, on all ranks alike."""
        return self._recorder.enabled

    @recording.setter
    def recording(self, enabled: bool) -> None:
        self._recorder.enabled = enabled

    @property
    def skipped(self) -> tuple[int, ...]:
        """Numbers of the steps whose update was left out, because their loss was not a finite number."""
        return tuple(self._reductions.losses.skipped)

    @property
    def skipping(self) -> dict[str, Any]:
        """The steps that were skipped, as plain figures that a checkpoint has; may be set between steps."""
        return self._reductions.losses.state_dict()

    @skipping.setter
    def skipping(self, state: Mapping[str, Any]) -> None:
        self._reductions.losses.load_state_dict(state)

    @property
    def follows_metric(self) -> bool:
        """Whether the job's schedule is stepped by a metric at the end of an epoch; the same on every rank."""
        return self._traits.needs_metric

    @property
    def schedule_draws(self) -> bool:
        """Whether the job's schedule draws random numbers, or reads a clock."""
        return self._traits.schedule_draws

    def refit(self, why: str) -> None:
        """Train the parameters of the model that require gradients now, and no others.

        Args:
            why: for the message: what has changed

        Raises:
            InputError: the strategy has given gradients or updates their places for the whole run
        """
        self.check_refit(why)
        if self._part.refit is not None:
            self._part.refit()

    def check_refit(self, why: str) -> None:
        """Refuse to train other parameters than at the start, where the strategy cannot.

        Args:
            why: for the message: what has changed

        Raises:
            InputError: the strategy has given gradients or updates their places for the whole run
        """
        if self._part.refit is None or self._noise is not None:
            where = "while gradient noise is observed" if self._noise is not None else f"under {self._strategy.name}"
            raise InputError(
                f"{why}, which cannot be followed {where}: gradients and updates were given their places at the "
                "start. Train on one device or by plain replicas (--allow dp), or keep it as it is in Job.model",
                strategy=self._strategy.name,
            )

    def know(self, behaviour: Behaviour | None) -> None:
        """Say what was seen of the job: what checkpoints lack.

        Args:
            behaviour: of the job; None: nobody has looked
        """
        self.seen, self.training.outside = behaviour, kept_outside(behaviour)

    def feed(self, feeding: Feeding | None = None) -> Feed:
        """This rank's part of the training data; it ends with the executor.

        Args:
            feeding: how batches are loaded; None: as the strategy says

        Raises:
            InputError: the data or the sampler will not do, or not be the same on every rank
        """
        feed, shared = open_feed(
            self._job,
            self._strategy,
            self._strategy.feeding if feeding is None else feeding,
            self._world,
            replica=self.replica,
            reads=self.reads,
            agreement=self.agreement,
        )
        self._opened.callback(shared.close)
        self._opened.callback(feed.close)
        return feed

    def fetch(self, share: Share) -> Any:
        """Load a share as one batch, for a loop that wants to see it; an empty tuple where this rank reads nothing.

        Where `Job.collate` draws, or its batches cannot be split, microbatches are made one by one, as of a `Share`.

        Args:
            share: from `feed`

        Returns:
            The batch; the share, where its microbatches do not fit together.
        """
        start = self._recorder.stamp()
        batch = share.joined(counts=self._sliceable) if self._by_part else share.whole()
        self._recorder.add(f"{Kind.LOAD}0", HOST, start, self._recorder.stamp())
        return batch

    def microbatches(self, batch: Any, samples: int | None = None) -> list[Any]:
        """The microbatches of this rank's replica in host memory; empty where it has none that counts, or reads none.

        Args:
            batch: as of `step`, which can be called with it afterwards
            samples: of the global batch, where `batch` is no `Share`
        """
        state = self._step_state(batch, samples)
        if not self.reads or not state.counts:
            return []
        own = batch.peek() if isinstance(batch, Share) else map(state.source, range(sum(map(bool, state.sizes))))
        return [move_batch(one, "cpu") for one in own]

    def give_back(self) -> None:
        """Give the user's model back as it was made, but for its weights; afterwards no step can be taken."""
        for stage in self._part.stages.values():
            stage.close()
        if self._part.close is not None:
            self._part.close()
        hooks_wait(self.model.parameters(), wait=False)

    @property
    def has_loss(self) -> bool:
        """Whether this rank computes the loss."""
        return any(stage.is_last for stage in self._part.stages.values())

    def step(self, batch: Any, *, samples: int | None = None, keep_gradients: bool = False) -> float:
        """Forward, backward and update on one global batch.

        Args:
            batch: a `Share` from `feed`, or this rank's share of the global batch as a batch; ignored on ranks that
                read nothing
            samples: of the global batch, where `batch` is no `Share`; None: `Job.global_batch_size`
            keep_gradients: keep copies of the gradients of the global batch, before they are clipped, for `full_state`;
                until the next step

        Returns:
            Mean loss of the global batch, the same on every rank. It is not a finite number where the update was left
            out (`skipped`). Where steps overlap, that of the one whose update is done on every rank, `settled`; no
            number before the first.

        Raises:
            InputError: the share has another size than this rank's, or the loss is no scalar
            ExecutionError: the loss is not a finite number, on every rank, and the run ends by that; or another rank is
                gone
        """
        if self._cycle:
            return self._overlapping_step(batch)
        state = self._step_state(batch, samples)
        if self._noise is not None:
            self._noise.begin(self.steps)
        self._state.forget_gradients()
        self._reductions.settled = (
            partial(self._state.keep_gradients, self._part.parameters) if keep_gradients else None
        )
        # What another replica's sample draws here is not drawn in one process.
        drawn = None if state.counts else RandomState.of(self._world.device)
        try:
            with self._within_step():
                if self._asking is not None:
                    self._asking.begin()
                self._interpreter.run(self._instructions, self._uses[0], state)
                loss = self._reductions.losses.loss(state)
                self.asked = self._reductions.losses.asked
                if self._asking is not None:
                    with in_contact(self._world.rank, "requests"):
                        self.asked = self._asking.end()
        finally:
            if drawn is not None:
                drawn.restore(self._world.device)
        self._recorder.end_step(self.steps)
        self.steps += 1
        return loss

    @property
    def settled(self) -> int:
        """Where steps overlap: samples of the global batch whose loss `step` or `drain` gave last; 0 at first."""
        return self._settled

    def drain(self) -> Iterator[float]:
        """End the global batches that are under way, where steps overlap; every rank calls it.

        Afterwards all weights have all updates, and none is kept in several versions: only then is the state that of a
        training, to be evaluated or written.

        Yields:
            Mean loss of each of them, in order, as `step` returns it.
        """
        while any(state is not None for state in self._under_way):
            loss = self._overlapping_step(None)
            if self._settled:
                yield loss
        if self._cycle:
            self._interpreter.end()
            self._under_way = []

    @contextmanager
    def _within_step(self) -> Iterator[None]:
        """What is done inside is the step of this rank; where it fails, nothing of it is kept, and that is said."""
        ACTIVITY.steps = self.steps
        try:
            with ACTIVITY.during(STEP), asking(self._asks):
                yield
        except BaseException as error:
            self._reductions.forget()
            self._recorder.discard()
            if isinstance(error, Exception) and not isinstance(error, TrimaranError):
                error.add_note(f"in step {self.steps}")
            raise

    def _overlapping_step(self, batch: Any) -> float:
        """A step of those that overlap: begin a global batch, and go on with those under way.

        Args:
            batch: a `Share` from `feed`; None: none is begun
        """
        behind = self.program.behind
        begun = None if batch is None else self._overlapping_state(batch, self._begun % (behind + 1))
        self._under_way = [begun, *self._under_way][: behind + 1]
        states = {age: state for age, state in enumerate(self._under_way) if state is not None}
        with self._within_step():
            self._interpreter.go_on(self._cycle[self._begun % (behind + 1)], self._uses[0], states)
            loss, self._settled = math.nan, 0
            oldest = states.get(behind)
            if oldest is not None:
                loss, self._settled = self._reductions.losses.loss(oldest), oldest.samples
                self.asked = float(self._reductions.losses.mean(oldest)[2]) > 0
                self._under_way[behind] = None
        self._recorder.end_step(self._begun)
        self._begun += 1
        if begun is not None:
            self.steps += 1
        return loss

    def _overlapping_state(self, share: Any, number: int) -> State:
        """The state of a global batch that is begun, under its number in the circle of those under way."""
        if not isinstance(share, Share):
            raise InputError(
                f"under {self._strategy.name} steps overlap, and each takes what session.shares() gives: run "
                "the plan by `trimaran train`, or take a synchronous schedule",
                code="executor.batch-of-stale-step",
            )
        sizes = tuple(share.samples if place == number else 0 for place in range(self.program.behind + 1))
        state = State(number=self.steps, samples=share.samples, sizes=sizes, source=lambda _: share.microbatch(0))
        state.completing.update((segment, number) for segment in self._part.stages)
        return state

    def evaluate(self, dataset: Any, *, breaks_off: bool = False) -> float:
        """The job's metric over a data set, with the weights of now; nothing of it is recorded.

        Args:
            dataset: map-style, or a stream; read on the ranks that read data
            breaks_off: after a batch at which a rank has a request, no further one is evaluated; `asked` says so then.
                Where ranks share tensors, the evaluation is not broken off

        Returns:
            The metric of all samples, or where outputs are not gathered its mean over parts; the same on every rank.

        Raises:
            InputError: the job has no metric
        """
        if self._job.metric is None:
            raise InputError(f"the job {self._job.name!r} has no metric to evaluate: give Job.metric")
        total, outputs = torch.zeros(2, dtype=torch.float64), Outputs()
        recording, self._recorder.enabled = self._recorder.enabled, False
        try:
            own = asking("an evaluation", self.model, self._job.metric)
            with ACTIVITY.during("evaluation"), own, evaluating(self.model):
                for number, state in enumerate(self._evaluation_states(dataset)):
                    if number == 0:
                        self._reductions.share_buffers(self._instructions)
                    self._interpreter.run(self._evaluation, self._uses[1], state)
                    total += self._reductions.losses.mean_metric(state)
                    for microbatch, made in state.outputs.items():
                        outputs.add((number, self.replica, microbatch), *made)
                    if breaks_off and self._asking is None and self._reductions.losses.asked:
                        self.asked = True
                        break
                if isinstance(self._job.metric, WholeMetric):
                    return self._metric_of(self._job.metric, outputs)
        except Exception as error:
            if not isinstance(error, TrimaranError):
                error.add_note("in an evaluation")
            raise
        finally:
            self._recorder.enabled = recording
        return float(total[0] / total[1])

    def compare_evaluation(self, dataset: Any) -> None:
        """See that evaluation data are the same on every rank that reads them; every rank calls it.

        Args:
            dataset: of this rank; a stream tells as it is read

        Raises:
            InputError: they are not
        """
        if dataset is not self._compared and not is_stream(dataset):
            agree_on_data(self.agreement, dataset, reads=self.reads, seed=self._job.seed, name="Job.evaluation_dataset")
            self._compared = dataset

    def _metric_of(self, metric: WholeMetric, outputs: Outputs) -> float:
        """The metric of all that ranks have kept."""
        what = "gathering the outputs of an evaluation"
        heard = self.agreement.gather_objects(outputs.parts, what)
        own: float | None = math.nan
        if any(heard):
            own = outputs.value(lambda *given: as_number(metric(*given)), heard, self._world.device)
        values = self.agreement.gather_objects(own, what)
        found: float = next(value for value in values if value is not None)
        return found

    def observe_one_in(self, steps: int) -> None:
        """Change the interval in which the norms of gradients are noted, where they are noted at all.

        Args:
            steps: interval [steps]; the same on every rank
        """
        if self._noise is not None:
            self._noise.every = steps

    def observations(self) -> tuple[StepNorms, ...]:
        """Squared norms of the gradients of the steps so far, the same on every rank.

        Raises:
            InputError: they were not asked for
        """
        if self._noise is None:
            raise InputError(
                "the norms of gradients were not noted: make the executor with gradient_noise=1",
                code="gradient-noise.not-recorded",
            )
        with in_contact(self._world.rank, "adding up the norms of gradients"):
            return self._noise.observations()

    def timeline(self) -> Timeline:
        """What happened in the last steps, all ranks together: on rank 0; on the others an empty timeline."""
        with ACTIVITY.during("gathering the timeline"), in_contact(self._world.rank, "gathering the timeline"):
            return self._recorder.timeline()

    def weights(self) -> dict[str, torch.Tensor]:
        """The plain `state_dict` of the user's model, in host memory: on rank 0; on the others nothing."""
        state = self.full_state(kinds=("parameter", "buffer"))
        return model_weights(self.model, state) if self._world.rank == 0 else {}

    def full_state(
        self, *, kinds: Sequence[StateKind] = EVERYTHING, compare: bool = False, to: int | None = 0
    ) -> WholeState:
        """Parameters, buffers, optimizer state, and gradients that were kept, whole, in host memory: on one rank.

        Args:
            kinds: what is wanted
            compare: look whether ranks that have copies of one parameter, or of its state, have the same
            to: rank that gets the tensors; None: none does, and each rank is told how they compare

        Returns:
            By the names of the user's model; on the other ranks an empty one.

        Raises:
            InputError: the optimizer keeps something of a share of a parameter that is not laid out like the share
            ExecutionError: another rank is gone, or ranks that share a parameter have other pieces of its state
        """
        with ACTIVITY.during("gathering the state"), in_contact(self._world.rank, "gathering the state"):
            return self._state.gather(
                self._part,
                self.updater,
                self._world,
                self.agreement,
                kinds=kinds,
                compare=compare,
                to=to,
            )

    def save(self, path: str | Path) -> None:
        """Write the plain `state_dict` of the user's model; rank 0 does.

        Args:
            path: of a safetensors file
        """
        weights = self.weights()
        with ACTIVITY.during("writing the weights"):
            if self._world.rank == 0:
                write_weights(weights, path)
            self.agreement.gather_integers([0], "writing the weights")

    def load(
        self, path: str | Path, *, trust_pickle: bool = False, optimizer: bool = False
    ) -> tuple[Recovered, tuple[str, ...]]:
        """Read weights, and perhaps the state of the optimizer; every rank reads.

        Args:
            path: run, checkpoint, or a file or folder of others (`open_weights`)
            trust_pickle: read formats that are pickles too
            optimizer: the state of the optimizer too

        Returns:
            What was taken; and for people, what of the optimizer's state begins anew.

        Raises:
            InputError: it is of another model or optimizer, or a pickle that is not trusted; nothing has been changed
            CorruptDataError: it is damaged
        """
        with (
            ACTIVITY.during("reading weights"),
            in_contact(self._world.rank, "reading weights"),
            open_weights(path, trust_pickle=trust_pickle, agreement=self.agreement) as content,
        ):
            weights = fit_weights(self.model, content, self._part.shapes, self.agreement)
            adopt: Callable[[], None] | None = None
            changed: tuple[Changed, ...] = ()
            notes: tuple[str, ...] = ()
            if optimizer:
                if content.optimizer is None:
                    raise InputError(
                        f"{content.source} has no state of an optimizer: take the weights alone",
                        code="weights.no-optimizer",
                        path=content.source,
                    )
                adopt, changed, notes = self.training.adopt_optimizer(content.optimizer, content.source)
            put_weights(self.model, weights, self._part.load)
            if adopt is not None:
                adopt()
            passed_over = content.about.get("passed_over", ())
            return Recovered(path=content.source, passed_over=passed_over, changed=changed), notes

    def put_back(
        self, plain: Mapping[str, Any], entries: Sequence[Entry], fill: Fill, source: str
    ) -> tuple[tuple[Changed, ...], tuple[str, ...]]:
        """Go on from a state that was taken under this or another plan; every rank calls it, between steps.

        Args:
            plain: what is no tensor
            entries: the tensors
            fill: fills tensors from their pieces
            source: of the state, for messages

        Returns:
            What has changed since; and for people, what else is not as in a training without a break.

        Raises:
            InputError: it is of another model or job, or this plan cannot have it; nothing has been changed
            CorruptDataError: it lacks something
        """
        with in_contact(self._world.rank, "going on from a checkpoint"):
            self.steps, changed, notes = self.training.put_back(
                plain, entries, fill, source, check_refit=self.check_refit
            )
        return changed, notes

    def close(self) -> None:
        """End the connections that were made for the program; afterwards there is nothing left to use."""
        if not vars(self):
            return
        self._opened.close()
        if self._noise is not None:
            self._noise.close()
        self.give_back()
        self._channels.close()
        # A reference to a process group keeps its threads alive, and this refers to everything.
        vars(self.training).clear()
        vars(self).clear()

    def _make_reductions(self, in_flight: InFlight, on_nan: OnNan) -> Reductions:
        """The collectives of this rank, and its update."""
        job, strategy = self._job, self._strategy
        channels, recorder = self._channels, self._recorder
        compressed = hierarchical = None
        if self._codec is not None:
            compressed = CompressedBuckets(
                self._codec, replicas=strategy.dp, channels=channels, in_flight=in_flight, recorder=recorder
            )
        across = [instruction.group for instruction in self._instructions if is_chained(instruction)]
        if strategy.sync == "hierarchical" and across:
            hierarchical = HierarchicalSums(
                across[0], channels=channels, chain=channels.chain(), in_flight=in_flight, recorder=recorder
            )
        return Reductions(
            self._world,
            channels=channels,
            in_flight=in_flight,
            recorder=recorder,
            part=self._part,
            updater=self.updater,
            scaler=self.scaler,
            compressed=compressed,
            hierarchical=hierarchical,
            typical=None if job.loss_weight is None else typical_weight(job),
            on_nan=on_nan,
        )

    def _make_noise(self, every: int) -> GradientNoise:
        """Notes the norms of this rank's gradients, in an interval of steps."""
        group = self._channels.control
        # Replicas that sum on every rank have the same sums; with owners, each has the sums of its buckets.
        counts = self.replica == 0 or self._strategy.sync == "p2p"
        return GradientNoise(
            [one for stage in self._part.stages.values() for one in stage.module.parameters()],
            self._part.counted if counts else (),
            add_up=None if group is None else partial(dist.all_reduce, group=group),
            every=every,
            second_moment=self.updater.second_moment,
        )

    def _make_interpreter(self, capture: Capture | None, in_flight: InFlight) -> Interpreter:
        """Runs the instructions of this rank."""
        strategy, stages = self._strategy, self._part.stages
        parts = () if capture is None else segment_ops(capture.graph, strategy)
        exchanged = {} if capture is None else capture.graph.exchanged(parts)
        routes = () if capture is None else routes_of(capture.graph, parts, strategy.rows)
        return Interpreter(
            self._job,
            self._world.device,
            stages=stages,
            reads={
                number: [spec for (_, reader), specs in exchanged.items() if reader == number for spec in specs]
                for number in stages
            },
            exchanges=Exchanges(
                self._world.device,
                channels=self._channels,
                in_flight=in_flight,
                recorder=self._recorder,
                routes={(route.producer, route.consumer): route.tensors for route in routes},
                released={} if self._cycle else released_sends(self.program, self._world.rank),
            ),
            reductions=self._reductions,
            scaler=self.scaler,
            recorder=self._recorder,
            overlaps=bool(self._cycle),
        )

    def _step_state(self, batch: Any, samples: int | None) -> State:
        """The state of a training step before it is run; arguments as of `step`."""
        job, strategy = self._job, self._strategy
        if isinstance(batch, Share):
            return _state_of(batch, self.steps)
        # A caller that gives the samples of the global batch knows that this is a share of it.
        known = samples is not None
        samples = samples or job.global_batch_size
        sizes = microbatch_sizes(samples, replicas=strategy.dp, microbatches=strategy.microbatches)[self.replica]
        # Of fewer samples than replicas each has one, and a caller may not expect that.
        known = known and (samples >= strategy.dp or is_sliceable(batch, 1))
        parts = partition_batch(batch, sizes, known=known, counts=self._sliceable) if self.reads else []

        def source(number: int) -> Any:
            return self._place(parts[number]) if parts else None

        return State(number=self.steps, samples=samples, sizes=sizes, source=source, counts=self.replica < samples)

    def _evaluation_states(self, dataset: Any) -> Iterator[State]:
        """The state of each batch of an evaluation before it is run; every rank goes through them at the same time.

        Raises:
            InputError: a stream is empty, fails, or is not the same on every rank
        """
        size, seed = self._job.global_batch_size, derive_seed(self._job.seed, "evaluation")
        if not is_stream(dataset):
            own = dataset if self.reads else None
            self.compare_evaluation(dataset)
            samples = dataset_length(dataset)
            yield from self._load(torch.arange(samples), range(-(-samples // size)), own, seed)
            return
        stream_length(dataset)
        own = dataset if self.reads else None
        stream = StreamReader(own, batch=size, seed=seed, agreement=self.agreement, name="Job.evaluation_dataset")
        stream.begin(0)
        while samples := stream.read():
            positions = torch.arange(stream.total - samples, stream.total)
            yield from self._load(positions, range(1), stream.samples if self.reads else None, seed)
        if not stream.total:
            raise InputError(
                "the evaluation data are a stream that gave no sample: its __iter__ must begin anew each time"
            )

    def _load(self, order: torch.Tensor, numbers: range, dataset: Any, seed: int) -> Iterator[State]:
        job, strategy = for_evaluation(self._job), self._strategy
        shares = BatchShares(
            order,
            batch=job.global_batch_size,
            replicas=strategy.dp,
            microbatches=strategy.microbatches,
            replica=self.replica,
        )
        for share in shares.load(numbers, dataset, job, seed=seed, place=self._place):
            yield _state_of(share, -1)

    def _place(self, batch: Any) -> Any:
        return place_batch(batch, precision=self._job.precision, device=self._world.device)

    def _reduce_bucket(self, segment: int, number: int, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        """A bucket is complete; number -1 is the last one of its segment, whichever it is."""
        buckets = self._buckets[segment]
        if number < len(buckets):
            self._reductions.start_bucket(buckets[number], flat, parameters)
        else:
            # DDP has more buckets in its first steps than the program; and parameters that no operation of the graph
            # uses are in further buckets.
            self._reductions.start_bucket(replace(buckets[-1], label=f"b{number}"), flat, parameters)


def _state_of(share: Share, number: int) -> State:
    """The state of a step, or of the evaluation of a batch, before it is run."""
    return State(number=number, samples=share.samples, sizes=share.sizes, source=share.microbatch, counts=share.counts)
