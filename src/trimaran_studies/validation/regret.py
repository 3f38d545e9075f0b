"""Regret of a choice among published plans: of our choice and of a rule of thumb.

A job is one network on a number of devices with one batch; its plans are its measured rows. A method selects one of
them without the measurements. Its regret is that plan's measured time over the shortest one. Published plans ran, so
they fit. A job with one plan is counted, and has no regret.

The rule of thumb is what the guides of Megatron-LM and torchtitan say (`planner/analytical/guides.py`): of the plans
that they say to try, the fastest as measured, because trying is part of the rule. So it knows more than our choice,
which has no measurement.

    gap closed    (sum of the rule's regrets - sum of ours) / (sum of the rule's regrets - number of jobs)

of the jobs in which the rule's plan is slower than the best one by more than noise: 1 where ours are the best plans,
0 where they are as good as the rule's, less where they are worse. Noise of a source: of its plans that were measured
several times, nine in ten deviate less from their median; a source that repeats none has that of all others. The
interval is of 2,000 draws of jobs with replacement (Efron, "Bootstrap methods", Annals of Statistics 7, 1979).

The rows of a job have the same network, device count and batch. They have the same source, machine, precision, sequence
length, training program and trained weights (all, or adapters of frozen ones), because otherwise their times are not
comparable. Rows of one plan count once, with the median of their figures. Skipped rows and known errors of a source are
left out.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from rich.table import Table

from trimaran.base.errors import InputError
from trimaran.planner.analytical.guides import GUIDES, MEGATRON, Guide, recomputes_layers
from trimaran.program.strategy import Degrees
from trimaran.report.tables import add_figures, frame_table
from trimaran_studies.validation.measurement import Answer, Row
from trimaran_studies.validation.model_parallel import TransformerRun, transformer_run
from trimaran_studies.validation.scores import quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A plan of a job, as published.

    Attributes:
        name: its degrees, such as "tp2 pp4 dp1 mb8"
        rows: its measurements
        measured: time of a step, or of a unit of work, median of its rows [s or any unit, the same in a job]
        predicted: our prediction of it
        degrees: what was decided
        deviation: largest of its rows from their median, as a share of it; 0 of one row
    """

    name: str
    rows: tuple[str, ...]
    measured: float
    predicted: float
    degrees: Degrees
    deviation: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A network, a number of devices and a batch, with its measured plans.

    Attributes:
        family: of its rows
        network: name in the rows
        devices: in all
        batch: sequences of a step; "": not published
        source: of the rows
        plans: in the order of the file
    """

    family: str
    network: str
    devices: str
    batch: str
    source: str
    plans: tuple[JobPlan, ...]

    @property
    def best(self) -> JobPlan:
        """The fastest plan."""
        return min(self.plans, key=lambda plan: plan.measured)

    @property
    def chosen(self) -> JobPlan:
        """The plan with the shortest predicted time."""
        return min(self.plans, key=lambda plan: plan.predicted)

    @property
    def by_rule(self) -> JobPlan:
        """The fastest that the guides say to try; where none is theirs, of those with the least model parallelism."""
        tried = [plan for guide in GUIDES for plan in recommended(self.plans, guide, lambda plan: plan.degrees)]
        least = min(MEGATRON.order(plan.degrees) for plan in self.plans)
        tried = tried or [plan for plan in self.plans if MEGATRON.order(plan.degrees) == least]
        return min(tried, key=lambda plan: plan.measured)

    def regret(self, plan: JobPlan) -> float:
        """A plan's time over the shortest one."""
        return plan.measured / self.best.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class GapClosed:
    """How much of the way from the rule of thumb to the best plan our choice goes.

    Attributes:
        jobs: in which the rule's plan is slower than the best one by more than noise
        of: jobs with several plans
        share: of the gap that is closed; None where there is no gap
        low: lower end of the 90 % interval
        high: upper end
    """

    jobs: int
    of: int
    share: float | None = None
    low: float | None = None
    high: float | None = None


_DRAWS = 2000


def noise_of(jobs: Iterable[Job]) -> dict[str, float]:
    """Noise of each source, as a share of a measurement; see the top of this file."""
    found: dict[str, list[float]] = {}
    for job in jobs:
        found.setdefault(job.source, []).extend(plan.deviation for plan in job.plans if len(plan.rows) > 1)
    pooled = _usual([one for each in found.values() for one in each])
    return {source: _usual(each) if each else pooled for source, each in found.items()}


def _usual(deviations: Sequence[float]) -> float:
    return quantile(sorted(deviations), 0.9) if deviations else 0.0


