"""Whether a training that has failed is started again, and on which devices.

After a failure of a rank the parent ends all ranks, and starts them again from the last commit:

| failure | started again |
|---|---|
| a rank died, or held the others up until the watch ended it | yes |
| an error in a rank: the user's code, a library, memory that ran out | yes, but not twice in a row at the same step |
| a machine that lacks something, as room on its disk | yes, once a step has been done |
| an input that is wrong, a damaged file, a loss that is not a finite number, a step that is not one process's | no |
| a signal asked for the end, also of a rank that had not begun to listen | no |

What is not started again would come again, or was asked for. An error comes twice where its type, its text and the step
are the same. A death by SIGKILL and a process that was stopped have their cause outside, and may come twice.

A device is lost for good where torch cannot use it any more: after a failure each GPU is tried in a separate process.
So it is where one rank was the cause of two failures in a row, both of its process, and no step was done between them.
The others are then planned for again. A device of a CPU is no more than a process, and is lost in the second manner
only.

Where no step was done since the last start, the next start waits: 1 s, 2 s, 4 s, up to a minute.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from trimaran.base.errors import EnvironmentProblem, ExecutionError, TrimaranError
from trimaran.base.progress import Progress
from trimaran.base.signals import STOP_SIGNALS, signal_name
from trimaran.features.training.gradient_noise import obtain_observable_plan
from trimaran.planner.pins import NO_PINS, spreading
from trimaran.planning.answer.results import Planned
from trimaran.planning.plan import obtain_plan
from trimaran.planning.requests import NO_TARGET

LONGEST_WAIT_S = 60.0
"""Before a start, where the one before it has come to nothing [s]."""

TRYING_A_DEVICE_S = 120.0
"""After that a device that does not answer is taken for lost [s]."""

_KEPT = ("forbid", "allow", "compress", "compression", "codec", "powersgd_samples", "workers")
"""Pins that hold for another plan, too."""

MOST_KINDS = 3
"""Kinds of plans that are tried after one that trains something else."""

VISIBLE = "CUDA_VISIBLE_DEVICES"

_OF_PROCESSES = ("rank.died", "rank.hangs")
_STOPPED_BY_SIGNAL = "T"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do after a failure.

    Attributes:
        refused: why the training is not started again; empty: it is
        wait_s: before that [s]
        lost: rank whose device is taken for lost; None: none
    """

    refused: str = ""
    wait_s: float = 0.0
    lost: int | None = None


class Restarts:
    """The failures of one run.

    Args:
        most: times that its ranks may be started again

    Attributes:
        count: of the starts after the first
    """

    def __init__(self, most: int) -> None:
        self.count = 0
        self._most = most
        self._ever = False
        self._in_vain = 0
        self._last: TrimaranError | None = None

    @property
    def allowed(self) -> bool:
        """Whether ranks may be started again at all."""
        return self._most > 0

    def __str__(self) -> str:
        return f"{self.count} of {self._most}"

    def judge(self, error: TrimaranError, *, progressed: bool, asked: bool = False) -> Verdict:
        """What to do after a failure; a start that follows from it counts.

        Args:
            error: of the launch
            progressed: a step was done since the ranks were started
            asked: a signal has asked for the end of the training

        Example:
            >>> restarts = Restarts(2)
            >>> died = ExecutionError("rank 1 died", code="rank.died", rank=1, exit_code=-9)
            >>> restarts.judge(died, progressed=True)
            Verdict(refused='', wait_s=0.0, lost=None)
            >>> restarts.judge(died, progressed=False)
            Verdict(refused='', wait_s=1.0, lost=1)
            >>> restarts.judge(died, progressed=True).refused
            'it was started again 2 times, as often as --max-restarts allows'
        """
        before, self._last = self._last, error
        self._ever = self._ever or progressed
        refused = "a signal has asked for its end" if asked else self._refused(error, before)
        if refused:
            return Verdict(refused=refused)
        if self.count == self._most:
            times = "once" if self._most == 1 else f"{self._most} times"
            return Verdict(refused=f"it was started again {times}, as often as --max-restarts allows")
        self.count += 1
        self._in_vain = 0 if progressed else self._in_vain + 1
        wait_s = min(2.0 ** (self._in_vain - 1), LONGEST_WAIT_S) if self._in_vain else 0.0
        rank = error.figures.get("rank")
        twice = not progressed and before is not None and {before.code, error.code} <= {*_OF_PROCESSES}
        lost = rank if twice and before is not None and before.figures.get("rank") == rank else None
        return Verdict(wait_s=wait_s, lost=lost if isinstance(lost, int) else None)

    def _refused(self, error: TrimaranError, before: TrimaranError | None) -> str:
        if isinstance(error, EnvironmentProblem):
            return "" if self._ever else "no step had been done"
        if not isinstance(error, ExecutionError) or error.code.startswith(("loss.", "verify.")):
            return "the same would come again"
        ended = error.figures.get("exit_code")
        if error.code == "rank.died" and isinstance(ended, int) and -ended in STOP_SIGNALS:
            return f"{signal_name(-ended)} asked for its end"
        if before is not None and not _from_outside(error) and _same(before, error):
            return "the same error came twice at the same step"
        return ""


