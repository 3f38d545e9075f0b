"""`trimaran train`: plan if needed, run, and set the measurement beside the prediction."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Batch, Devices, Json, Memory, Oversubscribe, PlanFile, Reference, Seed
from trimaran.cli.output import console, errors_reported, print_json
from trimaran.cli.progress import progress_shown

Epochs = Annotated[int | None, typer.Option("--epochs", help="Passes over the data.", min=0, show_default=False)]
Runs = Annotated[
    Path | None, typer.Option("--runs", help="Folder of run directories.  [default: runs]", show_default=False)
]


def train(
    job: Reference,
    devices: Devices = None,
    plan: PlanFile = None,
    epochs: Epochs = None,
    batch: Batch = None,
    seed: Seed = None,
    memory: Memory = None,
    runs: Runs = None,
    oversubscribe: Oversubscribe = False,
    as_json: Json = False,
) -> None:
    """Train a job by the best plan, or by a given one; report predicted against measured."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views import print_plan, print_trained
        from trimaran.report import report_document
        from trimaran.session.jobs import JobSource
        from trimaran.session.planning import obtain_plan
        from trimaran.session.training import train_planned
        from trimaran.units import parse_bytes

        source = JobSource(reference=job, epochs=epochs, global_batch_size=batch, seed=seed)
        memory_bytes = None if memory is None else parse_bytes(memory)
        out = console()
        with progress_shown() as progress:
            planned = obtain_plan(
                source,
                path=plan,
                devices=devices,
                memory_bytes=memory_bytes,
                oversubscribe=oversubscribe,
                progress=progress,
            )
        if not as_json:
            print_plan(out, planned)
        with progress_shown() as progress:
            trained = train_planned(planned, parent=runs, progress=progress)
        if as_json:
            print_json(report_document(trained.report))
        else:
            print_trained(out, trained)
