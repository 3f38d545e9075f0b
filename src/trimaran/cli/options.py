"""Options that several commands share, so that they are spelled and explained once."""

from pathlib import Path
from typing import Annotated

import typer

Reference = Annotated[
    str,
    typer.Argument(metavar="JOB", help="A built-in job (see `trimaran jobs`) or file.py:factory.", show_default=False),
]
Devices = Annotated[
    int | None,
    typer.Option("--devices", "-n", help="Most devices that may take part.  [default: all of this machine]", min=1),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of weights, order and dropout.", min=0)]
Batch = Annotated[int | None, typer.Option("--batch", help="Samples of one update, over all devices.", min=1)]
Memory = Annotated[
    str | None, typer.Option("--memory", help='Memory that each device may use, such as "12GiB".', show_default=False)
]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Allow more ranks than the machine has devices.", show_default=False)
]
PlanFile = Annotated[
    Path | None, typer.Option("--plan", help="Run this plan instead of making one.", show_default=False)
]
Link = Annotated[
    str | None,
    typer.Option(
        "--link", help='Hold the links between local ranks to this rate, such as "1Gb/s".', show_default=False
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help='What to make best: "throughput", or the time of an "epoch".',
        show_default="throughput, or that of the plan",
    ),
]
Execution = Annotated[str, typer.Option("--execution", help='How segments may run: "any", "eager", "compiled".')]
Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", help="Use the figures of this file of `trimaran calibrate`.", show_default=False),
]
