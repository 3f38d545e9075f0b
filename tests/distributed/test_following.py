"""What goes by ranks is another training on each number of them: seen by a look, alone and among ranks, and by a trial.

A comparison in the world of the ranks was blind: its one process was told the same number of ranks as they were.
"""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests import builders
from tests.distributed.following import PLACES, cases, following_job
from tests.distributed.training import verifier
from tests.forks.client import launch

from trimaran.base.errors import ExecutionError, InputError
from trimaran.graph.capture.capture import capture, capture_and_look
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.refusals import objection
from trimaran.runtime.executor import Executor
from trimaran.user_code.alone import alone

REPLICAS = builders.strategy(dp=2)


def test_each_place_is_refused_before_a_step_with_one_reason() -> None:
    for place, way in zip(PLACES, ("group", "variable") * 4, strict=True):
        found = objection(capture_and_look(following_job(place, way)).graph.behaviour, REPLICAS)
        assert "asks which rank of how many this is" in (found or ""), (place, way)


def look_and_verify(world: World) -> list[tuple[str, str]]:
    """For each case what a look in a rank says, and what came of a step that is verified."""
    # As torchrun does.
    os.environ["WORLD_SIZE"] = str(world.size)
    found = []
    for place, way in cases():
        job = following_job(place, way)
        try:
            seen = capture_and_look(job).graph.behaviour if world.rank == 0 else None
            said = objection(seen, REPLICAS) or ""
        except InputError as error:
            said = str(error)
        made = capture(job)
        programs = lower(made.graph, REPLICAS, batch=16), lower_evaluation(made.graph, REPLICAS, batch=16)
        executor = Executor(job, REPLICAS, *programs, world, capture=made)
        feed, verify = executor.feed(), verifier(executor, job, REPLICAS, world)
        outcome = "verified"
        try:
            for _, share in zip(range(2), feed.shares(), strict=False):
                verify.step(share, epoch=feed.epoch, index=feed.index - 1)
        except (ExecutionError, InputError) as error:
            outcome = str(error)
        found.append((said, outcome))
        executor.close()
    return found


@pytest.mark.timeout(180)
def test_among_ranks_both_a_look_and_a_verified_step_see_it(tmp_path: Path) -> None:
    first, _ = launch(look_and_verify, (), ranks=2, log_dir=tmp_path, device="cpu")
    for (place, way), (said, outcome) in zip(cases(), first, strict=True):
        assert said, (place, way)
        assert outcome != "verified", (place, way)
        if place in PLACES and way != "unguarded":
            assert "asks which rank of how many this is" in said, (place, way, said)
        expected = "cannot take the step" if way == "unguarded" else "one process"
        assert expected in outcome, (place, way, outcome)


def ask_alone(world: World) -> tuple[bool, bool, bool, float]:
    """What code is told alone, and that the group is there afterwards."""
    with alone():
        asked = dist.is_initialized(), "WORLD_SIZE" in os.environ
    total = torch.ones(1)
    dist.all_reduce(total)
    return *asked, "WORLD_SIZE" in os.environ, float(total)


def test_code_that_is_alone_is_told_of_no_ranks_and_the_group_is_put_back(tmp_path: Path) -> None:
    for told, found in enumerate(launch(ask_alone, (), ranks=2, log_dir=tmp_path, device="cpu")):
        assert found[0] is False, told
        assert found[1] is False, told
        assert found[3] == 2.0, told
