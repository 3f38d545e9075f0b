"""Measurements of one rank, while the other ranks measure the same.

    links     transfers by size, interference
    rounds    in each: operations one by one, the whole model with the loading of its data, updates; at every batch size

All ranks start each of these together, so that all are busy with the same. Imports torch.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from trimaran.base.errors import ExecutionError
from trimaran.base.job import Job
from trimaran.graph.behaviour import Behaviour, weighed
from trimaran.graph.capture.capture import Capture, capture
from trimaran.graph.capture.flow import move_constants
from trimaran.graph.optimizers import trained_parameters
from trimaran.launch.world import World
from trimaran.measure.calibration.between import measure_between
from trimaran.measure.calibration.devices import open_clock
from trimaran.measure.calibration.interference import measure_interference
from trimaran.measure.calibration.links import measure_curves, measure_encoding
from trimaran.measure.findings import Findings, Timed
from trimaran.measure.input_pipeline import measure_samples
from trimaran.measure.operations import OperationPasses
from trimaran.measure.rounds import Item, largest, measure_in_rounds, report
from trimaran.measure.wanted import Wanted, WholeRun
from trimaran.measure.whole_model import BatchSupply, UpdateTimer, WholeModel, make_stage
from trimaran.runtime.data.datasets import make_dataset
from trimaran.runtime.parts.part import Stage
from trimaran.runtime.precision import place_model
from trimaran.runtime.step.updates import Updater
from trimaran.user_code.alone import alone
from trimaran.user_code.datasets import first_samples, is_stream
from trimaran.user_code.randomness import derive_seed, seed_generators

_LOG = logging.getLogger(__name__)
# Where loading takes less of a step, no worker is worth starting, not even to see what it takes.
_LOADING_MATTERS = 0.02
# The first samples of a stream, this number of them, are measured several times.
_MOST_OF_STREAM = 256
_MODULE = WholeRun(form="module", execution="eager", batch=1)


def measure_on_rank(
    world: World,
    make_job: Callable[[], Job],
    digest: str,
    wanted: Wanted,
    behaviour: Behaviour | None = None,
    *,
    captured: Capture | None = None,
    box_s: float | None = None,
) -> Findings:
    """Measure what is wanted.

    Args:
        world: this rank; all ranks call this with the same arguments
        make_job: makes the job
        digest: of the graph that costs are wanted for
        wanted: what to measure
        behaviour: what was seen of the job; None: not examined
        captured: the job's graph and model, where they are there already
        box_s: time for all rounds together [s]; None: as `measure_in_rounds` has it

    Raises:
        ExecutionError: the job is another one here than where the graph was made
    """
    findings = measure_transfers(world, wanted)
    if wanted.passes or wanted.wholes or wanted.update:
        job = make_job()
        if captured is None:
            report(world, "capturing the graph")
            with alone():
                captured = capture(job)
            captured = replace(captured, graph=replace(captured.graph, behaviour=behaviour))
        job = weighed(job, behaviour)
        _measure_job(world, job, _place(captured, job, world, digest), wanted, findings, box_s)
    if wanted.samples:
        report(world, "measuring the data set")
        job = make_job()
        # The same on all ranks: those that measure a worker take longer.
        matters = not wanted.wholes or largest(world, _loading_share(findings)) > _LOADING_MATTERS
        findings.sampled = measure_samples(
            job, _numbered(job), rank=world.rank, ranks=world.size, device=world.device, workers=matters
        )
    return findings


def measure_transfers(world: World, wanted: Wanted) -> Findings:
    """Measure the transfers that are wanted, and what goes with them.

    Args:
        world: this rank; all ranks call this with the same arguments
        wanted: its curves, encodings and interference
    """
    findings = Findings()
    if wanted.curves:
        report(world, "measuring links")
        findings.curves = measure_curves(world, wanted.curves)
    if wanted.encodings:
        report(world, "measuring compression")
        findings.curves |= measure_encoding(world, wanted.encodings)
    for kind in wanted.interference:
        report(world, "measuring interference")
        findings.interference[kind] = measure_interference(world, kind)
    if wanted.between:
        report(world, "measuring the time between instructions")
        findings.between = measure_between(world)
    return findings


def _numbered(job: Job) -> Any:
    """The training data, or the first samples of a stream, which have numbers then."""
    dataset = make_dataset(job)
    return first_samples(dataset, _MOST_OF_STREAM) if is_stream(dataset) else dataset


def _loading_share(findings: Findings) -> float:
    """Loading as a part of loading, forward and backward, where it is the largest [0..1]."""
    shares = [0.0]
    for timed, rounds in findings.rounds.items():
        if timed.phase == "load" and isinstance(timed.what, WholeRun):
            others = [findings.rounds[timed._replace(phase=phase)] for phase in ("forward", "backward")]
            times = [[time for group in item for time in group] for item in (rounds, *others)]
            if all(times):
                load_s, forward_s, backward_s = map(median, times)
                shares.append(load_s / max(load_s + forward_s + backward_s, 1e-9))
    return max(shares)


def _place(captured: Capture, job: Job, world: World, digest: str) -> Capture:
    if captured.graph.digest != digest:
        raise ExecutionError(
            f'the job "{job.name}" has another graph in this process ({captured.graph.digest}) than where the plan is '
            f"made ({digest}): a model must be the same each time that Job.model makes it",
            code="measure.other-graph",
            expected=digest,
            found=captured.graph.digest,
        )
    place_model(captured.model, precision=job.precision, device=world.device)
    if captured.flow is not None and world.device != "cpu":
        captured.flow.to(world.device)
        move_constants(captured.flow.graph, torch.device(world.device))
    return captured


def _measure_job(
    world: World, job: Job, captured: Capture, wanted: Wanted, findings: Findings, box_s: float | None
) -> None:
    seed_generators(derive_seed(job.seed, "measure", world.rank))
    dataset = _numbered(job)
    stages: dict[tuple[str, str], Stage] = {}
    for run in (_MODULE, *wanted.wholes):
        if (run.form, run.execution) not in stages:
            stages[run.form, run.execution] = make_stage(job, captured, world, run.form, run.execution)

    loaders: dict[int, BatchSupply] = {}

    def batches(size: int) -> BatchSupply:
        if size not in loaders:
            loaders[size] = BatchSupply(job, dataset, size, world.device)
        return loaders[size]

    def whole(form: str, execution: str, size: int, updater: Updater | None = None) -> WholeModel:
        # One form is enough to time the loads of a slow data set.
        times_loads = form == ("replicated" if world.size > 1 else "module") and updater is not None
        stage, clock = stages[form, execution], open_clock(world)
        return WholeModel(job, stage, batches(size), size, clock, world.device, updater, times_loads=times_loads)

    updaters = {way: _updater(job, stage) for way, stage in stages.items()}
    items = [
        _whole_item(world, run, whole(run.form, run.execution, run.batch, updaters[run.form, run.execution]))
        for run in wanted.wholes
    ]
    if wanted.passes:
        passes = OperationPasses(job, captured, stages["module", "eager"], open_clock(world), world.device)
        contents = {op.id: op.content for op in captured.graph.ops}
        items += [_pass_item(passes, contents, batches(size), size) for size in wanted.passes]
    updates: UpdateTimer | None = None

    def run_updates(repeats: int) -> Mapping[Timed, list[float]]:
        nonlocal updates
        left = {run.batch for run in wanted.wholes} - {run.batch for run in findings.failed}
        if updates is None and left:
            updates = UpdateTimer(job, captured.model, whole("module", "eager", max(left)), open_clock(world))
        return {} if updates is None else updates.run(repeats)

    if wanted.update:
        items.append(Item(label="updates", run=run_updates))
    findings.passes = wanted.passes
    findings.rounds = measure_in_rounds(world, items, box_s=box_s, failed=findings.failed)
    findings.state_bytes_per_byte = updates.state_bytes_per_byte() if updates is not None else None


def _updater(job: Job, stage: Stage) -> Updater:
    trained = trained_parameters(stage.module)
    return Updater(job, trained, trained, measured=True)


def _pass_item(passes: OperationPasses, contents: Mapping[str, str], loader: BatchSupply, size: int) -> Item:
    def run(repeats: int) -> Mapping[Timed, list[float]]:
        found: dict[Timed, list[float]] = {}
        # Twice at most: a pass has as many samples as there are operations alike.
        for _ in range(min(repeats, 2)):
            try:
                seconds = passes.run(loader.again(), size)
            except Exception as error:  # noqa: BLE001 - whatever an operation of the user's raises
                # An operation may refuse to start an autograd graph; FLOPs then tell operations apart.
                _LOG.warning("operations cannot be run one by one: %s", error)
                return {}
            for op, (forward_s, backward_s) in seconds.items():
                found.setdefault(Timed(contents[op], size, "forward"), []).append(forward_s)
                found.setdefault(Timed(contents[op], size, "backward"), []).append(backward_s)
        return found

    return Item(label=f"operations at batch {size}", run=run)


def _whole_item(world: World, whole_run: WholeRun, model: WholeModel) -> Item:
    # Only a plan for one device runs the module as it is.
    alone = whole_run.form == "module" and world.size > 1

    def run(repeats: int) -> Mapping[Timed, list[float]]:
        times = model.run(repeats)
        if alone:
            del times["load"]
        return {Timed(whole_run, whole_run.batch, phase): seconds for phase, seconds in times.items()}

    label = f"{whole_run.form}, {whole_run.execution}, at batch {whole_run.batch}"
    return Item(label=label, run=run, alone=alone, whole=whole_run)
