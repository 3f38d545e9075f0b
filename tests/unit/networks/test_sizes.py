"""Families of networks by hand: what a width, a depth or an option changes."""

import itertools

import pytest
import torch
from torch import nn

from trimaran.networks.alexnet_overfeat_vgg import VGG_GROUPS, Vgg
from trimaran.networks.densenet import DenseNet
from trimaran.networks.googlenet_inception import GoogLeNet, InceptionV3
from trimaran.networks.gpt import Gpt2
from trimaran.networks.recurrent import AdditiveAttention, Gnmt, LstmLanguageModel
from trimaran.networks.resnet import ResNet
from trimaran.networks.sizes import scaled
from trimaran.networks.unet import UNet
from trimaran.networks.vit import VisionTransformer, VitSize


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def convolutions(model: nn.Module) -> int:
    return sum(isinstance(module, nn.Conv2d) for module in model.modules())


def test_a_layer_keeps_at_least_one_channel() -> None:
    assert [scaled(channels, 0.125) for channels in (64, 16, 2)] == [8, 2, 1]


@pytest.mark.parametrize("layers", VGG_GROUPS)
def test_a_vgg_has_as_many_layers_with_weights_as_its_name_says(layers: int) -> None:
    """Convolutions and three dense layers."""
    with torch.device("meta"):
        model = Vgg(VGG_GROUPS[layers], width=0.125)
    assert convolutions(model) + 3 == layers


def test_each_hundred_layers_of_a_very_deep_vgg_are_twenty_convolutions_a_group() -> None:
    """By hand, with width 1/8: 8, 16, 32, 64 and 64 maps; 20 convolutions of n to n maps have 20 * (9n² + n)."""
    more = sum(20 * (9 * maps * maps + maps) for maps in (8, 16, 32, 64, 64))
    with torch.device("meta"):
        sizes = [parameters(Vgg(VGG_GROUPS[layers], width=0.125)) for layers in (16, 116, 216, 316, 416)]
    assert [larger - smaller for smaller, larger in itertools.pairwise(sizes)] == [more] * 4


def test_two_images_are_told_apart_through_four_hundred_convolutions() -> None:
    """Their maps differ by more than a hundredth; with torch's own draw of the weights they agree to seven digits."""
    torch.manual_seed(0)
    one, other = Vgg(VGG_GROUPS[416], classes=10, width=0.125).features(torch.randn(2, 3, 64, 64))
    assert (one - other).abs().max() > 0.01 * one.abs().max() > 0


@pytest.mark.parametrize(("depth", "count"), [(18, 20), (34, 36), (50, 53), (101, 104), (152, 155)])
def test_convolutions_of_a_residual_network(depth: int, count: int) -> None:
    """Its layers with weights less the dense one, and a shortcut for each change of shape: three in the networks of
    basic blocks, four in those of bottlenecks, whose first group has more channels than the stem."""
    with torch.device("meta"):
        assert convolutions(ResNet(depth, width=0.125)) == count
    assert count == depth - 1 + (3 if depth < 50 else 4)


@pytest.mark.parametrize(
    ("model", "size", "heads"),
    [
        (lambda: GoogLeNet(classes=5, width=0.125, auxiliary=True), 64, 3),
        (lambda: GoogLeNet(classes=5, width=0.125, auxiliary=True, norm=False), 64, 3),
        (lambda: InceptionV3(classes=5, width=0.0625, auxiliary=True), 299, 2),
    ],
)
def test_auxiliary_heads_score_in_training_only(model: type[nn.Module], size: int, heads: int) -> None:
    network = model()
    images = torch.randn(2, 3, size, size)
    assert [scores.shape for scores in network(images)] == [(2, 5)] * heads
    assert network.eval()(images).shape == (2, 5)


def test_the_original_googlenet_has_no_batch_norm() -> None:
    kinds = {type(module) for module in GoogLeNet(width=0.125, norm=False).modules()}
    assert nn.LocalResponseNorm in kinds
    assert nn.BatchNorm2d not in kinds


