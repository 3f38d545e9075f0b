"""A small residual network with batch norm, for images of a few pixels.

Source:
    He, Zhang, Ren, Sun, CVPR 2016: three groups of basic blocks, the maps halved and the channels doubled from one
    group to the next, as in its networks for images of 32 × 32. Where the shape changes, the shortcut is a convolution
    of 1 × 1.
"""

import torch
from torch import nn


class ResidualBlock(nn.Module):
    """Two convolutions of 3 × 3, each with batch norm, beside a shortcut.

    Args:
        inputs: channels that come in
        outputs: channels that go out
        stride: 2 halves the maps
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))
        self.relu2 = nn.ReLU(inplace=True)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, outputs, h / stride, w / stride]."""
        change = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(maps)))))
        sums: torch.Tensor = self.relu2(change + self.shortcut(maps))
        return sums


class ResidualNetwork(nn.Module):
    """A stem, three groups of residual blocks, and a dense layer on the mean of each map.

    Args:
        classes: number of classes
        channels: channels of the image
        width: channels of the first group; the second has twice, the third four times as many
        blocks: residual blocks of each group

    Example:
        >>> ResidualNetwork(width=8)(torch.zeros(2, 1, 16, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, channels: int = 1, width: int = 24, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.groups = nn.Sequential()
        inputs = width
        for group in range(3):
            outputs = width * 2**group
            for block in range(blocks):
                first = block == 0
                self.groups.append(ResidualBlock(inputs, outputs, stride=2 if group and first else 1))
                inputs = outputs
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, height, width]; height and width divide by 4

        Returns:
            Scores [batch, classes].
        """
        scores: torch.Tensor = self.head(self.groups(self.stem(images)))
        return scores
