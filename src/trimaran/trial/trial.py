"""A plan is tried before it trains: its first steps in ranks that are thrown away, next to a plain loop.

    rank k         ── waits ──────────────────────────────────────────▶ joins the world, trains
       └─ child        joins another world ─ 6 steps ─ ranks that are made anew get the state after them, and
                       that after the fourth, from which they take the last two again ─▶ ends
    child of rank 0
       └─ plain loop   6 steps in a process that is told of no ranks, each compared with the run's

Nothing of it is left but what user code wrote to files: each process is forked before its rank has a world, and makes
the job anew. It trains in 64 bits, or where the job does not run so, in 32, in which rounding is far below any
difference that means something. Steps are the first two of an epoch and its last, which may be smaller, then the same
of the next epoch. Callbacks are not called.
"""

import copy
import gc
import math
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from trimaran.base.errors import ExecutionError, InputError, TrimaranError
from trimaran.base.job import Job, JobPrecision
from trimaran.base.system import at_parents_death
from trimaran.base.units import format_seconds
from trimaran.base.user_errors import attempted, summary
from trimaran.graph.behaviour import WholeMetric
from trimaran.launch.activity import ACTIVITY
from trimaran.launch.memory import ran_out
from trimaran.launch.world import World, choose_device, leave_world
from trimaran.program.strategy import Strategy
from trimaran.runtime.data.pipeline import Feed
from trimaran.runtime.whole_state import WholeState
from trimaran.trial.compare import DIFFERS, FAILS_ALONE, ComparedStep, Examined, Examiner, Verified, Verifier
from trimaran.trial.plain_loop import first_evaluated
from trimaran.user_code.alone import forget_ranks

STEPS = 6
"""Of a trial: three of an epoch and three of the next."""

TRIED = "tried"
"""Figure of an error that says that a trial has found another training; no step of it counts."""

RESTARTED_AFTER = 4
"""Steps, after which those that follow are taken again from the state that a checkpoint has."""

_SAME_LOSS = 1e-6
"""Relative difference of losses that is rounding, also in 32 bits."""

_ENDED = "the process of the trial has ended without a word"


def nothing_to_try(strategy: Strategy) -> str:
    """Why a plan is not tried; empty: it is.

    Args:
        strategy: of the plan
    """
    if strategy.is_stale:
        return "a stale schedule is another training than that of one process"
    if strategy.execution == "compiled":
        return "compiled segments are compiled for their precision, and a trial has another"
    return ""


class Forked:
    """A process that is forked from this one, and answers.

    Args:
        work: called in it with the other end of the pipe; what it returns is the last answer
    """

    def __init__(self, work: Callable[[Connection], Any]) -> None:
        self._connection, theirs = Pipe()
        self._process = os.fork()
        if self._process == 0:
            at_parents_death("SIGKILL")()
            # What the parent has left to collect may wait for its threads, which are not here.
            gc.freeze()
            self._connection.close()
            try:
                _answer(theirs, lambda: work(theirs))
            finally:
                # Threads that libraries left behind can make the usual exit hang.
                os._exit(0)
        theirs.close()

    def ask(self, question: Any, limit_s: float | None = None) -> Any:
        """Send something, and wait for the answer.

        Args:
            question: to send
            limit_s: as of `answer`

        Raises:
            TrimaranError: what it raised; or it has ended, or takes longer
        """
        with suppress(OSError):  # it may have failed already, and its answer says so
            self._connection.send_bytes(pickle.dumps(question))
        return self.answer(limit_s)

    def answer(self, limit_s: float | None = None) -> Any:
        """Wait for its next answer.

        Args:
            limit_s: for how long [s]; None: as long as it takes

        Raises:
            TrimaranError: what it raised; or it has ended, or takes longer
        """
        if not self._connection.poll(limit_s):
            os.kill(self._process, signal.SIGKILL)
            raise ExecutionError(f"it takes longer than {format_seconds(limit_s or 0.0)}", code="trial.too-long")
        try:
            # Written by a child of this process, into a pipe that no other process can open.
            value = pickle.loads(self._connection.recv_bytes())  # noqa: S301
        except (EOFError, OSError):
            raise ExecutionError(_ENDED, code="trial.ended") from None
        if isinstance(value, BaseException):
            raise value
        return value

    def end(self) -> None:
        """End it, and wait for that."""
        self._connection.close()
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def _answer(connection: Connection, work: Callable[[], Any]) -> bool:
    """Send what a function returns or raises; whether it has returned."""
    try:
        value = work()
    except TrimaranError as error:
        value = error
    except BaseException as error:  # noqa: BLE001  # whatever it is, the parent must hear of it
        traceback.print_exc()
        value = ExecutionError(summary(error), code="trial.fails")
    with suppress(OSError):
        connection.send_bytes(pickle.dumps(value))
    return not isinstance(value, BaseException)


