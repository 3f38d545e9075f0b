"""Options of `trimaran profile --stalls`."""

from pathlib import Path
from typing import Annotated

import typer

Stalls = Annotated[
    bool,
    typer.Option(
        "--stalls",
        help="Run the job cold, cached and on synthetic data, and say what its steps wait for.",
        show_default=False,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option("--steps", help="With --stalls: steps of each way.", min=1, show_default="a few seconds of them"),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", help="With --stalls: processes of each rank that load.", min=0, show_default="as in the plan, or 0"
    ),
]
StallsPlan = Annotated[
    Path | None,
    typer.Option("--plan", help="With --stalls: run this plan instead of making one.", show_default=False),
]
