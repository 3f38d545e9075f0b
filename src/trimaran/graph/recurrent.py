"""Figures of nn.LSTM on a CPU, where torch hands a whole layer to oneDNN and says nothing about what is inside."""

from torch import Tensor, nn


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
