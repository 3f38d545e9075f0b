"""One rank in a run of `trimaran train`: its part of the program, epoch by epoch.

The run directory: everything about one run, in files that outlive it.

    runs/digits-20260314-091500/
      run.json           status (running, finished, stopped, failed), job, versions, when, process; why it failed
      plan.json          the plan that was run
      program.txt        its program, readable
      metrics.jsonl      one line an epoch: epoch, loss, metric, seconds, samples
      predicted.json     the simulated timeline of one step
      measured.json      the recorded timeline, clocks aligned
      trace.json         both, for ui.perfetto.dev or chrome://tracing
      report.json        predicted against measured
      model.safetensors  the plain state_dict of the user's model
      checkpoints/       the last ones, from which another run goes on (`trimaran.runtime.checkpoint`)
      logs/rank0.log     what each rank printed

Files are written whole or not at all: next to their place first, then renamed. `metrics.jsonl` grows line by line.
"""

import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.job import Job
from trimaran.base.timeline import Timeline
from trimaran.base.units import format_count, format_some, parse_seconds, whole_number
from trimaran.features.training.run_record import RunDirectory, Stopped, save_weights
from trimaran.features.training.trackers import check_tracker, name_of_metric
from trimaran.graph.behaviour import Behaviour, weighed
from trimaran.graph.types import ParameterUse
from trimaran.jobs.resolve import JobSource
from trimaran.program.json_files import finite
from trimaran.program.plan_file import Plan, plan_program
from trimaran.program.strategy import Strategy, needs_graph, splits_batches
from trimaran.program.text import parse_program
from trimaran.report.gradient_noise import RunNoise, run_noise

if TYPE_CHECKING:
    from trimaran.features.training.session import Session
    from trimaran.launch.world import World
    from trimaran.report.virtual_memory import MemoryReport
    from trimaran.runtime.communication.channels import Agreement
    from trimaran.runtime.step.on_nan import OnNan, Rollback
    from trimaran.trial.compare import Verified


# An observed step takes 2 to 15 % longer: each is in a short run, few are in a long one.
ALL_OBSERVED = 200
OBSERVED_ONE_IN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Figures of one epoch.

    Attributes:
        epoch: its number, from 1
        loss: mean over the samples of the steps that count; None: all of its steps were skipped
        accuracy: the job's metric after it; None without evaluation, or where it is no finite number
        seconds: of training, evaluation not counted [s]
        samples: trained on
    """

    epoch: int
    loss: float | None
    accuracy: float | None
    seconds: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of a run, as its first rank has it; of another rank only what that has of the trial.

    Attributes:
        epochs: figures of each
        metric: what the job's metric is called
        epochs_before: how many of them the checkpoint had from which it went on
        steps: training steps that were done in all
        timeline: what happened when, on all ranks
        memory: what the memory plan did; None where there is none
        gradient_noise: noise scale of the gradients; None where it was not asked for
        verified: how far the steps of the trial were from those of one process, or why there was none; None where the
            plan has one rank and whole batches
        skipped: numbers of the steps whose update was left out, because their loss was not a finite number
        rolled_back: the times that the training went back to a checkpoint for such a loss
        stopped: where a signal has ended the training; None: none has
        weights: the file of the weights; None: they could not be written
        checkpoint: the newest one that was committed; None: none was
        problems: by the name of a file, or a folder, of the run directory why it is not there
        notes: what the run has shown: of its data, of checkpoints, of skipped steps, of a rank that is slow
    """

    epochs: tuple[Epoch, ...] = ()
    metric: str = "metric"
    epochs_before: int = 0
    steps: int = 0
    timeline: Timeline = field(default_factory=lambda: Timeline([]))
    memory: "MemoryReport | None" = None
    gradient_noise: RunNoise | None = None
    verified: "Verified | None" = None
    skipped: tuple[int, ...] = ()
    rolled_back: "tuple[Rollback, ...]" = ()
    stopped: Stopped | None = None
    weights: Path | None = None
    checkpoint: Path | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """When a training saves its state; one of both.

    Attributes:
        steps: interval [steps]
        seconds: interval, up to the end of a step [s]
    """

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        """As `parse_saving` reads it."""
        return f"{self.seconds:.15g}s" if self.steps is None else str(self.steps)


