"""The matrix: a field job under a kind of plan, on forked ranks, beside its plain loop.

    job process: capture, plain loops ──▶ for each cell: its ranks, forked, in a process group of their own
                                     ◀── what each rank saw; or it raised; or its time is over

A cell is "equal", "refused" before the first update, "noticed" by the watch of a training that has callbacks, or a
defect: "different", "error", "hang". Ranks train without a trial first; what would be a defect is refused where the
trial of the plan says that it differs, as it is before training.
"""

import dataclasses
import faulthandler
import itertools
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from tests import builders
from tests.distributed.drawn import draw_parts
from tests.distributed.training import even_boundaries, full_batch
from tests.field.catalog import CATALOG
from tests.field.entry import Entry
from tests.field.reference import Plain, train_plainly
from tests.forks.client import server

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.job import Job
from trimaran.features.training.session import Session
from trimaran.graph.behaviour import weighed
from trimaran.graph.capture.capture import Capture, capture, capture_and_look
from trimaran.graph.sharding.fsdp_units import sharding_units
from trimaran.graph.types import Graph
from trimaran.launch.world import Place, World, open_world
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.lowering.tensor_parallel import find_shards, why_not
from trimaran.program.refusals import check_exact
from trimaran.program.strategy import Strategy, needs_graph, splits_batches
from trimaran.trial.compare import DIFFERS
from trimaran.trial.trial import try_plan

STEPS = 20
CELL_S = 60.0
"""Time of a cell, from the fork to the last answer [s]."""
COLLECTIVE_S = 20.0
GRACE_S = 4.0
LOG_CHARACTERS = 6000
CAPTURE_S = 120

Verdict = Literal["equal", "refused", "noticed", "different", "error", "hang"]
DEFECTS = ("different", "error", "hang")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of plan.

    Attributes:
        fit: the strategy for a graph
        replicas: of its plain loop
        microbatches: of each replica
        budget: share of the memory of the step that it is held to; None: all
    """

    fit: Callable[[Graph], Strategy]
    replicas: int = 1
    microbatches: int = 1
    budget: str | None = None


def _pipeline(graph: Graph, **options: Any) -> Strategy:
    _check_cuts(graph)
    strategy = builders.strategy(pp=2, **{"schedule": "1f1b", "microbatches": 2, **options})
    return dataclasses.replace(strategy, boundaries=even_boundaries(graph.split_points, 2))


def _tensor(graph: Graph) -> Strategy:
    if shards := find_shards(graph, 2, layers=True):
        return builders.strategy(tp=2, shards=shards)
    raise InputError(why_not(graph, 2))


def _placement(graph: Graph) -> Strategy:
    _check_cuts(graph)
    return builders.strategy(pp=2, parts=draw_parts(graph, 2, seed=1))


def _check_cuts(graph: Graph) -> None:
    if not graph.split_points:
        raise InputError("the network cannot be cut into stages" + "".join(f"; {note}" for note in graph.notes))


def _sharded(level: Literal[2, 3], microbatches: int = 1) -> Callable[[Graph], Strategy]:
    return lambda graph: builders.strategy(
        dp=2, zero=level, microbatches=microbatches, units=sharding_units(graph, min_bytes=64)
    )


KINDS: dict[str, Kind] = {
    "one": Kind(fit=lambda graph: builders.strategy()),
    "m2": Kind(fit=lambda graph: builders.strategy(microbatches=2), microbatches=2),
    "dp2": Kind(fit=lambda graph: builders.strategy(dp=2), replicas=2),
    "zero1": Kind(fit=lambda graph: builders.strategy(dp=2, zero=1), replicas=2),
    "zero2": Kind(fit=_sharded(2), replicas=2),
    "zero3": Kind(fit=_sharded(3), replicas=2),
    "p2p": Kind(fit=lambda graph: builders.strategy(dp=2, sync="p2p", bucket_bytes=2048), replicas=2),
    "pp2": Kind(fit=_pipeline, microbatches=2),
    "tp2": Kind(fit=_tensor),
    "placed": Kind(fit=_placement),
    "memory": Kind(fit=lambda graph: builders.strategy(), budget="90%"),
}

COMBINED: dict[str, Kind] = {
    "m3": Kind(fit=lambda graph: builders.strategy(microbatches=3), microbatches=3),
    "dp2m2": Kind(fit=lambda graph: builders.strategy(dp=2, microbatches=2), replicas=2, microbatches=2),
    "dp3": Kind(fit=lambda graph: builders.strategy(dp=3, bucket_bytes=512), replicas=3),
    "zero1m2": Kind(fit=lambda graph: builders.strategy(dp=2, zero=1, microbatches=2), replicas=2, microbatches=2),
    "zero2m2": Kind(fit=_sharded(2, 2), replicas=2, microbatches=2),
    "zero3m2": Kind(fit=_sharded(3, 2), replicas=2, microbatches=2),
    "p2pm2": Kind(fit=lambda graph: builders.strategy(dp=2, sync="p2p", microbatches=2), replicas=2, microbatches=2),
    "pp2m4": Kind(fit=partial(_pipeline, schedule="gpipe", microbatches=4), microbatches=4),
    "pp2bubble": Kind(fit=partial(_pipeline, schedule="zero-bubble"), microbatches=2),
    "dp2pp2": Kind(fit=partial(_pipeline, dp=2), replicas=2, microbatches=2),
}
"""Kinds that are made of others."""

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What came of a job under a kind of plan with an optimizer.

    Attributes:
        job: its name
        kind: of the plan
        optimizer: "sgd", "adamw", or "own"
        verdict: what came of it
        detail: the reason, or what differs first; one line
    """

    job: str
    kind: str
    optimizer: str
    verdict: Verdict
    detail: str = ""


def run_job(name: str, kinds: Sequence[str], optimizers: Sequence[str], *, steps: int = STEPS) -> Iterator[Cell]:
    """All cells of a job of the catalog.

    Args:
        name: of the job
        kinds: of plans
        optimizers: for jobs that do not have one of their own
        steps: of training
    """
    return run_entry(CATALOG[name], kinds, optimizers, steps=steps)


def run_entry(entry: Entry, kinds: Sequence[str], optimizers: Sequence[str], *, steps: int = STEPS) -> Iterator[Cell]:
    """All cells of a job; this process is forked for it, and nothing of it is left behind.

    Args:
        entry: the job
        kinds: of plans
        optimizers: for jobs that do not have one of their own
        steps: of training
    """
    ours, theirs = multiprocessing.Pipe()
    process = os.fork()
    if process == 0:
        with _Ending(theirs):
            os.setsid()
            ours.close()
            for cell in _cells(entry, kinds, optimizers, steps):
                theirs.send_bytes(pickle.dumps(cell))
    theirs.close()
    left = [(kind, optimizer) for optimizer in _optimizers(entry, optimizers) for kind in kinds]
    try:
        while left:
            try:
                waited = ours.poll(CAPTURE_S + 2 * CELL_S)
                cell = pickle.loads(ours.recv_bytes()) if waited else None  # noqa: S301
            except EOFError:
                waited, cell = True, None
            if isinstance(cell, Cell):
                left.remove((cell.kind, cell.optimizer))
                yield cell
                continue
            why = "the process of the job died" if waited else "capture or the plain loop hangs"
            verdict: Verdict = "error" if waited else "hang"
            for kind, optimizer in left:
                yield Cell(job=entry.name, kind=kind, optimizer=optimizer, verdict=verdict, detail=why)
            return
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        ours.close()


def cells_apart(cells: Callable[..., Iterator[Cell]], *arguments: Any, folder: Path, limit_s: float) -> list[Cell]:
    """Cells that a new process makes: it has one thread, so that it can be forked.

    Args:
        cells: makes them; of a module
        arguments: of that
        folder: for what it prints and finds
        limit_s: its time [s]
    """
    found, output = folder / "cells", folder / "output"
    with output.open("wb") as stream, Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), stream.fileno(), stream.fileno())
        process = server().fork(
            _write_cells, str(found), cells, arguments, streams=streams, environment=dict(os.environ), folder=folder
        )
    try:
        assert process.wait(limit_s) == 0, output.read_text()
    finally:
        process.end()
    return pickle.loads(found.read_bytes())  # type: ignore[no-any-return]  # noqa: S301


def _write_cells(path: str, cells: Callable[..., Iterator[Cell]], arguments: Sequence[Any]) -> None:
    Path(path).write_bytes(pickle.dumps(list(cells(*arguments))))


def _optimizers(entry: Entry, optimizers: Sequence[str]) -> Sequence[str]:
    return ("own",) if entry.own_optimizer else optimizers


