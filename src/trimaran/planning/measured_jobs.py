"""What was measured of a job, by what it is: the one option from which predictions start (`--measured`).

    file of `trimaran doctor --measure`          figures of this machine, for plans here
    answer of `trimaran rehearse`         factors on modelled times, which a profile or a step gave on one rank
    trace of torch's profiler             seconds of kernels and of exchanges of one device
    folder of a run (`runs/…`)            its strategy, batch and step, from `run.json` and `report.json`
    log of a trainer                      step and memory of its last steps; a strategy is said with it
    "363 images/s at 64"                  figures of one device, of one batch or several
    "dp8 zero1 m4, step=4.1 s, memory=61 GiB, batch=64"

Parts of a text are separated by commas, and a file may be one of them: "dp8 zero3 m2, train.log".

Source of the forms of logs: NVIDIA/Megatron-LM, megatron/training (`training_log`, `report_memory`);
pytorch/torchtitan, torchtitan/components/metrics.py; PrimeIntellect-ai/prime-rl, trainers; karpathy/nanoGPT, train.py.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from trimaran.base.decoding import decode_object
from trimaran.base.errors import InputError
from trimaran.base.files import read_bytes, read_text
from trimaran.base.units import format_bytes, format_seconds, parse_bytes, parse_seconds, whole_number
from trimaran.planner.analytical.candidates import AnalyticalModel, AnalyticalProblem
from trimaran.pricing.analytical.fits_device import MemoryKind, measured_share, memory_of_kind
from trimaran.pricing.analytical.memory import largest_rank
from trimaran.pricing.kernels.corrections import MOST_PROFILE_BYTES, read_kineto
from trimaran.program.strategy import Strategy

_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """What was measured of a job.

    Attributes:
        text: as it was given
        kind: what it is
        file: of figures, factors or a trace; None: there is none
        strategy: by which the job ran; "": not said
        batch: samples of a step; None: not said
        step_s: of a step; None: not said [s]
        token_rate: of each device, where a log has no step; None: it has none [tokens/s]
        memory_bytes: of a rank at its peak; None: not said [bytes]
        memory_kind: what that is of
    """

    text: str
    kind: Literal["calibration", "factors", "profile", "figures", "step"]
    file: Path | None = None
    strategy: str = ""
    batch: int | None = None
    step_s: float | None = None
    token_rate: float | None = None
    memory_bytes: int | None = None
    memory_kind: MemoryKind = "reserved"


@dataclass(frozen=True, slots=True)
class _LogForm:
    """Figures of a trainer's log: a pattern with a number, the field that it is, and how much one of it is."""

    pattern: re.Pattern[str]
    field: Literal["step_s", "token_rate", "memory_bytes", "batch"]
    unit: float


def _form(pattern: str, field: Literal["step_s", "token_rate", "memory_bytes", "batch"], unit: float = 1.0) -> _LogForm:
    return _LogForm(re.compile(pattern.replace("#", r"(\d[\d,]{0,15}(?:\.\d{1,15})?)")), field, unit)


_LOG_FORMS = (
    _form(r"elapsed time per iteration \(ms\): #", "step_s", 1e-3),  # Megatron
    _form(r"global batch size: +#", "batch"),
    _form(r"max reserved: #", "memory_bytes", 2.0**20),
    _form(r"memory: +#GiB", "memory_bytes", 2.0**30),  # torchtitan
    _form(r"tps: #", "token_rate"),
    _form(r"\| Time: #s", "step_s"),  # prime-rl
    _form(r"Peak Mem\.: #/", "memory_bytes", 2.0**30),
    _form(r"iter \d+: loss [\d.]+, time #ms", "step_s", 1e-3),  # nanoGPT
)


def read_measured(text: str) -> MeasuredJob:
    """What was measured, as people give it.

    Args:
        text: see above

    Raises:
        InputError: it is neither a file that is known nor a text that means something

    Example:
        >>> found = read_measured("dp8 zero1 m4, step=4.1 s, memory=61 GiB nvidia-smi, batch=64")
        >>> found.strategy, found.step_s, found.memory_bytes // 2**30, found.memory_kind, found.batch
        ('dp8 zero1 m4', 4.1, 61, 'nvidia-smi', 64)
        >>> read_measured("363 images/s at 64").kind
        'figures'
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    files = [part for part in parts if _is_path(part)]
    if not files and parts and all(part[0].isdigit() and "=" not in part for part in parts):
        return MeasuredJob(text=text, kind="figures")
    if len(files) > 1:
        raise InputError(
            f"--measured {text}: {len(files)} files: say one of them", code="measured.several-files", files=len(files)
        )
    found = _of_file(text, Path(files[0])) if files else MeasuredJob(text=text, kind="step")
    said = [part for part in parts if part not in files]
    if said and found.kind not in ("step", "profile"):
        raise InputError(
            f'--measured {text}: {files[0]} is no log: leave "{said[0]}" out', code="measured.file-alone", file=files[0]
        )
    for part in said:
        found = _with(found, part)
    if found.kind == "step" and found.step_s is found.token_rate is found.memory_bytes is None:
        raise InputError(
            f'--measured "{text}": neither a file nor a figure: expected one such as "363 images/s at 64", or a '
            'strategy with "step=4.1 s" or "memory=61 GiB"',
            code="measured.no-figure",
        )
    return found


def _is_path(part: str) -> bool:
    return "=" not in part and len(part) < 4096 and Path(part).exists()


def _with(found: MeasuredJob, part: str) -> MeasuredJob:
    name, sign, value = (word.strip() for word in part.partition("="))
    if not sign:
        if found.strategy:
            raise InputError(
                f'--measured "{found.text}": two strategies, "{found.strategy}" and "{part}": figures are said as in '
                '"step=4.1 s"',
                code="measured.two-strategies",
            )
        return replace(found, strategy=part)
    if name == "step":
        return replace(found, step_s=parse_seconds(value))
    if name == "batch":
        batch = whole_number(value, least=1)
        if batch is not None:
            return replace(found, batch=batch)
    if name == "memory":
        kinds: tuple[MemoryKind, ...] = get_args(MemoryKind)
        kind: MemoryKind = next((kind for kind in kinds if value.endswith(kind)), "reserved")
        return replace(found, memory_bytes=parse_bytes(value.removesuffix(kind).strip()), memory_kind=kind)
    raise InputError(
        f'--measured "{found.text}": {part}: expected step, memory or batch, such as "step=4.1 s"',
        code="measured.unknown-figure",
        part=part,
    )


def _of_file(text: str, path: Path) -> MeasuredJob:
    if path.is_dir():
        return _of_run(text, path)
    content = read_bytes(path, most_bytes=MOST_PROFILE_BYTES)
    begin = content[:4096]
    if begin[:2] == b"\x1f\x8b" or b'"traceEvents"' in begin:
        return MeasuredJob(text=text, kind="profile", file=path)
    if not begin.lstrip().startswith(b"{"):
        return _of_log(text, read_text(path, most_bytes=_MOST_BYTES))
    names = _document(path).keys() if len(content) < _MOST_BYTES else {"traceEvents"}
    if "traceEvents" in names:
        return MeasuredJob(text=text, kind="profile", file=path)
    return MeasuredJob(text=text, kind="factors" if {"verdict", "calibration"} & names else "calibration", file=path)


def _document(path: Path) -> dict[str, Any]:
    return decode_object(read_bytes(path, most_bytes=_MOST_BYTES), source=str(path))


def _of_run(text: str, path: Path) -> MeasuredJob:
    """Of the folder of a run, or of the last one of a folder of them."""
    runs = [path] if (path / "run.json").exists() else sorted(one.parent for one in path.glob("*/run.json"))
    if not runs:
        raise InputError(
            f"--measured {path}: no run is in it: none of its folders has a run.json", code="measured.no-run"
        )
    about, report = _document(runs[-1] / "run.json"), _document(runs[-1] / "report.json")
    measured = report.get("measured")
    step_s = measured.get("step_time_s") if isinstance(measured, dict) else None
    if not isinstance(step_s, int | float) or not step_s > 0:
        raise InputError(
            f"--measured {runs[-1]}: its report.json has no measured step", code="measured.run-without-step"
        )
    return MeasuredJob(text=text, kind="step", strategy=str(about.get("strategy", "")), step_s=float(step_s))


def _of_log(text: str, log: str) -> MeasuredJob:
    """Of a trainer's log: the median of the later half of its steps, and the most of its memory."""
    lines = log.splitlines()
    values: dict[str, Sequence[float]] = {}
    for form in _LOG_FORMS:
        found = [
            float(match.group(1).replace(",", "")) * form.unit for match in map(form.pattern.search, lines) if match
        ]
        if found:
            values[form.field] = found

    def later(name: str) -> float | None:
        known = values.get(name, ())
        return statistics.median(known[len(known) // 2 :]) if known else None

    memory, batch = values.get("memory_bytes"), later("batch")
    return MeasuredJob(
        text=text,
        kind="step",
        step_s=later("step_s"),
        token_rate=later("token_rate"),
        memory_bytes=int(max(memory)) if memory else None,
        batch=int(batch) if batch else None,
    )


# ---------------------------------------------------------------------------------------------------------------------
# A measured step of a decoder by the same one as modelled


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCorrection:
    """A measured step by the same one as the analytical model has it.

    Attributes:
        factor: measured by modelled time; None: no time was measured
        memory_share: of activations and of what comes and goes, measured by modelled
        notes: where the model was off, part by part
    """

    factor: float | None
    memory_share: float
    notes: tuple[str, ...]


def compare_step(problem: AnalyticalProblem, strategy: Strategy, measured: MeasuredJob) -> StepCorrection:
    """A measured step by the same one as modelled.

    Args:
        problem: with the devices and the batch of the measured step
        strategy: of it
        measured: with a step, a profile or memory
    """
    model = AnalyticalModel(problem=problem)
    step, profile = model.step(strategy), None
    step_s = measured.step_s
    if measured.kind == "profile" and measured.file is not None:
        profile = read_kineto(measured.file)
        step_s = profile.step_s
    if step_s is None and measured.token_rate:
        step_s = problem.batch * problem.sample_tokens / (strategy.devices * measured.token_rate)
    notes = []
    if step_s is not None:
        notes.append(
            f"measured: {strategy.name} with a batch of {problem.batch} takes {format_seconds(step_s)} a step, "
            f"{format_seconds(step.seconds)} as modelled; times of all strategies are {_by(step_s / step.seconds)}"
        )
    if profile is not None:
        exchanges_s = sum(profile.exchanges_s.values())
        parts = {
            "kernels": (profile.device_s, step.compute_s + step.update_s),
            "exchanges": (exchanges_s, step.tensor_s + step.send_s + step.data_s),
            "waits for data, the host and other ranks": (
                max(0.0, profile.step_s - profile.device_s - exchanges_s),
                step.bubble_s + step.slowest_s + step.unequal_s,
            ),
        }
        told = (
            f"{name} {format_seconds(was)} ({format_seconds(is_)} as modelled)" for name, (was, is_) in parts.items()
        )
        notes.append(f"of it, with exchanges that computing overlaps: {', '.join(told)}")
    share = 1.0
    if measured.memory_bytes is not None:
        memory = largest_rank(problem.shape, strategy, bookkeeping=problem.bookkeeping)
        kind, device = measured.memory_kind, problem.machine.node.device
        counted = memory_of_kind(memory, strategy, kind, device, keeping=problem.bookkeeping)
        share = measured_share(memory, measured.memory_bytes, counted)
        notes.append(
            f"measured: {format_bytes(measured.memory_bytes)} of memory ({kind}), {format_bytes(counted)} as modelled; "
            f"activations of all strategies are {_by(share)}"
        )
    return StepCorrection(
        factor=None if step_s is None else step_s / step.seconds, memory_share=share, notes=tuple(notes)
    )


def _by(factor: float) -> str:
    """A correction in words.

    Example:
        >>> _by(1.25), _by(0.9)
        ('25 % more than modelled', '10 % less than modelled')
    """
    return f"{100 * abs(factor - 1.0):.0f} % {'more' if factor >= 1.0 else 'less'} than modelled"
