"""What is published of NCCL against copies between devices, on eight V100 of one machine.

Apache's wiki gives how much faster MXNet's tree is than each of them, for training on synthetic data; their quotient is
how much faster NCCL is than the copies. The batch of those runs is not said there, other figures of the page are at 4 a
device; the quotient is nearer to 1 the larger the batch.

Source:
    cwiki.apache.org, MXNET: Single machine All Reduce Topology-aware Communication (2018).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRatio:
    """How the tree compares on a network, and what follows.

    Attributes:
        over_copies: speed of the tree by that of the copies
        over_nccl: speed of the tree by that of NCCL
    """

    over_copies: float
    over_nccl: float

    @property
    def nccl_over_copies(self) -> float:
        """Speed of NCCL by that of the copies.

        Example:
            >>> round(PublishedRatio(over_copies=6.60, over_nccl=1.42).nccl_over_copies, 2)
            4.65
        """
        return self.over_copies / self.over_nccl


PUBLISHED_RATIOS = {
    "alexnet": PublishedRatio(over_copies=6.60, over_nccl=1.42),
    "inception_v3": PublishedRatio(over_copies=1.15, over_nccl=1.34),
    "resnet50": PublishedRatio(over_copies=1.19, over_nccl=1.33),
    "vgg16": PublishedRatio(over_copies=5.89, over_nccl=1.06),
}
"""By network."""
