"""Step time of a rehearsed script on a target cluster: its kernels and collectives priced and played.

    records ─▶ last steps ─▶ prices (`prices.py`) ─▶ tasks (`replay.py`) ─▶ the simulator's engine ─▶ step and its parts

A rank's step is, at every instant, one of these, so that they sum up to it:

    compute         a kernel runs, slower while a collective has some of the multiprocessors
    launches        a kernel takes longer, or the device has nothing to do, because of the host that asks for it
    communication   the device waits for a collective whose members have all arrived
    bubble          it waits for other ranks: for a stage before or after, or for one that is late
    slowest         all ranks wait for the slowest of them, by as much as ranks of published trainings differ

The interval has the errors of the two models in it: of kernels (device, network, software), which all kernels share,
and of collectives, each group of an operation by its own curve. Each end is played again with those times, where that
does not take long.

Left out: the script's own Python and loading of data. Of a script that compiles, chains that are fused are one kernel
each (`fusion.py`).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.base.errors import InputError
from trimaran.base.timeline import COMMUNICATION, COMPUTE, HOST, Columns, Timeline
from trimaran.graph.kernels.workload import WorkKind
from trimaran.machine.catalog import find_device
from trimaran.machine.types import Machine
from trimaran.pricing.analytical.step_time import step_constants
from trimaran.pricing.kernels.constants import constants
from trimaran.pricing.kernels.corrections import KernelProfile, correction_from_profile, step_seconds
from trimaran.pricing.kernels.estimate import framework_constant, step_spread
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost
from trimaran.rehearsal.fusion import compiles, fused
from trimaran.rehearsal.prices import (
    KernelPrice,
    Links,
    RehearsalCalibration,
    host_seconds,
    price_kernels,
    sharing_host,
)
from trimaran.rehearsal.record import Issue, Kernel, Record, Run
from trimaran.rehearsal.replay import Excerpt, Play, Times, find_period, last_steps, play_of, run
from trimaran.simulator.tasks import prerequisites, released_by

TODAY = Software(year=2026.0, source="assumed: PyTorch 2.11 to 2.15, with which scripts are rehearsed")

TOP = 12
"""Kernels and collectives that are named."""

MOST_TASKS = 400_000
"""Above this the ends of the interval are not played: kernels scale the step, and exposed communication its part."""

COMPILED = "torch.compile: rehearsed without; chains that it fuses are priced as one kernel each"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStepParts:
    """A rank's step, divided; the parts sum up to it.

    Attributes:
        compute_s: kernels run [s]
        launches_s: waits for the host [s]
        communication_s: waits for collectives [s]
        bubble_s: waits for other ranks [s]
        slowest_s: waits of all ranks for the slowest [s]
    """

    compute_s: float = 0.0
    launches_s: float = 0.0
    communication_s: float = 0.0
    bubble_s: float = 0.0
    slowest_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The step [s]."""
        return self.compute_s + self.launches_s + self.communication_s + self.bubble_s + self.slowest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """A rehearsed rank's step.

    Attributes:
        rank: global
        parts: of its step
        device_s: of its kernels back to back [s]
        host_s: of its host, to launch them and its collectives [s]
        flops: of its kernels, recomputed ones too; of causal attention half [FLOP]
        model_flops: of these, without what is recomputed [FLOP]
        tokens: that its embedding looks up; 0 where it has none
        samples: batch of its first convolution, or of its tokens; 0 where it has none
    """

    rank: int
    parts: RankStepParts
    device_s: float
    host_s: float
    flops: float
    model_flops: float
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True)
class TimeShare:
    """What a kernel or a collective takes of a rank's step.

    Attributes:
        name: of the operator, or of the collective and its group
        count: in a step; the mean where steps differ
        seconds: in a step [s]
    """

    name: str
    count: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The step of a rehearsed script.

    Attributes:
        step: the last whole one, or the mean of those timed, with its 90 % interval [s]
        ranks: that were rehearsed, ascending
        critical: place in `ranks` of the rank that waits least for others
        mfu: operations of the model of all ranks, by their peak, without what is recomputed [0..1]
        peak: precision that `mfu` counts with, such as "bf16"
        kernels: that take most on the critical rank, the longest first
        collectives: likewise
        timeline: spans of the steps that were timed, by rank and stream
        timed: last steps whose means these are: a period of what ranks exchange
        notes: what to know, such as what was left out
    """

    step: Cost
    ranks: tuple[RankTime, ...]
    critical: int
    mfu: float
    peak: str
    kernels: tuple[TimeShare, ...]
    collectives: tuple[TimeShare, ...]
    timeline: Timeline
    timed: int
    notes: tuple[str, ...]

    @property
    def parts(self) -> RankStepParts:
        """Of the critical rank's step."""
        return self.ranks[self.critical].parts

    @property
    def tokens_per_s(self) -> float:
        """Tokens that a rank with an embedding looks up in a second; 0 where none has one [1/s]."""
        return max((rank.tokens for rank in self.ranks), default=0) / self.step.seconds


