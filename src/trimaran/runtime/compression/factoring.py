"""PowerSGD: the gradient of a matrix as the product of two thin ones, with error feedback and warm start.

With n replicas, Δ_i the gradient of replica i as a matrix plus what it has lost so far, and r columns in P and Q:

    1.  P_i = Δ_i Q            first round: P = Σ P_i         Q is that of the step before
    2.  P̂ = orthonormal(P)
    3.  Q_i = Δ_iᵀ P̂           second round: Q = Σ Q_i
    4.  the sum of the Δ_i becomes P̂ Qᵀ, its part in the space of P̂
    5.  replica i keeps Δ_i - P̂ Q_iᵀ, its own part outside of that space

The residuals of all replicas sum up to exactly what is missing in 4, so that nothing is lost for good. A residual that
took the sum of 4 for its own would do so too, but each replica would then keep all by which it differs from the others.

A sum of rank r or less goes through whole. Where P has fewer independent columns than r, the QR decomposition completes
them. Vectors, and matrices that would not get smaller, go in the first round as they are.

Source:
    T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019, algorithms 1 and 2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from trimaran.program.compression import SMALLEST_BYTES, Compression
from trimaran.runtime.compression.residuals import Residuals
from trimaran.runtime.compression.types import Round
from trimaran.runtime.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bucket:
    """How a bucket is sent.

    Attributes:
        sizes: numbers of each parameter
        matrices: positions of those that are factored
        shapes: of these, as matrices
        ranks: of these, columns of P and Q
        whole: positions of those that go as they are
        residuals: of the matrices, shaped so
    """

    sizes: list[int]
    matrices: list[int]
    shapes: list[tuple[int, int]]
    ranks: list[int]
    whole: list[int]
    residuals: list[torch.Tensor]


class Factoring:
    """Sends P and Q.

    Args:
        compression: has the rank
        seed: of the first Q; the same on all replicas
    """

    def __init__(self, compression: Compression, *, seed: int) -> None:
        self._compression = compression
        self._seed = seed
        self._residuals = Residuals()
        self._buckets: dict[tuple[int, ...], _Bucket] = {}
        self._q: dict[int, torch.Tensor] = {}
        self._drawn: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def rounds(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Iterator[Round]:
        """Two rounds, or one where nothing is factored; see `types.Codec`.

        Gradients that have 16 bits already go as they are.
        """
        if flat.dtype.itemsize < SMALLEST_BYTES:
            yield Round(payload=flat, is_last=True)
            return
        bucket = self._bucket(parameters, flat)
        if not bucket.matrices:
            yield Round(payload=flat, is_last=True)
            return
        gradients = flat.split(bucket.sizes)
        matrices = [gradients[at].view(shape) for at, shape in zip(bucket.matrices, bucket.shapes, strict=True)]
        whole = [gradients[at] for at in bucket.whole]
        torch._foreach_add_(bucket.residuals, matrices)
        keys = [id(parameters[at]) for at in bucket.matrices]

        rows = [(shape[0], rank) for shape, rank in zip(bucket.shapes, bucket.ranks, strict=True)]
        first, parts = _room(flat, rows, [part.numel() for part in whole])
        ps, rest = parts[: len(rows)], parts[len(rows) :]
        for delta, key, p in zip(bucket.residuals, keys, ps, strict=True):
            torch.mm(delta, self._q[key], out=p)
        if whole:
            torch._foreach_copy_(rest, whole)
        yield Round(payload=first, is_last=False)

        if whole:
            torch._foreach_copy_(whole, rest)
        columns = [(shape[1], rank) for shape, rank in zip(bucket.shapes, bucket.ranks, strict=True)]
        second, qs = _room(flat, columns, [])
        bases = [torch.linalg.qr(p).Q for p in ps]
        for delta, basis, q in zip(bucket.residuals, bases, qs, strict=True):
            torch.mm(delta.T, basis, out=q)
            delta.addmm_(basis, q.T, alpha=-1.0)
        yield Round(payload=second, is_last=True)

        for matrix, basis, q, key in zip(matrices, bases, qs, keys, strict=True):
            torch.mm(basis, q.T, out=matrix)
            self._q[key] = self._warm(q, key)

    def lost(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """What is outside of all products so far; see `types.Codec`."""
        return self._residuals.lost(parameter)

    def _bucket(self, parameters: Sequence[torch.Tensor], flat: torch.Tensor) -> _Bucket:
        key = tuple(map(id, parameters))
        found = self._buckets.get(key)
        if found is None:
            # A bucket of other parameters takes some from buckets of before, whose residuals it has now.
            self._buckets = {known: bucket for known, bucket in self._buckets.items() if set(known).isdisjoint(key)}
            found = self._buckets[key] = self._arrange(parameters, flat)
        return found

    def _arrange(self, parameters: Sequence[torch.Tensor], flat: torch.Tensor) -> _Bucket:
        matrices = [at for at, parameter in enumerate(parameters) if self._compression.factors(parameter.shape)]
        shapes = [(parameters[at].shape[0], parameters[at].numel() // parameters[at].shape[0]) for at in matrices]
        ranks = [min(self._compression.rank, *shape) for shape in shapes]
        factored = [parameters[at] for at in matrices]
        for parameter, shape, rank in zip(factored, shapes, ranks, strict=True):
            if id(parameter) not in self._q:
                self._q[id(parameter)] = self._drawn[id(parameter)] = self._draw(shape[1], rank, flat)
        residual = self._residuals.of(factored, flat) if factored else flat
        parts = residual.split([parameter.numel() for parameter in factored]) if factored else ()
        return _Bucket(
            sizes=[parameter.numel() for parameter in parameters],
            matrices=matrices,
            shapes=shapes,
            ranks=ranks,
            whole=[at for at in range(len(parameters)) if at not in set(matrices)],
            residuals=[part.view(shape) for part, shape in zip(parts, shapes, strict=True)],
        )

    def _warm(self, q: torch.Tensor, key: int) -> torch.Tensor:
        """The Q of the next step: in columns of length 1, so that P is of the size of a gradient and not of its square.

        A column of zeros would stay so: it starts anew.
        """
        lengths = torch.linalg.vector_norm(q, dim=0)
        return torch.where(lengths >= torch.finfo(q.dtype).tiny, q / lengths, self._drawn[key])

    def _draw(self, columns: int, rank: int, like: torch.Tensor) -> torch.Tensor:
        """The first Q of a parameter: on the host, so that it is the same on any device."""
        generator = torch.Generator().manual_seed(derive_seed(self._seed, "powersgd", len(self._q)))
        return torch.randn(columns, rank, generator=generator, dtype=like.dtype).to(like.device)


def _room(
    like: torch.Tensor, matrices: Sequence[tuple[int, int]], vectors: Sequence[int]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A flat tensor, and its parts: matrices of some shapes, then vectors of some lengths."""
    sizes = [rows * columns for rows, columns in matrices]
    flat = like.new_empty(sum(sizes) + sum(vectors))
    parts = flat.split([*sizes, *vectors])
    shaped = [part.view(shape) for part, shape in zip(parts, matrices, strict=False)]
    return flat, [*shaped, *parts[len(shaped) :]]
