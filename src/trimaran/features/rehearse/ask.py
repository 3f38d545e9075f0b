"""Rehearse a script, and say whether it fits, agrees and how long a step takes."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trimaran.base.arguments import told_of_classes
from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.files import given
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import parse_seconds
from trimaran.features.rehearse.conclusions import Conclusion, conclude
from trimaran.features.rehearse.runs import Question, rehearse_ranks
from trimaran.features.rehearse.target import Target, find_target
from trimaran.planning.measured_jobs import MeasuredJob, read_measured
from trimaran.pricing.kernels.corrections import KernelProfile, read_kineto
from trimaran.rehearsal.prices import RehearsalCalibration, read_calibration
from trimaran.report.rehearsal import Rehearsal
from trimaran.simulator.allocator import Settings

STEPS_OF_GROWTH = 6
"""That are rehearsed where fewer left memory behind: a cache may be filled by then."""

HINTS = ("loss", "norm", "finite", "routing_load", "count")
"""What values can be said for."""


@told_of_classes
def rehearse(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    world: int | None = None,
    cluster: str | None = None,
    is_module: bool = False,
    per_node: int | None = None,
    memory: str | int | None = None,
    ranks: str = "kinds",
    steps: int = 3,
    limit: str | float = "10min",
    hints: Mapping[str, float] | None = None,
    alloc_conf: str | None = None,
    measured: str | Path | None = None,
) -> Rehearsal:
    """Run a script written for many GPUs as some of its ranks, without a GPU, and say what would happen.

    Each rank is a process, as under torchrun. Tensors on the device have no data, so a rank of a large model takes tens
    of seconds and less than a gigabyte.

    Args:
        script: path of a Python file, or a module's name
        arguments: of the script
        world: ranks in all; None: the devices of the cluster
        cluster: target, such as "dgx-h100:128"; without a number of nodes those that the ranks need; None: dgx-h100
        is_module: whether `script` is a module's name, as of `python -m`
        per_node: ranks of a node; None: a node's devices
        memory: of a device, such as "80GiB" or in bytes; None: the device's
        ranks: "kinds" (representatives of each kind), "all", or numbers such as "0,8,16-23"
        steps: of an optimizer, after which a rank stops
        limit: time after which a rank stops, such as "10min" or in seconds
        hints: values for what no data can tell, by "loss", "norm", "finite", "routing_load", "count"
        alloc_conf: settings of the allocator; None: those of the variable PYTORCH_CUDA_ALLOC_CONF
        measured: what corrects the modelled times, as `trimaran.planning.measured_jobs` reads it: with a world of 1 a
            trace of PyTorch's profiler, a step or a log of the script on one device of the cluster's kind; with others
            the answer to such a rehearsal, as JSON

    Raises:
        InputError: no such script, wrong syntax, no such cluster, or a text that means nothing
        EnvironmentProblem: a process cannot be started
    """
    question = ask(
        script,
        arguments,
        world=world,
        cluster=cluster,
        is_module=is_module,
        per_node=per_node,
        memory=memory,
        ranks=ranks,
        steps=steps,
        limit=limit,
        hints=hints,
        alloc_conf=alloc_conf,
        measured=measured,
    )
    return answer(question).rehearsal


@told_of_classes
def assert_fits(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    world: int,
    memory: str | int | None = None,
    cluster: str | None = None,
    is_module: bool = False,
    per_node: int | None = None,
    ranks: str = "kinds",
    steps: int = 3,
    limit: str | float = "10min",
    hints: Mapping[str, float] | None = None,
    alloc_conf: str | None = None,
    allow_unsure: bool = False,
) -> Rehearsal:
    """For tests: a script fits devices of some memory, and the calls of its ranks agree.

    Their gradients, weights and data are not compared; that they exchange any is.

    Args:
        script: as for `rehearse`
        arguments: as for `rehearse`
        world: as for `rehearse`
        memory: as for `rehearse`
        cluster: as for `rehearse`
        is_module: as for `rehearse`
        per_node: as for `rehearse`
        ranks: as for `rehearse`
        steps: as for `rehearse`
        limit: as for `rehearse`
        hints: as for `rehearse`
        alloc_conf: as for `rehearse`
        allow_unsure: accept "not sure", as of a script that compiles or memory that is too close to tell

    Returns:
        The rehearsal.

    Raises:
        AssertionError: it does not fit, ranks disagree or hang, the script fails or trains nothing; the text is the
            whole report
        InputError: as for `rehearse`
    """
    found = rehearse(
        script,
        arguments,
        world=world,
        cluster=cluster,
        is_module=is_module,
        per_node=per_node,
        memory=memory,
        ranks=ranks,
        steps=steps,
        limit=limit,
        hints=hints,
        alloc_conf=alloc_conf,
    )
    if found.fits or (allow_unsure and found.verdict == "not sure"):
        return found
    raise AssertionError(str(found))


def ask(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    world: int | None = None,
    cluster: str | None = None,
    is_module: bool = False,
    per_node: int | None = None,
    memory: str | int | None = None,
    ranks: str = "kinds",
    steps: int = 3,
    limit: str | float = "10min",
    hints: Mapping[str, float] | None = None,
    alloc_conf: str | None = None,
    measured: str | Path | None = None,
) -> Question:
    """The question of texts as people write them; arguments and errors as of `rehearse`."""
    unknown = sorted(set(hints or {}) - set(HINTS))
    if unknown:
        raise InputError(
            f'no hint is called "{unknown[0]}"{did_you_mean(unknown[0], HINTS)}',
            code="rehearse.unknown-hint",
            hint=unknown[0],
        )
    for name, value in (hints or {}).items():
        if not math.isfinite(value):
            raise InputError(
                f"hint {name}: expected a finite number, got {value}", code="rehearse.infinite-hint", hint=name
            )
    options = {
        "--memory": f"{memory}B" if isinstance(memory, int) else memory,
        "--per-node": per_node,
        "--ranks": None if ranks == "kinds" else ranks,
        "--steps": None if steps == 3 else steps,
        "--limit": f"{limit:g}s" if isinstance(limit, int | float) else None if limit == "10min" else limit,
        "--alloc-conf": alloc_conf,
        "--measured": measured,
    }
    said = [(name, str(value)) for name, value in options.items() if value is not None]
    said += [("--hint", f"{name}={value:g}") for name, value in (hints or {}).items()]
    if alloc_conf is None:
        alloc_conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    Settings.parse(alloc_conf)
    target = find_target(cluster, world=world, per_node=per_node, memory=memory)
    factors, profile, step_s = _corrected_by(None if measured is None else read_measured(str(measured)), target)
    return Question(
        script=str(script),
        is_module=is_module,
        arguments=tuple(map(str, arguments)),
        target=target,
        ranks=ranks,
        steps=steps,
        limit_s=parse_seconds(limit) if isinstance(limit, str) else float(limit),
        hints=dict(hints or {}),
        allocator=alloc_conf,
        calibration=factors,
        profile=profile,
        measured_s=step_s,
        options=tuple(word for pair in said for word in pair),
    )


def _corrected_by(
    measured: MeasuredJob | None, target: Target
) -> tuple[RehearsalCalibration | None, KernelProfile | None, float | None]:
    """What corrects the modelled times: factors, a profile, or a step [s]."""
    if measured is None:
        return None, None, None
    if measured.kind == "factors" and measured.file is not None:
        found = read_calibration(given(measured.file))
        if found.device and found.device != target.device.name:
            raise InputError(
                f"{measured.file} is of {found.device}, and {target.name} has {target.device.name}: times of one say "
                "nothing of the other",
                code="rehearse.other-device",
                measured=found.device,
                asked=target.device.name,
            )
        return found, None, None
    if measured.kind not in ("profile", "step") or (measured.kind == "step" and not measured.step_s):
        raise InputError(
            f"--measured {measured.text}: a rehearsal starts from a profile, a step or a log of its script, or from "
            "the answer to a rehearsal with one of them",
            code="rehearse.not-of-a-script",
        )
    if target.world != 1:
        raise InputError(
            f"--measured {measured.text} is of one device, and {target.world} ranks are rehearsed: first rehearse with "
            "--world 1 --output one.json, then with --measured one.json",
            code="rehearse.profile-of-many",
            world=target.world,
        )
    if measured.kind == "profile" and measured.file is not None:
        return None, read_kineto(given(measured.file)), None
    return None, None, measured.step_s


def parse_hints(texts: Sequence[str]) -> dict[str, float]:
    """Hints as people write them.

    Args:
        texts: such as "loss=2.0"

    Raises:
        InputError: no number, or no name

    Example:
        >>> parse_hints(["loss=2.5", "finite=0"])
        {'loss': 2.5, 'finite': 0.0}
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise InputError(
                f'--hint {text}: expected a name and a number, as in "loss=2.0"', code="rehearse.bad-hint", hint=text
            ) from None
    return found


def answer(question: Question, *, logs: Path | None = None, progress: Progress = ignore_progress) -> Conclusion:
    """Rehearse, and conclude.

    Args:
        question: of `ask`
        logs: folder for what each rank printed; None: it is dropped
        progress: is told how many ranks have ended

    Raises:
        InputError: as for `rehearse`
        EnvironmentProblem: a process cannot be started
    """
    started_s = time.monotonic()
    while True:
        rehearsed = rehearse_ranks(question, logs=None if logs is None else given(logs), progress=progress)
        concluded = conclude(question, rehearsed, took_s=time.monotonic() - started_s)
        if not concluded.grows or question.steps >= STEPS_OF_GROWTH:
            return concluded
        question = replace(question, steps=STEPS_OF_GROWTH)
