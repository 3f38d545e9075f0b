"""A batch of any size on meta tensors, in the form of a job's own data: shapes without values.

A few samples of the data are made and collated; every tensor's first dim, which counts samples, then becomes what was
asked for. So data of which the batch is larger than memory, or than the data set, can be looked at all the same.
"""

from typing import Any

import torch
from torch import Tensor

from trimaran.graph.batches import map_tensors
from trimaran.graph.sample import sample_batch
from trimaran.job import Job


def meta_batch(job: Job, samples: int, *, like: Any = None) -> Any:
    """A batch on meta tensors.

    Args:
        job: whose data it is like
        samples: its size
        like: a batch of the job of any size, where there is one already

    Raises:
        InputError: the data cannot be made, indexed or collated
    """
    return map_tensors(sample_batch(job) if like is None else like, lambda tensor: _resized(tensor, samples))


def _resized(tensor: Tensor, samples: int) -> Tensor:
    wide = torch.empty((samples, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
    if tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last):
        return wide.to(memory_format=torch.channels_last)
    return wide