def _from_outside(error: TrimaranError) -> bool:
    figures = error.figures
    if error.code == "rank.died":
        return figures.get("exit_code") == -signal.SIGKILL
    return error.code == "rank.lost-peer" or (error.code == "rank.hangs" and figures.get("state") == _STOPPED_BY_SIGNAL)


def _same(one: TrimaranError, other: TrimaranError) -> bool:
    if one.code == "rank.died" and one.figures.get("step") is None:
        return False
    names = ("raised", "exit_code", "state", "instruction", "step")
    return one.code == other.code and all(one.figures.get(name) == other.figures.get(name) for name in names)


# ---------------------------------------------------------------------------------------------------------------------
# What is left of the devices


def gpus_left(environment: dict[str, str] | None = None) -> list[str]:
    """The GPUs that torch can use now, as `CUDA_VISIBLE_DEVICES` names them; each is tried in a separate process.

    Args:
        environment: variables of those processes; None: those of this one
    """
    variables = dict(os.environ if environment is None else environment)
    named = [name for name in variables.get(VISIBLE, "").split(",") if name]
    count = _run("import torch; print(torch.cuda.device_count())", variables)
    names = named or [str(index) for index in range(int(count or 0))]
    works = "import torch; print(int(torch.ones(8, device='cuda').sum()))"
    return [name for name in names if _run(works, variables | {VISIBLE: name}) == "8"]


def _run(code: str, variables: dict[str, str]) -> str:
    """The last line that a new interpreter prints; empty where it fails or takes too long."""
    with suppress(subprocess.SubprocessError, OSError):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRYING_A_DEVICE_S,
            check=False,
        )
        lines = done.stdout.split()
        return lines[-1] if lines and done.returncode == 0 else ""
    return ""


def devices_left(planned: Planned, lost: int | None, find: Callable[[], Sequence[str]] = gpus_left) -> int:
    """How many devices a training can go on with; GPUs that are lost are not shown to the processes that follow.

    Args:
        planned: what ran
        lost: rank whose device is taken for lost; None: none
        find: the GPUs that can be used
    """
    ranks = planned.simulated.plan.strategy.devices
    if planned.simulated.cluster.machine.node.device.form == "cpu":
        return ranks if lost is None else ranks - 1
    before = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    found = list(find())
    if lost is not None:
        gone = before[lost] if before else str(lost)
        found = [name for name in found if name != gone]
    if len(found) < ranks:
        os.environ[VISIBLE] = ",".join(found)
    return min(ranks, len(found))


def plan_again(planned: Planned, note: str, *, gradient_noise: bool, progress: Progress, **otherwise: Any) -> Planned:
    """Another plan of the same job and global batch, without the degrees that the user had pinned.

    Args:
        planned: what ran
        note: why it is planned again
        gradient_noise: it is observed
        progress: told what is being done
        otherwise: fields of the request or of its pins that are other ones

    Raises:
        InputError: the options of the request cannot be kept
        InfeasibleError: nothing fits
    """
    batch, request = planned.global_batch_size, planned.request
    pinned = {name: otherwise.pop(name) for name in [*otherwise] if hasattr(NO_PINS, name)}
    another = replace(
        request,
        batch=batch,
        pins=replace(NO_PINS, **{name: getattr(request.pins, name) for name in _KEPT} | pinned),
        target=NO_TARGET,
        objective="throughput" if request.objective in ("time", "cost") else request.objective,
        **otherwise,
    )
    obtain = obtain_observable_plan if gradient_noise else obtain_plan
    found = obtain(replace(planned.source, global_batch_size=batch), another, progress=progress)
    return replace(found, notes=(*planned.notes, note))


def other_kind(planned: Planned) -> dict[str, Any] | None:
    """What is asked of a plan of another kind; None: the user has given the strategy, or a part of it.

    Args:
        planned: what would train something else
    """
    pins, strategy = planned.request.pins, planned.simulated.plan.strategy
    whole = pins.microbatches == 1
    free = replace(NO_PINS, **{name: getattr(pins, name) for name in _KEPT}, microbatches=1 if whole else None)
    if planned.simulated.search is None or pins != free or pins.allow:
        return None
    kinds = spreading(strategy)
    return {"forbid": tuple(sorted({*pins.forbid, *kinds})), "microbatches": 1 if whole or not kinds else None}
