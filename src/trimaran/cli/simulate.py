"""`trimaran simulate`: one step of a plan or of a job's best plan, on the simulator."""

from trimaran.cli.options import Json, PinOptions, SearchOptions, Subject, Trace, grouped
from trimaran.cli.output import console, errors_reported, print_json, progress_shown


@grouped
def simulate(
    subject: Subject,
    asked: SearchOptions,
    pins: PinOptions,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Simulate one step: its time, its memory, and how each device spends it; of a plan for a target cluster, there."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.plans import print_simulation, simulation_document
        from trimaran.jobs.resolve import JobSource
        from trimaran.planning.estimated import on_its_machine
        from trimaran.planning.plan import obtain_plan
        from trimaran.program.plan import plan_path, read_plan
        from trimaran.report.trace import write_trace

        path, request = plan_path(subject), asked.read(pins)
        plan = None if path is None else read_plan(path)
        if plan is not None:
            request = on_its_machine(plan, request)
        source = JobSource(reference=subject if plan is None else plan.job, global_batch_size=asked.batch)
        with progress_shown() as progress:
            planned = obtain_plan(source, request, path=path, progress=progress)
        if trace is not None:
            write_trace(trace, planned.simulated.chosen.program, planned.simulated.chosen.timeline)
        if as_json:
            print_json(simulation_document(planned))
        else:
            from trimaran.cli.following import following
            from trimaran.report.tables import print_next

            out = console()
            print_simulation(out, planned)
            print_next(out, following("explain", subject))
