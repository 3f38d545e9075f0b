"""What a rank's process is told: which script, which rank of how many, on what device, where to write, when to stop."""

from pathlib import Path

import msgspec

UNFINISHED, REMOVED = ".rehearsed", ".removed-in-rehearsal"
"""End the names of a file that is written into until it is closed, and of what was there before and was removed."""


class Gpu(msgspec.Struct, frozen=True):
    """The device that is simulated.

    Attributes:
        name: as torch would tell it, such as "NVIDIA H100 80GB HBM3"
        catalog_name: in this project's catalog, such as "h100-sxm"
        memory_bytes: of the device [bytes]
        capability: of its architecture, such as (9, 0)
        multiprocessors: number
    """

    name: str
    catalog_name: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int


class RankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One rank to rehearse.

    Attributes:
        script: path of a file, or a module's name
        is_module: whether `script` is a module's name, as of `python -m`
        arguments: of the script
        rank: global
        world: ranks in all
        per_node: ranks of a node
        gpu: that every rank has
        together: global ranks that are rehearsed side by side with this one, itself included
        at_barriers: those that run at the same time as this one and meet it at barriers, no more
        meeting: folder through which they exchange objects and messages; it exists
        record: path of the record to write
        output: path of what the script prints
        most_steps: optimizer steps after which the rank stops
        most_seconds: after which it stops [s]
        hints: values to take for what no data can tell, by name: "loss", "norm", "finite", "routing_load", "count"
        allocator: as in PYTORCH_CUDA_ALLOC_CONF
        patience_s: how long to wait for a rank that is rehearsed side by side [s]
        stand_ins: of ranks that send objects to this one and are not rehearsed, the sender and the receiver among those
            that are, whose objects are taken
        like: of ranks that are not rehearsed, the rehearsed one that stands for it
        awaited: paths that other ranks save, and after how many calls of the group of all ranks: who looks for one
            after more of them finds it
        granted: what a first run of the rank ended for want of, and this one is given: "memory", "flash_attn"
    """

    script: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    rank: int
    world: int
    per_node: int
    gpu: Gpu
    together: tuple[int, ...]
    meeting: str
    record: str
    output: str
    most_steps: int = 3
    most_seconds: float = 600.0
    hints: dict[str, float] = {}
    allocator: str = ""
    patience_s: float = 120.0
    stand_ins: dict[int, tuple[int, int]] = {}
    like: dict[int, int] = {}
    awaited: dict[str, int] = {}
    at_barriers: tuple[int, ...] = ()
    granted: tuple[str, ...] = ()

    @property
    def made_folders(self) -> Path:
        """File that lists the folders that the script makes, its open files and what it removes, each before a null."""
        return Path(f"{self.record}.folders")

    def ending_of(self, rank: int) -> Path:
        """File in the folder where ranks meet that says that one of them has ended."""
        return Path(self.meeting, f"ended-{rank}")
