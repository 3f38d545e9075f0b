"""AlexNet in the form for one device.

The form of 2012, with its wider layers, normalization and groups, is here too.

Source:
    Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997, 2014. Parameter
    names and sizes as in torchvision's `alexnet`: 61,100,840 parameters.

AlexNet as published in 2012: two groups of maps, local response normalization, poolings that overlap.

Its groups are halves of the maps that two devices shared; with one group it is the form of several frameworks' examples
(`groups=1`, 62,378,344 parameters). The form for one device, of 2014, is in `alexnet.py`.

Source:
    Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", NeurIPS 2012, and
    Caffe's `bvlc_alexnet`, which has the norm behind the activation: 60,965,224 parameters for images of 227 × 227.
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
