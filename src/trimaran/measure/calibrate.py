"""Measuring a machine, whatever jobs it will train: its devices, its links, how far identical runs are apart.

    links not held     one launch       devices, then curves of transfers, then interference
    held to 1 Gb/s     one launch each  curves, interference
    noise              R launches       `measure/noise.py`

Everything is measured anew. The transfers are kept with the measured costs, so that plans find them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimaran.cluster import Link
from trimaran.costs.tables import CostTable, Curve, CurveKey
from trimaran.costs.transfers import SEND
from trimaran.costs.types import Interference
from trimaran.measure.calibration import DeviceFigures
from trimaran.measure.costs import fingerprint_here
from trimaran.measure.wanted import wanted_curves
from trimaran.program.types import Kind
from trimaran.runtime.ranks import Event, launch
from trimaran.runtime.world import World

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one rank found.

    Attributes:
        rounds: durations on its device; empty where only links were wanted
        curves: transfers by size, the same on every rank
        interference: by kind of transfer, the same on every rank
    """

    rounds: Mapping[Any, Any] = field(default_factory=dict)
    curves: Mapping[CurveKey, Curve] = field(default_factory=dict)
    interference: Mapping[str, Interference] = field(default_factory=dict)


def measure_machine(*, ranks: int, progress: Progress) -> tuple[DeviceFigures, CostTable]:
    """The devices of this machine and the links between them, held to nothing.

    Args:
        ranks: that are busy at the same time
        progress: told what is measured

    Raises:
        ExecutionError: a rank failed
    """
    from trimaran.measure.devices import device_figures

    found = _launch(ranks, devices=True, link=None, progress=progress)
    table = _table(found, ranks, None)
    figures = device_figures(
        [rank.rounds for rank in found],
        name=table.fingerprint.device,
        kind=table.fingerprint.kind,
        how=f"{ranks} {'rank' if ranks == 1 else 'ranks'} busy",
    )
    return figures, table


def measure_links(link: Link, *, ranks: int, gathers: bool = False, progress: Progress) -> CostTable:
    """The transfers between ranks whose links are held to a rate.

    Args:
        link: what they are held to
        ranks: at least two
        gathers: what shards of parameters need too: gathers and scatters
        progress: told what is measured

    Raises:
        EnvironmentProblem: links cannot be held to a rate here
        ExecutionError: a rank failed
    """
    return _table(_launch(ranks, devices=False, link=link, gathers=gathers, progress=progress), ranks, link)


def find_on_rank(world: World, devices: bool, gathers: bool) -> Found:
    """Measure a device and the links, or the links alone.

    Args:
        world: this rank; all ranks call this
        devices: measure the device too
        gathers: measure gathers and scatters too
    """
    from trimaran.measure.devices import measure_device
    from trimaran.measure.interference import measure_interference
    from trimaran.measure.links import measure_curves
    from trimaran.measure.rounds import report

    rounds = {}
    if devices:
        report(world, "measuring devices")
        rounds = measure_device(world)
    if world.size == 1:
        return Found(rounds=rounds)
    report(world, "measuring links")
    curves = measure_curves(world, wanted_curves(world.size, on_cpu=world.device == "cpu", gathers=gathers))
    interference = {}
    for kind in (str(Kind.ALL_REDUCE), SEND):
        report(world, "measuring interference")
        interference[kind] = measure_interference(world, kind)
    return Found(rounds=rounds, curves=curves, interference=interference)


def _launch(ranks: int, *, devices: bool, link: Link | None, progress: Progress, gathers: bool = False) -> list[Found]:
    def on_event(rank: int, event: Event) -> None:
        if "measuring" in event:
            progress(str(event["measuring"]), int(str(event["done"])), int(str(event["total"])))

    progress("starting processes", 0, 0)
    return launch(find_on_rank, (devices, gathers), ranks=ranks, on_event=on_event, link=link)


def _table(found: Sequence[Found], ranks: int, link: Link | None) -> CostTable:
    return CostTable(
        fingerprint=fingerprint_here(ranks, link), curves=found[0].curves, interference=found[0].interference
    )
