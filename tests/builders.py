"""Builders: how tests make clusters, problems, strategies, cost tables, traces and requests.

Tests say here what they care about, by name, and leave the rest to the defaults. They make these types nowhere else, so
that a change of their fields changes this module only.

The network of most tests is `network`: operation i takes (i + 1) ms a sample forward and twice that backward, the loss
1 ms and 2 ms (`table_for`). `problem` has two such layers on two devices, with links whose time one can check by head:
loading takes half a millisecond for 4 samples and 1 ms for 8, nothing interferes, and the two weights and two biases
have together 96 bytes.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from tests.graphs import chain

from trimaran.base.job import Job
from trimaran.base.precision import Precision
from trimaran.base.timeline import Timeline
from trimaran.graph.kernels.workload import Gradient, WeightGradient, Work, WorkKind, Workload
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp, TraceStorage, Value, View
from trimaran.graph.types import OUTSIDE, Graph, Phase
from trimaran.jobs.resolve import JobSource
from trimaran.machine.prices import Price
from trimaran.machine.types import Allocation, Device, Link, Machine, Memory, Node
from trimaran.planner.candidates import Candidate
from trimaran.planner.epoch import EpochData
from trimaran.planner.explanation.critical_path import StepBottleneck
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.problem import Problem
from trimaran.planner.result import Search
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.answer.results import Planned
from trimaran.planning.requests import NO_TARGET, Executions, PlanRequest, TargetRequest
from trimaran.pricing.analytical.shapes import NO_BIASES, Experts, LatentAttention, TransformerShape
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.tables import (
    CostTable,
    Curve,
    CurveKey,
    Fingerprint,
    Form,
    OperationKey,
    StepCosts,
    TensorFit,
    WholeCost,
    WholeKey,
)
from trimaran.pricing.types import Between, Cost, Interference, OpCost
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES, Compression
from trimaran.program.memory import CodecChoice
from trimaran.program.plan_file import CandidateRow, Objective, Plan, PlannedTraining, Prediction, Premises
from trimaran.program.strategy import (
    IN_LINE,
    Degrees,
    Execution,
    Feeding,
    GradientType,
    OptimizerState,
    Part,
    Recomputed,
    Schedule,
    Shard,
    Strategy,
    Sync,
)
from trimaran.program.types import Program

HAND = "measured: by hand"
GRADIENT_BYTES = 96
LOSS_BYTES = 16
# What no size shortens, and too short to matter.
NOTHING_S = 1e-9
UPDATE_MS = 1.0 + 4 * 0.1 + GRADIENT_BYTES * 1e-3


# Devices, links, clusters


def device(*, name: str = "a core", kind: str = "cpu", memory_bytes: int = 2**30) -> Device:
    memory = Memory(nbytes=memory_bytes, reported_bytes=memory_bytes, context_bytes=0, source=HAND)
    return Device(name=name, title=name, form=kind if kind == "cpu" else "", memory=memory, source=HAND)


def link(*, bytes_per_s: float = 1e9, latency_s: float = 0.0, source: str = "example") -> Link:
    return Link(bytes_per_s=bytes_per_s, latency_s=latency_s, source=source)


def cluster(
    devices: int | None = None,
    *,
    hosts: Sequence[int] = (),
    name: str = "test",
    kind: str = "cpu",
    memory_bytes: int = 2**30,
    joint: Link | None = None,
    link: Link | None = None,
    uplink: Link | None = None,
) -> Allocation:
    """All devices of a machine whose transfers are measured.

    Args:
        devices: how many; None: two, or as many as `hosts` says
        hosts: of each device, as many on each; empty: all on one
        name: of the machine
        kind: of the devices
        memory_bytes: of each of them [bytes]
        joint: a link that every two devices have for themselves
        link: what the links between ranks of this machine are held to
        uplink: of each host
    """
    if devices is None:
        devices = len(hosts) or 2
    nodes = len(set(hosts)) or 1
    assert tuple(hosts) in ((), tuple(number * nodes // devices for number in range(devices)))
    node = Node(
        name=name,
        title=name,
        device=device(kind=kind, memory_bytes=memory_bytes),
        devices=devices // nodes,
        measured=True,
        rate_limit=link,
        source=HAND,
    )
    fabric = None if uplink is None else (1, uplink)
    return Machine(node=node, nodes=nodes, fabric=fabric, joint=joint).allocate()


def linked(allocation: Allocation, *, link: Link | None = None, joint: Link | None = None) -> Allocation:
    """The same devices on other links: held to a rate, or one for each two of them.

    Args:
        allocation: as it is
        link: what the links between ranks of this machine are held to; None: as they are
        joint: that every two devices have for themselves; None: they have none
    """
    machine = allocation.machine
    machine = machine if link is None else machine.rate_limited(link)
    return dataclasses.replace(allocation, machine=dataclasses.replace(machine, joint=joint))


# Costs


def exact(seconds: float) -> Cost:
    return Cost(seconds, seconds, seconds, HAND)


def about(seconds: float, part: float) -> Cost:
    """A cost with an interval of so large a part on either side."""
    return Cost(seconds, seconds * (1 - part), seconds * (1 + part), HAND)


def curve(latency_s: float, bytes_per_s: float) -> Curve:
    return tuple((size, exact(latency_s + size / bytes_per_s)) for size in (1, 1000, 1_000_000))


def flat(seconds: float) -> Curve:
    """A transfer that takes the same time for any size."""
    return tuple((size, exact(seconds)) for size in (1, GRADIENT_BYTES, 10**9))


def of_gradients(seconds: float) -> Curve:
    """An all-reduce of gradients that takes the same time for any of their sizes; that of the losses takes none."""
    times = {LOSS_BYTES: NOTHING_S, 8: seconds, 40: seconds, GRADIENT_BYTES: seconds, 10**9: seconds}
    return tuple((size, exact(times[size])) for size in sorted(times))


def proportional(seconds: float) -> Curve:
    """An all-reduce of all gradients that takes so long, of half of them half as long; of the losses, nothing."""
    half = GRADIENT_BYTES // 2
    return (
        (LOSS_BYTES, exact(NOTHING_S)),
        (half, exact(seconds / 2)),
        (GRADIENT_BYTES, exact(seconds)),
        (10**9, exact(seconds / GRADIENT_BYTES * 1e9)),
    )


def curve_key(kind: str, ranks: int = 2) -> CurveKey:
    return CurveKey(kind, ranks)


def operation_key(content: str, execution: str = "eager") -> OperationKey:
    return OperationKey(content, execution)


def whole_key(graph: str, form: Form, execution: str = "eager") -> WholeKey:
    return WholeKey(graph, form, execution)


def op_cost(*, forward: Cost, backward: Cost, launches: float = 0.0) -> OpCost:
    return OpCost(forward=forward, backward=backward, launches=launches)


def whole_cost(*, forward: Cost, backward: Cost, evaluation: Cost) -> WholeCost:
    return WholeCost(forward=forward, backward=backward, evaluation=evaluation)


def tensor_fit(
    *,
    fixed_s: float = 0.0,
    per_tensor_s: float = 0.0,
    per_byte_s: float = 0.0,
    low: float = 1.0,
    high: float = 1.0,
    source: str = "by hand",
) -> TensorFit:
    return TensorFit(
        fixed_s=fixed_s, per_tensor_s=per_tensor_s, per_byte_s=per_byte_s, low=low, high=high, source=source
    )


def step_costs(
    *,
    update: TensorFit,
    clip: TensorFit,
    load: Mapping[int, Cost],
    state_bytes_per_byte: float = 0.0,
) -> StepCosts:
    return StepCosts(update=update, clip=clip, load=load, state_bytes_per_byte=state_bytes_per_byte)


def interference(
    *, compute: float = 1.0, communication: float = 1.0, latency: float = 1.0, source: str = "assumed: none"
) -> Interference:
    return Interference(compute=compute, communication=communication, latency=latency, source=source)


def between(step_s: float, instruction_s: float, *, straggling: float = 0.0) -> Between:
    step, instruction = (Cost(seconds, seconds, seconds, "by hand") for seconds in (step_s, instruction_s))
    return Between(step=step, instruction=instruction, straggling=straggling)


def fingerprint(
    *,
    device: str = "a core",
    kind: str = "cpu",
    torch: str = "2.13.0",
    threads: int = 1,
    ranks: int = 2,
    cores: int = 2,
) -> Fingerprint:
    return Fingerprint(device=device, kind=kind, torch=torch, threads=threads, ranks=ranks, cores=cores)


HERE = fingerprint()


def cost_table(
    *,
    fingerprint: Fingerprint = HERE,
    operations: Mapping[OperationKey, Mapping[int, OpCost]] | None = None,
    wholes: Mapping[WholeKey, Mapping[int, WholeCost]] | None = None,
    steps: Mapping[str, StepCosts] | None = None,
    curves: Mapping[CurveKey, Curve] | None = None,
    interference: Mapping[str, Interference] | None = None,
) -> CostTable:
    """A table that knows what it is given and nothing else."""
    return CostTable(
        fingerprint=fingerprint,
        operations=operations or {},
        wholes=wholes or {},
        steps=steps or {},
        curves=curves or {},
        interference=interference or {},
    )


def network(length: int = 4, *, skips: tuple[tuple[int, int], ...] = (), buffers: bool = False) -> Graph:
    """A chain whose operations differ in content and keep their own outputs for the backward."""
    graph = chain(length, skips=skips, buffers=buffers)
    ops = tuple(
        dataclasses.replace(op, content=f"content of {op.id}", saved=tuple(spec.name for spec in op.outputs))
        for op in graph.ops
    )
    return dataclasses.replace(graph, ops=ops, storages={spec.name: spec.nbytes for op in ops for spec in op.outputs})


def table_for(graph: Graph, *, whole_s: float | None = None, part: float = 0.0) -> CostTable:
    """A table in which operation i of n takes (i + 1) ms a sample forward, twice that backward; the loss 1 ms.

    Args:
        graph: whose operations
        whole_s: forward of the whole model at a batch of 8 in every form; backward twice that, evaluation half
        part: half-width of the intervals of operations
    """
    operations = {}
    for number, op in enumerate(graph.ops):
        milliseconds = 1.0 if op.id == "loss" else number + 1.0
        operations[operation_key(op.content)] = {
            batch: op_cost(
                forward=about(milliseconds * 1e-3 * batch, part), backward=about(milliseconds * 2e-3 * batch, part)
            )
            for batch in (4, 8)
        }
    wholes = {}
    if whole_s is not None:
        whole = whole_cost(forward=exact(whole_s), backward=exact(2 * whole_s), evaluation=exact(whole_s / 2))
        forms: tuple[Form, ...] = ("module", "replicated", "graph")
        wholes = {whole_key(graph.digest, form): {8: whole} for form in forms}
    fit = tensor_fit(fixed_s=1e-3, per_tensor_s=1e-4, per_byte_s=1e-6, low=0.5, high=2.0, source=HAND)
    step = step_costs(update=fit, clip=fit, load={4: exact(0.5e-3), 8: exact(1e-3)}, state_bytes_per_byte=1.0)
    return cost_table(
        operations=operations,
        wholes=wholes,
        steps={graph.digest: step},
        curves={
            curve_key("SEND"): curve(1e-4, 1e9),
            curve_key("AR"): curve(2e-4, 5e8),
            curve_key("BC"): curve(1e-4, 1e9),
        },
        interference={"AR": interference(compute=1.5, communication=2.0, source=HAND)},
    )


# What is decided


def strategy(
    *,
    dp: int = 1,
    pp: int = 1,
    tp: int = 1,
    boundaries: tuple[str, ...] = (),
    chunks: int = 1,
    parts: tuple[Part, ...] = (),
    backward_order: tuple[int, ...] = (),
    schedule: Schedule = "gpipe",
    microbatches: int = 1,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    execution: Execution = "eager",
    memory_bytes: int | None = None,
    codec: CodecChoice | None = None,
    sync: Sync = "all-reduce",
    nodes: int = 1,
    zero: Literal[0, 1, 2, 3] = 0,
    units: tuple[str, ...] = (),
    shards: tuple[Shard, ...] = (),
    device_order: tuple[int, ...] = (),
    compression: Compression | None = None,
    feeding: Feeding = IN_LINE,
) -> Strategy:
    return Strategy(
        dp=dp,
        pp=pp,
        tp=tp,
        boundaries=boundaries,
        chunks=chunks,
        parts=parts,
        backward_order=backward_order,
        schedule=schedule,
        microbatches=microbatches,
        bucket_bytes=bucket_bytes,
        execution=execution,
        memory_bytes=memory_bytes,
        codec=codec,
        sync=sync,
        nodes=nodes,
        zero=zero,
        units=units,
        shards=shards,
        device_order=device_order,
        compression=compression,
        feeding=feeding,
    )


def pins(
    *,
    keep: tuple[tuple[str, int], ...] = (),
    forbid: tuple[str, ...] = (),
    allow: tuple[str, ...] = (),
    dp: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    zero: int | None = None,
    microbatches: int | None = None,
    schedule: Schedule | None = None,
    nodes: int | None = None,
    compress: bool = False,
    compression: str | None = None,
    powersgd_samples: float | None = None,
    workers: int | None = None,
) -> Pins:
    return Pins(
        keep=keep,
        forbid=forbid,
        allow=allow,
        dp=dp,
        pp=pp,
        tp=tp,
        zero=zero,
        microbatches=microbatches,
        schedule=schedule,
        nodes=nodes,
        compress=compress,
        compression=compression,
        powersgd_samples=powersgd_samples,
        workers=workers,
    )


Sharding = Literal["none", "optimizer", "gradients", "parameters"]
_LEVELS: dict[Sharding, Literal[0, 1, 2, 3]] = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}


def degrees(
    *,
    tensor: int = 1,
    pipeline: int = 1,
    chunks: int = 1,
    context: int = 1,
    data: int = 1,
    expert: int = 1,
    expert_tensor: int | None = None,
    microbatch: int = 1,
    microbatches: int = 1,
    sequence_parallel: bool = False,
    sharding: Sharding = "none",
    recomputed: frozenset[Recomputed] = frozenset(),
    parts: tuple[int, ...] = (),
    group: int = 0,
    gradients: GradientType | None = None,
    optimizer_state: OptimizerState | None = None,
) -> Degrees:
    return Degrees(
        tp=tensor,
        pp=pipeline,
        chunks=chunks,
        cp=context,
        dp=data,
        ep=expert,
        expert_tp=expert_tensor,
        microbatch=microbatch,
        microbatches=microbatches,
        sequence_parallel=sequence_parallel,
        zero=_LEVELS[sharding],
        recomputed=recomputed,
        segment_layers=parts,
        microbatch_group=group,
        gradients=gradients,
        optimizer_state=optimizer_state,
    )


def pins_of_degrees(
    *,
    tensor: int | None = None,
    pipeline: int | None = None,
    data: int | None = None,
    chunks: int | None = None,
    microbatch: int | None = None,
    sharding: Sharding | None = None,
    recompute: bool | None = None,
    sequence_parallel: bool | None = None,
    gradients: GradientType | None = None,
    optimizer_state: OptimizerState | None = None,
    forbid: Collection[str] = (),
) -> Pins:
    return Pins(
        tp=tensor,
        pp=pipeline,
        dp=data,
        chunks=chunks,
        microbatch=microbatch,
        zero=None if sharding is None else _LEVELS[sharding],
        recompute=None if recompute is None else "layers" if recompute else "none",
        sequence_parallel=sequence_parallel,
        gradients=gradients,
        optimizer_state=optimizer_state,
        forbid=tuple(sorted(forbid)),
    )


# What a planner is given and what it finds


def problem(
    *,
    graph: Graph | None = None,
    table: CostTable | None = None,
    cluster: Allocation | None = None,
    batch: int = 8,
    clip: bool = False,
    epoch: EpochData | None = None,
    traces: Mapping[int, TracedStep] | None = None,
    pins: Pins = NO_PINS,
    all_reduce: Curve | None = None,
    message: Curve | None = None,
    memory_bytes: int = 2**30,
) -> Problem:
    """A problem whose ranks may be all devices of its cluster: two layers on two devices, unless said otherwise.

    Args:
        graph: the job; None: two layers
        table: costs; None: those of `table_for`, without interference and with the curves below
        cluster: None: two devices
        batch: samples of an update
        clip: the job clips its gradients
        epoch: make the time of one of these best
        traces: steps of a microbatch, by its samples
        pins: what is decided already
        all_reduce: of gradients, where `table` is not given; None: 10 ms
        message: where `table` is not given; None: 2 ms
        memory_bytes: of each device, where `cluster` is not given [bytes]
    """
    if graph is None:
        graph = network(2)
    if table is None:
        curves = {
            curve_key("AR"): of_gradients(10e-3) if all_reduce is None else all_reduce,
            curve_key("SEND"): flat(2e-3) if message is None else message,
            curve_key("BC"): flat(1e-3),
        }
        table = dataclasses.replace(table_for(graph), curves=curves, interference={})
    if cluster is None:
        cluster = _two_devices(memory_bytes)
    return Problem(
        graph=graph,
        table=table,
        cluster=cluster,
        batch=batch,
        devices=cluster.size,
        clip=clip,
        epoch=epoch,
        traces=traces or {},
        pins=pins,
    )


def _two_devices(memory_bytes: int) -> Allocation:
    return cluster(memory_bytes=memory_bytes)


def premises(
    *,
    graph_digest: str = "",
    global_batch_size: int,
    devices: tuple[str, ...],
    memory_bytes: tuple[int, ...],
    costs_digest: str = "",
) -> Premises:
    return Premises(
        graph_digest=graph_digest,
        global_batch_size=global_batch_size,
        devices=devices,
        memory_bytes=memory_bytes,
        costs_digest=costs_digest,
    )


def prediction(
    *, step_time_s: float, interval_s: tuple[float, float] = (0.0, 0.0), peak_bytes: tuple[int, ...] = ()
) -> Prediction:
    return Prediction(step_time_s=step_time_s, interval_s=interval_s, peak_bytes=peak_bytes)


def plan(
    *,
    job: str,
    strategy: Strategy,
    premises: Premises,
    prediction: Prediction,
    objective: Objective = "throughput",
    candidates: tuple[CandidateRow, ...] = (),
    program: tuple[str, ...] = (),
    training: PlannedTraining | None = None,
) -> Plan:
    return Plan(
        job=job,
        strategy=strategy,
        premises=premises,
        prediction=prediction,
        objective=objective,
        candidates=candidates,
        program=program,
        training=training,
    )


def candidate(
    strategy: Strategy,
    step_s: float,
    interval_s: tuple[float, float],
    *,
    peak_bytes: int = 0,
    limiter: str = "compute",
    epoch_s: float | None = None,
) -> Candidate:
    epoch = None if epoch_s is None else (epoch_s, epoch_s)
    return Candidate(
        strategy=strategy,
        program=Program(ranks=((),), segments=1, microbatches=1),
        timeline=Timeline([]),
        step_time_s=step_s,
        peak_bytes=(peak_bytes,),
        ends=lambda: (interval_s, epoch),
        binds=lambda: StepBottleneck(subject=limiter, groups={}, limiter=limiter),
        epoch_s=epoch_s,
    )


def planned(
    *,
    source: JobSource,
    job: Job,
    graph: Graph,
    cluster: Allocation,
    table: CostTable,
    plan: Plan,
    chosen: Candidate,
    traces: Mapping[int, TracedStep] | None = None,
    search: Search[Candidate] | None = None,
) -> Planned:
    problem = Problem(
        graph=graph,
        table=table,
        cluster=cluster,
        batch=job.global_batch_size,
        devices=cluster.size,
        traces=traces or {},
    )
    return Planned(
        source=source,
        request=PlanRequest(),
        evidence=Simulated(job=job, problem=problem, plan=plan, chosen=chosen, search=search),
    )


# Requests


def plan_request(
    *,
    devices: int | None = None,
    memory_bytes: int | None = None,
    link: Link | None = None,
    objective: Objective | None = None,
    execution: Executions = "any",
    calibration: Path | None = None,
    pins: Pins = NO_PINS,
) -> PlanRequest:
    return PlanRequest(
        devices=devices,
        memory_bytes=memory_bytes,
        link=link,
        objective=objective,
        execution=execution,
        calibration=calibration,
        pins=pins,
    )


def target_request(
    *,
    curve: str | None = None,
    batches: tuple[int, ...] = (),
    most_local_batch: int | None = None,
    price: Price | None = None,
) -> TargetRequest:
    return TargetRequest(curve=curve, batches=batches, most_local_batch=most_local_batch, price=price)


def cluster_request(
    *,
    cluster: str,
    devices: int | None = None,
    batch: int | None = None,
    pins: Pins = NO_PINS,
    precision: Precision | None = None,
    execution: Executions = "any",
    memory_bytes: int | None = None,
    time_limit_s: float | None = None,
    objective: Objective | None = None,
    target: TargetRequest = NO_TARGET,
) -> PlanRequest:
    return PlanRequest(
        cluster=cluster,
        devices=devices,
        batch=batch,
        pins=pins,
        precision=precision,
        execution=execution,
        memory_bytes=memory_bytes,
        time_limit_s=time_limit_s,
        objective=objective,
        target=target,
    )


# Steps: what ran, and how long tensors were there


def view(*, shape: tuple[int, ...], stride: tuple[int, ...] = (1,), offset: int = 0, dtype: str = "float32") -> View:
    return View(shape=shape, stride=stride, offset=offset, dtype=dtype)


def trace_op(
    *,
    moment: int,
    name: str,
    phase: Phase = Phase.FORWARD,
    module: str = "",
    reads: tuple[Value, ...] = (),
    writes: tuple[Value, ...] = (),
    flops: float = 0.0,
    nbytes: int = 0,
    dtype: str = "float32",
    repeatable: bool = True,
    duration_s: float | None = None,
    scratch_bytes: int = 0,
) -> TraceOp:
    return TraceOp(
        moment=moment,
        name=name,
        phase=phase,
        module=module,
        reads=reads,
        writes=writes,
        flops=flops,
        nbytes=nbytes,
        dtype=dtype,
        repeatable=repeatable,
        duration_s=duration_s,
        scratch_bytes=scratch_bytes,
    )


def tick(
    *,
    moment: int,
    kind: Literal["pack", "unpack"],
    index: int,
    pack: int,
    storage: int,
    version: int = 0,
    view: View,
    node: str = "",
    end: int,
) -> Tick:
    return Tick(
        moment=moment,
        kind=kind,
        index=index,
        pack=pack,
        storage=storage,
        version=version,
        view=view,
        node=node,
        end=end,
    )


def trace_storage(
    *,
    number: int,
    nbytes: int,
    role: Role,
    birth: int,
    outside_end: int,
    keep_end: int,
    copy_bytes: int,
    packs: tuple[int, ...],
    unpacks: tuple[int, ...],
    version: int | None,
    module: str = "",
) -> TraceStorage:
    return TraceStorage(
        number=number,
        nbytes=nbytes,
        role=role,
        birth=birth,
        outside_end=outside_end,
        keep_end=keep_end,
        copy_bytes=copy_bytes,
        packs=packs,
        unpacks=unpacks,
        version=version,
        module=module,
    )


def step_trace(
    *,
    events: Sequence[TraceOp | Tick],
    storages: Sequence[TraceStorage] = (),
    names: Mapping[int, str] | None = None,
    device: str = "meta",
) -> StepTrace:
    return StepTrace(events=tuple(events), storages=tuple(storages), names=names or {}, device=device)


def work(
    *,
    kind: WorkKind,
    phase: Phase = Phase.FORWARD,
    gradient: Gradient = Gradient.NONE,
    module: str = "",
    name: str,
    dtype: str = "float32",
    flops: float = 0.0,
    nbytes: int = 0,
    dims: tuple[int, ...] = (),
    launches: int = 1,
    origin: str = OUTSIDE,
) -> Work:
    return Work(
        kind=kind,
        phase=phase,
        gradient=gradient,
        module=module,
        name=name,
        dtype=dtype,
        flops=flops,
        nbytes=nbytes,
        dims=dims,
        launches=launches,
        origin=origin,
    )


def weight_gradient(*, name: str, module: str, elements: int, nbytes: int, work: int) -> WeightGradient:
    return WeightGradient(name=name, module=module, elements=elements, nbytes=nbytes, work=work)


def workload(
    *,
    works: Sequence[Work],
    name: str = "by hand",
    batch: int = 32,
    precision: Precision = "fp32",
    optimizer: str = "SGD",
    gradients: Sequence[WeightGradient] = (),
    parameter_bytes: int = 0,
    input_bytes: int = 0,
) -> Workload:
    return Workload(
        name=name,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
        works=tuple(works),
        gradients=tuple(gradients),
        parameter_bytes=parameter_bytes,
        buffer_bytes=0,
        optimizer_bytes=0,
        input_bytes=input_bytes,
    )


def experts(*, count: int, active: int, ffn: int, dense_layers: int = 0) -> Experts:
    return Experts(count=count, active=active, ffn=ffn, dense_layers=dense_layers)


def transformer_shape(
    *,
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int = 32,
    head_size: int = 128,
    ffn: int = 11008,
    vocabulary: int = 32000,
    sequence: int = 4096,
    experts: Experts | None = None,
    latent: LatentAttention | None = None,
) -> TransformerShape:
    """A network built as Llama 2 is, with the sizes of that of 7 billion parameters unless said otherwise."""
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn=ffn,
        vocabulary=vocabulary,
        sequence=sequence,
        gated=True,
        biases=NO_BIASES,
        tied=False,
        rotary=True,
        centred_norm=False,
        experts=experts,
        latent=latent,
    )


def no_steps(sizes: Collection[int]) -> Mapping[int, TracedStep]:
    """The steps of a job that are traced: none."""
    return {}
