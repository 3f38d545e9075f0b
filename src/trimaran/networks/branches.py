"""A network of heavy parallel branches, for images of a few pixels.

Blocks in the manner of Inception: several chains of convolutions look at the same maps, and what they find is joined.
The chains of a block wait for nothing of each other, so that two devices can each run half of them; between blocks lies
one cheap convolution that brings the joined maps back to few.

Source:
    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016: branches in which two
    convolutions of 3 × 3 follow one another, and a convolution of 1 × 1 after they are joined.
"""

import torch
from torch import nn


class BranchBlock(nn.Module):
    """Chains of convolutions over the same maps, joined.

    Args:
        inputs: channels that come in
        outputs: channels that go out
        branches: number of chains
        depth: convolutions of each
    """

    def __init__(self, inputs: int, outputs: int, *, branches: int, depth: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(_chain(inputs, outputs, depth) for _ in range(branches))
        self.join = _convolution(branches * outputs, outputs, 1)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, outputs, h, w]."""
        joined: torch.Tensor = self.join(torch.cat([branch(maps) for branch in self.branches], dim=1))
        return joined


class BranchNetwork(nn.Module):
    """A stem, blocks of parallel branches, and a dense layer on the mean of each map.

    Args:
        classes: number of classes
        channels: channels of the image
        width: channels of every branch
        blocks: number of blocks, one behind the other
        branches: of each block
        depth: convolutions of each branch

    Example:
        >>> BranchNetwork(width=8)(torch.zeros(2, 1, 16, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 1,
        width: int = 24,
        blocks: int = 2,
        branches: int = 4,
        depth: int = 3,
    ) -> None:
        super().__init__()
        self.stem = _convolution(channels, width, 3)
        self.blocks = nn.Sequential(*(BranchBlock(width, width, branches=branches, depth=depth) for _ in range(blocks)))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, height, width]

        Returns:
            Scores [batch, classes].
        """
        scores: torch.Tensor = self.head(self.blocks(self.stem(images)))
        return scores


def _chain(inputs: int, outputs: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*(_convolution(outputs if place else inputs, outputs, 3) for place in range(depth)))


def _convolution(inputs: int, outputs: int, window: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, window, padding=window // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )
