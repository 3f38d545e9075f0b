"""What an environment says of this process."""

from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem
from trimaran.launch.world import World, choose_device, join_world, read_place

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_ID": "77",
}


def test_torchrun_says_where_a_process_stands() -> None:
    place = read_place(TORCHRUN)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size) == (5, 8, 1, 4)


def test_slurm_says_where_a_process_stands() -> None:
    """Two tasks on each of the nodes 0 to 2, one on node 3."""
    place = read_place(SLURM)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size) == (5, 7, 1, 2)


def test_a_batch_script_of_slurm_is_alone() -> None:
    """It has a SLURM_PROCID of its own, and the number of tasks of the job, but no step."""
    assert read_place({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}) is None


def test_a_process_started_by_nobody_is_alone() -> None:
    assert join_world(device="cpu", environment={}) == World()


def test_a_world_of_one_needs_no_process_group() -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    assert join_world(device="cpu", environment=variables) == World()


def test_a_rank_without_a_meeting_point_is_told_what_lacks() -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2"}
    with raises("world.no-master", EnvironmentProblem, match="MASTER_ADDR.*MASTER_PORT"):
        join_world(device="cpu", environment=variables)


@pytest.mark.parametrize(
    ("variables", "code", "figures"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "world.impossible-rank", {"rank": 2, "size": 2}),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "world.bad-variable", {"match": "RANK"}),
    ],
)
def test_variables_that_cannot_be_are_refused(variables: dict[str, str], code: str, figures: dict[str, Any]) -> None:
    with raises(code, EnvironmentProblem, **figures):
        read_place(variables)


def test_more_ranks_than_gpus_run_on_the_cpu_unless_gpus_were_asked_for() -> None:
    assert choose_device("auto", local_rank=0, local_size=1000) == "cpu"
    with raises("world.too-few-gpus", EnvironmentProblem, ranks=1000):
        choose_device("cuda", local_rank=0, local_size=1000)
