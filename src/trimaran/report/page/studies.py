"""Documents of studies as sections of a page: plans, scaling, crossover, convergence, memory, rehearsal, observation.

A document is what a command wrote with `--json`. The types below are what a page takes of it; more keys may be there.
"""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trimaran.base.decoding import Count, Positive, Real
from trimaran.base.html import DataTable
from trimaran.base.secrets import page_command
from trimaran.base.units import format_bytes, format_count, format_duration, format_figure, format_seconds, format_span
from trimaran.pricing.analytical.fits_device import MemoryRange
from trimaran.pricing.analytical.step_time import RankTraffic
from trimaran.program.plan_file import Assumed, OtherPlan, Plan, against_baseline
from trimaran.report.convergence_curve import CurveCatalog, CurveStudy, catalog_page, curve_page
from trimaran.report.convergence_runs import Convergence, converge_page
from trimaran.report.crossover import Crossover, crossover_page
from trimaran.report.memory import MemoryEstimate, memory_page
from trimaran.report.observation import Observation, launch_words, limit_words, parts_table, steps_words, without_remedy
from trimaran.report.page.charts import (
    SERIES_COLOURS,
    Bar,
    ChartAxis,
    Interval,
    LimitLine,
    bar_chart,
    byte_unit,
    interval_chart,
    time_unit,
)
from trimaran.report.page.layout import Absent, Chart, Page, Section, Words, those_known
from trimaran.report.page.steps import (
    Considered,
    assumption_section,
    candidates_section,
    compared_devices,
    drawn_placement,
    drawn_scaling,
    percent,
    prediction_section,
    rate,
)
from trimaran.report.plans import fastest_and_cheapest, run_parts, run_sentences, target_verdict
from trimaran.report.rehearsal import Rehearsal, rehearsal_page
from trimaran.report.remedies import remedies_section
from trimaran.report.scaling import ScalingStudy, scale_page

Pair = tuple[Real | None, Real | None]


# ---------------------------------------------------------------------------------------------------------------------
# Observation of a script


_OBSERVED = (
    ("FP", "var(--forward)"),
    ("BP", "var(--backward)"),
    ("WU", "var(--update)"),
    ("load", "var(--load)"),
    ("exchange", "var(--exposed)"),
    ("waiting", "var(--idle)"),
    ("reading", "var(--overlapped)"),
    ("collectives", "var(--series-2)"),
    ("starting", "var(--after)"),
    ("other", "var(--unattributed)"),
)
"""Parts of an observed step by the word that begins their names, in the colours that they have elsewhere."""


