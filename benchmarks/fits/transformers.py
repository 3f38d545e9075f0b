"""Fits the figures of pricing/analytical/step_time.py on published steps of sharded transformers.

    python benchmarks/fits/transformers.py FILE [FILE ...]

A FILE is a table of published measurements (families mp_step_time and mp_throughput), of rows that may be fitted on.
None of the figures is for a row, a model or a machine; each is pulled a little towards what was known before (priors in
`START`), and no share is above 1. A model's many rows count less each. Networks without experts are fitted first; rows
with experts, which vary more, fit the figures of experts alone. Shares and shapes of large products are not fitted
here: they are of published tables of products (`products.py`).

Sources and architectures of devices are then left out, one after another: whoever asks is another source. The errors
of a source's rows are printed by the fit to all others, and whether they are inside intervals whose widths the others
gave too. Widths are those with the least mean interval score on rows that were left out: `n` rows of a source, which
are alike, as the root of `n`.

Memory is judged in the same way, by source and by kind of figure, on rows of the family peak_memory in a FILE and of
the trainers that come with Trimaran: what the allocator reserves above its tensors is learned on the other sources, and
so are the widths.
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
from typing import NamedTuple

import numpy
from scipy.optimize import least_squares, minimize

from trimaran.base.errors import TrimaranError
from trimaran.machine.types import Device, Machine
from trimaran.pricing.analytical.step_time import (
    Exchange,
    MachineExchange,
    StepConstants,
    TransformerStep,
    transformer_step,
)
from trimaran_studies.published.rows import read_rows
from trimaran_studies.validation.field import field_run, trainer_memory_rows, trainer_rows
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.memory import answer_memory, kind_of, memory_of_run
from trimaran_studies.validation.model_parallel import TransformerRun, in_unit, machine_of, transformer_run
from trimaran_studies.validation.scores import interval_score, quantile

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
    # Ambati & Diep, "AMD MI300X GPU Performance Analysis", 2025, arXiv:2510.27583: 45 % of peak in 8 and 16 bits
    "cdna3": 0.45,
}
SHAPES = {"tile": 4745.0, "start": 255.0}  # benchmarks/fits/products.py, all of its systems
START = {
    "attention_share": 0.5,
    # Dao, "FlashAttention-2", 2023, figure 4: on an A100 with heads of 128 forward and backward over 512 and 1,024
    # tokens are about half and three quarters as fast as over 16,384
    "attention_length": 500.0,
    "early_attention_share": 0.3,
    "unfused_attention_share": 0.4,
    "traffic": 1.3,
    # ai-dynamo/aiconfigurator@095f58a51, moe_perf.parquet of h100_sxm and b200_sxm, trtllm/1.3.0rc20, bf16, balanced:
    # 1,449 kernels of half a millisecond that compute for longer than they read, counted over measured times: 0.99
    "expert_start": 1300.0,
    "expert_traffic": 2.0,
    "host_layer_s": 3e-3,
    "host_softmax_s": 5e-4,
    "host_routing_s": 2e-3,
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
    # 0.356 over 8,192 tokens, as fitted on rows of NVIDIA's, vTrain and llm-foundry alone, for all kernels as one:
    # three rows with long sequences say too little against fifty with short ones
    "cudnn_share": 0.38,
    # As fitted on the same rows: products of kernels that are traced are priced by them too (`kernels/durations.py`)
    "product_share": 0.9758,
    "eight_bit_share": 0.9997,
    "unripe": 0.6069,
    "send_exposed": 0.3,
    "update_bytes": 30.0,
    "sum_bytes": 8.0,  # read and written in 32 bits by the product that makes a gradient
    "sharpness": 2.0,
}
LONG = 65536
PULL = 0.2  # weight of a prior, next to one model
# What FSDP copies of a parameter follows from its code: what is gathered is copied out in 16 bits (4 bytes, twice), a
# gradient into the buffer that is scattered, in 32 (8). Rows of one trainer alone move it to 122.
PULLS = {"sharded_bytes": 1.0}


@dataclass(frozen=True)
class Point:
    row: Row
    run: TransformerRun
    device: Device
    exchange: Exchange

    @property
    def source(self) -> str:
        return self.row.fields.get("source_repo", "").partition("@")[0]

    @property
    def model(self) -> str:
        return f"{self.source} {self.row.fields.get('model', '')}"

    @property
    def is_fitted(self) -> bool:
        """Whether nearly all of its step is forward, backward and update: only long sequences hide other work."""
        return not self.row.fields.get("work") or self.run.shape.sequence >= LONG

    @property
    def is_told(self) -> bool:
        """Whether the row says what a step computes: of padded samples nobody knows how many tokens."""
        return self.row.fields.get("work") != "padded samples"

    @property
    def job(self) -> tuple[object, ...]:
        """What trains, and on which kind of device: another length, or other kernels, make another job."""
        run = self.run
        return (self.model, run.shape.sequence, self.device.name, run.program.precision, run.program.frozen)

    def step(self, constants: StepConstants) -> TransformerStep:
        run = self.run
        return transformer_step(
            run.shape, run.degrees, run.program, device=self.device, exchange=self.exchange, constants=constants
        )

    def log_error(self, constants: StepConstants) -> float:
        """Of the step: positive where it is predicted too slow."""
        ratio = in_unit(self.row, self.run, self.step(constants)) / self.row.measured
        return math.log(1.0 / ratio if self.row.family == "mp_throughput" else ratio)


@dataclass(frozen=True)
class Missed:
    """A row that was left out of a fit.

    Attributes:
        kind: of the group that was left out
        group: its name
        error: logarithm of predicted over measured
        parts: what its interval is made of, by name, as multiples of the widths
        weight: rows of a group are alike: `n` of them weigh as the root of `n`
        job: what trains there, on whatever degrees and devices, with whatever batch
    """

    kind: str
    group: str
    error: float
    parts: Mapping[str, float]
    weight: float
    job: tuple[object, ...] = ()


def main(paths: Sequence[Path]) -> None:
    points = _points(paths)
    known = [point for point in points if point.is_fitted]
    fitted = _fit(known)
    fitting = [abs(math.expm1(point.log_error(fitted))) for point in known]
    missed: list[Missed] = []
    for kind, group in (("source", lambda point: point.source), ("device", _architecture)):
        missed += _left_out(points, fitted, kind, group)
    by_source = _by_source([each for each in missed if each.kind == "source"])
    outside = statistics.median(
        statistics.median(abs(math.expm1(each.error)) for each in rows) for rows in by_source.values()
    )
    print(f"{'source left out':34} rows median signed    p80 inside  score constant")
    scores = []
    for source, rows in by_source.items():
        others = [each for each in missed if each.group != source]
        one_width = _constant_width([each for each in others if each.kind == "source"])
        scores += _print_source(source, rows, _widths(others), one_width)
    frameworks, architectures = ({group(point) for point in known} for group in (_framework, _architecture))
    names = {"frameworks": sorted(frameworks), "architectures": sorted(architectures)}
    widths = _widths(missed) | {"measured": _constant_width(_corrected(missed))}
    _print_corrected(missed)
    memory = _fit_memory(paths)
    _write(replace(fitted, widths=widths, fitted=names), known, statistics.median(fitting), outside, memory)
    sizes = sorted(abs(math.expm1(each.error)) for each in missed if each.kind == "source")
    inside, ours, same = (statistics.mean(column) for column in zip(*scores, strict=True))
    print(
        f"{'all rows':34} {len(sizes):4} {statistics.median(sizes):6.3f}        {quantile(sizes, 0.8):6.3f} "
        f"{inside:6.2f} {ours:6.2f} {same:8.2f}"
    )
    print(f"one width for all: {_constant_width([each for each in missed if each.kind == 'source']):.2f}")
    print(f"{len(known)} rows: median error {statistics.median(fitting):.3f}, of sources left out {outside:.3f}")
    print(", ".join(f"{name} {width:.3f}" for name, width in widths.items()))


def _by_source(missed: Sequence[Missed]) -> dict[str, list[Missed]]:
    found: dict[str, list[Missed]] = {}
    for each in missed:
        found.setdefault(each.group, []).append(each)
    return found


def _print_source(
    source: str, rows: Sequence[Missed], widths: Mapping[str, float], constant: float
) -> list[tuple[bool, float, float]]:
    """Errors of a source by a fit to the others, and their intervals by the widths of the others.

    Returns:
        Whether a row is inside, its score, and that with one width for all.
    """
    sizes = sorted(abs(math.expm1(each.error)) for each in rows)
    found = [
        (abs(each.error) <= half, _score(each.error, half), _score(each.error, constant))
        for each in rows
        for half in [_half(each, widths)]
    ]
    inside, ours, same = (statistics.mean(column) for column in zip(*found, strict=True))
    signed = statistics.median(math.expm1(each.error) for each in rows)
    print(
        f"{source:34} {len(rows):4} {statistics.median(sizes):6.3f} {signed:+6.3f} {quantile(sizes, 0.8):6.3f} "
        f"{inside:6.2f} {ours:6.2f} {same:8.2f}",
        flush=True,
    )
    return found


def _framework(point: Point) -> str:
    return point.run.program.framework


def _architecture(point: Point) -> str:
    return point.device.generation


def _left_out(
    points: Sequence[Point], near: StepConstants, kind: str, group: Callable[[Point], str]
) -> Iterator[Missed]:
    """Each group's rows by a fit to all others."""
    for name in sorted({group(point) for point in points}):
        rows = [point for point in points if group(point) == name and point.is_told]
        others = [point for point in points if group(point) != name and point.is_fitted]
        constants = _fit(others, near)
        architectures = {_architecture(point) for point in others}
        for point in rows:
            parts = {
                "base": 1.0,
                "experts": float(point.run.shape.experts is not None),
                "software": float(not point.run.program.tuned or "framework" in point.run.assumed),
                "device": float(_architecture(point) not in architectures),
                "cell": math.sqrt(len(set(point.run.assumed) - {"framework"})),
            }
            yield Missed(kind, name, point.log_error(constants), parts, 1.0 / math.sqrt(len(rows)), point.job)


