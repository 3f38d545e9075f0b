"""Fits what joining a group costs a step besides its calls: handling of tensors, ticks, waits for the slowest.

    python benchmarks/fits/exchange.py

Points are steps on several devices with the same step on one: calibration rows that come with Trimaran, and PyTorch's
own measurement of DistributedDataParallel (data/ddp_dgx1v.csv, from pytorch/pytorch@bf69c14:
benchmarks/distributed/ddp/README.md). The exchange is simulated without these constants; they are then chosen from
grids so that the mean absolute error, each cut off at 15 %, is least: rows that are starved by a loader of their own
cannot pull them. Rows whose batches hold sentences of different lengths are kept apart: with the rest known, each says
one spread of the work of batches, and their median is kept. Writes
src/trimaran/pricing/exchange_constants.toml with the errors that remain, also on networks that were left out.
"""

import csv
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimaran.graph.kernels.workload import Workload
from trimaran.machine.find import find_machine
from trimaran.machine.types import Machine
from trimaran.planning.workloads import workload
from trimaran.pricing.exchange.costs import ExchangeOptions, handling_s
from trimaran.pricing.exchange.frameworks import RECIPES, Recipe, recipe_of
from trimaran.pricing.exchange.step import Sync
from trimaran.pricing.kernels.estimate import StepEstimate, estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran.simulator.data_parallel import DataParallelSetup, data_parallel_step, largest_of
from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation.measurement import step_of
from trimaran_studies.validation.setups import recipe_of as script_of
from trimaran_studies.validation.setups import understand
from trimaran_studies.validation.steps import row_workload

