"""The verbs of `import trimaran` that ask a question: a thin signature builds the request and calls the feature.

Other verbs, such as `trimaran.init`, are named in `trimaran/__init__.py` where they are. Texts are those of the command
line: devices and batches of several figures are sequences here, sizes may be numbers of bytes too.
"""

from collections.abc import Sequence
from dataclasses import replace

from trimaran.base.arguments import told_of_classes
from trimaran.base.errors import InputError
from trimaran.base.units import format_count, parse_large
from trimaran.features.check import Checked, check_job
from trimaran.jobs.resolve import JobSource
from trimaran.machine.find import find_machine, grown_cluster
from trimaran.machine.types import Machine
from trimaran.planner.pins import NO_PINS, Pins, checked_pins, parse_pins
from trimaran.planning.answer.explained import Explained
from trimaran.planning.answer.results import Planned
from trimaran.planning.explanation import explain_plan
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import (
    NO_LOADING,
    NO_TARGET,
    Executions,
    Loading,
    TargetRequest,
    counts_given,
    parse_request,
)
from trimaran.pricing.collectives.algorithms import CollectiveAlgorithm, algorithms
from trimaran.pricing.collectives.algorithms import collective_cost as cost_of_collective
from trimaran.pricing.types import Cost
from trimaran.program.plan_file import Objective


@told_of_classes
def check(job: str, *, batch: int | None = None, seed: int | None = None) -> Checked:
    """Say which kinds of plans train a job exactly as one process does.

    Args:
        job: a built-in name, a published network such as "gpt2:124m", `file.py:factory`, or "hf:" and a configuration
        batch: samples of one update over all devices; None: the job's
        seed: of weights, order and augmentation; None: the job's

    Raises:
        InputError: the model, the data, the loss or the optimizer of the job cannot be used
    """
    return check_job(JobSource(reference=job, global_batch_size=batch, seed=seed))


@told_of_classes
def plan(
    job: str,
    *,
    cluster: str | None = None,
    devices: int | Sequence[int] | None = None,
    batch: int | None = None,
    tokens: str | float | None = None,
    memory: str | int | None = None,
    reserve: str | None = None,
    objective: Objective | None = None,
    precision: str | None = None,
    software: str | None = None,
    oversubscribe: bool = False,
    link: str | None = None,
    execution: Executions = "any",
    strategy: str | None = None,
    pins: Pins = NO_PINS,
    target: TargetRequest = NO_TARGET,
    time_limit_s: float | None = None,
    gap: float = 0.0,
    accept_inexact: bool = False,
    loading: Loading = NO_LOADING,
    lengths: str | None = None,
    packing: str | None = None,
    expert_imbalance: float = 1.0,
    measured: str | None = None,
) -> Planned:
    """Find the best way to train a job on this machine or on one of the catalog.

    Args:
        job: as for `check`
        cluster: machine of the catalog, such as "dgx1-v100" or "dgx1-v100:8@ethernet-25g"; None: this machine
        devices: most devices that may take part, or several numbers of them to compare; None: all of the machine
        batch: samples of one update over all devices; None: the job's
        tokens: to train a decoder on, such as "15T"; the answer then has days, cost and goodput with failures
        memory: that each device may use, such as "12GiB", or [bytes]; None: what it has
        reserve: of that, what stays free for what is not counted, such as "3GiB" or "5%", where the analytical model
            plans; None: buffers and fragments are assumed
        objective: what is made best; None: the throughput
        precision: of compute on a catalog machine: "ieee", "fp32", "tf32", "bf16", "fp16" or "fp8"; None: the job's, of
            networks by name "bf16" for decoders and "fp32" for others; the answer says which
        software: framework and year on a machine of the catalog, such as "pytorch:2022"; None: PyTorch of today
        oversubscribe: allow more ranks than this machine has devices
        link: rate limit of the links between local ranks of this machine, such as "1Gb/s"
        execution: how segments may be run
        strategy: the whole strategy, written as plans print it, such as "dp8 zero1 m2"; in place of `pins`
        pins: what is decided already, such as `Pins(tp=4, forbid=("pp",))`
        target: curve, batches and prices of a training to a target; limits of time and cost, failures and storage
        time_limit_s: time after which the search takes the best that it has [s]; None: it ends by itself
        gap: the search may stop when its best is within this share of what anything takes at least
        accept_inexact: plans by which something else would be trained than by one process are not refused
        loading: input pipeline of a machine of the catalog, such as `Loading(loader="135 images/s per worker")`; the
            number of workers is a pin. Nothing: data are always ready there
        lengths: of the documents of a decoder on a catalog machine, such as "512:0.4,2048:0.6", or a file of lengths
        packing: how documents become sequences: "packed", "causal" or "padded"; None: packed
        expert_imbalance: load of the busiest rank of experts, by the balanced load
        measured: a step of the job from which predictions start, such as "dp8 zero1, step=4.1 s, memory=61 GiB", or
            its trace, log or folder; on this machine the file of a calibration

    Raises:
        InputError: no such job, machine or curve, a text that means nothing, or more devices than there are
        InfeasibleError: nothing fits
    """
    if strategy is not None and pins != NO_PINS:
        raise InputError(
            f'strategy="{strategy}" says the whole strategy: leave pins out', code="plan.strategy-and-pins"
        )
    counts = () if devices is None else tuple(sorted(counts_given(devices, what="devices")))
    if (tokens is not None and target.tokens is not None) or (len(counts) > 1 and target.counts):
        raise InputError(
            "tokens and several numbers of devices are said as arguments or in target, not in both: leave one out",
            code="plan.target-said-twice",
        )
    if tokens is not None:
        target = replace(target, tokens=parse_large(tokens, what="tokens"))
    request = parse_request(
        cluster=cluster,
        devices=max(counts, default=None),
        batch=batch,
        memory=memory,
        reserve=reserve,
        oversubscribe=oversubscribe,
        link=link,
        objective=objective,
        execution=execution,
        precision=precision,
        software=software,
        pins=checked_pins(pins) if strategy is None else parse_pins(strategy=strategy),
        time_limit_s=time_limit_s,
        gap=gap,
        target=replace(target, counts=counts) if len(counts) > 1 else target,
        accept_inexact=accept_inexact,
        loading=loading,
        lengths=lengths,
        packing=packing,
        expert_imbalance=expert_imbalance,
        measured=measured,
    )
    return make_plan(job, request)


