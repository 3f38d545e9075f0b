"""Run a script for real as several ranks and as one process, and say whether they train one model."""

import itertools
import pickle
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from trimaran.base.arguments import told_of_classes
from trimaran.base.errors import InputError
from trimaran.base.files import given, temporary_folder
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_count
from trimaran.features.rehearse.ask import ask
from trimaran.features.rehearse.runs import Question, check_script, keep_logs
from trimaran.rehearsal.launch import EndedRank, run_ranks
from trimaran.rehearsal.real.one_process import NO_PART, ProcessComparison, ProcessDifference, differ, unlike_settings
from trimaran.rehearsal.real.slopes import Direction, apart, factors, skipped
from trimaran.rehearsal.real.watch import (
    DEVICES,
    FOUND,
    MOVED,
    ONE_BY_ONE,
    WatchedRank,
    digest_of,
    samples_of,
    seen_file,
)
from trimaran.rehearsal.request import RankRequest
from trimaran.report.verification import Difference, Verification, VerifyVerdict

_WORKER = "trimaran.rehearsal.real.worker"
_LEAST_S = 20.0
"""For one process, which may wait for ranks that are not there [s]; else five times as long as the ranks took."""

_LONG = 24
"""Steps in which weights that ranks train apart are to come together, as under local SGD."""


