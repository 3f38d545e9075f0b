"""What torch does not say of nn.LSTM: figures of a layer that it hands to oneDNN, and the shape of its final state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def true_final_states(model: nn.Module) -> Iterator[None]:
    """Trace the final states of every nn.LSTM with the shape that they have in a run.

    While it traces, torch before 2.13 gives them a dim of size 1 too many, (layers, 1, samples, features), on which
    what the model then does with them fails.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.LSTM)]
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        vars(layer)["forward"] = _with_true_states(layer.forward)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            vars(layer).pop("forward")
            if own is not None:
                vars(layer)["forward"] = own


def _with_true_states(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(source: Any, *arguments: Any, **keywords: Any) -> Any:
        output, states = forward(source, *arguments, **keywords)
        # Packed sequences take another way through torch, and have no dim of their own to compare with.
        dims = source.dim() if isinstance(source, Tensor) else None
        return output, tuple(state.squeeze(1) if dims == state.dim() - 1 else state for state in states)

    return run


def layer_flops(steps_and_samples: int, weight_input: Tensor, weight_hidden: Tensor) -> int:
    """Forward of one layer in one direction: two matrix products a time step [FLOP].

    Example:
        >>> import torch
        >>> layer_flops(10, torch.zeros(8, 3), torch.zeros(8, 2))  # 2 * 10 * (8 * 3 + 8 * 2)
        800
    """
    return 2 * steps_and_samples * (weight_input.numel() + weight_hidden.numel())


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
