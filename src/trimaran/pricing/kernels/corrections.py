"""Corrections of the curves by the user's measurements.

A profile corrects each kind of kernel: its factor is the time in the profile over the modelled time. A few measured
steps correct only the device and the host, and only where their batches differ enough: the host costs the same at every
batch, the device more with each sample. One step alone scales both by the same factor.

Profiles of torch's profiler (Kineto) as seconds of each kind of kernel.

A trace is JSON with `traceEvents`. Events of category "kernel" ran on the device; "cpu_op" are the operators that asked
for them, which a kernel names by "External id" (older: "external id"). The kind of a kernel follows from its operator;
for kernels without one, such as those of replayed graphs, from their names. Steps are "ProfilerStep#…" annotations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import numpy
from numpy.typing import NDArray

from trimaran.base.decoding import decode_typed, unpack
from trimaran.base.errors import InputError
from trimaran.base.files import read_bytes
from trimaran.graph.kernels.workload import WorkKind
from trimaran.pricing.kernels.columns import Column

_OPERATORS = (
    (WorkKind.CONVOLUTION, ("conv",)),
    (WorkKind.ATTENTION, ("scaled_dot_product", "flash_attention", "efficient_attention")),
    (WorkKind.RECURRENT, ("rnn", "lstm", "gru")),
    (WorkKind.NORMALIZATION, ("batch_norm", "layer_norm", "group_norm", "rms_norm")),
    (WorkKind.POOLING, ("pool",)),
    (WorkKind.SOFTMAX, ("softmax", "nll_loss", "cross_entropy")),
    (WorkKind.EMBEDDING, ("embedding",)),
    (WorkKind.OPTIMIZER, ("optimizer", "foreach", "fused_adam", "fused_sgd", "fused_adamw", "multi_tensor")),
    (WorkKind.PRODUCT, ("::mm", "::addmm", "::bmm", "::baddbmm", "::matmul", "::linear", "gemm")),
    (WorkKind.COPY, ("copy_", "_to_copy", "::cat", "::fill_", "::zero_", "::clone", "contiguous")),
    (WorkKind.REDUCTION, ("::sum", "::mean", "::norm", "::max", "::min")),
)
_KERNELS = (
    (WorkKind.OPTIMIZER, ("multi_tensor_apply", "adam", "fusedoptimizer")),
    (WorkKind.ATTENTION, ("flash_fwd", "flash_bwd", "fmha", "attention")),
    (WorkKind.NORMALIZATION, ("batch_norm", "bn_fw", "bn_bw", "batchnorm", "layer_norm", "layernorm", "rms_norm")),
    (WorkKind.SOFTMAX, ("softmax", "nll_loss")),
    (WorkKind.POOLING, ("pool",)),
    (WorkKind.EMBEDDING, ("embedding",)),
    (WorkKind.RECURRENT, ("lstm", "rnn_", "persist")),
    (WorkKind.CONVOLUTION, ("conv", "winograd", "dgrad", "wgrad", "fprop", "nchwtonhwc", "nhwctonchw")),
    (WorkKind.PRODUCT, ("gemm", "cutlass", "cublas", "gemv", "splitk")),
    (WorkKind.REDUCTION, ("reduce",)),
    (WorkKind.COPY, ("copy", "memcpy", "memset", "fill", "catarray")),
)


_EXCHANGES = ("nccl", "rccl")
"""How names of kernels of collectives begin, of NVIDIA's library and AMD's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """One step of a profile, as a mean over its steps.

    Attributes:
        kinds_s: seconds of the kernels of each kind [s]
        step_s: from the start of a step to the start of the next [s]
        steps: in the profile
        source: the file
        operators_s: seconds of the kernels that each operator asked for, by its name, such as "aten::mm" [s]
        exchanges_s: seconds of the kernels of collectives, which are of no kind, by name [s]
    """

    kinds_s: Mapping[WorkKind, float]
    step_s: float
    steps: int
    source: str
    operators_s: Mapping[str, float] = field(default_factory=dict)
    exchanges_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def device_s(self) -> float:
        """All kernels of a step but for those of collectives [s]."""
        return sum(self.kinds_s.values())


MOST_PROFILE_BYTES = 2 * 2**30
"""Of a profile, which a step may have gigabytes of [bytes]."""
_MOST_PROFILE_VALUES = 200_000_000
"""Of a profile: 3 million events are 820 MB and 78 million values; they are read in 19 s of one core and 1.9 GB."""


_Microseconds = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]


class _Arguments(msgspec.Struct, frozen=True):
    """The operator that asked for a kernel."""

    today: int | str | None = msgspec.field(default=None, name="External id")
    older: int | str | None = msgspec.field(default=None, name="external id")


class _Event(msgspec.Struct, frozen=True):
    """What is read of an event; most have more."""

    cat: str = ""
    name: str = ""
    ts: _Microseconds | None = None
    dur: _Microseconds | None = None
    args: _Arguments | None = None

    @property
    def external(self) -> int | str | None:
        """What connects it with its operator."""
        if self.args is None:
            return None
        return self.args.older if self.args.today is None else self.args.today


class _Trace(msgspec.Struct, frozen=True):
    traceEvents: list[_Event]  # noqa: N815 its name in the file


def read_kineto(path: Path, *, steps: int | None = None) -> KernelProfile:
    """A profile that `torch.profiler` exported, plain or packed by gzip.

    Args:
        path: of the file
        steps: that it holds, where it has no "ProfilerStep#…" annotations

    Raises:
        InputError: there is no such file, it is no such profile, no kernel is in it, or its steps are not known
        CorruptDataError: it is no JSON, as a truncated file is not
    """
    events = _events(path)
    kernels = [event for event in events if event.cat == "kernel" and event.dur is not None]
    if not kernels:
        raise InputError(
            f'{path}: no event of category "kernel": profile with activities=[ProfilerActivity.CUDA, …] on a GPU',
            code="profile.no-kernels",
        )
    marks = [
        event
        for event in events
        if event.name.startswith("ProfilerStep#") and event.cat in ("user_annotation", "cpu_op")
    ]
    if steps is None and not marks:
        raise InputError(
            f"{path}: no ProfilerStep annotation: call profiler.step() in the loop, or say how many steps",
            code="profile.no-steps",
        )
    count = steps if steps is not None else len({event.name for event in marks})
    if count < 1:
        raise InputError(f"{path}: a profile has at least one step, got {count}", steps=count)
    operators = {event.external: event.name for event in events if event.cat == "cpu_op" and event.external is not None}
    seconds: dict[WorkKind, float] = {}
    by_operator: dict[str, float] = {}
    exchanges: dict[str, float] = {}
    for event in kernels:
        if event.name.lower().startswith(_EXCHANGES):
            name = event.name.partition("(")[0]
            exchanges[name] = exchanges.get(name, 0.0) + (event.dur or 0.0) * 1e-6 / count
            continue
        operator = "" if event.external is None else operators.get(event.external, "")
        kind, each_s = _kind(event.name.lower(), operator.lower()), (event.dur or 0.0) * 1e-6 / count
        seconds[kind] = seconds.get(kind, 0.0) + each_s
        if operator:
            by_operator[operator] = by_operator.get(operator, 0.0) + each_s
    return KernelProfile(
        kinds_s=seconds,
        step_s=_step_s(marks or kernels, count, path),
        steps=count,
        source=str(path),
        operators_s=by_operator,
        exchanges_s=exchanges,
    )


def _events(path: Path) -> Sequence[_Event]:
    content = unpack(read_bytes(path, most_bytes=MOST_PROFILE_BYTES), source=str(path), most_bytes=MOST_PROFILE_BYTES)
    try:
        return decode_typed(content, _Trace, source=str(path), most_values=_MOST_PROFILE_VALUES).traceEvents
    except InputError as error:
        if error.code != "file.unexpected-content":
            raise
        raise InputError(
            f"{error.message}: expected a Chrome trace exported by torch.profiler",
            code="profile.no-trace",
            path=str(path),
        ) from error


def _step_s(events: Sequence[_Event], count: int, path: Path) -> float:
    """From the first start to the last end, by the number of steps [s]."""
    starts = [event.ts for event in events if event.ts is not None]
    ends = [event.ts + (event.dur or 0.0) for event in events if event.ts is not None]
    step_s = (max(ends, default=0.0) - min(starts, default=0.0)) * 1e-6 / count
    if not step_s > 0:
        raise InputError(
            f"{path}: its steps have no duration: their events lack ts or dur",
            code="profile.no-duration",
            path=str(path),
        )
    return step_s


def _kind(kernel: str, operator: str) -> WorkKind:
    for text, table in ((operator, _OPERATORS), (kernel, _KERNELS)):
        for kind, words in table:
            if any(word in text for word in words):
                return kind
    return WorkKind.ELEMENTWISE


_APART = 0.4
"""Standard deviation of the logarithm by which device and host may move apart, against `_NOISE`."""

