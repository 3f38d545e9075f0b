"""MobileNet-V2, MobileNet-V3 and EfficientNet: blocks that widen, filter each map alone, and narrow again.

    inputs ─ 1 × 1 to many maps ─ k × k, each map alone ─ (weigh the maps) ─ 1 × 1 to few maps ─ (+ inputs)

A convolution that filters each map alone has little compute for what it moves, so these networks are bound by memory
where others are bound by arithmetic. EfficientNet's stochastic depth is left out: each step trains all blocks.

Source:
    Sandler et al., CVPR 2018, table 2; Howard et al., ICCV 2019, tables 1 and 2; Tan and Le, ICML 2019, table 1, and
    the multipliers of depth, width and image that the authors' code gives B1 to B7. Numbers of parameters as in
    torchvision's `mobilenet_v2`, `mobilenet_v3_small`, `mobilenet_v3_large`, `efficientnet_b0` ... `efficientnet_b7`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

_DIVISOR = 8
"""Numbers of maps are multiples of this."""


def rounded_maps(maps: float) -> int:
    """The nearest number of maps that hardware likes, at least nine tenths of what was asked for.

    Args:
        maps: number that a multiplier gave

    Example:
        >>> rounded_maps(32 * 1.1), rounded_maps(16 / 4), rounded_maps(11)
        (32, 8, 16)
    """
    found = max(_DIVISOR, int(maps + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return found if found >= 0.9 * maps else found + _DIVISOR


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockForm:
    """A block that widens and narrows.

    Attributes:
        kernel: pixels of the convolution of each map, on a side
        inner: maps inside
        maps: maps that go out
        squeeze: maps inside the weighing of maps; 0: they are not weighed
        activation: makes the activation
        stride: of the convolution of each map
    """

    kernel: int
    inner: int
    maps: int
    squeeze: int
    activation: Callable[[], nn.Module]
    stride: int


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


def _relu6() -> nn.Module:
    return nn.ReLU6(inplace=True)


def _hardswish() -> nn.Module:
    return nn.Hardswish(inplace=True)


def _silu() -> nn.Module:
    return nn.SiLU(inplace=True)


def _convolution(
    inputs: int,
    maps: int,
    kernel: int,
    norm: Callable[[int], nn.Module],
    activation: Callable[[], nn.Module] | None,
    *,
    stride: int = 1,
    groups: int = 1,
) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, maps, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
    parts = [convolution, norm(maps)]
    return nn.Sequential(*parts, *([] if activation is None else [activation()]))


class WeighedMaps(nn.Module):
    """Weighs each map by what all maps are on average.

    Args:
        maps: number of them
        inner: maps between the two products
        activation: after the first product
        gate: gives the weights, after the second one
    """

    def __init__(self, maps: int, inner: int, activation: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(maps, inner, 1)
        self.activation = activation
        self.fc2 = nn.Conv2d(inner, maps, 1)
        self.gate = gate

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, channels, h, w] to the same shape."""
        means = maps.mean((2, 3), keepdim=True)
        weighed: torch.Tensor = maps * self.gate(self.fc2(self.activation(self.fc1(means))))
        return weighed


