"""What launchers write in the environment of the processes that they start."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.errors import EnvironmentProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an environment says of this process: the part of a `World` that is known before anything is joined.

    Attributes:
        rank: number of this process
        size: number of processes
        local_rank: number of this process on its machine
        local_size: number of processes on this machine
        started_by: for messages
        own_gpu: the launcher shows each process one GPU, its own
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    started_by: str
    own_gpu: bool = False


def read_place(variables: Mapping[str, str]) -> Place | None:
    """What torchrun or Slurm wrote in the environment of this process.

    Args:
        variables: environment variables

    Returns:
        None where neither started this process.

    Raises:
        EnvironmentProblem: variables are missing or contradict each other

    Example:
        >>> read_place({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}).rank
        1
        >>> read_place({}) is None
        True
    """
    if "RANK" in variables and "WORLD_SIZE" in variables:
        rank, size = number(variables, "RANK"), number(variables, "WORLD_SIZE")
        local_size = number(variables, "LOCAL_WORLD_SIZE", default=size)
        local_rank = number(variables, "LOCAL_RANK", default=rank % local_size)
        place = Place(rank=rank, size=size, local_rank=local_rank, local_size=local_size, started_by="torchrun")
    elif "SLURM_PROCID" in variables and "SLURM_STEP_NUM_TASKS" in variables:
        # Only srun sets SLURM_STEP_NUM_TASKS: the batch script itself also has a SLURM_PROCID, and is alone.
        rank, size = number(variables, "SLURM_PROCID"), number(variables, "SLURM_STEP_NUM_TASKS")
        local_rank = number(variables, "SLURM_LOCALID")
        local_size = _tasks_here(variables, default=size)
        place = Place(
            rank=rank, size=size, local_rank=local_rank, local_size=local_size, started_by="Slurm", own_gpu=True
        )
    else:
        return None
    if not (0 <= place.rank < place.size and 0 <= place.local_rank < place.local_size):
        raise EnvironmentProblem(
            f"{place.started_by} says rank {place.rank} of {place.size}, local rank {place.local_rank} of "
            f"{place.local_size}: these cannot be; unset the variables or start the program again",
            code="world.impossible-rank",
            rank=place.rank,
            size=place.size,
        )
    return place


def first_host(hosts: str) -> str:
    """The first host of a list as Slurm writes it; rank 0 runs there.

    Args:
        hosts: such as "gpu[03-05,9]-a,login1"

    Example:
        >>> first_host("gpu[03-05,9]-a,login1"), first_host("a1,a2")
        ('gpu03-a', 'a1')
    """
    match = re.match(r"([^\[,]*)(?:\[([0-9]+)[^\]]*\]([^\[,]*))?", hosts)
    return "".join(part or "" for part in match.groups()) if match is not None else hosts


def _tasks_here(variables: Mapping[str, str], *, default: int) -> int:
    # Such as "2(x3),1": two tasks on each of three nodes, one on the fourth.
    text = variables.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        tasks, _, repeat = part.partition("(x")
        counts += [int(tasks)] * int(repeat.rstrip(")") or 1)
    node = number(variables, "SLURM_NODEID", default=0)
    return counts[node] if node < len(counts) else default


def number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A whole number among environment variables.

    Args:
        variables: environment variables
        name: of the variable
        default: where it is missing

    Raises:
        EnvironmentProblem: missing without a default, or no whole number
    """
    text = variables.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise EnvironmentProblem(
            f"the environment variable {name} must be a whole number, it is {text!r}", code="world.bad-variable"
        ) from None