def _half(missed: Missed, widths: Mapping[str, float]) -> float:
    return math.hypot(*(part * widths.get(name, 0.0) for name, part in missed.parts.items()))


def _score(error: float, half: float) -> float:
    return interval_score(1.0, math.exp(error - half), math.exp(error + half))


def _constant_width(missed: Sequence[Missed]) -> float:
    """The one half width with the least mean interval score."""
    tried = [0.02 * number for number in range(1, 100)]
    return min(tried, key=lambda half: sum(each.weight * _score(each.error, half) for each in missed))


def _widths(
    missed: Sequence[Missed], names: Sequence[str] = ("base", "experts", "software", "device", "cell")
) -> dict[str, float]:
    """Widths with the least mean interval score on rows that were left out."""

    def cost(logs: numpy.ndarray) -> float:
        widths = dict(zip(names, numpy.exp(logs).tolist(), strict=True))
        total = sum(each.weight * _score(each.error, _half(each, widths)) for each in missed)
        # No part is left at nothing where rows do not ask for it.
        return total / sum(each.weight for each in missed) + 0.002 * float(numpy.square(logs + 2.0).sum())

    # Some parts can stand for others: the least of several minima.
    begins = [
        [first, *[rest] * (len(names) - 1)] for first, rest in ((-2.0, -2.0), (-1.0, -1.0), (-2.0, -1.0), (-1.0, -2.5))
    ]
    tried = [minimize(cost, begin, method="Nelder-Mead", options={"maxiter": 4000}) for begin in begins]
    found = min(tried, key=lambda each: each.fun)
    return dict(zip(names, numpy.exp(found.x).tolist(), strict=True))


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
        points.append(_point(row, run, machine))
    return [*points, *(_point(row, *field_run(row)) for row in trainer_rows())]


