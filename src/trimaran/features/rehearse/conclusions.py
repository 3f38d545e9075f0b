"""From the records of rehearsed ranks to what is said of the script.

records ─┬─ memory of each rank ─▶ fits, or the first line without room ─┐
         ├─ agreement ───────────▶ alike, or the lines that differ ──────┼─▶ the worst is the verdict
         ├─ how each ended ──────▶ an exception, a status, a limit ──────┘
         └─ time ────────────────▶ the step on the target cluster
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import msgspec

from trimaran.base.errors import InputError
from trimaran.base.files import given, is_file
from trimaran.base.remedies import MemoryHelp
from trimaran.base.secrets import without_secrets
from trimaran.base.signals import signal_name
from trimaran.base.units import format_bytes, format_count, format_seconds
from trimaran.features.rehearse.runs import Question, Rehearsed
from trimaran.pricing.analytical.step_time import host_update_seconds
from trimaran.program.types import Program
from trimaran.rehearsal.agreement import AgreementReport, agree
from trimaran.rehearsal.kinds import describe_place
from trimaran.rehearsal.launch import EndedRank
from trimaran.rehearsal.memory import RehearsedMemory, Story, first_short, read_memory
from trimaran.rehearsal.one_model import apart
from trimaran.rehearsal.prices import RehearsalCalibration
from trimaran.rehearsal.record import Frame, Issue, Record, Run
from trimaran.rehearsal.remedies import Change, host_update, memory_remedies
from trimaran.rehearsal.replay import last_steps, step_ends
from trimaran.rehearsal.time import StepTime, calibration_from_profile, seconds_of_step, step_time
from trimaran.report.rehearsal import (
    InventedValue,
    Rehearsal,
    RehearsedCollectives,
    RehearsedRank,
    RehearsedStep,
    Side,
    Trouble,
    Verdict,
)
from trimaran.report.trace import write_trace
from trimaran.simulator.allocator import Settings

ORDER: Sequence[Verdict] = ("failed", "disagree", "hang", "out of memory", "not trained", "not sure", "fits")
"""Verdicts, the worst first: what happens before the others can be judged."""

_AFTER_A_FAILURE = frozenset({"alone", "steps", "ended", "deadlock", "wait"})
"""Findings that follow where a rank has failed, and say nothing in addition."""

_WAITING = re.compile(r"TimeoutError: rank \d+ waits for an object")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")

_MOST_NAMED = 4
_MOST_PRINTED_LINES = 6
_MOST_TROUBLES = 5
_MOST_REMEDIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What was found, and the step that its figures are of.

    Attributes:
        rehearsal: what is told
        step: with its timeline; None: no step could be timed
        grows: whether steps left memory behind
    """

    rehearsal: Rehearsal
    step: StepTime | None
    grows: bool

    def write_trace(self, path: Path) -> None:
        """Write the timeline of the step for a trace viewer.

        Args:
            path: of the file

        Raises:
            InputError: no step could be timed
            EnvironmentProblem: it cannot be written there
        """
        if self.step is None:
            raise InputError(
                f"{path} was not written: no step could be timed; {self.rehearsal.headline}", code="rehearse.no-trace"
            )
        write_trace(path, Program(ranks=(), segments=0, microbatches=1), self.step.timeline)


