"""Inception-v4: the modules of Inception-v3 made regular, fourteen of them, and a stem that branches.

42,679,816 parameters with 1,000 classes, as in the usual conversions.

Source:
    Szegedy, Ioffe, Vanhoucke, Alemi, "Inception-v4, Inception-ResNet and the Impact of Residual Connections on
    Learning", AAAI 2017, figures 3 to 9.
"""

import torch
from torch import nn

from trimaran.networks.googlenet import Convolution
from trimaran.networks.inception_v3 import Branches, Fork
from trimaran.networks.sizes import scaled

_1X1, _3X3, _1X7, _7X1, _1X3, _3X1 = (1, 1), (3, 3), (1, 7), (7, 1), (1, 3), (3, 1)
_3X3_HALVES = (3, 3, 2)


class _Stem(nn.Module):
    def __init__(self, build: Branches, channels: int) -> None:
        super().__init__()
        c32, c64 = (scaled(count, build.width) for count in (32, 64))
        self.first = nn.Sequential(
            Convolution(channels, c32, 3, stride=2), Convolution(c32, c32, 3), Convolution(c32, c64, 3, padding=1)
        )
        self.halved = Fork(nn.MaxPool2d(3, 2), build.branch(c64, (96, _3X3_HALVES)))
        inputs = c64 + build.sum(96)
        c96 = build.sum(96)
        self.widened = Fork(
            nn.Sequential(*build.branch(inputs, (64, _1X1)), Convolution(c64, c96, 3)),
            nn.Sequential(*build.branch(inputs, (64, _1X1), (64, _1X7), (64, _7X1)), Convolution(c64, c96, 3)),
        )
        self.halved_again = Fork(build.branch(2 * c96, (192, _3X3_HALVES)), nn.MaxPool2d(3, 2))
        self.outputs = build.sum(192) + 2 * c96

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps: torch.Tensor = self.halved_again(self.widened(self.halved(self.first(images))))
        return maps


def _module_a(build: Branches, inputs: int) -> tuple[Fork, int]:
    fork = Fork(
        build.branch(inputs, (96, _1X1)),
        build.branch(inputs, (64, _1X1), (96, _3X3)),
        build.branch(inputs, (64, _1X1), (96, _3X3), (96, _3X3)),
        build.pooled(inputs, 96),
    )
    return fork, build.sum(96, 96, 96, 96)


def _halving_a(build: Branches, inputs: int) -> tuple[Fork, int]:
    fork = Fork(
        build.branch(inputs, (384, _3X3_HALVES)),
        build.branch(inputs, (192, _1X1), (224, _3X3), (256, _3X3_HALVES)),
        nn.MaxPool2d(3, 2),
    )
    return fork, build.sum(384, 256) + inputs


def _module_b(build: Branches, inputs: int) -> tuple[Fork, int]:
    fork = Fork(
        build.branch(inputs, (384, _1X1)),
        build.branch(inputs, (192, _1X1), (224, _1X7), (256, _7X1)),
        build.branch(inputs, (192, _1X1), (192, _7X1), (224, _1X7), (224, _7X1), (256, _1X7)),
        build.pooled(inputs, 128),
    )
    return fork, build.sum(384, 256, 256, 128)


def _halving_b(build: Branches, inputs: int) -> tuple[Fork, int]:
    fork = Fork(
        build.branch(inputs, (192, _1X1), (192, _3X3_HALVES)),
        build.branch(inputs, (256, _1X1), (256, _1X7), (320, _7X1), (320, _3X3_HALVES)),
        nn.MaxPool2d(3, 2),
    )
    return fork, build.sum(192, 320) + inputs


def _module_c(build: Branches, inputs: int) -> tuple[Fork, int]:
    def pair(middle: int) -> Fork:
        return Fork(build.branch(middle, (256, _1X3)), build.branch(middle, (256, _3X1)))

    fork = Fork(
        build.branch(inputs, (256, _1X1)),
        nn.Sequential(*build.branch(inputs, (384, _1X1)), pair(build.sum(384))),
        nn.Sequential(*build.branch(inputs, (384, _1X1), (448, _3X1), (512, _1X3)), pair(build.sum(512))),
        build.pooled(inputs, 256),
    )
    return fork, build.sum(256, 256, 256, 256, 256, 256)


class InceptionV4(nn.Module):
    """Inception-v4.

    Args:
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps
        dropout: probability in front of the dense layer

    Example:
        >>> InceptionV4(classes=10, width=0.125)(torch.zeros(2, 3, 75, 75)).shape
        torch.Size([2, 10])
    """

    def __init__(self, *, classes: int = 1000, channels: int = 3, width: float = 1.0, dropout: float = 0.2) -> None:
        super().__init__()
        build = Branches(width)
        stem = _Stem(build, channels)
        inputs = stem.outputs
        self.features = nn.Sequential(stem)
        rows = [*[_module_a] * 4, _halving_a, *[_module_b] * 7, _halving_b, *[_module_c] * 3]
        for make in rows:
            fork, inputs = make(build, inputs)
            self.features.append(fork)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, height, width]; at least 75 × 75, published for 299 × 299

        Returns:
            Scores [batch, classes].
        """
        maps = self.avgpool(self.features(images))
        scores: torch.Tensor = self.fc(self.dropout(torch.flatten(maps, 1)))
        return scores
