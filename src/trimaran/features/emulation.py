"""`trimaran train --emulate`: a plan for more devices than there are, with simulated compute and real messages.

job ──capture──▶ graph ──measured on the cores of this machine──▶ costs of operations
rate-limited links ──measured between all ranks──▶ costs of messages
                      │
a plan, or the best one for the devices ──▶ program ──┬─ simulate ─▶ Timeline ─┐
                                                      └─ emulate ──▶ Timeline ─┴─ compare
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.system import needs_linux
from trimaran.base.timeline import Timeline
from trimaran.jobs.resolve import JobSource
from trimaran.machine.types import Allocation
from trimaran.measure.others import Others
from trimaran.planning.emulated import EmulatedJob, best_strategy, prepare_emulation, priced_program
from trimaran.planning.requests import parse_link
from trimaran.program.plan_file import check_has_program, check_plan, plan_path, plan_program, read_plan
from trimaran.program.strategy import Strategy
from trimaran.program.types import Program
from trimaran.report.comparison import Comparison, compare
from trimaran.simulator.engine import simulate

if TYPE_CHECKING:
    from trimaran.emulation.links import Uplink

WARM_UP_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """An emulated plan.

    Attributes:
        strategy: what was run
        program: one step
        predicted: the simulation of it
        measured: the steps that were run
        comparison: of the two
        others: part of the cores that other programs took meanwhile [0..1]; None: not known
    """

    strategy: Strategy
    program: Program
    predicted: Timeline
    measured: Timeline
    comparison: Comparison
    others: float | None = None

    @property
    def predicted_s(self) -> float:
        """The simulated step, of the slowest rank [s]."""
        return max(rank.step.predicted_s for rank in self.comparison.ranks)

    @property
    def measured_s(self) -> float:
        """The emulated step, of the slowest rank [s]."""
        return max(rank.step.measured_s or 0.0 for rank in self.comparison.ranks)

    @property
    def error(self) -> float:
        """Predicted over measured step, less 1."""
        return self.predicted_s / self.measured_s - 1.0


def emulate(emulated: EmulatedJob, strategy: Strategy, *, program: Program | None = None, steps: int = 20) -> Emulated:
    """Simulate a strategy, emulate it, and compare.

    Args:
        emulated: the job and the devices
        strategy: with its boundaries; for as many devices, or fewer
        program: of the strategy, in another order; None: as it is lowered
        steps: emulated, those of the warm-up not counted

    Raises:
        InputError: the strategy does not fit the job, or the program not the strategy, or its steps overlap
        EnvironmentProblem: this is not Linux, or links cannot be rate-limited here
        ExecutionError: a rank failed
    """
    from trimaran.emulation.links import launch_on
    from trimaran.emulation.ranks import emulate_on_rank

    if strategy.is_stale:
        raise InputError(
            f"{strategy.name} is not the training of one process. "
            "An emulated step ends before the next one begins, and here steps overlap: "
            "run the plan (`trimaran train`), simulate it (`trimaran plan PLAN.json`), or take a synchronous schedule",
            code="emulate.stale",
            strategy=strategy.name,
        )
    program, costs = priced_program(emulated, strategy, program)
    predicted = simulate(program, costs)
    taken = Others()
    found = launch_on(
        emulated.cluster.machine.node.rate_limit,
        emulate_on_rank,
        (program, costs, steps + WARM_UP_STEPS),
        ranks=strategy.devices,
        device="cpu",
        uplink=_uplink(emulated.cluster, strategy.devices),
    )
    others, measured = taken.share(), found[0]
    return Emulated(
        strategy=strategy,
        program=program,
        predicted=predicted,
        measured=measured,
        comparison=compare(program, predicted, measured, warmup=WARM_UP_STEPS, at_once=costs.at_once),
        others=others,
    )


def _uplink(cluster: Allocation, ranks: int) -> "Uplink | None":
    """The links between the nodes of the ranks; None: they are on one.

    Raises:
        InputError: several nodes have different numbers of ranks
    """
    nodes = len(set(cluster.hosts[:ranks]))
    fabric = cluster.machine.fabric
    if fabric is None or nodes == 1:
        return None
    if ranks % nodes or len(set(cluster.hosts[: ranks // nodes])) > 1:
        raise InputError(f"{ranks} ranks do not divide evenly over {nodes} nodes", ranks=ranks, nodes=nodes)
    from trimaran.emulation.links import Uplink

    return Uplink(nodes=nodes, link=fabric[1])


def emulate_subject(
    subject: str,
    *,
    devices: int | None = None,
    link: str | None = None,
    nodes: int = 1,
    uplink: str | None = None,
    batch: int | None = None,
    steps: int = 20,
    progress: Progress = ignore_progress,
) -> Emulated:
    """Emulate a plan, or the best plan of a job.

    Args:
        subject: a plan file, or the reference of a job
        devices: to emulate; a plan says how many it is for
        link: rate limit of the links between them, such as "1Gb/s"; a plan may say it
        nodes: that the devices are dealt to
        uplink: rate limit of each node's link to the others
        batch: samples of one update; None: as the job or the plan says
        steps: to emulate
        progress: told what is being done

    Raises:
        InputError: the plan or the job is wrong, or devices or links are not said
        EnvironmentProblem: this is not Linux, or links cannot be rate-limited here
        ExecutionError: a rank failed
    """
    needs_linux("emulating a plan")
    path = plan_path(subject)
    plan = None if path is None else read_plan(path)
    if plan is not None:
        check_has_program(plan, source=subject)
    devices = devices or (None if plan is None else plan.strategy.devices)
    given = parse_link(link) if link is not None else None if plan is None else plan.premises.rate_limit
    if devices is None or given is None:
        lacking = {
            "how many devices to emulate": "" if devices else "--devices 4",
            "the rate limit of the links between them": "" if given else "--link 1Gb/s",
        }
        raise InputError(
            f"say {' and '.join(what for what, option in lacking.items() if option)}: "
            f"{' '.join(option for option in lacking.values() if option)}",
            devices=devices,
        )
    if plan is not None and devices != plan.strategy.devices:
        raise InputError(
            f"--devices {devices}: {subject} is a plan for {plan.strategy.devices}; leave it out, or plan for "
            f"{devices}",
            code="emulate.other-number-of-devices",
            devices=devices,
        )
    source = JobSource(reference=subject if plan is None else plan.job, global_batch_size=batch)
    if plan is not None and batch is None:
        source = replace(source, global_batch_size=plan.premises.global_batch_size)
    between = None if uplink is None else parse_link(uplink)
    emulated = prepare_emulation(source, devices=devices, link=given, nodes=nodes, uplink=between, progress=progress)
    if plan is not None:
        check_plan(plan, graph_digest=emulated.graph.digest)
    progress("searching", 0, 0)
    strategy = best_strategy(emulated) if plan is None else plan.strategy
    # A program is for the batch that it was lowered for.
    as_written = plan is not None and plan.premises.global_batch_size == emulated.job.global_batch_size
    progress("emulating", 0, 0)
    return emulate(emulated, strategy, program=plan_program(plan) if plan and as_written else None, steps=steps)
