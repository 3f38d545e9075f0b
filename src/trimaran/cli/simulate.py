"""A step without a training: `trimaran plan PLAN.json` simulates, `trimaran train --emulate` sends real messages."""

from typing import Annotated

from trimaran.cli.options import Batch, Json, LoadingOptions, PinOptions, SearchOptions, Subject, Trace, grouped, option
from trimaran.cli.output import console, errors_reported, print_json, progress_shown


@grouped
def simulate(
    subject: Subject,
    asked: SearchOptions,
    pins: PinOptions,
    loading: LoadingOptions,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Simulate one step: its time, its memory, and how each device spends it; of a plan for a target cluster, there."""
    with errors_reported(as_json=as_json):
        from trimaran.base.errors import InputError
        from trimaran.jobs.resolve import JobSource
        from trimaran.planning.answer.pages import print_simulation, simulation_document
        from trimaran.planning.estimated import asked_of_file
        from trimaran.planning.plan import obtain_plan
        from trimaran.program.plan_file import plan_path, read_plan
        from trimaran.report.trace import write_trace

        path = plan_path(subject)
        if asked.objective in ("time", "cost"):
            raise InputError(
                f"--objective {asked.objective} goes by a convergence curve, for which simulate has no option: let "
                "`trimaran plan` choose, with --curve and --output plan.json, and simulate that file",
                code="simulate.no-curve",
                objective=asked.objective,
            )
        plan = None if path is None else read_plan(path)
        request = asked.read(pins, **asked_of_file(plan, cluster=asked.cluster, loading=loading.read()))
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


def emulate(
    subject: Subject,
    devices: Annotated[int | None, option("Devices to emulate.", "--devices", "-n", min=2)] = None,
    link: Annotated[str | None, option('Rate limit of the links between them, such as "1Gb/s".')] = None,
    nodes: Annotated[int, option("Nodes that the devices are dealt to.", min=1)] = 1,
    uplink: Annotated[
        str | None, option('With --nodes: what joins each node to the others, such as "200Mb/s".')
    ] = None,
    batch: Batch = None,
    steps: Annotated[int, option("Steps to emulate.", min=1)] = 20,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Run a plan with simulated compute and real messages, and compare it with its simulation."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.plans import emulation_document, print_emulation
        from trimaran.features.emulation import emulate_subject
        from trimaran.program.plan_file import plan_path
        from trimaran.report.trace import write_trace

        with progress_shown() as progress:
            found = emulate_subject(
                subject,
                devices=devices,
                link=link,
                nodes=nodes,
                uplink=uplink,
                batch=batch,
                steps=steps,
                progress=progress,
            )
        if trace is not None:
            write_trace(trace, found.program, found.predicted, found.measured, comparison=found.comparison)
        if as_json:
            print_json(emulation_document(found))
        else:
            from trimaran.cli.following import following
            from trimaran.machine.detect import detect_machine
            from trimaran.report.tables import print_next

            out = console()
            print_emulation(out, found)
            # --nodes of those commands is of the sum of gradients.
            if plan_path(subject) is not None:
                words = following("explain", subject, without=("--nodes", "--batch", "--devices"))
            else:
                is_shared = (devices or 0) > detect_machine().devices
                words = following("plan", subject, without=("--nodes",), oversubscribe=is_shared)
            print_next(out, words)
