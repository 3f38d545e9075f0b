"""The networks of the cases, with a batch each: one step of training, and the blocks that checkpointing recomputes."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from benchmarks.memory.cases import Case
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

SEED = 0
CONTEXT = 1024
VOCABULARY = 50257


@dataclass(slots=True, kw_only=True)
class Training:
    """A network in training on one batch, which is always the same.

    Attributes:
        model: on its device
        optimizer: of its parameters
        inputs: of a step
        targets: of a step
        autocast: makes the context of the forward
        device: "cuda" or "cpu"
        blocks: makes the network recompute its blocks whole
        run: the network, or what an arm has made of it
        repeatable: whether every kernel has a form that gives the same bits each time; some poolings have none
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: torch.Tensor
    targets: torch.Tensor
    autocast: Callable[[], AbstractContextManager[Any]]
    device: str
    blocks: "Blocks"
    run: Callable[[torch.Tensor], torch.Tensor]
    repeatable: bool = False

    def forward(self) -> torch.Tensor:
        """The loss."""
        with self.autocast():
            scores = self.run(self.inputs)
            return F.cross_entropy(scores.flatten(0, -2), self.targets.flatten())

    def finish(self, loss: torch.Tensor) -> torch.Tensor:
        """Backward and update."""
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self) -> torch.Tensor:
        """One whole step, as a loop has it."""
        self.optimizer.zero_grad(set_to_none=True)
        return self.finish(self.forward())


Blocks = Callable[[], None]


def build(case: Case) -> tuple[nn.Module, Blocks]:
    """The network on the CPU, with weights drawn from a fixed seed, and what makes it recompute its blocks."""
    torch.manual_seed(SEED)
    return BUILDERS[case.network](case.reduced)


def prepare(model: nn.Module, blocks: Blocks, case: Case, device: str) -> Training:
    """Bring a network to its device, with a batch and an optimizer."""
    model = model.to(device)
    generator = torch.Generator().manual_seed(SEED)
    language = case.network.startswith("gpt")
    inputs, targets = _language(case, generator) if language else _images(case, generator)
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(model.parameters(), lr=1e-5)
        if language
        else torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    )
    return Training(
        model=model,
        optimizer=optimizer,
        inputs=inputs.to(device),
        targets=targets.to(device),
        autocast=(lambda: torch.autocast(device, dtype=torch.bfloat16)) if case.precision == "bf16" else nullcontext,
        device=device,
        blocks=blocks,
        run=model,
        repeatable=language,
    )


def set_precision(precision: str) -> None:
    """Whether products of fp32 matrices and convolutions may use TF32; and one kernel of attention for all arms."""
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward does not give the same bits each time
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _vgg16(reduced: bool) -> tuple[nn.Module, Blocks]:
    from trimaran.networks.alexnet_overfeat_vgg import Vgg

    model = Vgg(classes=10, width=0.125) if reduced else Vgg()
    features = list(model.features)
    ends = [0, *(number + 1 for number, layer in enumerate(features) if isinstance(layer, nn.MaxPool2d))]
    groups = [nn.Sequential(*features[start:end]) for start, end in pairwise(ends)]

    def recompute() -> None:
        model.features.forward = lambda maps: _in_turn(groups, maps)  # type: ignore[method-assign]

    return model, recompute


def _in_turn(blocks: Sequence[nn.Module], maps: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        maps = checkpoint(block, maps, use_reentrant=False)
    return maps


def _resnet50(reduced: bool) -> tuple[nn.Module, Blocks]:
    from trimaran.networks.resnet import ResNet

    model = ResNet(50, classes=10, width=0.125) if reduced else ResNet(50)
    groups = (model.layer1, model.layer2, model.layer3, model.layer4)
    return model, lambda: _each([block for group in groups for block in group])


def _gpt2_medium(reduced: bool) -> tuple[nn.Module, Blocks]:
    from trimaran.networks.gpt import Gpt2, gpt

    model = Gpt2(32, 4, 2, vocabulary=64, length=16) if reduced else gpt("gpt2", "medium")
    return model, lambda: _each(list(model.h))


def _each(blocks: Sequence[nn.Module]) -> None:
    for block in blocks:
        forward = block.forward

        def again(*arguments: Any, forward: Callable[..., Any] = forward, **options: Any) -> Any:
            return checkpoint(forward, *arguments, use_reentrant=False, **options)

        block.forward = again  # type: ignore[method-assign]


def _images(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    side, classes = (64, 10) if case.reduced else (224, 1000)
    images = torch.randn(case.batch, 3, side, side, generator=generator)
    return images, torch.randint(classes, (case.batch,), generator=generator)


def _language(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    length, words = (16, 64) if case.reduced else (CONTEXT, VOCABULARY)
    text = torch.randint(words, (case.batch, length + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


BUILDERS: dict[str, Callable[[bool], tuple[nn.Module, Blocks]]] = {
    "vgg16": _vgg16,
    "resnet50": _resnet50,
    "gpt2-medium": _gpt2_medium,
}
