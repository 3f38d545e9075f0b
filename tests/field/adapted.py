"""Models made from others: adapters, quantized weights, distillation."""

from typing import Any

import torch
from tests.field.entry import Family
from tests.field.language import NextWords, gpt2, text_job, token_loss
from tests.field.structured import points
from tests.field.vision import CLASSES, classify
from torch import Tensor, nn
from torch.nn import functional

from trimaran.base.job import Job

ADAPTED = Family("adapted")


class Lora(nn.Module):
    """A frozen layer, and what is added to it at a low rank."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.normal_(self.up.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class LanguageModel(nn.Module):
    """A model of Hugging Face whose logits are wanted."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids).logits


def lora_gpt2() -> nn.Module:
    model: Any = gpt2().requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = Lora(block.attn.c_attn, 16, 48)
        block.attn.c_proj = Lora(block.attn.c_proj, 16, 16)
    return LanguageModel(model)


@ADAPTED.entry("adapters of a low rank over a frozen GPT-2")
def lora() -> Job:
    return text_job("lora", lora_gpt2, loss=token_loss, dataset=NextWords)


class Quantized(nn.Module):
    """Weights of eight bits with a scale a row, as parameters or as buffers."""

    def __init__(self, inputs: int, outputs: int, *, buffers: bool) -> None:
        super().__init__()
        weight = torch.randn(outputs, inputs) * 0.2
        scale = weight.abs().amax(1, keepdim=True) / 127
        codes = (weight / scale).round().add(128).to(torch.uint8)
        if buffers:
            self.register_buffer("codes", codes)
            self.register_buffer("scale", scale)
        else:
            self.codes = nn.Parameter(codes, requires_grad=False)
            self.scale = nn.Parameter(scale, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, (self.codes.to(x.dtype) - 128) * self.scale)


def quantized_net(*, buffers: bool) -> nn.Module:
    return nn.Sequential(
        Lora(Quantized(12, 16, buffers=buffers), 12, 16), nn.ReLU(),
        Lora(Quantized(16, 16, buffers=buffers), 16, 16), nn.ReLU(), nn.Linear(16, CLASSES),
    )  # fmt: skip


@ADAPTED.entry("frozen parameters of eight bits, with adapters")
def quantized_parameters() -> Job:
    return classify("quantized_parameters", lambda: quantized_net(buffers=False), dataset=points)


@ADAPTED.entry("frozen weights of eight bits in buffers, with adapters")
def quantized_buffers() -> Job:
    return classify("quantized_buffers", lambda: quantized_net(buffers=True), dataset=points)


def _net(width: int, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, CLASSES))


class Distilled(nn.Module):
    """A student, with its teacher inside, which stays in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.student = _net(8)
        self.teacher = _net(32, 0.5).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "Distilled":
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            taught = self.teacher(x)
        return self.student(x), taught


def distillation(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    student, teacher = output
    soft = functional.kl_div(
        functional.log_softmax(student / 2, -1), functional.softmax(teacher / 2, -1), reduction="batchmean"
    )
    return functional.cross_entropy(student, target) + 4 * soft


@ADAPTED.entry("a frozen teacher inside the model, kept in evaluation mode by train()")
def teacher_inside() -> Job:
    return classify("teacher_inside", Distilled, loss=distillation, dataset=points)


class AgainstTeacher:
    """A loss that has the teacher."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.teacher = _net(32, 0.5).double().requires_grad_(False).eval()

    def __call__(self, output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        student, x = output
        with torch.no_grad():
            return_of_teacher = self.teacher(x)
        return distillation((student, return_of_teacher), target)


class WithInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = _net(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(x), x


@ADAPTED.entry("a frozen teacher in the loss, which is given the input too")
def teacher_in_loss() -> Job:
    return classify("teacher_in_loss", WithInput, loss=AgainstTeacher(), dataset=points)
