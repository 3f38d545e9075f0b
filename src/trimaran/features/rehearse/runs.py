"""From a script to the records of its ranks.

    script and arguments ──looked at──▶ rank 0 and the last rank, each alone
                                          │ groups
                                          ▼
                                 ranks of every kind ──▶ the others; where ranks exchange objects, all at once and anew

Rank 0 and the last rank are always among the rehearsed, so the look costs nothing where no objects are exchanged.
"""

import importlib.util
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from trimaran.base.errors import InputError
from trimaran.base.files import folder_of_command, given, is_file, put_in_place, read_bytes, temporary_folder
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.system import allowed_cores, reason_of
from trimaran.base.units import format_bytes
from trimaran.features.rehearse.target import Target
from trimaran.machine.detect import free_memory_bytes
from trimaran.measure.cache import cache_directory
from trimaran.pricing.kernels.corrections import KernelProfile
from trimaran.rehearsal.build import check_build
from trimaran.rehearsal.calls import MESSAGES
from trimaran.rehearsal.kinds import Axis, affordable, choose_ranks, find_axes, parse_ranks, represent, stand_ins
from trimaran.rehearsal.launch import WORKER, EndedRank, run_ranks
from trimaran.rehearsal.prices import RehearsalCalibration
from trimaran.rehearsal.record import Collective, Record
from trimaran.rehearsal.request import RankRequest

_LOOK_PATIENCE_S = 1.0
"""How long a rank that is rehearsed alone waits for an object from another one [s]."""

_PATIENCE_S = 120.0
"""The same of ranks that are rehearsed at once, each on a core [s]."""

_LAUNCHERS = {"python", "python3", "torchrun", "accelerate", "deepspeed", "srun", "mpirun", "uv", "poetry"}
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MOST_SCRIPT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is rehearsed.

    Attributes:
        script: path, or a module's name
        is_module: whether it is a module's name
        arguments: of the script
        target: what it is rehearsed for
        ranks: "kinds", "all", or numbers such as "0,8,16-23"
        steps: of an optimizer, after which a rank stops
        limit_s: after which a rank stops [s]
        hints: values for what no data can tell, by name
        allocator: as in PYTORCH_CUDA_ALLOC_CONF
        calibration: factors on the modelled times; None: of `profile`, of a measured step, or none
        measured_s: of a step of the script on one device; None: none was measured [s]
        profile: of the script on one device, which gives such factors; only with one rank
        options: as of `Rehearsal`
    """

    script: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    target: Target
    ranks: str = "kinds"
    steps: int = 3
    limit_s: float = 600.0
    hints: Mapping[str, float] = field(default_factory=dict)
    allocator: str = ""
    calibration: RehearsalCalibration | None = None
    measured_s: float | None = None
    profile: KernelProfile | None = None
    options: Sequence[str] = ()

    @property
    def command(self) -> list[str]:
        """The script and its arguments as they were given."""
        return [*(("-m",) if self.is_module else ()), self.script, *self.arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """Ranks of a script that were rehearsed.

    Attributes:
        runs: ascending by rank
        axes: of the script's groups
        representatives: of every rank, the rehearsed one that stands for it
        notes: what could not be done
    """

    runs: Sequence[EndedRank]
    axes: Sequence[Axis]
    representatives: Mapping[int, int]
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> list[Record]:
        """What each rank did, ascending."""
        return [run.record for run in self.runs]


def check_script(question: Question) -> None:
    """Refuse what cannot be run, before a process is started for it.

    Raises:
        InputError: no such file or module, none of Python, or wrong syntax
    """
    if question.steps < 1 or not 0 < question.limit_s < math.inf:
        raise InputError(
            f"a rehearsal needs at least one step and a limit of some time, got {question.steps} steps and "
            f"{question.limit_s:g} s",
            code="rehearse.no-time",
        )
    name = question.script
    if Path(name).name in _LAUNCHERS and not is_file(given(Path(name))):
        raise InputError(
            f'"{name}" starts scripts: give the script itself and its arguments, as in: trimaran rehearse --world 8 '
            "-- train.py --lr 1e-3",
            code="rehearse.launcher",
            script=name,
        )
    if question.is_module:
        _check_module(name)
        return
    path = given(Path(name))
    if path.is_dir():
        raise InputError(f"{name} is a folder: give the script in it", code="rehearse.folder", script=name)
    if not is_file(path):
        hint = f"; a module is run by -m {name}" if _MODULE.fullmatch(name) and path.suffix != ".py" else ""
        raise InputError(f"no such script: {name}{hint}", code="rehearse.no-script", script=name)
    code = read_bytes(path, most_bytes=_MOST_SCRIPT_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"{name}{where}: {text}", code="rehearse.syntax", script=name) from None


def _check_module(name: str) -> None:
    """The package of a module can be found; what is in it is the rank's to find, as importing runs it."""
    if not _MODULE.fullmatch(name):
        raise InputError(
            f'-m {name}: expected a module\'s name, such as "torchtitan.train"', code="rehearse.bad-module", module=name
        )
    here = str(folder_of_command() or Path.cwd())
    top = name.partition(".")[0]
    before = list(sys.path)
    sys.path.insert(0, here)
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        found = None
    finally:
        sys.path[:] = before
    if found is None:
        raise InputError(
            f"no module named {top}: install it where Trimaran is installed, or start in its folder",
            code="rehearse.no-module",
            module=name,
        )