def heard(connection: Connection) -> Any:
    """What the parent of this process has sent next; where it has gone, this process ends."""
    try:
        # Written by the parent, into a pipe that no other process can open.
        return pickle.loads(connection.recv_bytes())  # noqa: S301
    except (EOFError, OSError):
        os._exit(0)


def try_plan(
    rank: int,
    join: Callable[[], World],
    make: Callable[[], Job],
    open_session: Callable[[World, Job], Any],
    strategy: Strategy,
    *,
    draws: bool,
    limit_s: float | None = None,
) -> Verified:
    """Take the first steps of a job under a plan, in a child of each rank; every rank calls it before it has a world.

    Args:
        rank: number of this one
        join: makes the world of the trial
        make: makes the job
        open_session: makes a session of a job
        strategy: of the plan
        draws: the forward or the loss draws random numbers
        limit_s: how long it may take [s]; None: as long as it does

    Returns:
        What was found; on rank 0.

    Raises:
        ExecutionError: a step is not that of one process
        TrimaranError: what a rank raised
    """
    start = time.perf_counter()
    with ACTIVITY.during("trying the plan"):
        child = Forked(lambda _: _try_rank(rank, join, make, open_session, strategy, draws))
        try:
            found: Verified = child.answer(limit_s)
        except TrimaranError as error:
            if error.code in (DIFFERS, FAILS_ALONE):
                error.figures[TRIED] = error.code == DIFFERS
                raise
            # The training says it better, with what it was about to do.
            return Verified(reason=f"the trial ended: {error.message.partition(chr(10))[0]}")
        finally:
            child.end()
    return found if found.reason else replace(found, seconds=time.perf_counter() - start)


def _try_rank(
    rank: int,
    join: Callable[[], World],
    make: Callable[[], Job],
    open_session: Callable[[World, Job], Any],
    strategy: Strategy,
    draws: bool,
) -> Verified:
    # Parts of a model draw other numbers than the whole.
    still = draws and (strategy.pp > 1 or strategy.tp > 1 or bool(strategy.shards))

    def tried(precision: JobPrecision) -> Job:
        job = make()
        model = (lambda: _without_dropout(job.model())) if still else job.model
        return replace(job, precision=precision, model=model, metric=_asked(job.metric), on_step=None, on_epoch=None)

    plain = None
    if rank == 0:
        plain = Forked(lambda connection: _plain_loop(connection, tried, strategy, draws=draws and not still))
    world = join()
    told: list[JobPrecision] = ["fp64" if plain is None else plain.answer()]
    if world.size > 1:
        torch.distributed.broadcast_object_list(told, src=0, device=torch.device(world.device))
    found = _steps(world, tried, told[0], open_session, None if plain is None else plain.ask)
    leave_world()
    if plain is not None:
        plain.end()
    note = ("drawn with a probability of 0: parts of the model draw other numbers than the whole",) if still else ()
    bits = () if told[0] == "fp64" else ("in 32 bits: the model does not run in 64",)
    return replace(found, notes=(*found.notes, *note, *bits))


