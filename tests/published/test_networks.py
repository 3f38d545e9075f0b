"""Sizes of the built-in networks against published ones."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from trimaran.networks.alexnet_overfeat_vgg import VGG_GROUPS, AlexNet, AlexNet2012, OverFeat, Vgg
from trimaran.networks.densenet import DENSENET_BLOCKS, DenseNet
from trimaran.networks.googlenet_inception import GoogLeNet, InceptionV3, InceptionV4
from trimaran.networks.mobilenet import EFFICIENTNET_SIZES, V3_SIZES, EfficientNet, MobileNetV2, MobileNetV3
from trimaran.networks.resnet import BottleneckForm, ResNet
from trimaran.networks.unet import UNet
from trimaran.networks.vit import VIT_L_16, VIT_SIZES, VisionTransformer

pytestmark = pytest.mark.published

TORCHVISION = "torchvision's table of classification models, num_params"
TIMM = (
    "huggingface/pytorch-image-models@aa4b5850c1543fa488abf260f18390eda46cf85d:results/"
    "benchmark-infer-amp-nchw-pt210-cu121-rtx3090.csv, param_count"
)
OVERFEAT = "Sermanet et al., ICLR 2014, table 1: its layers added up by hand, with biases"
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published size.

    Attributes:
        make: makes the network
        parameters: number of them, exactly
        source: where it stands
    """

    make: Callable[[], nn.Module]
    parameters: int
    source: str


SIZES = {
    "alexnet": Published(make=AlexNet, parameters=61_100_840, source=TORCHVISION),
    "alexnet-2012": Published(
        make=AlexNet2012, parameters=60_965_224, source="Caffe's bvlc_alexnet: its layers added up, with biases"
    ),
    "overfeat": Published(
        make=OverFeat,
        parameters=sum(
            [
                *(96 * (3 * 121 + 1), 256 * (96 * 25 + 1), 512 * (256 * 9 + 1)),
                *(1024 * (512 * 9 + 1), 1024 * (1024 * 9 + 1)),
                *(3072 * (1024 * 36 + 1), 4096 * (3072 + 1), 1000 * (4096 + 1)),
            ]
        ),
        source=OVERFEAT,
    ),
    "vgg11": Published(make=lambda: Vgg(VGG_GROUPS[11]), parameters=132_863_336, source=TORCHVISION),
    "vgg11_bn": Published(make=lambda: Vgg(VGG_GROUPS[11], norm=True), parameters=132_868_840, source=TORCHVISION),
    "vgg13": Published(make=lambda: Vgg(VGG_GROUPS[13]), parameters=133_047_848, source=TORCHVISION),
    "vgg16": Published(make=lambda: Vgg(VGG_GROUPS[16]), parameters=138_357_544, source=TORCHVISION),
    "vgg16_bn": Published(make=lambda: Vgg(VGG_GROUPS[16], norm=True), parameters=138_365_992, source=TORCHVISION),
    "vgg19": Published(make=lambda: Vgg(VGG_GROUPS[19]), parameters=143_667_240, source=TORCHVISION),
    "resnet18": Published(make=lambda: ResNet(18), parameters=11_689_512, source=TORCHVISION),
    "resnet34": Published(make=lambda: ResNet(34), parameters=21_797_672, source=TORCHVISION),
    "resnet50": Published(make=lambda: ResNet(50), parameters=25_557_032, source=TORCHVISION),
    "resnet101": Published(make=lambda: ResNet(101), parameters=44_549_160, source=TORCHVISION),
    "resnet152": Published(make=lambda: ResNet(152), parameters=60_192_808, source=TORCHVISION),
    "resnet50-v1": Published(
        make=lambda: ResNet(50, form=BottleneckForm(first=True)),
        parameters=25_557_032,
        source="as version 1.5: the place of a stride changes no weight",
    ),
    "resnet18-cifar": Published(
        make=lambda: ResNet(18, classes=10, stem="small"),
        parameters=11_173_962,
        source="kuangliu/pytorch-cifar, ResNet18",
    ),
    "wide-resnet50": Published(make=lambda: wide(50), parameters=68_883_240, source=TORCHVISION),
    "wide-resnet101": Published(make=lambda: wide(101), parameters=126_886_696, source=TORCHVISION),
    "resnext50": Published(make=lambda: resnext(50), parameters=25_028_904, source=TORCHVISION),
    "resnext101-32x8d": Published(make=lambda: resnext(101, group_width=8), parameters=88_791_336, source=TORCHVISION),
    "resnext101-64x4d": Published(make=lambda: resnext(101, groups=64), parameters=83_455_272, source=TORCHVISION),
    "se-resnext50": Published(
        make=lambda: resnext(50, squeeze=True), parameters=27_559_896, source="timm, seresnext50_32x4d"
    ),
    "se-resnext101": Published(
        make=lambda: resnext(101, squeeze=True), parameters=48_955_416, source="timm, seresnext101_32x4d"
    ),
    "googlenet": Published(make=GoogLeNet, parameters=6_624_904, source=TORCHVISION),
    "googlenet with auxiliary heads": Published(
        make=lambda: GoogLeNet(auxiliary=True),
        parameters=13_004_888,
        source="torchvision's googlenet with aux_logits=True",
    ),
    "googlenet-2014": Published(
        make=lambda: GoogLeNet(norm=False),
        parameters=6_998_552,
        source="Szegedy et al., CVPR 2015, table 1, with biases: Caffe's bvlc_googlenet without its side heads",
    ),
    "inception-v3": Published(
        make=InceptionV3, parameters=23_834_568, source="torchvision's inception_v3 with aux_logits=False"
    ),
    "inception-v3 with auxiliary head": Published(
        make=lambda: InceptionV3(auxiliary=True), parameters=27_161_264, source=TORCHVISION
    ),
    "densenet121": Published(make=DenseNet, parameters=7_978_856, source=TORCHVISION),
    "densenet169": Published(make=lambda: DenseNet(DENSENET_BLOCKS[169]), parameters=14_149_480, source=TORCHVISION),
    "densenet201": Published(make=lambda: DenseNet(DENSENET_BLOCKS[201]), parameters=20_013_928, source=TORCHVISION),
    "mobilenet-v2": Published(make=MobileNetV2, parameters=3_504_872, source=TORCHVISION),
    "mobilenet-v3-small": Published(
        make=lambda: MobileNetV3(V3_SIZES["small"]), parameters=2_542_856, source=TORCHVISION
    ),
    "mobilenet-v3-large": Published(make=MobileNetV3, parameters=5_483_032, source=TORCHVISION),
    **{
        f"efficientnet-b{number}": Published(
            make=lambda number=number: EfficientNet(EFFICIENTNET_SIZES[f"b{number}"]),
            parameters=parameters,
            source=TORCHVISION,
        )
        for number, parameters in enumerate(
            (
                *(5_288_548, 7_794_184, 9_109_994, 12_233_232),
                *(19_341_616, 30_389_784, 43_040_704, 66_347_960),
            )
        )
    },
    "vit-b-16": Published(make=VisionTransformer, parameters=86_567_656, source=TORCHVISION),
    "vit-l-16": Published(make=lambda: VisionTransformer(VIT_L_16), parameters=304_326_632, source=TORCHVISION),
    "unet": Published(
        make=UNet,
        parameters=31_037_698,
        source="the widely used padded U-Net with batch norm and transposed convolutions, 3 channels, 2 classes",
    ),
}


ROUNDED = {
    # Millions, in two decimals.
    "resnet26": (lambda: ResNet(26), 16.0),
    "resnet200": (lambda: ResNet(200), 64.67),
    "resnext101": (lambda: resnext(101), 44.18),
    "se-resnet50": (lambda: ResNet(50, form=BottleneckForm(squeeze=True)), 28.09),
    "se-resnet101": (lambda: ResNet(101, form=BottleneckForm(squeeze=True)), 49.33),
    "se-resnet152": (lambda: ResNet(152, form=BottleneckForm(squeeze=True)), 66.82),
    "se-resnext101-32x8d": (lambda: resnext(101, group_width=8, squeeze=True), 93.57),
    "se-resnext101-64x4d": (lambda: resnext(101, groups=64, squeeze=True), 88.23),
    "se-resnet18": (lambda: ResNet(18, form=BottleneckForm(squeeze=True)), 11.78),
    "se-resnet34": (lambda: ResNet(34, form=BottleneckForm(squeeze=True)), 21.96),
    "inception-v4": (InceptionV4, 42.68),
    "densenet161": (lambda: DenseNet((6, 12, 36, 24), width=1.5), 28.68),
    "vit-t-16": (lambda: VisionTransformer(VIT_SIZES["t-16"]), 5.72),
    "vit-s-16": (lambda: VisionTransformer(VIT_SIZES["s-16"]), 22.05),
}
"""As rounded in timm's table of benchmarks."""


def resnext(depth: int, *, groups: int = 32, group_width: int = 4, squeeze: bool = False) -> nn.Module:
    return ResNet(depth, form=BottleneckForm(groups=groups, group_width=group_width, squeeze=squeeze))


def wide(depth: int) -> nn.Module:
    return ResNet(depth, form=BottleneckForm(group_width=128))


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", SIZES)
def test_the_number_of_parameters_is_exact(name: str) -> None:
    with torch.device("meta"):
        model = SIZES[name].make()
    assert parameters(model) == SIZES[name].parameters


@pytest.mark.parametrize("name", ROUNDED)
def test_the_number_of_parameters_rounds_to_the_published_one(name: str) -> None:
    """Source: timm's table, in millions with two decimals. Tolerance: the rounding."""
    make, millions = ROUNDED[name]
    with torch.device("meta"):
        assert parameters(make()) / 1e6 == pytest.approx(millions, abs=0.005), TIMM


def test_gradients_of_inception_v3() -> None:
    """95.2 MB is 23.8 million of four bytes; ours are 23,834,568 of them, so 0.15 % more.

    Source: 23.8 million parameters, as its descriptions round them. Tolerance: 0.2 %, the rounding.
    """
    with torch.device("meta"):
        nbytes = sum(parameter.nbytes for parameter in InceptionV3().parameters())
    assert nbytes == pytest.approx(95.2 * MEGABYTE, rel=0.002)