def conclude(question: Question, rehearsed: Rehearsed, *, took_s: float) -> Conclusion:
    """What the records of rehearsed ranks say of the script.

    Args:
        question: what was rehearsed
        rehearsed: its ranks
        took_s: that this took [s]
    """
    records = rehearsed.records
    settings = Settings.parse(question.allocator or next((one.allocator for one in records if one.allocator), ""))
    memories = {record.rank: read_memory(record, settings=settings) for record in records}
    stands = Counter(rehearsed.representatives.values())
    ranks = [
        _rank(run, memories[run.request.rank], describe_place(run.request.rank, rehearsed.axes), stands)
        for run in rehearsed.runs
    ]
    agreement = agree(records, rehearsed.representatives) if len(records) > 1 else None
    parted = agreement is not None and not agreement.ok
    # Where ranks part, one that waits for another's object fails of that.
    failed = [run for run in rehearsed.runs if not (parted and _WAITING.search(run.record.end.text))]
    troubles = list(_failures(failed, len(rehearsed.runs), _folder(question)))
    has_failed = bool(troubles)
    troubles += _disagreements(agreement, has_failed=has_failed) if agreement is not None else ()
    if not troubles:
        troubles += [*_separate(records, _folder(question)), *_on_one_device(records, _folder(question))]
    troubles += _shortages(memories, _folder(question))
    if not troubles:
        troubles += _untrained(ranks, records) or _unused(records) or _unsure(memories)
    troubles.sort(key=lambda trouble: ORDER.index(trouble.verdict))
    verdict: Verdict = troubles[0].verdict if troubles else "fits"
    # Of a script that does not get through its steps there is no time of one.
    runs = verdict in ("fits", "not sure", "out of memory")
    factors, corrected = _factors(question, rehearsed)
    timed, no_time = _timed(question, rehearsed, factors) if runs else (None, [])
    step = None if timed is None else _step(timed)
    rehearsal = Rehearsal(
        verdict=verdict,
        headline=_headline(verdict, question, memories, troubles, step, records),
        script=without_secrets(question.command),
        world=question.target.world,
        cluster=question.target.name,
        device=question.target.device.title,
        per_node=question.target.per_node,
        memory_bytes=question.target.gpu.memory_bytes,
        ranks=ranks,
        troubles=troubles[:_MOST_TROUBLES],
        remedies=_remedies(question, rehearsed, memories, settings, verdict, factors),
        agreement=_agreement_line(agreement, question.target.world),
        collectives=_collectives(records, timed.timed if timed is not None else 1),
        step=step,
        invented=_invented(records),
        notes=[*_notes(question, rehearsed, agreement, memories), *no_time, *corrected],
        calibration=None if factors is None else msgspec.to_builtins(factors),
        printed=_printed(rehearsed.runs, troubles),
        took_s=took_s,
        options=question.options,
    )
    return Conclusion(rehearsal=rehearsal, step=timed, grows=any(one.growth for one in memories.values()))


# ---------------------------------------------------------------------------------------------------------------------
# Ranks


def _rank(run: EndedRank, memory: RehearsedMemory, place: str, stands: Mapping[int, int]) -> RehearsedRank:
    record = run.record
    return RehearsedRank(
        rank=run.request.rank,
        place=place,
        stands_for=stands.get(run.request.rank, 1),
        ended=_ended(run),
        status=record.end.status,
        steps=len(step_ends(record)),
        allocated_bytes=memory.peak.allocated,
        reserved_bytes=memory.reserved,
        room_bytes=memory.fit.room,
        parts_bytes=dict(memory.peak.purposes.items()),
        kept_bytes=dict(memory.kept.items()),
        peak_line=_peak_line(memory),
        host_s=record.host_s or run.seconds,
        host_bytes=record.host_bytes,
    )


def _peak_line(memory: RehearsedMemory) -> str:
    return "" if memory.peak.line is None else frame_text(memory.peak.line)


def _ended(run: EndedRank) -> str:
    end = run.record.end
    count = len(step_ends(run.record))
    steps = f" after {format_count(count, 'step')}" if count else ""
    seconds = f"{run.seconds:.0f} s"
    words = {
        "finished": f"its script ended{steps}",
        "steps": f"stopped{steps}, as asked",
        "seconds": f"stopped after {seconds}, as its time was over{f', and {count} steps' if count else ''}",
        "exit": f"left with status {end.status}{steps}{f', after {end.text}' if end.text else ''}",
        "error": end.text,
        "invented": end.text,
        "killed": f"its process {_process_end(run.status)}{f'; it said last: {end.text}' if end.text else ''}",
    }
    return words[end.how]


def _process_end(status: int) -> str:
    return f"was ended by {signal_name(-status)}" if status < 0 else f"ended with status {status}"


def frame_text(frame: Frame) -> str:
    """A line of the user's, such as "train.py:41 in main"."""
    inside = "" if frame.function in ("", "<module>") else f" in {frame.function}"
    return f"{frame.file}:{frame.line}{inside}"


def lines_text(record: Record, lines: int) -> list[str]:
    """A stack of the user's lines, innermost first."""
    return [frame_text(frame) for frame in record.lines[lines]] if 0 <= lines < len(record.lines) else []


