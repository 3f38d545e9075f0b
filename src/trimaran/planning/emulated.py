"""A job on emulated devices: costs of its operations and messages, and the best plan."""

import os
from dataclasses import dataclass, replace

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.progress import Progress, ignore_progress
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource
from trimaran.machine.detect import detect_machine
from trimaran.machine.types import Allocation, Link, Machine
from trimaran.planner.problem import Problem
from trimaran.planner.search import search
from trimaran.planning.best_strategy import priced_sizes
from trimaran.pricing.program import price
from trimaran.pricing.tables import CostTable, Fingerprint
from trimaran.pricing.types import ProgramCosts
from trimaran.program.lowering.lower import lower
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.strategy import Strategy
from trimaran.program.types import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedJob:
    """A job on devices that are emulated.

    Attributes:
        job: the job
        graph: its dataflow graph
        table: costs of its operations on one of the devices, and of messages between all
        cluster: the devices
    """

    job: Job
    graph: Graph
    table: CostTable
    cluster: Allocation


def prepare_emulation(
    source: JobSource,
    *,
    devices: int,
    link: Link,
    nodes: int = 1,
    uplink: Link | None = None,
    progress: Progress = ignore_progress,
) -> EmulatedJob:
    """Measure the costs for planning and emulating a job on a number of devices.

    Args:
        source: where the job comes from
        devices: how many; usually more than cores
        link: the rate limit of links between them
        nodes: that the devices are dealt to, as many to each
        uplink: the rate limit of each node's link to the others; only with several nodes
        progress: called with the current work

    Raises:
        InputError: fewer than two devices, devices that nodes do not divide, nodes without uplinks, or the job is wrong
        EnvironmentProblem: links cannot be rate-limited here
    """
    from trimaran.graph.capture.capture import capture
    from trimaran.measure.calibration.calibrate import measure_links
    from trimaran.measure.costs import measure_costs

    if devices < 2:
        raise InputError(f"at least two devices can be emulated, got {devices}", devices=devices)
    if devices % nodes or (nodes > 1) != (uplink is not None):
        raise InputError(
            f"{devices} devices on {nodes} nodes: give nodes that divide them, and with several nodes an uplink: "
            "--devices 4 --link 1Gb/s --nodes 2 --uplink 200Mb/s",
            devices=devices,
            nodes=nodes,
        )
    progress("capturing the graph", 0, 0)
    job = source.make()
    graph = capture(job).graph
    sizes = priced_sizes(graph, devices=devices, batch=job.global_batch_size)
    ranks = min(devices, os.cpu_count() or 1)
    compute = measure_costs(source.make, graph, ranks=ranks, batches=sizes, progress=progress)
    links = measure_links(link, ranks=devices, gathers=True, progress=progress)
    # A simulated device leaves the core to others while it computes: nothing is slowed, and messages have spare cores.
    fingerprint: Fingerprint = replace(links.fingerprint, cores=2 * devices)
    table = replace(compute, fingerprint=fingerprint, curves=links.curves, interference={})
    node = replace(
        detect_machine(1).node, name=f"{devices} simulated devices", devices=devices // nodes, rate_limit=link
    )
    machine = Machine(node=node, nodes=nodes, fabric=None if uplink is None else (1, uplink))
    return EmulatedJob(job=job, graph=graph, table=table, cluster=machine.allocate())


def best_strategy(emulated: EmulatedJob) -> Strategy:
    """The strategy that the planner finds for the simulated devices.

    Raises:
        InfeasibleError: nothing fits
    """
    problem = Problem(
        graph=emulated.graph,
        table=emulated.table,
        cluster=emulated.cluster,
        batch=emulated.job.global_batch_size,
        devices=emulated.cluster.size,
        clip=emulated.job.clip_norm is not None,
    )
    return search(problem).chosen.strategy


def priced_program(
    emulated: EmulatedJob, strategy: Strategy, program: Program | None = None
) -> tuple[Program, ProgramCosts]:
    """The emulated job, and its costs.

    Args:
        emulated: the job and the devices
        strategy: with its boundaries
        program: of the strategy, in another order; None: as it is lowered

    Raises:
        InputError: the strategy does not fit the job, or the program not the strategy
    """
    job, graph = emulated.job, emulated.graph
    if program is None:
        program = lower(graph, strategy, batch=job.global_batch_size, clip=job.clip_norm is not None)
    else:
        check_against_graph(program, graph, strategy, batch=job.global_batch_size)
    costs = price(program, graph, strategy, emulated.table, emulated.cluster, batch=job.global_batch_size)
    return program, costs
