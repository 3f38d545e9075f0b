"""Submissions to benchmark rounds: the time to train of larger ones from the smallest of the same round and device.

    time = fixed time + epochs × samples of an epoch / batch × step

The step of the anchor follows from its time, because its other terms are known or taken from the curve. It gives the
speed of a device, and so the step of the target. Intervals combine deviations: of a training predicted from a smaller
one, as fitted to calibration rows (`TrainingWidth`), of assumptions and of curves.

`StepModel` is the step of a tuned training, as submissions to a benchmark run it, by devices and batch:

    step = forward + backward + update by the device's curves      scaled to one measured run
         + exposed communication of gradients
         + all-to-all exchange of embeddings                         embedding tables
         + waits for the slowest device

Copies into buffers are fused with kernels. Since round 1.0 a step is captured once and replayed, so launches by the
host take no time; before, they do. A device missing in the catalog has no curve: its time is the geometric mean of the
time of a stand-in and a time proportional to its samples. Where a step has fewer samples than devices, 2, 4, 8, …
devices share a sample and the rest evaluate.

`epochs_of` gives the epochs of a submission at another batch, from the convergence curve of its benchmark and one that
ran:

    epochs = curve(batch)                 the recipe of another submitter, and where a log has no epochs
           = curve(batch) × epochs of the anchor's log / curve(its batch)      where the log has fewer than the curve
           = the larger of the anchor's log and curve(batch)                   where the log has more

The last case is a recipe, mostly of an earlier round, whose epochs do not shrink with the batch. The log of the
predicted row is never used. Epochs of a benchmark without a curve grow by the median of the known curves.

`TrainingWidth` is the deviation of a training that is predicted from a smaller one, for known epochs:

    deviation² = base² + (per doubling × doublings of devices)² + (slope × share of the step that devices add)²

Fitted by benchmarks/fits/trainings.py to calibration rows in which larger set-ups are predicted from one device or from
the smallest set-up of a table. Widened, like all intervals, for machines and networks without fitted constants.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from trimaran.base.errors import InputError
from trimaran.base.precision import Precision
from trimaran.convergence.files import find_curve
from trimaran.graph.kernels.workload import Workload
from trimaran.machine.types import Machine
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran.pricing.exchange.costs import ExchangeOptions
from trimaran.pricing.exchange.frameworks import DDP
from trimaran.pricing.kernels.estimate import estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran.simulator.data_parallel import DataParallelSetup, data_parallel_step
from trimaran_studies.facts.benchmarks import Benchmark, benchmark_of
from trimaran_studies.time_to_train.submissions import Submission, anchors_of, read_submission
from trimaran_studies.validation.intervals import interval
from trimaran_studies.validation.measurement import Answer, Row, attempt, cells_read
from trimaran_studies.validation.steps import scaling_baselines

_YEARS = {0.5: 2018.9, 0.6: 2019.4, 0.7: 2020.5, 1.0: 2021.4, 1.1: 2021.8, 2.0: 2022.4, 2.1: 2022.8, 3.0: 2023.4}
"""Years of the results of a round, by the releases of the containers in labels."""

_CAPTURED = 1.0
"""The round since which steps are captured and replayed (CUDA graphs)."""

_USUAL = 32
"""Samples of a device at which a device missing in the catalog is compared with its stand-in."""

_EXCHANGE = ExchangeOptions(recipe=replace(DDP, tensor_s=0.0, passes=0), wire_share=0.5, explain=False)
"""Gradients in 16 bits, in DDP's buckets, with fused copies."""

