"""Choose how ranks get their data, after the search for strategies.

    minimise    simulated time of strategy s with feeding f; kept samples are read in the first of E epochs only:
                (first + (E - 1) later) / E
    over        s among the few best where loads are only handed over; f: workers w, samples kept or read each time
    subject to  workers and kept samples fit the memory that the ranks leave; no more workers than the cores allow;
                samples are kept only if they repeat, bit for bit; f violates no pin

A step that loads in line is searched as it is (`search.py`). Where the share of loading exceeds the model's error, the
same space is searched again with loads that cost a hand-over: a strategy that was slow because a rank loaded much may
now be best. Each of the best few then gets the least number of workers that are ahead of it (`FILLED`), and is
simulated with its remaining wait. In line wins where it may be as fast within the uncertainty; reading wins over
keeping likewise.

On a machine of the catalog (`fed_there`) data are taken to be read each time, in workers unless that is asked for
otherwise, and the search is exact: strategies are searched with their data ready, which bounds their fed steps, and fed
in that order until none that is left can be faster.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from trimaran.base.errors import InputError
from trimaran.base.units import format_bytes, format_count, format_seconds
from trimaran.planner.candidates import Candidate, Cases
from trimaran.planner.choice import MODEL_ERROR, choose, fastest, may_be_as_fast, pareto_front, simplicity
from trimaran.planner.pins import Pins
from trimaran.planner.problem import Problem, Room, reassess
from trimaran.planner.result import Search
from trimaran.planner.space import Rejection
from trimaran.pricing import input_pipeline as fed_step
from trimaran.pricing.input_pipeline import InputPipeline
from trimaran.pricing.program import loaded_microbatches, microbatch_size, price, readers_of_host
from trimaran.pricing.tables import CostTable, SampleCosts
from trimaran.program.strategy import IN_LINE, Feeding, Strategy
from trimaran.program.types import Kind

# ---------------------------------------------------------------------------------------------------------------------
# Reasons for the input pipeline of a plan, in sentences with the figures


QUICK_DATA = "data are loaded in line"
"""Begin of the sentence where loading takes too little time to matter."""


def quick_data(chosen: Candidate, handed: Candidate) -> str:
    """Loading takes too little to do it elsewhere.

    Args:
        chosen: in line
        handed: with loads that are only handed over
    """
    saved_s = max(0.0, chosen.step_time_s - handed.step_time_s)
    return (
        f"{QUICK_DATA}: workers would save at most {format_seconds(saved_s)} of a step of "
        f"{format_seconds(chosen.step_time_s)}"
    )


def workers_reason(chosen: Candidate, in_line: Candidate | None) -> str:
    """Gain of workers.

    Args:
        chosen: with workers
        in_line: the same strategy without; None: the search had no use for it
    """
    text = f"{format_count(chosen.strategy.feeding.workers, 'worker')} a rank"
    if in_line is None:
        return f"{text}: a step takes {format_seconds(chosen.step_time_s)}"
    return (
        f"{text}: a step that loads in line takes {format_seconds(in_line.step_time_s)}, fed "
        f"{format_seconds(chosen.step_time_s)}"
    )


def not_worth_it(other: Candidate, chosen: Candidate, *, mean_s: float | None = None) -> str:
    """A feeding that gives nothing beyond the uncertainty.

    Args:
        other: the best of its kind
        chosen: the simpler one that may be as fast
        mean_s: of the other, over all epochs; None: its step [s]
    """
    return (
        f"{feeding_words(other.strategy)} is not worth it: {other.strategy.name} takes "
        f"{format_seconds(other.time_s if mean_s is None else mean_s)}, {chosen.strategy.name} "
        f"{format_seconds(chosen.time_s)}"
    )


def feeding_words(strategy: Strategy) -> str:
    """The input pipeline of a strategy in words.

    Example:
        >>> from trimaran.program.strategy import Feeding
        >>> feeding_words(Strategy(feeding=Feeding(workers=2))), feeding_words(Strategy(feeding=Feeding(cached=True)))
        ('loading in 2 workers', 'keeping samples')
    """
    if strategy.feeding.cached:
        return "keeping samples"
    return f"loading in {format_count(strategy.feeding.workers, 'worker')}"


def kept_reason(
    chosen: Candidate, first: Candidate, best: Candidate, mean_s: float, samples: SampleCosts, room: Room
) -> str:
    """Gain of keeping samples.

    Args:
        chosen: steps of later epochs
        first: steps of the first epoch
        best: the best that reads samples each time
        mean_s: mean over all epochs [s]
        samples: their costs
        room: has the epochs
    """
    nbytes = format_bytes(samples.samples * samples.stored_bytes)
    return (
        f"the host keeps the samples ({nbytes}): a step takes {format_seconds(first.time_s)} in the first epoch "
        f"and {format_seconds(chosen.time_s)} later; over {room.epochs} epochs "
        f"{1.0 - mean_s / best.objective_s:.0%} less than {best.strategy.name}, which reads them each time"
    )


def not_kept(samples: SampleCosts, room: Room, *, left_bytes: float) -> str:
    """Why samples cannot be kept; empty where they may.

    Args:
        samples: whether they repeat, and how large they are
        room: has the epochs
        left_bytes: memory of the host for them [bytes]
    """
    needed = samples.samples * samples.stored_bytes
    if room.epochs < 2:
        return "each is read once"
    if not samples.repeats:
        return "they are not the same each time that they are read"
    if not samples.stored_bytes:
        return "they differ in shape, or are no tensors and numbers"
    if needed > left_bytes:
        return f"they take {format_bytes(needed)}, and the ranks leave {format_bytes(int(left_bytes))}"
    return ""


# ---------------------------------------------------------------------------------------------------------------------
# Resources of the host for workers and kept samples, and the part that the ranks leave


WORKER_BYTES = 256 * 2**20
"""Memory of a worker: an interpreter with torch, without memory shared with the parent [bytes]."""

MEMORY_SHARE = 0.5
"""Share of the memory that the ranks leave for workers and kept samples together; the rest is the system's."""


