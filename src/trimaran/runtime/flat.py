"""Collectives on flat tensors, under the names that this torch has for them.

torch 2.13 gave them other names, and warns of the old ones.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""Gather equal parts into one tensor: `(whole, part, group, async_op)`."""

reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""Sum tensors and keep equal parts of the sum: `(part, whole, op, group, async_op)`."""
