"""Train a job by its plan on local ranks, and compare the run with its prediction.

parent                                    each rank
──────                                    ─────────
run directory, plan, program
launch                            ──▶     the same job, its part of the program
progress, one line an epoch       ◀──     loss of each step, metric of each epoch
timeline, weights                 ◀──     rank 0 gathers both
compare, report, trace
"""

import contextlib
import math
import os
import queue
import shlex
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import convert

from trimaran.base.errors import CorruptDataError, ExecutionError, InfeasibleError, InputError, TrimaranError
from trimaran.base.files import given, looked_at, shown_path, write_whole
from trimaran.base.precision import element_bytes
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.signals import Catcher, Interrupted, leaving, say
from trimaran.base.system import needs_linux
from trimaran.base.timeline import Timeline
from trimaran.base.units import format_bytes
from trimaran.base.user_errors import imported_packages, summary
from trimaran.checkpoint_files.commit import Store
from trimaran.features.training.memory import with_memory_plan
from trimaran.features.training.rank import (
    PLAIN,
    Beginning,
    RunResult,
    TrainOptions,
    train_rank,
    try_rank,
)
from trimaran.features.training.restarts import (
    MOST_KINDS,
    VISIBLE,
    Restarts,
    Verdict,
    devices_left,
    other_kind,
    plan_again,
)
from trimaran.features.training.run_record import (
    RUNS,
    RunDirectory,
    RunRecord,
    check_runs,
    create_run_directory,
)
from trimaran.graph.types import Graph, parameter_use
from trimaran.jobs.resolve import JobSource, is_published
from trimaran.launch.stop_requests import say_asked
from trimaran.launch.world import read_place
from trimaran.machine.detect import free_memory_bytes
from trimaran.measure.others import Others, busy_note
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.answer.results import Planned
from trimaran.planning.preparation import cluster_environment
from trimaran.pricing.transfers import collectives_at_once
from trimaran.program.json_files import to_plain
from trimaran.program.lowering.lower import lower_evaluation
from trimaran.program.plan_file import write_plan
from trimaran.program.text import format_program
from trimaran.report.comparison import Comparison, compare
from trimaran.report.gradient_noise import gradient_noise_document
from trimaran.report.run_report import RunReport, pace_note, run_report, write_report
from trimaran.report.slow_rank import SlowRank, find_slow_ranks
from trimaran.report.timelines import write_timeline
from trimaran.report.trace import write_trace
from trimaran.runtime.checkpoint import STATE
from trimaran.trial.compare import Verified
from trimaran.trial.trial import TRIED, nothing_to_try
from trimaran.user_code.model import quiet
from trimaran.user_code.randomness import preserved_randomness

if TYPE_CHECKING:
    from torch.nn import Module

# The first steps fill caches, allocate optimizer state and let DDP find its buckets.
WARM_UP_STEPS = 5
# A viewer stays quick with these; all recorded steps are in `measured.json`.
TRACED_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTraining(RunResult):
    """A finished run.

    Attributes:
        run: its directory
        planned: what was run
        report: what `report.json` holds, with predicted against measured
        comparison: of prediction and measurement; None where nothing was recorded
        unwritten: what could not be written of a run that a signal has ended, for people; empty: all was
        options: how it trained
    """

    run: RunDirectory
    planned: Planned
    report: RunReport
    comparison: Comparison | None = None
    unwritten: str = ""
    options: TrainOptions = PLAIN

    @property
    def was_over(self) -> bool:
        """Whether nothing was left to train: the checkpoint that it went on from has all epochs."""
        return self.options.resume is not None and self.stopped is None and self.epochs_before == len(self.epochs) > 0

    def how_to_resume(self, *, more: bool = False) -> str:
        """The command that goes on from its last checkpoint, or from that which it went on from itself.

        Args:
            more: with twice the epochs that are done, in place of those it had
        """
        before, epochs = self.options.resume, str(2 * max(1, len(self.epochs))) if more else ""
        run = self.run if self.checkpoint is not None or before is None else RunDirectory(path=before)
        return how_to_resume(self.planned.source, run, self.options, epochs=epochs)


