"""The processes that train together, as each of them sees them.

A world is made in one of two ways. `launch.supervise.launch` starts the ranks itself, on one machine. Or torchrun,
Slurm or Ray Train has started them, and `join_world` takes part; it never starts another process.

This module does not import torch when it is imported, so that a parent that only launches starts quickly.

`calm_event_loops` keeps gloo's event loops from taking the processor from gloo's workers. A process group of gloo has a
thread that waits for events of its sockets, and workers that run collectives. A worker holds the lock of a connection
while it writes to it. Meanwhile the event loop finds the connection ready, cannot take the lock, and asks again at
once, in a busy loop. Where all cores have ranks, the write wakes the loop, the scheduler gives it the core of the
worker that holds the lock, and the loop spins there until its time slice is over:

    worker   ── lock, write ─┐                              ┌─ unlock ──
    loop                     └─ ready? locked. ready? … ────┘
                              |◀────────── 3 to 4 ms ──────▶|

A thread under the policy `SCHED_BATCH` does not preempt others when it wakes, so that the worker gets to its unlock.
Measured on 2 cores, 2 ranks: an all-reduce of 250 KB takes 2.0 ms on average without this, 0.6 ms with it. Any process
may set this policy for its own threads.

Tried and left: pinning ranks to cores (2.7 ms: the loop then always meets the worker), a niceness of 19 (the loop keeps
the core until the next tick), `SCHED_IDLE` (starves next to compute), real-time priorities (need a privilege).
"""

import atexit
import gc
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trimaran.base.errors import EnvironmentProblem
from trimaran.launch.addresses import VARIABLE, choose_interface

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------------------
# Environment variables that launchers set in the processes that they start


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process stands among those that train together, before it has joined them.

    Attributes:
        rank: number of this process
        size: number of processes
        local_rank: number of this process on its machine
        local_size: number of processes on this machine
        started_by: for messages
        own_gpu: the launcher shows each process one GPU, its own
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    started_by: str = ""
    own_gpu: bool = False


def read_place(variables: Mapping[str, str]) -> Place | None:
    """The place of this process, from the variables of torchrun or Slurm.

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
            f"{place.local_size}: these contradict each other; unset the variables or start the program again",
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


def step_port(variables: Mapping[str, str]) -> int:
    """A port that every task of a Slurm step can work out, and that jobs and steps on one machine do not share.

    It is below those that Linux gives to connections that ask for none (32768 and more), which may be taken.

    Args:
        variables: environment variables

    Example:
        >>> step_port({"SLURM_JOB_ID": "17020"}), step_port({"SLURM_JOB_ID": "17020", "SLURM_STEP_ID": "1"})
        (15020, 23211)
    """
    job, step = (number(variables, name, default=0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return 15000 + (job + 8191 * step) % 17000


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


def running_system(namespace: str = "") -> str | None:
    """A name of the running system, the same in all of its processes.

    Args:
        namespace: "net" or "pid": the name is the same only in processes that share this namespace too; empty: none

    Returns:
        None where the system does not tell.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns', namespace).readlink()}" if namespace else boot
    except OSError:
        return None


_TASKS = Path("/proc/self/task")
_EVENT_LOOP = "gloo_tcp_loop"


def calm_event_loops() -> int:
    """Set the policy of all event loops that this process has by now; call it after process groups were made.

    Returns:
        How many there are; 0 where the system or torch names no threads.
    """
    policy = getattr(os, "SCHED_BATCH", None)
    if policy is None or not _TASKS.is_dir():
        return 0
    count = 0
    for task in _TASKS.iterdir():
        # A thread may end while its files are read.
        with suppress(OSError):
            if (task / "comm").read_text().strip() == _EVENT_LOOP:
                os.sched_setscheduler(int(task.name), policy, os.sched_param(0))
                count += 1
    return count


Backend = Literal["none", "gloo", "nccl"]
DeviceChoice = Literal["auto", "cpu", "cuda"]

