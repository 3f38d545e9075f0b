"""What filled the memory of a run that ran out of it, and which plan would fit, by the planner's figures.

Where none of the plans that were compared fits, one is looked for with the memory that there is, in a process that has
a minute for it: its ranks have ended, so what they held is free.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from trimaran.base.errors import ExecutionError, InfeasibleError, TrimaranError
from trimaran.base.files import folder_of_command, given
from trimaran.base.processes import Process
from trimaran.base.signals import leaving
from trimaran.base.units import format_bytes, format_seconds
from trimaran.jobs.resolve import JobSource
from trimaran.planner.pins import NO_PINS
from trimaran.planning.answer.results import Planned
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.memory import rank_states
from trimaran.program.plan_file import CandidateRow

ASKING_S = 60.0
"""Most time for planning again with the memory that there is [s]."""


def with_memory_plan(error: TrimaranError, planned: Planned, *, limit_s: float = ASKING_S) -> ExecutionError:
    """The error of a run that ran out of memory, with what the plan needs and what else would fit.

    A plan fits if it needs no more than the room that is left for it. Where the one that did not fit was predicted to
    fit too, the one that needs least is named. Where none of those that were compared fits, it is planned again.

    Args:
        error: with the code "memory.exhausted"
        planned: what was run
        limit_s: most time for planning again [s]
    """
    simulated = planned.simulated
    plan, chosen = simulated.plan, simulated.chosen
    rank = error.figures.get("rank")
    peaks = chosen.peak_bytes
    rank = rank if isinstance(rank, int) and rank < len(peaks) else max(range(len(peaks)), key=peaks.__getitem__)
    room = error.figures.get("room_bytes")
    lines = [error.message]
    state = rank_states(chosen.program, simulated.graph, plan.strategy)[rank]
    step = simulated.table.steps.get(simulated.graph.digest)
    of_optimizer = round(state.updated * step.state_bytes_per_byte) if step else 0
    parts = {
        "parameters": state.parameters,
        "gradients": state.trained,
        "optimizer state": of_optimizer,
        "buffers": state.buffers + state.kept,
    }
    parts["activations"] = max(0, peaks[rank] - sum(parts.values()))
    filled = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
    lines.append(f"The plan {plan.strategy.name} needs {format_bytes(peaks[rank])} on rank {rank}: {filled}.")
    needed = max(peaks)
    # Where it was predicted to fit, nobody knows how much is missing.
    short = isinstance(room, int) and room < needed
    most = room if isinstance(room, int) and short else needed - 1
    fits = [row for row in simulated.whole_plan.candidates if row.prediction is not None and 0 < _peak(row) <= most]
    if not short:
        lines.append("By that it fits, so that the prediction is too low here, or something else takes memory too.")
        fits = [row for row in fits if _peak(row) == min(map(_peak, fits))]
    figures: dict[str, object] = {"predicted_bytes": peaks[rank], "parts_bytes": parts, "fits": ""}
    if fits:
        best = min(fits, key=lambda row: row.prediction.step_time_s if row.prediction else 0.0)
        figures |= {"fits": best.strategy.name, "fits_bytes": _peak(best)}
        time_s = best.prediction.step_time_s if best.prediction else 0.0
        lines.append(
            f"Of the plans that were compared, {best.strategy.name} needs {'' if short else 'least, '}"
            f"{format_bytes(_peak(best))} "
            f"({format_seconds(time_s)} a step, {format_seconds(chosen.step_time_s)} of this one): trimaran train "
            f'{planned.reference} --strategy "{best.strategy.name}"'
        )
    elif most < 2**20:
        lines.append("No plan is known that needs less than 1 MiB: free memory, or train on a machine with more.")
    else:
        request = replace(
            planned.request, memory_bytes=most, devices=simulated.cluster.size, pins=NO_PINS, time_limit_s=limit_s / 2
        )
        found = plan_again(planned.source, request, limit_s=limit_s)
        command = f"{planned.reference} --memory {most // 2**20}MiB"
        lines.append(f"None of the plans that were compared needs at most {format_bytes(most)}.")
        if found.strategy:
            figures |= {"fits": found.strategy, "fits_bytes": found.peak_bytes}
            lines.append(
                f"Planned with that limit, {found.strategy} needs {format_bytes(found.peak_bytes)} "
                f"({format_seconds(found.step_time_s)} a step, {format_seconds(chosen.step_time_s)} of this one): "
                f"trimaran train {command}"
            )
        else:
            lines.append(f"{found.reason}. The command for it: trimaran plan {command}")
    explained = ExecutionError("\n".join(lines), code=error.code, **{**error.figures, **figures})
    for note in getattr(error, "__notes__", ()):
        explained.add_note(note)
    return explained


def _peak(row: CandidateRow) -> int:
    return max(row.prediction.peak_bytes, default=0) if row.prediction else 0


# ---------------------------------------------------------------------------------------------------------------------
# Planned again with the memory that there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """A plan that fits, or why there is none.

    Attributes:
        strategy: its name; empty: there is none
        peak_bytes: what it needs on its fullest rank [bytes]
        step_time_s: of one step [s]
        reason: why there is none, for people
    """

    strategy: str = ""
    peak_bytes: int = 0
    step_time_s: float = 0.0
    reason: str = ""


def plan_again(source: JobSource, request: PlanRequest, *, limit_s: float) -> Fitting:
    """Plan a job in another process, which is ended when it takes too long.

    Args:
        source: of the job
        request: with the memory that there is
        limit_s: most time for it [s]
    """
    late = f"No other plan was found within {limit_s:.3g} s, and planning without that limit may find one"
    try:
        process = Process(
            [sys.executable, "-P", "-m", __spec__.name],
            cwd=folder_of_command(),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(str(given(Path(entry)).resolve()) for entry in sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return Fitting(reason=f"No other plan was looked for: no process could be started ({error.strerror})")
    with leaving(lambda _: _end(process)), process:
        try:
            answer, _ = process.communicate(pickle.dumps((source, request)), timeout=limit_s)
            found: Fitting = pickle.loads(answer)  # noqa: S301 from the process that was started here
        except subprocess.TimeoutExpired:
            return Fitting(reason=late)
        except (OSError, pickle.UnpicklingError, EOFError):
            return Fitting(reason="No other plan was found: planning again failed")
        finally:
            _end(process)
    return found


def _end(process: Process) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _plan(source: JobSource, request: PlanRequest) -> Fitting:
    from trimaran.planning.plan import make_plan

    try:
        chosen = make_plan(source, request).simulated.chosen
    except InfeasibleError as error:
        return Fitting(reason=f"No plan does ({error.message}). Fewer samples at once may help, or more devices")
    except TrimaranError as error:
        return Fitting(reason=f"No other plan was found ({error.message})")
    return Fitting(strategy=chosen.strategy.name, peak_bytes=max(chosen.peak_bytes), step_time_s=chosen.step_time_s)


def _main() -> None:
    # What the job prints is no answer.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source, request = pickle.load(sys.stdin.buffer)  # noqa: S301 from the process that has started this one
    # By its name, as the one that has started this one knows it.
    from trimaran.features.training import memory

    with answer:
        pickle.dump(memory._plan(source, request), answer)


if __name__ == "__main__":
    _main()
