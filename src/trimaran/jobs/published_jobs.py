"""The published networks as jobs on synthetic data: what a step of them needs and costs, before there are data.

Batch sizes are those that papers on memory and training time use.

The networks of language as jobs on synthetic tokens: how long a sample is, and what is asked of the network.

A sample is a window of as many tokens as the network is usually trained with, or as the reference asks for. Networks
whose positions are trained get as many positions as the window needs, if that is more than they were published with.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.jobs import text
from trimaran.jobs.synthetic import (
    Field,
    SyntheticPairs,
    SyntheticText,
    adagrad,
    adam,
    adamw,
    image,
    momentum,
    sgd,
)
from trimaran.networks.alexnet_overfeat_vgg import VGG_GROUPS, AlexNet, AlexNet2012, OverFeat, Vgg
from trimaran.networks.bert import BertForPretraining, BertForQuestions
from trimaran.networks.densenet import DENSENET_BLOCKS, DenseNet
from trimaran.networks.googlenet_inception import GoogLeNet, InceptionV3, InceptionV4
from trimaran.networks.gpt import GptFamily, Mpt, gpt
from trimaran.networks.llama import Llama
from trimaran.networks.mobilenet import EFFICIENTNET_SIZES, V3_SIZES, EfficientNet, MobileNetV2, MobileNetV3
from trimaran.networks.names import GNMT_LAYERS, PUBLISHED, NetworkReference, PublishedNetwork, parse_network
from trimaran.networks.recurrent import BigLstm, Gnmt, LstmLanguageModel, sampled_loss
from trimaran.networks.resnet import BottleneckForm, ResNet
from trimaran.networks.sizes import FAMILIES, TransformerSize, find_size
from trimaran.networks.small_images import LeNet
from trimaran.networks.transformer import Transformer
from trimaran.networks.transformer_xl import DIVISORS, TransformerXl
from trimaran.networks.unet import UNet
from trimaran.networks.vit import VIT_SIZES, VisionTransformer

_MASKED = 0.15  # share of a window's tokens that BERT is asked for
_BILLION_WORDS = 793_471  # of BigLSTM's vocabulary
_WIKITEXT2 = 33_278  # words of WikiText-2

Maker = Callable[[NetworkReference], Job]


def _language(
    model: Callable[[], nn.Module],
    batch: int,
    *,
    vocabulary: int,
    length: int,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = adamw,
) -> Job:
    data = functools.partial(SyntheticText, vocabulary=vocabulary, length=length)
    return Job(model=model, dataset=data, global_batch_size=batch, optimizer=optimizer, loss=text.loss)


def _window(reference: NetworkReference, figures: TransformerSize) -> tuple[int, TransformerSize]:
    """Tokens of a window, and the figures with positions for all of them."""
    length = reference.number("sequence", FAMILIES[reference.name].sequence)
    return length, dataclasses.replace(figures, positions=max(length, figures.positions))


def _gpt(family: GptFamily, reference: NetworkReference) -> Job:
    length, figures = _window(reference, find_size(family, reference.size))
    model = functools.partial(gpt, family, reference.size, length=figures.positions)
    return _language(model, FAMILIES[family].batch, vocabulary=figures.vocabulary, length=length)


def _decoder(make: Callable[[TransformerSize], nn.Module], reference: NetworkReference) -> Job:
    length, figures = _window(reference, find_size(reference.name, reference.size))
    model = functools.partial(make, figures)
    return _language(model, FAMILIES[reference.name].batch, vocabulary=figures.vocabulary, length=length)


def _bert(reference: NetworkReference) -> Job:
    length, figures = _window(reference, find_size("bert", reference.size))
    tokens, segments = Field(shape=(length,), below=figures.vocabulary), Field(shape=(length,), below=2)
    batch = FAMILIES["bert"].batch
    if reference.options.get("head") == "squad":
        answers = Field(shape=(2,), below=length)
        return Job(
            model=functools.partial(BertForQuestions, figures),
            dataset=functools.partial(SyntheticPairs, tokens, segments, target=answers),
            global_batch_size=batch,
            optimizer=adamw,
            loss=functional.cross_entropy,
        )
    guesses = reference.number("guesses", math.ceil(_MASKED * length))
    places, words = Field(shape=(guesses,), below=length), Field(shape=(guesses,), below=figures.vocabulary)
    return Job(
        model=functools.partial(BertForPretraining, figures),
        dataset=functools.partial(SyntheticPairs, tokens, segments, places, target=(words, Field(below=2))),
        global_batch_size=batch,
        optimizer=adamw,
        loss=pretraining_loss,
    )


def pretraining_loss(scores: tuple[torch.Tensor, torch.Tensor], target: list[torch.Tensor]) -> torch.Tensor:
    """BERT's: the masked words, and whether the second sentence follows the first.

    Args:
        scores: of the words [batch, guesses, vocabulary] and of the order [batch, 2]
        target: the words [batch, guesses] and the order [batch]
    """
    return text.loss(scores[0], target[0]) + functional.cross_entropy(scores[1], target[1])


def _transformer(reference: NetworkReference) -> Job:
    length, figures = _window(reference, find_size("transformer", reference.size))
    figures = dataclasses.replace(figures, vocabulary=reference.number("vocabulary", figures.vocabulary))
    return _translator(functools.partial(Transformer, figures), vocabulary=figures.vocabulary, length=length)


def _transformer_xl(reference: NetworkReference) -> Job:
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


def _gnmt(reference: NetworkReference) -> Job:
    length = reference.number("sequence", 50)
    layers = GNMT_LAYERS[reference.size]
    # The smaller one is that of the usual training code, whose languages share an embedding.
    vocabulary, shared = (32_320, True) if layers == 4 else (32_000, False)
    model = functools.partial(Gnmt, vocabulary, layers=layers, shared=shared)
    return _translator(model, vocabulary=vocabulary, length=length)


def _translator(model: Callable[[], nn.Module], *, vocabulary: int, length: int) -> Job:
    words = Field(shape=(length,), below=vocabulary)
    data = functools.partial(SyntheticPairs, words, words, target=words)
    return Job(model=model, dataset=data, global_batch_size=128, optimizer=adam, loss=text.loss)


def _lstm(reference: NetworkReference) -> Job:
    length = reference.number("sequence", 64)
    return _language(LstmLanguageModel, 32, vocabulary=10_000, length=length, optimizer=sgd)


def _lstm_wikitext2(reference: NetworkReference) -> Job:
    model = functools.partial(LstmLanguageModel, _WIKITEXT2, 200, 200, dropout=0.2)
    return _language(model, 40, vocabulary=_WIKITEXT2, length=reference.number("sequence", 35), optimizer=sgd)


def _big_lstm(reference: NetworkReference) -> Job:
    words = Field(shape=(reference.number("sequence", 20),), below=_BILLION_WORDS)
    data = functools.partial(SyntheticPairs, words, words, target=words)
    model = functools.partial(BigLstm, _BILLION_WORDS)
    return Job(model=model, dataset=data, global_batch_size=128, optimizer=adagrad, loss=sampled_loss)


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

_AUXILIARY_WEIGHT = 0.3  # of an auxiliary head's loss; Szegedy et al., CVPR 2015


def network_job(reference: str) -> Job:
    """A published network on synthetic data.

    Args:
        reference: one of those that `trimaran catalog jobs` lists, with a size and options where it has them

    Returns:
        A job of 8,192 samples that are drawn when they are asked for; it makes nothing until it is used.

    Raises:
        InputError: no such network, size or option
    """
    asked = parse_network(reference)
    if asked is None:
        raise InputError(f'no network "{reference}"; `trimaran catalog jobs` lists them', reference=reference)
    name = str(asked).replace(":", "-").replace("=", "-").replace(",", "-")
    return dataclasses.replace(_NETWORKS[asked.name](asked), name=name, drop_last=True)


def _classifier(
    reference: NetworkReference,
    model: Callable[..., nn.Module] | None = None,
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = momentum,
) -> Job:
    listed = PUBLISHED[reference.name]
    model = model or _module(listed)
    heads = reference.options.get("auxiliary") == "yes"
    pixels = image(reference.number("image", listed.image), listed.channels)
    return Job(
        model=functools.partial(model, auxiliary=True) if heads else model,
        dataset=functools.partial(SyntheticPairs, pixels, target=Field(below=listed.classes)),
        global_batch_size=listed.batch,
        optimizer=optimizer,
        loss=auxiliary_loss if heads else functional.cross_entropy,
    )


def _module(listed: PublishedNetwork) -> Callable[..., nn.Module]:
    make, sizes = _MODULES[listed.module]
    settings = dict(listed.settings)
    figures = [sizes[settings.pop("size")]] if "size" in settings else []
    if "form" in settings:
        settings["form"] = BottleneckForm(**settings["form"])
    return functools.partial(make, *figures, **settings) if settings or figures else make


def auxiliary_loss(scores: Any, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the main head, and that of the auxiliary ones at their weight.

    Args:
        scores: of the main head and of the others, each [batch, classes]; those of the main head alone in evaluation
        target: [batch]
    """
    main, *others = scores if isinstance(scores, tuple) else (scores,)
    loss = functional.cross_entropy(main, target)
    for other in others:
        loss = loss + _AUXILIARY_WEIGHT * functional.cross_entropy(other, target)
    return loss


