"""A request to stop that one rank alone hears ends the training of all after one step, under every kind of plan."""

import copy
import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.distributed import called, sharing
from tests.distributed.drawn import draw_parts
from tests.distributed.sharing import Case
from tests.distributed.sharing import capture_once as capture_shared
from tests.distributed.test_callbacks import HOMES, PIPELINE, REPLICAS, ZERO1, ZERO3, captured, open_session
from tests.forks.client import launch, server
from tests.forks.server import may_capture

from trimaran.features.training.session import Session
from trimaran.launch.stop_requests import REQUESTS
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower
from trimaran.program.strategy import Strategy

ZERO2 = builders.strategy(dp=2, zero=2, units=("first", "third"))
PLACED = builders.strategy(pp=2, microbatches=2)
SHARED = Case(job="gpt", strategy=builders.strategy(tp=2))
SHARED_REPLICAS = Case(job="gpt", strategy=builders.strategy(dp=2, tp=2))
HEARD_AT = 5


def stop_all(world: World, plans: list[Strategy | Case], hearing: list[int]) -> list[tuple[Any, ...]]:
    """For each plan and each rank that hears: where the training has ended here."""
    found = []
    for plan in plans:
        for rank in hearing:
            session = _open(world, plan)
            REQUESTS.stop = 0
            for batch in session.batches():
                if session.steps == HEARD_AT and world.rank == rank:
                    REQUESTS.ask_to_stop(signal.SIGUSR1)
                session.step(batch)
            # It is over: neither an epoch more nor a step.
            left = [*session.shares(), *session.batches(), *session.end_epoch(session.epoch).keys() - {"loss"}]
            found.append((session.steps, session.stopped, session.stop_signal, len(left)))
            session.close()
    return found


def _open(world: World, plan: Strategy | Case) -> Session:
    if not isinstance(plan, Case):
        return _placed(world, plan) if plan == PLACED else open_session(world, called.make_job(), plan)
    job = dataclasses.replace(getattr(sharing, plan.job)(), epochs=100)
    made, _ = capture_shared(plan.job)
    strategy = plan.fit(made.graph)
    program = lower(made.graph, strategy, batch=job.global_batch_size, clip=job.clip_norm is not None)
    return Session(job, strategy, program, made, world, owns_world=False)


def _placed(world: World, strategy: Strategy) -> Session:
    job = called.make_job()
    made = copy.deepcopy(captured())
    strategy = dataclasses.replace(strategy, parts=draw_parts(made.graph, strategy.pp, 3))
    program = lower(made.graph, strategy, batch=job.global_batch_size, clip=True)
    return Session(job, strategy, program, made, world, owns_world=False)


def capture_before(shared: bool) -> None:
    """Called in the process that ranks are forked from."""
    if may_capture():
        captured()
        _ = capture_shared(SHARED.job) if shared else None


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("plans", "ranks"),
    [
        ([builders.strategy(), builders.strategy(microbatches=2)], 1),
        ([REPLICAS, HOMES, ZERO1, ZERO2, ZERO3, PIPELINE, PLACED, SHARED], 2),
        ([SHARED_REPLICAS], 4),
    ],
    ids=["1 rank", "2 ranks", "4 ranks"],
)
def test_all_ranks_stop_after_the_same_step(plans: list[Strategy | Case], ranks: int, tmp_path: Path) -> None:
    hearing = sorted({0, ranks - 1})
    server().call(capture_before, ranks > 1)
    told = launch(stop_all, (plans, hearing), ranks=ranks, log_dir=tmp_path, device="cpu")
    expected = (HEARD_AT + 1, True, int(signal.SIGUSR1), 0)
    assert told == [[expected] * len(plans) * len(hearing)] * ranks
