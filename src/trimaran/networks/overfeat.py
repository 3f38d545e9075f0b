"""OverFeat, its fast model.

The form is that of table 1 of the paper on one column: images of 231 × 231, no normalization, poolings that do not
overlap: 145,920,872 parameters. It is the form that convnet benchmarks and the vDNN paper ran.

Source:
    Sermanet et al., "OverFeat: Integrated Recognition, Localization and Detection using Convolutional Networks",
    ICLR 2014, table 1.
"""

from torch import nn

from trimaran.networks.alexnet import ConvolutionalClassifier, dense_layers
from trimaran.networks.sizes import scaled


class OverFeat(ConvolutionalClassifier):
    """Five convolutions and three dense layers, the first of them with most of the parameters.

    Images have at least 71 × 71 pixels, in publications 231 × 231.

    Args:
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps and the dense layers
        dropout: probability in front of the first two dense layers

    Example:
        >>> import torch
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
