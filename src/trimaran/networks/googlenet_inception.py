"""GoogLeNet (Inception-v1), Inception-v3 and Inception-v4: modules of branches, joined by their channels.

GoogLeNet has two forms. With batch norm, sizes and names are those of torchvision's `googlenet`, whose third branch has
a 3 × 3 convolution where the paper has 5 × 5: 6,624,904 parameters, 13,004,888 with both auxiliary heads. The original
form (`norm=False`) has biases, 5 × 5 convolutions and local response normalization: 6,998,552 parameters.

Inception-v3 has five kinds of modules, with sizes as in torchvision's `inception_v3`: 23,834,568 parameters, 27,161,264
with the auxiliary head. A branch is a `Sequential` here, or a `Fork` where it ends in two convolutions side by
side; the modules have torchvision's names, what is inside them does not.

Inception-v4 has fourteen modules of more regular kinds, and a stem that branches: 42,679,816 parameters with 1,000
classes, as in the usual conversions.

Source:
    Szegedy et al., "Going deeper with convolutions", CVPR 2015, table 1; "Rethinking the Inception Architecture for
    Computer Vision", CVPR 2016; Szegedy, Ioffe, Vanhoucke, Alemi, "Inception-v4, Inception-ResNet and the Impact of
    Residual Connections on Learning", AAAI 2017, figures 3 to 9.
"""

from collections.abc import Sequence

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


# ---------------------------------------------------------------------------------------------------------------------
# Inception-v3 and Inception-v4


Row = tuple[int, int] | tuple[int, int, int]
"""Kernel: height, width and, where it is not 1, the stride (then without padding)."""

_1X1, _3X3, _5X5, _1X7, _7X1, _1X3, _3X1 = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1), (1, 3), (3, 1)
_3X3_HALVES = (3, 3, 2)


class Fork(nn.Module):
    """Several modules over the same maps, joined by their channels.

    Args:
        branches: the modules
    """

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, sum of outputs, h', w']."""
        return torch.cat([branch(maps) for branch in self.branches], dim=1)


class Branches:
    """Makes branches of a given width; a module's channels are written as in the published form."""

    def __init__(self, width: float) -> None:
        self.width = width

    def convolution(self, inputs: int, outputs: int, row: Row) -> Convolution:
        """One convolution; `inputs` and `outputs` are channels in the network as it is."""
        kernel, stride = (row[0], row[1]), row[2] if len(row) == 3 else 1
        padding = (kernel[0] // 2, kernel[1] // 2) if stride == 1 else 0
        return Convolution(inputs, outputs, kernel, stride=stride, padding=padding)

    def branch(self, inputs: int, *rows: tuple[int, Row]) -> nn.Sequential:
        """Convolutions one after the other, each of published channels and a kernel."""
        made = nn.Sequential()
        for channels, row in rows:
            outputs = scaled(channels, self.width)
            made.append(self.convolution(inputs, outputs, row))
            inputs = outputs
        return made

    def pooled(self, inputs: int, channels: int) -> nn.Sequential:
        """The mean over 3 × 3, then a convolution of 1 × 1."""
        return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), *self.branch(inputs, (channels, _1X1)))

    def fork(self, inputs: int, *branches: Sequence[tuple[int, Row]], pooled: int | None = None) -> tuple[Fork, int]:
        """Branches, and one that pools: the mean with a convolution of `pooled` channels, or the largest of each 3 × 3.

        Returns:
            The module and its channels.
        """
        made: list[nn.Module] = [self.branch(inputs, *rows) for rows in branches]
        made.append(nn.MaxPool2d(3, 2) if pooled is None else self.pooled(inputs, pooled))
        outputs = self.sum(*(rows[-1][0] for rows in branches))
        return Fork(*made), outputs + (inputs if pooled is None else self.sum(pooled))

    def sum(self, *channels: int) -> int:
        """Channels of branches that are joined."""
        return sum(scaled(count, self.width) for count in channels)


def _module_a(build: Branches, inputs: int, pooled: int) -> tuple[Fork, int]:
    rows = (((64, _1X1),), ((48, _1X1), (64, _5X5)), ((64, _1X1), (96, _3X3), (96, _3X3)))
    return build.fork(inputs, *rows, pooled=pooled)


def _module_b(build: Branches, inputs: int) -> tuple[Fork, int]:
    return build.fork(inputs, ((384, _3X3_HALVES),), ((64, _1X1), (96, _3X3), (96, _3X3_HALVES)))


def _module_c(build: Branches, inputs: int, inner: int) -> tuple[Fork, int]:
    return build.fork(
        inputs,
        ((192, _1X1),),
        ((inner, _1X1), (inner, _1X7), (192, _7X1)),
        ((inner, _1X1), (inner, _7X1), (inner, _1X7), (inner, _7X1), (192, _1X7)),
        pooled=192,
    )


