"""GoogLeNet (Inception-v1): modules of four branches, joined by their channels.

Two forms. With batch norm, sizes and names are those of torchvision's `googlenet`, whose third branch has a 3 × 3
convolution where the paper has 5 × 5: 6,624,904 parameters, 13,004,888 with both auxiliary heads. The original form
(`norm=False`) has biases, 5 × 5 convolutions and local response normalization: 6,998,552 parameters.

Source:
    Szegedy et al., "Going deeper with convolutions", CVPR 2015, table 1.
"""

import torch
from torch import nn
from torch.nn import functional

from trimaran.networks.sizes import scaled

_MODULES: dict[str, tuple[int, int, int, int, int, int, int]] = {
    # in, 1×1, 3×3 reduced, 3×3, 5×5 reduced, 5×5, 1×1 behind the pooling
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}


class Convolution(nn.Module):
    """A convolution with ReLU in place; between them batch norm, or no norm and a bias.

    Args:
        inputs: channels that come in
        outputs: channels that go out
        kernel: height and width of the convolution
        stride: 2 halves the maps
        padding: zeros around the maps
        norm: whether there is a batch norm
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=not norm)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001) if norm else None

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, outputs, h', w']."""
        made = self.conv(maps)
        return functional.relu(made if self.bn is None else self.bn(made), inplace=True)


class InceptionModule(nn.Module):
    """Four branches over the same maps: 1 × 1, 3 × 3, 5 × 5, and a pooling.

    Args:
        inputs: channels that come in
        one: of the 1 × 1 branch
        reduced3: in front of the 3 × 3 convolution
        three: of the 3 × 3 branch
        reduced5: in front of the 5 × 5 convolution
        five: of the 5 × 5 branch
        pooled: of the branch with the pooling
        norm: batch norm, and 3 × 3 in place of 5 × 5
    """

    def __init__(
        self, inputs: int, one: int, reduced3: int, three: int, reduced5: int, five: int, pooled: int, *, norm: bool
    ) -> None:
        super().__init__()
        window = 3 if norm else 5
        self.branch1 = Convolution(inputs, one, 1, norm=norm)
        self.branch2 = nn.Sequential(
            Convolution(inputs, reduced3, 1, norm=norm), Convolution(reduced3, three, 3, padding=1, norm=norm)
        )
        self.branch3 = nn.Sequential(
            Convolution(inputs, reduced5, 1, norm=norm),
            Convolution(reduced5, five, window, padding=window // 2, norm=norm),
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), Convolution(inputs, pooled, 1, norm=norm)
        )

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, one + three + five + pooled, h, w]."""
        return torch.cat([self.branch1(maps), self.branch2(maps), self.branch3(maps), self.branch4(maps)], dim=1)


class AuxiliaryHead(nn.Module):
    """A classifier at the side, for the training only.

    Args:
        inputs: channels that come in
        classes: number of classes
        width: multiplies channels
        norm: batch norm in its convolution
    """

    def __init__(self, inputs: int, classes: int, width: float, *, norm: bool) -> None:
        super().__init__()
        maps, dense = scaled(128, width), scaled(1024, width)
        self.conv = Convolution(inputs, maps, 1, norm=norm)
        self.fc1 = nn.Linear(maps * 16, dense)
        self.fc2 = nn.Linear(dense, classes)
        self.dropout = nn.Dropout(0.7)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to scores [batch, classes]."""
        maps = torch.flatten(self.conv(functional.adaptive_avg_pool2d(maps, (4, 4))), 1)
        scores: torch.Tensor = self.fc2(self.dropout(functional.relu(self.fc1(maps), inplace=True)))
        return scores


class GoogLeNet(nn.Module):
    """GoogLeNet, with or without batch norm and auxiliary heads.

    Args:
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps
        auxiliary: whether it has the two auxiliary heads; while it trains, scores are then three tensors
        norm: the form with batch norm; otherwise the original one

    Example:
        >>> GoogLeNet(classes=10, width=0.125)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
        auxiliary: bool = False,
        norm: bool = True,
    ) -> None:
        super().__init__()
        maps = scaled(64, width)
        self.conv1 = Convolution(channels, maps, 7, stride=2, padding=3, norm=norm)
        self.maxpool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.norm1 = None if norm else nn.LocalResponseNorm(5)
        self.conv2 = Convolution(maps, maps, 1, norm=norm)
        self.conv3 = Convolution(maps, scaled(192, width), 3, padding=1, norm=norm)
        self.norm2 = None if norm else nn.LocalResponseNorm(5)
        self.maxpool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        inputs = scaled(192, width)
        heads: dict[str, int] = {}
        for name, (_, *channels_of) in _MODULES.items():
            one, reduced3, three, reduced5, five, pooled = (scaled(count, width) for count in channels_of)
            self.add_module(
                f"inception{name}",
                InceptionModule(inputs, one, reduced3, three, reduced5, five, pooled, norm=norm),
            )
            inputs = one + three + five + pooled
            heads[name] = inputs
        self.maxpool3 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.maxpool4 = nn.MaxPool2d(2 if norm else 3, 2, ceil_mode=True)
        self.aux1 = AuxiliaryHead(heads["4a"], classes, width, norm=norm) if auxiliary else None
        self.aux2 = AuxiliaryHead(heads["4d"], classes, width, norm=norm) if auxiliary else None
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(0.2 if norm else 0.4)
        self.fc = nn.Linear(inputs, classes)

    def _stem(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.maxpool1(self.conv1(images))
        maps = maps if self.norm1 is None else self.norm1(maps)
        maps = self.conv3(self.conv2(maps))
        maps = maps if self.norm2 is None else self.norm2(maps)
        pooled: torch.Tensor = self.maxpool2(maps)
        return pooled

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Class scores.

        Args:
            images: [batch, channels, height, width]; published for 224 × 224

        Returns:
            Scores [batch, classes]; while training with auxiliary heads, those of the main head, of the second and of
            the first auxiliary head.
        """
        at_side: list[torch.Tensor] = []
        maps = self._stem(images)
        for name in _MODULES:
            maps = self.get_submodule(f"inception{name}")(maps)
            head = {"4a": self.aux1, "4d": self.aux2}.get(name)
            if head is not None and self.training:
                at_side.insert(0, head(maps))
            if name == "3b":
                maps = self.maxpool3(maps)
            elif name == "4e":
                maps = self.maxpool4(maps)
        scores: torch.Tensor = self.fc(self.dropout(torch.flatten(self.avgpool(maps), 1)))
        return (scores, *at_side) if at_side else scores