def _cells(entry: Entry, kinds: Sequence[str], optimizers: Sequence[str], steps: int) -> Iterator[Cell]:
    torch.set_num_threads(1)
    # One job: its loss may hold the model that it made last.
    looked_at = entry.job()
    made, failed = _captured(looked_at)
    for optimizer in _optimizers(entry, optimizers):
        job = looked_at if optimizer == "own" else dataclasses.replace(looked_at, optimizer=OPTIMIZERS[optimizer])
        plain: dict[Any, Plain] = {}
        for kind in kinds:
            verdict, detail = failed or ("equal", "")
            if made is not None:
                verdict, detail = _run(entry, job, {**KINDS, **COMBINED}[kind], made, plain, steps)
            if made is not None and verdict in DEFECTS:
                verdict, detail = _tried(entry, optimizer, {**KINDS, **COMBINED}[kind], made) or (verdict, detail)
            yield Cell(job=entry.name, kind=kind, optimizer=optimizer, verdict=verdict, detail=detail)


def _tried(entry: Entry, optimizer: str, kind: Kind, made: Capture) -> tuple[Verdict, str] | None:
    """The verdict of the trial, where it says that the plan differs."""

    def make() -> Job:
        job = entry.job()
        return job if optimizer == "own" else dataclasses.replace(job, optimizer=OPTIMIZERS[optimizer])

    try:
        said = said_by_trial(make, kind.fit(made.graph), made)
    except Exception:  # noqa: BLE001 the cell has said what is wrong
        return None
    return ("refused", f"the trial: {said}") if is_flagged(said) else None


def said_by_trial(make: Callable[[], Job], strategy: Strategy, made: Capture) -> str:
    """What the trial of a job under a plan says.

    Args:
        make: the job anew
        strategy: of the plan
        made: what the look at the job saw
    """
    seen = made.graph.behaviour

    def watched() -> Job:
        return weighed(make(), seen, splits=splits_batches(strategy))

    def open_session(world: World, job: Job) -> Session:
        batch = full_batch(job.global_batch_size, strategy)
        program = lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None)
        own = capture(job) if needs_graph(strategy) else None
        evaluation = lower_evaluation(made.graph, strategy, batch=batch)
        return Session(job, strategy, program, own, world, owns_world=False, evaluation=evaluation)

    def work(rank: int) -> Answer:
        join = partial(_world, rank, strategy.devices, folder)
        try:
            draws = seen is None or seen.is_random
            return Answer(raised=("equal", str(try_plan(rank, join, watched, open_session, strategy, draws=draws))))
        except Exception as error:  # noqa: BLE001
            return Answer(raised=("different", str(error)))

    with tempfile.TemporaryDirectory(prefix="tried-") as folder:
        answers = _on_ranks(strategy.devices, work, Path(folder))
    said = [answers] if isinstance(answers, str) else [one.raised[1] for one in answers if one.raised is not None]
    # Rank 0 alone knows how many steps were compared.
    return next((one for one in said if not one.startswith("verified: 0 steps")), said[0])


def is_flagged(said: str) -> bool:
    """Whether the answer of a trial is a difference, and none of the harness."""
    return said.startswith(("step ", "rank 0 found"))


def _captured(job: Job) -> tuple[Capture, None] | tuple[None, tuple[Verdict, str]]:
    signal.alarm(CAPTURE_S)
    try:
        return capture_and_look(job), None
    except Exception as error:  # noqa: BLE001 whatever it is, it is what a user would see
        return None, _raised(error, "capture: ", before=True)
    finally:
        signal.alarm(0)


def _raised(error: Exception, where: str, *, before: bool) -> tuple[Verdict, str]:
    # A budget of memory is refused when the first steps have been seen, which are those of the plain loop.
    if getattr(error, "code", "") == DIFFERS:
        return "noticed", f"{where}{error}"
    refused = (before and isinstance(error, InputError)) or isinstance(error, InfeasibleError)
    text = str(error).strip().split("\n")[0]
    return "refused" if refused else "error", f"{where}{'' if refused else f'{type(error).__name__}: '}{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a training stands: what rank 0 gathered.

    Attributes:
        weights: the `state_dict`
        gradients: of the global batch, not clipped, by the name of the parameter
        state: of the optimizer, by the name of the parameter and the key
        apart: copies that ranks should have alike and do not; in words
    """

    weights: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    gradients: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    state: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    apart: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a rank saw.

    Attributes:
        losses: by step
        first: gradients of the first step, and weights after it; on rank 0
        last: weights, and the state of the optimizer, at the end; on rank 0
        score: of the evaluation; None: there is none
        averages: of weights, which a callback made
        raised: what it raised in place of all this
    """

    losses: tuple[float, ...] = ()
    first: Stage = dataclasses.field(default_factory=Stage)
    last: Stage = dataclasses.field(default_factory=Stage)
    score: float | None = None
    averages: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    raised: tuple[Verdict, str] | None = None


