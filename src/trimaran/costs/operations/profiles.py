"""Profiles of torch's profiler (Kineto) as seconds of each kind of kernel.

A trace is JSON with `traceEvents`. Events of category "kernel" ran on the device; "cpu_op" are the operators that asked
for them, which a kernel names by "External id" (older: "external id"). What a kernel is follows from its operator; of
kernels without one, such as those of replayed graphs, from their own name. Steps are "ProfilerStep#…" annotations.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.errors import InputError
from trimaran.graph.workload import WorkKind

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a profile shows of one step, as a mean over its steps.

    Attributes:
        kinds_s: seconds of the kernels of each kind [s]
        step_s: from the start of a step to the start of the next [s]
        steps: in the profile
        source: the file
    """

    kinds_s: Mapping[WorkKind, float]
    step_s: float
    steps: int
    source: str

    @property
    def device_s(self) -> float:
        """All kernels of a step [s]."""
        return sum(self.kinds_s.values())


def read_kineto(path: Path, *, steps: int | None = None) -> Profile:
    """A profile that `torch.profiler` exported, plain or packed by gzip.

    Args:
        path: of the file
        steps: that it holds, where it has no "ProfilerStep#…" annotations

    Raises:
        InputError: there is no such file, it is no such profile, no kernel is in it, or its steps are not known
    """
    events = _events(path)
    kernels = [event for event in events if event.get("cat") == "kernel" and _is_number(event.get("dur"))]
    if not kernels:
        raise InputError(
            f'{path}: no event of category "kernel": profile with activities=[ProfilerActivity.CUDA, …] on a GPU',
            code="profile.no-kernels",
        )
    marks = [
        event
        for event in events
        if str(event.get("name", "")).startswith("ProfilerStep#") and event.get("cat") in ("user_annotation", "cpu_op")
    ]
    if steps is None and not marks:
        raise InputError(
            f"{path}: no ProfilerStep annotation: call profiler.step() in the loop, or say how many steps",
            code="profile.no-steps",
        )
    count = steps if steps is not None else len({event["name"] for event in marks})
    if count < 1:
        raise InputError(f"{path}: a profile has at least one step, got {count}", steps=count)
    operators = {
        _external(event): str(event["name"]).lower()
        for event in events
        if event.get("cat") == "cpu_op" and _external(event) is not None
    }
    seconds: dict[WorkKind, float] = {}
    for event in kernels:
        kind = _kind(str(event.get("name", "")).lower(), operators.get(_external(event), ""))
        seconds[kind] = seconds.get(kind, 0.0) + float(event["dur"]) * 1e-6 / count
    return Profile(kinds_s=seconds, step_s=_step_s(marks or kernels, count), steps=count, source=str(path))


def _events(path: Path) -> Sequence[Mapping[str, Any]]:
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        document = json.loads(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}", code="profile.unreadable") from error
    except ValueError as error:
        raise InputError(
            f"{path}: not JSON ({error}): expected what torch.profiler exports as a Chrome trace",
            code="profile.not-json",
        ) from error
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise InputError(
            f'{path}: no list "traceEvents": expected what torch.profiler exports as a Chrome trace',
            code="profile.no-events",
        )
    return [event for event in events if isinstance(event, dict)]


def _step_s(events: Sequence[Mapping[str, Any]], count: int) -> float:
    starts = [float(event["ts"]) for event in events]
    ends = [float(event["ts"]) + float(event.get("dur", 0.0)) for event in events]
    return (max(ends) - min(starts)) * 1e-6 / count


def _external(event: Mapping[str, Any]) -> Any:
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        return None
    return arguments.get("External id", arguments.get("external id"))


def _kind(kernel: str, operator: str) -> WorkKind:
    for text, table in ((operator, _OPERATORS), (kernel, _KERNELS)):
        for kind, words in table:
            if any(word in text for word in words):
                return kind
    return WorkKind.ELEMENTWISE


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