def rehearse_ranks(
    question: Question, *, logs: Path | None = None, progress: Progress = ignore_progress, worker: str = WORKER
) -> Rehearsed:
    """Rehearse a script as some of its ranks.

    Args:
        question: what is rehearsed
        logs: folder for `rank<k>.log`, what each rank printed; made where it is missing
        progress: is told how many ranks have ended
        worker: module that runs a rank

    Raises:
        InputError: the script cannot be run, or a rank that the world has not
        EnvironmentProblem: a process cannot be started, or this torch cannot stand in for a device
    """
    check_script(question)
    check_build(cache_directory(), progress)
    world = question.target.world
    named = parse_ranks(question.ranks, world)
    notes: tuple[str, ...] = ()
    with temporary_folder("trimaran-rehearse-") as folder:
        first = sorted({0, world - 1}) if named is None else sorted({named[0], named[-1]})
        asked = [_request(question, folder, rank, (rank,), "look", _LOOK_PATIENCE_S) for rank in first]
        asked = [msgspec.structs.replace(request, at_barriers=tuple(first)) for request in asked]
        runs = run_ranks(asked, folder=folder, progress=progress, worker=worker)
        looked = [run.record for run in runs]
        axes = find_axes(looked)
        chosen = choose_ranks(world, axes, affordable(looked)) if named is None else named
        rest = [rank for rank in chosen if rank not in first]
        together = len(chosen) > 1 and any(_exchanges_objects(run.record, chosen) for run in runs)
        if rest and not together and not values_differ(looked):
            asked = [_request(question, folder, rank, (rank,), "look", _LOOK_PATIENCE_S) for rank in rest]
            runs += run_ranks(asked, folder=folder, progress=progress, worker=worker)
            rest = []
        needed = max((run.record.host_bytes for run in runs), default=0) * len(chosen)
        alone = [run.record for run in runs]
        if not together and (reasons := [why for why in (_of_values(alone), _of_files(alone)) if why]):
            together = needed < free_memory_bytes()
            notes = () if together else (_alone_note(reasons, chosen, needed),)
        if together:
            patience_s = _PATIENCE_S * max(1.0, len(chosen) / allowed_cores())
            like = represent(world, axes, chosen)
            asked = [
                msgspec.structs.replace(
                    _request(question, folder, rank, chosen, "all", patience_s),
                    stand_ins=stand_ins(rank, axes, chosen),
                    like=like,
                    awaited=shared_files(alone),
                )
                for rank in chosen
            ]
            runs = run_ranks(asked, folder=folder, progress=progress, worker=worker)
        elif rest:
            asked = [_request(question, folder, rank, (rank,), "look", _LOOK_PATIENCE_S) for rank in rest]
            runs += run_ranks(asked, folder=folder, progress=progress, worker=worker)
        keep_logs(runs, logs)
    runs.sort(key=lambda run: run.request.rank)
    records = [run.record for run in runs]
    axes = find_axes(records)
    return Rehearsed(runs=runs, axes=axes, representatives=represent(world, axes, chosen), notes=notes)