def _run(entry: Entry, job: Job, kind: Kind, made: Capture, plain: dict[Any, Plain], steps: int) -> tuple[Verdict, str]:
    try:
        strategy = kind.fit(made.graph)
        check_exact(made.graph.behaviour, strategy)
    except Exception as error:  # noqa: BLE001
        return _raised(error, "", before=True)
    with tempfile.TemporaryDirectory(prefix="field-") as folder:
        answers = _on_ranks(
            strategy.devices, lambda rank: _train(rank, folder, job, strategy, made, kind.budget, steps), Path(folder)
        )
    if isinstance(answers, str):
        return "hang", answers
    raised = [answer.raised for answer in answers if answer.raised is not None]
    if raised:
        return _cause(raised)
    rows = _rows(made.graph, strategy)
    shape = (kind.replicas, kind.microbatches, tuple(rows.items())) if entry.by_microbatch else (kind.replicas,)
    if shape not in plain:
        # Its own may hold the model that its own factory makes.
        apart = entry.job() if entry.own_optimizer else dataclasses.replace(entry.job(), optimizer=job.optimizer)
        plain[shape] = train_plainly(
            entry, apart, steps, replicas=kind.replicas, microbatches=kind.microbatches, rows=rows
        )
    return compare(entry, plain[shape], answers)


def _rows(graph: Graph, strategy: Strategy) -> dict[str, int]:
    """Of each operation the row; nothing where there is one."""
    segments = zip(strategy.rows, segment_ops(graph, strategy), strict=True) if strategy.pp > 1 else ()
    return {op.id: row for row, ops in segments for op in ops}


def _cause(raised: Sequence[tuple[Verdict, str]]) -> tuple[Verdict, str]:
    """Of what the ranks raised that which tells most: a rank that lost its peer tells less than the peer."""
    refused = [one for one in raised if one[0] in ("refused", "noticed")]
    own = [one for one in raised if not any(word in one[1] for word in _WAITED + _OF_PEER)]
    waited = [one for one in raised if any(word in one[1] for word in _WAITED)]
    if refused or own:
        return (refused or own)[0]
    return ("hang", waited[0][1]) if waited else raised[0]


_WAITED = ("Timed out waiting", "nothing came for")
_OF_PEER = ("Connection closed", "Connection reset", "peer", "is gone", "lost contact")


def _on_ranks(size: int, work: Callable[[int], Answer], folder: Path) -> list[Answer] | str:
    """What each rank answers; in words where the time was over."""
    ranks: dict[Connection, tuple[int, int]] = {}
    for rank in range(size):
        ours, theirs = multiprocessing.Pipe()
        process = os.fork()
        if process == 0:
            with _Ending(theirs):
                os.setsid()
                theirs.send_bytes(pickle.dumps(work(rank)))
        theirs.close()
        ranks[ours] = (rank, process)
    answers: dict[int, Answer] = {}
    deadline = time.monotonic() + CELL_S
    try:
        while len(answers) < size and time.monotonic() < deadline:
            waiting = [ours for ours, (rank, _) in ranks.items() if rank not in answers]
            for ready in wait(waiting, timeout=max(0.0, deadline - time.monotonic())):
                assert isinstance(ready, Connection)
                rank, process = ranks[ready]
                try:
                    answers[rank] = pickle.loads(ready.recv_bytes())  # noqa: S301
                except EOFError:
                    ended = f"rank {rank} ended without a word, {_end_of(process)}; its log: {_log(folder, rank)}"
                    answers[rank] = Answer(raised=("error", ended))
                if answers[rank].raised is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if any(answer.raised for answer in answers.values()):
            return list(answers.values())
        if len(answers) < size:
            silent = sorted(set(range(size)) - set(answers))
            return f"rank {', '.join(map(str, silent))} did not answer within {CELL_S:.0f} s"
        return [answers[rank] for rank in range(size)]
    finally:
        for ours, (_, process) in ranks.items():
            for end in (os.killpg, os.kill):
                with suppress(ProcessLookupError):
                    end(process, signal.SIGKILL)
            os.waitpid(process, 0)
            ours.close()


