"""`trimaran place`: a profiled graph over devices, with the schedule, what crosses, and how good it is at most."""

import time
from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Gap, Json, seconds_of
from trimaran.cli.output import console, errors_reported, print_json


def place(
    graph: Annotated[
        Path,
        typer.Argument(metavar="GRAPH.json", help="Nodes with times and sizes, and edges.", show_default=False),
    ],
    devices: Annotated[int, typer.Option("--devices", "-n", help="How many devices there are, all alike.", min=1)] = 2,
    bandwidth: Annotated[
        str, typer.Option("--bandwidth", help='Of the link between each two devices, each way, such as "25GB/s".')
    ] = "25GB/s",
    latency: Annotated[
        float,
        typer.Option("--latency", help='Of each transfer, such as "5us".', parser=seconds_of, metavar="TIME"),
    ] = 0.0,
    memory: Annotated[
        str | None,
        typer.Option("--memory", help='Of each device, such as "16GiB".  [default: no limit]', show_default=False),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            help="Time for the whole command, which is filled with work.  [default: no limit, the work of 60 s]",
            parser=seconds_of,
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    work: Annotated[
        float | None,
        typer.Option(
            "--work",
            help="Search as much as a usual core does in this time, however long it takes here: with the same seed, "
            "the same answer anywhere.  [default: 60s, or what fits the time limit]",
            parser=seconds_of,
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.", min=0)] = 0,
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