def _observed_colours(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each part with its colour."""
    return [
        (name, next((colour for word, colour in _OBSERVED if name.lower().startswith(word.lower())), "var(--series-6)"))
        for name in names
    ]


def _observation_page(plain: Any, _: Sequence[Plan], asked: str) -> Page:
    found: Observation = plain
    low, high = found.interval_s
    limit = "".join(limit_words(found))
    limit = limit[0].lower() + limit[1:]
    verdict = f"{found.model} ({found.device}): {format_seconds(found.step_time_s)} a step, {limit}"
    unit, size = time_unit(found.step_time_s)
    names = list(found.parts_s)
    step = Section(
        id="prediction",
        title="The step",
        content=[
            Chart(
                svg=interval_chart(
                    "Time of a step",
                    [
                        Interval(
                            name="measured",
                            at=found.step_time_s / size,
                            ends=(low / size, high / size),
                            label=format_seconds(found.step_time_s),
                            says="mean of a step",
                        )
                    ],
                    ChartAxis(title=f"time of a step [{unit}]"),
                ),
                table=DataTable(
                    columns=("step", "low", "high", "steps"),
                    rows=[
                        (format_seconds(found.step_time_s), format_seconds(low), format_seconds(high), str(found.steps))
                    ],
                    words=frozenset(),
                ),
                caption=f"With its 90 % interval; {steps_words(found)}.",
            )
        ],
    )
    launch = launch_words(found)
    rows = [("all", found.parts_s), *((str(one.rank), one.parts_s) for one in found.ranks if len(found.ranks) > 1)]
    parts = Section(
        id="parts",
        title="What a step is spent on",
        content=[
            Chart(
                svg=bar_chart(
                    "Parts of a step",
                    [
                        Bar(
                            name=f"rank {name}" if name != "all" else "mean",
                            parts=[held.get(part, 0.0) / size for part in names],
                            note=f"{sum(held.values()) / size:,.3g}",
                        )
                        for name, held in rows
                    ],
                    _observed_colours(names),
                    ChartAxis(title=f"time of a step [{unit}]"),
                ),
                table=parts_table(found),
            ),
            *([Words(lines=[launch])] if launch else []),
        ],
    )
    memory = Section(
        id="memory",
        title="Memory",
        content=[
            DataTable(
                columns=("what", "bytes"),
                rows=[
                    *((name, format_bytes(count)) for name, count in found.memory_bytes.items()),
                    *((f"peak of rank {one.rank}", format_bytes(one.peak_bytes)) for one in found.ranks),
                ],
            )
        ],
    )
    unseen = Section(id="unseen", title="Not seen", content=[Words(lines=found.unseen, is_list=True)])
    return Page(
        kind="Observed script",
        title=f"{found.model}, {format_count(len(found.ranks), 'rank')}",
        verdict=verdict,
        facts=[("step", format_seconds(found.step_time_s)), ("limited by", found.limiter), ("steps", str(found.steps))],
        sections=those_known(
            step,
            parts,
            remedies_section(found.remedies, of_script=True, nothing=without_remedy(found)),
            memory,
            unseen if found.unseen else None,
        ),
        absent=[Absent(title="Timeline of every rank", how="observation records none; trimaran train records one")],
        command=page_command(asked or "trimaran observe -- python SCRIPT").replace(" observe ", " observe --json ", 1),
        environment={"device": found.device},
    )


# ---------------------------------------------------------------------------------------------------------------------
# A plan, as `plan --json` prints it


class _PlannedStage(msgspec.Struct):
    stage: Count
    layers: list[tuple[Count, Count]]
    peak_bytes: Count
    state_bytes: Count
    activation_bytes: Count
    buffer_bytes: Count


class _PlannedAxis(msgspec.Struct):
    axis: str
    size: Count


class _PlannedLayout(msgspec.Struct):
    stages: list[_PlannedStage]
    device_order: list[_PlannedAxis]
    traffic: list[RankTraffic]


class _PlannedOption(msgspec.Struct):
    strategy: str
    step_time_s: Positive
    interval_s: tuple[Positive, Positive]
    peak_bytes: Count = 0
    peak_bytes_by_rank: list[Count] = []
    limiter: str = ""
    pareto: bool = False
    degrees: dict[str, Any] = {}
    devices: Count | None = None
    parts_s: dict[str, Positive] = {}
    mfu: Positive | None = None
    tokens_per_s: Positive | None = None
    need_bytes: MemoryRange | None = None
    layout: _PlannedLayout | None = None
    placement: dict[str, Count] = {}
    global_batch_size: Count | None = None
    time_to_accuracy_s: Positive | None = None
    time_to_accuracy_interval_s: tuple[Positive | None, Positive | None] | None = None
    cost: Positive | None = None
    cost_unit: str = ""
    goodput: Positive | None = None
    spare_nodes: Count = 0
    spares_cost: Positive = 0.0

    @property
    def ranks(self) -> int | None:
        """Devices that it uses; None: the document does not say."""
        if self.devices is not None:
            return self.devices
        sizes = [self.degrees.get(axis, 1) for axis in ("dp", "pp", "tp", "cp")]
        return math.prod(sizes) if self.degrees and all(isinstance(size, int) for size in sizes) else None


class _PlannedRejection(msgspec.Struct):
    strategy: str
    reason: str


class _PlannedReference(msgspec.Struct):
    role: str
    reason: str
    strategy: str | None = None
    step_time_s: Positive | None = None


class _ExpertLoad(msgspec.Struct):
    reached: Positive
    step_time_s: Positive
    interval_s: tuple[Positive, Positive]
    peak_bytes: Count
    fits: bool
    planned: bool


class _PlannedAtBatch(msgspec.Struct):
    candidates: list[_PlannedOption] = []
    front: list[_PlannedOption] = []


class _NamedCurve(msgspec.Struct):
    name: str


class _PlannedRun(msgspec.Struct):
    tokens: Positive
    days: Positive
    days_interval: tuple[Positive | None, Positive | None]
    goodput: Positive
    parts_s: dict[str, Positive]
    failures: Positive
    mean_time_between_failures_s: Positive
    mean_time_between_failures_interval_s: tuple[Positive, Positive]
    checkpoint_bytes: Positive
    checkpoint_every_s: Positive
    checkpoint_within_1_percent_s: Positive
    checkpoint_stall_s: Positive
    checkpoint_write_s: Positive
    young_every_s: Positive
    daly_every_s: Positive
    restart_s: Positive
    repair_s: Positive
    sources: dict[str, str]
    device_hours: Positive
    spare_nodes: Count
    spare_probability: Positive
    money: Positive | None = None
    money_interval: tuple[Positive | None, Positive | None] | None = None
    currency: str | None = None
    spares_paid: bool = False
    spares_money: Positive | None = None
    spares_device_hours: Positive = 0.0


class _PlannedLimits(msgspec.Struct):
    met: bool
    days: Positive | None = None
    budget: Positive | None = None


class _PlanDocument(msgspec.Struct):
    job: str
    cluster: str | None
    machine: str
    device: str
    devices: Count
    global_batch_size: Count
    precision: str
    software: str
    objective: str
    chosen: _PlannedOption
    notes: list[str] = []
    assumed: list[Assumed] = []
    in_fp32: OtherPlan | None = None
    simplest: OtherPlan | None = None
    link: str | None = None
    sequence: Count | None = None
    memory_limit_bytes: Count | None = None
    candidates: list[_PlannedOption] = []
    front: list[_PlannedOption] = []
    baseline: _PlannedOption | None = None
    baselines: list[str] = []
    rejected: list[_PlannedRejection] = []
    rejected_counts: dict[str, Count] = {}
    references: list[_PlannedReference] = []
    rule: str = ""
    expert_loads: list[_ExpertLoad] = []
    at_batch: _PlannedAtBatch | None = None
    run: _PlannedRun | None = None
    limits: _PlannedLimits | None = None
    curve: _NamedCurve | None = None


def _plan_page(plain: Any, _: Sequence[Plan], asked: str) -> Page:
    found: _PlanDocument = plain
    chosen, where = found.chosen, found.cluster or "this machine"
    samples_per_s = found.global_batch_size / chosen.step_time_s if chosen.step_time_s > 0 else 0.0
    interval = format_span(*map(format_seconds, chosen.interval_s))
    speed = f"{rate(samples_per_s)} samples/s"
    if chosen.tokens_per_s and chosen.mfu is not None:
        speed = f"{chosen.tokens_per_s:,.0f} tokens/s, {100 * chosen.mfu:.0f} % of the devices' peak"
    verdict = (
        f"{found.job} on {format_count(chosen.ranks or found.devices, 'device')} of {where}: {chosen.strategy}, "
        f"{format_seconds(chosen.step_time_s)} a step (90 %: {interval}), {speed}"
    )
    known = [(one.step_time_s, one.strategy) for one in found.references if one.step_time_s and one.strategy]
    if not known and found.baseline is not None:
        known = [(found.baseline.step_time_s, found.baseline.strategy)]
    best_s, other = min(known, default=(0.0, chosen.strategy))
    if other != chosen.strategy and chosen.step_time_s > 0:
        verdict += f"; {against_baseline(chosen.step_time_s, best_s, other)}"
    if found.run is not None:
        verdict = f"{target_verdict(msgspec.to_builtins(found))} {verdict}"
    facts = [
        ("strategy", chosen.strategy),
        ("devices", _of_devices(found)),
        ("throughput", f"{rate(samples_per_s)} samples/s"),
    ]
    if chosen.tokens_per_s:
        facts.append(("tokens", f"{chosen.tokens_per_s:,.0f} a second"))
    if chosen.mfu is not None:
        facts.append(("MFU", f"{chosen.mfu:.1%}"))
    if chosen.peak_bytes:
        facts.append(("peak memory", format_bytes(chosen.peak_bytes)))
    facts.append(("global batch", f"{found.global_batch_size:,}"))
    if chosen.time_to_accuracy_s is not None:
        facts.append(("time to accuracy", format_duration(chosen.time_to_accuracy_s)))
    command, scaling = asked or _plan_command(found), _planned_scaling(found)
    absent: list[Absent] = []
    # Next to other options that decide parts of it, a strategy is refused.
    decided = "" if asked else f" --strategy {shlex.quote(chosen.strategy)}"
    by_file = f"{command}{decided} --output plan.json; trimaran report plan.json"
    if found.cluster is None:
        by_file += " --simulate"
    if not chosen.parts_s:
        absent += [
            Absent(title=title, how=f"the plan file has it: {by_file}")
            for title in ("Where a step goes, by rank", "Timeline of every rank", "Memory over time")
        ]
    else:
        absent.append(
            Absent(
                title="Timeline of every rank",
                how="the analytical model chose degrees and has no program to simulate",
            )
        )
    job, cluster = shlex.quote(found.job), shlex.quote(found.cluster or "NAME")
    scale = f"a study: trimaran scale {job} --cluster {cluster} --json"
    if chosen.parts_s:
        several = compared_devices(found.devices)
        scale = f"it compares no numbers of devices: trimaran plan {job} --cluster {cluster} --devices {several} --json"
    absent += [] if scaling else [Absent(title="Scaling", how=scale)]
    environment = {
        "cluster": found.cluster or "",
        "machine": found.machine,
        "device": found.device,
        "links limited to": found.link or "",
        "precision": found.precision,
        "software": found.software,
        "sequence": f"{found.sequence:,} tokens" if found.sequence else "",
        "objective": found.objective,
    }
    return Page(
        kind="Plan",
        title=f"{found.job} on {format_count(chosen.ranks or found.devices, 'device')}",
        verdict=f"{verdict}.",
        facts=facts,
        sections=those_known(
            prediction_section(chosen.step_time_s, chosen.interval_s, None),
            assumption_section(msgspec.to_builtins(found)),
            _planned_run(found.run),
            scaling,
            _planned_parts(found),
            _planned_memory(found),
            _planned_placement(found),
            _planned_traffic(chosen.layout),
            _expert_loads(found),
            candidates_section(
                _planned_candidates(found),
                rule=found.rule,
                rejected=sum(found.rejected_counts.values()) or len(found.rejected),
            ),
            _planned_training(found),
            _references(found),
        ),
        absent=absent,
        notes=found.notes,
        command=f"{command} --json",
        environment=environment,
    )


def _of_devices(found: _PlanDocument) -> str:
    """Devices that the plan takes, of those that may take part; of a target the document has the number taken alone."""
    ranks = found.chosen.ranks
    return f"{ranks:,} of {found.devices:,}" if ranks and found.at_batch is None else f"{ranks or found.devices:,}"


def _plan_command(found: _PlanDocument) -> str:
    """The command that asks the same, as far as the figures of a document tell."""
    words = ["trimaran", "plan", found.job]
    if found.cluster is not None:
        words += ["--cluster", found.cluster]
    words += ["--devices", str(found.devices), "--batch", str(found.global_batch_size)]
    if found.sequence and found.cluster is not None:
        words += ["--sequence", str(found.sequence)]
    if found.curve is not None:
        words += ["--curve", found.curve.name]
    return shlex.join(words)


_PLAN_COLOURS = {
    "compute": "var(--forward)",
    "exchanges inside layers": "var(--exposed)",
    "exchanges between replicas": "var(--load)",
    "exchanges between stages": "var(--backward)",
    "idle stages": "var(--idle)",
    "update": "var(--update)",
    "slowest rank": "var(--after)",
}
_MOST_BARS = 10


def _planned_parts(found: _PlanDocument) -> Section | None:
    """Compute, communication, idle stages, update of the chosen strategy, and of others next to it."""
    options = _different([found.chosen, *([found.baseline] if found.baseline else []), *_listed(found)])
    shown = [one for one in options if one.parts_s][:_MOST_BARS]
    if not shown or not found.chosen.parts_s:
        return None
    names = list(dict.fromkeys(name for one in shown for name in one.parts_s))
    spare = [colour for colour in SERIES_COLOURS if colour not in _PLAN_COLOURS.values()]
    colours = _PLAN_COLOURS | {
        name: spare[n % len(spare)] for n, name in enumerate(one for one in names if one not in _PLAN_COLOURS)
    }
    unit, size = time_unit(max(sum(one.parts_s.values()) for one in shown))
    roles = [_role(found, one) for one in shown]
    svg = bar_chart(
        "Parts of a step by strategy",
        [
            Bar(
                name=role or f"candidate {n}",
                parts=[one.parts_s.get(name, 0.0) / size for name in names],
                note=f"{sum(one.parts_s.values()) / size:,.3g}",
            )
            for n, (role, one) in enumerate(zip(roles, shown, strict=True), start=1)
        ],
        [(name, colours[name]) for name in names],
        ChartAxis(title=f"time of a step [{unit}]"),
    )
    table = DataTable(
        columns=("", "strategy", *(f"{name} [{unit}]" for name in names), f"step [{unit}]"),
        rows=[
            (
                role or f"candidate {n}",
                one.strategy,
                *(f"{one.parts_s.get(name, 0.0) / size:.4g}" for name in names),
                f"{one.step_time_s / size:.4g}",
            )
            for n, (role, one) in enumerate(zip(roles, shown, strict=True), start=1)
        ],
        words=frozenset({0, 1}),
    )
    whole = sum(found.chosen.parts_s.values()) or 1.0
    name, seconds = max(found.chosen.parts_s.items(), key=lambda item: item[1])
    caption = (
        f"Of the chosen strategy {name} takes {format_seconds(seconds)}, {percent(seconds / whole, signed=False)} of "
        "the step. Communication counts where it is not overlapped with work."
    )
    return Section(id="parts", title="Where a step goes", content=[Chart(svg=svg, table=table, caption=caption)])


def _different(options: Sequence[_PlannedOption]) -> list[_PlannedOption]:
    """Options without those that are there by the same name."""
    found: dict[str, _PlannedOption] = {}
    for one in options:
        found.setdefault(one.strategy, one)
    return list(found.values())


def _listed(found: _PlanDocument) -> list[_PlannedOption]:
    """Candidates at the batch of the plan."""
    return found.candidates if found.at_batch is None else found.at_batch.candidates


def _planned_training(found: _PlanDocument) -> Section | None:
    """Time to accuracy by batch and devices, of a plan to a target."""
    of_target = [found.chosen, *found.candidates] if found.at_batch is not None else []
    shown: dict[tuple[str, int | None, int | None], _PlannedOption] = {}
    for one in of_target:  # the chosen one is among the candidates, too
        shown.setdefault((one.strategy, one.global_batch_size, one.ranks), one)
    rows = [
        (
            one.strategy,
            "chosen" if n == 0 else "",
            f"{one.global_batch_size:,}" if one.global_batch_size else "–",
            f"{one.ranks:,}" if one.ranks else "–",
            format_duration(one.time_to_accuracy_s),
            "–"
            if one.time_to_accuracy_interval_s is None
            else " to ".join("∞" if end is None else format_duration(end) for end in one.time_to_accuracy_interval_s),
            "–" if one.cost is None else f"{format_figure(one.cost, digits=4)} {one.cost_unit}",
        )
        for n, one in enumerate(shown.values())
        if one.time_to_accuracy_s is not None
    ]
    if not rows:
        return None
    table = DataTable(
        columns=("strategy", "", "global batch", "devices", "time to accuracy", "90 % interval", "cost"),
        rows=rows[:_MOST_PEAKS],
        words=frozenset({0, 1}),
        left_out="" if len(rows) <= _MOST_PEAKS else f"{len(rows) - _MOST_PEAKS} more.",
    )
    return Section(id="training", title="Time to accuracy", content=[table])


def _planned_run(run: _PlannedRun | None) -> Section | None:
    """Where the time of a training of tokens goes, and on what that rests."""
    if run is None:
        return None
    plain = msgspec.to_builtins(run)
    return Section(
        id="run", title="Days, cost and failures", content=[run_parts(plain), Words(lines=run_sentences(plain))]
    )


def _planned_scaling(found: _PlanDocument) -> Section | None:
    """Numbers of devices that were compared, each by its fastest plan, with days and cost where they are known."""
    best: dict[int, _PlannedOption] = {}
    for one in (found.chosen, *found.candidates) if found.at_batch is not None else ():
        kept = best.get(one.ranks or 0)
        if one.ranks and (kept is None or _rate(one, found) > _rate(kept, found)):
            best[one.ranks] = one
    if len(best) < 2:
        return None
    best[found.chosen.ranks or 0] = found.chosen
    plans = {count: (_rate(one, found), one.strategy) for count, one in best.items()}
    batches = {one.global_batch_size or found.global_batch_size for one in best.values()}
    timed = all(one.time_to_accuracy_s is not None for one in best.values())
    paid = found.run is not None and found.run.spares_paid
    return drawn_scaling(
        {"best plan": plans, "DDP": {}},
        (found.chosen.ranks or found.devices, _rate(found.chosen, found)),
        name=found.chosen.strategy,
        batch=batches.pop() if len(batches) == 1 else None,
        more=(
            "step",
            *(("time", "90 % interval", "goodput", "cost", *(["spare nodes"] if paid else [])) if timed else ()),
        ),
        cells={count: list(_of_count(one, timed=timed, paid=paid)) for count, one in best.items()},
        says=f" {fastest_and_cheapest(msgspec.to_builtins(found))}" if timed and found.run is not None else "",
    )


def _rate(one: _PlannedOption, found: _PlanDocument) -> float:
    """Throughput of a row [samples/s]."""
    batch = one.global_batch_size or found.global_batch_size
    return batch / one.step_time_s if one.step_time_s > 0 else 0.0


def _of_count(one: _PlannedOption, *, timed: bool, paid: bool) -> Iterator[str]:
    yield format_seconds(one.step_time_s)
    if not timed or one.time_to_accuracy_s is None:
        return
    yield format_duration(one.time_to_accuracy_s)
    ends = one.time_to_accuracy_interval_s or (None, None)
    yield " to ".join("∞" if end is None else format_duration(end) for end in ends)
    yield "–" if one.goodput is None else f"{one.goodput:.1%}"
    alone = None if one.cost is None else one.cost - (one.spares_cost if paid else 0.0)
    yield "–" if alone is None else f"{format_figure(alone, digits=4)} {one.cost_unit}"
    if paid:
        yield f"{one.spare_nodes:,}: {format_figure(one.spares_cost, digits=4)} {one.cost_unit}"


def _role(found: _PlanDocument, one: _PlannedOption) -> str:
    if one.strategy == found.chosen.strategy:
        return "chosen"
    named = found.baselines or ([] if found.baseline is None else [found.baseline.strategy])
    return "baseline" if one.strategy in named else ""


_MEMORY_PARTS = (
    ("parameters, gradients, optimizer", "var(--series-1)"),
    ("activations", "var(--series-4)"),
    ("buffers and fragments", "var(--series-5)"),
)


def _planned_memory(found: _PlanDocument) -> Section | None:
    """Memory of each stage by purpose, or of each rank where purposes are not known, with the device's capacity."""
    chosen, room = found.chosen, found.memory_limit_bytes
    if chosen.layout is None:
        return _planned_peaks(chosen.peak_bytes_by_rank)
    stages = chosen.layout.stages
    if not stages:
        return None
    svg = bar_chart(
        "Memory at the peak by stage and purpose",
        [
            Bar(
                name=_stage_name(one, len(stages)),
                parts=[count / 2**30 for count in (one.state_bytes, one.activation_bytes, one.buffer_bytes)],
                note=f"{one.peak_bytes / 2**30:,.3g}",
            )
            for one in stages
        ],
        _MEMORY_PARTS,
        ChartAxis(title="memory of a rank at the peak [GiB]"),
        limit=LimitLine(name=f"a device has {format_bytes(room)}", at=room / 2**30) if room else None,
        names="stage",
    )
    table = DataTable(
        columns=(
            "stage" if len(stages) > 1 else "",
            *(f"{name} [GiB]" for name, _ in _MEMORY_PARTS),
            "peak [GiB]",
            "of a device",
        ),
        rows=[
            (
                str(one.stage) if len(stages) > 1 else "each rank",
                *(f"{count / 2**30:,.4g}" for count in (one.state_bytes, one.activation_bytes, one.buffer_bytes)),
                f"{one.peak_bytes / 2**30:,.4g}",
                f"{one.peak_bytes / room:.1%}" if room else "–",
            )
            for one in stages
        ],
    )
    caption = "Of a rank of each stage." if len(stages) > 1 else "Of each rank."
    need = chosen.need_bytes
    if need is not None and need.least < need.most:
        caption += (
            f" What the software adds is not known exactly: {format_bytes(need.least)} to {format_bytes(need.most)} on "
            "the fullest rank; the bars have the most."
        )
    content = [Chart(svg=svg, table=table, caption=caption)]
    return Section(id="memory", title="Memory by purpose", content=content)


def _stage_name(one: _PlannedStage, count: int) -> str:
    if count == 1:
        return "each rank"
    return f"stage {one.stage}" if count <= 20 else str(one.stage)


def _planned_peaks(peaks: Sequence[int]) -> Section | None:
    if not max(peaks, default=0):
        return None
    most = max(peaks)
    unit, size = byte_unit(most)
    svg = bar_chart(
        "Memory at the peak by rank",
        [
            Bar(
                name=f"rank {n}" if len(peaks) <= 20 else str(n),
                parts=[count / size],
                note=f"{count / size:,.3g}" if len(peaks) <= 20 else "",
            )
            for n, count in enumerate(peaks)
        ],
        [("at the peak", "var(--series-1)")],
        ChartAxis(title=f"memory at the peak [{unit}]"),
    )
    table = DataTable(
        columns=("rank", "at the peak"),
        rows=[(str(n), format_bytes(count)) for n, count in enumerate(peaks[:_MOST_PEAKS])],
        left_out="" if len(peaks) <= _MOST_PEAKS else f"{len(peaks) - _MOST_PEAKS} more ranks.",
    )
    return Section(id="memory", title="Memory at the peak, by rank", content=[Chart(svg=svg, table=table)])


_MOST_PEAKS = 300


def _planned_placement(found: _PlanDocument) -> Section | None:
    chosen = found.chosen
    said = [f"{chosen.strategy}."]
    if chosen.layout is not None and chosen.layout.stages:
        stages = chosen.layout.stages
        each = None if chosen.ranks is None else chosen.ranks // len(stages)
        on = "every rank" if each is None else format_count(each, "rank")
        order = [f"{one.axis} {one.size:,}" for one in chosen.layout.device_order if one.size > 1]
        if order:
            said.append(f"Ranks by device, neighbours first: {', '.join(order)}.")
        rows = [
            (f"stage {one.stage}" if len(stages) > 1 else "whole network", _layers_words(one.layers), on)
            for one in stages
        ]
        return drawn_placement(rows, said)
    if not chosen.placement:
        return None
    count = max(chosen.placement.values()) + 1
    each = None if chosen.ranks is None else chosen.ranks // count
    on = "not said" if each is None else format_count(each, "rank")
    if count == 1:
        return drawn_placement([("whole network", "all modules", on)], said)
    rows = [
        (f"stage {n}", ", ".join(name for name, row in chosen.placement.items() if row == n), on) for n in range(count)
    ]
    return drawn_placement(rows, said, modules=chosen.placement)


def _layers_words(chunks: Sequence[tuple[int, int]]) -> str:
    """Layers from the first of each part to its last.

    Example:
        >>> _layers_words([(0, 2), (8, 10)]), _layers_words([(0, 1)])
        ('4 layers: 0–1, 8–9', '1 layer: 0')
    """
    spans = [f"{first}" if last - first == 1 else f"{first}–{last - 1}" for first, last in chunks if last > first]
    count = format_count(sum(max(0, last - first) for first, last in chunks), "layer")
    return f"{count}: {', '.join(spans)}" if spans else count


_KINDS_OF_RANKS = {
    "tp": "tensor-parallel",
    "cp": "context-parallel",
    "dp": "data-parallel",
    "pp": "messages between stages",
    "ep": "expert-parallel",
    "expert dp": "replicas of experts",
}


def _planned_traffic(layout: _PlannedLayout | None) -> Section | None:
    if layout is None or not layout.traffic:
        return None
    table = DataTable(
        columns=("ranks", "what", "members", "crosses nodes", "nodes of a group", "cards of each node", "share a card"),
        rows=[
            (
                one.kind,
                _KINDS_OF_RANKS.get(one.kind, ""),
                f"{one.members:,}",
                "yes" if one.nodes > 1 else "no",
                f"{one.nodes:,}",
                f"{one.cards:,}" if one.nodes > 1 else "–",
                format_count(one.sharing, "group") if one.nodes > 1 else "–",
            )
            for one in layout.traffic
        ],
        words=frozenset({0, 1, 3}),
    )
    return Section(id="traffic", title="Which ranks exchange across nodes", content=[table])


def _expert_loads(found: _PlanDocument) -> Section | None:
    if not found.expert_loads:
        return None
    table = DataTable(
        columns=("load of the busiest experts", "step", "90 % interval", "peak", "fits", ""),
        rows=[
            (
                f"{one.reached:.3g} × the mean",
                format_seconds(one.step_time_s),
                " to ".join(format_seconds(end) for end in one.interval_s),
                format_bytes(one.peak_bytes),
                "yes" if one.fits else "no",
                "planned" if one.planned else "",
            )
            for one in found.expert_loads
        ],
        words=frozenset({0, 4, 5}),
    )
    return Section(id="experts", title="Uneven load of experts", content=[table])


def _planned_candidates(found: _PlanDocument) -> list[Considered]:
    """Candidates, those on the front that are not listed, and the rejected ones that the document names."""
    base = [found.baseline] if found.baseline else []
    best = found.front if found.at_batch is None else found.at_batch.front
    front = {one.strategy for one in best}
    rows = [
        Considered(
            name=one.strategy,
            verdict=_role(found, one),
            pareto=one.pareto or one.strategy in front,
            devices=one.ranks,
            step_s=one.step_time_s,
            interval_s=one.interval_s,
            peak_bytes=one.peak_bytes,
            says=one.limiter,
        )
        for one in _different([found.chosen, *base, *_listed(found), *best])
    ]
    return rows + [Considered(name=one.strategy, verdict="rejected", says=one.reason) for one in found.rejected]


def _references(found: _PlanDocument) -> Section | None:
    """What the plan is compared with, and how many were rejected for what."""
    content: list[DataTable] = []
    if found.references:
        content.append(
            DataTable(
                columns=("compared with", "strategy", "step", "or why not"),
                rows=[
                    (
                        one.role,
                        one.strategy or "–",
                        "–" if one.step_time_s is None else format_seconds(one.step_time_s),
                        one.reason,
                    )
                    for one in found.references
                ],
                words=frozenset({0, 1, 3}),
            )
        )
    if found.rejected_counts:
        content.append(
            DataTable(
                columns=("rejected because", "strategies"),
                rows=[(cause, f"{count:,}") for cause, count in found.rejected_counts.items()],
            )
        )
    return Section(id="compared", title="Compared with, and rejected", content=content) if content else None


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReader:
    """One kind of document.

    Attributes:
        command: that writes it
        keys: by which it is recognised
        content: what a page takes of it
        page: makes the sections, with plans that were given next to it, and the command that asked, "" if not known
    """

    command: str
    keys: frozenset[str]
    content: type[Any]
    page: Callable[[Any, Sequence[Plan], str], Page]


READERS = (
    StudyReader(
        command="plan",
        keys=frozenset({"job", "global_batch_size", "objective", "chosen"}),
        content=_PlanDocument,
        page=_plan_page,
    ),
    StudyReader(command="scale", keys=frozenset({"rows", "mode", "cluster"}), content=ScalingStudy, page=scale_page),
    StudyReader(command="crossover", keys=frozenset({"crossings", "curve"}), content=Crossover, page=crossover_page),
    StudyReader(command="curve", keys=frozenset({"e0", "b_crit", "points"}), content=CurveStudy, page=curve_page),
    StudyReader(
        command="curve --list", keys=frozenset({"curves", "ratios", "catalog"}), content=CurveCatalog, page=catalog_page
    ),
    StudyReader(
        command="converge", keys=frozenset({"target", "curve", "runs"}), content=Convergence, page=converge_page
    ),
    StudyReader(
        command="memory",
        keys=frozenset({"policies", "minimum_memory_bytes"}),
        content=MemoryEstimate,
        page=memory_page,
    ),
    StudyReader(
        command="rehearse", keys=frozenset({"headline", "troubles", "world"}), content=Rehearsal, page=rehearsal_page
    ),
    StudyReader(
        command="observe",
        keys=frozenset({"limiter", "unseen", "parts_s"}),
        content=Observation,
        page=_observation_page,
    ),
)
"""In the order in which they are tried; no document has the keys of two."""