class _Stopping:
    """A signal to the parent of a run: before the first step it ends it, after that its ranks are told to stop.

    Ranks may have told of a first step that was not read yet: while they are listened to, a signal waits until all is
    read that they have told.

    Attributes:
        commands: to the ranks
        step: training steps that are known to be done
        epoch: that is under way, from 1
        training: ranks are there, and have done a step
        asked: the signal that has come, to this process or to a rank; 0: none
    """

    def __init__(self) -> None:
        self.commands: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self.step, self.epoch = 0, 1
        self.training = False
        self.asked = 0
        self._listening = False
        self._heard = 0

    def note(self, step: int, epoch: int) -> None:
        """A step has been done."""
        self.step, self.epoch, self.training = step, epoch, True

    def hear(self, number: int) -> None:
        """The first signal has come to this process.

        Raises:
            Interrupted: the ranks have done no step, so that there is nothing to be saved
        """
        self._heard = number
        if self.training or not self._listening:
            self._answer()

    def all_read(self) -> None:
        """All is read that the ranks have told.

        Raises:
            Interrupted: a signal has come, and the ranks have done no step
        """
        self._listening = True
        self._answer()

    def ended(self) -> None:
        """Nobody is listened to any more; raises as `all_read`."""
        self._listening = False
        self._answer()

    def _answer(self) -> None:
        number, self._heard = self._heard, 0
        if number and not self.training:
            raise Interrupted(number)
        if number:
            self.commands.put(("stop", number))
            self.tell(number)

    def tell(self, number: int) -> None:
        """Say that a signal has come, to this process or to a rank."""
        if not self.asked:
            self.asked = number
            say_asked(number)


