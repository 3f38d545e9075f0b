"""What we say of a row: its set-up is understood, its step predicted, the figure given in the row's unit.

Nothing that a row holds ends a run: what cannot be predicted is skipped, with the reason.
"""

from collections.abc import Callable, Mapping

from trimaran.errors import InputError, TrimaranError
from trimaran.graph.types import Phase
from trimaran.graph.workload import Gradient
from trimaran.session.validation.baselines import roofline_step_s, scaling_baselines
from trimaran.session.validation.collectives import answer_collectives
from trimaran.session.validation.intervals import deviation, interval
from trimaran.session.validation.memory import answer_memory
from trimaran.session.validation.model_parallel import answer_model_parallel
from trimaran.session.validation.published_sizes import SIZED
from trimaran.session.validation.quantities import figure_of, is_time, step_of
from trimaran.session.validation.setups import understand
from trimaran.session.validation.sources import recipe_of
from trimaran.session.validation.steps import RowStep, row_step
from trimaran.session.validation.time_to_train import FAMILY as TIMES
from trimaran.session.validation.time_to_train import answer_times
from trimaran.session.validation.types import Anchor, Answer, Row, Setup


def answer(row: Row, *, anchor: Anchor, sizes: bool = False) -> Answer:
    """What we say of a row.

    Args:
        row: of any family
        anchor: "single": one device's figure of the same source may be used; "none": it may not
        sizes: networks of which only the size is known are scaled from one device's figure, not skipped
    """
    try:
        return _answered(row, anchor, sizes)
    except TrimaranError as error:
        return Answer(row=row, predicted=None, skipped=error.message)
    except (ArithmeticError, LookupError, ValueError, TypeError) as error:
        # A row that nobody thought of must not cost the others their answers; the reason is told all the same.
        return Answer(
            row=row, predicted=None, skipped=f"row {row.row_id}: Trimaran failed on it: {type(error).__name__}: {error}"
        )


def _answered(row: Row, anchor: Anchor, sizes: bool) -> Answer:
    if row.measured <= 0:
        raise InputError(f"row {row.row_id}: a measured figure of {row.measured} cannot be compared with")
    if row.family == TIMES:
        return answer_times([row])[0]
    if row.family in _FAMILIES:
        return _FAMILIES[row.family](row)
    if row.family in ("single_gpu_time", "dp_throughput", "dp_step_time"):
        return _step(row, anchor, sizes)
    raise InputError(f'family "{row.family}" is not one that is predicted', family=row.family)


_FAMILIES: Mapping[str, Callable[[Row], Answer]] = {
    "collectives": answer_collectives,
    "peak_memory": answer_memory,
    "activation_memory": answer_memory,
    "mp_throughput": answer_model_parallel,
    "mp_step_time": answer_model_parallel,
}


def row_forecast(row: Row, *, anchor: Anchor, sizes: bool = True) -> tuple[Setup, RowStep, float]:
    """The set-up of a row of a step, the step, and the figure in the row's unit.

    Args:
        row: of a family whose figure follows from a step
        anchor: whether one device's figure may be used
        sizes: whether networks of which only the size is known are scaled

    Raises:
        TrimaranError: it cannot be predicted
    """
    setup, recipe = understand(row), recipe_of(row)
    if setup.network.startswith(SIZED) and not sizes:
        raise InputError(
            f'of "{setup.network.removeprefix(SIZED)}" only the size is known: it is scaled from one device\'s figure '
            "where sizes are asked for (--sizes); a job of your own is predicted as any other"
        )
    anchor_s = None
    if anchor == "single" and row.anchor is not None:
        anchor_s = step_of(row, setup, row.anchor, devices=1)
    found = row_step(row, setup, recipe, anchor_s=anchor_s)
    return setup, found, figure_of(row, setup, _part(row, found))


def _step(row: Row, anchor: Anchor, sizes: bool) -> Answer:
    setup, found, predicted = row_forecast(row, anchor=anchor, sizes=sizes)
    anchored = anchor == "single" and row.anchor is not None
    spread = deviation(
        row.family,
        own=None if anchored else found.deviation,
        share=found.added_share,
        known=not setup.network.startswith(SIZED),
    )
    low, high = interval(predicted, spread, time=is_time(row))
    baselines = _baselines(row, setup, found, anchor)
    return Answer(row=row, predicted=predicted, low=low, high=high, baselines=baselines, setup=setup)


def _part(row: Row, found: RowStep) -> float:
    """The part of the step that the row's metric counts [s]."""
    if row.family != "single_gpu_time":
        return found.seconds
    name = row.fields.get("metric", "").lower()
    estimate = found.estimate
    if name.startswith("infer") or row.fields.get("mode", "").lower().startswith("inf"):
        return estimate.forward.seconds
    if "fwd+bwd" in name or "e2e" in name:
        return estimate.forward.seconds + estimate.backward.seconds
    if "updategradinput" in name or "accgradparameters" in name:
        return _gradients_s(found, Gradient.WEIGHT if "accgrad" in name else Gradient.INPUT)
    if "backward" in name or "bwall" in name:
        return estimate.backward.seconds
    if "forward" in name or "fw_" in name or "updateoutput" in name:
        return estimate.forward.seconds
    return found.seconds


def _gradients_s(found: RowStep, wanted: Gradient) -> float:
    """Backward kernels that make weights' gradients, or all others [s]."""
    total = 0.0
    for work, seconds in zip(found.workload.works, found.estimate.work_s, strict=True):
        if work.phase is Phase.BACKWARD and (work.gradient is Gradient.WEIGHT) == (wanted is Gradient.WEIGHT):
            total += seconds
    return total


def _baselines(row: Row, setup: Setup, found: RowStep, anchor: Anchor) -> Mapping[str, float] | None:
    if row.family == "single_gpu_time" or setup.devices == 1 or row.anchor is None or anchor == "none":
        if setup.network.startswith(SIZED):
            return None
        whole = roofline_step_s(found.workload, setup.machine.node.device) * setup.accumulation
        return {"roofline": figure_of(row, setup, whole * _part(row, found) / found.seconds)}
    if is_time(row):
        one = scaling_baselines(1.0, setup.devices)
        return {name: row.anchor * setup.devices / rate for name, rate in one.items()}
    return scaling_baselines(row.anchor, setup.devices)
