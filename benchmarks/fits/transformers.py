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
from collections.abc import Callable, Mapping, Sequence
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
    # benchmarks/fits/products.py on ai-dynamo/aiconfigurator@095f58a51, gemm_perf.parquet in 16 bits of a100_sxm,
    # h100_sxm, b200_sxm and l40s
    "ampere": 0.862,
    "hopper": 0.861,
    "blackwell": 0.728,
    "ada": 0.740,
    # baidu-research/DeepBench, V100 in mixed precision, CUDA 10: largest products, 0.72 with a wave and starts; the
    # rest by analogy
    "volta": 0.79,
    "turing": 0.66,
    "cdna2": 0.55,
    "cdna3": 0.55,
}
SHAPES = {"tile": 4745.0, "start": 255.0}  # benchmarks/fits/products.py, all of its systems
START = {
    "product_share": 1.0,
    "eight_bit_share": 0.8,
    "attention_share": 0.45,
    "early_attention_share": 0.3,
    "unfused_attention_share": 0.4,
    "traffic": 1.3,
    "eager_traffic": 2.0,
    "expert_traffic": 2.0,
    "host_layer_s": 3e-3,
    "host_softmax_s": 5e-4,
    "host_routing_s": 2e-3,
    "unripe": 0.3,
    "ported_share": 0.55,
    "sharded_bytes": 16.0,
    "jitter": 0.01,
    "odd_share": 0.35,
    "call_s": 1e-4,
    "tensor_exposed": 0.5,
    "data_exposed": 0.1,
    "sharded_exposed": 0.3,
}
FIXED = {
    # ai-dynamo/aiconfigurator@095f58a51, moe_perf.parquet of h100_sxm and b200_sxm, trtllm/1.3.0rc20, bf16, balanced:
    # median of measured over counted rates, 1.0 with at least 1,024 tokens an expert, 0.6 with 256 to 1,023
    "expert_share": 0.6,
    "send_exposed": 0.3,
    "update_bytes": 30.0,
    "sum_bytes": 8.0,  # read and written in 32 bits by the product that makes a gradient
    "sharpness": 2.0,
    "spread": 0.2,
    "spread_experts": 0.5,
}
PULL = 0.2  # weight of a prior, beside one model


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


def main(paths: Sequence[Path]) -> None:
    points = _points(paths)
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


def _points(paths: Sequence[Path]) -> list[Point]:
    points = []
    for row in itertools.chain.from_iterable(read_rows(path) for path in paths):
        if row.family not in ("mp_step_time", "mp_throughput") or row.flag:
            continue
        try:
            run = transformer_run(row)
            machine = machine_of(run)
        except TrimaranError:
            continue
        exchange = machine_exchange(machine, ranks=run.degrees.devices, year=run.program.year)
        points.append(Point(row, run, machine.node.device, exchange))
    return points


EXPERTS = ("expert_traffic", "host_routing_s")
"""Figures that networks without experts do not ask for."""


def _fit(points: Sequence[Point], near: StepConstants | None = None) -> StepConstants:
    """Fit networks without experts, then the figures of experts alone on networks with experts.

    Steps of the latter vary by a factor of two between releases of one framework.
    """
    dense = [point for point in points if point.run.shape.experts is None]
    others = [point for point in points if point.run.shape.experts is not None]
    found = dict(START) if near is None else {name: getattr(near, name) for name in START}
    found |= _least(dense, found, [name for name in START if name not in EXPERTS])
    found |= _least(others, found, list(EXPERTS))
    return _constants(found)


def _constants(named: Mapping[str, float]) -> StepConstants:
    return StepConstants(large_products=LARGE_PRODUCTS, **SHAPES, **named, **FIXED)


def _least(points: Sequence[Point], first: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """The figures of some names with the least error; the others are as they are."""
    counts = Counter(point.model for point in points)
    prior = numpy.log([START[name] for name in names])

    def named(logs: numpy.ndarray) -> dict[str, float]:
        return {name: math.exp(value) for name, value in zip(names, logs.tolist(), strict=True)}

    def residuals(logs: numpy.ndarray) -> numpy.ndarray:
        constants = _constants({**first, **named(logs)})
        # A model's n rows count as n^0.6: they are alike, but not the same.
        errors = [point.log_error(constants) * counts[point.model] ** -0.2 for point in points]
        return numpy.concatenate([errors, PULL * (logs - prior)])

    most = numpy.array([1e-9 if name.endswith("_share") or name == "unripe" else numpy.inf for name in names])
    least = numpy.array([-1e-9 if name.endswith("traffic") else -numpy.inf for name in names])
    begin = numpy.clip(numpy.log([first[name] for name in names]), least + 1e-3, most - 1e-3)
    found = least_squares(residuals, begin, bounds=(least, most), loss="soft_l1", f_scale=0.1, diff_step=1e-3)
    return named(found.x)


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
    main([Path(name) for name in sys.argv[1:]])
