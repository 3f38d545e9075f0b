"""Measurement of a machine for all jobs: its devices, its links, the noise of identical runs.

    links as they are  one launch       devices, then curves of transfers, then interference
    limited to 1 Gb/s  one launch each  curves, interference
    noise              R launches       `measure/calibration/calibrate.py`

Everything is measured anew. The transfers are kept with the measured costs, so that plans find them.

The noise of runs: one small program is run several times, each time with fresh processes.

    run 1    start processes    one device: 20 steps, then 120 that count    all ranks: the same
    run 2    start processes    one device: 20 steps, then 120 that count    all ranks: the same
    ...

The program is LeNet on random images. The runtime runs it as it runs a user's job. Two runs differ in the addresses of
their memory, the cores of their ranks and the other work of the machine. A larger network is disturbed less. The noise
of a pipeline is not measured.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any

from trimaran.base.job import Job
from trimaran.base.progress import Progress
from trimaran.emulation.links import launch_on
from trimaran.launch.supervise import launch
from trimaran.launch.world import World
from trimaran.machine.types import Link
from trimaran.measure.calibration.results import DeviceFigures
from trimaran.measure.costs import fingerprint_here, shown_by
from trimaran.measure.findings import Findings
from trimaran.measure.wanted import Wanted, wanted_curves
from trimaran.pricing.noise import Noise, noise_between
from trimaran.pricing.tables import CostTable
from trimaran.pricing.transfers import SEND
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind, Program

if TYPE_CHECKING:
    from torch.utils.data import Dataset

_Found = tuple[Mapping[Any, Any], Findings]


def measure_machine(*, ranks: int, progress: Progress) -> tuple[DeviceFigures, CostTable]:
    """The devices of this machine and the links between them, without a rate limit.

    Args:
        ranks: that are busy at the same time
        progress: told what is measured

    Raises:
        ExecutionError: a rank failed
    """
    from trimaran.measure.calibration.devices import device_figures

    found = _launch(ranks, devices=True, link=None, progress=progress)
    table = _table(found, ranks, None)
    figures = device_figures(
        [rounds for rounds, _ in found],
        name=table.fingerprint.device,
        kind=table.fingerprint.kind,
        how=f"{ranks} {'rank' if ranks == 1 else 'ranks'} busy",
    )
    return figures, table


def measure_links(link: Link, *, ranks: int, gathers: bool = False, progress: Progress) -> CostTable:
    """The transfers between ranks whose links are rate-limited.

    Args:
        link: their rate limit
        ranks: at least two
        gathers: what shards of parameters need too: gathers and scatters
        progress: told what is measured

    Raises:
        EnvironmentProblem: the rate of links cannot be limited here
        ExecutionError: a rank failed
    """
    return _table(_launch(ranks, devices=False, link=link, gathers=gathers, progress=progress), ranks, link)


def find_on_rank(world: World, devices: bool, gathers: bool) -> _Found:
    """Measure a device and the links, or the links alone.

    Args:
        world: this rank; all ranks call this
        devices: measure the device too
        gathers: measure gathers and scatters too

    Returns:
        Durations on the device, and what was found of the links, the same on every rank.
    """
    from trimaran.measure.calibration.devices import measure_device
    from trimaran.measure.rank import measure_transfers
    from trimaran.measure.rounds import report

    rounds = {}
    if devices:
        report(world, "measuring devices")
        rounds = measure_device(world)
    if world.size == 1:
        return rounds, Findings()
    curves = wanted_curves(world.size, on_cpu=world.device == "cpu", gathers=gathers)
    return rounds, measure_transfers(world, Wanted(curves=curves, interference=(str(Kind.ALL_REDUCE), SEND)))


def _launch(ranks: int, *, devices: bool, link: Link | None, progress: Progress, gathers: bool = False) -> list[_Found]:
    progress("starting processes", 0, 0)
    return launch_on(link, find_on_rank, (devices, gathers), ranks=ranks, on_event=shown_by(progress))


def _table(found: Sequence[_Found], ranks: int, link: Link | None) -> CostTable:
    links = found[0][1]
    return CostTable(fingerprint=fingerprint_here(ranks, link), curves=links.curves, interference=links.interference)


REPEATS = 5
"""Runs by default."""

_ABOUT = 64
WARM_UP_STEPS = 20
STEPS = 120
_SAMPLES = 1024


def measure_noise(*, ranks: int, repeats: int, steps: int = STEPS, date: str, progress: Progress) -> tuple[Noise, ...]:
    """The noise of runs on one rank, and of runs on all.

    Args:
        ranks: that there are
        repeats: runs, at least two
        steps: of each run that count
        date: of today, such as "2026-11-20"
        progress: told of every run

    Raises:
        ExecutionError: a rank failed
    """
    programs = _programs(ranks)
    runs: list[Sequence[float]] = []
    for number in range(repeats):
        progress("repeating a run", number, repeats)
        runs.append(launch(run_on_rank, (programs, steps), ranks=ranks)[0])
    progress("repeating a run", repeats, repeats)
    return tuple(
        noise_between(
            medians,
            ranks=strategy.devices,
            date=date,
            source=f"measured: {repeats} runs of LeNet at batch {batch_for(ranks)}, {steps} steps each",
        )
        for (strategy, _, _), medians in zip(programs, zip(*runs, strict=True), strict=True)
    )


def run_on_rank(world: World, programs: Sequence[tuple[Strategy, Program, Program]], steps: int) -> list[float]:
    """Run the programs on one rank, one after the other.

    Args:
        world: this rank; programs for one device run on rank 0 alone, while the others wait
        programs: strategy, program and evaluation of each
        steps: that count

    Returns:
        The median step time of each, on rank 0 [s]; what other ranks return is not used.
    """
    from trimaran.measure.rounds import meet

    medians = []
    for strategy, program, evaluation in programs:
        meet(world)
        if strategy.devices == world.size:
            medians.append(_median_step(world, make_job(world.size), strategy, program, evaluation, steps))
        elif world.rank == 0:
            alone = World(device=world.device)
            medians.append(_median_step(alone, make_job(world.size), strategy, program, evaluation, steps))
    return medians


def batch_for(ranks: int) -> int:
    """Samples of a step over all ranks: the largest number up to 64 that they share evenly, one each at least.

    Example:
        >>> batch_for(2), batch_for(3), batch_for(100)
        (64, 63, 100)
    """
    return ranks * max(1, _ABOUT // ranks)


def make_job(ranks: int) -> Job:
    """The small job that is run on a number of ranks."""
    import torch
    from torch.nn.functional import cross_entropy

    from trimaran.networks.small_images import LeNet

    return Job(
        name="noise",
        model=LeNet,
        loss=cross_entropy,
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-4),
        dataset=_images,
        global_batch_size=batch_for(ranks),
    )


def _programs(ranks: int) -> list[tuple[Strategy, Program, Program]]:
    """One device and plain data parallelism."""
    from trimaran.graph.capture.capture import capture

    graph, batch = capture(make_job(ranks)).graph, batch_for(ranks)
    return [
        (strategy, lower(graph, strategy, batch=batch), lower_evaluation(graph, strategy, batch=batch))
        for strategy in dict.fromkeys((Strategy(), Strategy(dp=ranks)))
    ]


def _median_step(
    world: World, job: Job, strategy: Strategy, program: Program, evaluation: Program, steps: int
) -> float:
    from trimaran.measure.rounds import full_shares
    from trimaran.runtime.executor import Executor

    executor = Executor(job, strategy, program, evaluation, world, record=False)
    seconds = [_seconds(executor, share) for share in islice(full_shares(executor.feed()), WARM_UP_STEPS + steps)]
    executor.close()
    return median(seconds[WARM_UP_STEPS:])


def _seconds(executor: Any, share: Any) -> float:
    start_s = time.perf_counter()
    executor.step(share)
    return time.perf_counter() - start_s


def _images() -> "Dataset[Any]":
    import torch
    from torch.utils.data import TensorDataset

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(_SAMPLES, 1, 32, 32, generator=generator)
    return TensorDataset(images, torch.randint(10, (_SAMPLES,), generator=generator))
