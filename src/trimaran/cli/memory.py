"""`trimaran memory`: what a job's step needs on a device, and what a memory plan makes of it, before any run."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from trimaran.cli.options import Json, Measured, PrecisionName, Reference, SequenceTokens, Trace, option, with_sequence
from trimaran.cli.output import console, errors_reported, print_document, progress_shown


class Policy(StrEnum):
    """Who decides what is kept, offloaded and recomputed."""

    OURS = "ours"
    NONE = "none"
    ALL = "all"
    CONV = "conv"
    DYN = "dyn"


def memory(
    job: Reference,
    device: Annotated[str, option('Of the catalog, such as "titan-x" or "h200".')],
    batch: Annotated[
        int | None,
        option(
            "Samples of a step on the device; on one device that is the global batch too.",
            "--local-batch",
            "--batch",
            usual="the job's",
            min=1,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        option(
            'Memory of the card with the context of the driver, such as "12GiB", or a share such as "50%" of what '
            "autograd alone needs.  [default: the whole card]"
        ),
    ] = None,
    precision: PrecisionName = None,
    sequence: SequenceTokens = None,
    policy: Annotated[Policy, option("Whose plan is shown; all are in the table.")] = Policy.OURS,
    slowdown: Annotated[float, option("Most that a plan may cost for the largest batch, in percent.", min=0.0)] = 10.0,
    largest_batch: Annotated[bool, option("Look for the largest batch.", "--largest-batch/--no-largest-batch")] = True,
    split: Annotated[
        str,
        option(
            'Modules that run in parts of the batch, such as "features:0-4:2" (children 0 to 4 of features, in 2 '
            'parts); "auto": the fastest with which a plan fits a budget below the minimum memory; "none": none.'
        ),
    ] = "auto",
    sharing: Annotated[int, option("Devices in use on one host: they share a link to it, and its memory.", min=1)] = 1,
    host: Annotated[
        str | None,
        option(
            'Most that may lie on the host for this device, such as "128GiB".  [default: its part of four fifths '
            "of "
            "the host's memory in the usual machine of the device]"
        ),
    ] = None,
    codec: Annotated[
        str | None,
        option(
            'Offloaded storages may be coded where that is faster: "sparse" (exact, after a ReLU; "sparse:2.6" '
            'says how many times fewer bytes) or "bf16" (rounds).  [default: none]'
        ),
    ] = None,
    measured: Measured = None,
    storages: Annotated[bool, option("Show what becomes of each storage, and why.", "--storages")] = False,
    chart: Annotated[bool, option("Draw live bytes over the step; with --json, write them.", "--chart")] = False,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Say whether a step fits a device, what a plan of its memory costs, and how near that is to the lower bound."""
    with errors_reported(as_json=as_json):
        from trimaran.features.memory_fit.estimate import estimate_memory
        from trimaran.program.json_files import to_plain
        from trimaran.report.trace import write_memory_trace

        with progress_shown() as progress:
            study = estimate_memory(
                with_sequence(job, sequence),
                device=device,
                batch=batch,
                budget=budget,
                precision=precision,
                policy=policy.value,
                slowdown_limit=slowdown / 100,
                largest_batch=largest_batch,
                split=split,
                sharing=sharing,
                host=host,
                codec=codec,
                measured=measured,
                progress=progress,
            )
        found = study.estimate
        if trace is not None:
            write_memory_trace(trace, study.step)
        if as_json:
            shown = replace(
                found, storages=found.storages if storages else (), live_bytes=found.live_bytes if chart else None
            )
            print_document(to_plain(shown))
        else:
            from trimaran.cli.following import following
            from trimaran.report.memory import print_estimate
            from trimaran.report.tables import print_next

            out = console()
            print_estimate(out, found, chart=chart, storages=storages)
            # The --budget of a plan is money; its --memory is what the job may use, without the driver's context.
            room = None if budget is None else f"{found.budget_bytes // 2**20}MiB"
            together = None if batch is None else 8 * batch
            words = following(
                "plan", without=("--budget", "--measured"), cluster=f"8x{device.strip()}", memory=room, batch=together
            )
            print_next(out, words, "on 8 of them")