def most_workers(candidate: Candidate, samples: SampleCosts, problem: Problem) -> int:
    """Workers of a rank that the host's memory and cores allow.

    Args:
        candidate: says who reads, how much at a time, and the memory of the ranks
        samples: their costs
        problem: has the memory of the host, and its cores
    """
    if problem.room is None:
        return 0
    readers, batches = _readers(candidate), _batch_bytes(candidate, samples, problem)
    by_memory = int(_left_bytes(candidate, problem.room, problem) // ((WORKER_BYTES + batches) * readers))
    by_cores = max(1, fed_step.WORKERS_PER_CORE * problem.table.fingerprint.cores // readers)
    return min(by_memory, by_cores)


def no_room(candidate: Candidate, samples: SampleCosts, problem: Problem) -> str:
    """Why the host allows no worker; empty where it allows one.

    Args:
        candidate: as of `most_workers`
        samples: their costs
        problem: has the memory of the host
    """
    room = problem.room
    if room is None or most_workers(candidate, samples, problem):
        return ""
    readers, batches = _readers(candidate), _batch_bytes(candidate, samples, problem)
    left = format_bytes(int(_left_bytes(candidate, room, problem)))
    return (
        f"no worker has room: one for each rank that reads takes {format_bytes((WORKER_BYTES + batches) * readers)}, "
        f"and the ranks leave {left}"
    )


def obstacle(candidate: Candidate, samples: SampleCosts, problem: Problem, *, workers: int = 0) -> str:
    """Why samples cannot be kept, or need not be; empty where they may.

    Args:
        candidate: says the memory of the ranks
        samples: their costs, and whether they repeat
        problem: has the pins, the memory of the host and the epochs
        workers: of each rank that reads, for which there must be memory too
    """
    if "cache" in problem.pins.forbid:
        return "--forbid cache"
    if problem.room is None:
        return "the memory of the host is not known"
    taken = workers * _readers(candidate) * (WORKER_BYTES + _batch_bytes(candidate, samples, problem))
    left_bytes = max(0.0, _left_bytes(candidate, problem.room, problem) - taken)
    return not_kept(samples, problem.room, left_bytes=left_bytes)


def _left_bytes(candidate: Candidate, room: Room, problem: Problem) -> float:
    """Memory of the host that ranks leave for workers and kept samples [bytes]."""
    taken = sum(candidate.peak_bytes) if problem.table.fingerprint.kind == "cpu" else 0
    return MEMORY_SHARE * max(0, room.memory_bytes - taken)


def _readers(candidate: Candidate) -> int:
    """Ranks that read, also where one replica stands for all."""
    program = candidate.program
    readers = len({item.rank for item in program if item.kind == Kind.LOAD})
    return max(1, readers * candidate.strategy.devices // len(program.ranks))


def _batch_bytes(candidate: Candidate, samples: SampleCosts, problem: Problem) -> int:
    """Microbatches of a worker: ready, in progress, in transfer, and two that training has [bytes]."""
    size = microbatch_size(candidate.program, candidate.strategy, batch=problem.batch)
    return (Feeding().ahead + 3) * size * samples.sample_bytes


MOST_FED = 4
"""Strategies that are fed like the chosen one and the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedCandidate:
    """A candidate that keeps its samples, and its time averaged over the epochs."""

    candidate: Candidate
    first: Candidate
    mean: Cases


def fed(found: Search[Candidate], problem: Problem, again: Callable[[Problem], Search[Candidate]]) -> Search[Candidate]:
    """Result of a search with workers.

    Args:
        found: with loads in line
        problem: says the resources of the host
        again: searches another problem, with loads in line

    Returns:
        The search with fed candidates, perhaps another chosen one, and why in `feeding`.
    """
    step = problem.table.steps.get(problem.graph.digest)
    samples, room, pinned = None if step is None else step.samples, problem.room, problem.pins.workers
    if step is None or samples is None or room is None:
        check_not_cached(problem.pins)
        return found
    cached = problem.pins.is_cached
    handed = replace(problem, table=_handed_over(problem, samples), room=None, pins=replace(problem.pins, workers=None))
    alone = reassess(found.chosen, handed)
    if not (pinned or cached) and alone.step_time_s >= (1.0 - MODEL_ERROR) * found.chosen.step_time_s:
        return replace(found, feeding=(quick_data(found.chosen, alone),))
    others = again(handed)
    ranked = sorted(others.candidates, key=lambda one: (one.objective_s, simplicity(one.strategy)))
    # The baseline is not among the candidates where it violates a pin.
    plain = [reassess(found.baseline, handed)] if any(one is found.baseline for one in found.candidates) else []
    tried = list({one.strategy: one for one in (alone, *plain, *ranked[:MOST_FED])}.values())
    in_line = [] if pinned else [*found.candidates, *_in_line(tried, found, problem)]
    read = [_with(one, feeding, problem) for one in tried for feeding in _feedings(one, samples, problem, pinned)]
    best = choose([*in_line, *read])
    kept = min(_kept(tried, read, samples, problem), key=lambda one: one.mean[1], default=None)
    if cached and kept is None:
        raise _not_cached(problem.pins, obstacle(alone, samples, problem, workers=pinned or 0))
    is_kept = kept is not None and (cached or not may_be_as_fast(best.cases, kept.mean))
    chosen = kept.candidate if kept is not None and is_kept else best
    candidates = [*([] if cached else [*in_line, *read]), *([] if kept is None else [kept.candidate])]
    candidates.sort(key=lambda one: (one.objective_s, simplicity(one.strategy)))
    return replace(
        found,
        candidates=tuple(candidates),
        chosen=chosen,
        pareto=pareto_front(candidates),
        # Out of a cache a load may take less than taking it over from a worker.
        bound_s=min(found.bound_s, others.bound_s, fastest(candidates).objective_s),
        seconds=found.seconds + others.seconds,
        feeding=tuple(_reasons(found, chosen, best, read, kept, samples, problem)),
    )


def check_not_cached(pins: Pins) -> None:
    """Refuse a named strategy that keeps samples, where the costs of reading them are not known.

    Raises:
        InputError: it does
    """
    if pins.is_cached:
        raise _not_cached(pins, "what a sample costs is measured on the machine that trains, so it is planned there")


def _not_cached(pins: Pins, why: str) -> InputError:
    return InputError(
        f'strategy "{pins.strategy}": samples cannot be kept: {why}; leave "cached" out', code="strategy.not-cached"
    )


def _handed_over(problem: Problem, samples: SampleCosts) -> CostTable:
    """The table with loads that cost the hand-over of a microbatch from a worker."""
    table, digest = problem.table, problem.graph.digest
    step = table.steps[digest]
    load = {size: fed_step.load(samples, _workers_of(1, problem), microbatch=size) for size in step.load}
    return replace(table, steps={**table.steps, digest: replace(step, load=load, samples=None)})


def _in_line(tried: Sequence[Candidate], found: Search[Candidate], problem: Problem) -> Iterator[Candidate]:
    """Those in line that the search had no use for."""
    known = {one.strategy for one in found.candidates}
    for one in tried:
        if one.strategy not in known and not problem.pins.objection(one.strategy):
            yield reassess(one, problem)


def _feedings(candidate: Candidate, samples: SampleCosts, problem: Problem, pinned: int | None) -> Iterator[Feeding]:
    """The feedings with workers that a candidate is simulated with."""
    if pinned is not None:
        if pinned:
            yield _workers_of(pinned, problem)
        return
    wanted = _wanted_workers(candidate, samples, problem)
    most = most_workers(candidate, samples, problem)
    if min(wanted, most) > 0:
        yield _workers_of(min(wanted, most), problem)


def _workers_of(workers: int, problem: Problem) -> Feeding:
    """A number of workers; on a GPU copies go ahead too."""
    return Feeding(workers=workers, copies_ahead=int(problem.table.fingerprint.kind == "cuda"))


def _wanted_workers(candidate: Candidate, samples: SampleCosts, problem: Problem) -> int:
    """The least number of workers with which a step hardly waits for them.

    Args:
        candidate: by costs in which loads are handed over
        samples: their costs
        problem: as it is
    """
    program = candidate.program
    size = microbatch_size(program, candidate.strategy, batch=problem.batch)
    return fed_step.enough_workers(
        samples,
        _workers_of(1, problem),
        microbatch=size,
        microbatches=loaded_microbatches(program),
        limit_s=max(candidate.step_time_s, _period_s(candidate, _workers_of(fed_step.ANY_NUMBER, problem), problem)),
    )


def _period_s(candidate: Candidate, feeding: Feeding, problem: Problem) -> float:
    strategy = replace(candidate.strategy, feeding=feeding)
    costs = price(candidate.program, problem.graph, strategy, problem.table, problem.cluster, batch=problem.batch)
    return 0.0 if costs.period is None else costs.period.seconds


def _with(candidate: Candidate, feeding: Feeding, problem: Problem) -> Candidate:
    return reassess(replace(candidate, strategy=replace(candidate.strategy, feeding=feeding)), problem)


def _kept(
    tried: Sequence[Candidate], read: Sequence[Candidate], samples: SampleCosts, problem: Problem
) -> Iterator[_CachedCandidate]:
    """Candidates that keep their samples, with their times over all epochs."""
    room, pinned = problem.room, problem.pins.workers
    for one in tried:
        if room is None:
            return
        feedings = [replace(entry.strategy.feeding, cached=True) for entry in read if _is_fed(entry, one)]
        if not pinned:
            feedings.append(Feeding(cached=True))
        for feeding in dict.fromkeys(feedings):
            if obstacle(one, samples, problem, workers=feeding.workers):
                continue
            later = _with(one, feeding, problem)
            first = _with(one, replace(feeding, cached=False), problem)
            mean = tuple(
                (before + (room.epochs - 1) * after) / room.epochs
                for before, after in zip(first.cases, later.cases, strict=True)
            )
            yield _CachedCandidate(candidate=later, first=first, mean=(mean[0], mean[1], mean[2]))


def _is_fed(entry: Candidate, one: Candidate) -> bool:
    return replace(entry.strategy, feeding=IN_LINE) == replace(one.strategy, feeding=IN_LINE)


def _reasons(
    found: Search[Candidate],
    chosen: Candidate,
    best: Candidate,
    read: Sequence[Candidate],
    kept: _CachedCandidate | None,
    samples: SampleCosts,
    problem: Problem,
) -> Iterator[str]:
    room = problem.room
    plain = replace(chosen.strategy, feeding=IN_LINE)
    same = next((one for one in found.candidates if one.strategy == plain), None)
    feeding = chosen.strategy.feeding
    if feeding.workers:
        yield workers_reason(chosen, same)
    elif read and not feeding.cached and not problem.pins.workers:
        yield not_worth_it(min(read, key=lambda one: one.objective_s), chosen)
    elif not read and problem.pins.workers is None and no_room(chosen, samples, problem):
        yield no_room(chosen, samples, problem)
    if feeding.cached and kept is not None and room is not None:
        yield kept_reason(chosen, kept.first, best, kept.mean[1], samples, room)
        return
    why = obstacle(chosen, samples, problem, workers=0 if kept is not None else feeding.workers)
    if room is None or room.epochs < 2:
        # Samples that are read once are not kept.
        return
    if why and samples.read.seconds + samples.prepare.seconds > samples.recall.seconds:
        yield f"samples are not kept by the host: {why}"
    elif kept is not None and not why:
        yield not_worth_it(kept.candidate, chosen, mean_s=kept.mean[1] / kept.candidate.samples_factor)


# ---------------------------------------------------------------------------------------------------------------------
# The input pipeline on a machine of the catalog


Find = Callable[[Problem], Search[Candidate]]


def fed_there(problem: Problem, find: Find) -> Search[Candidate]:
    """Result of a search on a machine of the catalog, with the input pipeline of its nodes.

    Args:
        problem: with `Room.pipeline`, whose costs of samples its table has
        find: searches a problem in which loading takes no time

    Returns:
        Only fed candidates; those that even with their data ready are slower than the best one are rejected.
    """
    check_not_cached(problem.pins)
    pins = replace(problem.pins, workers=None)
    found = find(replace(problem, table=with_samples(problem.table, None), room=None, pins=pins))
    ready: dict[int, Candidate] = {}
    known: dict[int, Candidate] = {}

    def fed_one(one: Candidate) -> Candidate:
        if id(one) not in known:
            known[id(one)] = feed(one, problem)
            ready[id(known[id(one)])] = one
        return known[id(one)]

    ranked = sorted(found.candidates, key=lambda one: (one.objective_s, simplicity(one.strategy)))
    least_s, best_s = _least_there(problem), math.inf
    read: list[Candidate] = []
    shown = {id(one) for one in found.references}
    rejected = list(found.rejected)
    for one in ranked:
        # Both are lower bounds on its fed step.
        bound_s = max(one.objective_s, least_s)
        if bound_s < best_s or len(read) < MOST_FED or id(one) in shown:
            read.append(fed_one(one))
            best_s = min(best_s, read[-1].objective_s)
        else:
            reason = f"takes at least {format_seconds(bound_s)} with its data, others {format_seconds(best_s)}"
            rejected.append(Rejection(strategy=one.strategy, cause="bound", reason=reason))
    chosen = choose(read)
    return replace(
        found,
        candidates=tuple(sorted(read, key=lambda one: (one.objective_s, simplicity(one.strategy)))),
        chosen=chosen,
        baseline=fed_one(found.baseline),
        references=tuple(fed_one(one) for one in found.references),
        baselines=tuple(
            one if one.candidate is None else replace(one, candidate=fed_one(one.candidate)) for one in found.baselines
        ),
        rejected=tuple(rejected),
        pareto=pareto_front(read),
        bound_s=min(best_s, max(found.bound_s, least_s)),
        feeding=(said_there(ready[id(chosen)], chosen, problem),),
    )


def with_samples(table: CostTable, samples: SampleCosts | None) -> CostTable:
    """A table with other costs of samples; None: data are always ready."""
    return replace(table, steps={digest: replace(step, samples=samples) for digest, step in table.steps.items()})


def feed(candidate: Candidate, problem: Problem) -> Candidate:
    """A candidate on a machine of the catalog with the input pipeline of its nodes.

    Args:
        candidate: simulated with its data ready
        problem: with `Room.pipeline`
    """
    pipeline, samples, step = _there(candidate, problem)
    workers = problem.pins.workers
    if workers is None:
        workers = pipeline.enough_workers(samples, candidate.step_time_s, **step)
    return _with(candidate, pipeline.feeding(workers), problem)


class _Microbatches(TypedDict):
    """The microbatches of a step, as arguments of `pricing.input_pipeline`."""

    microbatch: int
    microbatches: int
    readers: int


def _there(candidate: Candidate, problem: Problem) -> tuple[InputPipeline, SampleCosts, _Microbatches]:
    """The input pipeline of a node, what samples cost on it, and what the busiest node reads for a step."""
    room, step = problem.room, problem.table.steps[problem.graph.digest]
    if room is None or room.pipeline is None or step.samples is None:
        raise InputError("there is no input pipeline: say --loader or --decode", code="loading.none-given")
    program, strategy = candidate.program, candidate.strategy
    readers = readers_of_host(program, strategy, problem.cluster)
    size = microbatch_size(program, strategy, batch=problem.batch)
    samples = fed_step.on_links(step.samples, problem.cluster.machine.node, readers)
    return (
        room.pipeline,
        samples,
        {"microbatch": size, "microbatches": loaded_microbatches(program), "readers": readers},
    )


def _least_there(problem: Problem) -> float:
    """Lower bound on any fed step: the samples of a node by its cores, workers, and what its ranks use in turn [s]."""
    samples = problem.table.steps[problem.graph.digest].samples
    if samples is None:
        return 0.0
    hosts = Counter(problem.cluster.hosts[: problem.devices])
    decode_s, shared_s = samples.prepare.seconds, samples.shared.seconds
    each_s = max(decode_s / max(1, problem.table.fingerprint.cores), shared_s)
    if problem.pins.workers:
        workers = problem.pins.workers * max(hosts.values())
        each_s = max(each_s, (samples.read.seconds + decode_s + shared_s) / workers)
    return problem.batch / len(hosts) * each_s


LIMITS = "the input pipeline limits the step"
"""Begin of the sentence where a step waits for data."""


def said_there(ready: Candidate, fed: Candidate, problem: Problem) -> str:
    """How the ranks of a plan are fed, and whether the step waits for that.

    Args:
        ready: the plan with its data ready
        fed: the plan
        problem: with `Room.pipeline`
    """
    feeding, limit = fed.strategy.feeding, limit_there(fed, problem)
    who = f"{format_count(feeding.workers, 'worker')} a rank" if feeding.workers else "ranks load in line"
    figures = f"a step takes {format_seconds(fed.step_time_s)}, with its data ready {format_seconds(ready.step_time_s)}"
    if fed.step_time_s <= ready.step_time_s:
        return f"data are ready in time ({who}): {figures}"
    if limit is None:
        return f"loading adds to the step ({who}): {figures}"
    return f"{LIMITS} by {fed_step.RESOURCES[limit]} ({who}): {figures}"


def limit_there(fed: Candidate, problem: Problem) -> fed_step.Resource | None:
    """What sets the step of a candidate that waits for its data; None: it does not, or loads in line.

    Args:
        fed: with its input pipeline
        problem: with `Room.pipeline`
    """
    pipeline, samples, step = _there(fed, problem)
    found = fed_step.bounds(samples, fed.strategy.feeding, cores=pipeline.cores, **step)
    for name in sorted(found, key=lambda one: -found[one].seconds)[:1]:
        if found[name].seconds >= fed.step_time_s * (1.0 - _ROUNDING):
            return name
    return None


_ROUNDING = 1e-9


# ---------------------------------------------------------------------------------------------------------------------
# Known remedies for a step that waits for its data, as changed input pipelines


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingChange:
    """A remedy before it is tried.

    Attributes:
        id: of the remedy
        name: in a few words
        action: what to do, in a sentence
        pipeline: as it is then
        assumption: what that takes for granted
    """

    id: str
    name: str
    action: str
    pipeline: InputPipeline
    assumption: str = "nothing more."


def loading_changes(
    pipeline: InputPipeline, workers: int, limit: fed_step.Resource | None = None
) -> Iterator[LoadingChange]:
    """The known remedies for a step that waits for its data.

    Args:
        pipeline: as it is
        workers: of each rank
        limit: what the step waits for; on more cores of the host more workers load, where it is the cores
    """
    samples, cores = pipeline.samples, pipeline.cores
    if not workers:
        yield LoadingChange(
            id="load-ahead",
            name="load in workers",
            action="Let workers load the next batches while this one computes (--workers).",
            pipeline=replace(pipeline, workers=None),
        )
    else:
        yield LoadingChange(
            id="more-workers",
            name=f"{format_count(2 * workers, 'worker')} a rank",
            action=f"Load in {2 * workers} workers of each rank in place of {workers} (--workers {2 * workers}).",
            pipeline=replace(pipeline, workers=2 * workers),
        )
    if not pipeline.copies_ahead and samples.sample_bytes:
        yield LoadingChange(
            id="copy-ahead",
            name="copy ahead",
            action="Copy the next microbatch to the device while this one computes (--copies-ahead 1).",
            pipeline=replace(pipeline, copies_ahead=1),
            assumption="a copy does not slow compute down.",
        )
    if samples.prepare.seconds:
        yield LoadingChange(
            id="faster-decoding",
            name="decode in half the time",
            action="Halve the work for a sample: smaller or decoded samples on the disk, a faster library, or decoding "
            "on the device.",
            pipeline=replace(pipeline, samples=replace(samples, prepare=samples.prepare.scaled(0.5))),
            assumption="there is such a library or format.",
        )
        yield LoadingChange(
            id="more-host-cores",
            name=f"{2 * cores} cores of a node load",
            action=f"Take hosts with {2 * cores} cores for loading in place of {cores}.",
            pipeline=replace(pipeline, cores=2 * cores, workers=2 * workers if limit == "cores" else pipeline.workers),
            assumption="there are such hosts.",
        )
    if samples.shared.seconds or samples.read.seconds:
        halved = replace(samples, read=samples.read.scaled(0.5), shared=samples.shared.scaled(0.5))
        yield LoadingChange(
            id="faster-storage",
            name="a disk or loader twice as fast",
            action="Take a disk, or a loader of the node, that is twice as fast; or keep samples in memory.",
            pipeline=replace(pipeline, samples=halved),
            assumption="there is one.",
        )


def changed_loading(candidate: Candidate, problem: Problem, pipeline: InputPipeline) -> Candidate:
    """A fed candidate with another input pipeline of its nodes.

    Args:
        candidate: fed by that of the problem
        problem: of it
        pipeline: another one
    """
    plain = replace(candidate, strategy=replace(candidate.strategy, feeding=IN_LINE))
    ready = reassess(plain, replace(problem, table=with_samples(problem.table, None)))
    return feed(ready, with_pipeline(problem, pipeline))


def with_pipeline(problem: Problem, pipeline: InputPipeline) -> Problem:
    """A problem on a machine of the catalog with an input pipeline of its nodes.

    Args:
        problem: with or without one
        pipeline: of each node; its number of workers is a pin
    """
    table = with_samples(problem.table, pipeline.samples)
    return replace(
        problem,
        table=replace(table, fingerprint=replace(table.fingerprint, cores=pipeline.cores)),
        room=Room(pipeline=pipeline),
        pins=replace(problem.pins, workers=pipeline.workers),
    )
