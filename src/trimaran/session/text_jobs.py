"""The built-in jobs `text-lstm` and `text-gpt`: the next character of English text, by recurrence and by attention.

About a million parameters each, on the same windows of text (`session/text.py`). The recurrent one works character
after character; the other one works on all characters of a window at once, and its first and last stage share a matrix.
"""

import functools
from collections.abc import Callable, Iterable

from torch import nn
from torch.optim import AdamW, Optimizer

from trimaran.job import Job
from trimaran.networks.character_gpt import CharacterGpt
from trimaran.networks.character_lstm import CharacterLstm
from trimaran.session import text
from trimaran.session.rates import warm_up_then_cosine

EPOCHS = 3
GLOBAL_BATCH_SIZE = 32
UPDATES = EPOCHS * (text.TRAINING_WINDOWS // GLOBAL_BATCH_SIZE)


def text_lstm() -> Job:
    """Two LSTM layers of 256.

    Returns:
        A job of 4,800 training and 320 evaluation windows of 48 characters, global batch 32, 3 epochs, evaluated by the
        accuracy of the next character.
    """
    return _job("text-lstm", lambda: CharacterLstm(len(text.vocabulary())), rate=4e-3)


def text_gpt() -> Job:
    """Five transformer blocks of width 128, with the embedding as their head.

    Returns:
        A job on the same data as `text_lstm`.
    """
    return _job("text-gpt", lambda: CharacterGpt(len(text.vocabulary()), length=text.LENGTH), rate=2e-3)


def _job(name: str, model: Callable[[], nn.Module], *, rate: float) -> Job:
    def make_optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return AdamW(parameters, lr=rate, weight_decay=0.05)

    return Job(
        name=name,
        model=model,
        loss=text.loss,
        optimizer=make_optimizer,
        dataset=functools.partial(text.load_windows, train=True),
        evaluation_dataset=functools.partial(text.load_windows, train=False),
        metric=text.accuracy,
        lr_schedule=functools.partial(warm_up_then_cosine, warm_up=50, updates=UPDATES),
        global_batch_size=GLOBAL_BATCH_SIZE,
        epochs=EPOCHS,
    )
