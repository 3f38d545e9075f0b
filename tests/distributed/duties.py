"""What ranks do in the tests of launching: functions that other processes can import, which is quick."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trimaran.base.errors import InputError
from trimaran.launch.world import World, join_world

LISTENING = "0A"


def describe(world: World, word: str) -> dict[str, object]:
    return {
        "rank": world.rank,
        "size": world.size,
        "local_rank": world.local_rank,
        "local_size": world.local_size,
        "device": world.device,
        "backend": world.backend,
        "word": word,
        "threads": torch.get_num_threads(),
        "order": list({f"class {number}" for number in range(20)}),
        "joined": join_world().size,
        "python_path": os.environ.get("PYTHONPATH"),
    }


def add_ranks(world: World) -> float:
    total = torch.tensor([float(world.rank)])
    if world.size > 1:
        dist.all_reduce(total)
    return float(total)


def count(world: World, numbers: int) -> None:
    for number in range(numbers):
        world.report({"number": number})


def refuse(world: World, refusing: int) -> None:
    if world.rank == refusing:
        raise InputError("this will not do", code="test.refused", value=7)
    dist.barrier()


def stumble(world: World, stumbling: int) -> None:
    sys.stdout.write("so far, so good\n")
    dist.barrier()
    if world.rank == stumbling:
        raise ZeroDivisionError("too far")
    dist.barrier()


def leave(world: World, leaving: int) -> None:
    if world.rank == leaving:
        dist.barrier()
        raise SystemExit(3)
    hang(world)


def hang(world: World) -> None:
    """Never end, with a process of its own beside it."""
    child = subprocess.Popen(["sleep", "600"])
    world.report({"pids": [os.getpid(), child.pid]})
    dist.barrier()
    threading.Event().wait()


def finish(world: World, fails: bool) -> None:
    """Return or raise as soon as all have reported."""
    world.report({"pids": [os.getpid()]})
    dist.barrier()
    if fails:
        raise ZeroDivisionError("too far")


def die_in_collective(world: World, dying: int) -> None:
    world.report({"pids": [os.getpid()]})
    dist.barrier()
    if world.rank == dying:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def die_beside_hanging(world: World, dying: int) -> None:
    if world.rank == dying:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    hang(world)


def listening(world: World) -> list[str]:
    """Addresses on which this process accepts connections, after its ranks have talked."""
    dist.all_reduce(torch.zeros(1))
    pair = dist.new_group(backend="gloo")
    dist.all_reduce(torch.zeros(1), group=pair)
    own = {
        link for descriptor in Path("/proc/self/fd").iterdir() if (link := _target(descriptor)).startswith("socket:")
    }
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own:
                found.append(_address(fields[1].partition(":")[0]))
    return found


def own_network(world: World) -> str:
    """The network namespace that this rank is in, after all have talked."""
    add_ranks(world)
    return os.readlink("/proc/self/ns/net")  # noqa: PTH115 of a link that is no path


def report_network_and_stumble(world: World, stumbling: int) -> None:
    world.report({"network": own_network(world)})
    stumble(world, stumbling)


def time_transfers(world: World, nbytes: int, times: int) -> dict[str, list[float]]:
    """Time a message from rank 0 to rank 1 until a short answer is back, and an all-reduce, several times [s]."""
    tensor, answer = torch.zeros(nbytes // 4), torch.zeros(1)
    found: dict[str, list[float]] = {"send": [], "all_reduce": []}
    for _ in range(times):
        dist.barrier()
        start = time.perf_counter()
        if world.rank == 0:
            dist.send(tensor, 1)
            dist.recv(answer, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(answer, 0)
        found["send"].append(time.perf_counter() - start)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        found["all_reduce"].append(time.perf_counter() - start)
    return found


def time_gathering(world: World, nbytes: int, times: int) -> list[float]:
    """Time until rank 0 has a message of each other rank, several times [s]."""
    tensors = [torch.zeros(nbytes // 4) for _ in range(world.size)]
    found = []
    for _ in range(times):
        dist.barrier()
        start = time.perf_counter()
        if world.rank == 0:
            for work in [dist.irecv(tensors[rank], rank) for rank in range(1, world.size)]:
                work.wait()
        else:
            dist.send(tensors[0], 0)
        found.append(time.perf_counter() - start)
    return found


def time_pairs(world: World, nbytes: int, times: int) -> dict[str, list[tuple[float, float]]]:
    """Messages from each rank of the first half to its counterpart in the second, and to its neighbour.

    Returns:
        Start and end of each, on the clock that all ranks of a machine share [s].
    """
    tensor = torch.zeros(nbytes // 4)
    half = world.size // 2
    found: dict[str, list[tuple[float, float]]] = {"across": [], "within": []}
    for _ in range(times):
        for kind, sends, distance in (("across", world.rank < half, half), ("within", world.rank % 2 == 0, 1)):
            dist.barrier()
            start = time.perf_counter()
            if sends:
                dist.send(tensor, world.rank + distance)
            else:
                dist.recv(tensor, world.rank - distance)
            found[kind].append((start, time.perf_counter()))
    return found


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:  # the one that listed the folder
        return ""


def _address(text: str) -> str:
    """An address of /proc/net: words of 32 bits, each in the byte order of the machine."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def all_reduce_curve(world: World) -> tuple[Any, float]:
    """The curve of an all-reduce of two ranks by size, and what it takes to find that out [s]."""
    from tests import builders

    from trimaran.measure.calibration.links import measure_curves

    started_s = time.perf_counter()
    key = builders.curve_key("AR", 2)
    curve = measure_curves(world, [key], sizes=(16, 16 << 10, 128 << 10, 1 << 20, 4 << 20))[key]
    return curve, time.perf_counter() - started_s


def fill_address_space(world: World, filling: int, nbytes: int) -> None:
    """Take memory in pieces of 50 MiB, where no more than some may be taken."""
    dist.barrier()
    if world.rank == filling:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + nbytes, taken + nbytes))
        pieces = []
        while True:
            pieces.append(torch.zeros(50 * 2**20 // 4))
    dist.barrier()


def fill_group(world: World, filling: int, group: str) -> None:
    """Take memory in a control group until the kernel kills this process."""
    dist.barrier()
    if world.rank == filling:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
        pieces = []
        while True:
            pieces.append(torch.ones(20 * 2**20 // 4))
    dist.barrier()