_NOISE = 0.03
"""Standard deviation of the logarithm of a measured step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors on modelled times.

    Attributes:
        kinds: of a kind of kernel
        others: of kinds that are not in `kinds`
        host: of the host's time
        spread: standard deviation of the logarithm of the remaining error
        source: where the factors come from
    """

    kinds: Mapping[WorkKind, float] = field(default_factory=dict)
    others: float = 1.0
    host: float = 1.0
    spread: float = 0.05
    source: str

    def of_kinds(self, kind: NDArray[numpy.str_]) -> Column:
        """The factor of each of a column of kinds."""
        factors = numpy.full(len(kind), self.others)
        for name, factor in self.kinds.items():
            factors[kind == name.value] = factor
        return factors


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A measured step and its modelled parts.

    Attributes:
        seconds: measured [s]
        device_s: modelled, of its kernels [s]
        host_s: modelled, of asking for them [s]
        overlap: of the software, see `step_seconds`
    """

    seconds: float
    device_s: float
    host_s: float
    overlap: float


def step_seconds(device_s: float, host_s: float, overlap: float) -> float:
    """A step of a device's time and a host's [s].

    Args:
        device_s: kernels back to back [s]
        host_s: asking for them [s]
        overlap: how far the shorter overlaps with the longer: not at all with 1, wholly with a large number

    Example:
        >>> step_seconds(3.0, 4.0, 1.0), step_seconds(3.0, 4.0, 2.0)
        (7.0, 5.0)
    """
    largest = max(device_s, host_s)
    if largest <= 0:
        return 0.0
    return float(largest * ((device_s / largest) ** overlap + (host_s / largest) ** overlap) ** (1 / overlap))


def correction_from_steps(steps: Sequence[MeasuredStep]) -> Correction:
    """The factors of device and host with which the model comes closest to measured steps.

    Minimises, over logarithms `a` and `b` of the two factors, the squared errors of the logarithm of each step plus
    `(noise / apart × (a - b))²`: where the steps do not tell device and host apart, both move alike.

    Args:
        steps: measured, on one device with one software

    Raises:
        InputError: no step, or one that is not a positive time
    """
    if not steps:
        raise InputError("a correction needs at least one measured step", code="correction.no-steps")
    for step in steps:
        if not (step.seconds > 0 and math.isfinite(step.seconds)):
            raise InputError(
                f"a measured step must be a positive time in seconds, got {step.seconds!r}", code="correction.bad-time"
            )
    a = b = 0.0
    for _ in range(60):
        a, b = _improved(steps, a, b)
    errors = [_error(step, a, b) for step in steps]
    left = math.sqrt(sum(error * error for error in errors) / max(1, len(errors) - 2)) if len(errors) > 2 else _NOISE
    return Correction(
        others=math.exp(a),
        host=math.exp(b),
        spread=max(left, _NOISE) * 1.5,
        source=f"{len(steps)} measured step{'s' if len(steps) > 1 else ''}",
    )


def correction_from_profile(profile: KernelProfile, modelled_s: Mapping[WorkKind, float], host_s: float) -> Correction:
    """The factors of kinds with which the model gives the times of a profile.

    Args:
        profile: of steps of the same job at the same batch
        modelled_s: of one step, by kind [s]
        host_s: modelled, of asking for a step's kernels [s]

    Raises:
        InputError: the profile has none of the kernels that the step consists of
    """
    common = {kind: seconds for kind, seconds in profile.kinds_s.items() if modelled_s.get(kind, 0.0) > 0}
    if not common:
        raise InputError(
            f"{profile.source}: none of its kernels is of a kind that this step has "
            f"({', '.join(sorted(modelled_s))}): is it a profile of this job's training on a GPU?",
            code="correction.no-common-kernels",
        )
    seen, known = sum(common.values()), sum(modelled_s[kind] for kind in common)
    host = 1.0
    if profile.step_s > 1.15 * profile.device_s and host_s > 0:
        host = profile.step_s / host_s  # the device waits, so the step is the host's
    return Correction(
        kinds={kind: seconds / modelled_s[kind] for kind, seconds in common.items()},
        others=seen / known,
        host=host,
        source=profile.source,
    )


def _improved(steps: Sequence[MeasuredStep], a: float, b: float) -> tuple[float, float]:
    """One damped step of Gauss and Newton."""
    delta = 1e-4
    rows = [(_NOISE / _APART, -_NOISE / _APART, (a - b) * _NOISE / _APART)]
    for step in steps:
        error = _error(step, a, b)
        by_a = (_error(step, a + delta, b) - error) / delta
        by_b = (_error(step, a, b + delta) - error) / delta
        rows.append((by_a, by_b, error))
    matrix = numpy.array([row[:2] for row in rows])
    errors = numpy.array([row[2] for row in rows])
    move = numpy.linalg.lstsq(matrix, -errors, rcond=None)[0]
    move = numpy.clip(move, -0.5, 0.5)
    return a + float(move[0]), b + float(move[1])


def _error(step: MeasuredStep, a: float, b: float) -> float:
    return math.log(step_seconds(step.device_s * math.exp(a), step.host_s * math.exp(b), step.overlap) / step.seconds)
