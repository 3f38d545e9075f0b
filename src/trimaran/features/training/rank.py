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
      logs/rank0.log     what each rank printed

Files are written whole or not at all: next to their place first, then renamed. `metrics.jsonl` grows line by line.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.files import file_name
from trimaran.base.timeline import Timeline
from trimaran.base.units import format_count, format_some
from trimaran.features.training.run_record import Reserve, Stopped, save_weights
from trimaran.graph.behaviour import Behaviour, weighed
from trimaran.graph.types import ParameterUse
from trimaran.jobs.resolve import JobSource
from trimaran.program.plan import Plan, plan_program
from trimaran.program.strategy import needs_graph, splits_batches
from trimaran.program.text import parse_program
from trimaran.report.gradient_noise import RunNoise, run_noise

if TYPE_CHECKING:
    from trimaran.features.training.session import Session
    from trimaran.report.virtual_memory import MemoryReport
    from trimaran.runtime.launch.world import World
    from trimaran.runtime.step.on_nan import OnNan
    from trimaran.runtime.verification import Verified


RUNS = Path("runs")
"""Where run directories are, if nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """Paths of one run.

    Attributes:
        path: the directory
    """

    path: Path

    @property
    def plan(self) -> Path:
        """The plan that was run."""
        return self.path / "plan.json"

    @property
    def program(self) -> Path:
        """The program, as text."""
        return self.path / "program.txt"

    @property
    def metrics(self) -> Path:
        """One JSON line an epoch."""
        return self.path / "metrics.jsonl"

    @property
    def predicted(self) -> Path:
        """The simulated timeline."""
        return self.path / "predicted.json"

    @property
    def measured(self) -> Path:
        """The recorded timeline."""
        return self.path / "measured.json"

    @property
    def trace(self) -> Path:
        """Both timelines, for a trace viewer."""
        return self.path / "trace.json"

    @property
    def report(self) -> Path:
        """Predicted against measured."""
        return self.path / "report.json"

    @property
    def model(self) -> Path:
        """The trained weights."""
        return self.path / "model.safetensors"

    @property
    def logs(self) -> Path:
        """One log a rank."""
        return self.path / "logs"


def create_run_directory(name: str, *, parent: Path | None = None) -> RunDirectory:
    """Make a new run directory, named by the job and the time.

    Args:
        name: of the job; what a file name cannot have is replaced
        parent: where; default: `runs` in the current directory

    Raises:
        EnvironmentProblem: it cannot be written
    """
    parent = parent or RUNS
    stem = f"{file_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = parent / f"{stem}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise EnvironmentProblem(f"cannot write run directory {path}: {error.strerror}", path=str(path)) from None
        (path / "logs").mkdir()
        return RunDirectory(path=path)
    raise EnvironmentProblem(f"cannot find a free name for a run directory like {parent / stem}")


# An observed step takes 2 to 15 % longer: each is in a short run, few are in a long one.
ALL_OBSERVED = 200
OBSERVED_ONE_IN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Figures of one epoch.

    Attributes:
        epoch: its number, from 1
        loss: mean over its samples
        accuracy: the job's metric after it; None without evaluation
        seconds: of training, evaluation not counted [s]
        samples: trained on
    """

    epoch: int
    loss: float
    accuracy: float | None
    seconds: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """Result of a rank; only rank 0's is full.

    Attributes:
        epochs: figures of each
        timeline: what happened when, on all ranks
        memory: what the memory plan did; None where there is none
        gradient_noise: noise scale of the gradients; None where it was not asked for
        verified: how far the first steps were from those of one process; None where it was not asked for
        skipped: numbers of the steps whose update was left out, because their loss was not a finite number
        stopped: where a signal has ended the training; None: none has
        weights: the file of the weights; None: they could not be written
        unsaved: why the weights are not in the run directory; empty: they are
        notes: what the run had to say of its data
    """

    epochs: tuple[Epoch, ...] = ()
    timeline: Timeline = field(default_factory=lambda: Timeline([]))
    memory: "MemoryReport | None" = None
    gradient_noise: RunNoise | None = None
    verified: "Verified | None" = None
    skipped: tuple[int, ...] = ()
    stopped: Stopped | None = None
    weights: Path | None = None
    unsaved: str = ""
    notes: tuple[str, ...] = ()


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
    record: bool,
    gradient_noise: bool,
    verify: int = 0,
    use: ParameterUse | None = None,
    on_nan: "OnNan" = "stop",
    weights_bytes: int = 0,
) -> RankResult:
    """One rank's part of a run; started by `train_planned`.

    Args:
        world: this rank's
        source: where the job comes from
        plan: what is run
        behaviour: what was seen of the job
        evaluation: text form of the program of an evaluation
        run: run directory
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients
        verify: number of first steps to compare with one process
        use: which parameters get a gradient; None: as the executor finds
        on_nan: what to do where the loss of a step is not a finite number
        weights_bytes: room that rank 0 keeps free for the weights [bytes]

    Raises:
        EnvironmentProblem: there is no room for the weights
    """
    from trimaran.features.training.session import Session
    from trimaran.runtime.launch.activity import ACTIVITY

    with ACTIVITY.during("making the job"):
        job = weighed(source.make(), behaviour, splits=splits_batches(plan.strategy))
    captured = None
    if needs_graph(plan.strategy):
        from trimaran.graph.capture.capture import capture

        with ACTIVITY.during("capturing the model"):
            captured = capture(job)
    session = Session(
        job,
        plan.strategy,
        plan_program(plan),
        captured,
        world,
        owns_world=False,
        evaluation=parse_program(evaluation),
        record=record,
        gradient_noise=1 if gradient_noise else 0,
        use=use,
        verify=verify,
        on_nan=on_nan,
    )
    directory = RunDirectory(path=run)
    reserve = Reserve(run, weights_bytes if world.rank == 0 else 0)
    with ACTIVITY.during("between steps"):
        epochs = tuple(_train_epochs(session, world, verify))
    stopped = None
    if session.stop_signal is not None:
        # All ranks have done the same steps: here a run that saves checkpoints saves one more.
        loss = None if math.isnan(session.mean_loss) else session.mean_loss
        stopped = Stopped(signal=session.stop_signal, step=session.steps, epoch=len(epochs) + 1, loss=loss)
    executor, notes, memory = session.executor, session.feed.notes, session.memory
    skipped = session.skipped
    noise = None
    if gradient_noise and epochs:
        noise = run_noise(executor.observations(), executor.steps // len(epochs), optimizer=executor.updater.name)
    timeline = session.timeline()
    weights = session.weights()
    session.close()
    if world.rank != 0:
        return RankResult()
    saved, unsaved = save_weights(weights, directory, reserve)
    return RankResult(
        epochs=epochs,
        timeline=timeline,
        memory=memory,
        gradient_noise=noise,
        verified=session.verified,
        skipped=skipped,
        stopped=stopped,
        weights=saved,
        unsaved=unsaved,
        notes=notes,
    )


def _train_epochs(session: "Session", world: "World", verify: int) -> list[Epoch]:
    epochs: list[Epoch] = []
    # 0 where it is not known, as of a stream that does not say; then it may be long.
    total, verifying_s = session.job.epochs * (session.feed.batches or 0), 0.0
    if not total or total > ALL_OBSERVED:
        session.executor.observe_one_in(OBSERVED_ONE_IN)
    while len(epochs) < session.job.epochs and not session.stopped:
        number, samples, started = len(epochs), 0, time.perf_counter()
        for share in session.shares():
            loss = session.step(share)
            if session.steps == verify:
                world.report({"verified": str(session.verified)})
            samples += share.samples
            world.report({"step": session.steps, "of": total, "epoch": number + 1, "loss": loss})
        seconds = time.perf_counter() - started
        seconds, verifying_s = seconds - (session.verifying_s - verifying_s), session.verifying_s
        metrics = session.end_epoch(number)
        if session.stop_signal is not None:
            break
        epoch = Epoch(
            epoch=number + 1, loss=metrics["loss"], accuracy=metrics.get("metric"), seconds=seconds, samples=samples
        )
        epochs.append(epoch)
        world.report({"finished": asdict(epoch)})
    return epochs
