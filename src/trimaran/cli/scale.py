"""`trimaran scale`: throughput of a job on many devices of a target cluster, and what limits it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trimaran.cli.options import (
    Json,
    LoadingOptions,
    MachineName,
    MachineSoftware,
    Measured,
    Plot,
    PrecisionName,
    Reference,
    SequenceTokens,
    Workers,
    grouped,
    note_cluster,
    option,
    respelled,
    with_sequence,
)
from trimaran.cli.output import check_plot, console, errors_reported, print_document, progress_shown, write_plot

if TYPE_CHECKING:
    from trimaran.report.scaling import ScalingStudy


@grouped
def scale(
    job: Reference,
    cluster: MachineName,
    loading: LoadingOptions,
    devices: Annotated[
        str | None,
        option(
            'Devices in the group: "1,2,4,8", or "8..1024" in doublings.',
            usual='1,2,4,8, on as many nodes as that takes; of "NAME:N" as far as its nodes have them',
        ),
    ] = None,
    batch: Annotated[
        str | None, option("Samples of one update, over all devices, which share them (strong scaling).")
    ] = None,
    local_batch: Annotated[
        str | None,
        option("Samples of each device, however many there are (weak scaling).", usual="64, without --batch"),
    ] = None,
    sync: Annotated[
        str, option('Gradients by "nccl" (all-reduce), "kvstore" (MXNet: to one device and back), "server", "byteps".')
    ] = "nccl",
    strong: Annotated[bool, option("Old spelling: --batch says so.", "--strong", hidden=True)] = False,
    global_batch: Annotated[str | None, option("Old spelling of --batch.", hidden=True)] = None,
    precision: PrecisionName = None,
    sequence: SequenceTokens = None,
    software: MachineSoftware = None,
    measured: Measured = None,
    nccl_log: Annotated[Path | None, option("Output of nccl-tests on this machine.")] = None,
    kineto: Annotated[Path | None, option("Old spelling of --measured.", hidden=True)] = None,
    length_spread: Annotated[
        float, option("Standard deviation of a batch's work by its mean, as sentences of different lengths have it.")
    ] = 0.0,
    servers: Annotated[
        int,
        option(
            "Machines without devices that sum gradients of several nodes (server, kvstore, byteps); 0: the hosts do."
        ),
    ] = 0,
    price: Annotated[
        str | None, option('Of the machine: "24.48 USD/node-hour".', usual="that of the cluster file")
    ] = None,
    server_price: Annotated[str | None, option('Of a server machine: "2 USD/node-hour".')] = None,
    workers: Workers = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Predict throughput, speedup and what limits them on a target cluster."""
    with errors_reported(as_json=as_json):
        from trimaran.features.scaling import predict_scaling
        from trimaran.planning.requests import parse_counts, parse_scaled_batches
        from trimaran.program.json_files import to_plain

        check_plot(plot)
        batches, mode, spelled = parse_scaled_batches(batch, local_batch, global_batch=global_batch, strong=strong)
        with progress_shown() as progress:
            found = predict_scaling(
                with_sequence(job, sequence),
                cluster=cluster,
                devices=None if devices is None else parse_counts(devices, what="devices"),
                local_batch=batches if mode == "weak" else None,
                batch=batches if mode == "strong" else None,
                sync=sync,
                precision=precision,
                software=software,
                measured=respelled(measured, kineto=kineto),
                nccl_log=nccl_log,
                length_spread=length_spread,
                servers=servers,
                price=price,
                server_price=server_price,
                workers=workers,
                loading=loading.read(),
                progress=progress,
            )
        note_cluster(found.cluster, cluster)
        found = replace(found, notes=(*spelled, *found.notes))
        write_plot(plot, found)
        if as_json:
            print_document(to_plain(found))
        else:
            from trimaran.report.page.terminal import print_page
            from trimaran.report.scaling import scale_page
            from trimaran.report.tables import print_next

            out = console()
            print_page(out, scale_page(found))
            print_next(out, _next(found, software, loads=loading.read().is_given))


def _next(found: "ScalingStudy", software: str | None, *, loads: bool) -> list[str]:
    """What finds the best plan for the devices and the batch of the largest row that fits.

    Where none does, a plan may need all devices to shard the state, and takes the batch of all or its usual one.

    Args:
        found: the answer
        software: that was asked for
        loads: data are not always ready, which no plan of a decoder by its shape knows
    """
    from trimaran.cli.following import following
    from trimaran.planning.analytical import is_traceable, planned_by_shape
    from trimaran.planning.requests import PlanRequest

    fitting = [row for row in found.rows if row.fits]
    most = max(fitting, key=lambda row: row.devices, default=None)
    devices = None if most is None else most.devices
    largest = found.rows[-1] if most is None and found.mode == "strong" else most
    batch = None if largest is None else largest.global_batch_size
    # How long the devices are needed, a step does not say.
    without = ["--price"]
    plain = PlanRequest(cluster=found.cluster, devices=devices)
    shape = planned_by_shape(found.job, plain) if loads else None
    if shape is not None and is_traceable(shape, plain):
        software = found.software
    elif shape is not None:
        without += ("--workers", *(f"--{one.name.replace('_', '-')}" for one in fields(LoadingOptions)))
    return following("plan", devices=devices, batch=batch, software=software, without=without)