_MOST = math.log(64.0)
"""Bound of the factor between a measured step and the modelled one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedStep:
    """A step of all devices.

    Attributes:
        seconds: the whole [s]
        added_s: part of it that one device alone would not have [s]
    """

    seconds: float
    added_s: float


class StepModel:
    """The step of a submission as a function of the speed of its devices.

    Args:
        submission: devices, batch and machine
        benchmark: what it trains

    Attributes:
        unsure: logarithm of the possible factor between the real and the modelled time on one device
    """

    def __init__(self, submission: Submission, benchmark: Benchmark) -> None:
        self._submission, self._benchmark = submission, benchmark
        self._machine = submission.machine
        self._software = _software(submission.version)
        self._devices, self._samples = training_devices(
            submission.batch, submission.devices, at_least=benchmark.divided
        )
        self._asked = _asked(benchmark, self._samples, self._machine)
        self._alone_s, self.unsure = self._modelled_s()

    def step(self, factor: float) -> TunedStep:
        """The step where a device's kernels take `factor` times the time of its curves."""
        alone = estimate_step(
            self._asked, self._machine.node.device, self._software, anchor_s=max(1e-7, self._alone_s * factor)
        )
        if self._submission.devices == 1:
            return TunedStep(seconds=alone.seconds, added_s=0.0)
        nodes = max(1, min(self._machine.nodes, self._devices))
        devices = nodes * math.ceil(self._devices / nodes)
        scaled = data_parallel_step(
            DataParallelSetup(
                workload=self._asked,
                estimate=alone,
                machine=self._machine,
                devices=devices,
                nodes=nodes,
                software=self._software,
                options=_EXCHANGE,
            )
        )
        passes_s = scaled.forward_s + scaled.backward_s
        update_s = scaled.update_s / math.ceil(devices / nodes) if self._benchmark.sharded_update else scaled.update_s
        gather_s = max(0.0, self._gather_s(devices, nodes) - passes_s)
        added_s = scaled.exposed_communication_s + gather_s + scaled.overhead_s
        return TunedStep(seconds=passes_s + update_s + added_s, added_s=added_s)

    def factor(self, step_s: float) -> float | None:
        """The factor at which the step takes a measured time; None where no factor between 1/64 and 64 does.

        Args:
            step_s: measured [s]
        """
        low, high = -_MOST, _MOST
        if not self.step(math.exp(low)).seconds < step_s < self.step(math.exp(high)).seconds:
            return None
        while high - low > 1e-4:
            middle = (low + high) / 2
            below = self.step(math.exp(middle)).seconds < step_s
            low, high = (middle, high) if below else (low, middle)
        return math.exp((low + high) / 2)

    def _modelled_s(self) -> tuple[float, float]:
        """A step on one device by curves [s]; uncertainty of its shape, as a logarithm."""
        device = self._machine.node.device
        found = estimate_step(self._asked, device, self._software)
        if self._submission.known:
            return found.device_s if self._submission.version >= _CAPTURED else found.seconds, 0.0
        usual = estimate_step(_asked(self._benchmark, _USUAL, self._machine), device, self._software)
        share = usual.device_s * self._samples / _USUAL
        return math.sqrt(found.device_s * share), math.log(found.device_s / share) / 2

    def _gather_s(self, devices: int, nodes: int) -> float:
        gathered = math.ceil(self._samples * self._benchmark.gathered_bytes)
        if not gathered:
            return 0.0
        if nodes > 1 and self._machine.fabric is not None:
            cards, link = self._machine.fabric
            per_device = cards * link.bytes_per_s * nodes / devices
            return 2 * (link.latency_s + gathered * (nodes - 1) / nodes / per_device)
        cost = collective_cost("all_to_all", gathered, machine=self._machine, devices=devices, year=self._software.year)
        return 2 * cost.seconds


def training_devices(batch: int, devices: int, *, at_least: int = 1) -> tuple[int, float]:
    """Devices that train, and samples of each.

    Args:
        batch: samples of a step
        devices: in all
        at_least: number of devices of a replica

    Example:
        >>> training_devices(3264, 64), training_devices(84, 768)
        ((64, 51.0), (672, 0.125))
    """
    if batch >= devices or at_least > 1:
        return devices, batch / devices
    sharing = 2 ** math.floor(math.log2(devices / batch))
    return batch * sharing, 1 / sharing


def _asked(benchmark: Benchmark, samples: float, machine: Machine) -> Workload:
    precision: Precision = "fp16" if "fp16" in machine.node.device.compute else "fp32"
    return benchmark.step_workload(samples, precision=precision)


def _software(version: float) -> Software:
    year = max((year for known, year in _YEARS.items() if known <= version), default=_YEARS[0.5])
    captured = version >= _CAPTURED
    return Software(
        framework="pytorch", year=year, compiled=captured, channels_last=True, source="tuned for a benchmark"
    )


_GROWTH, _MOST_GROWTH = 1.25, 1.6
"""Epochs at twice the batch, median and 95th percentile of the neighbouring points of curves in calibration rows."""

_BEYOND = 2.0
"""Largest batch that is predicted, by the largest batch of the curve."""

_PLAUSIBLE = 2.0
"""Largest plausible ratio of a log to the curve; above, the log counts another unit."""

_NORMAL_90 = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """Amounts of training of two submissions.

    Attributes:
        anchor: of the one that ran
        target: of the one that is predicted
        deviation: of the logarithm of the target's amount
        assumed: the assumption, in words; "": none
    """

    anchor: float
    target: float
    deviation: float
    assumed: str = ""