# ---------------------------------------------------------------------------------------------------------------------
# What is wrong


def _folder(question: Question) -> Path:
    """In which the user's own files are."""
    return given(Path()) if question.is_module else given(Path(question.script)).parent


def _own_line(lines: Sequence[str], folder: Path) -> str:
    """The innermost line in the user's own files, else the innermost at all, as " at train.py:41"; "" without any."""
    places = [line.partition(" in ")[0] for line in lines]
    own = (place for place in places if is_file(folder / place.rpartition(":")[0]))
    found = next(own, places[0] if places else "")
    return f" at {found}" if found else ""


def _failures(runs: Sequence[EndedRank], rehearsed: int, folder: Path) -> Iterator[Trouble]:
    """Ranks that failed, those with the same error together."""
    found: dict[tuple[str, tuple[str, ...]], list[EndedRank]] = {}
    for run in runs:
        end = run.record.end
        failed = end.how in ("error", "invented", "killed") or (end.how == "exit" and end.status != 0)
        # What the lack of memory raises is told with its blocks.
        if failed and not end.text.startswith("OutOfMemoryError"):
            text = end.text if end.how in ("error", "invented") else _ended(run)
            found.setdefault((text, tuple(lines_text(run.record, end.lines))), []).append(run)
    for (text, lines), failed_runs in found.items():
        first = failed_runs[0].request.rank
        who = f"rank {first}" if len(failed_runs) == 1 else f"{len(failed_runs)} of {rehearsed} rehearsed ranks"
        where = _own_line(lines, folder)
        help_: tuple[str, ...] = ()
        missing = _MISSING.search(text)
        if missing is not None:
            help_ = (f"install {missing[1]} where Trimaran is installed: a rehearsed rank imports it as a real one",)
        yield Trouble(
            verdict="failed",
            text=f"{who} {'fails' if len(failed_runs) == 1 else 'fail'}{where}: {text}"
            f"{_after_invented(failed_runs[0].record)}",
            sides=(Side(rank=first, text="", lines=lines),),
            help=help_,
        )


def _after_invented(record: Record) -> str:
    """What was invented for a function that was at work when a rank ended, the last of it, as " (after …)"."""
    at_work = record.lines[record.end.lines] if record.end.lines > 0 else ()
    places = {(frame.file, frame.function) for frame in at_work}
    for one in reversed(record.invented):
        frames = record.lines[one.lines]
        if frames and (not places or any((frame.file, frame.function) in places for frame in frames[:1])):
            return f" (after an invented value: {one.what} {one.value} of {one.asked} at {frame_text(frames[0])})"
    return ""


def _disagreements(agreement: AgreementReport, *, has_failed: bool) -> Iterator[Trouble]:
    for one in agreement.findings:
        if has_failed and one.kind in _AFTER_A_FAILURE:
            continue
        yield Trouble(
            verdict="hang" if one.kind == "deadlock" else "disagree",
            text=one.text,
            sides=[
                Side(rank=side.ranks[0], text=side.text, lines=[frame_text(frame) for frame in side.lines])
                for side in one.sides
            ],
            help=(one.remedy,) if one.remedy else (),
        )


def _separate(records: Sequence[Record], folder: Path) -> Iterator[Trouble]:
    """Ranks that train a model each."""
    found = apart(records)
    if found is not None:
        lines, world = [frame_text(frame) for frame in found.lines], records[0].world
        when = f" in the last {found.since} steps" if found.since else _so_far(records)
        names = ", ".join(found.parameters[:_MOST_NAMED]) + (", …" if len(found.parameters) > _MOST_NAMED else "")
        if len(found.parameters) < found.trained:
            text = (
                f"rank {found.rank} trains {len(found.parameters)} of {found.trained} parameters apart from rank "
                f"{found.other}: no collective with it has touched their gradients since the last backward, or "
                f"themselves{when}, where they are updated{_own_line(lines, folder)}: {names}"
            )
        else:
            whom = "none" if found.models == world else f"rank {found.rank} never"
            other = "another one" if found.models == world else f"rank {found.other}"
            text = (
                f"{world:,} ranks would train {found.models:,} models: {whom} gives {other} its gradients or weights"
                f"{when}; they update them{_own_line(lines, folder)}"
            )
        yield Trouble(
            verdict="disagree",
            text=text,
            sides=(Side(rank=found.rank, text=f"updates {names}" if names else "updates its own model", lines=lines),),
            help=(
                "wrap the model in DistributedDataParallel or fully_shard, and let the last backward before each step "
                "synchronise; where ranks meet every k-th step, rehearse more of them (--steps)",
            ),
        )


