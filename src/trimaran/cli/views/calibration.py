"""How a calibration looks: for people as tables, for programs as a JSON document."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trimaran.base.units import format_count, format_rate, format_seconds
from trimaran.measure.calibration.results import Calibration, DeviceFigures, Estimate, LinkFigures
from trimaran.pricing.transfers import SEND
from trimaran.program.json_files import to_plain
from trimaran.report.run_report import noise_interval, noise_line
from trimaran.report.tables import KIND_NAMES, add_figures, add_words, frame_table, print_next


def print_calibration(out: Console, calibration: Calibration, *, output: Path | None) -> None:
    """Print what was measured, and where it is.

    Args:
        out: where to
        calibration: what was measured
        output: the file that it was written to; None: it is only kept
    """
    out.print(_verdict(calibration) + "\n")
    for device in calibration.devices:
        out.print(_device_table(device))
        out.print()
    if calibration.links:
        out.print(_link_table(calibration))
        out.print()
    for noise in calibration.noise:
        line = noise_line(noise_interval(noise))
        out.print(line[0].upper() + line[1:])
    if output is None:
        out.print("Kept for this machine. In a file: trimaran doctor --measure -o machine.json")
    words = ["trimaran", "plan", "digits", *([] if output is None else ["--measured", str(output)])]
    print_next(out, words)


def _verdict(calibration: Calibration) -> str:
    """What was measured, in a sentence."""
    devices = sum(device.count for device in calibration.devices)
    measured = [
        format_count(devices, "device"),
        *([format_count(len(calibration.links), "link")] if calibration.links else []),
        *(["the noise of repeated runs"] if calibration.noise else []),
    ]
    return f"Measured: {', '.join(measured)}; plans on this machine use it."


def calibration_document(calibration: Calibration) -> dict[str, Any]:
    """The calibration without the cost tables, which are in the file.

    Args:
        calibration: what was measured
    """
    return {
        "fingerprint": to_plain(calibration.fingerprint),
        "date": calibration.date,
        "devices": to_plain(calibration.devices),
        "links": to_plain(calibration.links),
        "noise": to_plain(calibration.noise),
    }


def _device_table(device: DeviceFigures) -> Table:
    devices = format_count(device.count, "device")
    title = f"{devices}, {device.name}, each while all are busy"
    table = frame_table(title, f"a x: a scalar times a vector; {device.operator_s.source}")
    add_words(table, "measured")
    add_figures(table, "figure", "90 % interval")
    for product in device.products:
        what = f"matrix product, {product.width} × {product.width}, float32"
        table.add_row(what, *_interval(product.flops_per_s, _flops))
    table.add_row("memory, copy", *_interval(device.copy_bytes_per_s, format_rate))
    table.add_row("memory, y += a x", *_interval(device.axpy_bytes_per_s, format_rate))
    table.add_row("host, one small operator", *_interval(device.operator_s, format_seconds))
    return table


def _link_table(calibration: Calibration) -> Table:
    table = frame_table(
        "Transfers between ranks of this machine",
        "smallest: time of a message of few bytes; largest: rate of one of many, with its interval\n"
        "during compute: how much longer latency and bytes of a transfer take, and compute; "
        f"{calibration.links[0].small_s.source}",
    )
    add_words(table, "link", "kind", "ranks", no_wrap=True)
    add_figures(table, "smallest", "largest", "90 % interval", "during compute", no_wrap=False)
    for link in calibration.links:
        rate, ends = _interval(link.bytes_per_s, format_rate)
        kind = _NAMES.get(link.kind, link.kind)
        table.add_row(
            link.rate_limit or "free", kind, str(link.ranks), format_seconds(link.small_s.value), rate, ends,
            _slowdown(link),
        )  # fmt: skip
    return table


_NAMES = {SEND: "message"} | {str(kind): name for kind, name in KIND_NAMES.items()}


def _slowdown(link: LinkFigures) -> str:
    if link.interference is None:
        return "–"
    factors = link.interference
    return f"{factors.latency:.2f}×, {factors.communication:.2f}×, {factors.compute:.2f}×"


def _interval(estimate: Estimate, form: Any) -> tuple[str, str]:
    return form(estimate.value), f"{form(estimate.low)} – {form(estimate.high)}"


def _flops(flops_per_s: float) -> str:
    """A rate of arithmetic for people.

    Example:
        >>> _flops(95.4e9)
        '95.4 GFLOP/s'
    """
    return format_rate(flops_per_s).replace("B/s", "FLOP/s")
