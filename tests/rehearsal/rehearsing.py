"""One rank of a script, rehearsed in a process of its own as the command does."""

from pathlib import Path

from trimaran.machine.find import find_machine
from trimaran.rehearsal.launch import run_ranks
from trimaran.rehearsal.record import Record
from trimaran.rehearsal.request import Gpu, RankRequest


def rehearse_rank(
    script: Path, *arguments: object, folder: Path, cluster: str = "dgx-h100", rank: int = 0, world: int = 1
) -> Record:
    """Rehearse one rank alone.

    Args:
        script: for torchrun
        arguments: of it
        folder: for what the process writes
        cluster: whose device it has, with eight times its memory
        rank: which
        world: of how many
    """
    device = find_machine(cluster).node.device
    capability = (9, 0) if device.architecture == "hopper" else (8, 0)
    request = RankRequest(
        script=str(script),
        arguments=tuple(map(str, arguments)),
        rank=rank,
        world=world,
        per_node=min(8, world),
        gpu=Gpu(device.title, device.name, 8 * device.memory.nbytes, capability, device.multiprocessors),
        together=(rank,),
        meeting=str(folder),
        record=str(folder / "record"),
        output=str(folder / "output"),
    )
    (found,) = run_ranks([request], folder=folder)
    assert found.record.end.how in ("finished", "steps"), found.printed
    return found.record
