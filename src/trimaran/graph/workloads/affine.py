"""A workload at any batch, from those at two batches.

A step does the same kernels at every batch, and every size in it is `a + b * batch`: weights do not grow, everything
else grows with the samples. What decides by the batch, such as a model that takes another path for a small one, has
another structure at another batch; that is seen, and has no such form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trimaran.graph.types import Phase
from trimaran.graph.workload import Work, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What a work gains with one sample more.

    Attributes:
        flops: [FLOP]
        nbytes: [bytes]
        dims: each of its shape
    """

    flops: float
    nbytes: int
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineWorkload:
    """A workload as a function of the batch.

    Attributes:
        base: at one batch
        growth: by place of the works that grow with the batch
        input_bytes: of one sample [bytes]
    """

    base: Workload
    growth: Mapping[int, Growth]
    input_bytes: int

    def at(self, batch: int) -> Workload:
        """The workload at a batch.

        Args:
            batch: samples
        """
        more = batch - self.base.batch
        works = tuple(
            work if (growth := self.growth.get(place)) is None else _grown(work, growth, more)
            for place, work in enumerate(self.base.works)
        )
        return replace(self.base, batch=batch, works=works, input_bytes=self.base.input_bytes + more * self.input_bytes)


def affine(low: Workload, high: Workload) -> AffineWorkload | None:
    """The function through two workloads of one step.

    Args:
        low: at some batch; it may lack the update, which depends on no batch
        high: at the next larger batch

    Returns:
        It; None: the two differ in more than sizes.
    """
    before = tuple(work for work in low.works if work.phase is not Phase.UPDATE)
    after = tuple(work for work in high.works if work.phase is not Phase.UPDATE)
    if high.batch != low.batch + 1 or low.gradients != high.gradients or not _alike(before, after):
        return None
    growth = {
        place: Growth(
            flops=large.flops - small.flops,
            nbytes=large.nbytes - small.nbytes,
            dims=tuple(b - a for a, b in zip(small.dims, large.dims, strict=True)),
        )
        for place, (small, large) in enumerate(zip(before, after, strict=True))
        if small != large
    }
    return AffineWorkload(base=high, growth=growth, input_bytes=high.input_bytes - low.input_bytes)


def _form(work: Work) -> tuple[object, ...]:
    """What must not change with the batch."""
    return work.kind, work.phase, work.gradient, work.module, work.name, work.dtype, work.launches, len(work.dims)


def _alike(low: tuple[Work, ...], high: tuple[Work, ...]) -> bool:
    return len(low) == len(high) and all(_form(a) == _form(b) for a, b in zip(low, high, strict=True))


def _grown(work: Work, growth: Growth, more: int) -> Work:
    return Work(
        kind=work.kind,
        phase=work.phase,
        gradient=work.gradient,
        module=work.module,
        name=work.name,
        dtype=work.dtype,
        flops=work.flops + more * growth.flops,
        nbytes=work.nbytes + more * growth.nbytes,
        dims=tuple(size + more * gain for size, gain in zip(work.dims, growth.dims, strict=True)),
        launches=work.launches,
    )
