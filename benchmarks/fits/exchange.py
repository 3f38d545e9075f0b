"""Fits what joining a group costs a step besides its calls: handling of tensors, ticks, waits for the slowest.

    python benchmarks/fits/exchange.py

Points are steps on several devices with the same step on one: calibration rows that come with Trimaran, and PyTorch's
own measurement of DistributedDataParallel (data/ddp_dgx1v.csv, from pytorch/pytorch@bf69c14:
benchmarks/distributed/ddp/README.md). The exchange is simulated without these constants; they are then chosen from
grids so that the mean absolute error, each cut off at 15 %, is least: rows that are starved by a loader of their own
cannot pull them. Constants of one recipe are among them: the time of Horovod's calls, and the rate at which TensorFlow
sums and updates on the host. Their ends are those of the same fit to draws of networks. Rows whose batches hold
sentences of different lengths are kept apart: with the rest known, each says one spread of the work of batches, and
their median is kept. Where MXNet's copies and calls are between their ends comes from two published ratios
(trimaran_studies/reproduce/dgx1.py). Writes
src/trimaran/pricing/exchange_constants.toml with the errors that remain, also on networks that were left out.
"""

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimaran.graph.kernels.workload import Workload
from trimaran.machine.find import find_machine
from trimaran.machine.types import Machine
from trimaran.planning.requests import default_software
from trimaran.planning.tracing.workloads import workload
from trimaran.pricing.exchange.costs import ExchangeOptions, handling_s
from trimaran.pricing.exchange.frameworks import (
    HOROVOD,
    HOROVOD_21,
    HOROVOD_TUNED,
    RECIPES,
    TF_SERVER,
    ExchangeRecipe,
    recipe_of,
)
from trimaran.pricing.exchange.step import Sync
from trimaran.pricing.kernels.estimate import StepEstimate, estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran.simulator.data_parallel import DataParallelSetup, data_parallel_step, largest_of
from trimaran_studies.published.rows import published_rows
from trimaran_studies.reproduce.dgx1 import FITTED_RATIOS, fit_places
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
    [step * 0.003 for step in range(4)],
)
NAMES = ("tensor_s", "cycles_step_s", "straggling", "straggling_growth", "node_straggling")
FIELDS = {
    "horovod_call_s": ("call_s", (0.02e-3, 0.05e-3, 0.1e-3, 0.2e-3, 0.5e-3, 1e-3)),
    "tuned_call_s": ("call_s", (0.02e-3, 0.05e-3, 0.1e-3, 0.2e-3, 0.4e-3)),
    "tf_host_bytes_per_s": ("host_bytes_per_s", (20e9, 30e9, 40e9, 60e9, 80e9, 120e9)),
}
FITTED_OF = {
    HOROVOD.name: "horovod_call_s",
    HOROVOD_21.name: "horovod_call_s",
    HOROVOD_TUNED.name: "tuned_call_s",
    TF_SERVER.name: "tf_host_bytes_per_s",
}
KEPT = {"horovod_call_s": 0.5e-3, "tuned_call_s": 0.1e-3, "node_straggling": 0.003}
"""What these rows cannot tell, four of them on several nodes: draws of other networks give most of the grid as ends."""
RESAMPLED = 200
SEED = 0
CUT = 0.15
OF_RECIPES = tuple(FIELDS)
Matrix = NDArray[np.float64]
Calls = tuple[int, ...]
Choice = tuple[Calls, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A step on several devices.

    Attributes:
        network: its name
        bare_s: simulated, without what is fitted of all, for each value of what is fitted of its recipe [s]
        of_recipe: that constant's name; "": none of its recipe is fitted
        nodes: that the devices are in
        compute_s: forward and backward in it [s]
        tensors: that are handled each; 0 where the recipe handles them in batches
        cycles: calls start in cycles
        devices: in the group
        measured_s: as published [s]
        unequal: batches hold sentences of different lengths
    """

    network: str
    bare_s: tuple[float, ...]
    of_recipe: str
    nodes: int
    compute_s: float
    tensors: int
    cycles: bool
    devices: int
    measured_s: float
    unequal: bool = False


def main() -> None:
    found = [*_published(), *_ddp()]
    points = [point for point in found if not point.unequal]
    networks = sorted({point.network for point in points})
    whole = np.ones(len(points))
    weights = [whole]
    weights += [np.array([float(point.network != network) for point in points]) for network in networks]
    draw = np.random.default_rng(SEED)
    for _ in range(RESAMPLED):
        drawn = draw.choice(len(networks), len(networks))
        counts = {network: int((drawn == place).sum()) for place, network in enumerate(networks)}
        weights.append(np.array([float(counts[point.network]) for point in points]))
    kept = _best(points, np.array(weights[: 1 + len(networks)]).T, kept=KEPT)
    best, others = kept[0], kept[1:]
    resampled = _best(points, np.array(weights[1 + len(networks) :]).T)
    apart = np.concatenate(
        [
            _errors([point for point in points if point.network == network], calls)[linear]
            for network, (calls, linear) in zip(networks, others, strict=True)
        ]
    )
    values = [_values(choice) for choice in resampled]
    several = sum(point.nodes > 1 for point in points)
    lines = [
        "# Written by benchmarks/fits/exchange.py.",
        f"# {len(points)} steps of {len(networks)} networks, {several} on several nodes:",
        f"# {_spread(_errors(points, best[0])[best[1]])};",
        f"# of networks left out: {_spread(apart)}.",
        *(f"{name} = {value:.6g}" for name, value in _values(best).items()),
        *_lengths([point for point in found if point.unequal], best),
        *_places(),
        "",
        f"# 5 and 95 % of the same fit to {RESAMPLED} draws of as many networks.",
        "[ends]",
        *(
            f"{name} = [{', '.join(f'{end:.6g}' for end in np.quantile([one[name] for one in values], [0.05, 0.95]))}]"
            for name in _values(best)
        ),
    ]
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lengths(points: Sequence[Point], best: Choice) -> Iterator[str]:
    """The spread of the work of batches, with what it leaves and how sure it is."""
    measured_s = np.array([point.measured_s for point in points])
    without = _errors(points, best[0])[best[1]]
    waited_s = np.array([largest_of(point.devices) * point.compute_s for point in points])
    spreads = -without * measured_s / waited_s
    spread = float(np.median(spreads))
    others = [float(np.median(np.delete(spreads, place))) for place in range(len(spreads))]
    apart = without + np.array(others) * waited_s / measured_s
    yield f"# {len(points)} steps of {len({point.network for point in points})} network on one kind of machine, whose"
    yield f"# spreads are {spreads.min():.3f} to {spreads.max():.3f}: {_spread(without)} without it,"
    yield f"# {_spread(without + spread * waited_s / measured_s)} with it; of steps left out: {_spread(apart)}."
    yield f"length_spread = {spread:.3g}"


def _places() -> Iterator[str]:
    """Where MXNet's copies and calls are between their ends."""
    copies, calls = fit_places(FITTED_RATIOS, default_software(("kvstore", "nccl")))
    yield f"# Speeds of NCCL by speeds of copies of {', '.join(FITTED_RATIOS)} (trimaran_studies/reproduce/dgx1.py)."
    yield f"mxnet_copies = {copies:.6g}"
    yield f"mxnet_calls = {calls:.6g}"


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
    recipe: ExchangeRecipe,
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
    nbytes = round(sum(gradient.nbytes for gradient in work.gradients) * wire_share)
    copies_s = handling_s(replace(recipe, tensor_s=0.0, step_s=0.0), machine, tensors=0, nbytes=nbytes)
    of_recipe = FITTED_OF.get(recipe.name, "")
    field, values = FIELDS.get(of_recipe, ("call_s", (recipe.call_s,)))
    bare_s = []
    for value in values:
        options = replace(setup.options, recipe=replace(recipe, **{field: value}))
        step = data_parallel_step(replace(setup, options=options))
        bare_s.append(step.step.seconds - step.overhead_s + copies_s)
    return Point(
        network=network,
        bare_s=tuple(bare_s),
        of_recipe=of_recipe,
        nodes=setup.nodes,
        compute_s=step.fp_bp_s,
        tensors=len(work.gradients) if recipe.tensor_s else 0,
        cycles=recipe.step_s > 0.0,
        devices=devices,
        measured_s=measured_s,
        unequal=unequal,
    )


def _errors(points: Sequence[Point], calls: Calls) -> Matrix:
    """Relative error of each point (columns) under each choice of the common constants (rows), given the others."""
    places = [calls[OF_RECIPES.index(point.of_recipe)] if point.of_recipe else 0 for point in points]
    bare_s = np.array([point.bare_s[place] for point, place in zip(points, places, strict=True)])
    compute_s, measured_s = (
        np.array([getattr(point, name) for point in points]) for name in ("compute_s", "measured_s")
    )
    tensors = np.array([point.tensors for point in points])
    cycles = np.array([point.cycles for point in points])
    doublings, nodes = (np.log2([getattr(point, name) for point in points]) for name in ("devices", "nodes"))
    choices = np.array(list(itertools.product(*GRIDS)))
    tensor_s, step_s, share, growth, over = choices.T[:, :, None]
    waits = share + growth * doublings + over * nodes
    predicted_s = bare_s + tensor_s * tensors + step_s * cycles + waits * compute_s
    found: Matrix = predicted_s / measured_s - 1
    return found


def _best(points: Sequence[Point], weights: Matrix, *, kept: Mapping[str, float] | None = None) -> list[Choice]:
    """The best choice for each weighting of the points (columns of `weights`), with some constants given."""
    given = kept or {}
    linear = np.array(list(itertools.product(*GRIDS)))
    barred = np.zeros(len(linear), dtype=bool)
    for place, name in enumerate(NAMES):
        barred |= ~np.isclose(linear[:, place], given.get(name, linear[:, place]), atol=1e-9)
    least = np.full(weights.shape[1], np.inf)
    found: list[Choice] = [((0,) * len(OF_RECIPES), 0)] * weights.shape[1]
    for calls in itertools.product(*(range(len(FIELDS[name][1])) for name in OF_RECIPES)):
        if any(
            FIELDS[name][1][place] != given.get(name, FIELDS[name][1][place])
            for name, place in zip(OF_RECIPES, calls, strict=True)
        ):
            continue
        losses = np.minimum(CUT, np.abs(_errors(points, calls))) @ weights
        losses[barred] = np.inf
        rows = losses.argmin(axis=0)
        for place, row in enumerate(rows):
            if losses[row, place] < least[place] - 1e-12:
                least[place], found[place] = losses[row, place], (calls, int(row))
    return found


def _values(choice: Choice) -> dict[str, float]:
    calls, row = choice
    linear = list(itertools.product(*GRIDS))[row]
    return dict(zip(NAMES, linear, strict=True)) | {
        name: FIELDS[name][1][place] for name, place in zip(OF_RECIPES, calls, strict=True)
    }


def _spread(errors: Matrix) -> str:
    median, most = np.quantile(np.abs(errors), [0.5, 0.8])
    return f"median error {100 * median:.1f} %, 80 % within {100 * most:.1f} %"


if __name__ == "__main__":
    main()
