"""Fits the figures of pricing/analytical/step_time.py on published steps of sharded transformers.

    python benchmarks/fits/transformers.py FILE [FILE ...]

A FILE is a table of published measurements (families mp_step_time and mp_throughput), of rows that may be fitted on.
None of the figures is for a row, a model or a machine; each is pulled a little towards what was known before (priors in
`START`), and no share is above 1. A model's many rows count less each. Networks without experts are fitted first; rows
with experts, which vary more, fit the figures of experts alone. Shares and shapes of large products are not fitted
here: they are of published tables of products (`products.py`).

Models, frameworks and architectures of devices are then left out, one after another. The errors of their rows by the
fits to all others are printed; they are what a question may expect that nobody has measured. Widths of intervals are
those with the least mean interval score on them.
"""

import itertools
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy
from scipy.optimize import least_squares, minimize

from trimaran.base.errors import TrimaranError
from trimaran.machine.types import Device
from trimaran.pricing.analytical.step_time import (
    Exchange,
    MachineExchange,
    StepConstants,
    TransformerStep,
    transformer_step,
)
from trimaran_studies.published.rows import read_rows
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.model_parallel import TransformerRun, in_unit, machine_of, transformer_run
from trimaran_studies.validation.scores import interval_score

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
    # ai-dynamo/aiconfigurator@095f58a51, moe_perf.parquet of h100_sxm and b200_sxm, trtllm/1.3.0rc20, bf16, balanced:
    # 1,449 kernels of half a millisecond that compute for longer than they read, counted over measured times: 0.99
    "expert_start": 1300.0,
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
    "send_exposed": 0.3,
    "update_bytes": 30.0,
    "sum_bytes": 8.0,  # read and written in 32 bits by the product that makes a gradient
    "sharpness": 2.0,
}
FOLDS = 8  # models are left out in as many groups
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

    def step(self, constants: StepConstants) -> TransformerStep:
        run = self.run
        return transformer_step(
            run.shape, run.degrees, run.program, device=self.device, exchange=self.exchange, constants=constants
        )

    def log_error(self, constants: StepConstants) -> float:
        """Of the step: positive where it is predicted too slow."""
        ratio = in_unit(self.row, self.run, self.step(constants)) / self.row.measured
        return math.log(ratio if self.row.family == "mp_step_time" else 1.0 / ratio)


@dataclass(frozen=True)
class Missed:
    """A row that was left out of a fit.

    Attributes:
        error: logarithm of predicted over measured
        parts: what its interval is made of, by name, as multiples of the widths
        weight: of its group's rows together 1
    """

    error: float
    parts: Mapping[str, float]
    weight: float


def main(paths: Sequence[Path]) -> None:
    points = _points(paths)
    fitted = _fit(points)
    inside = [abs(math.expm1(point.log_error(fitted))) for point in points]
    missed: list[Missed] = []
    folds = {model: number % FOLDS for number, model in enumerate(sorted({point.model for point in points}))}
    groups: dict[str, Callable[[Point], str]] = {
        "model": lambda point: str(folds[point.model]),
        "framework": _framework,
        "device": _architecture,
    }
    outside = math.inf
    for kind, group in groups.items():
        found = list(_left_out(points, fitted, kind, group))
        missed += found
        errors = [abs(math.expm1(each.error)) for each in found]
        print(
            f"{kind}s left out: median error {statistics.median(errors):.3f}, nine of ten below {_p90(errors):.3f}",
            flush=True,
        )
        outside = statistics.median(errors) if kind == "model" else outside
    widths = _widths(missed)
    frameworks, architectures = ({group(point) for point in points} for group in (_framework, _architecture))
    known = {"frameworks": sorted(frameworks), "architectures": sorted(architectures)}
    _write(replace(fitted, widths=widths, fitted=known), points, statistics.median(inside), outside)
    print(f"{len(points)} rows: median error {statistics.median(inside):.3f}")
    print(", ".join(f"{name} {width:.3f}" for name, width in widths.items()))


