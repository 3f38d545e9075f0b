"""`trimaran simulate`: one step of a plan or of a job's best plan, on the simulator."""

from trimaran.cli.options import Batch, Json, PinOptions, RequestOptions, Subject, Trace, grouped
from trimaran.cli.output import console, errors_reported, print_json, progress_shown


@grouped
def simulate(
    subject: Subject,
    asked: RequestOptions,
    pins: PinOptions,
    batch: Batch = None,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Simulate one step: its time, its memory, and how each device spends it."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.plans import print_simulation, simulation_document
        from trimaran.jobs.resolve import JobSource
        from trimaran.planning.plan import obtain_plan
        from trimaran.program.plan import plan_path, read_plan
        from trimaran.report.trace import write_trace

        plan = plan_path(subject)
        reference = subject if plan is None else read_plan(plan).job
        source = JobSource(reference=reference, global_batch_size=batch)
        with progress_shown() as progress:
            planned = obtain_plan(source, asked.read(pins), path=plan, progress=progress)
        if trace is not None:
            write_trace(trace, planned.simulated.chosen.program, planned.simulated.chosen.timeline)
        if as_json:
            print_json(simulation_document(planned))
        else:
            print_simulation(console(), planned)
