"""ResNet-18 to 152: four groups of residual blocks, basic ones or bottlenecks.

Source:
    He, Zhang, Ren, Sun, CVPR 2016; the stride of a bottleneck is in its 3 × 3 convolution. Parameter names and sizes as
    in torchvision's `resnet50`: 25,557,032 parameters.
"""

import torch
from torch import nn

from trimaran.networks.scaling import scaled

RESNET_BLOCKS: dict[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Residual blocks of each group, by the number of layers that have weights."""

_BASIC = frozenset({18, 34})
_MAPS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two convolutions of 3 × 3 beside a shortcut.

    Args:
        inputs: channels that come in
        maps: channels that go out
        stride: 2 halves the maps
    """

    expansion = 1

    def __init__(self, inputs: int, maps: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, maps, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(maps)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(maps)
        self.downsample = _shortcut(inputs, maps * self.expansion, stride)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, maps, h / stride, w / stride]."""
        change = self.relu(self.bn1(self.conv1(maps)))
        change = self.bn2(self.conv2(change))
        change += maps if self.downsample is None else self.downsample(maps)
        sums: torch.Tensor = self.relu(change)
        return sums


class Bottleneck(nn.Module):
    """Convolutions of 1 × 1, 3 × 3 and 1 × 1 beside a shortcut.

    Args:
        inputs: channels that come in
        maps: channels of the middle convolution; four times as many go out
        stride: 2 halves the maps
    """

    expansion = 4

    def __init__(self, inputs: int, maps: int, stride: int = 1) -> None:
        super().__init__()
        outputs = maps * self.expansion
        self.conv1 = nn.Conv2d(inputs, maps, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(maps)
        self.conv2 = nn.Conv2d(maps, maps, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(maps)
        self.conv3 = nn.Conv2d(maps, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, 4 * maps, h / stride, w / stride]."""
        change = self.relu(self.bn1(self.conv1(maps)))
        change = self.relu(self.bn2(self.conv2(change)))
        change = self.bn3(self.conv3(change))
        change += maps if self.downsample is None else self.downsample(maps)
        sums: torch.Tensor = self.relu(change)
        return sums


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A stem, four groups of residual blocks, and a dense layer on the mean of each map.

    Args:
        depth: layers that have weights, one of `RESNET_BLOCKS`
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps
        blocks: residual blocks of each group, in place of those of the depth

    Example:
        >>> ResNet(50, classes=10, width=0.125)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 50,
        *,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
        blocks: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        kind: type[BasicBlock] | type[Bottleneck] = BasicBlock if depth in _BASIC else Bottleneck
        inputs = scaled(_MAPS[0], width)
        self.conv1 = nn.Conv2d(channels, inputs, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        counts = RESNET_BLOCKS[depth] if blocks is None else blocks
        groups = []
        for group, (maps, count) in enumerate(zip((scaled(maps, width) for maps in _MAPS), counts, strict=True)):
            members = nn.Sequential()
            for number in range(count):
                members.append(kind(inputs, maps, stride=2 if group and number == 0 else 1))
                inputs = maps * kind.expansion
            groups.append(members)
        self.layer1, self.layer2, self.layer3, self.layer4 = groups
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)
        self._draw_weights()

    def _draw_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, height, width]; published for 224 × 224

        Returns:
            Scores [batch, classes].
        """
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        scores: torch.Tensor = self.fc(torch.flatten(self.avgpool(maps), 1))
        return scores