def _on_one_device(records: Sequence[Record], folder: Path) -> Iterator[Trouble]:
    """Ranks of a node that take the same device; nodes are alike."""
    by_place = {record.rank % record.per_node: record for record in reversed(records)}
    for (one, first), (other, second) in combinations(sorted(by_place.items()), 2):
        shared = sorted(first.devices.keys() & second.devices.keys())
        if not shared:
            continue
        sides = [
            Side(
                rank=record.rank,
                text=f"rank {record.rank}, number {place} of its node, on cuda:{shared[0]}",
                lines=lines_text(record, record.devices[shared[0]]),
            )
            for place, record in ((one, first), (other, second))
        ]
        yield Trouble(
            verdict="disagree",
            text=f"ranks {one} and {other} of a node would share one device, cuda:{shared[0]}, which NCCL refuses"
            f"{_own_line(sides[1].lines, folder)}",
            sides=sides,
            help=('call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything is on a device',),
        )
        return


def _shortages(memories: Mapping[int, RehearsedMemory], folder: Path) -> Iterator[Trouble]:
    """The rank that runs out of memory first, and where; the one whose memory grows fastest."""
    grown = [(one.growth, one) for one in memories.values() if one.growth is not None]
    if grown:
        growth, memory = max(grown, key=lambda pair: pair[0].nbytes)
        lines = [frame_text(frame) for frame in growth.lines]
        most = _own_line([frame_text(frame) for frame in growth.most], folder)
        yield Trouble(
            verdict="out of memory",
            text=f"memory of rank {memory.rank} grows by {format_bytes(growth.nbytes)} a step, as what is made"
            f"{_own_line(lines, folder)} is kept, and is full in step {growth.full:,}",
            sides=(
                Side(
                    rank=memory.rank,
                    text=f"{format_bytes(memory.reserved)} of {format_bytes(memory.fit.room)} after "
                    f"{len(memory.steps)} steps{f'; most of it is made{most}' if most else ''}",
                    lines=lines,
                ),
            ),
            help=("keep numbers (loss.item()) or tensors without their graph (loss.detach()) from step to step",),
        )
    short = [one for one in memories.values() if one.fit.verdict == "does not fit"]
    found = first_short(short)
    if found is not None:
        lines = [frame_text(frame) for frame in found.lines]
        module = f" of {found.module}" if found.module else ""
        yield Trouble(
            verdict="out of memory",
            text=f"rank {found.rank} has no room for {format_bytes(found.asked)} in the {found.at.part}{module}"
            f"{_own_line(lines, folder)}",
            sides=(
                Side(
                    rank=found.rank,
                    text=f"{format_bytes(found.at.allocated)} of {format_bytes(found.room)} were allocated, in step "
                    f"{found.at.step}",
                    lines=lines,
                ),
            ),
        )
    elif short:
        one = short[0]
        yield Trouble(verdict="out of memory", text=f"rank {one.rank}: {one.fit.why}", sides=())


def _unsure(memories: Mapping[int, RehearsedMemory]) -> list[Trouble]:
    unsure = [one for one in memories.values() if one.fit.verdict == "not sure"]
    if not unsure:
        return []
    tightest = min(unsure, key=lambda one: one.fit.margin)
    return [Trouble(verdict="not sure", text=f"rank {tightest.rank}: {tightest.fit.why}", sides=())]


def _remedies(
    question: Question,
    rehearsed: Rehearsed,
    memories: Mapping[int, RehearsedMemory],
    settings: Settings,
    verdict: Verdict,
    factors: RehearsalCalibration | None,
) -> Sequence[MemoryHelp]:
    """What would help the rank that is short of most memory; for its step all do it whose calls are others than its."""
    if verdict not in ("out of memory", "not sure") or any(one.growth for one in memories.values()):
        return []
    record = min(rehearsed.records, key=lambda one: memories[one.rank].fit.margin)
    if memories[record.rank].fit.margin > 0 and verdict == "not sure":
        return []
    machine, per_node = question.target.machine, question.target.per_node
    others = [Story(one) for one in rehearsed.records if _calls(one) != _calls(record)]
    there = {record.rank, *(story.record.rank for story in others)}
    kinds = {rank: one if one in there else record.rank for rank, one in rehearsed.representatives.items()}

    def step_then(change: Change, changed: Record, on_host: bool) -> float | None:
        try:
            every = [changed, *map(change, others)]
            seconds = seconds_of_step(every, machine, kinds=kinds, calibration=factors)
            if on_host:
                each = {one.rank: host_update(one) for one in rehearsed.records}
                seconds += max(
                    count * host_update_seconds(machine, ranks=per_node, gradient_bytes=nbytes)
                    for count, nbytes in each.values()
                )
        except InputError:
            return None
        return seconds

    helps = memory_remedies(record, settings=settings, step_then=step_then, host_room=machine.node.host_room(per_node))
    return helps[:_MOST_REMEDIES]


def _calls(record: Record) -> list[tuple[str, int]]:
    """What a rank asks of others, by which ranks that differ in their shards alone are alike."""
    return [(one.operation, one.nbytes) for one in record.collectives]


def _untrained(ranks: Sequence[RehearsedRank], records: Sequence[Record]) -> list[Trouble]:
    if any(one.steps for one in ranks):
        updates = any(type(event) is Run and event.part == "update" for one in records for event in one.events)
        if updates or any(one.updates for one in records) or _unused(records):
            return []
        return [
            Trouble(
                verdict="not trained",
                text="no parameter has a gradient where the optimizer steps, so that nothing is updated",
                sides=(),
                help=(
                    "give the optimizer the parameters that the backward reaches, and let the last backward before a "
                    "step synchronise (set_requires_gradient_sync)",
                ),
            )
        ]
    return [
        Trouble(
            verdict="not trained",
            text=f"no rank took a step of an optimizer: {ranks[0].ended}{_after_invented(records[0])}",
            sides=(),
        )
    ]


def _unused(records: Sequence[Record]) -> list[Trouble]:
    """Ranks that train, none of them on its device."""
    if any(type(event) is Run and event.part != "setup" for one in records for event in one.events):
        return []
    return [
        Trouble(
            verdict="not trained",
            text="no rank asked its device to compute anything in a step: it trains on the host, so neither its memory "
            "nor its step on the cluster can be said",
            sides=(),
            help=('move model and batches there, as by .to("cuda"), or give the option of the script that does',),
        )
    ]


def _agreement_line(agreement: AgreementReport | None, world: int) -> str:
    if agreement is None:
        return "" if world == 1 else "Agreement: one rank was rehearsed, so that nothing could be compared"
    if not agreement.calls:
        return "Agreement: nothing could be compared, as no group has two rehearsed members that ask for something"
    calls = "1 call" if agreement.calls == 1 else f"{agreement.calls:,} calls"
    groups = f"{format_count(agreement.groups, 'group')} and " if agreement.groups else ""
    among = f"{calls} of {groups}{format_count(len(agreement.ranks), 'rank')}"
    if agreement.ok:
        return f"Agreement: {among} were compared, and all agree; gradients, weights and data were not compared"
    return f"Agreement: {format_count(len(agreement.findings), 'difference')} in {among}"


# ---------------------------------------------------------------------------------------------------------------------
# The step


def _factors(question: Question, rehearsed: Rehearsed) -> tuple[RehearsalCalibration | None, list[str]]:
    """Factors on the modelled times, and what is to say of them."""
    if question.calibration is not None:
        return question.calibration, [f"times of the step: modelled, {question.calibration.source}"]
    if question.measured_s is not None:
        return _of_step(question, rehearsed, question.measured_s)
    if question.profile is None:
        return None, []
    record = next((record for record in rehearsed.records if step_ends(record)), None)
    if record is None:
        return None, [f"{question.profile.source} was not used: the script took no step"]
    found = calibration_from_profile(question.profile, record, question.target.machine)
    return found, [f"times of the step: modelled, {found.source}"]


