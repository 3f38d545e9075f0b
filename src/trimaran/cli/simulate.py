"""`trimaran simulate`: one step of a plan or of a job's best plan, on the simulator."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Batch, Devices, Json, Memory, Oversubscribe
from trimaran.cli.output import console, errors_reported, print_json
from trimaran.cli.progress import progress_shown

Trace = Annotated[
    Path | None, typer.Option("--trace", help="Write the timeline for a trace viewer.", show_default=False)
]


Subject = Annotated[str, typer.Argument(metavar="PLAN|JOB", help="A plan file (.json), or a job.", show_default=False)]


def simulate(
    subject: Subject,
    devices: Devices = None,
    batch: Batch = None,
    memory: Memory = None,
    trace: Trace = None,
    oversubscribe: Oversubscribe = False,
    as_json: Json = False,
) -> None:
    """Simulate one step: its time, its memory, and how each device spends it."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views import print_simulation, simulation_document
        from trimaran.program import read_plan
        from trimaran.report import write_trace
        from trimaran.session.jobs import JobSource
        from trimaran.session.planning import obtain_plan
        from trimaran.units import parse_bytes

        plan = Path(subject) if subject.endswith(".json") else None
        reference = subject if plan is None else read_plan(plan).job
        source = JobSource(reference=reference, global_batch_size=batch)
        memory_bytes = None if memory is None else parse_bytes(memory)
        with progress_shown() as progress:
            planned = obtain_plan(
                source,
                path=plan,
                devices=devices,
                memory_bytes=memory_bytes,
                oversubscribe=oversubscribe,
                progress=progress,
            )
        if trace is not None:
            write_trace(trace, planned.chosen.program, planned.chosen.timeline)
        if as_json:
            print_json(simulation_document(planned))
        else:
            print_simulation(console(), planned)
