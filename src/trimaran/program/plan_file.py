"""A plan: what was decided for a job on certain devices, what it should cost, and what it was chosen over.

A plan is a JSON file that a person can read, keep and compare. It carries a digest of its content, so that damage
and edits are seen, and digests of what it was made for, so that it is not used for something else. A plan that a
person writes has no content digest; it is checked by the same types and rules.

A plan of the analytical model has parallel degrees and no program. It can be explained, compared and exported; what
needs a program refuses it (`plan_program`).
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trimaran.base.arguments import told_of_classes
from trimaran.base.decoding import check_version, decode_object, from_plain
from trimaran.base.errors import CorruptDataError, InputError, TrimaranError
from trimaran.base.files import read_text, write_whole
from trimaran.base.html import DataTable, fragment
from trimaran.base.units import format_bytes, format_count, format_seconds, format_span
from trimaran.jobs.learning_rate import Recipe
from trimaran.machine.types import Link
from trimaran.program.json_files import digest, to_plain
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import (
    Degrees,
    GradientType,
    OptimizerState,
    Strategy,
    check_planned,
    is_plain_data_parallel,
)
from trimaran.program.text import format_program, parse_program
from trimaran.program.types import Program

# ---------------------------------------------------------------------------------------------------------------------
# What a plan file holds, as values


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
class PlannedLink:
    """A connection, by what it sustains in one direction.

    Attributes:
        bytes_per_s: sustained rate [bytes/s]
        latency_s: time of an empty message [s]
        source: where the figures come from
    """

    bytes_per_s: float
    latency_s: float
    source: str

    @classmethod
    def of(cls, link: Link | None) -> "PlannedLink | None":
        """Of a link what a plan keeps."""
        if link is None:
            return None
        return cls(bytes_per_s=link.bytes_per_s, latency_s=link.latency_s, source=link.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """What a plan was made for.

    Attributes:
        graph_digest: `Graph.digest` of the job; empty where the analytical model planned, which has no graph
        global_batch_size: samples of one update, over all ranks
        devices: name of the device of each rank there was, also of those that the strategy leaves idle
        memory_bytes: memory that the job may use on each of them [bytes]
        costs_digest: digest of the costs by which it was scored
        link: rate limit of the links between local ranks; null: none
        cluster: machine of the catalog; empty: this machine, or the file does not say
        precision: of products, where the analytical model planned
        layers: of the network, where the analytical model planned
        sequence_length: tokens of a sample, where the analytical model planned
        framework: whose memory and time it has, where the analytical model planned; empty: the file does not say
        gradients: their type, by which it fits; empty: as the framework keeps them
        optimizer_state: what the optimizer keeps, by which it fits; empty: likewise
        options: others that its costs depend on, as the command line has them, such as "--software megatron:2023"
        decided: what the user decided about the strategy, likewise, such as "--forbid pp"
    """

    graph_digest: str
    global_batch_size: int
    devices: tuple[str, ...]
    memory_bytes: tuple[int, ...]
    costs_digest: str = ""
    link: PlannedLink | None = None
    cluster: str = ""
    precision: str = ""
    layers: int | None = None
    sequence_length: int | None = None
    framework: str = ""
    gradients: GradientType | Literal[""] = ""
    optimizer_state: OptimizerState | Literal[""] = ""
    options: tuple[str, ...] = ()
    decided: tuple[str, ...] = ()

    @property
    def rate_limit(self) -> Link | None:
        """Rate limit of the links between local ranks; None: none."""
        kept = self.link
        if kept is None:
            return None
        return Link(bytes_per_s=kept.bytes_per_s, latency_s=kept.latency_s, source=kept.source)


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
    rates: Recipe | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """What a plan took because nobody said it.

    Attributes:
        what: "batch", "sequence" [tokens], "gradients" or "optimizer-state"
        value: that was taken
        rounds: it keeps less than 32 bits, and computes other figures
    """

    what: Literal["batch", "sequence", "gradients", "optimizer-state"]
    value: int | str
    rounds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPlan:
    """Another plan than the chosen one.

    Attributes:
        strategy: by its name
        step_time_s: of it [s]
        slower: than the chosen one, as a share of its step; below 0: it is faster
        role: baseline that it is, such as "fsdp"; empty: none
        time_s: of a training that is asked for, by it; None: of none [s]
        cost: likewise, in `cost_unit`
        cost_unit: as of a training to a target
    """

    strategy: str
    step_time_s: float
    slower: float
    role: str = ""
    time_s: float | None = None
    cost: float | None = None
    cost_unit: str = ""


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
        program: text form of a training step, line by line; none: degrees that the analytical model chose
        training: to a target, where the plan was made with a curve
        assumed: what nobody said, as far as it decides the time or the memory
        in_fp32: the fastest that keeps gradients and optimizer in fp32, where the plan does not; None: nothing fits so
        simplest: of the plans that may be as fast; the plan itself may be it. None: the file does not say
    """

    job: str
    strategy: Strategy
    premises: Premises
    prediction: Prediction
    objective: Objective = "throughput"
    candidates: tuple[CandidateRow, ...] = ()
    program: tuple[str, ...] = ()
    training: PlannedTraining | None = None
    assumed: tuple[Assumed, ...] = ()
    in_fp32: OtherPlan | None = None
    simplest: OtherPlan | None = None

    @property
    def has_program(self) -> bool:
        """Whether it says what each rank does; else it has degrees only."""
        return bool(self.program)

    def __str__(self) -> str:
        return plan_verdict(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return fragment(plan_verdict(self), plan_table(self))


def plan_verdict(plan: Plan) -> str:
    """A plan in one sentence.

    Args:
        plan: of any kind
    """
    found, premises = plan.prediction, plan.premises
    device = f" × {premises.devices[0]}" if len(set(premises.devices)) == 1 else " devices"
    what = f"{plan.job} on {plan.strategy.devices}{device}: {plan.strategy.name}"
    if found.step_time_s <= 0:
        return f"{what}; the plan predicts no time."
    interval = format_span(*map(format_seconds, found.interval_s))
    samples_per_s = premises.global_batch_size / found.step_time_s
    shown = f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"
    step = f"{format_seconds(found.step_time_s)} a step (90 %: {interval})"
    verdict = f"{what} is predicted at {step}, {shown} samples/s"
    others = [
        (row.prediction.step_time_s, row.strategy.name)
        for row in plan.candidates
        if row.verdict == "baseline" and row.prediction is not None
    ]
    if not others or min(others)[0] <= 0:
        return f"{verdict}."
    best_s, name = min(others)
    is_baseline = name == plan.strategy.name or is_plain_data_parallel(plan.strategy)
    if is_baseline and best_s >= found.step_time_s:
        # A baseline that is chosen is listed as one where it is a plan of degrees.
        return f"{verdict}; it is the best baseline itself."
    return f"{verdict}; {against_baseline(found.step_time_s, best_s, name)}."


def against_baseline(step_s: float, baseline_s: float, name: str) -> str:
    """How a plan compares with the best baseline, which may be faster: on more devices, or against a decision.

    Args:
        step_s: of the plan [s]
        baseline_s: of the baseline [s]
        name: of its strategy

    Example:
        >>> against_baseline(1.0, 1.5, "dp8"), against_baseline(1.0, 0.9, "dp8")
        ('1.50 times the speed of the best baseline, dp8', 'the best baseline, dp8, is predicted to take 10 % less')
    """
    if baseline_s >= step_s:
        return f"{baseline_s / step_s:.2f} times the speed of the best baseline, {name}"
    return f"the best baseline, {name}, is predicted to take {100 * (1 - baseline_s / step_s):.2g} % less"


def plan_table(plan: Plan) -> DataTable:
    """The candidates of a plan with a predicted step.

    Args:
        plan: of any kind
    """
    priced = [(row, row.prediction) for row in plan.candidates if row.prediction is not None]
    return DataTable(
        columns=("strategy", "", "devices", "step", "90 % interval", "memory at the peak"),
        rows=[
            (
                row.strategy.name,
                row.verdict,
                str(row.strategy.devices),
                format_seconds(found.step_time_s),
                " to ".join(map(format_seconds, found.interval_s)),
                format_bytes(max(found.peak_bytes)) if found.peak_bytes else "–",
            )
            for row, found in priced[:8]
        ],
        words=frozenset({0, 1}),
        left_out=f"{len(priced) - 8} more candidates" if len(priced) > 8 else "",
    )


PLAN_VERSION = 2


def program_lines(program: Program) -> tuple[str, ...]:
    """A program as `Plan.program` holds it."""
    return tuple(format_program(program).splitlines())


def plan_program(plan: Plan, *, source: str = "plan") -> Program:
    """The training program of a plan, checked.

    Args:
        plan: the plan
        source: what to call it in errors

    Raises:
        InputError: there is none; it cannot be read, breaks a rule, or has other ranks than the strategy
    """
    check_has_program(plan, source=source)
    program = parse_program("\n".join(plan.program), source=f"{source}, $.program")
    check_program(program)
    if len(program.ranks) != plan.strategy.devices:
        raise InputError(
            f"{source}: its strategy {plan.strategy.name} takes {plan.strategy.devices} ranks, and its program has "
            f"{len(program.ranks)}",
            code="plan-file.rank-mismatch",
            source=source,
        )
    return program


def check_has_program(plan: Plan, *, source: str = "plan") -> None:
    """Refuse a plan of degrees, which cannot be run or simulated.

    Args:
        plan: the plan
        source: what to call it in errors

    Raises:
        InputError: it has no program; the message says what it can be used for
    """
    if plan.has_program:
        return
    where = f" on {plan.premises.cluster}" if plan.premises.cluster else ""
    raise InputError(
        f"{source} has parallel degrees for {plan.job}{where}, which the analytical model chose, and no program that "
        "could be run or simulated: export it (`trimaran export`), explain it (`trimaran explain`), or plan for the "
        "devices that are here",
        code="plan-file.degrees-only",
        source=source,
    )


def format_plan(plan: Plan) -> str:
    """The JSON form of a plan, the same text for the same plan."""
    content = to_plain(plan)
    for part in (content, *content["candidates"]):
        part["strategy"] = {name: value for name, value in part["strategy"].items() if _BLANK.get(name, ...) != value}
    whole = {"schema_version": PLAN_VERSION, "digest": digest(content), **content}
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@told_of_classes
def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan; the file is there whole or not at all.

    Args:
        path: where; an existing file is replaced
        plan: the plan

    Raises:
        EnvironmentProblem: it cannot be written there
        InputError: it is longer than what is read again
    """
    content = format_plan(plan).encode()
    if len(content) > MOST_PLAN_BYTES:
        raise InputError(
            f"the plan for {plan.job} on {plan.strategy.devices:,} devices has {format_bytes(len(content))}, and plan "
            f"files have at most {format_bytes(MOST_PLAN_BYTES)}: plan for fewer devices (--devices)",
            code="plan-file.too-long",
            nbytes=len(content),
        )
    write_whole(path, content)


def plan_path(subject: str) -> Path | None:
    """The plan file that a command is about; None: the subject is a job.

    Args:
        subject: a plan file, or the reference of a job, which may be a Hugging Face configuration (.json) too

    Example:
        >>> plan_path("digits") is None, plan_path("plan.json")
        (True, PosixPath('plan.json'))
    """
    if not subject.endswith(".json") or subject.startswith("hf:"):
        return None
    path = Path(subject)
    return None if _is_configuration(path) else path


MOST_PLAN_BYTES, MOST_PLAN_VALUES = 128 * 2**20, 16_000_000
"""Of a plan file: programs have some 100 kB a rank, and all that was rejected is there."""


def read_plan_document(path: Path, *, source: str = "") -> dict[str, Any]:
    """The content of a file that may be a plan.

    Args:
        path: the file
        source: what to call it in errors; "": its path

    Raises:
        CorruptDataError: it is truncated
        InputError: no JSON object, no such file, or one that is too long
    """
    text = read_text(path, most_bytes=MOST_PLAN_BYTES)
    return decode_object(text, source=source or str(path), most_values=MOST_PLAN_VALUES)


_MOST_CONFIGURATION = 2**20
"""A configuration of a network is smaller [bytes]; plans may be larger."""


def _is_configuration(path: Path) -> bool:
    """Whether a file says of which kind a network is, as configurations of Hugging Face do and plans do not."""
    try:
        found = decode_object(read_text(path, most_bytes=_MOST_CONFIGURATION), source=str(path))
    except TrimaranError:
        return False
    return "schema_version" not in found and bool({"model_type", "architectures"} & {*found})


@told_of_classes
def read_plan(path: Path) -> Plan:
    """Read a plan and check all that can be checked without its job.

    Args:
        path: the file

    Returns:
        The plan; its program, where it has one, is legal.

    Raises:
        CorruptDataError: the file is truncated, or was edited after Trimaran wrote it
        InputError: a wrong type or an unknown key, with its path; an illegal program; layers that are not those of the
            network; no such file
    """
    source = str(path)
    plain = read_plan_document(path)
    check_version(plain, PLAN_VERSION, source=source)
    written = plain.pop("digest", None)
    if written is not None and written != digest(plain):
        raise CorruptDataError(
            f"{source} was edited or damaged after it was written: it says that its digest is {written}, and it is "
            f'{digest(plain)}. Plan again; or, to use it as your plan, remove the line "digest"',
            code="plan-file.digest-mismatch",
            source=source,
        )
    plan = from_plain(plain, Plan, source=source)
    _check_degrees(plan.strategy, source=source)
    check_planned(plan.strategy.feeding, source=source)
    if plan.has_program:
        plan_program(plan, source=source)
    else:
        _check_layers(plan, source=source)
    return plan


_BLANK = {
    field.name: to_plain(field.default)
    for field in dataclasses.fields(Degrees)
    if field.name not in ("dp", "pp", "tp", "chunks", "microbatches", "zero", "schedule")
}
"""What only the analytical model chooses, where it does not: left out of a file."""


def _check_degrees(degrees: Degrees, *, source: str) -> None:
    """Refuse degrees that no machine has, before there is a value for each rank of them."""
    for name in ("dp", "pp", "tp", "chunks", "microbatches", "cp", "ep", "expert_tp", "microbatch", "shard_ranks"):
        degree = getattr(degrees, name)
        if degree is not None and not 1 <= degree <= _MOST_RANKS:
            raise InputError(
                f"{source}: $.strategy.{name} is {degree}, expected 1 to {_MOST_RANKS:,}",
                code="plan-file.degree-out-of-range",
                source=source,
                degree=degree,
            )
    if degrees.devices > _MOST_RANKS:
        raise InputError(
            f"{source}: its strategy takes {degrees.devices:,} ranks, more than {_MOST_RANKS:,}",
            code="plan-file.too-many-ranks",
            source=source,
            devices=degrees.devices,
        )


_MOST_RANKS = 1_000_000
"""Of a plan, and of each of its degrees."""


def _check_layers(plan: Plan, *, source: str) -> None:
    """Refuse layers of segments that are not those of the network."""
    strategy, layers = plan.strategy, plan.premises.layers
    wanted, given = strategy.pp * strategy.chunks, strategy.segment_layers
    if given and (len(given) != wanted or (layers is not None and sum(given) != layers)):
        raise InputError(
            f"{source}: $.strategy.segment_layers has {len(given)} segments with {sum(given)} layers in all, "
            f"{format_count(strategy.pp, 'stage')} of {format_count(strategy.chunks, 'chunk')} want {wanted} with "
            f"{layers}",
            code="plan-file.wrong-layer-count",
            source=source,
            segment_layers=given,
        )


def check_plan(
    plan: Plan,
    *,
    needs_program: bool = True,
    graph_digest: str | None = None,
    world_size: int | None = None,
    memory_bytes: Sequence[int] | None = None,
    global_batch_size: int | None = None,
) -> None:
    """Refuse a plan that was made for something else, and say what changed.

    Args:
        plan: the plan
        needs_program: a plan of degrees is refused
        graph_digest: digest of the graph of the job at hand; None: not compared, and so for the others
        world_size: number of ranks at hand
        memory_bytes: memory of each rank's device at hand [bytes]
        global_batch_size: samples of one update of the job at hand

    Raises:
        InputError: another graph, world or batch, a device with less memory than the plan needs, or no program
    """
    if needs_program:
        check_has_program(plan)
    premises = plan.premises
    changed = []
    if graph_digest is not None and graph_digest != premises.graph_digest:
        changed.append(f"the model or its data: graph {premises.graph_digest} then, {graph_digest} now")
    if global_batch_size is not None and global_batch_size != premises.global_batch_size:
        changed.append(f"the global batch size: {premises.global_batch_size} then, {global_batch_size} now")
    if world_size is not None and world_size != len(premises.devices):
        changed.append(f"the number of ranks: {len(premises.devices)} then, {world_size} now")
    elif memory_bytes is not None:
        changed += _lost_memory(plan, memory_bytes)
    if changed:
        raise InputError(
            f"the plan for {plan.job!r} was made for something else. What changed:\n"
            + "\n".join(f"  {change}" for change in changed)
            + "\nPlan again for what there is now.",
            code="plan.outdated",
            changed=tuple(changed),
        )


def _lost_memory(plan: Plan, memory_bytes: Sequence[int]) -> list[str]:
    """More memory than was planned with is welcome; less is, as long as the prediction fits."""
    changed = []
    then = plan.premises.memory_bytes
    for rank in range(min(plan.strategy.devices, len(memory_bytes))):
        planned = then[rank] if rank < len(then) else 0
        peaks = plan.prediction.peak_bytes
        needed = peaks[rank] if rank < len(peaks) else planned
        if memory_bytes[rank] < needed:
            changed.append(
                f"the memory of rank {rank}: {format_bytes(planned)} then, {format_bytes(memory_bytes[rank])} now, and "
                f"{format_bytes(needed)} are needed"
            )
    return changed
