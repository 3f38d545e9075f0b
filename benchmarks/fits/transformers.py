"""Fits the figures of pricing/analytical/step_time.py on published steps of sharded transformers.

    python benchmarks/fits/transformers.py FILE

FILE is a table of published measurements (families mp_step_time and mp_throughput), of rows that may be fitted on.
Thirteen figures are fitted, none of them for a row, a model or a machine; each is pulled a little towards what was
known before (priors in `START`), and no share is above 1. A model's many rows count less each. The error is that of
models left out of the fit, one after another, and of sources left out, which is what a machine that nobody has measured
may expect. Shares of peak that large products reach are not fitted: they are medians of published tables of products.
"""

import itertools
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy
from scipy.optimize import least_squares

from trimaran.base.errors import TrimaranError
from trimaran.machine.types import Device
from trimaran.pricing.analytical.step_time import Exchange, StepConstants, machine_exchange, transformer_step
from trimaran_studies.published.rows import read_rows
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.model_parallel import TransformerRun, in_unit, machine_of, transformer_run

TARGET = Path(__file__).parents[2] / "src/trimaran/pricing/analytical/constants.toml"

LARGE_PRODUCTS = {
    # ai-dynamo/aiconfigurator@095f58a51, gemm_perf.parquet of a100_sxm, h100_sxm, b200_sxm: m >= 4096, median, bf16
    "ampere": 0.80,
    "hopper": 0.77,
    "blackwell": 0.65,
    # baidu-research/DeepBench, V100 in mixed precision, CUDA 10: largest products; the rest by analogy
    "volta": 0.72,
    "turing": 0.60,
    "ada": 0.59,
    "cdna2": 0.50,
    "cdna3": 0.50,
}
START = {
    "product_share": 1.0,
    "eight_bit_share": 0.8,
    "attention_share": 0.45,
    "early_attention_share": 0.3,
    "unfused_attention_share": 0.4,
    "traffic": 1.3,
    "eager_traffic": 2.0,
    "host_layer_s": 3e-3,
    "host_softmax_s": 5e-4,
    "odd_share": 0.35,
    "call_s": 1e-4,
    "tensor_exposed": 0.5,
    "data_exposed": 0.1,
}
FIXED = {
    "send_exposed": 0.3,
    "update_bytes": 30.0,
    "sum_bytes": 8.0,  # read and written in 32 bits by the product that makes a gradient
    "sharpness": 2.0,
    "spread": 0.2,
    "spread_experts": 0.5,
}
PULL = 0.15  # weight of a prior, beside one model


@dataclass(frozen=True)
class Point:
    row: Row
    run: TransformerRun
    device: Device
    exchange: Exchange

    @property
    def source(self) -> str:
        return self.row.fields.get("source_repo", "")

    @property
    def model(self) -> str:
        return f"{self.source} {self.row.fields.get('model', '')}"

    def log_error(self, constants: StepConstants) -> float:
        run = self.run
        step = transformer_step(
            run.shape, run.degrees, run.program, device=self.device, exchange=self.exchange, constants=constants
        )
        return math.log(in_unit(self.row, run, step) / self.row.measured)


def main(path: Path) -> None:
    points = _points(path)
    fitted = _fit(points)
    inside = _errors(points, fitted)
    by_model = _left_out(points, lambda point: point.model)
    outside = sorted(itertools.chain.from_iterable(by_model.values()))
    spread = round(_p90(outside), 3)
    _write(replace(fitted, spread=spread), points, statistics.median(inside), statistics.median(outside))
    print(f"{len(points)} rows of {len(by_model)} models: median error {statistics.median(inside):.3f},")
    print(f"of models left out {statistics.median(outside):.3f}, nine of ten below {spread:.3f}")
    for source, found in _left_out(points, lambda point: point.source).items():
        kept = _errors([point for point in points if point.source == source], fitted)
        print(
            f"{source}: {statistics.median(kept):.3f}, nine of ten below {_p90(kept):.3f}; "
            f"left out {statistics.median(found):.3f}, nine of ten below {_p90(found):.3f}"
        )


def _left_out(points: Sequence[Point], group: Callable[[Point], str]) -> dict[str, list[float]]:
    """Errors of each group's points by a fit to all others."""
    found = {}
    for name in sorted({group(point) for point in points}):
        fitted = _fit([point for point in points if group(point) != name])
        found[name] = _errors([point for point in points if group(point) == name], fitted)
    return found


def _errors(points: Sequence[Point], constants: StepConstants) -> list[float]:
    return [abs(math.expm1(point.log_error(constants))) for point in points]


def _p90(errors: Sequence[float]) -> float:
    return sorted(errors)[int(0.9 * len(errors))]


def _points(path: Path) -> list[Point]:
    points = []
    for row in read_rows(path):
        if row.family not in ("mp_step_time", "mp_throughput"):
            continue
        try:
            run = transformer_run(row)
            machine = machine_of(run)
        except TrimaranError:
            continue
        exchange = machine_exchange(machine, ranks=run.degrees.devices, year=run.program.year)
        points.append(Point(row, run, machine.node.device, exchange))
    return points


def _constants(logs: Sequence[float]) -> StepConstants:
    named = {name: math.exp(value) for name, value in zip(START, logs, strict=True)}
    return StepConstants(large_products=LARGE_PRODUCTS, **named, **FIXED)


def _fit(points: Sequence[Point]) -> StepConstants:
    counts = Counter(point.model for point in points)
    start = numpy.log(list(START.values()))

    def residuals(logs: numpy.ndarray) -> numpy.ndarray:
        constants = _constants(logs.tolist())
        # A model's n rows count as n^0.6: they are alike, but not the same.
        errors = [point.log_error(constants) * counts[point.model] ** -0.2 for point in points]
        return numpy.concatenate([errors, PULL * (logs - start)])

    most = numpy.array([1e-9 if name.endswith("_share") else numpy.inf for name in START])
    begin = numpy.minimum(start, most - 1e-3)
    bounds = (-numpy.inf, most)
    found = least_squares(residuals, begin, bounds=bounds, loss="soft_l1", f_scale=0.1, diff_step=1e-3)
    return _constants(found.x.tolist())


def _write(constants: StepConstants, points: Sequence[Point], inside: float, outside: float) -> None:
    sources = sorted({point.source for point in points})
    lines = [
        "# Figures of pricing/analytical/step_time.py. Written by benchmarks/fits/transformers.py: do not edit.",
        f"# Fitted on {len(points)} rows of {', '.join(sources)}.",
        f"# Median error {inside:.3f}; of models left out of the fit {outside:.3f}.",
        "",
        "[large_products]",
        *(f"{name} = {share}" for name, share in constants.large_products.items()),
        "",
        "[constants]",
    ]
    fitted = [entry.name for entry in fields(constants) if entry.name != "large_products"]
    lines += [f"{name} = {getattr(constants, name):.4g}" for name in fitted]
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
