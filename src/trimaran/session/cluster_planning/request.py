"""What a person asks of a plan for a machine that is not here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trimaran.costs.software import Software
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.program.plan import Objective
from trimaran.session.accuracy.request import NO_TARGET, TargetRequest

Executions = Literal["any", "eager", "compiled"]
"""How segments may be run; "any" lets the plan decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """What is asked.

    Attributes:
        cluster: machine, such as "dgx1-v100" or "dgx1-v100:8@ethernet-25g"
        devices: most devices that may take part; None: all of the machine
        batch: samples of one update over all devices; None: the job's
        pins: what is decided already
        precision: in which is computed: "float32", "tf32", "bfloat16" or "float16"
        software: framework and year
        execution: how segments may be run
        memory_bytes: that each device may use; None: what it has [bytes]
        time_limit_s: for the search; None: none [s]
        gap: at which the search may stop, as a share of the bound
        options: of the job
        objective: what is made best; None: throughput
        target: curve, batches and prices of a training to a target
    """

    cluster: str
    devices: int | None = None
    batch: int | None = None
    pins: Pins = NO_PINS
    precision: str = "float32"
    software: Software = field(default_factory=Software)
    execution: Executions = "any"
    memory_bytes: int | None = None
    time_limit_s: float | None = None
    gap: float = 0.0
    options: Mapping[str, str] = field(default_factory=dict)
    objective: Objective | None = None
    target: TargetRequest = NO_TARGET

    @property
    def asks_for_outlook(self) -> bool:
        """Whether batches are compared, or a training to a target is asked for."""
        return self.objective in ("time", "cost") or self.target.is_asked
