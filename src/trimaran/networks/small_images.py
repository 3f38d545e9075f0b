"""LeNet-5's shape, with today's activations.

Source:
    LeCun, Bottou, Bengio, Haffner, Proc. IEEE 86(11), 1998: two convolutions of 5 × 5 with subsampling, three dense
    layers, input of 32 × 32. ReLU and max pooling take the place of the scaled tanh and the trained subsampling.

A small residual network with batch norm, for images of a few pixels.

Source:
    He, Zhang, Ren, Sun, CVPR 2016: three groups of basic blocks, the maps halved and the channels doubled from one
    group to the next, as in its networks for images of 32 × 32. Where the shape changes, the shortcut is a convolution
    of 1 × 1.

A network of heavy parallel branches, for images of a few pixels.

Blocks in the manner of Inception: several chains of convolutions look at the same maps, and what they find is joined.
The chains of a block do not depend on each other, so that two devices can each run half of them; between blocks is
one cheap convolution that reduces the joined maps.

Source:
    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016: branches in which two
    convolutions of 3 × 3 follow one another, and a convolution of 1 × 1 after they are joined.

A classifier with parallel branches and a large head: many gradients against little compute.

The branches look at the image through windows of different sizes. The dense layer behind them has nearly all of the
parameters, and each is used once a sample; those of a convolution are used once a pixel.
"""

import torch
from torch import nn


class LeNet(nn.Module):
    """Two convolutions and three dense layers on images of 32 × 32.

    Args:
        classes: number of classes
        channels: channels of the image
        width: feature maps of the first convolution; the second has twice as many

    Example:
        >>> LeNet()(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, channels: int = 1, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * width * 5 * 5, 120),
            nn.ReLU(inplace=True),
            nn.Linear(120, 84),
            nn.ReLU(inplace=True),
            nn.Linear(84, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, 32, 32]

        Returns:
            Scores [batch, classes].
        """
        scores: torch.Tensor = self.classifier(self.features(images))
        return scores


class ResidualBlock(nn.Module):
    """Two convolutions of 3 × 3, each with batch norm, and a shortcut.

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


_POOLED = 4  # two poolings of 2 × 2 divide height and width by it


class WideClassifier(nn.Module):
    """Parallel branches over the image, joined, and two dense layers.

    Args:
        classes: number of classes
        channels: channels of the image
        size: height and width of the image [pixels]; divides by 4
        windows: size of the first convolution of each branch; odd
        maps: feature maps that each branch ends with
        dense: units of the dense layer that has nearly all parameters

    Example:
        >>> WideClassifier(dense=32)(torch.zeros(2, 1, 16, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 1,
        size: int = 16,
        windows: tuple[int, ...] = (1, 3, 5, 7),
        maps: int = 16,
        dense: int = 4096,
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(_branch(channels, maps, window) for window in windows)
        joined = len(windows) * maps * (size // _POOLED) ** 2
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(joined, dense), nn.ReLU(inplace=True), nn.Linear(dense, classes)
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