def _module_d(build: Branches, inputs: int) -> tuple[Fork, int]:
    rows = ((192, _1X1), (320, _3X3_HALVES)), ((192, _1X1), (192, _1X7), (192, _7X1), (192, _3X3_HALVES))
    return build.fork(inputs, *rows)


def _module_e(build: Branches, inputs: int) -> tuple[Fork, int]:
    middle = scaled(384, build.width)

    def pair() -> Fork:
        return Fork(build.branch(middle, (384, _1X3)), build.branch(middle, (384, _3X1)))

    fork = Fork(
        build.branch(inputs, (320, _1X1)),
        nn.Sequential(*build.branch(inputs, (384, _1X1)), pair()),
        nn.Sequential(*build.branch(inputs, (448, _1X1), (384, _3X3)), pair()),
        build.pooled(inputs, 192),
    )
    return fork, build.sum(320, 384, 384, 384, 384, 192)


class InceptionV3(nn.Module):
    """Inception-v3, with or without its auxiliary head.

    Args:
        classes: number of classes
        channels: channels of the image
        width: multiplies the feature maps
        auxiliary: whether it has the auxiliary head; while it trains, scores are then two tensors
        dropout: probability in front of the dense layer

    Example:
        >>> InceptionV3(classes=10, width=0.125)(torch.zeros(2, 3, 75, 75)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        classes: int = 1000,
        channels: int = 3,
        width: float = 1.0,
        auxiliary: bool = False,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        build = Branches(width)
        c32, c64, c80, c192 = (scaled(count, width) for count in (32, 64, 80, 192))
        self.stem = nn.Sequential(
            Convolution(channels, c32, 3, stride=2),
            Convolution(c32, c32, 3),
            Convolution(c32, c64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            Convolution(c64, c80, 1),
            Convolution(c80, c192, 3),
            nn.MaxPool2d(3, 2),
        )
        self.Mixed_5b, inputs = _module_a(build, c192, 32)
        self.Mixed_5c, inputs = _module_a(build, inputs, 64)
        self.Mixed_5d, inputs = _module_a(build, inputs, 64)
        self.Mixed_6a, inputs = _module_b(build, inputs)
        self.Mixed_6b, inputs = _module_c(build, inputs, 128)
        self.Mixed_6c, inputs = _module_c(build, inputs, 160)
        self.Mixed_6d, inputs = _module_c(build, inputs, 160)
        self.Mixed_6e, inputs = _module_c(build, inputs, 192)
        self.AuxLogits = _auxiliary_head(inputs, classes, width) if auxiliary else None
        self.Mixed_7a, inputs = _module_d(build, inputs)
        self.Mixed_7b, inputs = _module_e(build, inputs)
        self.Mixed_7c, inputs = _module_e(build, inputs)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Class scores.

        Args:
            images: [batch, channels, height, width]; at least 75 × 75, published for 299 × 299, which
                the auxiliary head needs

        Returns:
            Scores [batch, classes]; while training with the auxiliary head, those of the main head and of that one.
        """
        maps = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(self.stem(images))))
        maps = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(maps)))))
        at_side = self.AuxLogits(maps) if self.AuxLogits is not None and self.training else None
        maps = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(maps)))
        scores: torch.Tensor = self.fc(torch.flatten(self.dropout(self.avgpool(maps)), 1))
        return scores if at_side is None else (scores, at_side)


def _auxiliary_head(inputs: int, classes: int, width: float) -> nn.Sequential:
    middle, outputs = scaled(128, width), scaled(768, width)
    return nn.Sequential(
        nn.AvgPool2d(5, stride=3),
        Convolution(inputs, middle, 1),
        Convolution(middle, outputs, 5),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(outputs, classes),
    )


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


def _mixed_a(build: Branches, inputs: int) -> tuple[Fork, int]:
    rows = (((96, _1X1),), ((64, _1X1), (96, _3X3)), ((64, _1X1), (96, _3X3), (96, _3X3)))
    return build.fork(inputs, *rows, pooled=96)


def _halving_a(build: Branches, inputs: int) -> tuple[Fork, int]:
    return build.fork(inputs, ((384, _3X3_HALVES),), ((192, _1X1), (224, _3X3), (256, _3X3_HALVES)))


def _mixed_b(build: Branches, inputs: int) -> tuple[Fork, int]:
    return build.fork(
        inputs,
        ((384, _1X1),),
        ((192, _1X1), (224, _1X7), (256, _7X1)),
        ((192, _1X1), (192, _7X1), (224, _1X7), (224, _7X1), (256, _1X7)),
        pooled=128,
    )


def _halving_b(build: Branches, inputs: int) -> tuple[Fork, int]:
    rows = ((192, _1X1), (192, _3X3_HALVES)), ((256, _1X1), (256, _1X7), (320, _7X1), (320, _3X3_HALVES))
    return build.fork(inputs, *rows)


def _mixed_c(build: Branches, inputs: int) -> tuple[Fork, int]:
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
        rows = [*[_mixed_a] * 4, _halving_a, *[_mixed_b] * 7, _halving_b, *[_mixed_c] * 3]
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
