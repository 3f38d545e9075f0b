"""Formulas of when a hybrid of data and model parallelism reaches the target before data parallelism alone.

    C = T · S · E           time to the target = time of a step × steps of an epoch × epochs
    SU_N   = SE_N · N · E_1 / E_N                      data parallelism on N devices
    SU^M_N = SU^M · SE_N · N · E_1 / E_N               N workers of M devices each, M·N in all
    SU^M > M · (SE_MN / SE_N) · (E_N / E_MN)           the hybrid is ahead of data parallelism on the same M·N devices

The last takes a fixed local batch, so that more replicas mean a larger global batch. With the local batch free, see
`trimaran.features.crossover.steps.Replicas.needed_speedup`.

Source:
    Pal et al., "Optimizing Multi-GPU Parallelization Strategies for Deep Learning Training", IEEE Micro 39(5), 2019;
    arXiv:1907.13257.
"""

from trimaran.base.errors import InputError


def needed_worker_speedup(width: int, *, epoch_ratio: float, efficiency_ratio: float = 1.0) -> float:
    """The SU^M above which the hybrid is ahead on the same devices, at a fixed local batch.

    Args:
        width: M, devices of a worker
        epoch_ratio: E_MN / E_N, from 1 on as larger batches need more epochs
        efficiency_ratio: SE_MN / SE_N

    Example:
        >>> needed_worker_speedup(2, epoch_ratio=1.6)
        1.25
    """
    _check_positive(width=width, epoch_ratio=epoch_ratio, efficiency_ratio=efficiency_ratio)
    return width * efficiency_ratio / epoch_ratio


def hybrid_over_data(width: int, *, worker_speedup: float, epoch_ratio: float, efficiency_ratio: float = 1.0) -> float:
    """Time to the target of data parallelism by that of the hybrid, on the same devices, at a fixed local batch.

    Args:
        width: M, devices of a worker
        worker_speedup: SU^M
        epoch_ratio: E_MN / E_N
        efficiency_ratio: SE_MN / SE_N

    Returns:
        Above 1 where the hybrid is ahead.

    Example:
        The study's Inception-V3 on 256 devices: 23 epochs for 256 batches, 12 for 128.

        >>> round(hybrid_over_data(2, worker_speedup=1.32, epoch_ratio=23 / 12), 3)
        1.265
    """
    _check_positive(worker_speedup=worker_speedup)
    return worker_speedup / needed_worker_speedup(width, epoch_ratio=epoch_ratio, efficiency_ratio=efficiency_ratio)


def _check_positive(**figures: float) -> None:
    for name, value in figures.items():
        if not 0.0 < value < float("inf"):
            raise InputError(
                f"{name.replace('_', ' ')} must be a positive number, got {value!r}",
                code="hybrid.bad-epochs",
                **{name: value},
            )