def epochs_of(anchor: Submission, target: Submission, benchmark: Benchmark) -> Epochs:
    """Amounts of training of an anchor and a target.

    Args:
        anchor: a smaller submission that ran
        target: of the same benchmark
        benchmark: what they train

    Raises:
        InputError: the target's batch is far beyond the curve's points
    """
    if not benchmark.curve:
        return _without_curve(anchor, target, benchmark)
    at_anchor, _ = _curve(benchmark, anchor.batch)
    at_target, deviation = _curve(benchmark, target.batch)
    ran = logged(anchor, benchmark, near=at_anchor)
    known = ran is not None
    ran = at_anchor if ran is None else ran
    below = min(1.0, ran / at_anchor)
    needs = at_target * below
    if anchor.batch == target.batch:
        needs, deviation = (ran if anchor.submitter == target.submitter else needs), deviation / 2
    elif anchor.submitter == target.submitter:
        needs = max(ran, needs)
    return Epochs(
        anchor=ran,
        target=needs,
        deviation=deviation,
        assumed="" if known else "the anchor's log counts something else: its epochs are the curve's",
    )


def logged(submission: Submission, benchmark: Benchmark, *, near: float | None) -> float | None:
    """Epochs in a submission's log, whose unit is inferred; None where no unit fits.

    Args:
        submission: that ran
        benchmark: what it trained
        near: epochs of the curve at its batch; None where there is none
    """
    told = submission.logged
    if told is None or told <= 0:
        return None
    units = (told - benchmark.counted_from, told / benchmark.samples_per_epoch)
    for epochs in units:
        if near is None and epochs > 0:
            return epochs
        if near is not None and near / _PLAUSIBLE < epochs < near * _PLAUSIBLE:
            return epochs
    return None


def _curve(benchmark: Benchmark, batch: int) -> tuple[float, float]:
    """Epochs at a batch by the curve, and their deviation."""
    curve = find_curve(benchmark.curve)
    _, largest = curve.range
    if batch > _BEYOND * largest:
        raise InputError(
            f'a batch of {batch} is far beyond the points of curve "{benchmark.curve}", which end at {largest}: '
            "nothing is known there",
            code="curve.batch-beyond-points",
            batch=batch,
            largest=largest,
        )
    need = curve.epochs(batch, benchmark.samples_per_epoch)
    deviation = math.log(need.high / need.low) / (2 * _NORMAL_90)
    return need.amount - benchmark.counted_from, deviation