def parse_saving(text: str) -> Saving:
    """When to save, as a user writes it.

    Args:
        text: a number of steps, or a duration with its unit

    Raises:
        InputError: neither

    Example:
        >>> parse_saving("500").steps, parse_saving("10min").seconds
        (500, 600.0)
    """
    plain = text.strip()
    steps = whole_number(plain, most=10**18)
    if steps is not None:
        if steps < 1:
            raise InputError("--save-every: a checkpoint after every 0 steps is none: give 1 or more")
        return Saving(steps=steps)
    seconds = parse_seconds(plain, needs_unit=True)
    if not 0 < seconds < math.inf:
        raise InputError(f"--save-every: expected a number of steps or a duration above 0, got {text!r}")
    return Saving(seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Weights that a training begins from.

    Attributes:
        path: run, checkpoint, or a file or folder of others
        optimizer: take the state of the optimizer too
        trust_pickle: read formats that are pickles
    """

    path: Path
    optimizer: bool = False
    trust_pickle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How a run trains, besides its plan.

    Attributes:
        gradient_noise: observe the noise scale of the gradients
        trial: take the first steps beforehand, in ranks that are thrown away, next to a plain loop, and compare
        on_nan: what to do where the loss of a step is not a finite number: "stop" with an error, "skip" its update, or
            "rollback" to the last checkpoint
        hang_timeout: how long a training step may go without progress [s]; None: derived from the steps so far
            (`launch.activity`); infinite: nobody watches, and collectives end after 32 min
        callback_timeout: how long the job's code may go without progress outside of steps [s]; None: half an hour;
            infinite: as long as it takes
        saving: when the state of the training is saved in the run directory; None: only where a signal ends it
        resume: run directory or checkpoint to go on from; None: begin anew
        max_restarts: times that the ranks are started again after a failure
        weights: that it begins from; None: those of the job's model
        log: tracker that metrics are written to ("tensorboard", "wandb" or "mlflow"); None: none
    """

    gradient_noise: bool = False
    trial: bool = True
    on_nan: "OnNan" = "stop"
    hang_timeout: float | None = None
    callback_timeout: float | None = None
    saving: Saving | None = None
    resume: Path | None = None
    max_restarts: int = 0
    weights: Beginning | None = None
    log: str | None = None

    def check(self) -> None:
        """Refuse options that contradict each other, whatever the plan.

        Raises:
            InputError: an unknown answer to a loss that is not finite; going back, or restarts, where nothing is saved
            EnvironmentProblem: the tracker is not installed
        """
        from trimaran.runtime.step.on_nan import check_on_nan

        check_tracker(self.log)
        check_on_nan(self.on_nan)
        if self.on_nan == "rollback" and self.saving is None:
            raise InputError(
                "--on-nan rollback goes back to the last checkpoint, and none is made: add --save-every, such as "
                "--save-every 10min",
                code="on-nan.nothing-saved",
            )
        if self.max_restarts and self.saving is None:
            raise InputError(
                "--max-restarts goes on from checkpoints, and none is made: add --save-every, such as --save-every "
                "10min",
                code="restart.nothing-saved",
            )

    def check_strategy(self, strategy: Strategy, job: Job | None = None) -> None:
        """Refuse options that could not be kept under a strategy.

        Args:
            strategy: that the job is trained by
            job: its callbacks are looked at; None: not known yet

        Raises:
            InputError: a step could not be left out, observed or saved under it
        """
        from trimaran.runtime.step.on_nan import check_on_nan
        from trimaran.runtime.step.stashing import check_stale

        check_on_nan(self.on_nan, strategy, observes="gradient_noise" if self.gradient_noise else "")
        option = "--gradient-noise" if self.gradient_noise else ""
        check_stale(strategy, job, observes=option, saves="" if self.saving is None else "--save-every")


PLAIN = TrainOptions()
"""Nothing is observed or saved."""


class Cadence:
    """Says after which steps a state is saved, the same on every rank.

    The clock is that of rank 0, which the others hear of only now and then: after half of the steps that the time left
    should take.

    Args:
        saving: when
        agreement: between all ranks
        steps: that were done when it begins
    """

    def __init__(self, saving: Saving, agreement: "Agreement", steps: int) -> None:
        self._saving, self._agreement = saving, agreement
        self._start, self._since, self._look = time.monotonic(), steps, steps + 1

    def due(self, steps: int) -> bool:
        """Whether a state is saved now; every rank calls it after each step.

        Args:
            steps: that were done
        """
        if self._saving.seconds is None:
            return steps % (self._saving.steps or 1) == 0
        if steps < self._look:
            return False
        elapsed_ms = int((time.monotonic() - self._start) * 1e3)
        ((elapsed_ms,), *_) = self._agreement.gather_integers([elapsed_ms], "the time since the last checkpoint")
        left_ms = self._saving.seconds * 1e3 - elapsed_ms
        if left_ms <= 0:
            self._start, self._since, self._look = time.monotonic(), steps, steps + 1
            return True
        step_ms = max(elapsed_ms, 1) / (steps - self._since)
        # An evaluation, of which it cannot know, may come before that: at most as many steps as it has seen.
        self._look = steps + max(1, min(int(left_ms / step_ms / 2), steps - self._since))
        return False

    def go_back(self, steps: int) -> None:
        """The training has gone back to a checkpoint: the next one is due as if that had just been made.

        Args:
            steps: that it has
        """
        self._start, self._since, self._look = time.monotonic(), steps, steps + 1


def skipped_note(skipped: Sequence[int]) -> list[str]:
    """A note on steps whose update was left out; empty where there are none.

    Args:
        skipped: their numbers, in order

    Example:
        >>> skipped_note([3, 9])
        ['the update of 2 steps was skipped, because their loss was not a finite number: 3, 9']
    """
    if not skipped:
        return []
    one = len(skipped) == 1
    return [
        f"the update of {format_count(len(skipped), 'step')} was skipped, because {'its' if one else 'their'} loss was "
        f"not a finite number: {format_some(skipped, 10)}"
    ]


def train_rank(
    world: "World",
    source: JobSource,
    plan: Plan,
    behaviour: Behaviour | None,
    evaluation: str,
    run: Path,
    options: TrainOptions,
    use: ParameterUse | None = None,
    again: bool = False,
    watches: bool = False,
    tried: "Verified | None" = None,
) -> RunResult:
    """One rank's part of a run; started by `train_planned`.

    Args:
        world: this rank's
        source: where the job comes from
        plan: what is run
        behaviour: what was seen of the job
        evaluation: text form of the program of an evaluation
        run: run directory
        options: how it trains
        use: which parameters get a gradient; None: as the executor finds
        again: ranks were started before: go on from the last checkpoint of the run, where there is one
        watches: compare some of its steps with one process, where the trial of the plan could
        tried: what came of that; None: ranks were started before

    Raises:
        EnvironmentProblem: there is no room for a checkpoint
        InputError: the state could not be saved exactly, or there is none to go on from
    """
    from trimaran.launch.activity import ACTIVITY

    if tried is not None and world.rank == 0:
        world.report({"verified": str(tried)})
    with ACTIVITY.during("making the job"):
        job = weighed(source.make(), behaviour, splits=splits_batches(plan.strategy))
    session = _open(world, job, plan, behaviour, evaluation, options, use)
    # Weights are written in the end, when it is too late to hear that they cannot be.
    session.executor.training.check_writable()
    if watches and session.executor.agreement.first_rank(tried is not None and tried.reason != "") is None:
        unwatched = session.watch(world).reason
        if unwatched and world.rank == 0:
            world.report({"verified": f"later steps are not verified: {unwatched}"})
    directory = RunDirectory(path=run)
    if options.log is not None:
        session.log_to(options.log, run, source.reference)
    if options.saving is not None:
        session.check_saving(directory.checkpoints)
    with ACTIVITY.during("loading a checkpoint"):
        own = again and session.load_checkpoint(directory.checkpoints, missing_ok=True)
        loaded = own or (options.resume is not None and session.load_checkpoint(options.resume))
    weights = options.weights
    if weights is not None and not loaded:
        session.load(weights.path, trust_pickle=weights.trust_pickle, optimizer=weights.optimizer)
    if again or session.recovered is not None:
        recovered = None if session.recovered is None else asdict(session.recovered)
        world.report({"recovered": recovered, "rollbacks": [asdict(one) for one in session.rolled_back]})
    rolls_back = options.on_nan == "rollback"
    if rolls_back and not own:
        # There is always one to go back to.
        with ACTIVITY.during("saving the first checkpoint"):
            session.save_checkpoint(directory.checkpoints)
    cadence = None if options.saving is None else Cadence(options.saving, session.executor.agreement, session.steps)
    started, epochs_before = session.steps, len(session.history)
    over = session.stopped or epochs_before >= job.epochs
    with ACTIVITY.during("between steps"):
        folder = directory.checkpoints
        epochs = tuple(_train_epochs(session, world, cadence, folder, rolls_back=rolls_back))
    stopped = None
    if session.stop_signal is not None:
        loss = None if math.isnan(session.mean_loss) else session.mean_loss
        stopped = Stopped(signal=session.stop_signal, step=session.steps, epoch=len(epochs) + 1, loss=loss)
    problems = {}
    if options.saving is not None or stopped is not None:
        with ACTIVITY.during("saving the last checkpoint"):
            problems = _save_last(session, directory.checkpoints, required=options.saving is not None)
    executor, notes, noise = session.executor, session.notes, None
    if options.gradient_noise and epochs:
        noise = run_noise(executor.observations(), executor.steps // len(epochs), optimizer=executor.updater.name)
        if started:
            notes = (*notes, f"the gradient noise scale is that of the steps after step {started}")
    if loaded and over:
        notes = (*notes, "no step was left to train: the training of the checkpoint had ended")
    final, watched = session.weights(), session.verified
    if tried is not None and watched is not None:
        later = (f"later steps were not verified: {watched.reason}",) if watched.reason else ()
        tried = replace(tried, later=watched.steps, notes=(*tried.notes, *later))
    result = RunResult(
        epochs=epochs,
        metric=name_of_metric(session.job.metric),
        epochs_before=epochs_before,
        steps=session.steps,
        timeline=session.timeline(),
        memory=session.memory,
        gradient_noise=noise,
        verified=tried,
        skipped=session.skipped,
        rolled_back=session.rolled_back,
        stopped=stopped,
        checkpoint=session.saved,
        notes=(*notes, *skipped_note(session.skipped), *map(str, session.rolled_back)),
    )
    session.close()
    if world.rank != 0:
        return RunResult(verified=tried)
    saved, lost = save_weights(final, directory)
    return replace(result, weights=saved, problems=problems | lost)


def _open(
    world: "World",
    job: Job,
    plan: Plan,
    behaviour: Behaviour | None,
    evaluation: str,
    options: TrainOptions,
    use: ParameterUse | None,
) -> "Session":
    """This rank's session."""
    from trimaran.features.training.session import Session
    from trimaran.launch.activity import ACTIVITY

    captured = None
    if needs_graph(plan.strategy):
        from trimaran.graph.capture.capture import capture
        from trimaran.user_code.alone import alone

        # What follows the number of ranks is for the trial to tell.
        with ACTIVITY.during("capturing the model"), alone():
            captured = capture(job)
    session = Session(
        job,
        plan.strategy,
        plan_program(plan),
        captured,
        world,
        owns_world=False,
        evaluation=parse_program(evaluation),
        gradient_noise=1 if options.gradient_noise else 0,
        use=use,
        on_nan=options.on_nan,
    )
    session.executor.training.graph = plan.premises.graph_digest
    session.executor.know(behaviour)
    return session


_BEGUN_S = 120.0
"""Time in which the processes of a trial have made their jobs [s]."""
_SLOWER = 128
"""Times that a step takes longer in 64 bits where no device is slower at it: an RTX 4090 has 1.29 TFLOP/s in fp64 and
165 in bf16 (NVIDIA, Ada GPU architecture whitepaper, appendix A)."""


def try_rank(
    rank: int,
    join: "Callable[[str], World]",
    source: JobSource,
    plan: Plan,
    behaviour: Behaviour | None,
    evaluation: str,
    run: Path,
    options: TrainOptions,
    use: ParameterUse | None = None,
    *_: Any,
    packages: Sequence[str] = (),
) -> "Verified":
    """The trial of a plan, before a rank trains by it; as `train_rank`, and with packages that the job imports."""
    # What a rank needs is imported once: its children have it.
    import trimaran.features.training.session  # noqa: F401
    from trimaran.launch.activity import OTHER_S
    from trimaran.trial.trial import STEPS, try_plan
    from trimaran.user_code.alone import alone

    with alone():
        for name in packages:
            with suppress(Exception):  # the job says it better
                importlib.import_module(name)

    def make() -> Job:
        return weighed(source.make(), behaviour, splits=splits_batches(plan.strategy))

    def open_session(world: "World", job: Job) -> "Session":
        return _open(world, job, plan, behaviour, evaluation, PLAIN, use)

    draws = behaviour is None or behaviour.is_random
    # One process takes the steps of all replicas one after the other.
    limit_s = _BEGUN_S + STEPS * _SLOWER * plan.strategy.dp * plan.prediction.step_time_s
    # Longer, and it would be taken for code of the job that hangs.
    limit_s = min(limit_s, (options.callback_timeout or OTHER_S) / 2)
    return try_plan(rank, partial(join, "trial"), make, open_session, plan.strategy, draws=draws, limit_s=limit_s)


def _save_last(session: "Session", folder: Path, *, required: bool) -> dict[str, str]:
    """Save the state at the end, where the last checkpoint is not of it.

    Args:
        session: of the rank
        folder: of the checkpoints
        required: it was asked for; otherwise what hinders it is a note

    Returns:
        By the name of the folder why there is none; empty: there is one.
    """
    if session.is_saved(folder):
        return {}
    try:
        if not required:
            session.check_saving(folder)
        session.save_checkpoint(folder)
    except TrimaranError as error:
        return {folder.name: f"the state after step {session.steps} was not saved: {error.message}"}
    return {}


def _train_epochs(
    session: "Session", world: "World", cadence: Cadence | None, folder: Path, *, rolls_back: bool = False
) -> list[Epoch]:
    from trimaran.launch.activity import ACTIVITY

    epochs = [_epoch(row) for row in session.history]
    for epoch in epochs:
        # Of the run that this one goes on from: the figures of a run are those of all of its epochs.
        world.report({"finished": asdict(epoch)})
    told, seen = 0, _Steps(world)
    # 0 where it is not known, as of a stream that does not say; then it may be long.
    total = session.job.epochs * (session.feed.batches or 0)
    if not total or total > ALL_OBSERVED:
        session.executor.observe_one_in(OBSERVED_ONE_IN)
    while len(epochs) < session.job.epochs and not session.stopped:
        number, started = len(epochs), time.perf_counter()
        # Of the epoch that was under way.
        samples, before = session.carried.pop(_SO_FAR, (0, 0.0))
        for share in session.shares():
            loss = session.step(share)
            samples += share.samples
            seen.note(session.steps, total, number + 1, loss)
            for text in session.unsaved[told:]:
                world.report({"not_saved": text})
            told = len(session.unsaved)
            if rolls_back and not math.isfinite(loss):
                with ACTIVITY.during("going back to a checkpoint"):
                    rollback = session.roll_back(folder)
                world.report({"rolled_back": asdict(rollback)})
                told = len(session.unsaved)
                if cadence is not None:
                    cadence.go_back(session.steps)
            elif cadence is not None and cadence.due(session.steps):
                session.carried[_SO_FAR] = samples, before + time.perf_counter() - started
                session.save_checkpoint(folder, wait=False)
        seen.tell()
        session.drain()
        session.carried.pop(_SO_FAR, None)
        seconds = before + time.perf_counter() - started
        session.end_epoch(number)
        if session.stop_signal is not None:
            session.carried[_SO_FAR] = samples, seconds
            break
        session.history[-1] |= {"seconds": seconds, "samples": samples}
        epochs.append(_epoch(session.history[-1]))
        world.report({"finished": asdict(epochs[-1])})
        if rolls_back and not session.stopped:
            # The next epoch has one to go back to, and this one stays as it is.
            session.save_checkpoint(folder, wait=False)
    return epochs


_SO_FAR = "samples and seconds of the epoch"
_TOLD_EVERY_S = 0.1


class _Steps:
    """Steps that are done, told to the parent: the first at once, then the last one, about ten times a second.

    Each message wakes the parent, on a core that the ranks use. Rank 0 tells, whose messages are shown. Where the rank
    hears that it is to stop, the last step is told at once, as a second signal ends the run in the middle of one.

    Args:
        world: of the rank
    """

    def __init__(self, world: "World") -> None:
        from trimaran.launch.stop_requests import REQUESTS

        self._world = world
        self._last: dict[str, Any] | None = None
        self._told_s = -math.inf
        pass_on = REQUESTS.told
        if pass_on is not None and world.rank == 0:

            def told(number: int) -> None:
                self.tell()
                pass_on(number)

            REQUESTS.told = told

    def note(self, step: int, of: int, epoch: int, loss: float) -> None:
        """A step is done.

        Args:
            step: its number, from 1
            of: all steps; 0: not known
            epoch: that is under way, from 1
            loss: of the step
        """
        self._last = {"step": step, "of": of, "epoch": epoch, "loss": loss}
        if time.perf_counter() - self._told_s >= _TOLD_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Tell the last step, if it was not told yet."""
        last, self._last = self._last, None
        if last is not None and self._world.rank == 0:
            self._world.report(last)
            self._told_s = time.perf_counter()


def _epoch(row: Mapping[str, Any]) -> Epoch:
    return Epoch(
        epoch=row["epoch"],
        loss=_number(row["loss"]),
        accuracy=_number(row.get("metric")),
        seconds=row.get("seconds", 0.0),
        samples=row.get("samples", 0),
    )


def _number(value: float | None) -> float | None:
    """A figure of a record, which has null where there is no finite number."""
    return None if value is None else finite(value)
