"""The built-in networks have the shapes and the sizes that they are chosen for."""

import pytest
import torch
from torch import nn

from trimaran.networks.gpt import CharacterGpt
from trimaran.networks.recurrent import CharacterLstm
from trimaran.networks.small_images import ResidualNetwork, WideClassifier


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameters_of_the_residual_network() -> None:
    """By hand, width 4 and one block a group, a norm having two rows of its channels:

    stem        9*1*4 + 2*4                                     =   44
    groups.0    2 * (9*4*4 + 2*4)                               =  304
    groups.1    9*4*8 + 9*8*8 + 2*2*8, shortcut 4*8 + 2*8       =  944
    groups.2    9*8*16 + 9*16*16 + 2*2*16, shortcut 8*16 + 2*16 = 3680
    head        16*10 + 10                                      =  170
    """
    assert parameters(ResidualNetwork(width=4, blocks=1)) == 44 + 304 + 944 + 3680 + 170


def test_a_block_of_unchanged_shape_adds_its_input() -> None:
    """With its last norm's scale at zero, a block adds nothing; inputs that are not negative stay as they are."""
    block = ResidualNetwork(width=4).groups[0]
    nn.init.zeros_(block.norm2.weight)
    maps = torch.rand(2, 4, 8, 8)
    assert torch.equal(block(maps), maps)


def test_parameters_of_the_character_lstm() -> None:
    """By hand: embedding 20*8; four gates over input and state with two biases, 4*(6*8 + 6*6 + 2*6) = 384, then
    4*(6*6 + 6*6 + 2*6) = 336; head 6*20 + 20."""
    assert parameters(CharacterLstm(20, embedding=8, width=6)) == 160 + 384 + 336 + 140


def test_parameters_of_the_character_gpt() -> None:
    """By hand, width 8: 12*8² + 13*8 = 872 a block (four matrices of attention, two of four times the width, their
    biases, two norms); 20*8 embeddings, once for both ends; 5*8 positions; the last norm 2*8."""
    assert parameters(CharacterGpt(20, length=5, width=8, heads=2, blocks=3)) == 3 * 872 + 160 + 40 + 16


def test_the_head_of_the_gpt_is_its_embedding() -> None:
    model = CharacterGpt(20, length=5, width=8, heads=2, blocks=1)
    assert model.head.weight is model.embedding.weight


@pytest.mark.parametrize(
    "make", [lambda: CharacterLstm(20, width=16), lambda: CharacterGpt(20, length=6, width=16, blocks=2)]
)
def test_a_character_model_does_not_look_ahead(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    window = torch.tensor([[3, 1, 4, 1, 5, 9]])
    changed = torch.tensor([[3, 1, 4, 2, 6, 5]])
    before, after = model(window), model(changed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


def test_nearly_all_parameters_of_the_wide_classifier_are_in_its_head() -> None:
    """The head: 4 branches of 16 maps of 4 × 4 to 4096, 1024*4096 + 4096, and 4096*10 + 10."""
    model = WideClassifier()
    assert parameters(model.head) == 4_239_370
    assert parameters(model.head) / parameters(model) > 0.99