def _vision_transformer(reference: NetworkReference) -> Job:
    # It has a position for each patch, so it is made for the images.
    listed = PUBLISHED[reference.name]
    pixels, size = reference.number("image", listed.image), VIT_SIZES[listed.settings["size"]]
    if pixels % size.patch:
        raise InputError(
            f"{reference}: images must divide into patches of {size.patch} pixels",
            code="network.image-not-divisible",
            image=pixels,
        )
    model = functools.partial(VisionTransformer, dataclasses.replace(size, image=pixels))
    return _classifier(reference, model, optimizer=adamw)


def _segmenter(reference: NetworkReference) -> Job:
    listed = PUBLISHED[reference.name]
    size = reference.number("image", listed.image)
    data = functools.partial(SyntheticPairs, image(size), target=Field(shape=(size, size), below=listed.classes))
    return Job(
        model=UNet, dataset=data, global_batch_size=listed.batch, optimizer=momentum, loss=functional.cross_entropy
    )


_MODULES: Mapping[str, tuple[Callable[..., nn.Module], Mapping[Any, Any]]] = {
    "lenet": (LeNet, {}),
    "alexnet": (AlexNet, {}),
    "alexnet-2012": (AlexNet2012, {}),
    "overfeat": (OverFeat, {}),
    "vgg": (Vgg, VGG_GROUPS),
    "googlenet": (GoogLeNet, {}),
    "inception-v3": (InceptionV3, {}),
    "inception-v4": (InceptionV4, {}),
    "resnet": (ResNet, {}),
    "densenet": (DenseNet, DENSENET_BLOCKS),
    "mobilenet-v2": (MobileNetV2, {}),
    "mobilenet-v3": (MobileNetV3, V3_SIZES),
    "efficientnet": (EfficientNet, EFFICIENTNET_SIZES),
}
"""What makes the network that `published.toml` names, and the figures of its sizes."""

_MAKERS: Mapping[str, Maker] = {"vit": _vision_transformer, "unet": _segmenter}
_NETWORKS: Mapping[str, Maker] = {
    name: LANGUAGE_JOBS[name] if name in LANGUAGE_JOBS else _MAKERS.get(listed.module, _classifier)
    for name, listed in PUBLISHED.items()
}