TARGET = Path(__file__).parents[2] / "src/trimaran/pricing/exchange_constants.toml"
DATA = Path(__file__).parent / "data/ddp_dgx1v.csv"
GRIDS = (
    [step * 5e-6 for step in range(2, 14)],
    [step * 1e-3 for step in range(7)],
    [step * 0.0025 for step in range(9)],
    [step * 0.002 for step in range(7)],
)
NAMES = ("tensor_s", "cycles_step_s", "straggling", "straggling_growth")
CUT = 0.15
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A step on several devices.

    Attributes:
        network: its name
        bare_s: simulated, without what is fitted [s]
        compute_s: forward and backward in it [s]
        tensors: that are handled each; 0 where the recipe handles them in batches
        cycles: calls start in cycles
        devices: in the group
        measured_s: as published [s]
        unequal: batches hold sentences of different lengths
    """

    network: str
    bare_s: float
    compute_s: float
    tensors: int
    cycles: bool
    devices: int
    measured_s: float
    unequal: bool = False


def main() -> None:
    found = [*_published(), *_ddp()]
    points = [point for point in found if not point.unequal]
    errors = _errors(points)
    networks = np.array([point.network for point in points])
    best = _best(errors, np.ones(len(points), dtype=bool))
    apart = np.concatenate(
        [errors[_best(errors, networks != network), networks == network] for network in sorted(set(networks))]
    )
    lines = [
        "# Written by benchmarks/fits/exchange.py.",
        f"# {len(points)} steps of {len(set(networks))} networks: {_spread(errors[best])};",
        f"# of networks left out: {_spread(apart)}.",
        *(f"{name} = {value:.6g}" for name, value in zip(NAMES, _values(best), strict=True)),
        *_lengths([point for point in found if point.unequal], best),
    ]
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lengths(points: Sequence[Point], best: int) -> Iterator[str]:
    """The spread of the work of batches, with what it leaves and how sure it is."""
    measured_s = np.array([point.measured_s for point in points])
    without = _errors(points)[best]
    waited_s = np.array([largest_of(point.devices) * point.compute_s for point in points])
    spreads = -without * measured_s / waited_s
    spread = float(np.median(spreads))
    others = [float(np.median(np.delete(spreads, place))) for place in range(len(spreads))]
    apart = without + np.array(others) * waited_s / measured_s
    yield f"# {len(points)} steps of {len({point.network for point in points})} network on one kind of machine, whose"
    yield f"# spreads are {spreads.min():.3f} to {spreads.max():.3f}: {_spread(without)} without it,"
    yield f"# {_spread(without + spread * waited_s / measured_s)} with it; of steps left out: {_spread(apart)}."
    yield f"length_spread = {spread:.3g}"


def _published() -> Iterator[Point]:
    for row in published_rows("dp_throughput"):
        if row.fields.get("use") != "calibrate" or row.anchor is None or row.flag:
            continue
        setup, script = understand(row), script_of(row)
        if setup.devices == 1:
            continue
        work = row_workload(setup, script)
        anchor_s = step_of(row, setup, row.anchor, devices=1)
        estimate = estimate_step(work, setup.machine.node.device, setup.software, anchor_s=anchor_s)
        recipe = RECIPES.get(script.exchange) or recipe_of(setup.software, setup.sync)
        yield _point(
            setup.network,
            (work, estimate, setup.machine, setup.software),
            recipe,
            devices=setup.devices,
            sync=setup.sync,
            measured_s=step_of(row, setup, row.measured, devices=setup.devices),
            wire_share=script.wire_share,
            unequal=script.unequal_lengths,
        )


def _ddp() -> Iterator[Point]:
    machine = find_machine("dgx1-v100:2")
    software = Software(framework="pytorch", year=2020.1)
    with DATA.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    alone = {line["network"]: float(line["step_time_s"]) for line in lines if line["mode"] == "no_ddp"}
    for line in lines:
        if line["mode"] != "ddp" or line["gpus"] == "1":
            continue
        work = workload(line["network"], batch=32)
        estimate = estimate_step(work, machine.node.device, software, anchor_s=alone[line["network"]])
        yield _point(
            f"ddp {line['network']}",
            (work, estimate, machine, software),
            recipe_of(software),
            devices=int(line["gpus"]),
            sync="nccl",
            measured_s=float(line["step_time_s"]),
        )


def _point(
    network: str,
    job: tuple[Workload, StepEstimate, Machine, Software],
    recipe: Recipe,
    *,
    devices: int,
    sync: Sync,
    measured_s: float,
    wire_share: float = 1.0,
    unequal: bool = False,
) -> Point:
    work, estimate, machine, software = job
    setup = DataParallelSetup(
        workload=work,
        estimate=estimate,
        machine=machine,
        devices=devices,
        nodes=-(-devices // machine.node.devices),
        sync=sync,
        software=software,
        options=ExchangeOptions(recipe=recipe, wire_share=wire_share, explain=False),
    )
    step = data_parallel_step(setup)
    nbytes = round(sum(gradient.nbytes for gradient in work.gradients) * wire_share)
    copies_s = handling_s(replace(recipe, tensor_s=0.0, step_s=0.0), machine, tensors=0, nbytes=nbytes)
    return Point(
        network=network,
        bare_s=step.step.seconds - step.overhead_s + copies_s,
        compute_s=step.fp_bp_s,
        tensors=len(work.gradients) if recipe.tensor_s else 0,
        cycles=recipe.step_s > 0.0,
        devices=devices,
        measured_s=measured_s,
        unequal=unequal,
    )


def _errors(points: Sequence[Point]) -> Matrix:
    """Relative error of each point (columns) under each choice of the constants (rows)."""
    bare_s, compute_s, measured_s = (
        np.array([getattr(point, name) for point in points]) for name in ("bare_s", "compute_s", "measured_s")
    )
    tensors = np.array([point.tensors for point in points])
    cycles = np.array([point.cycles for point in points])
    doublings = np.log2([point.devices for point in points])
    choices = np.array(list(itertools.product(*GRIDS)))
    tensor_s, step_s, share, growth = choices.T[:, :, None]
    predicted_s = bare_s + tensor_s * tensors + step_s * cycles + (share + growth * doublings) * compute_s
    found: Matrix = predicted_s / measured_s - 1
    return found


def _best(errors: Matrix, used: NDArray[np.bool_]) -> int:
    return int(np.argmin(np.minimum(CUT, np.abs(errors[:, used])).sum(axis=1)))


def _values(choice: int) -> tuple[float, ...]:
    return list(itertools.product(*GRIDS))[choice]


def _spread(errors: Matrix) -> str:
    median, most = np.quantile(np.abs(errors), [0.5, 0.8])
    return f"median error {100 * median:.1f} %, 80 % within {100 * most:.1f} %"


if __name__ == "__main__":
    main()