def _point(row: Row, run: TransformerRun, machine: Machine) -> Point:
    exchange = MachineExchange(machine, ranks=run.degrees.devices, year=run.program.year)
    return Point(row, run, machine.node.device, exchange)


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
    pull = numpy.array([PULLS.get(name, PULL) for name in names])

    def named(logs: numpy.ndarray) -> dict[str, float]:
        return {name: math.exp(value) for name, value in zip(names, logs.tolist(), strict=True)}

    def residuals(logs: numpy.ndarray) -> numpy.ndarray:
        constants = _constants({**first, **named(logs)})
        # A model's n rows count as n^0.6: they are alike, but not the same.
        errors = [point.log_error(constants) * counts[point.model] ** -0.2 for point in points]
        return numpy.concatenate([errors, pull * (logs - prior)])

    most = numpy.array([1e-9 if name.endswith("_share") or name == "unripe" else numpy.inf for name in names])
    least = numpy.array([-1e-9 if name.endswith("traffic") else -numpy.inf for name in names])
    begin = numpy.clip(numpy.log([first[name] for name in names]), least + 1e-3, most - 1e-3)
    found = least_squares(
        residuals, begin, bounds=(least, most), loss="soft_l1", f_scale=0.1, diff_step=1e-3, ftol=1e-5, xtol=1e-4
    )
    return named(found.x)