def _of_step(
    question: Question, rehearsed: Rehearsed, measured_s: float
) -> tuple[RehearsalCalibration | None, list[str]]:
    """One factor on kernels and on the host, by which the modelled step takes as long as a measured one."""
    timed, notes = _timed(question, rehearsed, None)
    if timed is None:
        return None, notes or ["the measured step was not used: the script took no step"]
    modelled_s = timed.step.seconds
    factor = measured_s / modelled_s
    found = RehearsalCalibration(
        others=factor,
        host=factor,
        source=f"corrected by a measured step: {format_seconds(measured_s)}, {format_seconds(modelled_s)} modelled",
        device=question.target.device.name,
    )
    return found, [f"times of the step: modelled, {found.source}"]


def _timed(
    question: Question, rehearsed: Rehearsed, factors: RehearsalCalibration | None
) -> tuple[StepTime | None, list[str]]:
    """The step on the target cluster, or why there is none."""
    timed = [record for record in rehearsed.records if step_ends(record)]
    if len(timed) < len(rehearsed.records) or not timed:
        return None, []
    try:
        return step_time(timed, question.target.machine, kinds=rehearsed.representatives, calibration=factors), []
    except InputError as error:
        return None, [f"the step could not be timed: {error.message}"]


def _step(timed: StepTime) -> RehearsedStep:
    parts = timed.parts
    names = {
        "compute": parts.compute_s,
        "waiting for the host (launches)": parts.launches_s,
        "exposed communication": parts.communication_s,
        "waiting for other ranks (bubble)": parts.bubble_s,
        "slowest rank": parts.slowest_s,
    }
    return RehearsedStep(
        seconds=timed.step.seconds,
        interval_s=(timed.step.low, timed.step.high),
        parts_s=names,
        mfu=timed.mfu or None,
        peak=timed.peak,
        rank=timed.ranks[timed.critical].rank,
        notes=list(timed.notes),
    )


# ---------------------------------------------------------------------------------------------------------------------
# What else is told


def _headline(
    verdict: Verdict,
    question: Question,
    memories: Mapping[int, RehearsedMemory],
    troubles: Sequence[Trouble],
    step: RehearsedStep | None,
    records: Sequence[Record],
) -> str:
    name = question.script.rsplit("/", 1)[-1]
    target = f"{question.target.world:,} × {question.target.device.title}"
    if verdict in ("fits", "not sure"):
        most = min(memories.values(), key=lambda one: one.fit.margin)
        used = f"{format_bytes(most.reserved)} of {format_bytes(most.fit.room)} at most (rank {most.rank})"
        head = f"{name} fits {target}" if verdict == "fits" else f"{name}: not sure whether it fits {target}"
        agreed = f", calls of ranks agree{_so_far(records)}" if len(memories) > 1 else ""
        took = "" if step is None else f", {format_seconds(step.seconds)} a step"
        return f"{head}: {used}{agreed}{took}"
    words = {
        "out of memory": "runs out of memory",
        "disagree": "is wrong",
        "hang": "hangs",
        "failed": "fails",
        "not trained": "does not train",
    }
    return f"{name} {words[verdict]} on {target}: {troubles[0].text}"


def _so_far(records: Sequence[Record]) -> str:
    """Of which steps that is known, where scripts would have gone on."""
    if all(record.end.how not in ("steps", "seconds") for record in records):
        return ""
    steps = min(len(step_ends(record)) for record in records)
    return " in the first step" if steps == 1 else f" in the first {steps} steps"


def _collectives(records: Sequence[Record], timed: int) -> list[RehearsedCollectives]:
    """Collectives of a step of the rank that asks for most: of the last whole one, or the mean of those timed."""
    best: list[RehearsedCollectives] = []
    for record in records:
        if not step_ends(record):
            continue
        counts: Counter[tuple[str, str]] = Counter()
        nbytes: Counter[tuple[str, str]] = Counter()
        for event in last_steps(record, timed).last:
            if type(event) is Issue:
                one = record.collectives[event.collective]
                counts[one.operation, one.group] += 1
                nbytes[one.operation, one.group] += one.nbytes
        found = [
            RehearsedCollectives(
                rank=record.rank,
                operation=operation,
                group=_group_name(record, group),
                ranks=len(record.groups[group].ranks) if group in record.groups else record.world,
                count=count // timed if count % timed == 0 else round(count / timed, 2),
                nbytes=nbytes[operation, group] // timed,
            )
            for (operation, group), count in sorted(counts.items(), key=lambda one: -nbytes[one[0]])
            if group not in record.groups or len(record.groups[group].ranks) > 1
        ]
        if sum(one.nbytes for one in found) > sum(one.nbytes for one in best):
            best = found
    return best


