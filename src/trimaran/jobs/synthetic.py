"""Synthetic training data: random images and tokens of the right shape, each drawn only when it is asked for.

What a step costs does not depend on what is in the data. What is learned from them means nothing.

Optimizers are those that the published networks are trained with. Learning rates are plausible and have no effect:
nothing can be learned.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.utils.data import Dataset

SAMPLES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One random tensor of a sample.

    Attributes:
        shape: of the tensor
        below: integers from 0 to below this; None: fp32 numbers of a normal distribution
    """

    shape: tuple[int, ...] = ()
    below: int | None = None

    def draw(self, generator: torch.Generator) -> Tensor:
        """The tensor, by the generator."""
        if self.below is None:
            return torch.randn(self.shape, generator=generator, device="cpu")
        return torch.randint(self.below, self.shape, generator=generator, device="cpu")


def image(size: int, channels: int = 3) -> Field:
    """A square image [channels, size, size]."""
    return Field(shape=(channels, size, size))


class SyntheticPairs(Dataset[tuple[Any, Any]]):
    """Samples of an input and a target.

    Args:
        inputs: of the input; more than one make a tuple
        target: of the target; several make a tuple
        samples: how many there are

    Example:
        >>> pairs = SyntheticPairs(image(8), target=Field(below=10))
        >>> len(pairs), pairs[3][0].shape, torch.equal(pairs[3][0], pairs[3][0])
        (8192, torch.Size([3, 8, 8]), True)
    """

    def __init__(self, *inputs: Field, target: Field | tuple[Field, ...], samples: int = SAMPLES) -> None:
        self._inputs = inputs
        self._target = target
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        generator = _generator(index, self._samples)
        drawn = tuple(field.draw(generator) for field in self._inputs)
        asked = self._target
        target = asked.draw(generator) if isinstance(asked, Field) else tuple(part.draw(generator) for part in asked)
        return drawn if len(drawn) > 1 else drawn[0], target


class SyntheticRows(Dataset[dict[str, Tensor]]):
    """Samples that are dicts, as the models of Hugging Face take them.

    Args:
        fields: by name
        same: further names, each with the name of the field whose tensor it repeats
        samples: how many there are

    Example:
        >>> rows = SyntheticRows({"input_ids": Field(shape=(4,), below=10)}, same={"labels": "input_ids"})
        >>> torch.equal(rows[0]["labels"], rows[0]["input_ids"])
        True
    """

    def __init__(
        self, fields: Mapping[str, Field], *, same: Mapping[str, str] | None = None, samples: int = SAMPLES
    ) -> None:
        self._fields = dict(fields)
        self._same = dict(same or {})
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = _generator(index, self._samples)
        drawn = {name: field.draw(generator) for name, field in self._fields.items()}
        return drawn | {name: drawn[source] for name, source in self._same.items()}


class SyntheticText(Dataset[tuple[Tensor, Tensor]]):
    """Samples of a window of tokens, and of the token after each of them.

    Args:
        vocabulary: number of different tokens
        length: of a window
        samples: how many there are

    Example:
        >>> window, following = SyntheticText(vocabulary=50, length=4)[0]
        >>> torch.equal(window[1:], following[:-1])
        True
    """

    def __init__(self, *, vocabulary: int, length: int, samples: int = SAMPLES) -> None:
        self._field = Field(shape=(length + 1,), below=vocabulary)
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens = self._field.draw(_generator(index, self._samples))
        return tokens[:-1], tokens[1:]


def _generator(index: int, samples: int) -> torch.Generator:
    # An index past the end ends a loop over the samples.
    if not -samples <= index < samples:
        raise IndexError(f"sample {index} of {samples}")
    return torch.Generator(device="cpu").manual_seed(index % samples)


def momentum(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """SGD with momentum and weight decay, as image classifiers are trained."""
    return SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Plain SGD, as small recurrent language models are trained."""
    return SGD(parameters, lr=1.0)


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adam, as translators are trained."""
    return Adam(parameters, lr=1e-3)


def adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adam with decoupled weight decay, as transformers are trained."""
    return AdamW(parameters, lr=3e-4, weight_decay=0.1)


def adagrad(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adagrad, as BigLSTM was trained."""
    return Adagrad(parameters, lr=0.2)
