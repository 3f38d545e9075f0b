"""`trimaran scale`: throughput of a job on many devices of a target cluster, and what limits it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import (
    Json,
    LoadingOptions,
    MachineName,
    MachineSoftware,
    Plot,
    PrecisionName,
    Reference,
    Workers,
    grouped,
    note_cluster,
)
from trimaran.cli.output import check_plot, console, errors_reported, print_json, progress_shown


@grouped
def scale(
    job: Reference,
    cluster: MachineName,
    loading: LoadingOptions,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            help='Devices in the group: "1,2,4,8", or "8..1024" in doublings.',
            show_default="1,2,4,8, as far as the cluster has them",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            help="Samples of one update, over all devices, which share them (strong scaling).",
            show_default=False,
        ),
    ] = None,
    local_batch: Annotated[
        str | None,
        typer.Option(
            "--local-batch",
            help="Samples of each device, however many there are (weak scaling).",
            show_default="64, without --batch",
        ),
    ] = None,
    sync: Annotated[
        str,
        typer.Option(
            "--sync",
            help='Gradients by "nccl" (all-reduce), "kvstore" (MXNet: to one device and back), "server", "byteps".',
        ),
    ] = "nccl",
    strong: Annotated[bool, typer.Option("--strong", help="Old spelling: --batch says so.", hidden=True)] = False,
    global_batch: Annotated[
        str | None, typer.Option("--global-batch", help="Old spelling of --batch.", hidden=True)
    ] = None,
    precision: PrecisionName = None,
    software: MachineSoftware = None,
    measured: Annotated[
        str | None,
        typer.Option(
            "--measured",
            help='What one device does, such as "363 images/s at 64", or several batches, with commas; the rest '
            "follows.",
            show_default=False,
        ),
    ] = None,
    nccl_log: Annotated[
        Path | None, typer.Option("--nccl-log", help="Output of nccl-tests on this machine.", show_default=False)
    ] = None,
    kineto: Annotated[
        Path | None, typer.Option("--kineto", help="A trace of PyTorch's profiler of one device.", show_default=False)
    ] = None,
    length_spread: Annotated[
        float,
        typer.Option(
            "--length-spread",
            help="Standard deviation of a batch's work by its mean, as sentences of different lengths have it.",
        ),
    ] = 0.0,
    servers: Annotated[
        int,
        typer.Option(
            "--servers",
            help="Machines without devices that sum gradients of several nodes (server, kvstore, byteps); 0: the "
            "hosts do.",
        ),
    ] = 0,
    price: Annotated[
        str | None, typer.Option("--price", help='Of the machine: "24.48 USD/node-hour".', show_default=False)
    ] = None,
    server_price: Annotated[
        str | None, typer.Option("--server-price", help='Of a server machine: "2 USD/node-hour".', show_default=False)
    ] = None,
    workers: Workers = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Predict throughput, speedup and what limits them on a target cluster."""
    with errors_reported(as_json=as_json):
        from trimaran.features.scaling import predict_scaling
        from trimaran.planning.requests import parse_devices, parse_scaled_batches
        from trimaran.report.scaling import study_document

        check_plot(plot)
        batches, mode, spelled = parse_scaled_batches(batch, local_batch, global_batch=global_batch, strong=strong)
        with progress_shown() as progress:
            found = predict_scaling(
                job,
                cluster=cluster,
                devices=parse_devices(devices, cluster=cluster, usual="1,2,4,8"),
                local_batch=batches if mode == "weak" else None,
                batch=batches if mode == "strong" else None,
                sync=sync,
                precision=precision,
                software=software,
                measured=measured,
                nccl_log=nccl_log,
                kineto=kineto,
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
        if plot is not None:
            from trimaran.report.scaling import plot as draw
            from trimaran.report.svg import write_drawing

            write_drawing(plot, draw(found))
        if as_json:
            print_json(study_document(found))
        else:
            from trimaran.report.scaling import print_study

            print_study(console(), found)