@told_of_classes
def explain(planned: Planned, *, why_not: Sequence[str] = (), what_if: Sequence[str] = ()) -> Explained:
    """Say why a plan is what it is, what it was chosen over, and what would help.

    Args:
        planned: of `plan`; the same search is repeated
        why_not: kinds of strategies to compare with, such as "pp"
        what_if: changes to try, such as "link=x2"; none: what is worth asking of any plan there

    Raises:
        InputError: a kind or a change that does not exist
    """
    return explain_plan(planned.source, planned.request, why_not=why_not, what_if=what_if)


@told_of_classes
def collective_cost(
    op: str, nbytes: float, *, cluster: str, devices: int, nodes: int = 1, library: str = "", year: float = 2024.0
) -> Cost:
    """Time of a collective on a machine of the catalog.

    Args:
        op: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all" or "send_recv"
        nbytes: the whole buffer: of an all-gather the gathered one, of a reduce-scatter the one before it is scattered,
            of an all-to-all everything that a rank sends [bytes]
        cluster: machine, such as "dgx1-v100"; without a number of nodes it has those in use
        devices: in the group, equally many on each node
        nodes: in use
        library: how the time is taken; "": as in a training step, calls queued ahead
        year: of the library

    Returns:
        Time with its 90 % interval [s].

    Raises:
        InputError: an unknown machine, operation or way of timing, a size below zero, or a group that the machine has
            not
    """
    machine = _machine_of_nodes(cluster, nodes)
    return cost_of_collective(op, nbytes, machine=machine, devices=devices, nodes=nodes, library=library, year=year)


def _machine_of_nodes(cluster: str, nodes: int) -> Machine:
    """A machine with nodes in use; where its name does not say how many it has, it has those."""
    machine = find_machine(grown_cluster(cluster, nodes * find_machine(cluster).node.devices))
    if nodes > machine.nodes:
        raise InputError(
            f"{cluster} has {format_count(machine.nodes, 'node')}, and {nodes} are asked for: leave its number out, "
            f"or take {nodes}",
            code="collective.too-few-nodes",
            nodes=nodes,
        )
    return machine


@told_of_classes
def collective_algorithms(
    op: str, nbytes: float, *, cluster: str, devices: int, nodes: int = 1, year: float = 2024.0
) -> tuple[CollectiveAlgorithm, ...]:
    """Every algorithm for a collective on a machine of the catalog, the fastest first.

    Args:
        op: as for `collective_cost`
        nbytes: as for `collective_cost` [bytes]
        cluster: as for `collective_cost`
        devices: as for `collective_cost`
        nodes: in use
        year: of the library

    Raises:
        InputError: as for `collective_cost`
    """
    machine = _machine_of_nodes(cluster, nodes)
    return algorithms(op, nbytes, machine=machine, devices=devices, nodes=nodes, year=year)
