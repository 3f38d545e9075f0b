"""VGG: groups of convolutions of 3 × 3, each group followed by a pooling, and three dense layers.

`VGG_GROUPS` names how many convolutions each of the five groups has. The very deep ones are those of the vDNN paper:
for every hundred layers, each group of VGG-16 has 20 more.

Source:
    Simonyan & Zisserman, ICLR 2015 (VGG-11 to 19); Rhu et al., MICRO 2016 (VGG-116 to 416). Parameter names and sizes
    as in torchvision's `vgg16`: 138,357,544 parameters.
"""

from torch import nn

from trimaran.networks.alexnet import ConvolutionalClassifier, dense_layers
from trimaran.networks.sizes import scaled

VGG_GROUPS: dict[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
    116: (22, 22, 23, 23, 23),
    216: (42, 42, 43, 43, 43),
    316: (62, 62, 63, 63, 63),
    416: (82, 82, 83, 83, 83),
}
"""Convolutions of each group, by the number of layers that have weights."""

_MAPS = (64, 128, 256, 512, 512)
_POOLED = 7  # height and width of the maps that the dense layers see


class Vgg(ConvolutionalClassifier):
    """A network of the VGG family.

    Images have at least 32 × 32 pixels, in publications 224 × 224.

    Args:
        groups: convolutions of each of the five groups, one of `VGG_GROUPS`
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps and the dense layers
        norm: a batch norm behind every convolution
        dropout: probability behind the first two dense layers

    Example:
        >>> import torch
        >>> Vgg(VGG_GROUPS[16], classes=10, width=0.125)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        groups: tuple[int, ...] = VGG_GROUPS[16],
        *,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
        norm: bool = False,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential()
        for maps, convolutions in zip(_MAPS, groups, strict=True):
            outputs = scaled(maps, width)
            for _ in range(convolutions):
                self._add_convolution(channels, outputs, norm=norm)
                channels = outputs
            self.features.append(nn.MaxPool2d(2, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((_POOLED, _POOLED))
        dense = scaled(4096, width)
        self.classifier = dense_layers(channels * _POOLED**2, dense, dense, classes, dropout=dropout)
        self._draw_weights()

    def _add_convolution(self, inputs: int, outputs: int, *, norm: bool) -> None:
        self.features.append(nn.Conv2d(inputs, outputs, 3, padding=1))
        if norm:
            self.features.append(nn.BatchNorm2d(outputs))
        self.features.append(nn.ReLU(inplace=True))

    def _draw_weights(self) -> None:
        # With torch's own draw, and without batch norm, the differences between images vanish within a hundred layers.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)
