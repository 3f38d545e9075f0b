"""The text of the built-in language models: the language reference that Python's own `help()` shows.

All topics of `pydoc_data.topics`, in the order of their names, are one text of about half a million characters. Its
last tenth is kept for evaluation. A sample is a window of the text and the same window one character later. The windows
of each part are spread evenly over it and are the same every time. The text, and so the vocabulary, is that of the
Python that runs.
"""

import functools

import torch
from torch.utils.data import Dataset, TensorDataset

from trimaran.base.errors import EnvironmentProblem

LENGTH = 48
TRAINING_WINDOWS = 4800
EVALUATION_WINDOWS = 320
EVALUATION_SHARE = 0.1


@functools.cache
def read_text() -> str:
    """The topics, in the order of their names.

    Raises:
        EnvironmentProblem: this Python came without `pydoc_data`
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise EnvironmentProblem(
            "this Python has no pydoc_data.topics, the text of the built-in language models: "
            "install the whole standard library, or take another job",
            code="text.no-topics",
        ) from error
    return "\n".join(topics[name] for name in sorted(topics))


def vocabulary() -> str:
    """Every character of the text once, in order."""
    return "".join(sorted(set(read_text())))


def split_text() -> tuple[str, str]:
    """The text to learn, and the text kept for evaluation, which follows it."""
    text = read_text()
    end = len(text) - round(EVALUATION_SHARE * len(text))
    return text[:end], text[end:]


def load_windows(*, train: bool) -> Dataset[tuple[torch.Tensor, ...]]:
    """The samples of one part of the text, in memory.

    Args:
        train: the 4,800 windows to learn; otherwise the 320 kept for evaluation

    Returns:
        Samples of the indices of 48 characters in the vocabulary, and of the character after each of them, both [48].
    """
    text = split_text()[0 if train else 1]
    index = {character: number for number, character in enumerate(vocabulary())}
    indices = torch.tensor([index[character] for character in text])
    windows = spread(indices, count=TRAINING_WINDOWS if train else EVALUATION_WINDOWS, length=LENGTH + 1)
    return TensorDataset(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


def spread(values: torch.Tensor, *, count: int, length: int) -> torch.Tensor:
    """Windows at equal distances, the first at the start and the last at the end.

    Args:
        values: a row, at least as long as a window
        count: number of windows, at least 2
        length: length of each

    Returns:
        Windows [count, length]; they overlap where there are not enough values.

    Example:
        >>> spread(torch.arange(10), count=3, length=2).tolist()
        [[0, 1], [4, 5], [8, 9]]
    """
    starts = torch.arange(count) * (len(values) - length) // (count - 1)
    return values[starts.unsqueeze(1) + torch.arange(length)]


def loss(scores: torch.Tensor, characters: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the characters [nat].

    All windows have one length, so that it is a mean over samples too.

    Args:
        scores: [batch, length, vocabulary]
        characters: [batch, length]
    """
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), characters.flatten())