def gap_closed(jobs: Sequence[Job], noise: Mapping[str, float] | None = None) -> GapClosed:
    """The share of the gap between the rule of thumb and the best plan that our choice closes.

    Args:
        jobs: of any sources
        noise: of each source; None: that of these jobs
    """
    noise = noise_of(jobs) if noise is None else noise
    several = [job for job in jobs if len(job.plans) > 1]
    apart = [
        (job.regret(job.by_rule) - 1.0, job.regret(job.chosen) - 1.0)
        for job in several
        if job.regret(job.by_rule) - 1.0 > noise[job.source]
    ]
    if not apart:
        return GapClosed(jobs=0, of=len(several))
    draws = random.Random(0)
    drawn = sorted(_closed(draws.choices(apart, k=len(apart))) for _ in range(_DRAWS))
    return GapClosed(
        jobs=len(apart),
        of=len(several),
        share=_closed(apart),
        low=quantile(drawn, 0.05),
        high=quantile(drawn, 0.95),
    )


def _closed(apart: Sequence[tuple[float, float]]) -> float:
    rule = sum(one for one, _ in apart)
    return (rule - sum(ours for _, ours in apart)) / rule


def regret_document(jobs: Sequence[Job]) -> dict[str, object]:
    """Regrets of jobs as one object: a summary, and every job with several plans."""
    several = [job for job in jobs if len(job.plans) > 1]
    return {
        **_summary([job.regret(job.chosen) for job in several]),
        "rule_of_thumb": _summary([job.regret(job.by_rule) for job in several]),
        "jobs_of_one_plan": len(jobs) - len(several),
        "by_job": [_job_document(job) for job in several],
    }


def regret_table(jobs: Sequence[Job], *, most: int = 24) -> Table:
    """Regrets of jobs for people, those with the largest of ours first."""
    several = sorted((job for job in jobs if len(job.plans) > 1), key=lambda job: -job.regret(job.chosen))
    table = frame_table(
        "Regret of published plans",
        "ours, rule: the plan that we choose, and the guides'; of: plans that were measured\n"
        "regret, rule's: measured time of our plan, and of the guides', over that of the fastest",
    )
    for name in ("network", "ours", "rule"):
        table.add_column(name, max_width=20)
    add_figures(table, "GPUs", "batch", "of", "regret", "rule's")
    for job in several[:most]:
        regrets = (f"{job.regret(plan):.3f}" for plan in (job.chosen, job.by_rule))
        places = (job.network, job.chosen.name, job.by_rule.name, job.devices, job.batch, str(len(job.plans)))
        table.add_row(*places, *regrets)
    return table


def regret_lines(jobs: Sequence[Job]) -> list[str]:
    """The summary in words."""
    several = [job for job in jobs if len(job.plans) > 1]
    if not several:
        return []
    lines = []
    for who, plans in (("ours", [job.chosen for job in several]), ("rule of thumb", [job.by_rule for job in several])):
        found = sorted(job.regret(plan) for job, plan in zip(several, plans, strict=True))
        lines.append(
            f"{who}: regret {median(found):.3f} median, {quantile(found, 0.9):.3f} at p90, {found[-1]:.3f} worst"
        )
    alone = len(jobs) - len(several)
    lines.append(
        f"{len(several)} jobs of one network, device count and batch; {alone} more have only one plan. "
        "rule of thumb: the fastest of what the guides of Megatron-LM and torchtitan say to try."
    )
    return lines


def _summary(regrets: Sequence[float]) -> Mapping[str, object]:
    found = sorted(regrets)
    if not found:
        return {"jobs": 0, "median": None, "p90": None, "worst": None}
    return {"jobs": len(found), "median": median(found), "p90": quantile(found, 0.9), "worst": found[-1]}


def _job_document(job: Job) -> dict[str, object]:
    return {
        "family": job.family,
        "network": job.network,
        "devices": job.devices,
        "batch": job.batch,
        "source": job.source,
        "plans": len(job.plans),
        "best": _plan_document(job, job.best),
        "chosen": _plan_document(job, job.chosen),
        "regret": job.regret(job.chosen),
        "rule_of_thumb": _plan_document(job, job.by_rule),
        "rule_of_thumb_regret": job.regret(job.by_rule),
    }


def _plan_document(job: Job, plan: JobPlan) -> dict[str, object]:
    return {
        "plan": plan.name,
        "rows": list(plan.rows),
        "measured": plan.measured,
        "predicted": plan.predicted,
        "regret": job.regret(plan),
    }


FAMILIES = ("mp_step_time", "mp_throughput")
"""Families whose rows are plans of jobs."""

_ALIKE = ("source_repo", "machine", "gpu", "model", "n_gpus", "n_nodes", "global_batch", "seq_len", "precision")
"""Columns in which rows of a job agree."""


def regret_jobs(answers: Iterable[Answer]) -> tuple[Job, ...]:
    """The jobs of rows, in the order in which they appear.

    Args:
        answers: to rows of any families
    """
    jobs: dict[tuple[str, ...], dict[Degrees, list[Answer]]] = {}
    for found in answers:
        row = found.row
        if row.family not in FAMILIES or row.flag or found.predicted is None or found.predicted <= 0:
            continue
        try:
            run = transformer_run(row)
        except InputError:
            continue
        jobs.setdefault(_key(row, run), {}).setdefault(run.degrees, []).append(found)
    return tuple(_job(plans) for plans in jobs.values())


def _key(row: Row, run: TransformerRun) -> tuple[str, ...]:
    told = tuple(row.fields.get(name, "") for name in _ALIKE)
    trained = "adapters" if run.program.frozen else "all"
    if row.fields.get("model") and row.fields.get("global_batch"):
        return (row.family, row.unit, run.trainer, trained, *told)
    # A table without columns of network and batch has them in its text, and is of one network.
    degrees = run.degrees
    batch = degrees.microbatch * degrees.microbatches * degrees.dp
    return (row.family, row.unit, run.trainer, trained, row.fields.get("source_path", ""), str(batch), *told)


def _job(plans: dict[Degrees, list[Answer]]) -> Job:
    row = next(iter(plans.values()))[0].row
    fields = row.fields
    return Job(
        family=row.family,
        network=fields.get("model", "") or fields.get("source_path", ""),
        devices=fields.get("n_gpus", "") or f"{fields.get('n_nodes', '')} nodes",
        batch=fields.get("global_batch", ""),
        source=fields.get("source_repo", ""),
        plans=tuple(_plan(degrees, found) for degrees, found in plans.items()),
    )


def _plan(degrees: Degrees, found: list[Answer]) -> JobPlan:
    measured = median(answer.row.measured for answer in found)
    predicted = median(answer.predicted or 0.0 for answer in found)
    rate = found[0].row.family == "mp_throughput"
    return JobPlan(
        name=plan_name(degrees),
        rows=tuple(answer.row.row_id for answer in found),
        measured=1.0 / measured if rate else measured,
        predicted=1.0 / predicted if rate else predicted,
        degrees=degrees,
        deviation=max(abs(answer.row.measured / measured - 1.0) for answer in found),
    )


def plan_name(degrees: Degrees) -> str:
    """The degrees of a plan in one line.

    Example:
        >>> plan_name(Degrees(tp=2, pp=4, dp=2, microbatch=8, zero=1))
        'tp2 pp4 dp2 mb8 zero1'
    """
    level = f" zero{degrees.zero}" if degrees.zero else ""
    chunks = f"x{degrees.chunks}" if degrees.chunks > 1 else ""
    context = f" cp{degrees.cp}" if degrees.cp > 1 else ""
    again = " recompute" if "layers" in degrees.recomputed else ""
    return f"tp{degrees.tp} pp{degrees.pp}{chunks}{context} dp{degrees.dp} mb{degrees.microbatch}{level}{again}"


Plan = TypeVar("Plan")


def recommended(plans: Iterable[Plan], guide: Guide, degrees: Callable[[Plan], Degrees]) -> list[Plan]:
    """Of plans that fit, those that a guide says to try.

    Args:
        plans: that fit
        guide: whose recommendations
        degrees: of a plan

    Example:
        Of 2 and 4 ranks a layer, 2 are tried, whatever the microbatch.

        >>> plans = [Degrees(tp=4, dp=2), Degrees(tp=2, dp=4), Degrees(tp=2, dp=4, microbatch=2)]
        >>> [plan.microbatch for plan in recommended(plans, MEGATRON, lambda plan: plan)]
        [1, 2]
    """
    known = [plan for plan in plans if follows(degrees(plan), guide)]
    first: dict[bool, tuple[int, ...]] = {}
    for plan in known:
        again, place = recomputes_layers(degrees(plan)), guide.order(degrees(plan))
        first[again] = min(place, first.get(again, place))
    return [plan for plan in known if guide.order(degrees(plan)) == first[recomputes_layers(degrees(plan))]]


def follows(degrees: Degrees, guide: Guide) -> bool:
    """Whether states are sharded as a guide says; without replicas there is nothing to shard.

    Example:
        >>> from trimaran.planner.analytical.guides import TORCHTITAN
        >>> follows(Degrees(dp=8, zero=3), TORCHTITAN), follows(Degrees(dp=8, zero=3), MEGATRON)
        (True, False)
    """
    return degrees.zero in guide.levels or (degrees.dp * degrees.cp == 1 and not degrees.zero)
