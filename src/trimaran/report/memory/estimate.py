"""What a step's memory is without help, at its floor, and under plans: the figures, before any run.

Every size is of live bytes: what tensors hold, not what an allocator has set aside around them. Peak and mean are given
with and without weights (parameters, buffers, gradients and the optimizer's state), as figures of others leave those
out. A mean is over the operations of forward and backward, each counted once, as the vDNN paper counts layers; the mean
over time is beside it. The slowdown of a plan is against the same step with memory without end. Where the plan runs
modules in parts of the batch, it is against the whole step, and only plan, floor and limit are of the step in parts.

Times are modelled; what a figure rests on is in `source`.
"""

import math
from dataclasses import dataclass
from typing import Literal

from trimaran.report.memory.split import SplitFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory over a step.

    Attributes:
        peak_bytes: most at once [bytes]
        mean_bytes: mean over the operations of forward and backward [bytes]
        time_mean_bytes: mean over the time of the step [bytes]
        bare_peak_bytes: most at once, weights left out [bytes]
        bare_mean_bytes: mean, weights left out [bytes]
    """

    peak_bytes: int
    mean_bytes: int
    time_mean_bytes: int
    bare_peak_bytes: int
    bare_mean_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What a part of the floor is made of.

    Attributes:
        name: of a module or a weight; "" where unknown
        role: what it is to the step
        nbytes: of it [bytes]
        count: storages that were taken together
    """

    name: str
    role: str
    nbytes: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigures:
    """A policy's plan and what it costs.

    Attributes:
        name: "none", "all", "conv", "dyn", "ours"
        fits: whether its peak is within the budget
        usage: memory over the step
        step_time_s: of the step under the plan [s]
        slowdown: against the whole step with memory without end; 0.02 is 2 % slower
        to_host_bytes: offloaded [bytes]
        to_device_bytes: brought back [bytes]
        recomputed_bytes: made again [bytes]
        recompute_s: time of making them again [s]
        stall_s: time for which operations wait for copies [s]
        note: what else there is to say; "" for nothing
    """

    name: str
    fits: bool
    usage: Usage
    step_time_s: float
    slowdown: float
    to_host_bytes: int
    to_device_bytes: int
    recomputed_bytes: int
    recompute_s: float
    stall_s: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLine:
    """What becomes of one storage, and why.

    Attributes:
        number: in the trace
        module: that made it
        nbytes: of it [bytes]
        role: what it is to the step
        decision: "keep", "offload" or "recompute"
        reason: in a few words
    """

    number: int
    module: str
    nbytes: int
    role: str
    decision: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The most samples that fit.

    Attributes:
        without_help: as autograd keeps everything; 0: not even one
        with_plan: with a plan that costs at most `slowdown_limit`; 0: not even one
        at_floor: at any price
        slowdown_limit: most that the plan may cost
        slowdown: what it costs at `with_plan`
    """

    without_help: int
    with_plan: int
    at_floor: int
    slowdown_limit: float
    slowdown: float


@dataclass(frozen=True, kw_only=True)
class LiveCurve:
    """Live bytes over the step, at each moment.

    Both curves share one axis, the time of the operations without any waiting.

    Attributes:
        seconds: duration of each moment [s]
        phases: phase of each moment, "FP", "BP" or "WU"
        kept_bytes: as autograd keeps everything [bytes]
        plan_bytes: under the plan [bytes]; empty where there is none
    """

    seconds: tuple[float, ...]
    phases: tuple[str, ...]
    kept_bytes: tuple[int, ...]
    plan_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """What a job's step needs on a device, and what a plan makes of it.

    Attributes:
        job: its name
        batch: samples of the step
        device: as its vendor calls it
        precision: how products are computed
        source: what the times rest on
        card_bytes: memory of the card that the budget stands for [bytes]; None: the budget is a share of the keep-peak
        context_bytes: what comes off that for the context [bytes]
        budget_bytes: what the step may use [bytes]
        weight_bytes: parameters and buffers [bytes]
        optimizer_bytes: state of the optimizer [bytes]
        gradient_bytes: gradients of the parameters [bytes]
        kept_s: the whole step with memory without end [s]
        keep: memory of that step
        floor_bytes: no plan of whole operations needs less [bytes]
        floor_at: operation that needs it
        floor_held_by: what it holds, largest first
        bound_s: no plan within the budget makes the step faster [s]
        offload_bound_s: the same for plans that only offload [s]
        decides: what keeps the plan from being faster, in a sentence
        policy: which of `policies` is the plan
        policies: the paper's and ours, in the order in which they are shown
        storages: what becomes of each, largest first
        curve: live bytes over the step
        largest_batch: None: it was not looked for
        split: modules that run in parts under the plan; plan, floor, bounds, storages and curve are then of the step in
            parts; None: none do
        trace_s: time that tracing took here [s]
        planning_s: time that planning took here [s]
    """

    job: str
    batch: int
    device: str
    precision: str
    source: str
    budget_bytes: int
    weight_bytes: int
    optimizer_bytes: int
    gradient_bytes: int
    kept_s: float
    keep: Usage
    floor_bytes: int
    floor_at: str
    floor_held_by: tuple[Holder, ...]
    bound_s: float
    offload_bound_s: float
    decides: str
    policy: str
    policies: tuple[PolicyFigures, ...]
    storages: tuple[StorageLine, ...]
    curve: LiveCurve
    card_bytes: int | None = None
    context_bytes: int = 0
    largest_batch: LargestBatch | None = None
    split: SplitFigures | None = None
    trace_s: float = 0.0
    planning_s: float = 0.0

    @property
    def fits_without_help(self) -> bool:
        """Whether the step fits as autograd keeps everything."""
        return self.keep.peak_bytes <= self.budget_bytes

    @property
    def plan(self) -> PolicyFigures:
        """Figures of the plan."""
        return next(line for line in self.policies if line.name == self.policy)

    @property
    def ratio_to_limit(self) -> float:
        """How much longer the step takes under the plan than the bound; at least 1."""
        return self.plan.step_time_s / self.bound_s if self.bound_s else math.inf

    @property
    def kept_bytes(self) -> int:
        """Of what a plan may move, what this one keeps [bytes]."""
        return self._decided("keep")

    def _decided(self, decision: Literal["keep", "offload", "recompute"]) -> int:
        return sum(line.nbytes for line in self.storages if line.decision == decision)