def _framework(point: Point) -> str:
    return point.run.program.framework


def _architecture(point: Point) -> str:
    return point.device.architecture


def _left_out(
    points: Sequence[Point], near: StepConstants, kind: str, group: Callable[[Point], str]
) -> Iterator[Missed]:
    """Each group's rows by a fit to all others."""
    for name in sorted({group(point) for point in points}):
        rows = [point for point in points if group(point) == name]
        constants = _fit([point for point in points if group(point) != name], near)
        errors = []
        for point in rows:
            step = point.step(constants)
            parts = {
                "base": 1.0,
                "exchange": step.waited,
                "experts": float(point.run.shape.experts is not None),
                "framework": float(kind == "framework"),
                "device": float(kind == "device"),
                "cell": math.sqrt(len(point.run.assumed)),
            }
            errors.append(point.log_error(constants))
            yield Missed(errors[-1], parts, len(rows) ** -0.5)
        sizes = [abs(math.expm1(error)) for error in errors]
        if kind != "model":
            bias = math.expm1(statistics.median(errors))
            middle = statistics.median(sizes)
            print(
                f"without {name}: median error of its {len(rows)} rows {middle:.3f}, of them signed {bias:+.3f}",
                flush=True,
            )


def _widths(missed: Sequence[Missed]) -> dict[str, float]:
    """Widths with the least mean interval score on rows that were left out."""
    names = ("base", "exchange", "experts", "framework", "device", "cell")

    def cost(logs: numpy.ndarray) -> float:
        widths = dict(zip(names, numpy.exp(logs).tolist(), strict=True))
        total = 0.0
        for each in missed:
            half = math.hypot(*(part * widths[name] for name, part in each.parts.items()))
            low, high = math.exp(each.error - half), math.exp(each.error + half)
            total += each.weight * interval_score(1.0, low, high)
        # No part is left at nothing where rows do not ask for it.
        return total / sum(each.weight for each in missed) + 0.002 * float(numpy.square(logs + 2.0).sum())

    found = minimize(cost, numpy.full(len(names), -2.0), method="Nelder-Mead", options={"maxiter": 4000})
    return dict(zip(names, numpy.exp(found.x).tolist(), strict=True))


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
        exchange = MachineExchange(machine, ranks=run.degrees.devices, year=run.program.year)
        points.append(Point(row, run, machine.node.device, exchange))
    return points


EXPERTS = ("expert_start", "expert_traffic", "host_routing_s")
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
    return StepConstants(large_products=LARGE_PRODUCTS, widths={}, fitted={}, **SHAPES, **named, **FIXED)


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
    found = least_squares(
        residuals, begin, bounds=(least, most), loss="soft_l1", f_scale=0.1, diff_step=1e-3, ftol=1e-5, xtol=1e-4
    )
    return named(found.x)


def _write(constants: StepConstants, points: Sequence[Point], inside: float, outside: float) -> None:
    sources = sorted({point.source for point in points})
    tables = {"large_products", "widths", "fitted"}
    lines = [
        "# Figures of pricing/analytical/step_time.py. Written by benchmarks/fits/transformers.py: do not edit.",
        f"# Fitted on {len(points)} rows of {', '.join(sources)}.",
        f"# Median error {inside:.3f}; of models left out of the fit {outside:.3f}.",
        "",
        "[large_products]",
        *(f"{name} = {share}" for name, share in constants.large_products.items()),
        "",
        "[widths]",
        *(f"{name} = {width:.3f}" for name, width in constants.widths.items()),
        "",
        "[fitted]",
        *(f"{name} = {json.dumps(list(names))}" for name, names in constants.fitted.items()),
        "",
        "[constants]",
    ]
    plain = [entry.name for entry in fields(constants) if entry.name not in tables]
    lines += [f"{name} = {getattr(constants, name):.4g}" for name in plain]
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