def step_time(
    records: Sequence[Record],
    machine: Machine,
    *,
    kinds: Mapping[int, int] | None = None,
    software: Software | None = None,
    calibration: RehearsalCalibration | None = None,
) -> StepTime:
    """The step time of a rehearsed script on a machine.

    Args:
        records: of the ranks that were rehearsed, at least one
        machine: nodes and what joins them, with at least as many devices as the records have ranks
        kinds: by rank, the rehearsed rank that does the same; ranks that are not named wait for nobody
        software: framework and year; None: `TODAY`
        calibration: factors from one device

    Returns:
        Step, parts, and the timeline of the last whole step, or the last period of steps that differ.

    Raises:
        InputError: no record, one without a whole step, a machine that is too small, ranks that wait for each other
    """
    return _Answer(records, machine, kinds or {}, software or TODAY, calibration).give()


def seconds_of_step(
    records: Sequence[Record],
    machine: Machine,
    *,
    kinds: Mapping[int, int] | None = None,
    software: Software | None = None,
    calibration: RehearsalCalibration | None = None,
) -> float:
    """The step alone of what `step_time` answers; arguments and errors as there [s]."""
    return _Answer(records, machine, kinds or {}, software or TODAY, calibration).seconds


def _check_steps(excerpts: Sequence[Excerpt]) -> None:
    """Refuse ranks of which one has not come as far as the others."""
    steps = {excerpt.record.rank: excerpt.steps[-1] for excerpt in excerpts}
    fewest, most = min(steps.values()), max(steps.values())
    if fewest != most:
        late = next(rank for rank, step in steps.items() if step == fewest)
        raise InputError(
            f"rank {late} ended after step {fewest}, others after {most}: a step takes the time of all ranks; rehearse "
            "them for as many steps",
            code="rehearse.different-steps",
            rank=late,
            step=fewest,
            others=most,
        )


def calibration_from_profile(profile: KernelProfile, record: Record, machine: Machine) -> RehearsalCalibration:
    """Factors from a profile of the script on one device: of operators, and of families of kernels for the others.

    Args:
        profile: of steps on a device of the machine's kind
        record: of the same script with the same batch, rehearsed on one rank
        machine: whose device was profiled

    Raises:
        InputError: the profile has none of the kernels that the step consists of
    """
    prices = price_kernels(record.kernels, machine.node.device, TODAY)
    by_name: Counter[str] = Counter()
    by_kind: dict[WorkKind, float] = {}
    host_s = 0.0
    for event in last_steps(record).last:
        if isinstance(event, Run) and prices[event.kernel].kind:
            price = prices[event.kernel]
            by_name[record.kernels[event.kernel].name.rpartition(".")[0]] += price.device_s  # type: ignore[assignment]
            host_s += price.host_s
            kind = next((kind for kind in WorkKind if kind == price.kind), None)
            if kind is not None:
                by_kind[kind] = by_kind.get(kind, 0.0) + price.device_s
    correction = correction_from_profile(profile, by_kind, host_s)
    measured = {name.replace("::", "."): seconds for name, seconds in profile.operators_s.items()}
    return RehearsalCalibration(
        kernels={name: measured[name] / seconds for name, seconds in by_name.items() if seconds and name in measured},
        kinds={str(kind): factor for kind, factor in correction.kinds.items()},
        others=correction.others,
        host=correction.host,
        spread=correction.spread,
        source=f"corrected by {profile.source}",
        device=machine.node.device.name,
    )


