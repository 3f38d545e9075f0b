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
from trimaran.rehearsal.real.one_process import (
    NO_PART,
    NOISE,
    ProcessComparison,
    ProcessDifference,
    differ,
    unlike_settings,
)
from trimaran.rehearsal.real.slopes import Direction, apart, factors, skipped
from trimaran.rehearsal.real.watch import (
    DEVICES,
    FOUND,
    MOVED,
    ONE_BY_ONE,
    ROLLED,
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
        if per_node is None and local < world and not _train_together(place, runs):
            # A script of one node, which fails on two, or trains with as many devices as it sees.
            one_node = _run(asked, folder / "node", world, asked.steps, range(world), progress)
            if _train_together(folder / "node", one_node):
                runs, place, local = one_node, folder / "node", world
        keep_logs(runs, None if logs is None else Path(logs))
        one = asked if alone is None else replace(asked, arguments=tuple(alone))
        found = _judge(one, place, local, runs, progress)
        if not found.findings and not found.reason and (same := _same_ranks([*_all_seen(place, runs)])):
            if _fits_other_numbers(asked, one, folder / ROLLED, local, progress):
                found.replaced.append("random numbers once more in another order on each rank")
            else:
                found.reason = f"ranks {', '.join(map(str, same))} {_SAME}: a missing exchange cannot show"
        if (found.reason or found.missed) and not found.findings:
            parts = {name for name, reason in found.missed.items() if reason == NO_PART}
            found.findings = _among_ranks(asked, place, runs, local, parts, progress)
        if any(one.kind == "gradient" and one.ranks for one in found.findings):
            ran = _run(asked, folder / "long", local, _LONG, range(world), progress)
            long = list(_all_seen(folder / "long", ran))
            if len(long) == world and (together := _come_together(long)):
                found.findings = [one for one in found.findings if one.kind in _OF_RANKS] + unlike_settings(long)
                found.findings += _taken_over(long, together)
                found.reason = _APART
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


_SAME = "get the same, and compute the same from first to last"

_OF_RANKS = {"samples", "skipped", "weight"}
"""Kinds of what is wrong with ranks that train apart for some steps, too."""

_UNWATCHED = "samples come from neither a DataLoader nor random numbers of torch, and one process has those of one rank"

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
    first = {(" ".join(one.rounds[0].weights), one.first) for one in known}
    if not any(one.batches or one.draws for one in known) and len(first) > len({names for names, _ in first}):
        return ProcessComparison(findings=among, reason=_UNWATCHED)
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


def _fits_other_numbers(asked: Question, one: Question, folder: Path, local: int, progress: Progress) -> bool:
    """Whether ranks train the model of one process, or on a multiple of its loss, with other random numbers on each.

    A loss that is a sum of a rank's samples is a multiple; another factor shows where all have the same numbers.
    """
    folder.mkdir()
    (folder / ROLLED).touch()
    runs = _run(asked, folder, local, asked.steps, range(asked.target.world), progress)
    found = _judge(one, folder, local, runs, progress)
    fit = all(difference.kind in ("gradient", "norm") and difference.factor for difference in found.findings)
    of_loss = [difference.factor or 1.0 for difference in found.findings] or [1.0]
    known = found.gradients and not found.missed and not found.reason
    return bool(known and fit and max(of_loss) < 1.01 * min(of_loss) and not _same_ranks([*_all_seen(folder, runs)]))


def _among_ranks(
    asked: Question, folder: Path, runs: Sequence[EndedRank], local: int, parts: Collection[str], progress: Progress
) -> list[ProcessDifference]:
    """What ranks show where one process cannot be compared."""
    seen = list(_all_seen(folder, runs))
    if len(seen) < len(runs):
        return []
    number = itertools.count()

    def moved(direction: Direction) -> list[WatchedRank] | None:
        place = folder.parent / f"moved{next(number)}"
        place.mkdir()
        (place / MOVED).write_bytes(pickle.dumps(direction))
        ran = _run(asked, place, local, 1, range(len(runs)), progress)
        again = [one for one in _all_seen(place, ran) if one.rounds]
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


def _all_seen(folder: Path, runs: Sequence[EndedRank]) -> Iterator[WatchedRank]:
    return (seen for run in runs if (seen := _seen(folder, run)) is not None)


_LOST = "Connection closed by peer"


def _trains(seen: WatchedRank | None) -> bool:
    return seen is not None and bool(seen.rounds) and bool(seen.rounds[0].updates)


def _train_together(folder: Path, runs: Sequence[EndedRank]) -> bool:
    seen = [_seen(folder, run) for run in runs]
    return all(one is not None and _trains(one) and one.world == len(runs) for one in seen)


def _failed(run: EndedRank) -> bool:
    return run.record.end.how in ("error", "killed", "seconds", "invented") or run.record.end.status != 0


def _same_ranks(seen: Sequence[WatchedRank]) -> list[int]:
    """Ranks that have the same inputs and weights, so that they compute the same; none: no two."""
    ranks: dict[str, list[int]] = {}
    for rank, one in enumerate(seen if all(map(_trains, seen)) else ()):
        # Modules of the same weights with the same inputs compute the same; what a DTensor shards is whole by then.
        weights = (digest_of(share.values) for share in one.rounds[0].weights.values() if share.offset is None)
        ranks.setdefault(" ".join((one.inputs, *weights)), []).append(rank)
    return max((same for same in ranks.values() if len(same) > 1), key=len, default=[])


def _same_samples(seen: Sequence[WatchedRank]) -> list[ProcessDifference]:
    """Ranks that train on the same samples, or on samples that others have too."""
    same = _same_ranks(seen)
    if same and seen[same[0]].batches:  # scripts that only take times draw the same numbers on all ranks
        return [_of_samples(seen, same, f"train on the same samples: they {_SAME}")]
    for loader in seen[0].batches if all(map(_trains, seen)) else ():
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


def _come_together(seen: Sequence[WatchedRank]) -> int:
    """The round before which weights that ranks have trained apart are the same again; 0: none."""
    parted = False
    for number, rounds in enumerate(zip(*(one.rounds for one in seen), strict=False)):
        alike = all(
            name in other.weights and not differ(share.values, other.weights[name].values, 1e-5)
            for other in rounds[1:]
            for name, share in rounds[0].weights.items()
        )
        if parted and alike:
            return number
        parted = parted or not alike
    return 0


def _taken_over(seen: Sequence[WatchedRank], number: int) -> list[ProcessDifference]:
    """Ranks whose weights, once they are the same again, are those of one rank that others have taken over."""
    lost = [
        rank
        for rank, one in enumerate(seen)
        if any(digest_of(share.values) != one.rounds[number - 1].left.get(name)
               for name, share in one.rounds[number].weights.items())
    ]  # fmt: skip
    if not lost or len(lost) == len(seen):
        return []
    text = "take over the weights of another one, and what they trained is lost"
    return [ProcessDifference(kind="samples", name="", step=number - 1, text=text, ranks=tuple(lost))]


def _told(asked: Question, runs: Sequence[EndedRank], found: ProcessComparison, seconds: float) -> Verification:
    world, steps = asked.target.world, found.steps
    unknown = [*found.missed, *(name for name, reason in found.void.items() if reason != NOISE)]
    missed: dict[str, list[str]] = {}
    for name, reason in (*found.missed.items(), *found.void.items()):
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
    elif unknown or not found.gradients + found.changes:
        verdict = "not known"
        lacking = format_count(len(unknown or found.void), "parameter")
        headline = f"whether {world} ranks train one model is not known: {lacking} could not be compared"
        if not unknown + list(found.void):
            headline = f"{world} ranks train nothing that could be compared: no step of an optimizer"
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
