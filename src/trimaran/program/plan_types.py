"""What a plan file holds, as values."""

from dataclasses import dataclass
from typing import Literal

from trimaran.cluster.types import Link
from trimaran.program.types import Strategy

Verdict = Literal["chosen", "baseline", "runner-up", "rejected"]

Objective = Literal["throughput", "epoch", "time", "cost"]
"""What is made best: samples a second of the steady state, the time of an epoch with its evaluation, the time to a
target, or what that time costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the simulator says of a program.

    Attributes:
        step_time_s: time of a step [s]
        interval_s: its 90 % interval [s]
        peak_bytes: for each rank, the most that lives at once [bytes]
        epoch_s: time of an epoch with its evaluation, where that was made best [s]
        epoch_interval_s: its 90 % interval [s]
    """

    step_time_s: float
    interval_s: tuple[float, float]
    peak_bytes: tuple[int, ...] = ()
    epoch_s: float | None = None
    epoch_interval_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow:
    """A row of the table that the plan was chosen from.

    Attributes:
        strategy: what was considered
        verdict: what became of it
        prediction: what it would cost; None where it was rejected before
        limiter: what limits it, such as "compute of rank 1"
        reason: why it was rejected
        pareto: no other candidate beats it in both the time of a step and the largest peak of memory
    """

    strategy: Strategy
    verdict: Verdict
    prediction: Prediction | None = None
    limiter: str = ""
    reason: str = ""
    pareto: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """What a plan was made for.

    Attributes:
        graph_digest: `Graph.digest` of the job
        global_batch_size: samples of one update, over all ranks
        devices: name of the device of each rank there was, also of those that the strategy leaves idle
        memory_bytes: memory that the job may use on each of them [bytes]
        costs_digest: digest of the costs by which it was scored
        link: what the links between local ranks were held to; null: nothing
    """

    graph_digest: str
    global_batch_size: int
    devices: tuple[str, ...]
    memory_bytes: tuple[int, ...]
    costs_digest: str = ""
    link: Link | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRates:
    """How the learning rate follows the batch, as the curve was measured.

    Attributes:
        rule: "linear", "sqrt" or "constant", or "file.py:function" of the user
        base_batch: global batch at which the job's own rates hold [samples]
        warmup_epochs: over how many epochs the rate rises to that of the rule
        schedule: "job": its own, followed by samples; "hold": the same without its decay
        samples_per_epoch: of the training data; None: not known
    """

    rule: str
    base_batch: int
    warmup_epochs: float = 0.0
    schedule: Literal["hold", "job"] = "hold"
    samples_per_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining:
    """What a training to a target takes by a plan, and by which curve.

    Attributes:
        curve: name or file
        task: what the curve was measured on
        target: value of the metric that is reached; None where the curve does not say
        updates: until the target
        epochs: the same in epochs; None where nobody says how many samples an epoch has
        epochs_interval: 90 %; None where it is not known, or open
        time_s: to the target, evaluation not counted [s]
        time_interval_s: 90 % [s]; None where it is open
        rates: how the learning rate follows the batch; None where the curve does not say
    """

    curve: str
    task: str
    target: float | None
    updates: float
    epochs: float | None
    epochs_interval: tuple[float, float] | None
    time_s: float
    time_interval_s: tuple[float, float] | None
    rates: PlannedRates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was decided.

    Attributes:
        job: reference of the job, as `file.py:factory`, or its name
        strategy: what was chosen
        premises: what it was made for
        prediction: what it should cost
        objective: what was made best
        candidates: what it was chosen from: itself, the baselines, runners-up and what was rejected
        program: text form of a training step, line by line
        training: to a target, where the plan was made with a curve
    """

    job: str
    strategy: Strategy
    premises: Premises
    prediction: Prediction
    objective: Objective = "throughput"
    candidates: tuple[CandidateRow, ...] = ()
    program: tuple[str, ...]
    training: PlannedTraining | None = None
