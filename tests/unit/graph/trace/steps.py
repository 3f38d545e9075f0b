"""Reduced networks and their steps: every kind of operation of the built-in networks, in seconds."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trimaran.networks.alexnet_overfeat_vgg import AlexNet, Vgg
from trimaran.networks.densenet import DenseNet
from trimaran.networks.googlenet_inception import GoogLeNet, InceptionV3
from trimaran.networks.gpt import Gpt2
from trimaran.networks.recurrent import LstmLanguageModel
from trimaran.networks.resnet import ResNet
from trimaran.networks.unet import UNet
from trimaran.networks.vit import VisionTransformer, VitSize


@dataclass(frozen=True)
class Reduced:
    """A reduced network with its batch.

    Attributes:
        model: makes it
        batch: makes input and target
        exact: whether kernels on meta tensors keep the same as those of a CPU
    """

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    exact: bool = True


def images(batch: int, size: int, classes: int = 10) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,)))


def tokens(batch: int, length: int, vocabulary: int = 50) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randint(0, vocabulary, (batch, length)), torch.randint(0, vocabulary, (batch, length)))


NETWORKS: dict[str, Reduced] = {
    "alexnet": Reduced(lambda: AlexNet(classes=10, width=0.125), images(2, 96)),
    "vgg16": Reduced(lambda: Vgg(classes=10, width=0.125), images(2, 32)),
    "resnet50": Reduced(lambda: ResNet(50, classes=10, width=0.125), images(2, 64)),
    "googlenet": Reduced(lambda: GoogLeNet(classes=10, width=0.125), images(2, 64)),
    "inception_v3": Reduced(lambda: InceptionV3(classes=10, width=0.125), images(2, 128)),
    "densenet": Reduced(lambda: DenseNet((2, 2, 2, 2), classes=10, width=0.25), images(2, 64)),
    "unet": Reduced(
        lambda: UNet(width=8, poolings=2), lambda: (torch.randn(2, 3, 32, 32), torch.zeros(2, 32, 32).long())
    ),
    "vit": Reduced(
        lambda: VisionTransformer(VitSize(image=32, patch=8, width=32, heads=2, blocks=2, dense=64), classes=10),
        images(2, 32),
        exact=False,
    ),
    "gpt2": Reduced(lambda: Gpt2(32, 2, 2, vocabulary=50, length=32), tokens(2, 16), exact=False),
    "lstm": Reduced(lambda: LstmLanguageModel(50, 24, 32), tokens(3, 7), exact=False),
}


def loss_of(output: Any, target: torch.Tensor) -> torch.Tensor:
    if isinstance(output, tuple):
        output = output[0]
    if output.dim() == 3:
        output = output.flatten(0, 1)
        target = target.flatten()
    return functional.cross_entropy(output, target)


class Step:
    """A network, its batch, and steps that start from the same state and the same random numbers each time."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        torch.manual_seed(0)
        reduced = NETWORKS[name]
        self.model = reduced.model().to(device)
        self.batch = tuple(part.to(device) for part in reduced.batch())
        self.state = copy.deepcopy(self.model.state_dict())

    def reset(self) -> None:
        self.model.load_state_dict(self.state)
        self.model.zero_grad()
        torch.manual_seed(1)

    def run(self) -> torch.Tensor:
        """One step, without an update: the loss."""
        inputs, target = self.batch
        loss = loss_of(self.model(inputs), target)
        loss.backward()
        return loss.detach()

    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: value.grad.clone() for name, value in self.model.named_parameters() if value.grad is not None}
