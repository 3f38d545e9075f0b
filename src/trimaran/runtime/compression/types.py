"""What a codec is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """What the replicas add up before a codec goes on.

    Attributes:
        payload: flat; it goes over the wire as it is, and the sum replaces it
        is_last: with this sum the codec has all that it needs
    """

    payload: torch.Tensor
    is_last: bool


class Codec(Protocol):
    """Makes buckets of gradients smaller, and keeps what that has lost for the next step."""

    def rounds(self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Iterator[Round]:
        """The exchange of one bucket, which goes on when somebody has added up the payload of the last round.

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