@told_of_classes
def verify(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    world: int = 2,
    is_module: bool = False,
    alone: Sequence[str] | None = None,
    per_node: int | None = None,
    steps: int = 3,
    limit: str | float = "5min",
    logs: str | Path | None = None,
    progress: Progress = ignore_progress,
) -> Verification:
    """Run a script for real on the CPU as several ranks, and as one process with the same samples, and compare.

    Compared are the gradient of every parameter at each step of an optimizer, the norms to which they are clipped, and
    the weights afterwards. CUDA devices are the CPU, NCCL is gloo, 16 bits are fp32, and dropout is off.

    Args:
        script: path of a Python file for torchrun, or a module's name
        arguments: of the script; they make it small
        world: ranks
        is_module: whether `script` is a module's name, as of `python -m`
        alone: arguments with which one process runs the script, where its mesh stands in them; None: the same
        per_node: ranks of a node, at most the world; None: half of the ranks, so that local ranks are not global ones,
            or all of them where the script does not train so
        steps: of an optimizer that are compared
        limit: time after which a process stops, such as "5min" or in seconds
        logs: folder for what each process printed
        progress: is told how many processes have ended

    Raises:
        InputError: no such script, wrong syntax, or fewer than two ranks
        EnvironmentProblem: a process cannot be started
    """
    if world < 2:
        raise InputError(
            f"one model of several ranks: expected at least 2, got {world} (--world)", code="verify.one-rank"
        )
    asked = ask(script, arguments, world=world, is_module=is_module, per_node=per_node, steps=steps, limit=limit)
    check_script(asked)
    local = per_node or max(1, world // 2)
    began_s = time.monotonic()
    with temporary_folder("trimaran-verify-") as folder:
        place = folder / "ranks"
        runs = _run(asked, place, local, asked.steps, range(world), progress)
        if per_node is None and local < world and not all(map(_trains, (_seen(place, run) for run in runs))):
            # A script of one node, which fails on two, or trains with as many devices as it sees.
            one_node = _run(asked, folder / "node", world, asked.steps, range(world), progress)
            if all(map(_trains, (_seen(folder / "node", run) for run in one_node))):
                runs, place, local = one_node, folder / "node", world
        keep_logs(runs, None if logs is None else Path(logs))
        found = _judge(asked if alone is None else replace(asked, arguments=tuple(alone)), place, local, runs, progress)
        if (found.reason or found.missed) and not found.findings:
            parts = {name for name, reason in found.missed.items() if reason == NO_PART}
            found.findings = _among_ranks(asked, place, runs, local, parts, progress)
        if any(one.kind == "gradient" and one.ranks for one in found.findings):
            long = [
                _seen(folder / "long", run)
                for run in _run(asked, folder / "long", local, _LONG, range(world), progress)
            ]
            if _come_together(long):
                found.findings, found.reason = unlike_settings([one for one in long if one is not None]), _APART
    return _told(asked, runs, found, time.monotonic() - began_s)


@told_of_classes
def assert_trains_one_model(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    world: int = 2,
    is_module: bool = False,
    alone: Sequence[str] | None = None,
    per_node: int | None = None,
    steps: int = 3,
    limit: str | float = "5min",
    allow_unknown: bool = False,
) -> Verification:
    """For tests: ranks of a script train the model that one process trains.

    Args:
        script: as for `verify`
        arguments: as for `verify`
        world: as for `verify`
        is_module: as for `verify`
        alone: as for `verify`
        per_node: as for `verify`
        steps: as for `verify`
        limit: as for `verify`
        allow_unknown: accept "not known", as of a script that one process cannot run

    Returns:
        The verification.

    Raises:
        AssertionError: ranks train another model, or fail; the text says what differs, and where
        InputError: as for `verify`
    """
    found = verify(
        script,
        arguments,
        world=world,
        is_module=is_module,
        alone=alone,
        per_node=per_node,
        steps=steps,
        limit=limit,
    )
    if found.verdict == "one model" or (allow_unknown and found.verdict == "not known"):
        return found
    raise AssertionError(str(found))


_APART = "each rank trains by itself for some steps, and then weights are averaged, which is not one process's training"


def _run(
    asked: Question, folder: Path, local: int, steps: int, ranks: Sequence[int], progress: Progress
) -> list[EndedRank]:
    """Run ranks, or with none of them one process next to those that have run there."""
    folder.mkdir(exist_ok=True)
    alone = not ranks
    script = asked.script if asked.is_module else str(given(Path(asked.script)).absolute())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (folder / "port").write_text(str(free.getsockname()[1]))
    requests = [
        RankRequest(
            script=script,
            is_module=asked.is_module,
            arguments=asked.arguments,
            rank=rank,
            world=1 if alone else asked.target.world,
            per_node=local,
            gpu=asked.target.gpu,
            together=tuple(ranks),
            meeting=str(folder),
            record=str(folder / ("alone.record" if alone else f"rank{rank}.record")),
            output=str(folder / ("alone.log" if alone else f"rank{rank}.log")),
            most_steps=steps,
            most_seconds=asked.limit_s,
        )
        for rank in ranks or (0,)
    ]
    return run_ranks(requests, folder=folder, progress=progress, worker=_WORKER)


def _judge(
    asked: Question, folder: Path, local: int, runs: Sequence[EndedRank], progress: Progress
) -> ProcessComparison:
    """What one process finds that is compared with the ranks."""
    seen = [_seen(folder, run) for run in runs]
    if any(one is None or not one.rounds for one in seen) or any(_failed(run) for run in runs):
        return ProcessComparison()
    known = [one for one in seen if one is not None]
    among = [*_same_samples(known), *skipped(known)]
    found = ProcessComparison()
    long_s = min(asked.limit_s, max(_LEAST_S, 5 * max(run.seconds for run in runs)))
    while True:
        (folder / FOUND).unlink(missing_ok=True)
        (run,) = _run(replace(asked, limit_s=long_s), folder, 1, asked.steps, (), progress)
        found = _read(folder, run)
        if found.takes_more and not (folder / ONE_BY_ONE).exists():
            (folder / ONE_BY_ONE).touch()
        elif not found.rounds and not (folder / DEVICES).exists():
            (folder / DEVICES).write_text(str(local))  # it may ask for several devices before it begins
        else:
            break
    found.findings = [*among, *found.findings]
    return found


def _among_ranks(
    asked: Question, folder: Path, runs: Sequence[EndedRank], local: int, parts: Collection[str], progress: Progress
) -> list[ProcessDifference]:
    """What ranks show where one process cannot be compared."""
    seen = [one for run in runs if (one := _seen(folder, run)) is not None]
    if len(seen) < len(runs):
        return []
    number = itertools.count()

    def moved(direction: Direction) -> list[WatchedRank] | None:
        place = folder.parent / f"moved{next(number)}"
        place.mkdir()
        (place / MOVED).write_bytes(pickle.dumps(direction))
        ran = _run(asked, place, local, 1, range(len(runs)), progress)
        again = [one for run in ran if (one := _seen(place, run)) is not None and one.rounds]
        return again if len(again) == len(ran) and all(map(_begins_alike, again, seen)) else None

    if (found := apart(seen, without=parts)) or parts:
        return found
    unlike = factors(seen, moved)
    return [*apart(seen, of_one_value=True), *unlike] if unlike else []


def _begins_alike(first: WatchedRank, second: WatchedRank) -> bool:
    """Whether two runs of a rank have the same weights: a script may take another seed each time."""
    weights, others = first.rounds[0].weights, second.rounds[0].weights
    return weights.keys() == others.keys() and not any(
        differ(share.values, others[name].values, 0.0) for name, share in weights.items()
    )


def _read(folder: Path, run: EndedRank) -> ProcessComparison:
    try:
        return msgspec.json.decode((folder / FOUND).read_bytes(), type=ProcessComparison)
    except (OSError, msgspec.DecodeError):
        return ProcessComparison(reason=f"the process that is to be compared has ended: {run.record.end.text}")


def _seen(folder: Path, run: EndedRank) -> WatchedRank | None:
    try:
        seen: WatchedRank = pickle.loads(seen_file(folder, run.request.rank).read_bytes())  # noqa: S301  our own
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    return seen


_LOST = "Connection closed by peer"


def _trains(seen: WatchedRank | None) -> bool:
    return seen is not None and any(one.updates for one in seen.rounds)


def _failed(run: EndedRank) -> bool:
    return run.record.end.how in ("error", "killed", "seconds", "invented") or run.record.end.status != 0


def _same_samples(seen: Sequence[WatchedRank]) -> list[ProcessDifference]:
    """Ranks that train on the same samples, or on samples that others have too."""
    if any(not one.rounds or not one.rounds[0].updates for one in seen):
        return []
    ranks: dict[str, list[int]] = {}
    for rank, one in enumerate(seen):
        # Modules of the same weights with the same inputs compute the same; what a DTensor shards is whole by then.
        weights = (digest_of(share.values) for share in one.rounds[0].weights.values() if share.offset is None)
        ranks.setdefault(" ".join((one.inputs, *weights)), []).append(rank)
    twice = max(ranks.values(), key=len)
    if len(twice) > 1 and seen[twice[0]].batches:  # scripts that only take times draw the same numbers on all ranks
        text = "train on the same samples, and compute the same from first to last"
        return [_of_samples(seen, twice, text)]
    for loader in seen[0].batches:
        of_ranks = [list(map(digest_of, samples_of(one.batches.get(loader, [])))) for one in seen]
        # A rank that has whole batches of another one shares its model, as under tensor parallelism.
        if len({tuple(samples) for samples in of_ranks}) < len(seen) or any(
            len(set(one)) < len(one) for one in of_ranks
        ):
            continue
        every = Counter(sample for samples in of_ranks for sample in samples)
        shared = {sample for sample, count in every.items() if count > 1}
        if len(shared) > max(len(seen), len(every) // 10):  # a sampler may fill up an epoch
            who = [rank for rank, samples in enumerate(of_ranks) if shared & set(samples)]
            text = f"read {len(shared)} of {len(every)} samples that another one reads too"
            return [_of_samples(seen, who, text)]
    return []


def _of_samples(seen: Sequence[WatchedRank], ranks: Sequence[int], text: str) -> ProcessDifference:
    lines = tuple(seen[ranks[0]].rounds[0].updates[0].backward[:1])
    return ProcessDifference(kind="samples", name="", step=0, text=text, ranks=tuple(ranks), lines=lines)


def _come_together(seen: Sequence[WatchedRank | None]) -> bool:
    """Whether weights that ranks have trained apart are the same again after some step."""
    if any(one is None for one in seen):
        return False
    parted = False
    for rounds in zip(*(one.rounds for one in seen if one is not None), strict=False):
        alike = all(
            name in other.weights and not differ(share.values, other.weights[name].values, 1e-5)
            for other in rounds[1:]
            for name, share in rounds[0].weights.items()
        )
        if parted and alike:
            return True
        parted = parted or not alike
    return False


def _told(asked: Question, runs: Sequence[EndedRank], found: ProcessComparison, seconds: float) -> Verification:
    world, steps = asked.target.world, found.steps
    missed: dict[str, list[str]] = {}
    for name, reason in found.missed.items():
        missed.setdefault(reason, []).append(name)
    differences = list(_grouped(found.findings))
    # The first rank that fails, not one that has lost it.
    failed = min((run for run in runs if _failed(run)), key=lambda run: _LOST in run.record.end.text, default=None)
    printed, steps_asked = "", format_count(asked.steps, "step")
    verdict: VerifyVerdict
    if failed is not None:
        end, printed = failed.record.end, "\n".join(failed.printed.splitlines()[-12:])
        if end.how in ("seconds", "invented"):
            verdict = "not known"
            why = end.text or f"{steps_asked} take longer than --limit"
            headline = f"whether {world} ranks train one model is not known: {why}"
        else:
            verdict = "failed"
            headline = f"rank {failed.request.rank} fails: {end.text or f'it ends with status {end.status}'}"
    elif differences:
        verdict = "differs"
        headline = f"{world} ranks do not train the model of one process: {differences[0].text}"
    elif found.reason:
        verdict, headline = "not known", f"whether {world} ranks train one model is not known: {found.reason}"
    elif missed or not found.gradients + found.changes:
        verdict = "not known"
        lacking = format_count(len(found.missed), "parameter") if missed else "no step of an optimizer"
        headline = f"whether {world} ranks train one model is not known: {lacking} could not be compared"
        headline = headline if missed else f"{world} ranks train nothing that could be compared: {lacking}"
    else:
        verdict = "one model"
        headline = (
            f"{world} ranks train the model of one process: in {format_count(steps, 'step')} "
            f"{format_count(found.gradients, 'gradient')} and {format_count(found.changes, 'change')} of weights agree"
        )
    return Verification(
        verdict=verdict,
        headline=headline,
        script=asked.command,
        world=world,
        steps=steps,
        gradients=found.gradients,
        largest=found.largest,
        differences=differences,
        missed=missed,
        replaced=found.replaced,
        printed=printed,
        seconds=seconds,
    )


def _grouped(findings: Sequence[ProcessDifference]) -> Iterator[Difference]:
    """One sentence for parameters that differ alike."""
    groups: dict[tuple[object, ...], list[ProcessDifference]] = {}
    for one in findings:
        factor = None if one.factor is None else f"{one.factor:.2g}"
        text = one.text if one.factor is None and one.kind != "gradient" else ""
        groups.setdefault((one.kind, one.step, factor, one.ranks, text), []).append(one)
    for same in groups.values():
        first, more = same[0], len(same) - 1
        what = {"gradient": "the gradient of ", "norm": "the norm ", "samples": "", "skipped": "", "settings": ""}
        subject = f"{what.get(first.kind, '')}{first.name}"
        if more:
            subject = f"{subject} and of {more} more" if first.kind == "gradient" else f"{subject} and {more} more"
        subject += ":" * (first.kind in ("weight", "update", "apart"))
        ranks = f" (ranks {', '.join(map(str, first.ranks))})" if first.ranks and first.kind != "samples" else ""
        if first.kind == "samples":
            subject = f"ranks {', '.join(map(str, first.ranks))}"
        step = f" in step {first.step + 1}" if first.kind != "samples" else ""
        yield Difference(
            text=f"{subject} {first.text}{ranks}{step}".strip().replace("  ", " "),
            parameters=[one.name for one in same if one.name],
            step=max(first.step, 0),
            factor=first.factor,
            lines=list(first.lines),
        )