def _corrected(missed: Sequence[Missed], *, same_job: bool = True) -> list[Missed]:
    """Each row of a source by each other row of the same job, whose measured step corrects it."""
    found = []
    for rows in _by_source([each for each in missed if each.kind == "source"]).values():
        pairs = [
            replace(row, error=row.error - known.error, parts={"before": row.error, "by": float(place)})
            for place, known in enumerate(rows)
            for row in rows
            if row is not known and (row.job == known.job or not same_job)
        ]
        found += [replace(pair, weight=1.0 / math.sqrt(len(pairs))) for pair in pairs]
    return found


def _print_corrected(missed: Sequence[Missed]) -> None:
    """Errors of a source's rows by the fit to the others, before and after one measured row corrects them.

    They are medians over all choices of that row, of the same job and of any job of the source.
    """
    print(f"\n{'one step measured, source left out':34} rows before  after inside  any job before, after")
    jobs, everything = _corrected(missed), _by_source(_corrected(missed, same_job=False))
    for source, pairs in _by_source(jobs).items():
        width = _constant_width([pair for pair in jobs if pair.group != source])
        inside = statistics.mean(abs(pair.error) <= width for pair in pairs)
        figures = [*_medians(pairs), *_medians(everything[source])]
        rows = len({pair.parts["by"] for pair in pairs})
        of_any = ", ".join(f"{figure:.3f}" for figure in figures[2:])
        print(f"{source:34} {rows:4} {figures[0]:6.3f} {figures[1]:6.3f} {inside:6.2f}  {of_any}")


def _medians(pairs: Sequence[Missed]) -> tuple[float, float]:
    """Medians over the measured rows of the median error of the others, before and after."""
    by: dict[float, list[Missed]] = {}
    for pair in pairs:
        by.setdefault(pair.parts["by"], []).append(pair)
    groups = [([pair.parts["before"] for pair in group], [pair.error for pair in group]) for group in by.values()]
    before, after = (
        statistics.median(statistics.median(abs(math.expm1(error)) for error in group[place]) for group in groups)
        for place in (0, 1)
    )
    return before, after


MEMORY_WIDTHS = ("base", "software", "reserved", "nvidia-smi")


class Held(NamedTuple):
    """Published memory of a source, by kind, and whether its kernels are the device maker's.

    `error` is the logarithm of predicted over measured where the allocator reserves nothing more; `fragments` is 1
    where it reserves some.
    """

    source: str
    kind: str
    tuned: bool
    error: float
    fragments: float

    def missed(self, reserved: float, weight: float) -> Missed:
        parts = {"base": 1.0, "software": float(not self.tuned), self.kind: 1.0}
        return Missed("source", self.source, self.error + self.fragments * math.log1p(reserved), parts, weight)