# A rank that compiles, or loads a large data set, keeps the others waiting; a rank that is gone closes its
# connections and is noticed at once. So the time-out only has to catch a rank that hangs.
TIMEOUT_S = 600.0


def ignore_event(event: Mapping[str, object]) -> None:
    """Do nothing: for `World.report` without a parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World(Place):
    """A place among processes that train together, on its device and with its connections.

    Attributes:
        device: "cpu", or "cuda:<n>"
        backend: of collectives on that device; "none" for a process that is alone
        timeout_s: how long a collective may wait for the others [s]
        report: sends an event, such as `{"step": 3, "loss": 0.5}`, to the parent; does nothing without a parent
    """

    device: str = "cpu"
    backend: Backend = "none"
    timeout_s: float = TIMEOUT_S
    report: Callable[[Mapping[str, object]], None] = ignore_event


def join_world(
    *,
    device: DeviceChoice = "auto",
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> World:
    """Take part in the world that this process was started in; alone where it was started alone.

    What is joined here is left when the process ends (`leave_world`).

    A process group that exists already (Ray Train makes one) is used as it is. Otherwise the variables of torchrun
    (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`), then those of a Slurm job step are read.

    Args:
        device: "cuda" uses the GPU of this process's local rank; "auto" does where there is one
        timeout_s: how long a collective may wait for the others [s]
        environment: read in place of the environment variables of the process

    Raises:
        EnvironmentProblem: variables are missing or contradict each other, or there is no such device
    """
    variables = os.environ if environment is None else environment
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return _initialised(variables, device)
    place = read_place(variables)
    if place is None or place.size == 1:
        return World(device=choose_device(device))
    store = _next_meeting_point(variables, place, timeout_s)
    if place.size > place.local_size and VARIABLE not in variables:
        interface = choose_interface(store, _master(variables), rank=place.rank, size=place.size)
        if interface is not None:
            os.environ[VARIABLE] = interface
    world = open_world(place, store=store, device=device, timeout_s=timeout_s)
    atexit.register(leave_world)
    return world


def open_world(
    place: Place,
    *,
    store: "Store | None",
    device: DeviceChoice,
    timeout_s: float = TIMEOUT_S,
    report: Callable[[Mapping[str, object]], None] = ignore_event,
) -> World:
    """Make the process group of a world of several ranks.

    Args:
        place: of this process
        store: where the ranks find each other; None: where `MASTER_ADDR` and `MASTER_PORT` say
        device: as for `join_world`
        timeout_s: as for `join_world` [s]
        report: as in `World`

    Raises:
        EnvironmentProblem: there is no such device
    """
    import torch
    import torch.distributed as dist

    name = choose_device(device, local_rank=place.local_rank, local_size=place.local_size, own_gpu=place.own_gpu)
    on_gpu = name.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(name)
    dist.init_process_group(
        # Tensors in host memory travel too: clocks, weights that are gathered to be saved.
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=timeout_s),
        device_id=torch.device(name) if on_gpu else None,
    )
    calm_event_loops()
    return World(
        **asdict(place),
        device=name,
        backend="nccl" if on_gpu else "gloo",
        timeout_s=timeout_s,
        report=report,
    )


def leave_world() -> None:
    """End the process groups of this process, where there are any.

    A thread of a process group that still exists when the interpreter ends may try to run Python code, which aborts the
    process. And what DDP leaves behind ends the group that it is the last to hold with the interpreter's lock taken,
    while a thread of gloo may wait for that lock: neither ends. So what only a reference cycle keeps alive goes first.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def choose_device(choice: DeviceChoice, *, local_rank: int = 0, local_size: int = 1, own_gpu: bool = False) -> str:
    """The device of one rank.

    Args:
        choice: "auto" takes a GPU where this machine has one for each of its ranks
        local_rank: number of the rank on its machine
        local_size: number of ranks on this machine
        own_gpu: the launcher shows each rank one GPU, its own

    Returns:
        "cpu" or "cuda:<n>".

    Raises:
        EnvironmentProblem: "cuda" was asked for, and there are fewer GPUs than ranks
    """
    if choice == "cpu":
        return "cpu"
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if own_gpu and gpus == 1:
        return "cuda:0"
    if gpus >= local_size:
        return f"cuda:{local_rank}"
    if choice == "cuda":
        raise EnvironmentProblem(
            f"{local_size} ranks on this machine need {local_size} GPUs, torch sees {gpus}: "
            "start fewer ranks, or choose the CPU",
            code="world.too-few-gpus",
            ranks=local_size,
            gpus=gpus,
        )
    return "cpu"


def _initialised(variables: Mapping[str, str], device: DeviceChoice) -> World:
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    local_size = number(variables, "LOCAL_WORLD_SIZE", default=size)
    local_rank = number(variables, "LOCAL_RANK", default=rank % local_size)
    on_gpu = device != "cpu" and "nccl" in dist.get_backend_config()
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        device=choose_device("cuda", local_rank=local_rank, local_size=local_size, own_gpu=True) if on_gpu else "cpu",
        backend="nccl" if on_gpu else "gloo",
    )


def _master(variables: Mapping[str, str]) -> str:
    """The host of rank 0."""
    return variables.get("MASTER_ADDR") or first_host(variables.get("SLURM_STEP_NODELIST", "localhost"))


def _store_of_attempt(variables: Mapping[str, str], place: Place, timeout_s: float) -> "Store | None":
    """The part of torchrun's store for this start of its ranks, on one node; None: as torch does.

    torchrun keeps one store for all starts. Addresses of ranks that are gone would still be there, and a rank that is
    started again would wait for one of them. Nodes count their own starts only, so that several have no such parts.
    """
    started = variables.get("TORCHELASTIC_RESTART_COUNT")
    if started is None or variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or place.local_size != place.size:
        return None
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        variables["MASTER_ADDR"],
        number(variables, "MASTER_PORT"),
        place.size,
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
    )
    return PrefixStore(f"start-{started}", store)


_met: dict[tuple[Place, str, str], tuple["Store", int]] = {}
"""The stores at which this process has met others, each with how often."""


def _next_meeting_point(variables: Mapping[str, str], place: Place, timeout_s: float) -> "Store":
    """A part of the store that no world of this process had before.

    A script that closes its last session, and then calls `init` once more, joins a second time. Addresses of the world
    that has ended are still in the store then. And rank 0 keeps one store throughout: others could ask one that it is
    about to end.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    key = place, variables.get("MASTER_ADDR", ""), variables.get("MASTER_PORT", "")
    store, times = _met.get(key) or (_meeting_point(variables, place, timeout_s), 0)
    _met[key] = store, times + 1
    store.set_timeout(timedelta(seconds=timeout_s))
    return PrefixStore(f"world-{times}", store)


def _meeting_point(variables: Mapping[str, str], place: Place, timeout_s: float) -> "Store":
    address, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")
    if place.started_by == "torchrun":
        if address is None or port is None:
            raise EnvironmentProblem(
                f"RANK says rank {place.rank} of {place.size}, but MASTER_ADDR or MASTER_PORT is not set: start the "
                "program with torchrun, or set both to an address and a free port of rank 0's machine",
                code="world.no-master",
            )
        own = _store_of_attempt(variables, place, timeout_s)
        if own is not None:
            return own
        from torch.distributed.rendezvous import rendezvous

        # As init_process_group does it: the store of torchrun's agent, where there is one.
        meeting = rendezvous("env://", place.rank, place.size, timeout=timedelta(seconds=timeout_s))
        store: Store = next(iter(meeting))[0]
        store.set_timeout(timedelta(seconds=timeout_s))
        return store
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        _master(variables),
        int(port or step_port(variables)),
        place.size,
        is_master=place.rank == 0,
        timeout=timedelta(seconds=timeout_s),
    )
