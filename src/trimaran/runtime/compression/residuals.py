"""What compression has lost of each gradient, for the next step."""

from collections.abc import Sequence

import torch


class Residuals:
    """Residuals by parameter, those of a bucket as one flat tensor.

    DDP makes other buckets after its first step. So a residual belongs to its parameter, and moves into the flat tensor
    of the bucket that has the parameter now. What they start from is zero.
    """

    def __init__(self) -> None:
        self._of: dict[int, torch.Tensor] = {}
        self._flats: dict[tuple[int, ...], torch.Tensor] = {}

    def of(self, parameters: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """The residuals of some parameters, flat, in at least 32 bits; to be changed in place.

        Args:
            parameters: that live as long as this does, in order
            like: of the device and the dtype of their gradients
        """
        key = tuple(map(id, parameters))
        flat = self._flats.get(key)
        if flat is None:
            flat = self._flats[key] = self._move(parameters, like)
        return flat

    def lost(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The residual of one parameter, flat; None: it has none.

        Args:
            parameter: of some bucket
        """
        return self._of.get(id(parameter))

    def _move(self, parameters: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        dtype = like.dtype if like.dtype.itemsize >= torch.float32.itemsize else torch.float32
        moved = {id(parameter) for parameter in parameters}
        self._flats = {key: flat for key, flat in self._flats.items() if moved.isdisjoint(key)}
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(sizes), dtype=dtype, device=like.device)
        for parameter, part in zip(parameters, flat.split(sizes), strict=True):
            before = self._of.get(id(parameter))
            if before is not None:
                part.copy_(before)
            self._of[id(parameter)] = part
        return flat
