"""Predicts every row of some files; in two processes where there are many.

Rows of one network go to the same process one after another, because the trace of a network is reused.

For each row: read its set-up, predict its step, convert to the row's unit. A row that cannot be predicted is skipped,
with the reason. Only a fault of the predictor ends a run.
"""

import functools
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress
from trimaran.graph.kernels.workload import Gradient
from trimaran.graph.types import Phase
from trimaran_studies.facts.sizes import SIZED
from trimaran_studies.published.rows import published_rows, read_rows
from trimaran_studies.time_to_train import FAMILY as TIMES
from trimaran_studies.time_to_train import answer_times
from trimaran_studies.validation.collectives import answer_collectives
from trimaran_studies.validation.field import FAMILY as FIELD
from trimaran_studies.validation.field import answer_field, field_rows
from trimaran_studies.validation.intervals import deviation, interval
from trimaran_studies.validation.loader_rates import FEEDING, answer_feeding
from trimaran_studies.validation.measured_loaders import answer_measured_loaders
from trimaran_studies.validation.measurement import (
    Anchor,
    Answer,
    Row,
    Setup,
    attempt,
    cells_read,
    figure_of,
    is_time,
    step_of,
)
from trimaran_studies.validation.memory import answer_memory
from trimaran_studies.validation.model_parallel import answer_model_parallel
from trimaran_studies.validation.scores import Scored
from trimaran_studies.validation.setups import recipe_of, understand
from trimaran_studies.validation.steps import RowStep, roofline_step_s, row_step, scaling_baselines


def answer(row: Row, *, anchor: Anchor, sizes: bool = False) -> Answer:
    """Predict a row.

    Args:
        row: of any family
        anchor: "single": one device's figure of the same source may be used; "none": it may not
        sizes: whether networks of known size only are scaled from one device's figure, not skipped

    Raises:
        TrimaranError: a fault of the predictor
    """
    found = attempt(row, lambda: _answered(row, anchor, sizes))
    return Answer(row=row, predicted=None, skipped=found) if isinstance(found, str) else found


def _answered(row: Row, anchor: Anchor, sizes: bool) -> Answer:
    if row.fault:
        raise InputError(row.fault, code="rows.unreadable-row", row=row.row_id)
    if row.measured <= 0:
        raise InputError(
            f"row {row.row_id}: no figure, or one of 0: nothing can be compared with it", code="validate.no-figure"
        )
    if row.family == TIMES:
        return answer_times([row])[0]
    if row.family in _FAMILIES:
        return _FAMILIES[row.family](row)
    if row.family in _STEPS:
        return _step(row, anchor, sizes)
    raise InputError(f'family "{row.family}" is not one that is predicted', family=row.family)


_STEPS = ("single_gpu_time", "dp_throughput", "dp_step_time")
_FAMILIES: Mapping[str, Callable[[Row], Answer]] = {
    "collectives": answer_collectives,
    "peak_memory": answer_memory,
    "activation_memory": answer_memory,
    "mp_throughput": answer_model_parallel,
    "mp_step_time": answer_model_parallel,
    FIELD: answer_field,
}


