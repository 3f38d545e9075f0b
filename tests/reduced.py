"""The built-in networks in reduced width, for tests: the same kinds of operations, a step in a fraction of a second.

`REDUCED[name]` has what makes the model, a batch of a seed, and the loss. Dropout is as in the published forms, so set
torch's seed before each step that is compared with another. `GoogLeNet` has no auxiliary heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimaran.networks.alexnet_overfeat_vgg import AlexNet, Vgg
from trimaran.networks.densenet import DenseNet
from trimaran.networks.googlenet_inception import GoogLeNet, InceptionV3
from trimaran.networks.gpt import Gpt2, Mpt
from trimaran.networks.llama import Llama
from trimaran.networks.recurrent import LstmLanguageModel
from trimaran.networks.resnet import BottleneckForm, ResNet
from trimaran.networks.sizes import TransformerSize
from trimaran.networks.unet import UNet
from trimaran.networks.vit import VisionTransformer, VitSize

CLASSES = 10
WORDS = 200
SMALL_LLAMA = TransformerSize(
    width=64, layers=4, heads=4, kv_heads=2, dense=96, vocabulary=WORDS, positions=32, tied=False
)
SMALL_MPT = TransformerSize(width=64, layers=4, heads=4, dense=256, vocabulary=WORDS, positions=32)
SE_RESNEXT = BottleneckForm(groups=32, group_width=4, squeeze=True)
SMALL_VIT = VitSize(image=32, patch=8, width=64, heads=4, blocks=4, dense=256)
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """A network of reduced width.

    Attributes:
        model: makes it, in training mode; the weights follow torch's seed
        batch: input and target of a seed
        loss: `(output, target)` to a scalar
    """

    model: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]


def step(network: Reduced, model: nn.Module, seed: int = 0) -> Tensor:
    """One forward and backward of the batch of a seed, dropout drawn from the same seed; the loss, detached."""
    inputs, target = network.batch(seed)
    torch.manual_seed(seed)
    loss = network.loss(model(inputs), target)
    loss.backward()
    return loss.detach()


def images(size: int, count: int) -> Callable[[int], Batch]:
    def make(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        return (
            torch.randn(count, 3, size, size, generator=generator),
            torch.randint(CLASSES, (count,), generator=generator),
        )

    return make


def pixels(size: int, count: int) -> Callable[[int], Batch]:
    def make(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        return (
            torch.randn(count, 3, size, size, generator=generator),
            torch.randint(CLASSES, (count, size, size), generator=generator),
        )

    return make


def words(length: int, count: int) -> Callable[[int], Batch]:
    def make(seed: int) -> Batch:
        tokens = torch.randint(WORDS, (count, length + 1), generator=torch.Generator().manual_seed(seed))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return make


def word_loss(scores: Tensor, expected: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), expected.flatten())


def _classifier(model: Callable[[], nn.Module], *, size: int, count: int = 4) -> Reduced:
    return Reduced(model=model, batch=images(size, count), loss=functional.cross_entropy)


REDUCED: Mapping[str, Reduced] = {
    "alexnet": _classifier(lambda: AlexNet(CLASSES, width=0.125), size=64),
    "vgg16": _classifier(lambda: Vgg(classes=CLASSES, width=0.125), size=32),
    "resnet50": _classifier(lambda: ResNet(50, classes=CLASSES, width=0.125), size=32),
    "se_resnext50": _classifier(lambda: ResNet(50, classes=CLASSES, width=0.125, form=SE_RESNEXT), size=32),
    "googlenet": _classifier(lambda: GoogLeNet(classes=CLASSES, width=0.25), size=64),
    "inception_v3": _classifier(lambda: InceptionV3(classes=CLASSES, width=0.125), size=75),
    "densenet121": _classifier(lambda: DenseNet((2, 3, 4, 2), classes=CLASSES, width=0.25), size=64),
    "vit": _classifier(lambda: VisionTransformer(SMALL_VIT, classes=CLASSES, dropout=0.1), size=32),
    "gpt2": Reduced(
        model=lambda: Gpt2(64, 4, 4, vocabulary=WORDS, length=32), batch=words(32, count=4), loss=word_loss
    ),
    "llama": Reduced(model=lambda: Llama(SMALL_LLAMA), batch=words(32, count=4), loss=word_loss),
    "mpt": Reduced(model=lambda: Mpt(SMALL_MPT), batch=words(32, count=4), loss=word_loss),
    "lstm": Reduced(
        model=lambda: LstmLanguageModel(WORDS, 64, 96, dropout=0.1), batch=words(16, count=4), loss=word_loss
    ),
    "unet": Reduced(
        model=lambda: UNet(classes=CLASSES, width=8, poolings=3),
        batch=pixels(32, count=2),
        loss=functional.cross_entropy,
    ),
}
