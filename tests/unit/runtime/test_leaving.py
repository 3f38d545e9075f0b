"""A process that ends its groups frees what holds them first."""

from pathlib import Path

import torch.distributed as dist

from trimaran.launch.world import leave_world


class Holder:
    """Holds itself, as modules under DDP do, and notes whether there are groups when it is freed."""

    def __init__(self, noted: list[bool]) -> None:
        self.noted, self.own = noted, self

    def __del__(self) -> None:
        self.noted.append(dist.is_initialized())


def test_what_only_a_cycle_holds_is_freed_while_there_are_groups(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    noted: list[bool] = []
    Holder(noted)
    leave_world()
    assert noted == [True]
    assert not dist.is_initialized()