def _end_of(process: int) -> str:
    ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    if ended.si_code == os.CLD_EXITED:
        return f"with exit code {ended.si_status}"
    return f"by {signal.Signals(ended.si_status).name}"


def _log(folder: Path, rank: int) -> str:
    # Where an exception is said to be in a few words, a crash is told in full: it may not come again.
    path = _path_of_log(folder, rank)
    return path.read_text(errors="replace")[:LOG_CHARACTERS] if path.exists() else "none"


def _path_of_log(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.log"


class _Ending:
    """A child does what it has to do and ends, whatever happens."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> NoReturn:
        if error is not None:
            traceback.print_exception(error)
        self.connection.close()
        os._exit(0 if error is None else 1)


def _train(
    rank: int, folder: str, job: Job, strategy: Strategy, made: Capture, budget: str | None, steps: int
) -> Answer:
    torch.set_num_threads(1)
    log = os.open(_path_of_log(Path(folder), rank), os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    faulthandler.enable(file=2)
    session: Session | None = None
    try:
        world = _world(rank, strategy.devices, folder)
        seen, batch = made.graph.behaviour, full_batch(job.global_batch_size, strategy)
        session = Session(
            weighed(job, seen, splits=splits_batches(strategy)),
            strategy,
            lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None),
            made if needs_graph(strategy) else None,
            world,
            owns_world=True,
            evaluation=lower_evaluation(made.graph, strategy, batch=batch),
        )
        session.executor.know(seen)
        if (job.on_step or job.on_epoch) and splits_batches(strategy):
            session.watch(world)
        return _steps(session, job, budget, steps)
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        done = 0 if session is None else session.steps
        where = f"after {done} steps: " if done else ""
        # What a callback does is refused where it does it, before the next step.
        before = done == 0 or getattr(error, "code", "").startswith(("session.", "callback."))
        return Answer(raised=_raised(error, where, before=before))


def _world(rank: int, size: int, folder: str) -> World:
    if size == 1:
        return World()
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    place = Place(rank=rank, size=size, local_rank=rank, local_size=size, started_by="trimaran")
    store = FileStore(str(Path(folder) / "store"), size)
    return open_world(place, store=store, device="cpu", timeout_s=COLLECTIVE_S)


def _steps(session: Session, job: Job, budget: str | None, steps: int) -> Answer:
    losses: list[float] = []
    first: Stage | None = None
    with _held(budget):
        for epoch in itertools.count():
            for share in session.shares():
                losses.append(session.step(share, keep_gradients=not losses))
                if first is None:
                    first = _gathered(session)
                if len(losses) == steps:
                    break
            if len(losses) == steps:
                break
            assert not session.stopped, f"asked to stop after {len(losses)} steps"
            session.end_epoch(epoch, evaluate=session.executor.follows_metric)
    last = _gathered(session)
    score = None
    if job.evaluation_dataset is not None and job.metric is not None:
        score = session.evaluate()
    averages = _averages(session, job)
    session.close()
    return Answer(losses=tuple(losses), first=first or last, last=last, score=score, averages=averages)


def _averages(session: Session, job: Job) -> Mapping[str, torch.Tensor]:
    """What the callback averaged; of weights only where a rank has all of them."""
    averages = getattr(job.on_step, "averages", None)
    whole = session.strategy.pp * session.strategy.tp == 1
    return {name: one for name, one in (averages() if averages else {}).items() if whole or name == "scores"}


def _gathered(session: Session) -> Stage:
    state = session.executor.full_state(compare=True)
    apart = "; ".join(f"{one.kind} {one.name} {one.key} on ranks {one.ranks}" for one in state.differing[:2])
    return Stage(weights=session.weights(), gradients=state.gradients, state=state.optimizer, apart=apart)


def _held(budget: str | None) -> Any:
    if budget is None:
        return nullcontext()
    from trimaran.memory_budget import virtual_memory

    return virtual_memory(budget, smallest=0)


def compare(entry: Entry, plain: Plain, answers: Sequence[Answer]) -> tuple[Verdict, str]:
    """The verdict of a run beside its plain loop.

    Args:
        entry: has the tolerance
        plain: what the plain loop left
        answers: of the ranks
    """
    found = answers[0]
    for answer in answers:
        for step, (loss, wanted) in enumerate(zip(answer.losses, plain.losses, strict=True)):
            if not _near(loss, wanted, entry.tolerance):
                return "different", f"loss of step {step}: {loss:.12g}, plain {wanted:.12g}"
    for when, stage, weights in (("first step", found.first, plain.first), ("end", found.last, plain.weights)):
        if missing := sorted(set(weights) ^ set(stage.weights)):
            return "different", f"{when}: names differ: {', '.join(missing[:4])}"
        gradients = _dense(plain.gradients, stage.gradients) if when == "first step" else {}
        mine = {name: stage.gradients.get(name, torch.zeros_like(one)) for name, one in gradients.items()}
        for what, left, right, floor in (("gradient", mine, gradients, 0.0), ("", stage.weights, weights, 0.1)):
            if difference := _differences(left, right, entry.tolerance, floor):
                return "different", f"{when}: {what}{' ' if what else ''}{difference}"
        if stage.apart:
            return "different", f"{when}: ranks have different copies: {stage.apart}"
    mine, wanted = (
        {name: one for name, one in state.items() if name not in plain.idle}
        for state in (found.last.state, plain.state)
    )
    if wanted and (difference := _states(mine, wanted, entry.tolerance)):
        return "different", f"end: optimizer state: {difference}"
    if plain.score is not None and not _near(found.score, plain.score, max(1e-6, entry.tolerance)):
        return "different", f"score {found.score}, plain {plain.score:.12g}"
    for answer in answers:
        wanted_averages = {name: one for name, one in plain.averages.items() if name in answer.averages}
        if difference := _differences(answer.averages, wanted_averages, entry.tolerance, 0.1):
            return "different", f"average of the callback: {difference}"
    return "equal", ""


def _near(found: float | None, wanted: float, tolerance: float) -> bool:
    return found is not None and abs(found - wanted) <= tolerance * max(1.0, abs(wanted))


def _dense(plain: Mapping[str, torch.Tensor | None], found: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients of the plain loop; those that are None are zeros where the plan has some."""
    return {
        name: torch.zeros_like(found[name]) if gradient is None else gradient
        for name, gradient in plain.items()
        if gradient is not None or name in found
    }


def _states(mine: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Mapping[str, Any]], tolerance: float) -> str:
    if missing := sorted(set(wanted) ^ set(mine)):
        return f"parameters differ: {', '.join(missing[:4])}"
    for key in sorted({key for state in wanted.values() for key in state}):
        left = {name: torch.as_tensor(state[key]) for name, state in mine.items() if state.get(key) is not None}
        right = {name: torch.as_tensor(state[key]) for name, state in wanted.items() if state.get(key) is not None}
        if missing := sorted(set(left) ^ set(right)):
            return f"{key} of {', '.join(missing[:4])} differs"
        if difference := _differences(left, right, tolerance, 0.0):
            return f"{key} {difference}"
    return ""


def _differences(
    mine: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], tolerance: float, floor: float
) -> str:
    """The first of some tensors that is too far away; in words.

    Beside its own largest value counts a thousandth of that of all, and the floor: what should be zero is rounding.
    """
    most = max(
        (one.abs().max().item() for one in wanted.values() if one.is_floating_point() and one.numel()), default=0
    )
    for name, right in wanted.items():
        left = mine[name]
        if left.shape != right.shape or left.dtype != right.dtype:
            return f"{name} is {tuple(left.shape)} {left.dtype}, plain {tuple(right.shape)} {right.dtype}"
        if not (right.is_floating_point() or right.is_complex()):
            if not torch.equal(left, right):
                return f"{name} differs"
        elif right.numel():
            away, scale = (left - right).abs().max().item(), right.abs().max().item()
            if not away <= tolerance * max(scale, 1e-3 * most, floor):
                return f"{name} is {away:.2g} away, relative {away / max(scale, 1e-300):.2g}"
    return ""


__all__ = [
    "COMBINED",
    "DEFECTS",
    "KINDS",
    "OPTIMIZERS",
    "Cell",
    "Verdict",
    "cells_apart",
    "is_flagged",
    "run_entry",
    "run_job",
    "said_by_trial",
]
