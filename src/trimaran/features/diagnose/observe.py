"""Run a script that does not use Trimaran, watch it, and say what limits it.

with trimaran.observe(model) as watch:     in a script
    ...
print(watch.report())

trimaran observe -- python train.py        around a script
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trimaran.base.errors import InputError
from trimaran.base.files import temporary_folder
from trimaran.base.signals import exit_code
from trimaran.base.system import needs_linux
from trimaran.features.diagnose.remedies import (
    UNCLEAR,
    advise,
    doubt,
    made_by_others,
    name_limiter,
    noise_of,
    widened,
)
from trimaran.measure.observe.analysis import TimeFindings, analyse, measure_handover
from trimaran.measure.observe.injection import load_watch, watched_environment
from trimaran.measure.observe.records import ProcessRecord, duration_interval, fixed_share, parse_record, read_records
from trimaran.measure.others import Others
from trimaran.report.observation import Observation, ObservedRank

if TYPE_CHECKING:
    from torch import nn

_NAMES = {
    "load": "load (waiting for data)",
    "start": "starting loader workers",
    "forward": "FP  forward, loss",
    "backward": "BP  backward",
    "exchange": "exchange, exposed",
    "wait": "waiting for slower ranks",
    "wait_in_collective": "the same, in collectives",
    "update": "WU  update",
    "sync": "reading values (.item())",
    "collective": "collectives of the script",
    "other": "other: Python between",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A command that was run and watched.

    Attributes:
        exit_code: of the command; negative: the number of the signal that ended it
        records: of its processes
        others: share of the cores that other programs took meanwhile [0..1]; None: not known
        stopped: the signal that asked for its end, where it did not end well then; None: it ended by itself
    """

    exit_code: int
    records: Sequence[ProcessRecord]
    others: float | None = None
    stopped: int | None = None


def observe_command(command: Sequence[str], *, again: bool = True, output_to: int | None = None) -> Observed:
    """Run a command, watch every Python process of it that imports torch, and wait for its end.

    Args:
        command: program and arguments
        again: time a copy of the model again, once the script is over
        output_to: file descriptor for what the command writes to standard output; None: where ours goes

    Raises:
        InputError: there is no such command, or it is no program
        EnvironmentProblem: this is not Linux
    """
    needs_linux("observing a script")
    if command[0].endswith(".py") and Path(command[0]).is_file() and shutil.which(command[0]) is None:
        command = [sys.executable, *command]
    program = shutil.which(command[0])
    if program is None:
        raise InputError(
            f"no such command: {command[0]}; say what starts the script, such as trimaran observe -- python train.py",
            command=command[0],
        )
    with temporary_folder("trimaran-observe-") as folder:
        environment = watched_environment(os.environ, folder, again=again)
        others = Others()
        with _requests() as asked:
            try:
                process = subprocess.Popen([program, *command[1:]], env=environment, stdout=output_to)
            except OSError as error:
                raise InputError(f"{program} cannot be run: {error.strerror}", command=program) from error
            asked.hand_on_to(process)
            ended = process.wait()
        if ended in (-signal.SIGINT, exit_code(signal.SIGINT)):
            asked.signals.append(signal.SIGINT)
        return Observed(
            exit_code=ended,
            records=read_records(folder),
            others=others.share(),
            stopped=asked.signals[0] if ended and asked.signals else None,
        )


def describe_exit(exit_code: int) -> str | None:
    """How a command ended, where it failed; None where it did not.

    Args:
        exit_code: negative: the number of a signal
    """
    if exit_code == 0:
        return None
    if exit_code > 0:
        return f"the command ended with exit code {exit_code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"the command was ended by {names.get(-exit_code, f'signal {-exit_code}')}"


class _Requests:
    """Signals that ask for the end: handed on to the command. Ctrl-C reaches it by itself: it is in our group.

    Attributes:
        signals: those that came
    """

    def __init__(self) -> None:
        self.signals: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def hear(self, number: int, _frame: object) -> None:
        """Note a signal, and hand it on."""
        self.signals.append(number)
        if self._process is not None and number != signal.SIGINT:
            self._process.send_signal(number)

    def hand_on_to(self, process: "subprocess.Popen[bytes]") -> None:
        """Hand on what comes to a process, and what came while it was started."""
        self._process = process
        for number in self.signals:
            process.send_signal(number)