def train_planned(
    planned: Planned,
    options: TrainOptions = PLAIN,
    *,
    parent: Path | None = None,
    progress: Progress = ignore_progress,
) -> FinishedTraining:
    """Run a plan on this machine; after a failure that may go away, again from the last checkpoint (`restarts`).

    A signal that asks for the end (`STOP_SIGNALS`) ends it after a step that all ranks have done, and what is there is
    written as at the end. Before the first step nothing is left of the run.

    Args:
        planned: from `make_plan` or `load_plan`
        options: how it trains
        parent: folder of run directories; None: `runs` in the current directory
        progress: told of every step

    Raises:
        InputError: a step cannot be skipped under the plan, there is no such checkpoint, it is of another job, or a
            state could not be saved exactly; or restarts are asked for, and nothing is saved
        CorruptDataError: the checkpoint is damaged
        ExecutionError: a rank died or hangs, the loss is not a number, or a step is not that of one process
        EnvironmentProblem: links cannot be rate-limited here, the run directory cannot be made or has no room, or not
            all of a run that is done could be written (of one that a signal has ended, `FinishedTraining.unwritten`
            says that)
        Interrupted: a signal came before the first step was done
        TrimaranError: what a rank raised
    """
    simulated = planned.simulated
    options.check()
    options.check_strategy(simulated.plan.strategy, simulated.job)
    if options.resume is not None:
        options = replace(options, resume=Path(os.path.realpath(given(options.resume))))
    check_runs(parent, weights_bytes(simulated.graph))
    stopping = _Stopping()
    with Catcher(stopping.hear), _environment_kept():
        there = given(parent or RUNS).exists()
        run = create_run_directory(simulated.job.name, parent=parent)
        notes = RunRecord(run)
        command = partial(how_to_resume, planned.source, run, options)
        try:
            with leaving(lambda number: notes.leave(number, stopping.step, stopping.epoch)):
                notes.begin(
                    job=planned.reference,
                    strategy=simulated.plan.strategy.name,
                    resumed=options.resume,
                    weights=None if options.weights is None else options.weights.path,
                )
                _write_program(run, simulated)
                launching = _Launching(run=run, notes=notes, stopping=stopping, options=options, progress=progress)
                planned, result, others = launching.train(planned, Restarts(options.max_restarts))
                return replace(_conclude(planned, run, notes, result, others), options=options)
        except TrimaranError as raised:
            error = _explained(raised, planned)
            if error.code != "run.not-written":
                notes.fail(error)
            error.add_note(f"run directory: {run.shown}")
            if has_checkpoint(run.path):
                error.message += f"\nto go on from its last checkpoint: {command()}"
            raise error from raised.__cause__
        except KeyboardInterrupt as error:
            if stopping.step and isinstance(error, Interrupted):
                notes.leave(error.number, stopping.step, stopping.epoch, starting=True)
                error.add_note(f"run directory: {run.shown}")
                if has_checkpoint(run.path):
                    error.add_note(f"to go on from its last checkpoint: {command()}")
                raise
            if stopping.step:
                notes.leave(signal.SIGINT, stopping.step, stopping.epoch)
                raise
            shutil.rmtree(run.path, ignore_errors=True)
            if not there:
                with contextlib.suppress(OSError):  # another run is there
                    run.path.parent.rmdir()
            error.add_note("no training step was done, and nothing is left of the run")
            raise
        except Exception as error:
            notes.fail(ExecutionError(summary(error)))
            raise


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Show the same GPUs after the block as before it."""
    before = os.environ.get(VISIBLE)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VISIBLE, None)
        else:
            os.environ[VISIBLE] = before


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launching:
    """What all launches of a run have in common.

    Attributes:
        run: its directory
        notes: what is written of it
        stopping: signals to it
        options: how it trains
        progress: told of every step
    """

    run: RunDirectory
    notes: RunRecord
    stopping: _Stopping
    options: TrainOptions
    progress: Progress

    def train(self, planned: Planned, restarts: Restarts) -> tuple[Planned, RunResult, float | None]:
        """Launch the ranks until they have done their work.

        Args:
            planned: what is run
            restarts: says whether they are started again after a failure

        Returns:
            What was run at the end, the result of rank 0, and the part of the cores that other programs took.

        Raises:
            TrimaranError: the failure after which they were not
        """
        differing = 0
        while True:
            try:
                return planned, *self._launch(planned, restarts.count, f"plan-{differing}" if differing else "")
            except TrimaranError as error:
                if error.figures.get(TRIED) and differing < MOST_KINDS and (asked := other_kind(planned)) is not None:
                    differing += 1
                    planned = self._other_kind(planned, error, asked)
                    continue
                # From here on a signal has nothing to wait for.
                progressed, self.stopping.training = self.stopping.training, False
                if not restarts.allowed:
                    raise
                verdict = restarts.judge(error, progressed=progressed, asked=self.stopping.asked != 0)
                if verdict.refused:
                    error.message += f"\nthe training was not started again: {verdict.refused}"
                    raise
                planned = self._prepare(planned, error, verdict, restarts)

    def _prepare(self, planned: Planned, error: TrimaranError, verdict: Verdict, restarts: Restarts) -> Planned:
        """Wait, and plan again where a device is lost.

        Raises:
            TrimaranError: the failure: there is no device, or no plan for those that are left
        """
        say(f"trimaran: {error.message.partition(chr(10))[0]}\ntrimaran: restart {restarts}")
        time.sleep(verdict.wait_s)
        ranks = planned.simulated.plan.strategy.devices
        left = devices_left(planned, verdict.lost)
        if left < ranks:
            if left < 1:
                error.message += "\nthe training was not started again: no device is left"
                raise error
            try:
                lost = f"{ranks - left} of the devices {'was' if ranks - left == 1 else 'were'} lost"
                planned = self._plan_again(planned, f"planned again for {left}, as {lost}", devices=left)
            except TrimaranError as other:
                error.message += f"\nthe training was not started again: no plan for {left} devices: {other.message}"
                raise error from None
        strategy = planned.simulated.plan.strategy
        # The ranks tell their steps from time to time; a failure says where it was.
        known = error.figures.get("step")
        step = max(self.stopping.step, known if isinstance(known, int) else 0)
        self.notes.restart(why=error, step=step, strategy=strategy.name, ranks=strategy.devices)
        return planned

    def _plan_again(self, planned: Planned, note: str, **otherwise: Any) -> Planned:
        observes = self.options.gradient_noise
        other = plan_again(planned, note, gradient_noise=observes, progress=self.progress, **otherwise)
        self.options.check_strategy(other.simulated.plan.strategy, other.simulated.job)
        say(f"trimaran: {note}: {other.simulated.plan.strategy.name}")
        self.notes.try_to("plan.json, program.txt", lambda: _write_program(self.run, other.simulated))
        return other

    def _other_kind(self, planned: Planned, error: TrimaranError, asked: Mapping[str, Any]) -> Planned:
        """The best plan of another kind than one of which a trial says that it trains something else.

        Raises:
            TrimaranError: what the trial has said, where there is no other
        """
        name = planned.simulated.plan.strategy.name
        say(f"trimaran: {error.message}")
        try:
            return self._plan_again(planned, f"planned again, as {name} is not what one process trains", **asked)
        except (InputError, InfeasibleError) as other:
            error.message += f"\nno plan of another kind: {other.message}"
            raise error from None

    def _launch(self, planned: Planned, restarted: int, folder: str = "") -> tuple[RunResult, float | None]:
        from trimaran.emulation.links import launch_on
        from trimaran.launch.activity import OTHER_S, HangLimits, collective_timeout

        simulated = planned.simulated
        others = Others()
        step_s, other_s = self.options.hang_timeout, self.options.callback_timeout
        untried = None if restarted else self._untried(planned)
        limits = HangLimits(step_s=step_s, other_s=other_s or OTHER_S) if other_s or step_s != math.inf else None
        try:
            results = launch_on(
                simulated.link,
                train_rank,
                (
                    planned.source,
                    simulated.plan,
                    simulated.graph.behaviour,
                    _evaluation(simulated),
                    self.run.path,
                    self.options,
                    parameter_use(simulated.graph),
                    restarted > 0,
                    self._untried(planned) == "",
                ),
                ranks=simulated.plan.strategy.devices,
                log_dir=self.run.logs / (f"restart-{restarted}" if restarted else folder),
                on_event=_listener(self.notes, self.stopping, self.progress),
                on_quiet=self.stopping.all_read,
                commands=self.stopping.commands,
                hang=limits,
                timeout_s=collective_timeout(limits),
                beforehand=partial(try_rank, packages=imported_packages()) if untried == "" else None,
            )
        finally:
            self.stopping.ended()
        result: RunResult = results[0]
        # A rank that lost another knows less of it than that one.
        reasons = [one.verified for one in results if one.verified is not None and one.verified.reason]
        if untried:
            result = replace(result, verified=Verified(reason=untried))
        elif reasons:
            result = replace(result, verified=min(reasons, key=lambda one: "lost contact" in one.reason))
        return result, others.share()

    def _untried(self, planned: Planned) -> str | None:
        """Why the plan is not tried; empty: it is; None: there is nothing to try."""
        simulated = planned.simulated
        strategy, seen = simulated.plan.strategy, simulated.graph.behaviour
        if strategy.devices * strategy.microbatches == 1:
            return None
        if not self.options.trial:
            return "--no-trial"
        if seen is not None and seen.accepted:
            return "plans that are another training than that of one process are accepted"
        # One process takes the whole batch, and all in 64 bits, which are four times those of what is cast to 16.
        wider = element_bytes("fp64") // element_bytes(simulated.job.precision)
        one = sum(simulated.chosen.peak_bytes) if simulated.alone is None else simulated.alone.peak_bytes[0]
        device = simulated.cluster.devices[0]
        if device.kind == "cpu":
            needed, there = wider * (one + sum(simulated.chosen.peak_bytes)), free_memory_bytes()
        else:
            needed, there = wider * (one + simulated.chosen.peak_bytes[0]), simulated.cluster.memory_bytes[0]
        if needed > there:
            takes = f"{format_bytes(needed)} of {format_bytes(there)}"
            return f"a plain loop next to the ranks, all in 64 bits, takes {takes}"
        return nothing_to_try(strategy)


def how_to_resume(source: JobSource, run: RunDirectory, options: TrainOptions = PLAIN, *, epochs: str = "") -> str:
    """The command that goes on from the last checkpoint of a run, with the options that the run had.

    Args:
        source: where its job comes from
        run: its directory
        options: of the run
        epochs: in place of the run's

    Example:
        >>> from trimaran.features.training.rank import Saving
        >>> run = RunDirectory(path=Path("runs/digits"))
        >>> saving = TrainOptions(saving=Saving(seconds=600.0))
        >>> how_to_resume(JobSource(reference="digits", epochs=50, seed=3), run, saving)
        'trimaran train digits --resume runs/digits --epochs 50 --seed 3 --save-every 600s'
    """
    given = {
        "--epochs": epochs or source.epochs,
        "--batch": source.global_batch_size,
        "--seed": source.seed,
        "--save-every": options.saving,
        "--on-nan": None if options.on_nan == "stop" else options.on_nan,
        "--max-restarts": options.max_restarts or None,
        "--log": options.log,
    }
    words = [f" {name} {value}" for name, value in given.items() if value is not None]
    return f"trimaran train {shlex.quote(source.reference)} --resume {shlex.quote(run.shown)}{''.join(words)}"


def check_starts_ranks(variables: Mapping[str, str]) -> None:
    """Refuse to start ranks in each of several processes that a launcher has started: each would train a whole run.

    Args:
        variables: environment variables of this process

    Raises:
        InputError: torchrun or srun has started more than one
        EnvironmentProblem: this is not Linux, or their variables contradict each other
    """
    needs_linux("training")
    place = read_place(variables)
    if place is not None and place.size > 1:
        raise InputError(
            f"{place.started_by} has started {place.size} of these, and `trimaran train` starts the ranks of one "
            "machine itself: each of them would train a whole run. Start it once, with --devices (in Slurm: srun "
            f"--ntasks 1); or, over several machines, let {place.started_by} start a script with session = "
            "trimaran.init(job) and session.load_checkpoint(folder, missing_ok=True)",
            code="train.started-by-launcher",
            size=place.size,
            launcher=place.started_by,
        )


def has_checkpoint(path: Path) -> bool:
    """Whether a run directory has a checkpoint; it is not verified.

    Args:
        path: of the run
    """
    with contextlib.suppress(TrimaranError):
        return bool(Store(RunDirectory(path=path).checkpoints).committed())
    return False


def check_resumable(path: Path, source: JobSource) -> Path | None:
    """Refuse what cannot be gone on from, before a plan is made; what the ranks find out later is not looked at.

    Args:
        path: run directory, folder of checkpoints, or one checkpoint
        source: of the job that goes on

    Returns:
        The plan of the run; None: there is none.

    Raises:
        InputError: there is no checkpoint, or it is of a job with another seed or global batch
        CorruptDataError: all are damaged
    """
    from trimaran.runtime.checkpoint.saving import locate

    store, name = locate(path)
    found, state = None, None
    for one in store.committed() if name is None else [store.open(name)]:
        try:
            found, state = one, one.document(STATE)
            break
        except CorruptDataError:
            # The one before it is gone on from.
            if name is not None:
                raise
    if found is None or state is None:
        # It says why.
        found = store.open_newest()
        state = found.document(STATE)
    job, saved = source.make(), state.get("job", {})
    for option, now in (("seed", job.seed), ("global_batch_size", job.global_batch_size)):
        then = saved.get(option)
        if then != now:
            flag = "--seed" if option == "seed" else "--batch"
            raise InputError(
                f"{found.path} was saved with {option} {then}, and this job has {now}: a training goes on with the "
                f"same ({flag} {then})",
                code="checkpoint.other-option",
                what=option,
                saved=then,
                now=now,
            )
    where = Path(os.path.realpath(path))
    plans = [one / "plan.json" for one in (path, where.parent, where.parent.parent)]
    return next((plan for plan in plans if looked_at(plan)), None)


def beginning(
    path: Path | None, *, optimizer: bool = False, trust_pickle: bool = False, resume: Path | None = None
) -> Beginning | None:
    """Weights that a training begins from; None: those of the job's model.

    Args:
        path: run, checkpoint, or a file or folder of others; None: no weights are given
        optimizer: take the state of the optimizer too
        trust_pickle: read formats that are pickles
        resume: what the training goes on from

    Raises:
        InputError: weights are given where a training goes on, or options of weights without any
    """
    if path is None:
        if optimizer or trust_pickle:
            raise InputError(
                "--with-optimizer and --trust-pickle say how --weights is read: give it",
                code="train.no-weights",
            )
        return None
    if resume is not None:
        raise InputError(
            "--resume goes on with the weights of a checkpoint, and --weights begins a new training from others: give "
            "one of them",
            code="train.weights-and-resume",
        )
    return Beginning(path=Path(os.path.realpath(path)), optimizer=optimizer, trust_pickle=trust_pickle)


def check_weights(weights: Beginning, source: JobSource) -> None:
    """Refuse weights that are not of a job's model, before a plan is made; what takes long is left to the ranks.

    Args:
        weights: that it would begin from
        source: of the job

    Raises:
        InputError: there are none; names, shapes or dtypes are others; a pickle is not trusted; there is no state of
            the optimizer, and it is asked for
        CorruptDataError: they are damaged
    """
    from trimaran.checkpoint_files.content import check_fits
    from trimaran.runtime.checkpoint.weights import forms_of, open_weights

    with open_weights(weights.path, trust_pickle=weights.trust_pickle) as content:
        if weights.optimizer and content.optimizer is None:
            raise InputError(
                f"{content.source} has no state of an optimizer: leave out --with-optimizer",
                code="train.no-optimizer-state",
                path=content.source,
            )
        model = _early_model(source)
        if model is not None:
            check_fits(content, *forms_of(model))


def weights_bytes(graph: Graph) -> int:
    """Size of the file of a network's weights [bytes].

    Args:
        graph: names its parameters and buffers
    """
    # Each name of a tied weight has its own copy, and each name a line in the header.
    sizes = [one.nbytes for one in graph.parameters for _ in (one.name, *one.aliases)]
    return sum(size + 512 for size in (*sizes, *graph.buffers.values())) + 4096


def weights_of(source: JobSource) -> int | None:
    """Size of the weights of a job before it is planned; None: its model cannot be made [bytes].

    Args:
        source: where the job comes from
    """
    model = _early_model(source)
    if model is None:
        return None
    try:
        return int(sum(one.numel() * one.element_size() for one in model.state_dict().values()))
    except Exception:  # noqa: BLE001 planning says what is wrong with the model
        return None


def _early_model(source: JobSource) -> "Module | None":
    """The model of a job, before it is planned: a published network on the device meta; None: it cannot be made.

    A user's file that is loaded there, or a model of theirs that is made there, would keep tensors without content.
    """
    import torch

    try:
        with preserved_randomness(), quiet():
            job = source.make()
            with torch.device("meta") if is_published(job) else contextlib.nullcontext():
                return job.model()
    except Exception:  # noqa: BLE001 planning says what is wrong with the model
        return None


def room_of(source: JobSource, *, saves: bool) -> int | None:
    """Room that a run needs before it is planned; None: its model cannot be made [bytes].

    Args:
        source: where the job comes from
        saves: the run saves checkpoints: two that stay and one that is written, each of weights and two states of each,
            as Adam's
    """
    weights = weights_of(source)
    return weights if weights is None or not saves else weights * (1 + 3 * 3)


def how_to_go_on(trained: FinishedTraining) -> str:
    """What a person can do with a run that a signal has ended.

    Args:
        trained: the run
    """
    run = trained.run
    if trained.checkpoint is not None:
        command = trained.how_to_resume()
        return f"to go on: {command}"
    weights = trained.weights
    if weights is None:
        return "nothing is left to go on from: neither its state nor its weights could be written"
    # A stale plan runs under no loop but that of `trimaran train`.
    plan = "" if trained.planned.simulated.plan.strategy.is_stale else f', plan="{shown_path(run.plan)}"'
    return (
        f"its metrics and report are in {run.shown}\n"
        f"to go on from the weights: session = trimaran.init(job{plan}); "
        f'session.load("{shown_path(weights)}"). '
        "The optimizer and the place in the data begin anew"
    )


def _evaluation(simulated: Simulated) -> str:
    strategy = simulated.plan.strategy
    return format_program(lower_evaluation(simulated.graph, strategy, batch=simulated.job.global_batch_size))


def _write_program(run: RunDirectory, simulated: Simulated) -> None:
    write_plan(run.plan, simulated.whole_plan)
    write_whole(run.program, format_program(simulated.chosen.program).encode())


def _listener(notes: RunRecord, stopping: _Stopping, progress: Progress) -> Callable[[int, Mapping[str, Any]], None]:
    from trimaran.runtime.checkpoint.recovered import Recovered
    from trimaran.runtime.step.on_nan import Rollback

    def listen(rank: int, event: Mapping[str, Any]) -> None:
        if "asked_to_stop" in event:
            stopping.tell(int(event["asked_to_stop"]))
        elif "lost_log" in event:
            notes.problems[f"logs/rank{rank}.log"] = str(event["lost_log"])
        elif rank != 0:
            return
        elif "not_saved" in event:
            say(f"trimaran: {event['not_saved']}")
        elif "verified" in event:
            progress(str(event["verified"]), 1, 1)
        elif "finished" in event:
            notes.add_metrics(event["finished"])
        elif "recovered" in event:
            notes.recover(event["recovered"], event["rollbacks"])
            recovered = event["recovered"]
            say(str(convert(recovered, Recovered)) if recovered else "trimaran: no state was saved: it begins anew")
        elif "rolled_back" in event:
            notes.roll_back(event["rolled_back"])
            say(f"trimaran: {Rollback(**event['rolled_back'])}")
        else:
            stopping.note(int(event["step"]), int(event["epoch"]))
            progress(
                f"training: epoch {event['epoch']}, loss {event['loss']:.4f}",
                int(event["step"]),
                int(event["of"]),
            )

    return listen


def _conclude(
    planned: Planned, run: RunDirectory, notes: RunRecord, result: RunResult, others: float | None
) -> FinishedTraining:
    """Write what is known at the end of a run, and say what of it could not be written.

    Raises:
        ExecutionError: the weights are nowhere
        EnvironmentProblem: something could not be written, or only elsewhere
    """
    comparison, simulated = None, planned.simulated
    notes.restore(lambda: _write_program(run, simulated))
    notes.problems |= result.problems
    if result.weights is None and result.stopped is None:
        raise ExecutionError(f"the training is done, and {result.problems[run.model.name]}", code="run.weights-lost")
    said = [*result.notes]
    slow: tuple[SlowRank, ...] = ()
    if len(result.timeline):
        comparison = _compare(simulated, result.timeline)
        slow = find_slow_ranks(result.timeline, simulated.chosen.timeline, warmup=comparison.warmup)
        said += map(str, slow)
        busy = busy_note(others) if simulated.cluster.devices[0].kind == "cpu" else ""
        said += filter(None, [busy or pace_note(comparison, planned.reference)])
        notes.try_to(run.measured.name, lambda: write_timeline(run.measured, result.timeline))
        steps = result.timeline.steps[comparison.warmup :][:TRACED_STEPS]
        notes.try_to(
            run.trace.name,
            lambda: write_trace(
                run.trace,
                simulated.chosen.program,
                simulated.chosen.timeline,
                result.timeline,
                comparison=comparison,
                steps=steps,
            ),
        )
    notes.try_to(run.predicted.name, lambda: write_timeline(run.predicted, simulated.chosen.timeline))
    last = result.epochs[-1] if result.epochs else None
    final: dict[str, float | None] = {} if last is None else {"loss": last.loss}
    if last is not None and last.accuracy is not None:
        final["accuracy"] = last.accuracy
    rates = [epoch.samples / epoch.seconds for epoch in result.epochs if epoch.seconds]
    report = run_report(
        job=planned.reference,
        strategy=simulated.plan.strategy,
        prediction=simulated.plan.prediction,
        comparison=comparison,
        samples_per_s=statistics.median(rates) if rates else None,
        final=final,
        run_dir=run.shown,
        environment=cluster_environment(simulated.cluster),
        noise=simulated.noise,
        others=others,
        memory=None if result.memory is None else to_plain(result.memory),
        gradient_noise=gradient_noise_document(result.gradient_noise),
        verified=None if result.verified is None else to_plain(result.verified),
        slow_ranks=slow,
        skipped_steps=result.skipped,
        rollbacks=tuple(map(asdict, result.rolled_back)),
        restarts=notes.restarts,
        notes=(*planned.notes, *said),
    )
    notes.try_to(run.report.name, lambda: write_report(run.report, report))
    summary = {"final": dict(report.final), "samples_per_s": report.samples_per_s}
    if result.stopped is None:
        notes.finish(summary)
    else:
        notes.stop(result.stopped, summary)
    notes.check()
    known = {one.name: getattr(result, one.name) for one in fields(result)} | {"notes": tuple(said)}
    return FinishedTraining(
        **known, run=run, planned=planned, report=report, comparison=comparison, unwritten=notes.unwritten
    )


def _explained(raised: TrimaranError, planned: Planned) -> TrimaranError:
    """An error of the ranks with what the plan needs, where memory has run out."""
    if raised.code == "memory.exhausted":
        # The reason of the end of the run is told also where the plan cannot be explained.
        with contextlib.suppress(Exception):
            return with_memory_plan(raised, planned)
    return raised


def _compare(simulated: Simulated, measured: Timeline) -> Comparison:
    warmup = min(WARM_UP_STEPS, max(0, len(measured.steps) - 1))
    at_once = collectives_at_once(simulated.table, simulated.cluster)
    return compare(simulated.chosen.program, simulated.chosen.timeline, measured, warmup=warmup, at_once=at_once)
