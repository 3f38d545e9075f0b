"""Weights of a file for a model of one process, as a rank reads them."""

from pathlib import Path

from torch import nn

from trimaran.runtime.checkpoint.weights import fit_weights, open_weights, put_weights


def read_weights(model: nn.Module, path: str | Path, *, trust_pickle: bool = False) -> None:
    with open_weights(path, trust_pickle=trust_pickle) as content:
        put_weights(model, fit_weights(model, content))