def _group_name(record: Record, group: str) -> str:
    known = record.groups.get(group)
    if known is None or len(known.ranks) == record.world:
        return "all ranks"
    name = known.description.removeprefix("mesh_")
    ranks = known.ranks
    shown = ", ".join(map(str, ranks)) if len(ranks) <= 3 else f"{ranks[0]}, {ranks[1]} … {ranks[-1]}"
    return name if name and name != "undefined" else shown


def _invented(records: Sequence[Record]) -> list[InventedValue]:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for record in records:
        for one in record.invented:
            line = (lines_text(record, one.lines) or [""])[0].partition(" in ")[0]
            counts[one.what, one.asked, one.value, line] += one.count
    return [
        InventedValue(what=what, asked=asked, value=value, line=line, count=count)
        for (what, asked, value, line), count in counts.most_common()
    ]


def _notes(
    question: Question, rehearsed: Rehearsed, agreement: AgreementReport | None, memories: Mapping[int, RehearsedMemory]
) -> Iterator[str]:
    yield from question.target.notes
    yield from rehearsed.notes
    for run in rehearsed.runs:
        if run.record.end.how == "seconds" and step_ends(run.record):
            yield f"rank {run.request.rank}: {_ended(run)}; --limit gives it more"
    to_come = max(record.to_come for record in rehearsed.records)
    if any(record.end.how == "steps" and len(step_ends(record)) < to_come for record in rehearsed.records):
        yield (
            f"the script says that it takes {to_come:,} steps, by its loader or its schedule: their end, with what is "
            f"saved there and where ranks have uneven batches, is rehearsed with --steps {to_come}"
        )
        said = {record.to_come: record.rank for record in rehearsed.records if record.to_come}
        if len(said) > 1:
            least = min(said)
            yield (
                f"ranks say different numbers of steps by their loaders or schedules: rank {said[least]} {least:,}, "
                f"rank {said[to_come]} {to_come:,}; where each step exchanges, the last of them wait for ranks that "
                "have ended"
            )
    most = max(memories.values(), key=lambda memory: memory.reserved)
    later = most.steps[1:]  # the first step has what comes before it, too
    if most.peak.part == "setup" and most.peak.allocated and later:
        at = _peak_line(most)
        yield (
            f"rank {most.rank} allocates most before its first step{f', at {at}' if at else ''}: "
            f"{format_bytes(most.peak.allocated)}; its later steps {format_bytes(max(later))} at most"
        )
    again = max(memories.values(), key=lambda memory: memory.retries)
    if again.retries:
        yield (
            f"rank {again.rank} fits as its allocator gives free segments back to the device "
            f"{format_count(again.retries, 'time')}, which the step's time leaves out; without a limit it would "
            f"reserve {format_bytes(again.unlimited)}. --alloc-conf rehearses with other settings of the allocator"
        )
    texts: set[str] = set()
    for text in (
        *(note for record in rehearsed.records for note in record.notes),
        *(note for memory in memories.values() for note in memory.notes),
        *(one.text for one in (agreement.unsure if agreement is not None else ())),
    ):
        if text not in texts:
            texts.add(text)
            yield text


def _printed(runs: Sequence[EndedRank], troubles: Sequence[Trouble]) -> list[str]:
    """The last lines of rank 0, or of the rank that is told first; of one that raised, its exception is told."""
    wanted = troubles[0].sides[0].rank if troubles and troubles[0].sides else runs[0].request.rank
    run = next((run for run in runs if run.request.rank == wanted), runs[0])
    if run.record.end.how in ("error", "invented"):
        return []
    lines = [line.rstrip() for line in run.printed.splitlines() if line.strip()]
    return lines[-_MOST_PRINTED_LINES:]
