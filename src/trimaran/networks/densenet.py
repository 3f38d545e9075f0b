"""DenseNet-121: each layer of a block sees the maps of all layers before it.

Source:
    Huang, Liu, van der Maaten, Weinberger, CVPR 2017 (DenseNet-BC, growth 32). Parameter names and sizes as in
    torchvision's `densenet121`: 7,978,856 parameters. The concatenations are not saved away by recomputing them.
"""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional

from trimaran.networks.sizes import scaled

DENSENET_BLOCKS: dict[int, tuple[int, ...]] = {
    121: (6, 12, 24, 16),
    169: (6, 12, 32, 32),
    201: (6, 12, 48, 32),
}
"""Layers of each dense block, by the number of layers that have weights."""

_BOTTLENECK = 4  # the 1 × 1 convolution makes this many times the growth


class DenseLayer(nn.Module):
    """Batch norm, ReLU and convolution twice, over all maps of the block so far.

    Args:
        inputs: channels of all maps so far
        growth: channels that it adds
    """

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        middle = _BOTTLENECK * growth
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, middle, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(middle)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(middle, growth, 3, padding=1, bias=False)

    def forward(self, so_far: list[torch.Tensor]) -> torch.Tensor:
        """Maps [batch, ·, h, w], `inputs` channels together, to [batch, growth, h, w]."""
        middle = self.conv1(self.relu1(self.norm1(torch.cat(so_far, dim=1))))
        added: torch.Tensor = self.conv2(self.relu2(self.norm2(middle)))
        return added


class DenseBlock(nn.Module):
    """Dense layers, and their maps joined with those that came in.

    Args:
        inputs: channels that come in
        layers: number of layers
        growth: channels that each adds
    """

    def __init__(self, inputs: int, layers: int, growth: int) -> None:
        super().__init__()
        for number in range(layers):
            self.add_module(f"denselayer{number + 1}", DenseLayer(inputs + number * growth, growth))

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, inputs + layers * growth, h, w]."""
        so_far = [maps]
        for layer in self.children():
            so_far.append(layer(so_far))
        return torch.cat(so_far, dim=1)


class DenseNet(nn.Module):
    """A stem, dense blocks with transitions between them that halve channels and maps, and a dense layer.

    Args:
        blocks: layers of each dense block, one of `DENSENET_BLOCKS`
        classes: number of classes
        channels: channels of the image
        width: multiplies the growth of 32 and the 64 channels of the stem

    Example:
        >>> DenseNet((2, 2), classes=10, width=0.25)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        blocks: tuple[int, ...] = DENSENET_BLOCKS[121],
        *,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        growth, inputs = scaled(32, width), scaled(64, width)
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(channels, inputs, 7, stride=2, padding=3, bias=False),
            norm0=nn.BatchNorm2d(inputs),
            relu0=nn.ReLU(inplace=True),
            pool0=nn.MaxPool2d(3, 2, padding=1),
        )
        for number, layers in enumerate(blocks, start=1):
            parts[f"denseblock{number}"] = DenseBlock(inputs, layers, growth)
            inputs += layers * growth
            if number < len(blocks):
                parts[f"transition{number}"] = _transition(inputs)
                inputs //= 2
        parts["norm5"] = nn.BatchNorm2d(inputs)
        self.features = nn.Sequential(parts)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, height, width]; published for 224 × 224

        Returns:
            Scores [batch, classes].
        """
        maps = functional.relu(self.features(images), inplace=True)
        scores: torch.Tensor = self.classifier(torch.flatten(functional.adaptive_avg_pool2d(maps, (1, 1)), 1))
        return scores


def _transition(inputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(inputs),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(inputs, inputs // 2, 1, bias=False),
            pool=nn.AvgPool2d(2, 2),
        )
    )