def _without_curve(anchor: Submission, target: Submission, benchmark: Benchmark) -> Epochs:
    ran = logged(anchor, benchmark, near=None) or 1.0
    doublings = math.log2(target.batch / anchor.batch)
    wide = math.log(_MOST_GROWTH / _GROWTH) / _NORMAL_90
    return Epochs(
        anchor=ran,
        target=ran * _GROWTH ** max(0.0, doublings),
        deviation=wide * abs(doublings),
        assumed=f"no convergence curve of {benchmark.name} is known: {_GROWTH - 1:.0%} more epochs for twice the batch",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWidth:
    """The deviation of a training that is predicted from a smaller one: of the logarithm of its time.

    Attributes:
        base: also for equal set-ups
        per_doubling: for each doubling of devices
        slope: for a share 1 of the step that devices add
    """

    base: float
    per_doubling: float
    slope: float

    def deviation(self, doublings: float, share: float) -> float:
        """Deviation on 2 ** doublings times the devices, which add a share of the step.

        Example:
            >>> round(TrainingWidth(base=0.03, per_doubling=0.01, slope=0.4).deviation(0, 0.1), 4)
            0.05
        """
        return math.hypot(self.base, self.per_doubling * doublings, self.slope * share)


BUILT = TrainingWidth(base=0.0627, per_doubling=0.03, slope=0.572)
"""Deviation of networks that Trimaran builds."""

SIZE_ONLY = TrainingWidth(base=0.262, per_doubling=0.0, slope=1.12)
"""Deviation of networks of known size only."""

_BETWEEN = 0.08
"""Deviation between trainings of two submitters, all else being equal; assumed."""

_ASSUMED = math.log(3.0) / 1.645
"""Deviation of the logarithm of the fixed time, which is assumed: it may be a third or three times as long."""

_STAND_IN = 0.15
"""Deviation for an unknown benchmark."""

_SHRINKS = 0.5
"""Smallest share of an anchor's time that is steps, for any assumed fixed time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A target's time from one anchor.

    Attributes:
        minutes: to train
        deviation: of its logarithm
        baselines: predictions of simple rules [min]
        epochs: of both
        step: of the target
    """

    minutes: float
    deviation: float
    baselines: Mapping[str, float]
    epochs: Epochs
    step: TunedStep


def answer_submissions(rows: Sequence[Row]) -> tuple[Answer, ...]:
    """Predict lines of results; answers are in their order.

    Args:
        rows: all of a file, because one is predicted from another
    """
    read = [attempt(row, functools.partial(_read, row)) for row in rows]
    every = [one for one in read if isinstance(one, Submission)]
    factors: dict[str, float | None] = {}
    return tuple(
        _answer(one, every, factors) if isinstance(one, Submission) else Answer(row=row, predicted=None, skipped=one)
        for row, one in zip(rows, read, strict=True)
    )


def _read(row: Row) -> Submission:
    with cells_read(row):
        return read_submission(row)


def _answer(target: Submission, every: Sequence[Submission], factors: dict[str, float | None]) -> Answer:
    benchmark = benchmark_of(target.benchmark, target.version)
    row = replace(target.row, fields={**target.row.fields, "model": benchmark.name})
    anchors = anchors_of(target, every)
    if not anchors:
        of = f"{target.benchmark} on {target.kind} in round {target.round}"
        why = f"no smaller submission of {of} to predict from"
        return Answer(row=row, predicted=None, skipped=why)
    found, reasons = [], []
    for anchor in anchors:
        one = attempt(row, functools.partial(forecast, anchor, target, benchmark, factors))
        if isinstance(one, str):
            reasons.append(one)
        else:
            found.append(one)
    if not found:
        return Answer(row=row, predicted=None, skipped=reasons[0])
    middle = median_low([one.minutes for one in found])
    chosen = next(one for one in found if one.minutes == middle)
    low, high = interval(chosen.minutes, chosen.deviation, time=True)
    return Answer(
        row=row,
        predicted=chosen.minutes,
        low=low,
        high=high,
        baselines=chosen.baselines,
        basis="from its submitter's smallest"
        if anchors[0].submitter == target.submitter
        else "from another's smallest",
        anchors=tuple(one.row.row_id for one in anchors),
        several_nodes=target.machine.nodes > 1,
    )


def forecast(
    anchor: Submission, target: Submission, benchmark: Benchmark, factors: dict[str, float | None] | None = None
) -> Forecast:
    """A target's time to train from an anchor's.

    Args:
        anchor: that ran
        target: that is predicted; its time and its log are not used
        benchmark: that both train
        factors: cache of the factors of anchors' devices, for several calls

    Raises:
        InputError: no device speed explains the anchor's time, or the batch is far beyond the curve's points
    """
    factors = {} if factors is None else factors
    epochs = epochs_of(anchor, target, benchmark)
    trained = epochs.anchor * benchmark.samples_per_epoch / anchor.batch
    spent_s = 60 * anchor.minutes
    step_s = max(spent_s - benchmark.fixed_s, _SHRINKS * spent_s) / trained
    model, own = StepModel(target, benchmark), StepModel(anchor, benchmark)
    key = f"{id(anchor)} {epochs.anchor}"
    if key not in factors:
        factors[key] = own.factor(step_s)
    factor = factors[key]
    if factor is None:
        raise InputError(
            f"row {anchor.row.row_id} took {step_s:.3g} s a step, which no speed of its devices explains: "
            "nothing follows from it",
            row=anchor.row.row_id,
        )
    step = model.step(factor)
    steps = epochs.target * benchmark.samples_per_epoch / target.batch
    took_s = benchmark.fixed_s + steps * step.seconds
    # A longer fixed time adds to the target, and shortens the steps of the anchor and so those of the target.
    shrinks = steps * step.seconds / (step_s * trained)
    fixed = benchmark.fixed_s / took_s * abs(1.0 - shrinks)
    unsure = math.hypot(model.unsure - own.unsure, _ASSUMED * fixed)
    return Forecast(
        minutes=took_s / 60,
        deviation=_deviation(anchor, target, benchmark, epochs, step, unsure),
        baselines=_baselines(anchor, target, epochs),
        epochs=epochs,
        step=step,
    )


def _deviation(
    anchor: Submission, target: Submission, benchmark: Benchmark, epochs: Epochs, step: TunedStep, unsure: float
) -> float:
    width = SIZE_ONLY if benchmark.sized else BUILT
    return math.hypot(
        width.deviation(math.log2(target.devices / anchor.devices), step.added_s / step.seconds),
        _BETWEEN if anchor.submitter != target.submitter else 0.0,
        epochs.deviation,
        unsure,
        _STAND_IN if benchmark.stand_in else 0.0,
    )


def _baselines(anchor: Submission, target: Submission, epochs: Epochs) -> Mapping[str, float]:
    """Linear scaling and a discount for every doubling, and linear scaling with the epochs of the curve [min]."""
    rates = {name: scaling_baselines(1.0, one.devices) for name, one in (("anchor", anchor), ("target", target))}
    rules = {name: anchor.minutes * rates["anchor"][name] / rates["target"][name] for name in rates["anchor"]}
    return {**rules, "linear, curve": rules["linear"] * epochs.target / epochs.anchor}