class InvertedBlock(nn.Module):
    """Widens, filters each map alone, weighs the maps where it is to, narrows; with a shortcut where shapes allow.

    Args:
        inputs: maps that come in
        form: of the block
        norm: makes the batch norm of a number of maps
        weigh: makes what weighs maps, of their number and the number inside
    """

    def __init__(
        self,
        inputs: int,
        form: BlockForm,
        norm: Callable[[int], nn.Module],
        weigh: Callable[[int, int], nn.Module],
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        if form.inner != inputs:
            parts.append(_convolution(inputs, form.inner, 1, norm, form.activation))
        parts.append(
            _convolution(
                form.inner,
                form.inner,
                form.kernel,
                norm,
                form.activation,
                stride=form.stride,
                groups=form.inner,
            )
        )
        if form.squeeze:
            parts.append(weigh(form.inner, form.squeeze))
        parts.append(_convolution(form.inner, form.maps, 1, norm, None))
        self.block = nn.Sequential(*parts)
        self.has_shortcut = form.stride == 1 and form.maps == inputs

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps [batch, inputs, h, w] to [batch, maps, h / stride, w / stride]."""
        found: torch.Tensor = self.block(maps)
        return maps + found if self.has_shortcut else found


def _scaled(forms: Sequence[BlockForm], width: float) -> list[BlockForm]:
    """The forms with another number of maps."""
    if width == 1.0:
        return list(forms)
    return [
        BlockForm(
            kernel=form.kernel,
            inner=rounded_maps(form.inner * width),
            maps=rounded_maps(form.maps * width),
            squeeze=rounded_maps(form.squeeze * width) if form.squeeze else 0,
            activation=form.activation,
            stride=form.stride,
        )
        for form in forms
    ]


class _Classifier(nn.Module):
    """A stem, blocks, and a head over the mean of each map."""

    features: nn.Sequential
    classifier: nn.Sequential

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, height, width]

        Returns:
            Scores [batch, classes].
        """
        means = self.features(images).mean((2, 3))
        scores: torch.Tensor = self.classifier(means)
        return scores


# Maps inside for each that comes in, maps, blocks, stride of the first.
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(_Classifier):
    """MobileNet-V2.

    Args:
        classes: number of classes
        channels: channels of the image
        width: multiplies the numbers of maps

    Example:
        >>> MobileNetV2(classes=10, width=0.25)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, *, classes: int = 1000, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        inputs, last = rounded_maps(32 * width), rounded_maps(1280 * max(1.0, width))
        parts: list[nn.Module] = [_convolution(channels, inputs, 3, nn.BatchNorm2d, _relu6, stride=2)]
        for factor, maps, blocks, stride in _V2:
            for number in range(blocks):
                form = BlockForm(
                    kernel=3,
                    inner=inputs * factor,
                    maps=rounded_maps(maps * width),
                    squeeze=0,
                    activation=_relu6,
                    stride=stride if number == 0 else 1,
                )
                parts.append(InvertedBlock(inputs, form, nn.BatchNorm2d, _never))
                inputs = form.maps
        parts.append(_convolution(inputs, last, 1, nn.BatchNorm2d, _relu6))
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))


def _never(maps: int, inner: int) -> nn.Module:
    raise NotImplementedError(f"{maps} maps are not weighed")


def _v3(rows: str) -> tuple[BlockForm, ...]:
    """Blocks of MobileNet-V3, a row each: kernel, maps inside, maps, SE or -, RE or HS, stride."""
    forms = []
    for row in rows.strip().splitlines():
        kernel, inner, maps, squeeze, activation, stride = row.split()
        forms.append(
            BlockForm(
                kernel=int(kernel),
                inner=int(inner),
                maps=int(maps),
                squeeze=rounded_maps(int(inner) / 4) if squeeze == "SE" else 0,
                activation=_relu if activation == "RE" else _hardswish,
                stride=int(stride),
            )
        )
    return tuple(forms)


@dataclass(frozen=True, slots=True, kw_only=True)
class V3Size:
    """How large a MobileNet-V3 is.

    Attributes:
        forms: of its blocks
        last: maps after the last convolution
        head: units of its hidden layer
    """

    forms: tuple[BlockForm, ...]
    last: int
    head: int


V3_SIZES: Mapping[str, V3Size] = {
    "small": V3Size(
        forms=_v3(
            """
            3 16 16 SE RE 2
            3 72 24 - RE 2
            3 88 24 - RE 1
            5 96 40 SE HS 2
            5 240 40 SE HS 1
            5 240 40 SE HS 1
            5 120 48 SE HS 1
            5 144 48 SE HS 1
            5 288 96 SE HS 2
            5 576 96 SE HS 1
            5 576 96 SE HS 1
            """
        ),
        last=576,
        head=1024,
    ),
    "large": V3Size(
        forms=_v3(
            """
            3 16 16 - RE 1
            3 64 24 - RE 2
            3 72 24 - RE 1
            5 72 40 SE RE 2
            5 120 40 SE RE 1
            5 120 40 SE RE 1
            3 240 80 - HS 2
            3 200 80 - HS 1
            3 184 80 - HS 1
            3 184 80 - HS 1
            3 480 112 SE HS 1
            3 672 112 SE HS 1
            5 672 160 SE HS 2
            5 960 160 SE HS 1
            5 960 160 SE HS 1
            """
        ),
        last=960,
        head=1280,
    ),
}
"""Small and large, as published."""


class MobileNetV3(_Classifier):
    """MobileNet-V3.

    Args:
        size: one of `V3_SIZES`
        classes: number of classes
        channels: channels of the image
        width: multiplies the numbers of maps

    Example:
        >>> MobileNetV3(V3_SIZES["small"], classes=10, width=0.25)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, size: V3Size = V3_SIZES["large"], *, classes: int = 1000, channels: int = 3, width: float = 1.0
    ) -> None:
        super().__init__()

        def norm(maps: int) -> nn.Module:
            return nn.BatchNorm2d(maps, eps=0.001, momentum=0.01)

        def weigh(maps: int, inner: int) -> nn.Module:
            return WeighedMaps(maps, inner, _relu(), nn.Hardsigmoid())

        inputs, last = rounded_maps(16 * width), rounded_maps(size.last * width)
        parts: list[nn.Module] = [_convolution(channels, inputs, 3, norm, _hardswish, stride=2)]
        for form in _scaled(size.forms, width):
            parts.append(InvertedBlock(inputs, form, norm, weigh))
            inputs = form.maps
        parts.append(_convolution(inputs, last, 1, norm, _hardswish))
        self.features = nn.Sequential(*parts)
        hidden = rounded_maps(size.head * width)
        self.classifier = nn.Sequential(
            nn.Linear(last, hidden), _hardswish(), nn.Dropout(0.2), nn.Linear(hidden, classes)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficientNetSize:
    """By how much an EfficientNet is larger than B0.

    Attributes:
        width: multiplies the numbers of maps
        depth: multiplies the numbers of blocks
        image: pixels of its images, on a side
        dropout: share of the means that the head drops
    """

    width: float
    depth: float
    image: int
    dropout: float


EFFICIENTNET_SIZES: Mapping[str, EfficientNetSize] = {
    "b0": EfficientNetSize(width=1.0, depth=1.0, image=224, dropout=0.2),
    "b1": EfficientNetSize(width=1.0, depth=1.1, image=240, dropout=0.2),
    "b2": EfficientNetSize(width=1.1, depth=1.2, image=260, dropout=0.3),
    "b3": EfficientNetSize(width=1.2, depth=1.4, image=300, dropout=0.3),
    "b4": EfficientNetSize(width=1.4, depth=1.8, image=380, dropout=0.4),
    "b5": EfficientNetSize(width=1.6, depth=2.2, image=456, dropout=0.4),
    "b6": EfficientNetSize(width=1.8, depth=2.6, image=528, dropout=0.5),
    "b7": EfficientNetSize(width=2.0, depth=3.1, image=600, dropout=0.5),
}
"""B0 to B7."""

# Maps inside for each that comes in, kernel, stride of the first, maps, blocks.
_B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class EfficientNet(_Classifier):
    """EfficientNet.

    Args:
        size: one of `EFFICIENTNET_SIZES`
        classes: number of classes
        channels: channels of the image

    Example:
        >>> EfficientNet(EfficientNetSize(width=0.25, depth=0.5, image=32, dropout=0.0), classes=10)(
        ...     torch.zeros(2, 3, 32, 32)
        ... ).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        size: EfficientNetSize = EFFICIENTNET_SIZES["b0"],
        *,
        classes: int = 1000,
        channels: int = 3,
    ) -> None:
        super().__init__()

        def norm(maps: int) -> nn.Module:
            # As the authors' code; torchvision has these values for B5 to B7 only, which changes no shape.
            return nn.BatchNorm2d(maps, eps=0.001, momentum=0.01)

        def weigh(maps: int, inner: int) -> nn.Module:
            return WeighedMaps(maps, inner, _silu(), nn.Sigmoid())

        inputs, last = rounded_maps(32 * size.width), 4 * rounded_maps(320 * size.width)
        parts: list[nn.Module] = [_convolution(channels, inputs, 3, norm, _silu, stride=2)]
        for factor, kernel, stride, maps, blocks in _B0:
            for number in range(math.ceil(blocks * size.depth)):
                form = BlockForm(
                    kernel=kernel,
                    inner=rounded_maps(inputs * factor),
                    maps=rounded_maps(maps * size.width),
                    squeeze=max(1, inputs // 4),
                    activation=_silu,
                    stride=stride if number == 0 else 1,
                )
                parts.append(InvertedBlock(inputs, form, norm, weigh))
                inputs = form.maps
        parts.append(_convolution(inputs, last, 1, norm, _silu))
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(nn.Dropout(size.dropout), nn.Linear(last, classes))