def _fit_memory(paths: Sequence[Path]) -> dict[str, float]:
    """What is reserved, and widths; prints the errors of each source by the figures of the others."""
    held = [_held(row) for row in trainer_memory_rows() if row.fields.get("trained") != "QLoRA" and _is_told(row)]
    for row in itertools.chain.from_iterable(read_rows(path) for path in paths):
        answer = answer_memory(row) if row.family == "peak_memory" and not row.flag else None
        if answer is not None and answer.predicted:
            source, error = row.fields.get("source_repo", ""), math.log(answer.predicted / row.measured)
            held.append(Held(source, kind_of(row), True, error, 0.0))
    print(f"\n{'memory, source left out':34} rows median signed    p80 inside")
    everything: list[tuple[Held, float, bool]] = []
    for source in sorted({each.source for each in held}):
        others = [each for each in held if each.source != source]
        reserved, widths = _reserved(others), _memory_widths(others)
        judged = []
        for each in (each for each in held if each.source == source):
            missed = each.missed(reserved, 1.0)
            judged.append((each, missed.error, abs(missed.error) <= _half(missed, widths)))
        _print_memory(f"{source} ({judged[0][0].kind})", judged)
        everything += judged
    for kind in ("allocated", "reserved", "nvidia-smi"):
        _print_memory(f"all {kind}", [each for each in everything if each[0].kind == kind])
    _print_memory("all rows", everything)
    return {"reserved": _reserved(held), **{f"{name}_width": width for name, width in _memory_widths(held).items()}}


def _is_told(row: Row) -> bool:
    return row.fields.get("work") != "padded samples"


def _held(row: Row) -> Held:
    run, machine = field_run(row)
    kind = kind_of(row)
    predicted = memory_of_run(run, machine, kind, reserved=0.0) / 2**30
    source = row.fields.get("source_repo", "").partition("@")[0]
    fragments = 1.0 if kind != "allocated" and run.program.eager is not None else 0.0
    return Held(source, kind, run.program.tuned and not run.assumed, math.log(predicted / row.measured), fragments)


def _reserved(held: Sequence[Held]) -> float:
    """What an allocator reserves above its tensors, as a share of them: the mean of the sources' medians."""
    sources: dict[str, list[float]] = {}
    for each in held:
        if each.fragments:
            sources.setdefault(each.source, []).append(-each.error)
    return math.expm1(statistics.mean(map(statistics.median, sources.values()))) if sources else 0.0


def _memory_widths(held: Sequence[Held]) -> dict[str, float]:
    """Widths by errors of sources that were left out of what is reserved, where there are two of them."""
    missed = []
    for source in {each.source for each in held}:
        rows, others = ([each for each in held if (each.source == source) is same] for same in (True, False))
        reserved = _reserved(others) or _reserved(held)
        missed += [each.missed(reserved, 1.0 / math.sqrt(len(rows))) for each in rows]
    return _widths(missed, MEMORY_WIDTHS)


def _print_memory(name: str, judged: Sequence[tuple[Held, float, bool]]) -> None:
    errors = [math.expm1(error) for _, error, _ in judged]
    sizes, inside = sorted(map(abs, errors)), statistics.mean(inside for _, _, inside in judged)
    print(
        f"{name:34} {len(sizes):4} {statistics.median(sizes):6.3f} {statistics.median(errors):+6.3f} "
        f"{quantile(sizes, 0.8):6.3f} {inside:6.2f}"
    )


def _write(
    constants: StepConstants, points: Sequence[Point], inside: float, outside: float, memory: Mapping[str, float]
) -> None:
    sources = sorted({point.source for point in points})
    tables = {"large_products", "widths", "fitted"}
    lines = [
        "# Figures of pricing/analytical/step_time.py. Written by benchmarks/fits/transformers.py: do not edit.",
        f"# Fitted on {len(points)} rows of {', '.join(sources)}.",
        f"# Median error {inside:.3f}; of sources left out of the fit {outside:.3f}.",
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
        "[memory]",
        *(f"{name} = {figure:.3f}" for name, figure in memory.items()),
        "",
        "[constants]",
    ]
    plain = [entry.name for entry in fields(constants) if entry.name not in tables]
    lines += [f"{name} = {getattr(constants, name):.4g}" for name in plain]
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
