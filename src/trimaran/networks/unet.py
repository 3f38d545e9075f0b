"""U-Net: a contracting and an expanding path, with a long skip at each size of the maps.

Convolutions are padded and have batch norm, as most use it today; the paper's lose their border and have none.

Source:
    Ronneberger, Fischer, Brox, MICCAI 2015: widths 64 to 1024, four poolings, transposed convolutions of 2 × 2.
"""

import torch
from torch import nn


class UNet(nn.Module):
    """A class score for every pixel.

    Args:
        classes: number of classes
        channels: channels of the image
        width: feature maps at full size; each pooling doubles them
        poolings: how often the maps are halved

    Example:
        >>> UNet(classes=2, width=4, poolings=2)(torch.zeros(1, 3, 16, 16)).shape
        torch.Size([1, 2, 16, 16])
    """

    def __init__(self, *, classes: int = 2, channels: int = 3, width: int = 64, poolings: int = 4) -> None:
        super().__init__()
        widths = [width * 2**number for number in range(poolings + 1)]
        self.first = _pair(channels, width)
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), *_pair(inputs, 2 * inputs)) for inputs in widths[:-1])
        upwards = widths[:0:-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(inputs, inputs // 2, 2, stride=2) for inputs in upwards)
        self.merge = nn.ModuleList(_pair(inputs, inputs // 2) for inputs in upwards)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores of every pixel.

        Args:
            images: [batch, channels, height, width]; height and width divide by 2 ** poolings

        Returns:
            Scores [batch, classes, height, width].
        """
        maps = self.first(images)
        skips = []
        for down in self.down:
            skips.append(maps)
            maps = down(maps)
        for up, merge in zip(self.up, self.merge, strict=True):
            maps = merge(torch.cat([skips.pop(), up(maps)], dim=1))
        scores: torch.Tensor = self.head(maps)
        return scores


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )
