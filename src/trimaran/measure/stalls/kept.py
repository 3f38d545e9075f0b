"""A share of a batch that is kept, so that steps can be taken without loading."""

from typing import Any

from trimaran.runtime.feed import Share
from trimaran.runtime.feed.types import Loading


class KeptShare(Share):
    """A share whose microbatches stay: it can be taken again and again.

    Args:
        share: whose microbatches have not been taken yet
    """

    def __init__(self, share: Share) -> None:
        self.samples, self.sizes = share.samples, share.sizes
        self._batches = {number: share.microbatch(number) for number, size in enumerate(share.sizes) if size}

    def microbatch(self, number: int) -> Any:
        """One microbatch; see `Share.microbatch`."""
        return self._batches.get(number)

    def loading(self, number: int) -> Loading:
        """Nothing: it is there."""
        return Loading(samples=self.sizes[number])