def _steps(
    world: World,
    tried: Callable[[JobPrecision], Job],
    precision: JobPrecision,
    open_session: Callable[[World, Job], Any],
    examine: Callable[[Examined], Verified] | None,
) -> Verified:
    session = open_session(world, tried(precision))
    verifier = Verifier(session.executor, world, examine or (lambda _: Verified()))
    ended: float | None = None
    losses, early = list[float](), dict[str, Any]()
    for number in range(STEPS):
        if number == RESTARTED_AFTER:
            early = copy.deepcopy(session.state_dict())
        share, feed = _take(session.feed, number), session.feed
        loss = verifier.step(share, epoch=feed.epoch, index=feed.index - 1, ended=ended)
        if verifier.verified.reason:
            return verifier.verified
        losses.append(loss)
        ended = None
        if session.executor.follows_metric and number == STEPS // 2 - 1:
            ended = loss
            session.executor.updater.end_epoch(loss)
    state = session.state_dict()
    session.close()
    session = open_session(world, tried(precision))
    session.load_state_dict(state)
    verifier.compare_restarted(session.executor)
    if (data := first_evaluated(session.job)) is not None:
        verifier.compare_score(session.executor, data)
    note = () if session.feed.streams else _goes_on(session, early, losses)
    session.close()
    return replace(verifier.verified, notes=(*verifier.verified.notes, *note))


def _goes_on(session: Any, state: Any, losses: Sequence[float]) -> tuple[str, ...]:
    """What is said where steps from a state that was saved are not those without a break."""
    session.load_state_dict(state)
    for number in range(RESTARTED_AFTER, STEPS):
        loss = session.executor.step(_take(session.feed, number))
        if not math.isclose(loss, losses[number], rel_tol=_SAME_LOSS) and math.isfinite(losses[number]):
            return (
                f"a run that goes on from a checkpoint trains otherwise: after {RESTARTED_AFTER} steps and a restart, "
                f"the loss of step {number} is {loss:.6g}, and {losses[number]:.6g} without: give what the job keeps "
                "in Python as Job.state",
            )
    return ()


def _take(feed: Feed, number: int) -> Any:
    """The share of a step: the first two batches of each epoch and its last; of a stream those that come."""
    if not feed.streams:
        epoch, place = divmod(number, STEPS // 2)
        last = (feed.batches or 1) - 1
        feed.go_to(epoch, last if place == 2 else min(place, last))
    for _ in range(2):
        for share in feed.shares():
            return share
    raise InputError("the data have no batch", code="trial.no-data")


def _plain_loop(
    connection: Connection, tried: Callable[[JobPrecision], Job], strategy: Strategy, *, draws: bool
) -> None:
    # For as long as the process lives.
    forget_ranks()

    def examiner_in(precision: JobPrecision) -> Examiner:
        device = choose_device("auto", local_rank=0, local_size=strategy.devices)
        return Examiner(tried(precision), strategy, device, draws=draws)

    # In another process, so that here every call is the first. One that has asked for CUDA cannot be forked.
    probe = Forked(lambda _: examiner_in("fp64").runs())
    precision: JobPrecision = "fp64" if probe.answer() else "fp32"
    probe.end()
    examiner = examiner_in(precision)
    connection.send_bytes(pickle.dumps(precision))
    while True:
        if not _answer(connection, partial(_examined, examiner, heard(connection))):
            os._exit(0)


def _examined(examiner: Examiner, step: Examined) -> Verified:
    try:
        if isinstance(step, ComparedStep):
            return examiner(step)
        return examiner.restarted(step) if isinstance(step, WholeState) else examiner.scored(step)
    except TrimaranError as error:
        if isinstance(error, InputError) or ran_out(error) is not None:
            return Verified(reason=error.message)
        raise


def _asked(metric: Callable[[Any, Any], float] | None) -> Callable[[Any, Any], float] | None:
    """A metric that is no number where it fails, as one may on samples of one class."""
    if metric is None:
        return None

    def value(output: Any, target: Any) -> float:
        return attempted("Job.metric", lambda: float(metric(output, target)), math.nan, metric)

    return WholeMetric(value) if isinstance(metric, WholeMetric) else value


def _without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    return model
