"""A plan with all that it was made from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trimaran.cluster import Cluster
from trimaran.costs import CostTable
from trimaran.costs.noise import Noise
from trimaran.costs.traced import TracedStep
from trimaran.graph import Graph
from trimaran.job import Job
from trimaran.planner import Candidate, Search
from trimaran.planner.prices import PinPrice
from trimaran.program import Plan
from trimaran.session.accuracy.types import Outlook
from trimaran.session.jobs import JobSource

Progress = Callable[[str, int, int], None]


def ignore_progress(what: str, done: int, total: int) -> None:
    """The progress of somebody who does not look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with all that it was made from.

    Attributes:
        source: where the job comes from
        job: the job
        graph: its dataflow graph
        cluster: the devices that may take part
        table: measured costs
        plan: what was decided
        chosen: the simulation of it
        traces: steps of microbatches, by samples, where memory stood against keeping everything
        search: what it was chosen from; None for a plan that was read from a file
        prices: what each pin of the request costs
        noise: how far identical runs of so many ranks are apart here; None where that is not known
        outlook: what a training to the target takes, where that or a choice of batches was asked for
        warnings: what the user should know before running it
    """

    source: JobSource
    job: Job
    graph: Graph
    cluster: Cluster
    table: CostTable
    plan: Plan
    chosen: Candidate
    traces: Mapping[int, TracedStep] = field(default_factory=dict)
    search: Search | None = None
    prices: tuple[PinPrice, ...] = ()
    noise: Noise | None = None
    outlook: Outlook | None = None
    warnings: tuple[str, ...] = ()
