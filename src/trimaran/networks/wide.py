"""A classifier with parallel branches and a large head: many gradients against little compute.

The branches look at the image through windows of different sizes. The dense layer behind them has nearly all of the
parameters, and each is used once a sample; those of a convolution are used once a pixel.
"""

import torch
from torch import nn

_POOLED = 4  # two poolings of 2 × 2 divide height and width by it


class WideClassifier(nn.Module):
    """Parallel branches over the image, joined, and two dense layers.

    Args:
        classes: number of classes
        channels: channels of the image
        size: height and width of the image [pixels]; divides by 4
        windows: size of the first convolution of each branch; odd
        maps: feature maps that each branch ends with
        hidden: width of the dense layer that has nearly all parameters

    Example:
        >>> WideClassifier(hidden=32)(torch.zeros(2, 1, 16, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 1,
        size: int = 16,
        windows: tuple[int, ...] = (1, 3, 5, 7),
        maps: int = 16,
        hidden: int = 4096,
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(_branch(channels, maps, window) for window in windows)
        joined = len(windows) * maps * (size // _POOLED) ** 2
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(joined, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, classes)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, size, size]

        Returns:
            Scores [batch, classes].
        """
        seen = torch.cat([branch(images) for branch in self.branches], dim=1)
        scores: torch.Tensor = self.head(seen)
        return scores


def _branch(channels: int, maps: int, window: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, maps // 2, window, padding=window // 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(maps // 2, maps, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
