"""Published plans of one job, put together from answers: what the regret of a choice is counted on.

A job is the rows of one network, device count and batch, as they say them; they come from one source besides, and agree
in machine, precision, length of a sequence, in what trains and in what is trained (all weights, or adapters beside
frozen ones), or their times could not be compared. Rows of one plan count once, with the median of their figures. Rows
that were skipped, or are known slips of their source, are left out.
"""

from collections.abc import Iterable
from statistics import median

from trimaran.costs.transformers.division import Division
from trimaran.errors import TrimaranError
from trimaran.report.validation.regret import Job, JobPlan
from trimaran.session.validation.model_parallel_setups import DividedRun, divided_run
from trimaran.session.validation.types import Answer, Row

FAMILIES = ("mp_step_time", "mp_throughput")
"""Families whose rows are plans of jobs."""

_ALIKE = ("source_repo", "machine", "gpu", "model", "n_gpus", "n_nodes", "global_batch", "seq_len", "precision")
"""Columns in which rows of a job agree."""


def regret_jobs(answers: Iterable[Answer]) -> tuple[Job, ...]:
    """The jobs of rows, in the order in which they appear.

    Args:
        answers: to rows of any families
    """
    jobs: dict[tuple[str, ...], dict[Division, list[Answer]]] = {}
    for found in answers:
        row = found.row
        if row.family not in FAMILIES or row.flag or found.predicted is None or found.predicted <= 0:
            continue
        try:
            run = divided_run(row)
        except TrimaranError:
            continue
        jobs.setdefault(_key(row, run), {}).setdefault(run.division, []).append(found)
    return tuple(_job(plans) for plans in jobs.values())


def _key(row: Row, run: DividedRun) -> tuple[str, ...]:
    told = tuple(row.fields.get(name, "") for name in _ALIKE)
    trained = "adapters" if run.program.frozen else "all"
    if row.fields.get("model") and row.fields.get("global_batch"):
        return (row.family, row.unit, run.trainer, trained, *told)
    # A table that names neither network nor batch in a column says them in its text, and is of one network.
    division = run.division
    batch = division.microbatch * division.microbatches * division.data
    return (row.family, row.unit, run.trainer, trained, row.fields.get("source_path", ""), str(batch), *told)


def _job(plans: dict[Division, list[Answer]]) -> Job:
    row = next(iter(plans.values()))[0].row
    fields = row.fields
    return Job(
        family=row.family,
        network=fields.get("model", "") or fields.get("source_path", ""),
        devices=fields.get("n_gpus", "") or f"{fields.get('n_nodes', '')} nodes",
        batch=fields.get("global_batch", ""),
        source=fields.get("source_repo", ""),
        plans=tuple(_plan(division, found) for division, found in plans.items()),
    )


def _plan(division: Division, found: list[Answer]) -> JobPlan:
    measured = median(answer.row.measured for answer in found)
    predicted = median(answer.predicted or 0.0 for answer in found)
    rate = found[0].row.family == "mp_throughput"
    return JobPlan(
        name=plan_name(division),
        rows=tuple(answer.row.row_id for answer in found),
        measured=1.0 / measured if rate else measured,
        predicted=1.0 / predicted if rate else predicted,
        model_parallel=division.tensor * division.pipeline * division.context,
        stages=division.pipeline,
        microbatch=division.microbatch,
    )


def plan_name(division: Division) -> str:
    """The degrees of a plan in one line.

    Example:
        >>> plan_name(Division(tensor=2, pipeline=4, data=2, microbatch=8, sharding="optimizer"))
        'tp2 pp4 dp2 mb8 zero1'
    """
    level = {"none": "", "optimizer": " zero1", "gradients": " zero2", "parameters": " zero3"}[division.sharding]
    chunks = f"x{division.chunks}" if division.chunks > 1 else ""
    context = f" cp{division.context}" if division.context > 1 else ""
    again = " recompute" if "layers" in division.recomputed else ""
    return (
        f"tp{division.tensor} pp{division.pipeline}{chunks}{context} dp{division.data} "
        f"mb{division.microbatch}{level}{again}"
    )
