"""The split of a step into FP, BP and WU, measured on the machine at hand with both exchanges of the study.

The study's five networks, reduced, on a few local processes: gradients by all-reduce, and by copies to homes and back.
Each step is split from the record of what ran (`report/breakdown`), and predicted by the simulator from what the
operations, the updates and the transfers were measured to take just before. Imports torch in the ranks only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trimaran.cluster.detect import detect_cluster
from trimaran.costs.pricing import price
from trimaran.costs.tables import CostTable, Curve, CurveKey
from trimaran.errors import InputError
from trimaran.program import Strategy, lower
from trimaran.report.reproduction.measured_exchange import MeasuredExchange, MeasuredNetwork
from trimaran.report.reproduction.split_terms import measured_terms, predicted_terms, recording_cost
from trimaran.session.planning import Progress, ignore_progress
from trimaran.session.studied_networks import BATCH, STUDIED_FORMS
from trimaran.simulator import simulate

if TYPE_CHECKING:
    from trimaran.session.measured_exchange import RankFindings

STEPS = 18
"""Timed steps of each exchange, with the record on, by default."""

_LEAST_STEPS = 8


def measure_dgx1(
    *,
    networks: str | None = None,
    devices: int = 2,
    steps: int = STEPS,
    progress: Progress = ignore_progress,
) -> tuple[MeasuredNetwork, ...]:
    """Measure the study's networks, reduced, on this machine.

    Args:
        networks: some of them, such as "lenet,resnet50"; None: all
        devices: processes, or GPUs where there are as many
        steps: timed, of each exchange
        progress: told what is being done

    Raises:
        InputError: an unknown network, fewer than two devices, more than there are, or too few steps
        ExecutionError: a rank failed
    """
    from trimaran.runtime.ranks import launch
    from trimaran.session.measured_exchange import measure_exchanges

    names = _names(networks)
    _check(devices, steps)

    def on_event(rank: int, event: Mapping[str, object]) -> None:
        if "measuring" in event and rank == 0 and event["measuring"] in names:
            progress(f"measuring {event['measuring']}", int(str(event["done"])), int(str(event["total"])))

    ranks = launch(measure_exchanges, (names, steps), ranks=devices, on_event=on_event)
    return _report(names, ranks, devices)


def _names(networks: str | None) -> tuple[str, ...]:
    names = tuple(STUDIED_FORMS) if networks is None else tuple(part.strip() for part in networks.split(","))
    for name in names:
        if name not in STUDIED_FORMS:
            raise InputError(f'"{name}" is not measured here; there are {", ".join(STUDIED_FORMS)}', network=name)
    return tuple(dict.fromkeys(names))


def _check(devices: int, steps: int) -> None:
    available = detect_cluster().size
    if not 2 <= devices <= available:
        raise InputError(
            f"an exchange needs from 2 devices to the {available} of this machine, got {devices}", devices=devices
        )
    if steps < _LEAST_STEPS:
        raise InputError(f"a median needs at least {_LEAST_STEPS} steps, got {steps}", steps=steps)


def _report(
    names: Sequence[str], ranks: "Sequence[Sequence[RankFindings]]", devices: int
) -> tuple[MeasuredNetwork, ...]:
    """Predict what was measured, and put both together.

    Links were measured with every network, and are the same for all: what is in the middle counts.
    """
    of_networks = list(zip(*ranks, strict=True))
    tables = [_table(of_ranks, devices) for of_ranks in of_networks]
    links = _middle_curves([table.curves for table in tables])
    return tuple(
        _network(name, of_ranks, replace(table, curves=links))
        for name, of_ranks, table in zip(names, of_networks, tables, strict=True)
    )


def _middle_curves(measured: Sequence[Mapping[CurveKey, Curve]]) -> dict[CurveKey, Curve]:
    """The median of several measurements, size by size; of two, the shorter."""
    return {
        key: tuple(
            (points[0][0], sorted((cost for _, cost in points), key=lambda cost: cost.seconds)[(len(points) - 1) // 2])
            for points in zip(*(curves[key] for curves in measured), strict=True)
        )
        for key in measured[0]
    }


def _table(of_ranks: "Sequence[RankFindings]", devices: int) -> CostTable:
    from trimaran.measure.costs import fingerprint_here
    from trimaran.measure.findings import assemble

    graph = of_ranks[0].graph
    findings = [rank.findings for rank in of_ranks]
    return assemble(findings, None, graph, job=graph.digest, fingerprint=fingerprint_here(devices))


def _network(name: str, of_ranks: "Sequence[RankFindings]", table: CostTable) -> MeasuredNetwork:
    from trimaran.session.measured_exchange import strategies

    graph, devices = of_ranks[0].graph, len(of_ranks)
    trained = [parameter for parameter in graph.parameters if parameter.trainable]
    return MeasuredNetwork(
        network=name,
        form=STUDIED_FORMS[name].text,
        devices=devices,
        batch_per_device=BATCH,
        gradient_bytes=sum(parameter.nbytes for parameter in trained),
        tensors=len(trained),
        exchanges=tuple(_exchange(strategy, of_ranks, table) for strategy in strategies(devices)),
    )


def _exchange(strategy: Strategy, of_ranks: "Sequence[RankFindings]", table: CostTable) -> MeasuredExchange:
    from trimaran.runtime.record import WATCH_EVERY

    graph, batch = of_ranks[0].graph, BATCH * strategy.dp
    program = lower(graph, strategy, batch=batch)
    costs = price(program, graph, strategy, table, detect_cluster(strategy.dp), batch=batch)
    steps = [rank.steps[strategy.sync] for rank in of_ranks]
    timeline = steps[0].timeline
    return MeasuredExchange(
        sync=strategy.sync,
        calls=sum(item.segment is not None and bool(item.group) for item in program.ranks[0]),
        measured=measured_terms(
            program,
            timeline,
            [rank.recorded for rank in steps],
            watched={number for number in timeline.steps if number % WATCH_EVERY == 0},
        ),
        predicted=predicted_terms(program, simulate(program, costs)),
        recording=recording_cost(steps[0].recorded, steps[0].plain, every=WATCH_EVERY),
        steps=sum(map(len, steps[0].recorded)),
    )
