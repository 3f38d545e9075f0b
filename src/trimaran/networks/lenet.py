"""LeNet-5's shape, with today's activations.

Source:
    LeCun, Bottou, Bengio, Haffner, Proc. IEEE 86(11), 1998: two convolutions of 5 × 5 with subsampling, three dense
    layers, input of 32 × 32. ReLU and max pooling take the place of the scaled tanh and the trained subsampling.
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
