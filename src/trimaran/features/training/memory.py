"""What filled the memory of a run that ran out of it, and which plan would fit, by the planner's figures."""

from trimaran.base.errors import ExecutionError, TrimaranError
from trimaran.base.units import format_bytes, format_seconds
from trimaran.planning.answer.results import Planned
from trimaran.pricing.memory import rank_states
from trimaran.program.plan_file import CandidateRow


def with_memory_plan(error: TrimaranError, planned: Planned) -> ExecutionError:
    """The error of a run that ran out of memory, with what the plan needs and what else would fit.

    A plan fits if it needs no more than the room that is left for it. Where the one that did not fit was predicted to
    fit too, the one that needs least is named.

    Args:
        error: with the code "memory.exhausted"
        planned: what was run
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
        lines.append(
            f"None of the plans that were compared needs at most {format_bytes(most)}. One that does, if there is any: "
            f"trimaran plan {planned.reference} --memory {most // 2**20}MiB"
        )
    explained = ExecutionError("\n".join(lines), code=error.code, **{**error.figures, **figures})
    for note in getattr(error, "__notes__", ()):
        explained.add_note(note)
    return explained


def _peak(row: CandidateRow) -> int:
    return max(row.prediction.peak_bytes, default=0) if row.prediction else 0
