"""The strategies of a cell: one of each kind, as the planner would take it if it had to."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.jobs.resolve import JobSource
from trimaran.planner.pins import Pins
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of strategy.

    Attributes:
        name: of the kind
        pins: what makes the planner take it
    """

    name: str
    pins: Pins


FAMILIES = (
    Family(name="one device", pins=Pins(dp=1, pp=1, tp=1)),
    Family(name="DDP", pins=Pins(dp=2, pp=1, tp=1, zero=0, microbatches=1, forbid=("p2p", "sharded"))),
    Family(name="accumulated DDP", pins=Pins(dp=2, pp=1, tp=1, zero=0, microbatches=2, forbid=("p2p", "sharded"))),
    Family(name="ZeRO-1", pins=Pins(dp=2, zero=1, microbatches=1)),
    Family(name="FSDP2", pins=Pins(dp=2, zero=3, microbatches=1)),
    Family(name="homes", pins=Pins(dp=2, microbatches=1, allow=("p2p",))),
    Family(name="tensor parallel", pins=Pins(tp=2, microbatches=1)),
    Family(name="sharded classifier", pins=Pins(dp=2, microbatches=1, allow=("sharded",))),
    Family(name="placement", pins=Pins(pp=2, allow=("placement",))),
    Family(name="GPipe", pins=Pins(pp=2, schedule="gpipe", forbid=("placement",))),
    Family(name="1F1B", pins=Pins(pp=2, schedule="1f1b", forbid=("placement",))),
    Family(name="interleaved", pins=Pins(pp=2, schedule="interleaved")),
    Family(name="zero-bubble", pins=Pins(pp=2, schedule="zero-bubble")),
)


def plan_families(
    source: JobSource, request: PlanRequest, names: Collection[str]
) -> Iterator[tuple[str, Simulated | str]]:
    """The best strategy of each kind for a job.

    Args:
        source: of the job
        request: devices, links and memory
        names: of the kinds

    Yields:
        The name of the kind, with its plan; or with why there is none.
    """
    for family in FAMILIES:
        if family.name not in names:
            continue
        try:
            yield family.name, make_plan(source, replace(request, pins=family.pins)).simulated
        except (InfeasibleError, InputError) as error:
            yield family.name, error.message
