"""Inception-v3: five kinds of modules, each with branches that are joined by their channels.

Sizes as in torchvision's `inception_v3`: 23,834,568 parameters, 27,161,264 with the auxiliary head. A branch is a
`Sequential` here, or a `Fork` where it ends in two convolutions side by side; the modules have torchvision's names,
what is inside them does not.

Source:
    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016.
"""

import torch
from torch import nn

from trimaran.networks.googlenet import Convolution
from trimaran.networks.sizes import scaled

Row = tuple[int, int] | tuple[int, int, int]
"""Kernel: height, width and, where it is not 1, the stride (then without padding)."""

_1X1, _3X3, _5X5, _1X7, _7X1, _1X3, _3X1 = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1), (1, 3), (3, 1)
_3X3_HALVES = (3, 3, 2)


class Fork(nn.Module):
    """Several modules over the same maps, joined by their channels.

    Args:
        branches: the modules
    """

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, sum of outputs, h', w']."""
        return torch.cat([branch(maps) for branch in self.branches], dim=1)


class Branches:
    """Makes branches of a given width; a module's channels are written as in the published form."""

    def __init__(self, width: float) -> None:
        self.width = width

    def convolution(self, inputs: int, outputs: int, row: Row) -> Convolution:
        """One convolution; `inputs` and `outputs` are channels in the network as it is."""
        kernel, stride = (row[0], row[1]), row[2] if len(row) == 3 else 1
        padding = (kernel[0] // 2, kernel[1] // 2) if stride == 1 else 0
        return Convolution(inputs, outputs, kernel, stride=stride, padding=padding)

    def branch(self, inputs: int, *rows: tuple[int, Row]) -> nn.Sequential:
        """Convolutions one after the other, each of published channels and a kernel."""
        made = nn.Sequential()
        for channels, row in rows:
            outputs = scaled(channels, self.width)
            made.append(self.convolution(inputs, outputs, row))
            inputs = outputs
        return made

    def pooled(self, inputs: int, channels: int) -> nn.Sequential:
        """The mean over 3 × 3, then a convolution of 1 × 1."""
        return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), *self.branch(inputs, (channels, _1X1)))

    def sum(self, *channels: int) -> int:
        """Channels of branches that are joined."""
        return sum(scaled(count, self.width) for count in channels)


def _module_a(build: Branches, inputs: int, pooled: int) -> tuple[Fork, int]:
    fork = Fork(
        build.branch(inputs, (64, _1X1)),
        build.branch(inputs, (48, _1X1), (64, _5X5)),
        build.branch(inputs, (64, _1X1), (96, _3X3), (96, _3X3)),
        build.pooled(inputs, pooled),
    )
    return fork, build.sum(64, 64, 96, pooled)


def _module_b(build: Branches, inputs: int) -> tuple[Fork, int]:
    fork = Fork(
        build.branch(inputs, (384, _3X3_HALVES)),
        build.branch(inputs, (64, _1X1), (96, _3X3), (96, _3X3_HALVES)),
        nn.MaxPool2d(3, 2),
    )
    return fork, build.sum(384, 96) + inputs


def _module_c(build: Branches, inputs: int, inner: int) -> tuple[Fork, int]:
    fork = Fork(
        build.branch(inputs, (192, _1X1)),
        build.branch(inputs, (inner, _1X1), (inner, _1X7), (192, _7X1)),
        build.branch(inputs, (inner, _1X1), (inner, _7X1), (inner, _1X7), (inner, _7X1), (192, _1X7)),
        build.pooled(inputs, 192),
    )
    return fork, build.sum(192, 192, 192, 192)


def _module_d(build: Branches, inputs: int) -> tuple[Fork, int]:
    fork = Fork(
        build.branch(inputs, (192, _1X1), (320, _3X3_HALVES)),
        build.branch(inputs, (192, _1X1), (192, _1X7), (192, _7X1), (192, _3X3_HALVES)),
        nn.MaxPool2d(3, 2),
    )
    return fork, build.sum(320, 192) + inputs


def _module_e(build: Branches, inputs: int) -> tuple[Fork, int]:
    middle = scaled(384, build.width)

    def pair() -> Fork:
        return Fork(build.branch(middle, (384, _1X3)), build.branch(middle, (384, _3X1)))

    fork = Fork(
        build.branch(inputs, (320, _1X1)),
        nn.Sequential(*build.branch(inputs, (384, _1X1)), pair()),
        nn.Sequential(*build.branch(inputs, (448, _1X1), (384, _3X3)), pair()),
        build.pooled(inputs, 192),
    )
    return fork, build.sum(320, 384, 384, 384, 384, 192)


class InceptionV3(nn.Module):
    """Inception-v3, with or without its auxiliary head.

    Args:
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps
        auxiliary: whether it has the auxiliary head; while it trains, scores are then two tensors
        dropout: probability in front of the dense layer

    Example:
        >>> InceptionV3(classes=10, width=0.125)(torch.zeros(2, 3, 75, 75)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
        auxiliary: bool = False,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        build = Branches(width)
        c32, c64, c80, c192 = (scaled(count, width) for count in (32, 64, 80, 192))
        self.stem = nn.Sequential(
            Convolution(channels, c32, 3, stride=2),
            Convolution(c32, c32, 3),
            Convolution(c32, c64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            Convolution(c64, c80, 1),
            Convolution(c80, c192, 3),
            nn.MaxPool2d(3, 2),
        )
        self.Mixed_5b, inputs = _module_a(build, c192, 32)
        self.Mixed_5c, inputs = _module_a(build, inputs, 64)
        self.Mixed_5d, inputs = _module_a(build, inputs, 64)
        self.Mixed_6a, inputs = _module_b(build, inputs)
        self.Mixed_6b, inputs = _module_c(build, inputs, 128)
        self.Mixed_6c, inputs = _module_c(build, inputs, 160)
        self.Mixed_6d, inputs = _module_c(build, inputs, 160)
        self.Mixed_6e, inputs = _module_c(build, inputs, 192)
        self.AuxLogits = _auxiliary_head(inputs, classes, width) if auxiliary else None
        self.Mixed_7a, inputs = _module_d(build, inputs)
        self.Mixed_7b, inputs = _module_e(build, inputs)
        self.Mixed_7c, inputs = _module_e(build, inputs)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Class scores.

        Args:
            images: [batch, channels, height, width]; at least 75 × 75, published for 299 × 299, which
                the auxiliary head needs

        Returns:
            Scores [batch, classes]; while training with the auxiliary head, those of the main head and of that one.
        """
        maps = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(self.stem(images))))
        maps = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(maps)))))
        at_side = self.AuxLogits(maps) if self.AuxLogits is not None and self.training else None
        maps = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(maps)))
        scores: torch.Tensor = self.fc(torch.flatten(self.dropout(self.avgpool(maps)), 1))
        return scores if at_side is None else (scores, at_side)


def _auxiliary_head(inputs: int, classes: int, width: float) -> nn.Sequential:
    middle, outputs = scaled(128, width), scaled(768, width)
    return nn.Sequential(
        nn.AvgPool2d(5, stride=3),
        Convolution(inputs, middle, 1),
        Convolution(middle, outputs, 5),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(outputs, classes),
    )