def _request(
    question: Question, folder: Path, rank: int, together: Sequence[int], name: str, patience_s: float
) -> RankRequest:
    place = folder / name
    meeting = place / "meeting"
    meeting.mkdir(parents=True, exist_ok=True)
    script = question.script
    if not question.is_module:
        script = str(given(Path(script)).absolute())
    return RankRequest(
        script=script,
        is_module=question.is_module,
        arguments=question.arguments,
        rank=rank,
        world=question.target.world,
        per_node=question.target.per_node,
        gpu=question.target.gpu,
        together=tuple(together),
        meeting=str(meeting),
        record=str(place / f"rank{rank}.record"),
        output=str(place / f"rank{rank}.log"),
        most_steps=question.steps,
        most_seconds=question.limit_s,
        hints=dict(question.hints),
        allocator=question.allocator,
        patience_s=patience_s,
    )


def _exchanges_objects(record: Record, chosen: Sequence[int]) -> bool:
    """Whether a rank has exchanged objects with another one that is rehearsed."""
    for one in record.collectives:
        if one.operation.endswith("_object"):
            group = record.groups.get(one.group)
            members = range(record.world) if group is None else group.ranks
            if len(set(members) & set(chosen)) > 1:
                return True
    return False


def values_differ(records: Sequence[Record]) -> bool:
    """Whether ranks gave different values to one collective, or sent one to each other.

    Args:
        records: of ranks that were rehearsed alone, each of which took its own values for those of all others
    """
    rehearsed = {record.rank for record in records}
    calls: dict[tuple[tuple[int, ...], int], list[tuple[int, Collective]]] = {}
    for record in records:
        counts: Counter[tuple[int, ...]] = Counter()
        for one in record.collectives:
            if one.operation in MESSAGES or one.group not in record.groups:
                if one.operation == "send" and one.value and one.peer in rehearsed:
                    return True
                continue
            ranks = record.groups[one.group].ranks
            counts[ranks] += 1
            if one.operation not in _WITHOUT_VALUES:
                calls.setdefault((ranks, counts[ranks]), []).append((record.rank, one))
    return any(_parted(found) for found in calls.values())


_WITHOUT_VALUES = frozenset({"barrier", "all_gather_object", "gather_object", "broadcast_object", "scatter_object"})


def _parted(calls: Sequence[tuple[int, Collective]]) -> bool:
    """Whether a result of one collective depends on whose values are taken."""
    if len({one.operation for _, one in calls}) > 1:
        return False  # the comparison of ranks says so
    values = {one.value for _, one in calls}
    if calls[0][1].operation in ("broadcast", "scatter"):
        return len(values) > 1 and any(rank == one.peer and one.value for rank, one in calls)
    return len(values) > 1 and "" not in values


def shared_files(records: Sequence[Record]) -> dict[str, int]:
    """Files that a rank saved and another one looked for after it.

    Args:
        records: of ranks

    Returns:
        Their paths, and after how many calls of the group of all ranks each was saved.
    """
    saved: dict[str, int] = {}
    for record in records:
        for path, calls in record.saved.items():
            saved[path] = min(calls, saved.get(path, calls))
    sought = {path for record in records for path, calls in record.sought.items() if calls > saved.get(path, calls)}
    return {path: saved[path] for path in sorted(sought)}


def _of_values(records: Sequence[Record]) -> str:
    return "ranks give different values to collectives" if values_differ(records) else ""


def _of_files(records: Sequence[Record]) -> str:
    return "ranks look for files that others save" if shared_files(records) else ""


def _alone_note(reasons: Sequence[str], ranks: Sequence[int], needed: int) -> str:
    return (
        f"{' and '.join(reasons)}; to exchange them the {len(ranks)} rehearsed ranks would run at once, in "
        f"{format_bytes(needed)} here, so each was as if it were alone: name fewer (--ranks)"
    )


def keep_logs(runs: Sequence[EndedRank], logs: Path | None) -> None:
    """Write what each rank printed to a folder, where one is asked for."""
    if logs is None:
        return
    try:
        given(logs).mkdir(parents=True, exist_ok=True)
        for run in runs:
            printed = Path(run.request.output)
            put_in_place(given(logs) / f"rank{run.request.rank}.log", printed.read_bytes() if printed.exists() else b"")
    except OSError as error:
        raise InputError(
            f"{logs} cannot be written: {reason_of(error)}", code="rehearse.logs-unwritable", path=str(logs)
        ) from error