class _Answer:
    """Prices records, plays their tasks and divides the step.

    Args:
        records: of the ranks
        machine: that they run on
        kinds: by rank, the rehearsed rank that does the same
        software: framework and year
        calibration: factors from one device
    """

    def __init__(
        self,
        records: Sequence[Record],
        machine: Machine,
        kinds: Mapping[int, int],
        software: Software,
        calibration: RehearsalCalibration | None,
    ) -> None:
        if not records:
            raise InputError("no rank was rehearsed: there is no step to take the time of", code="rehearse.no-record")
        if any(map(compiles, records)):
            records, software = [*map(fused, records)], replace(software, compiled=True)
        self._device, self._kinds, self._software, self._calibration = machine.node.device, kinds, software, calibration
        self._timed, self._is_seen = find_period(records)
        self._excerpts = [last_steps(record, self._timed) for record in sorted(records, key=lambda one: one.rank)]
        _check_steps(self._excerpts)
        self._records = {excerpt.record.rank: excerpt.record for excerpt in self._excerpts}
        self._timed, self._lead = self._excerpts[0].timed, self._excerpts[0].lead
        self._play = self._priced(machine)
        self._times = run(self._play)
        self._from_s, self._to_s = self._window(self._times)
        if self._to_s <= self._from_s:
            raise InputError(
                "no rank asked its device for anything in a step: its tensors are on the host",
                code="rehearse.no-device",
            )
        self._waited_s = max(self._slowest_s(excerpt) for excerpt in self._excerpts)

    def _priced(self, machine: Machine) -> Play:
        """The records with prices, as tasks; what kernels and hosts take in a step is kept by rank."""
        first, software, calibration = self._excerpts[0].record, self._software, self._calibration
        links = Links(machine, world=first.world, per_node=first.per_node, year=software.year, calibration=calibration)
        device = sharing_host(machine, min(first.per_node, first.world))
        launch_s = host_seconds(software) * (1.0 if calibration is None else calibration.host)
        overlap = framework_constant("overlap", software, constants())
        self._prices: dict[int, Sequence[KernelPrice]] = {}
        self._totals: dict[int, tuple[float, float]] = {}
        self._drag: dict[int, float] = {}
        for excerpt in self._excerpts:
            rank = excerpt.record.rank
            prices = self._prices[rank] = price_kernels(
                excerpt.record.kernels, device, software, calibration=calibration
            )
            runs = [prices[event.kernel] for event in excerpt.last if isinstance(event, Run)]
            issued = sum(isinstance(event, Issue) for event in excerpt.last)
            device_s = math.fsum(price.device_s for price in runs) / self._timed
            host_s = (math.fsum(price.host_s for price in runs) + issued * launch_s) / self._timed
            longer = step_seconds(device_s, host_s, overlap) - device_s
            self._totals[rank] = device_s, host_s
            self._drag[rank] = longer / host_s if host_s > 0.0 else 0.0
        return play_of(self._excerpts, self._prices, launch_s, links, drag=self._drag, kinds=self._kinds)

    @property
    def seconds(self) -> float:
        """The step [s]."""
        return (self._to_s - self._from_s) / self._timed + self._waited_s

    def give(self) -> StepTime:
        """The answer."""
        spans, before = list(zip(self._times.start_s, self._times.end_s, strict=True)), prerequisites(self._play.tasks)
        # What a task waited for last: the end of another one, or a host that launched it; None: nothing.
        self._released: Callable[[int], int | None] = lambda task: released_by(
            spans[task][0], before[task], spans, self._play.tasks
        )[0]
        ranks = tuple(self._rank_time(excerpt) for excerpt in self._excerpts)
        critical = min(range(len(ranks)), key=lambda place: ranks[place].parts.bubble_s)
        record = self._excerpts[critical].record
        step = self._interval(ranks)
        peak, flops_per_s = self._peak()
        weights = Counter(self._kinds.values())
        counts = [max(1, weights[rank.rank]) for rank in ranks]
        work = sum(count * rank.model_flops for count, rank in zip(counts, ranks, strict=True))
        notes = [f"left out: {text}" for text in record.notes if "compile" not in text]
        if _device_name(record.device) != self._device.name:
            notes.insert(0, f"rehearsed as on {record.device}, priced on {self._device.name}")
        if self._software.compiled:
            notes.insert(0, COMPILED)
        if self._timed > 1 or not self._is_seen:
            notes.insert(0, self._means())
        kernels, collectives = self._shares(self._excerpts[critical])
        return StepTime(
            step=step,
            ranks=ranks,
            critical=critical,
            mfu=work / (sum(counts) * step.seconds * flops_per_s) if flops_per_s > 0.0 else 0.0,
            peak=peak,
            kernels=kernels,
            collectives=collectives,
            timeline=self._timeline(),
            timed=self._timed,
            notes=tuple(notes),
        )

    def _means(self) -> str:
        """Of which steps figures are means."""
        first, last = (self._excerpts[0].steps[place] + 1 for place in (self._lead, -1))
        means = f"means of steps {first} to {last}, as ranks do not exchange the same in each"
        if self._is_seen:
            return f"{means}, but every {self._timed} steps"
        return f"{means}; how often they do was not seen, and is with --steps {2 * last + 1} or more"

    def _window(self, times: Times) -> tuple[float, float]:
        """When the steps that are timed began and ended [s, s]."""
        steady = all(excerpt.lead for excerpt in self._excerpts)
        return (self._ended(times, -1 - self._timed) if steady else 0.0), self._ended(times, -1)

    def _ended(self, times: Times, step: int) -> float:
        """When all ranks had done all of a step, counted from the last as -1 [s]."""
        found = 0.0
        for endings in self._play.endings:
            ending = endings[step]
            asked_s = times.start_s[ending.host] + ending.host_s
            found = max(found, asked_s, *(times.end_s[task] for task in ending.tasks))
        return found

    def _interval(self, ranks: Sequence[RankTime]) -> Cost:
        """The step with its 90 % interval [s]."""
        play, calibration = self._play, self._calibration
        unknown = step_spread(self._device, self._software, constants()) if calibration is None else calibration.spread
        spread = math.exp(1.645 * unknown)

        def seconds(times: Times) -> float:
            start_s, end_s = self._window(times)
            return (end_s - start_s) / self._timed

        step_s = (self._to_s - self._from_s) / self._timed
        transfers = play.transfers.items()
        low = {task: each.low / (each.latency_s + each.flow_s) for task, each in transfers if each.high > 0.0}
        high = {task: each.high / (each.latency_s + each.flow_s) for task, each in transfers if each.high > 0.0}
        if len(play.what) > MOST_TASKS:
            ends = [step_s / spread, step_s * spread]
            exposed_s = max(rank.parts.communication_s for rank in ranks)
            others = [step_s + exposed_s * (max(each.values(), default=1.0) - 1.0) for each in (low, high)]
        else:
            ends = [seconds(run(play, kernels=factor)) for factor in (1.0 / spread, spread)]
            others = [seconds(run(play, transfers=each)) for each in (low, high)] if low else [step_s, step_s]
        below, above = (math.hypot(*(each[end] - step_s for each in (ends, others))) for end in (0, 1))
        whole_s = self.seconds
        source = "modelled" if calibration is None else f"modelled, {calibration.source}"
        return Cost(whole_s, max(0.0, whole_s - below), whole_s + above, f"analytic: {source}")

    def _slowest_s(self, excerpt: Excerpt) -> float:
        """Wait for the slowest rank [s]."""
        device_s, host_s = self._totals[excerpt.record.rank]
        share = step_constants().slowest_factor(excerpt.record.world) - 1.0
        return share * (device_s + host_s * self._drag[excerpt.record.rank])

    # -----------------------------------------------------------------------------------------------------------------
    # One rank's step, instant by instant

    def _rank_time(self, excerpt: Excerpt) -> RankTime:
        record, prices = excerpt.record, self._prices[excerpt.record.rank]
        device_s, host_s = self._totals[record.rank]
        runs = [event for event in excerpt.last if isinstance(event, Run)]
        forward = [prices[event.kernel] for event in runs if event.part == "forward"]
        backward = [prices[event.kernel] for event in runs if event.part == "backward"]
        once = sum(price.flops for price in forward)
        attention = sum(price.flops for price in forward if price.kind == WorkKind.ATTENTION)
        again = sum(price.flops for price in backward)
        tokens, samples = (round(taken / excerpt.timed) for taken in _taken_in(record, runs))
        return RankTime(
            rank=record.rank,
            parts=self._parts(excerpt),
            device_s=device_s,
            host_s=host_s,
            flops=sum(prices[event.kernel].flops for event in runs) / excerpt.timed,
            model_flops=(once + min(again, 2.0 * (once - attention) + _ATTENTION_BACKWARD * attention)) / excerpt.timed,
            tokens=tokens,
            samples=samples,
        )

    def _parts(self, excerpt: Excerpt) -> RankStepParts:
        rank, play, times = excerpt.record.rank, self._play, self._times
        prices, drag = self._prices[rank], self._drag[rank]
        spans = sorted(
            (times.start_s[task], times.end_s[task], task)
            for task, what in enumerate(play.what)
            if what == "kernel" and play.rank[task] == rank and times.end_s[task] > self._from_s
        )
        found = {"compute": 0.0, "launches": 0.0, "communication": 0.0, "bubble": 0.0}
        at_s = self._from_s
        for start_s, end_s, task in spans:
            if start_s > at_s:
                self._divide(found, rank, (at_s, min(start_s, self._to_s)), task)
                at_s = start_s
            if end_s > at_s:
                price = prices[play.index[task]]
                whole_s = price.device_s + drag * price.host_s
                share = price.device_s / whole_s if whole_s > 0.0 else 1.0
                found["compute"] += share * (end_s - at_s)
                found["launches"] += (1.0 - share) * (end_s - at_s)
                at_s = end_s
        if at_s < self._to_s:
            self._divide(found, rank, (at_s, self._to_s), None)
        means = {f"{name}_s": seconds / self._timed for name, seconds in found.items()}
        return RankStepParts(**means, slowest_s=self._waited_s)

    def _divide(self, found: dict[str, float], rank: int, idle: tuple[float, float], task: int | None) -> None:
        """Say why a device had nothing to do, back from the kernel that ended it.

        Args:
            found: seconds of each reason, added to
            rank: whose device
            idle: when it had nothing to do [s, s]
            task: that ended it; None: the step ended
        """
        play, times = self._play, self._times
        from_s, at_s = idle
        while at_s > from_s:
            before = self._last_of_step() if task is None else self._released(task)
            if before is None:
                break
            kind = play.what[before]
            if (rank not in play.arrivals[before]) if kind == "collective" else (play.rank[before] != rank):
                found["bubble"] += at_s - from_s
                return
            launches = kind == "host" and (task is None or play.what[task] != "host")
            if launches or kind == "collective":
                begin_s = max(from_s, min(at_s, times.start_s[before]))
                found["launches" if launches else "communication"] += at_s - begin_s
                at_s = begin_s
            elif kind == "kernel":
                break
            task = before
        found["launches"] += max(0.0, at_s - from_s)

    def _last_of_step(self) -> int | None:
        """What the end of the last step waited for."""
        times, ends = self._times, [endings[-1] for endings in self._play.endings]
        host = max(ends, key=lambda end: times.start_s[end.host] + end.host_s)
        task = max((each for end in ends for each in end.tasks), key=lambda one: times.end_s[one], default=None)
        asked_s = times.start_s[host.host] + host.host_s
        return host.host if task is None or asked_s >= times.end_s[task] else task

    # -----------------------------------------------------------------------------------------------------------------
    # What else there is to tell

    def _peak(self) -> tuple[str, float]:
        """The precision that most operations have, and its peak [FLOP/s]."""
        flops: Counter[str] = Counter()
        for excerpt in self._excerpts:
            prices = self._prices[excerpt.record.rank]
            for event in excerpt.last:
                if isinstance(event, Run) and prices[event.kernel].flops:
                    flops[_precision(excerpt.record.kernels[event.kernel])] += round(prices[event.kernel].flops)
        name = flops.most_common(1)[0][0] if flops else "fp32"
        peaks = self._device.compute
        name = name if name in peaks else "fp32"
        return name, peaks[name].flops_per_s

    def _shares(self, excerpt: Excerpt) -> tuple[tuple[TimeShare, ...], tuple[TimeShare, ...]]:
        """The kernels and the collectives of a rank that take most of a step."""
        play, times, record = self._play, self._times, excerpt.record
        seconds: dict[str, Counter[str]] = {"kernel": Counter(), "collective": Counter()}
        counts: Counter[str] = Counter()
        for task, what in enumerate(play.what):
            if play.step[task] < self._lead:
                continue
            if what == "kernel" and play.rank[task] == record.rank:
                name = record.kernels[play.index[task]].name.rpartition(".")[0]
            elif what == "collective" and record.rank in play.arrivals[task]:
                name = self._collective_name(task)
            else:
                continue
            seconds[what][name] += times.end_s[task] - times.start_s[task]  # type: ignore[assignment]
            counts[name] += 1
        kernels, collectives = (
            tuple(
                TimeShare(name, counts[name] / self._timed, value / self._timed)
                for name, value in each.most_common(TOP)
            )
            for each in seconds.values()
        )
        return kernels, collectives

    def _collective_name(self, task: int) -> str:
        record = self._records[self._play.rank[task]]
        collective = record.collectives[self._play.index[task]]
        group = record.groups.get(collective.group)
        if group is None or collective.peer >= 0:
            return collective.operation
        title = f", {group.description}" if group.description not in ("", "undefined", "default_pg") else ""
        return f"{collective.operation} of {len(group.ranks)} ranks{title}"

    def _timeline(self) -> Timeline:
        """Spans of the steps that are timed, from their start."""
        play, times = self._play, self._times
        rows: list[tuple[int, str, float, float, str, int, int]] = []
        for task, what in enumerate(play.what):
            start_s, end_s = times.start_s[task], times.end_s[task]
            if play.step[task] < self._lead or what in ("arrival", "join") or end_s <= start_s:
                continue
            record = self._records[play.rank[task]]
            if what == "kernel":
                stream = COMPUTE if play.stream[task] == 0 else f"stream {play.stream[task]}"
                rows.append(self._row(record.rank, stream, task, record.kernels[play.index[task]].name, 0))
            elif what == "host":
                rows.append(self._row(record.rank, HOST, task, "launches", 0))
            else:
                name, nbytes = self._collective_name(task), record.collectives[play.index[task]].nbytes
                rows += [self._row(rank, COMMUNICATION, task, name, nbytes) for rank in play.arrivals[task]]
        first_s = min([self._from_s, *(row[2] for row in rows)])
        return Timeline.from_columns(
            Columns(
                rank=[row[0] for row in rows],
                stream=[row[1] for row in rows],
                start_s=[row[2] - first_s for row in rows],
                end_s=[row[3] - first_s for row in rows],
                instruction=[row[4] for row in rows],
                nbytes=[row[5] for row in rows],
                step=[row[6] for row in rows],
            )
        )

    def _row(
        self, rank: int, stream: str, task: int, name: str, nbytes: int
    ) -> tuple[int, str, float, float, str, int, int]:
        times, step = self._times, self._excerpts[0].steps[self._play.step[task]]
        return rank, stream, times.start_s[task], times.end_s[task], f"r{rank}/{name} #{task}", nbytes, step


