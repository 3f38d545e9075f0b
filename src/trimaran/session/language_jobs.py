"""The networks of language as jobs on synthetic tokens: how long a sample is, and what is asked of the network.

A sample is a window of as many tokens as the network is usually trained with, or as the reference asks for. Networks
whose positions are trained get as many positions as the window needs, if that is more than they were published with.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from trimaran.networks.bert import BertForPretraining, BertForQuestions
from trimaran.networks.big_lstm import BigLstm, sampled_loss
from trimaran.networks.gnmt import Gnmt
from trimaran.networks.gpt2 import GptFamily, gpt
from trimaran.networks.llama import Llama
from trimaran.networks.lstm_language import LstmLanguageModel
from trimaran.networks.mpt import Mpt
from trimaran.networks.sizes import FAMILIES, find_size
from trimaran.networks.transformer import Transformer
from trimaran.networks.transformer_sizes import TransformerSize
from trimaran.networks.transformer_xl import DIVISORS, TransformerXl
from trimaran.session import text
from trimaran.session.network_references import GNMT_LAYERS, NetworkReference
from trimaran.session.synthetic import Field, SyntheticPairs, SyntheticText
from trimaran.session.synthetic_tasks import SyntheticTask, adagrad, adam, adamw, sgd

_HIDDEN = 0.15  # share of a window's tokens that BERT is asked for
_BILLION_WORDS = 793_471  # of BigLSTM's vocabulary
_WIKITEXT2 = 33_278  # words of WikiText-2

Maker = Callable[[NetworkReference], SyntheticTask]


def _language(
    model: Callable[[], nn.Module],
    batch: int,
    *,
    vocabulary: int,
    length: int,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = adamw,
) -> SyntheticTask:
    data = functools.partial(SyntheticText, vocabulary=vocabulary, length=length)
    return SyntheticTask(model=model, data=data, batch=batch, optimizer=optimizer, loss=text.loss)


def _window(reference: NetworkReference, figures: TransformerSize) -> tuple[int, TransformerSize]:
    """Tokens of a window, and the figures with positions for all of them."""
    length = reference.number("sequence", FAMILIES[reference.name].sequence)
    return length, dataclasses.replace(figures, positions=max(length, figures.positions))


def _gpt(family: GptFamily, reference: NetworkReference) -> SyntheticTask:
    length, figures = _window(reference, find_size(family, reference.size))
    model = functools.partial(gpt, family, reference.size, length=figures.positions)
    return _language(model, FAMILIES[family].batch, vocabulary=figures.vocabulary, length=length)


def _decoder(make: Callable[[TransformerSize], nn.Module], reference: NetworkReference) -> SyntheticTask:
    length, figures = _window(reference, find_size(reference.name, reference.size))
    model = functools.partial(make, figures)
    return _language(model, FAMILIES[reference.name].batch, vocabulary=figures.vocabulary, length=length)


def _bert(reference: NetworkReference) -> SyntheticTask:
    length, figures = _window(reference, find_size("bert", reference.size))
    tokens, segments = Field(shape=(length,), below=figures.vocabulary), Field(shape=(length,), below=2)
    batch = FAMILIES["bert"].batch
    if reference.options.get("head") == "squad":
        answers = Field(shape=(2,), below=length)
        return SyntheticTask(
            model=functools.partial(BertForQuestions, figures),
            data=functools.partial(SyntheticPairs, tokens, segments, target=answers),
            batch=batch,
            optimizer=adamw,
            loss=functional.cross_entropy,
        )
    guesses = reference.number("guesses", math.ceil(_HIDDEN * length))
    places, words = Field(shape=(guesses,), below=length), Field(shape=(guesses,), below=figures.vocabulary)
    return SyntheticTask(
        model=functools.partial(BertForPretraining, figures),
        data=functools.partial(SyntheticPairs, tokens, segments, places, target=(words, Field(below=2))),
        batch=batch,
        optimizer=adamw,
        loss=pretraining_loss,
    )


def pretraining_loss(scores: tuple[torch.Tensor, torch.Tensor], target: list[torch.Tensor]) -> torch.Tensor:
    """BERT's: the hidden words, and whether the second sentence follows the first.

    Args:
        scores: of the words [batch, guesses, vocabulary] and of the order [batch, 2]
        target: the words [batch, guesses] and the order [batch]
    """
    return text.loss(scores[0], target[0]) + functional.cross_entropy(scores[1], target[1])


def _transformer(reference: NetworkReference) -> SyntheticTask:
    length, figures = _window(reference, find_size("transformer", reference.size))
    figures = dataclasses.replace(figures, vocabulary=reference.number("vocabulary", figures.vocabulary))
    return _translator(functools.partial(Transformer, figures), vocabulary=figures.vocabulary, length=length, batch=128)


def _transformer_xl(reference: NetworkReference) -> SyntheticTask:
    figures = find_size("transformer-xl", reference.size)
    length = reference.number("sequence", figures.positions)
    model = functools.partial(TransformerXl, figures, divisor=DIVISORS[figures.width])
    task = _language(model, FAMILIES[reference.name].batch, vocabulary=figures.vocabulary, length=length)
    return dataclasses.replace(task, loss=clustered_loss)


def clustered_loss(scores: tuple[torch.Tensor, ...], words: torch.Tensor) -> torch.Tensor:
    """Transformer-XL's: the first cluster's scores for all words, and each other cluster's for its share.

    A word outside a cluster counts as one inside it: there is nothing to learn from random words.

    Args:
        scores: as the network returns them
        words: the word after each one [batch, length]
    """
    losses = [text.loss(part, words[:, : part.shape[1]] % part.shape[2]) for part in scores]
    return torch.stack(losses).sum()


def _gnmt(reference: NetworkReference) -> SyntheticTask:
    length = reference.number("sequence", 50)
    layers = GNMT_LAYERS[reference.size]
    # The smaller one is that of the usual training code, whose languages share an embedding.
    vocabulary, shared = (32_320, True) if layers == 4 else (32_000, False)
    model = functools.partial(Gnmt, vocabulary, layers=layers, shared=shared)
    return _translator(model, vocabulary=vocabulary, length=length, batch=128)


def _translator(model: Callable[[], nn.Module], *, vocabulary: int, length: int, batch: int) -> SyntheticTask:
    words = Field(shape=(length,), below=vocabulary)
    data = functools.partial(SyntheticPairs, words, words, target=words)
    return SyntheticTask(model=model, data=data, batch=batch, optimizer=adam, loss=text.loss)


def _lstm(reference: NetworkReference) -> SyntheticTask:
    length = reference.number("sequence", 64)
    return _language(LstmLanguageModel, 32, vocabulary=10_000, length=length, optimizer=sgd)


def _lstm_wikitext2(reference: NetworkReference) -> SyntheticTask:
    model = functools.partial(LstmLanguageModel, _WIKITEXT2, 200, 200, dropout=0.2)
    return _language(model, 40, vocabulary=_WIKITEXT2, length=reference.number("sequence", 35), optimizer=sgd)


def _big_lstm(reference: NetworkReference) -> SyntheticTask:
    words = Field(shape=(reference.number("sequence", 20),), below=_BILLION_WORDS)
    data = functools.partial(SyntheticPairs, words, words, target=words)
    model = functools.partial(BigLstm, _BILLION_WORDS)
    return SyntheticTask(model=model, data=data, batch=128, optimizer=adagrad, loss=sampled_loss)


LANGUAGE_JOBS: Mapping[str, Maker] = {
    "bert": _bert,
    "transformer": _transformer,
    "transformer-xl": _transformer_xl,
    "gpt2": functools.partial(_gpt, "gpt2"),
    "gpt3": functools.partial(_gpt, "gpt3"),
    "gpt": functools.partial(_gpt, "gpt"),
    "opt": functools.partial(_gpt, "opt"),
    "mpt": functools.partial(_decoder, Mpt),
    **{name: functools.partial(_decoder, Llama) for name in ("llama", "llama1", "llama2", "llama3")},
    "lstm": _lstm,
    "lstm-wikitext2": _lstm_wikitext2,
    "big-lstm": _big_lstm,
    "gnmt": _gnmt,
}
