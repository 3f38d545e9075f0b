"""`trimaran plan GRAPH.json`: its schedule over devices, what crosses, and how good it is at most."""

import time
from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Gap, Json, option, seconds_of
from trimaran.cli.output import console, errors_reported, print_json


def place(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH.json", help="Nodes with times and sizes, and edges.")],
    devices: Annotated[int, option("How many devices there are, all alike.", "--devices", "-n", min=1)] = 2,
    bandwidth: Annotated[str, option('Of the link between each two devices, each way, such as "25GB/s".')] = "25GB/s",
    latency: Annotated[float, option('Of each transfer, such as "5us".', parser=seconds_of, metavar="TIME")] = 0.0,
    memory: Annotated[str | None, option('Of each device, such as "16GiB".  [default: no limit]')] = None,
    time_limit: Annotated[
        float | None,
        option(
            "Time for the whole command, which is filled with work.",
            usual="no limit, the work of 60 s",
            parser=seconds_of,
            metavar="TIME",
        ),
    ] = None,
    work: Annotated[
        float | None,
        option(
            "Search as much as a usual core does in this time, however long it takes here: with the same seed, "
            "the same answer anywhere.",
            usual="60s, or what fits the time limit",
            parser=seconds_of,
            metavar="TIME",
        ),
    ] = None,
    seed: Annotated[int, option("Of everything random.", min=0, max=2**63 - 1)] = 0,
    gap: Gap = 0.0,
    as_json: Json = False,
) -> None:
    """Place the operations of a network on devices, so that a step ends soonest."""
    began = time.monotonic()
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.placement import placement_document, placement_lines
        from trimaran.features.placement import place_profiled

        placed = place_profiled(
            graph,
            devices=devices,
            bandwidth=bandwidth,
            latency_s=latency,
            memory=memory,
            time_limit_s=time_limit,
            work_s=work,
            seed=seed,
            gap=gap,
            began=began,
        )
        if as_json:
            print_json(placement_document(placed))
            return
        out = console()
        for line in placement_lines(placed):
            out.print(line, markup=False)
