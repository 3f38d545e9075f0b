"""A placement in words."""

from trimaran.report.placement import PlacingReport, placing_lines


def report(devices: int) -> PlacingReport:
    return PlacingReport(
        name="chain",
        devices=devices,
        bytes_per_s=25e9 if devices > 1 else 0.0,
        makespan_s=0.018,
        serial_s=0.018,
        bound_s=0.018,
        heft_s=0.018,
        runs=(),
        transfers=(),
        busy_s=(0.018,) * devices,
        peak_bytes=(0.0,) * devices,
        stretches=(),
        method="list",
        notes=(),
    )


def test_the_wires_between_devices_are_named() -> None:
    assert str(placing_lines(report(2))[0]).startswith("chain on 2 devices, 25.0 GB/s each way: 18.0 ms a step")


def test_one_device_has_no_wire() -> None:
    assert str(placing_lines(report(1))[0]).startswith("chain on 1 device: 18.0 ms a step")
