"""Convolutions one after the other, then dense layers: AlexNet, OverFeat and VGG.

AlexNet in the form for one device.

Source:
    Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997, 2014. Parameter
    names and sizes as in torchvision's `alexnet`: 61,100,840 parameters.

AlexNet as published in 2012: two groups of maps, local response normalization, poolings that overlap.

Its groups are halves of the maps that two devices shared; with one group it is the form of several frameworks' examples
(`groups=1`, 62,378,344 parameters).

Source:
    Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", NeurIPS 2012, and
    Caffe's `bvlc_alexnet`, which has the norm behind the activation: 60,965,224 parameters for images of 227 × 227.

OverFeat, its fast model, in the form of table 1 of the paper on one column: images of 231 × 231, no normalization,
poolings that do not overlap: 145,920,872 parameters. It is the form that convnet benchmarks and the vDNN paper ran.

Source:
    Sermanet et al., "OverFeat: Integrated Recognition, Localization and Detection using Convolutional Networks",
    ICLR 2014, table 1.

VGG: groups of convolutions of 3 × 3, each group followed by a pooling, and three dense layers. `VGG_GROUPS` names how
many convolutions each of the five groups has. The very deep ones are those of the vDNN paper: for every hundred layers,
each group of VGG-16 has 20 more.

Source:
    Simonyan & Zisserman, ICLR 2015 (VGG-11 to 19); Rhu et al., MICRO 2016 (VGG-116 to 416). Parameter names and sizes
    as in torchvision's `vgg16`: 138,357,544 parameters.
"""

from itertools import pairwise

import torch
from torch import nn

from trimaran.networks.sizes import scaled


class ConvolutionalClassifier(nn.Module):
    """Convolutions one after the other, a pooling to maps of a fixed size, and dense layers."""

    features: nn.Sequential
    avgpool: nn.AdaptiveAvgPool2d
    classifier: nn.Sequential

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, height, width]

        Returns:
            Scores [batch, classes].
        """
        scores: torch.Tensor = self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))
        return scores


def dense_layers(inputs: int, *widths: int, dropout: float, drops_inputs: bool = False) -> nn.Sequential:
    """Dense layers with ReLU, and a dropout with each of them but the last, which has neither.

    Args:
        inputs: elements of the flattened maps
        widths: of the layers; the last one is the number of classes
        dropout: probability
        drops_inputs: the dropout is in front of a layer, not behind its ReLU
    """
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *widths[:-1])):
        dense = (nn.Linear(before, after), nn.ReLU(inplace=True))
        layers += [nn.Dropout(dropout), *dense] if drops_inputs else [*dense, nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


class AlexNet(ConvolutionalClassifier):
    """Five convolutions and three dense layers, without batch norm.

    Images have at least 63 × 63 pixels, in publications 224 × 224.

    Args:
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps and the dense layers
        dropout: probability in front of the first two dense layers
        maps: feature maps of the five convolutions; tf_cnn_benchmarks has 384 in the fourth (its
            models/alexnet_model.py)
        padding: zeros around the image

    Example:
        >>> AlexNet(classes=10, width=0.125)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
        dropout: float = 0.5,
        *,
        maps: tuple[int, int, int, int, int] = (64, 192, 384, 256, 256),
        padding: int = 2,
    ) -> None:
        super().__init__()
        one, two, three, four, five = (scaled(count, width) for count in maps)
        dense = scaled(4096, width)
        self.features = nn.Sequential(
            nn.Conv2d(channels, one, 11, stride=4, padding=padding),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(one, two, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(two, three, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(three, four, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(four, five, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = dense_layers(five * 6 * 6, dense, dense, classes, dropout=dropout, drops_inputs=True)


_WINDOW = 5  # maps that a norm looks at


class AlexNet2012(ConvolutionalClassifier):
    """Five convolutions and three dense layers.

    Images have at least 67 × 67 pixels, in publications 227 × 227.

    Args:
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps and the dense layers; leaves them even
        groups: of the second, fourth and fifth convolution
        dropout: probability in front of the second and third dense layer
        pooled: height and width of the maps that the first dense layer reads; MXNet's example, of images of 224 × 224
            without zeros around them, has 5 (its example/image-classification/symbols/alexnet.py)

    Example:
        >>> AlexNet2012(classes=10, width=0.125)(torch.zeros(2, 3, 67, 67)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
        *,
        groups: int = 2,
        dropout: float = 0.5,
        pooled: int = 6,
    ) -> None:
        super().__init__()
        one, two, three, four, five = (2 * scaled(maps, width) for maps in (48, 128, 192, 192, 128))
        dense = scaled(4096, width)
        self.features = nn.Sequential(
            nn.Conv2d(channels, one, 11, stride=4),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(_WINDOW),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(one, two, 5, padding=2, groups=groups),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(_WINDOW),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(two, three, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(three, four, 3, padding=1, groups=groups),
            nn.ReLU(inplace=True),
            nn.Conv2d(four, five, 3, padding=1, groups=groups),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((pooled, pooled))
        self.classifier = dense_layers(five * pooled * pooled, dense, dense, classes, dropout=dropout)


class OverFeat(ConvolutionalClassifier):
    """Five convolutions and three dense layers, the first of them with most of the parameters.

    Images have at least 71 × 71 pixels, in publications 231 × 231.

    Args:
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps and the dense layers
        dropout: probability in front of the first two dense layers

    Example:
        >>> OverFeat(classes=10, width=0.125)(torch.zeros(2, 3, 71, 71)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 1000, channels: int = 3, width: float = 1.0, dropout: float = 0.5) -> None:
        super().__init__()
        one, two, three, four, five = (scaled(maps, width) for maps in (96, 256, 512, 1024, 1024))
        dense1, dense2 = scaled(3072, width), scaled(4096, width)
        self.features = nn.Sequential(
            nn.Conv2d(channels, one, 11, stride=4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(one, two, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(two, three, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(three, four, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(four, five, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = dense_layers(five * 6 * 6, dense1, dense2, classes, dropout=dropout, drops_inputs=True)


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
