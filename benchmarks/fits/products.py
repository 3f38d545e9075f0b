"""Fits the time of large products of matrices by their shape, for pricing/analytical/step_time.py.

    python benchmarks/fits/products.py FILE

FILE is a table of measured products with columns system, m, n, k and time_s. The form has the start of each tile and
the last, half filled wave of tiles on all `P` multiprocessors:

    seconds = 2 (m n + P tile) (k + start) / (peak share)

One `tile` and one `start` hold for all architectures, and one share for each. Small products, which move more bytes
than they compute, are left out: those of a training step are large.

Source of the table: ai-dynamo/aiconfigurator@095f58a51, gemm_perf.parquet of each system, Apache-2.0.
"""

import csv
import statistics
import sys
from pathlib import Path

import numpy
from scipy.optimize import least_squares

from trimaran.machine.catalog import find_device
from trimaran.pricing.analytical.step_time import peak_of

SYSTEMS = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "l40s": "l40s",
}
LEAST = 512
"""Of each side of a product."""


def main(path: Path) -> None:
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["system"] in SYSTEMS]
    rows = [row for row in rows if min(int(row[side]) for side in "mnk") >= LEAST]
    systems = sorted({row["system"] for row in rows})
    devices = {name: find_device(SYSTEMS[name]) for name in systems}
    place = numpy.array([systems.index(row["system"]) for row in rows])
    m, n, k = (numpy.array([float(row[side]) for row in rows]) for side in "mnk")
    seconds = numpy.array([float(row["time_s"]) for row in rows])
    peak = numpy.array([peak_of(devices[row["system"]]) for row in rows])
    count = numpy.array([devices[row["system"]].multiprocessors for row in rows])

    def residuals(logs: numpy.ndarray, chosen: numpy.ndarray) -> numpy.ndarray:
        tile, start, *shares = numpy.exp(logs)
        model = 2 * (m * n + count * tile) * (k + start) / (peak * numpy.array(shares)[place])
        return numpy.log(model / seconds)[chosen]

    start = numpy.log([16384.0, 100.0, *[0.75] * len(systems)])
    every = numpy.arange(len(rows))
    found = least_squares(residuals, start, loss="soft_l1", f_scale=0.1, args=(every,))
    tile, begin, *shares = numpy.exp(found.x)
    print(f"tile = {tile:.0f} elements for each multiprocessor, start = {begin:.0f}")
    for number, name in enumerate(systems):
        errors = numpy.abs(numpy.expm1(residuals(found.x, every[place == number])))
        others = every[place != number]
        apart = least_squares(residuals, start, loss="soft_l1", f_scale=0.1, args=(others,))
        logs = apart.x.copy()
        # A system that was left out still has its own share: the median of what its rows ask for.
        logs[2 + number] = 0.0
        rest = residuals(logs, every[place == number])
        logs[2 + number] = statistics.median(rest)
        left = numpy.abs(numpy.expm1(residuals(logs, every[place == number])))
        plain = numpy.log(2 * m * n * k / (peak * seconds))[place == number]
        flat = numpy.abs(numpy.expm1(plain - statistics.median(plain)))
        print(
            f"{name}: share {shares[number]:.3f}, median error {numpy.median(errors):.3f}, "
            f"tile and start of others {numpy.median(left):.3f}, one share for all shapes {numpy.median(flat):.3f}, "
            f"p90 {numpy.quantile(errors, 0.9):.3f} {numpy.quantile(left, 0.9):.3f} {numpy.quantile(flat, 0.9):.3f}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
