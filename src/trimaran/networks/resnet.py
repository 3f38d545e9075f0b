"""ResNet-18 to 200, ResNeXt and their forms with squeeze and excitation: four groups of residual blocks.

The stride of a bottleneck is in its 3 × 3 convolution, which is known as version 1.5; the published form has it in the
first 1 × 1 one (`first=True`), with as many parameters and 6 % fewer operations. Parameter names and sizes are those of
torchvision's `resnet50`: 25,557,032 parameters.

Source:
    He, Zhang, Ren, Sun, "Deep Residual Learning", CVPR 2016; ResNet-200: He et al., "Identity Mappings", ECCV 2016, in
    the order of layers of the others; Xie et al., "Aggregated Residual Transformations", CVPR 2017; Hu, Shen, Sun,
    "Squeeze-and-Excitation Networks", CVPR 2018.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from trimaran.networks.sizes import scaled

RESNET_BLOCKS: dict[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    26: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
"""Residual blocks of each group, by the number of layers that have weights."""

_BASIC = frozenset({18, 34})
_MAPS = (64, 128, 256, 512)
_REDUCTION = 16  # maps of a block for each one between the two layers of its squeeze and excitation


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckForm:
    """How the bottlenecks of a network are made.

    Attributes:
        groups: of the 3 × 3 convolution
        group_width: maps of each of these groups in the first group of blocks; 64 × 1 is a ResNet, 32 × 4 a ResNeXt
        first: the stride is in the first convolution, not in the 3 × 3 one
        squeeze: whether maps are weighted by squeeze and excitation
    """

    groups: int = 1
    group_width: int = 64
    first: bool = False
    squeeze: bool = False


class Squeeze(nn.Module):
    """Weighs each map by what all maps are on average.

    Args:
        maps: number of them
    """

    def __init__(self, maps: int) -> None:
        super().__init__()
        inner = max(1, maps // _REDUCTION)
        self.fc1 = nn.Conv2d(maps, inner, 1)
        self.fc2 = nn.Conv2d(inner, maps, 1)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, channels, h, w] to the same shape."""
        means = maps.mean((2, 3), keepdim=True)
        weighed: torch.Tensor = maps * torch.sigmoid(self.fc2(torch.relu(self.fc1(means))))
        return weighed


class BasicBlock(nn.Module):
    """Two convolutions of 3 × 3 and a shortcut.

    Args:
        inputs: channels that come in
        maps: channels that go out
        stride: 2 halves the maps
        squeeze: whether maps are weighted by squeeze and excitation
    """

    expansion = 1

    def __init__(self, inputs: int, maps: int, stride: int = 1, *, squeeze: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, maps, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(maps)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(maps)
        self.se = Squeeze(maps) if squeeze else None
        self.downsample = _shortcut(inputs, maps * self.expansion, stride)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, maps, h / stride, w / stride]."""
        change = self.relu(self.bn1(self.conv1(maps)))
        change = self.bn2(self.conv2(change))
        if self.se is not None:
            change = self.se(change)
        change += maps if self.downsample is None else self.downsample(maps)
        sums: torch.Tensor = self.relu(change)
        return sums


class Bottleneck(nn.Module):
    """Convolutions of 1 × 1, 3 × 3 and 1 × 1, and a shortcut.

    Args:
        inputs: channels that come in
        maps: a quarter of the channels that go out
        stride: 2 halves the maps
        form: of the bottleneck
    """

    expansion = 4

    def __init__(self, inputs: int, maps: int, stride: int = 1, form: BottleneckForm | None = None) -> None:
        super().__init__()
        form = form or BottleneckForm()
        outputs = maps * self.expansion
        middle = max(1, maps * form.group_width // _MAPS[0]) * form.groups
        strides = (stride, 1) if form.first else (1, stride)
        self.conv1 = nn.Conv2d(inputs, middle, 1, strides[0], bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, strides[1], padding=1, groups=form.groups, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.se = Squeeze(outputs) if form.squeeze else None
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, 4 * maps, h / stride, w / stride]."""
        change = self.relu(self.bn1(self.conv1(maps)))
        change = self.relu(self.bn2(self.conv2(change)))
        change = self.bn3(self.conv3(change))
        if self.se is not None:
            change = self.se(change)
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
        form: of the bottlenecks; of basic blocks, whether they squeeze
        stem: in front of the groups: for images of hundreds of pixels a convolution of 7 × 7 and a pooling; for those
            of 32 × 32 a convolution of 3 × 3

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
        form: BottleneckForm | None = None,
        stem: Literal["large", "small"] = "large",
    ) -> None:
        super().__init__()
        inputs = scaled(_MAPS[0], width)
        large = stem == "large"
        self.conv1 = nn.Conv2d(
            channels, inputs, 7 if large else 3, stride=2 if large else 1, padding=3 if large else 1, bias=False
        )
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        counts = RESNET_BLOCKS[depth] if blocks is None else blocks
        groups = []
        for group, (maps, count) in enumerate(zip((scaled(maps, width) for maps in _MAPS), counts, strict=True)):
            members = nn.Sequential()
            for number in range(count):
                stride = 2 if group and number == 0 else 1
                block: BasicBlock | Bottleneck
                if depth in _BASIC:
                    block = BasicBlock(inputs, maps, stride, squeeze=form is not None and form.squeeze)
                else:
                    block = Bottleneck(inputs, maps, stride, form)
                members.append(block)
                inputs = maps * block.expansion
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