def row_forecast(row: Row, *, anchor: Anchor, sizes: bool = True) -> tuple[Setup, RowStep, float]:
    """The set-up of a row of a step, the step, and the figure in the row's unit.

    Args:
        row: of a family whose figure follows from a step
        anchor: whether one device's figure may be used
        sizes: whether networks of known size only are scaled

    Raises:
        TrimaranError: it cannot be predicted
    """
    with cells_read(row):
        setup, recipe = understand(row), recipe_of(row)
    if setup.network.startswith(SIZED) and not sizes:
        raise InputError(
            f'only the size of "{setup.network.removeprefix(SIZED)}" is known: --sizes predicts its scaling from '
            "one device's figure"
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
    """Time of the backward kernels of weights' gradients, or of all others [s]."""
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


Predict = Callable[[Row], Answer]

_ALONE = 200
"""Number of rows up to which one process is faster: a second one would take longer to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRequest:
    """The rows to predict, and how.

    Attributes:
        files: of rows; none: those that come with Trimaran
        family: only rows of this family
        anchor: whether figures of one device may be used
        sizes: whether networks of known size only are scaled from one device's figure, not skipped
        processes: largest number of them
    """

    files: tuple[Path, ...] = ()
    family: str | None = None
    anchor: Anchor = "single"
    sizes: bool = False
    processes: int = 2


def validate(request: ValidationRequest, *, progress: Progress) -> tuple[Answer, ...]:
    """Predict every row, in the order of the files.

    Args:
        request: files and family
        progress: called after every part

    Raises:
        InputError: a file cannot be read; or an option that changes none of the rows
        TrimaranError: a fault of the predictor
    """
    rows = _rows(request)
    _check_options(request, {FEEDING} if request.family == FEEDING else {row.family for row in rows})
    if request.family == FEEDING:
        answers = answer_feeding([row for row in rows if not row.fault], anchor=request.anchor)
        answers += tuple(Answer(row=row, predicted=None, skipped=row.fault) for row in rows if row.fault)
        if not request.files:
            answers = (*answers, *answer_measured_loaders())
        progress("rows", len(answers), len(answers))
        return answers
    return answer_rows(rows, request.anchor, sizes=request.sizes, progress=progress, processes=request.processes)


def _check_options(request: ValidationRequest, families: Collection[str]) -> None:
    """Refuse options that no row of these families goes by."""
    for is_given, option, going in (
        (request.anchor == "none", "--anchor none", (*_STEPS, TIMES, FEEDING)),
        (request.sizes, "--sizes", _STEPS),
    ):
        if is_given and families and not set(going) & set(families):
            raise InputError(
                f"{option} changes nothing of rows of {', '.join(sorted(families))}: those of {', '.join(going)} go by "
                "it; leave it out",
                code="validate.unused-option",
                option=option,
            )


def answer_rows(
    rows: Sequence[Row], anchor: Anchor, *, progress: Progress, sizes: bool = False, processes: int = 2
) -> tuple[Answer, ...]:
    """Predict rows; answers are in their order.

    Args:
        rows: of any families
        anchor: whether figures of one device may be used
        progress: called after every part
        sizes: as for `ValidationRequest`
        processes: largest number of them

    Raises:
        TrimaranError: a fault of the predictor
    """
    together = [place for place, row in enumerate(rows) if row.family == TIMES and not row.fault]
    if together:
        return _with_times(rows, together, anchor, progress=progress, sizes=sizes, processes=processes)
    one = functools.partial(answer, anchor=anchor, sizes=sizes)
    at_most = min(processes, os.cpu_count() or 1)
    if len(rows) <= _ALONE or at_most < 2:
        return _here(rows, one, progress)
    return _apart(rows, one, progress, at_most)


def _with_times(
    rows: Sequence[Row], together: Sequence[int], anchor: Anchor, *, progress: Progress, sizes: bool, processes: int
) -> tuple[Answer, ...]:
    """Predict times to train together, because one is predicted from another with anchors; other rows as usual."""
    times = set(together)
    apart = [place for place in range(len(rows)) if place not in times]
    answers: dict[int, Answer] = {}
    if apart:
        others = [rows[place] for place in apart]
        found = answer_rows(others, anchor, progress=progress, sizes=sizes, processes=processes)
        answers.update(zip(apart, found, strict=True))
    asked = [rows[place] for place in together]
    told = answer_times(asked) if anchor == "single" else tuple(answer_times([row])[0] for row in asked)
    answers.update(zip(together, told, strict=True))
    progress("rows", len(rows), len(rows))
    return tuple(answers[place] for place in range(len(rows)))


def _rows(request: ValidationRequest) -> list[Row]:
    if not request.files and request.family == FIELD:
        return list(field_rows())
    if not request.files:
        return list(published_rows(request.family))
    return [row for path in request.files for row in read_rows(path, family=request.family, keeps_faulty=True)]


def scored(found: Answer) -> Scored:
    """An answer in the form in which it is scored and shown."""
    row, setup = found.row, found.setup
    machine = row.fields.get("machine") or row.fields.get("gpu", "")
    network = row.fields.get("op") or row.fields.get("model", "")
    nodes = row.fields.get("n_nodes", "1")
    several = nodes not in ("", "0", "1") if found.several_nodes is None else found.several_nodes
    if setup is not None:
        machine = setup.machine.node.name if setup.devices > 1 else setup.device
        network, several = setup.network.removeprefix(SIZED), setup.nodes > 1
    return Scored(
        row_id=row.row_id,
        family=row.family,
        groups={
            "use": row.fields.get("use", ""),
            "setting": _setting(found),
            "machine": machine,
            "network": network,
            "source": _source(row),
        },
        several_nodes=several,
        measured=row.measured,
        predicted=found.predicted,
        low=found.low,
        high=found.high,
        baselines=dict(found.baselines or {}),
        skipped=found.skipped,
        flag=row.flag,
        fits=found.fits,
        anchors=found.anchors,
    )


def _setting(found: Answer) -> str:
    """Devices, nodes, and whether one device's figure was used."""
    setup = found.setup
    if found.basis:
        return found.basis
    if setup is None:
        return "not one step of equal ranks"
    where = "one device" if setup.devices == 1 else "one node" if setup.nodes == 1 else "several nodes"
    rules = found.baselines or {}
    return f"{where}, from one device's figure" if "linear" in rules else where


def _source(row: Row) -> str:
    return row.fields.get("source_repo") or row.fields.get("source_file") or row.fields.get("framework", "")


def _here(rows: Sequence[Row], one: Predict, progress: Progress) -> tuple[Answer, ...]:
    answers: list[Answer | None] = [None] * len(rows)
    for done, place in enumerate(_order(rows)):
        answers[place] = one(rows[place])
        progress("rows", done + 1, len(rows))
    return tuple(found for found in answers if found is not None)


def _apart(rows: Sequence[Row], one: Predict, progress: Progress, processes: int) -> tuple[Answer, ...]:
    """In several processes, each with parts that hold all rows of a network."""
    answers: list[Answer | None] = [None] * len(rows)
    done = 0
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            parts = list(_parts(rows))
            with _uninterrupted():
                waiting = {pool.submit(_answers, [rows[place] for place in part], one): part for part in parts}
            for ready in as_completed(waiting):
                part = waiting[ready]
                for place, found in zip(part, ready.result(), strict=True):
                    answers[place] = found
                done += len(part)
                progress("rows", done, len(rows))
        except BaseException:
            # The pool would wait until all rows have been answered.
            for process in list((pool._processes or {}).values()):
                process.kill()
            raise
    return tuple(found for found in answers if found is not None)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started in the block do not hear Ctrl-C: it is for the command, which ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _answers(rows: Sequence[Row], one: Predict) -> list[Answer]:
    return [one(row) for row in rows]


def _order(rows: Sequence[Row]) -> list[int]:
    return sorted(range(len(rows)), key=lambda place: (_kept_together(rows[place]), place))


def _kept_together(row: Row) -> tuple[str, ...]:
    return row.family, row.fields.get("model", ""), row.fields.get("source_file", ""), row.fields.get("precision", "")


def _parts(rows: Sequence[Row]) -> Iterable[list[int]]:
    parts: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        parts.setdefault(_kept_together(row)[:2], []).append(place)
    for part in sorted(parts.values(), key=len, reverse=True):
        in_order = sorted(part, key=lambda place: (_kept_together(rows[place]), place))
        for start in range(0, len(in_order), 400):
            yield in_order[start : start + 400]
