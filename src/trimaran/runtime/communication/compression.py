"""Compression of gradients between replicas: `Strategy.compression`, executed.

A codec turns a bucket into rounds of sums over the replicas and the sums back into the bucket. It communicates nothing,
so that it can be measured and tested in one process. `CompressedBuckets` runs its rounds for the buckets of a backward.

Why not torch's own communication hooks (`default_hooks`, `powerSGD_hook`):

- they hand DDP a future that DDP waits for at the end of the backward; here the first wait is before the update;
- their work between the sums runs in callbacks, on gloo's threads, while the backward runs and needs the same lock of
  the interpreter. Those of PowerSGD start an all-reduce and wait for it there, on each rank in the order in which its
  callbacks happen to run. On a group with two workers, two such callbacks deadlock;
- they average, and gradients here are sums (`step.losses`); those that round keep no error;
- PowerSGD's state belongs to numbers of buckets, so it cannot be used in the first steps, in which DDP changes them.

PowerSGD sends the gradient of a matrix as the product of two thin ones, with error feedback and warm start.

With n replicas, Δ_i the gradient of replica i as a matrix plus what it has lost so far, and r columns in P and Q:

    1.  P_i = Δ_i Q            first round: P = Σ P_i         Q is that of the step before
    2.  P̂ = orthonormal(P)
    3.  Q_i = Δ_iᵀ P̂           second round: Q = Σ Q_i
    4.  the sum of the Δ_i becomes P̂ Qᵀ, its part in the space of P̂
    5.  replica i keeps Δ_i - P̂ Q_iᵀ, its own part outside of that space

The residuals of all replicas sum up to exactly what is missing in 4, so that nothing is lost for good. A residual
against the sum of 4 would do so too, but each replica would then keep all by which it differs from the others.

A sum of rank r or less is exact. Where P has fewer independent columns than r, the QR decomposition completes
them. Vectors, and matrices that would not get smaller, are sent in the first round uncompressed.

Source:
    T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019, algorithms 1 and 2.

Gradients in 16 bits have error feedback too. Each replica sends r(e + g), where g is its gradient, e what it has lost
so far and r rounds, and keeps what that loses: e' = e + g - r(e + g). So what has been sent over all steps is the sum
of the true gradients less the last residual.

The sum over n replicas is made in 16 bits too, by gloo or NCCL. Each of its n - 1 additions rounds once more, by at
most 2^-8 of its result in bf16 and 2^-11 in fp16. That error is not known, so it is not fed back. All replicas get the
same bits, as each share of the sum is made on one of them.

fp16 has few exponents. So gradients are scaled by a power of two. It is the same on all replicas without communication,
because it follows from the sums of the step before. A replica sends at most 1/n of what fp16 holds, so that no sum
overflows; what is clipped is lost for this step only, like everything that rounding loses.

The rounds of a codec, from the hooks of a backward to the update:

    backward   ████ b0 ╴e0╶ ████ b1 ╴q0 e1╶ ████ b2 ╴q1 e2╶│ wait, q2 │ decode │ update
    b0                 ═ P0 ═══      ═ Q0 ══
    b1                                  ═ P1 ════       ═ Q1 ══
    b2                                                     ═ P2 ══  ═ Q2 ══

A bucket is encoded (e) when it is complete, in the backward, and its first sum starts. Where a codec has a second
round, it starts when the next bucket is complete, after a wait for the first one, so that it too overlaps with the
backward; that of the last bucket starts before the update. A bucket is decoded by the wait for it.

So the order of all sums follows from the order of buckets alone, and is the same on every replica. Sums that start as
soon as their data are there would be a little earlier, and in another order on each rank.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trimaran.base.timeline import WAIT
from trimaran.program.gradients import SMALLEST_BYTES, Compression
from trimaran.program.types import Instruction, Kind
from trimaran.runtime.communication.channels import Channels, InFlight
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.streams import Stamp, fetch
from trimaran.user_code.randomness import derive_seed

# ---------------------------------------------------------------------------------------------------------------------
# Rounds of sums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """A sum over the replicas, after which a codec continues.

    Attributes:
        payload: flat; it is sent unchanged, and the sum replaces it
        is_last: the codec needs no further sum
    """

    payload: torch.Tensor
    is_last: bool


class GradientCodec(ABC):
    """Compresses buckets of gradients, and keeps what that has lost for the next step.

    Residuals of a bucket are one flat tensor, at first zero. DDP makes other buckets after its first step. So a
    residual belongs to its parameter, and moves into the flat tensor of the bucket that has the parameter now.
    """

    def __init__(self) -> None:
        self._lost: dict[int, torch.Tensor] = {}
        self._flats: dict[tuple[int, ...], torch.Tensor] = {}

    @abstractmethod
    def rounds(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Iterator[Round]:
        """The exchange of one bucket, which continues when the payload of the last round has been summed.

        Every replica asks for the same buckets in the same order. Work until the first round is encoding; work after
        the last one is decoding.

        Args:
            flat: gradients of this replica, one after another; in the end their sum over the replicas, or nearly
            parameters: whose gradients they are, in order

        Yields:
            At least one round.
        """

    def lost(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """What this replica owes of the gradients of a parameter, flat; None: nothing.

        Args:
            parameter: of a bucket that was exchanged
        """
        return self._lost.get(id(parameter))

    def kept(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is kept of a parameter for the next step besides its residual, the same on all replicas; by name.

        Args:
            parameter: of a bucket that was exchanged
        """
        return {}

    def figures(self) -> dict[str, Any]:
        """What is kept for the next step that is no tensor, the same on all replicas."""
        return {}

    def load(
        self,
        residuals: Mapping[int, torch.Tensor],
        kept: Mapping[int, Mapping[str, torch.Tensor]],
        figures: Mapping[str, Any],
    ) -> None:
        """Go on from a saved state, between steps.

        Args:
            residuals: as `lost` gives them, by the id of the parameter
            kept: as `kept` gives it, by the id of the parameter
            figures: of `figures`
        """
        self._lost, self._flats = dict(residuals), {}

    def _residual(self, parameters: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """The residuals of some parameters, flat, in at least 32 bits; to be changed in place.

        Args:
            parameters: that live as long as this does, in order
            like: of the device and the dtype of their gradients
        """
        key = tuple(map(id, parameters))
        if key in self._flats:
            return self._flats[key]
        dtype = like.dtype if like.dtype.itemsize >= torch.float32.itemsize else torch.float32
        self._flats = {known: flat for known, flat in self._flats.items() if set(known).isdisjoint(key)}
        sizes = [parameter.numel() for parameter in parameters]
        flat = self._flats[key] = torch.zeros(sum(sizes), dtype=dtype, device=like.device)
        for one, part in zip(key, flat.split(sizes), strict=True):
            before = self._lost.get(one)
            if before is not None:
                part.copy_(before)
            self._lost[one] = part
        return flat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bucket:
    """How a bucket is sent.

    Attributes:
        sizes: numbers of each parameter
        matrices: positions of those that are factored
        shapes: of these, as matrices
        ranks: of these, columns of P and Q
        whole: positions of those that are sent uncompressed
        residuals: of the matrices, shaped so
    """

    sizes: list[int]
    matrices: list[int]
    shapes: list[tuple[int, int]]
    ranks: list[int]
    whole: list[int]
    residuals: list[torch.Tensor]


class Factoring(GradientCodec):
    """Sends P and Q.

    Args:
        compression: has the rank
        seed: of the first Q; the same on all replicas
    """

    def __init__(self, compression: Compression, *, seed: int) -> None:
        super().__init__()
        self._compression = compression
        self._seed = seed
        self._buckets: dict[tuple[int, ...], _Bucket] = {}
        self._q: dict[int, torch.Tensor] = {}
        self._drawn: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def rounds(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Iterator[Round]:
        """Two rounds, or one where nothing is factored; see `GradientCodec`.

        Gradients that have 16 bits already are sent uncompressed.
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

    def kept(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Its Q, and the one that was drawn first; see `GradientCodec`."""
        key = id(parameter)
        return {"q": self._q[key], "drawn": self._drawn[key]} if key in self._q else {}

    def load(
        self,
        residuals: Mapping[int, torch.Tensor],
        kept: Mapping[int, Mapping[str, torch.Tensor]],
        figures: Mapping[str, Any],
    ) -> None:
        """See `GradientCodec`."""
        super().load(residuals, kept, figures)
        self._buckets = {}
        self._q = {key: tensors["q"] for key, tensors in kept.items() if "q" in tensors}
        self._drawn = {key: tensors["drawn"] for key, tensors in kept.items() if "drawn" in tensors}

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
        residual = self._residual(factored, flat) if factored else flat
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

        A column of zeros would stay zeros: the one that was drawn first replaces it.
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


# The largest sum of a step is put below 2^9 in the next one: 128 times that still fits, and what is 2^-23 of it is
# still a normal number of fp16.
_PEAK_EXPONENT = 9
_FARTHEST_EXPONENT = 100
_LARGEST = torch.finfo(torch.float16).max
# Numbers that a core's own cache holds while several passes go over them: two thirds of the time of passes over 16 MiB.
_PIECE = 2**16


class Rounding(GradientCodec):
    """Sends numbers of 16 bits.

    Args:
        dtype: bfloat16 or float16
        replicas: that add up
    """

    def __init__(self, dtype: torch.dtype, *, replicas: int) -> None:
        super().__init__()
        self._dtype = dtype
        self._range = _Range(replicas) if dtype is torch.float16 else None

    @torch.no_grad()
    def rounds(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Iterator[Round]:
        """One round; see `GradientCodec`. Gradients that have 16 bits already are sent uncompressed."""
        if flat.dtype.itemsize < SMALLEST_BYTES or not flat.numel():
            yield Round(payload=flat, is_last=True)
            return
        residual = self._residual(parameters, flat)
        sent = torch.empty_like(flat, dtype=self._dtype)
        scale = 1.0 if self._range is None else self._range.scale()
        for owed, own, rounded in _pieces(residual, flat, sent):
            owed.add_(own)
            rounded.copy_(owed if self._range is None else self._range.fit(owed, scale))
            owed.sub_(rounded, alpha=1.0 / scale)
        yield Round(payload=sent, is_last=True)
        for total, arrived in _pieces(flat, sent):
            total.copy_(arrived)
            if self._range is not None:
                total.mul_(1.0 / scale)
        if self._range is not None:
            self._range.note(sent, scale)

    def figures(self) -> dict[str, Any]:
        """The scale of fp16; see `GradientCodec`."""
        return {} if self._range is None else {"scale": self._range.scale()}

    def load(
        self,
        residuals: Mapping[int, torch.Tensor],
        kept: Mapping[int, Mapping[str, torch.Tensor]],
        figures: Mapping[str, Any],
    ) -> None:
        """See `GradientCodec`."""
        super().load(residuals, kept, figures)
        if self._range is not None and "scale" in figures:
            self._range.load(float(figures["scale"]))


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Flat tensors of one length, piece by piece; on a GPU whole."""
    if not tensors[0].is_cpu:
        return iter([tensors])
    return zip(*(tensor.split(_PIECE) for tensor in tensors), strict=True)


class _Range:
    """The scale under which gradients fit into fp16.

    Args:
        replicas: that add up
    """

    def __init__(self, replicas: int) -> None:
        # Less than a share, as rounding to 11 bits may go up.
        self._most = _LARGEST / replicas * (1.0 - 2.0**-10)
        self._scale = 1.0
        self._peaks: list[Callable[[], float]] = []

    def scale(self) -> float:
        """The scale of what is sent now: a power of two."""
        if self._peaks:
            peak = max(of() for of in self._peaks)
            self._peaks.clear()
            if peak == 0.0:
                # Perhaps all of it was too small for fp16.
                self._scale = min(self._scale * 2.0**_PEAK_EXPONENT, 2.0**_FARTHEST_EXPONENT)
            elif math.isfinite(peak):
                exponent = _PEAK_EXPONENT - math.frexp(peak)[1]
                self._scale = 2.0 ** max(-_FARTHEST_EXPONENT, min(exponent, _FARTHEST_EXPONENT))
        return self._scale

    def load(self, scale: float) -> None:
        """Go on from a scale.

        Args:
            scale: of what is sent next
        """
        self._scale, self._peaks = scale, []

    def fit(self, values: torch.Tensor, scale: float) -> torch.Tensor:
        """Scaled values that fit. Where one of them is not finite, none is: clipping would make it finite.

        Args:
            values: flat
            scale: of this step
        """
        nothing = values.sum().mul_(0.0)
        return torch.add(nothing, values, alpha=scale).clamp_(-self._most, self._most)

    def note(self, total: torch.Tensor, scale: float) -> None:
        """A sum over the replicas has come.

        Args:
            total: scaled
            scale: by which
        """
        extremes = fetch(torch.stack(torch.aminmax(total)).float())
        self._peaks.append(lambda: max(map(abs, extremes())) / scale)


# ---------------------------------------------------------------------------------------------------------------------
# The codec of a compression


def open_codec(compression: Compression, *, replicas: int, seed: int) -> GradientCodec:
    """A codec that has lost nothing yet.

    Args:
        compression: which
        replicas: that add up
        seed: of what it draws; the same on all replicas

    Example:
        >>> codec = open_codec(Compression(method="bf16"), replicas=1, seed=0)
        >>> gradient = torch.tensor([1.0, 1.0009765625])  # bf16 has 8 bits: the second becomes 1
        >>> [round.payload.dtype for round in codec.rounds(gradient, [gradient])], gradient
        ([torch.bfloat16], tensor([1., 1.]))
    """
    if compression.method == "powersgd":
        return Factoring(compression, seed=seed)
    return Rounding(torch.bfloat16 if compression.method == "bf16" else torch.float16, replicas=replicas)


# ---------------------------------------------------------------------------------------------------------------------
# Compressed buckets of a rank


class CompressedBuckets:
    """Sums of compressed buckets, on one rank.

    Args:
        codec: of the job
        replicas: that add up
        channels: communicate
        in_flight: communication under way
        recorder: writes down what happened
    """

    def __init__(
        self, codec: GradientCodec, *, replicas: int, channels: Channels, in_flight: InFlight, recorder: RunRecorder
    ) -> None:
        self._codec = codec
        self._replicas = replicas
        self._channels = channels
        self._in_flight = in_flight
        self._recorder = recorder
        self._unfinished: list[str] = []

    def start(self, instruction: Instruction, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        """Add up a bucket of gradients, nearly.

        Args:
            instruction: of the bucket
            flat: its gradients; the sum replaces them in the wait for the instruction
            parameters: whose gradients they are, in order
        """
        self.go_on()
        start = self._recorder.stamp()
        rounds = self._codec.rounds(flat, parameters)
        first = next(rounds)
        posted = self._recorder.stamp()
        # This is inside the backward.
        self._recorder.add(instruction.token, WAIT, start, posted)
        self._post(instruction, rounds, first, posted, 0)

    def go_on(self) -> None:
        """Start the next rounds of buckets that have more than one, waiting for those that are under way."""
        tokens, self._unfinished = dict.fromkeys(self._unfinished), []
        for token in tokens:
            self._in_flight.advance(token)

    def give_back(self, parameter: torch.Tensor, total: torch.Tensor) -> None:
        """Keep the sum of a parameter as a residual: no replica has used the parameter, so the sum is not applied.

        Args:
            parameter: of a bucket that was exchanged; its gradients were zeros, so the sum is of residuals only
            total: the sum over the replicas, the same on all
        """
        owed = self._codec.lost(parameter)
        if owed is not None:
            owed.add_(total.reshape(-1), alpha=1.0 / self._replicas)

    def _post(
        self, instruction: Instruction, rounds: Iterator[Round], now: Round, start: Stamp, sent_bytes: int
    ) -> None:
        work = self._channels.all_reduce(now.payload, instruction.group)
        nbytes = sent_bytes + now.payload.nbytes
        pending = self._in_flight.add(instruction, [work], [now.payload], start=start, nbytes=nbytes)
        pending.finish = partial(self._continue, instruction, rounds, start, nbytes)
        if not now.is_last:
            self._unfinished.append(instruction.token)

    def _continue(self, instruction: Instruction, rounds: Iterator[Round], start: Stamp, sent_bytes: int) -> None:
        before = self._recorder.stamp()
        following = next(rounds, None)
        # With the token of the update, for which gradients are decoded: the last wait for a transfer gives its end.
        self._recorder.add(Kind.UPDATE, WAIT, before, self._recorder.stamp())
        if following is not None:
            self._post(instruction, rounds, following, start, sent_bytes)