def test_channels_of_a_dense_network() -> None:
    """By hand, growth 8: 16 from the stem, + 2 * 8, halved, + 2 * 8."""
    assert DenseNet((2, 2), width=0.25).classifier.in_features == (16 + 16) // 2 + 16


def test_a_vision_transformer_sees_every_patch() -> None:
    """The score of the class token depends on each of the four patches."""
    torch.manual_seed(0)
    model = VisionTransformer(VitSize(image=16, patch=8, width=16, heads=2, blocks=1, dense=32), classes=3).eval()
    images = torch.randn(1, 3, 16, 16, requires_grad=True)
    (given,) = torch.autograd.grad(model(images).sum(), images)
    assert (given.abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gpt2(16, 2, 2, vocabulary=20, length=6),
        lambda: LstmLanguageModel(20, 8, 16),
    ],
)
def test_a_language_model_does_not_look_ahead(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    before, after = model(torch.tensor([[3, 1, 4, 1, 5, 9]])), model(torch.tensor([[3, 1, 4, 2, 6, 5]]))
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


def test_dropout_of_gpt2_reaches_its_attention() -> None:
    """With all of the attention's weights dropped, what it adds is the bias of its last layer."""
    torch.manual_seed(0)
    attention = Gpt2(16, 2, 1, vocabulary=20, length=6).h[0].attn
    attention.dropout = 1.0
    added = attention(torch.randn(2, 6, 16))
    torch.testing.assert_close(added, attention.outer.bias.expand_as(added))


def test_the_head_of_gpt2_is_its_embedding() -> None:
    model = Gpt2(16, 2, 1, vocabulary=20, length=6)
    assert model.lm_head.weight is model.wte.weight


def test_parameters_of_a_projected_lstm() -> None:
    """By hand: embedding 20*8; first layer four gates over 8 inputs and 4 of state with two biases, 4*16*(8 + 4 + 2),
    and the projection 16*4; second layer 4*16*(4 + 4 + 2) and 16*4; head 4*20 + 20."""
    model = LstmLanguageModel(20, 8, 16, projection=4)
    assert parameters(model) == 160 + 896 + 64 + 640 + 64 + 100


def test_attention_over_equal_states_is_that_state() -> None:
    state = torch.randn(1, 1, 8).expand(2, 5, 8)
    found = AdditiveAttention(8)(torch.randn(2, 3, 8), state)
    torch.testing.assert_close(found, state[:, :3])


def test_a_translation_depends_on_its_source_and_not_on_later_pieces() -> None:
    torch.manual_seed(0)
    model = Gnmt(20, width=16, layers=3).eval()
    source, target = torch.tensor([[3, 1, 4, 1]]), torch.tensor([[2, 7, 1, 8]])
    scores = model(source, target)
    assert not torch.allclose(scores, model(torch.tensor([[3, 1, 4, 2]]), target))
    torch.testing.assert_close(scores[:, :2], model(source, torch.tensor([[2, 7, 5, 5]]))[:, :2])


def test_parameters_of_a_translator() -> None:
    """By hand, 20 pieces, width 4, three layers a side. A layer of m inputs has 16 * (m + 4 + 2).

    encoder   embedding 80, both ways 2 * 16 * 10 = 320, second 16 * 14 = 224, third 16 * 10 = 160   =  784
    decoder   embedding 80, first 160, attention 16 + 20 + 4 = 40, two of 224, head 4 * 20 + 20      =  828
    """
    assert parameters(Gnmt(20, width=4, layers=3)) == 784 + 828


def test_parameters_of_the_smallest_u_net() -> None:
    """By hand, width 2 and one pooling, a norm having two rows of its channels.

    first      9*3*2 + 4 + 9*2*2 + 4     =  98
    down       9*2*4 + 8 + 9*4*4 + 8     = 232
    up         4*4*2 + 2                 =  34
    merge      9*4*2 + 4 + 9*2*2 + 4     = 116
    head       2*2 + 2                   =   6
    """
    assert parameters(UNet(width=2, poolings=1)) == 98 + 232 + 34 + 116 + 6
