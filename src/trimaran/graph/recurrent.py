"""What torch does not say of recurrent layers: their shapes at a glance, and figures that it hands to oneDNN."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def layers_at_a_glance(model: nn.Module) -> Iterator[None]:
    """Trace every recurrent layer as a few operations with the shapes of its results.

    Torch traces each time step by itself: minutes for a deep network on long sentences. A layer is called as a whole in
    the end, so what its trace holds does not matter; what it makes, and of what, does. Packed sequences and single
    samples are traced as torch does it.
    """
    own = (nn.LSTM, nn.GRU, nn.RNN)  # what somebody makes of them may return anything
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase) and type(module) in own]
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        vars(layer)["forward"] = _shapes_of(layer, layer.forward)
    try:
        yield
    finally:
        for layer, kept in zip(layers, before, strict=True):
            vars(layer).pop("forward")
            if kept is not None:
                vars(layer)["forward"] = kept


def _shapes_of(layer: nn.RNNBase, forward: Callable[..., Any]) -> Callable[..., Any]:
    directions = 2 if layer.bidirectional else 1
    state = layer.proj_size or layer.hidden_size

    def run(source: Any, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(source, Tensor) or source.dim() != _DIMS:
            return forward(source, *arguments, **keywords)
        ends = source.sum((1 if layer.batch_first else 0, 2)).view(1, -1, 1)
        output = source.sum(2, keepdim=True).repeat(1, 1, directions * state)
        hidden = ends.repeat(directions * layer.num_layers, 1, state)
        if not isinstance(layer, nn.LSTM):
            return output, hidden
        return output, (hidden, ends.repeat(directions * layer.num_layers, 1, layer.hidden_size))

    return run


_DIMS = 3
"""Of a batch of sequences: samples, steps, features."""


def workspace_bytes(lstm: nn.LSTM, source: Tensor) -> list[int]:
    """What oneDNN keeps of each layer and direction for its backward, in the order in which they run [bytes].

    Every sample and time step keeps its gates, states and their gradients: 9 rows of the hidden size and 6 of the
    larger of input and hidden size.

    Args:
        lstm: the module
        source: its input, of shape (steps, samples, features) or (samples, steps, features)

    Source:
        Fitted to the sizes that torch 2.13 keeps, over batch, steps, input and hidden size: within 12 % for small
        layers (padding to pages), within 1 % for large ones.
    """
    directions = 2 if lstm.bidirectional else 1
    rows = source.numel() // source.shape[-1] if source.shape[-1] else 0
    sizes = []
    for layer in range(lstm.num_layers):
        width = lstm.input_size if layer == 0 else lstm.hidden_size * directions
        row = 6 * max(width, lstm.hidden_size) + 9 * lstm.hidden_size
        sizes += [rows * row * source.element_size()] * directions
    return sizes