@contextlib.contextmanager
def _requests() -> Iterator[_Requests]:
    requests = _Requests()
    before: dict[int, Any] = {n: signal.signal(n, requests.hear) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def conclude(records: Sequence[ProcessRecord], *, others: float | None = None) -> Observation:
    """The conclusions from the records.

    Args:
        records: of the processes of one script
        others: share of the cores that other programs took meanwhile; None: not known

    Raises:
        TrimaranError: nothing was seen that could be judged
    """
    findings = analyse(records)
    noise = noise_of(findings, others)
    handover = functools.cache(functools.partial(measure_handover, busy=noise > 0))
    quiet = findings.quiet or findings
    doubted, guess = None, ""
    others_made = made_by_others(findings, handover=handover) if noise else None
    if others_made is not None:
        remedies = advise(quiet, handover=handover)
        named = widened(remedies, others_made)
    else:
        remedies = advise(findings, handover=handover)
        doubted = doubt(findings, remedies, handover=handover, others=others)
        named = widened(remedies, noise)
    if doubted is not None:
        guess = name_limiter(advise(quiet, handover=handover))
        # What names no limiter names no remedy either, but for those that help whatever it is.
        named = [one for one in named if one.gain_interval[0] > 0 or one.id == "fewer-threads"]
    facts = findings.facts
    model = facts["model"] or {}
    return Observation(
        model=model.get("name", "unknown model"),
        device=model.get("device", "cpu"),
        step_time_s=findings.mean.step_s,
        interval_s=duration_interval(lambda parts: parts.step_s, findings.mean, findings.blocks, wider=noise),
        steps=findings.steps,
        backwards=findings.counts["backwards"],
        left_out=findings.left_out,
        parts_s=_named(asdict(findings.mean)),
        ranks=[
            ObservedRank(
                rank=rank.rank,
                samples=rank.samples,
                peak_bytes=_peak(rank.record),
                parts_s=_named(asdict(rank.parts)),
            )
            for rank in findings.ranks
        ],
        memory_bytes={
            "parameters": model.get("parameter_nbytes", 0),
            "gradients": model.get("gradient_nbytes", 0),
            "optimizer state": (facts["optimizer"] or {}).get("state_nbytes", 0),
        },
        launch_bound=_launch_bound(findings),
        limiter=name_limiter(remedies) if doubted is None else UNCLEAR,
        doubt=doubted,
        guess=guess,
        remedies=named,
        unseen=[*_noise_lines(noise), *_unseen(findings)],
    )


def _named(parts: dict[str, float]) -> dict[str, float]:
    return {_NAMES[name]: seconds for name, seconds in parts.items()}


def _peak(record: ProcessRecord) -> int:
    memory = record.facts["memory"]
    peak: int = memory["device_peak_nbytes"] or memory["peak_nbytes"]
    return peak


def _launch_bound(findings: TimeFindings) -> float | None:
    if (findings.facts["model"] or {}).get("device") == "cuda":
        return findings.counts["dry"]
    return fixed_share([rank.record for rank in findings.ranks])


def _noise_lines(noise: float) -> Iterator[str]:
    if noise:
        yield f"Other programs ran: intervals are wider by up to {noise:.0%} of the time on each side for it."


def _unseen(findings: TimeFindings) -> Iterator[str]:
    facts = findings.facts
    model = facts["model"]
    if facts["loader"] is None:
        yield "No DataLoader was used: time that the script spends on its own data is under “other”."
    elif facts["loader"]["workers"]:
        yield "What the loader's workers do was not looked at, only how long the script waits for them."
    if model is None:
        yield "No module was called with gradients on: forward is under “other”."
    elif model["fsdp"]:
        yield "FSDP: its exchanges overlap with the work and are not told apart from it."
    elif findings.first.record.world > 1 and model["ddp"] is None:
        yield "Several ranks without DistributedDataParallel: only collectives that Python calls were timed."
    if model is not None and model["device"] == "cuda":
        yield "On a GPU the time is the host's, which issues work and goes on: kernels are not looked at."
        if findings.first.record.world > 1:
            yield "NCCL does not block the host either: of an exchange only what the host waits for is seen."
    if len(findings.ranks) < findings.first.record.world:
        yield f"{len(findings.ranks)} of {findings.first.record.world} ranks left a record: waiting is judged by those."
    if facts["compiled"]:
        yield "Compiled regions are timed as a whole; their kernels are not looked at."
    if facts["other_optimizers"]:
        yield "Several optimizers: a step ends with that of the first one seen, until another takes 50 alone."
    again = findings.first.record.again
    if again is None:
        yield "The model was not timed again after the script, so larger batches could not be judged."
    elif "why_not" in again:
        yield f"Larger batches could not be judged: {again['why_not']}."
    if findings.elsewhere:
        yield f"{findings.elsewhere} other processes took steps too; this is the group that took most."
    yield "Threads of the script other than the one that trains, and work in C++ that Python does not call."


class Watch:
    """A watch on this process: a context manager, or a handle with `report` and `stop`.

    Args:
        model: what is trained; None: it is found by watching
    """

    def __init__(self, model: "nn.Module | None" = None) -> None:
        needs_linux("observing this process")
        self._output = load_watch()
        self._output.install_all()
        if os.environ.get("TRIMARAN_OBSERVE") is None:
            self._output.OUTPUT.renew(model)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Watch no longer; what was seen is kept for `report`."""
        if os.environ.get("TRIMARAN_OBSERVE") is None:
            self._output.LEDGER.thread = 0

    def report(self, *, again: bool = True) -> Observation:
        """The observation of this process so far; `print` it.

        Args:
            again: time a copy of the model on larger batches, which takes two seconds; the model itself, its gradients
                and torch's random states stay as they are

        Raises:
            TrimaranError: too few steps were taken
        """
        plain = self._output.record()
        if again:
            plain |= {"again": self._output.measure_again()}
        ledger = self._output.LEDGER
        watched, ledger.thread = ledger.thread, 0
        try:
            return conclude([parse_record(plain, source="this process")])
        finally:
            ledger.thread = watched


def observe(model: "nn.Module | None" = None) -> Watch:
    """Watch what training steps of this process are spent on, from now on.

    Args:
        model: what is trained; None: it is found by watching

    Returns:
        A handle; also a context manager that stops watching at its end.

    Raises:
        InputError: `model` is no module
        EnvironmentProblem: this is not Linux
    """
    if model is not None and not callable(getattr(model, "named_modules", None)):
        raise InputError(f"observe: model must be a torch.nn.Module or None, got {model!r}", code="observe.no-model")
    return Watch(model)
