"""Gradients in 16 bits, with error feedback.

Each replica sends r(e + g), where g is its gradient, e what it has lost so far and r rounds, and keeps what that loses:
e' = e + g - r(e + g). So what has been sent over all steps is the sum of the true gradients less the last residual.

The sum over n replicas is made in 16 bits too, by gloo or NCCL. Each of its n - 1 additions rounds once more, by at
most 2^-8 of its result in bf16 and 2^-11 in fp16; nobody knows that error, so it is not fed back. All replicas get the
same bits, as each share of the sum is made on one of them.

fp16 has few exponents. So gradients are scaled by a power of two, the same on all replicas without a word between them:
it follows from the sums of the step before. A replica sends at most 1/n of what fp16 holds, so that no sum overflows;
what it cuts off is lost for this step only, as all that rounding loses.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from trimaran.program.compression import SMALLEST_BYTES
from trimaran.runtime.compression.residuals import Residuals
from trimaran.runtime.compression.types import Round
from trimaran.runtime.streams import fetch

# The largest sum of a step is put below 2^9 in the next one: 128 times that still fits, and what is 2^-23 of it is
# still a normal number of fp16.
_PEAK_EXPONENT = 9
_FARTHEST_EXPONENT = 100
_LARGEST = torch.finfo(torch.float16).max
# Numbers that a core's own cache holds while several passes go over them: two thirds of the time of passes over 16 MiB.
_PIECE = 2**16


class Rounding:
    """Sends numbers of 16 bits.

    Args:
        dtype: bfloat16 or float16
        replicas: that add up
    """

    def __init__(self, dtype: torch.dtype, *, replicas: int) -> None:
        self._dtype = dtype
        self._residuals = Residuals()
        self._range = _Range(replicas) if dtype is torch.float16 else None

    @torch.no_grad()
    def rounds(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Iterator[Round]:
        """One round; see `types.Codec`. Gradients that have 16 bits already go as they are."""
        if flat.dtype.itemsize < SMALLEST_BYTES or not flat.numel():
            yield Round(payload=flat, is_last=True)
            return
        residual = self._residuals.of(parameters, flat)
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

    def lost(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """What rounding owes of a parameter; see `types.Codec`."""
        return self._residuals.lost(parameter)


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
                # Perhaps all of it was below what fp16 holds.
                self._scale = min(self._scale * 2.0**_PEAK_EXPONENT, 2.0**_FARTHEST_EXPONENT)
            elif math.isfinite(peak):
                exponent = _PEAK_EXPONENT - math.frexp(peak)[1]
                self._scale = 2.0 ** max(-_FARTHEST_EXPONENT, min(exponent, _FARTHEST_EXPONENT))
        return self._scale

    def fit(self, values: torch.Tensor, scale: float) -> torch.Tensor:
        """Scaled values that fit. Where one of them is not finite, none is: it would be cut off, and so hidden.

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
