"""A part of this process in which the user's code is alone: without a process group, and without variables of ranks.

What a job does among ranks is compared with what it does in one process. In the process of a rank both would see the
same world, and what is divided by its size would be divided in both.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import distributed_c10d

OF_RANKS = re.compile(
    "((LOCAL_|GROUP_|ROLE_|NODE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|(TORCHELASTIC|SLURM|OMPI|PMI|PMIX|MV2|FLUX)_.*)"
)
"""Environment variables in which launchers say which of how many processes this is."""


def forget_ranks() -> dict[str, str]:
    """Remove variables of ranks from the environment of this process.

    Returns:
        Those that were there.
    """
    told = {name: one for name, one in os.environ.items() if OF_RANKS.fullmatch(name)}
    for name in told:
        del os.environ[name]
    return told


_groups: list[tuple[dist.ProcessGroup, dict[str, str]]] = []


@contextmanager
def alone() -> Iterator[None]:
    """What code sees that `python train.py` runs: no group, no ranks."""
    group = dist.group.WORLD
    told = forget_ranks()
    if group is not None:
        _groups.append((group, told))
        distributed_c10d._update_default_pg(None)
    try:
        yield
    finally:
        if group is not None:
            _groups.pop()
            distributed_c10d._update_default_pg(group)
        os.environ.update(told)


def is_one_of_several() -> bool:
    """Whether this process is one of several, and is alone at the moment."""
    return bool(_groups)


@contextmanager
def among_ranks() -> Iterator[None]:
    """Within `alone`: the group of this rank and its variables, again."""
    group, told = _groups[-1]
    distributed_c10d._update_default_pg(group)
    os.environ.update(told)
    try:
        yield
    finally:
        forget_ranks()
        distributed_c10d._update_default_pg(None)