def _device_name(name: str) -> str:
    """The catalog's name of a device; a name that it does not have as it is."""
    try:
        return find_device(name).name
    except InputError:
        return name


_ATTENTION_BACKWARD = 2.5
"""Products of the backward of fused attention by those of its forward: five to two (Dao, 2022)."""

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


def _precision(kernel: Kernel) -> str:
    """The precision whose peak a product is compared with."""
    dtype = kernel.outputs[0].dtype if kernel.outputs else ""
    return _PRECISIONS.get(dtype, "tf32" if kernel.tf32 else "fp32")


def _taken_in(record: Record, runs: Sequence[Run]) -> tuple[int, int]:
    """Tokens and samples that a rank takes in, by its largest embedding or its first convolution.

    Only runs of the same line of the same module count, so each microbatch once.
    """
    tokens: Counter[tuple[int, int]] = Counter()
    samples: Counter[tuple[int, int]] = Counter()
    images: tuple[int, int] | None = None
    for event in runs:
        kernel = record.kernels[event.kernel]
        place = (event.module, event.lines)
        if event.part != "forward":
            continue
        if kernel.name.startswith("aten.embedding.") and len(kernel.inputs) > 1:
            indices = kernel.inputs[1].shape
            tokens[place] += math.prod(indices)
            samples[place] += indices[0] if len(indices) > 1 else 1
        elif "convolution" in kernel.name and images in (None, place):
            images = place
            samples[place] += kernel.inputs[0].shape[0]
    if tokens:
        largest = max(tokens, key=lambda place: tokens[place])
        return tokens[largest], samples[largest]
    return 0, samples[images] if images is not None else 0
