"""A calibration made by hand: two cores whose links are free, or held to 1 Gb/s."""

import dataclasses
from pathlib import Path

from tests import builders
from tests.builders import HERE, curve, network, table_for

from trimaran.measure.calibration.devices import TimedWork, device_figures
from trimaran.measure.calibration.results import Calibration, encode_calibration, link_figures
from trimaran.pricing.noise import noise_between
from trimaran.pricing.tables import Fingerprint

CALLS = {
    TimedWork("product", 100): [[1e-3], [2e-3], [4e-3]],
    TimedWork("copy"): [[0.01]],
    TimedWork("axpy"): [[0.01]],
    TimedWork("operator"): [[1e-6]],
}


def calibration(here: Fingerprint = HERE) -> Calibration:
    held = builders.cost_table(
        fingerprint=dataclasses.replace(here, link="1 Gb/s"),
        curves={builders.curve_key("AR", 2): curve(1e-3, 1.25e8)},
        interference={"AR": builders.interference(compute=1.1, communication=1.2, source="measured: by hand")},
    )
    tables = (dataclasses.replace(table_for(network(), whole_s=0.5), fingerprint=here), held)
    return Calibration(
        fingerprint=here,
        date="2026-11-20T09:30:00+00:00",
        devices=(device_figures([CALLS, CALLS], name="a core", kind="cpu", how="by hand"),),
        links=link_figures(tables),
        noise=tuple(
            noise_between([0.099, 0.1, 0.101], ranks=ranks, date="2026-11-20", source="by hand") for ranks in (1, 2)
        ),
        tables=tables,
    )


def write(path: Path, here: Fingerprint = HERE) -> Path:
    path.write_bytes(encode_calibration(calibration(here)))
    return path
