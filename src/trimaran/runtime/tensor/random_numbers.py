"""Random numbers for shares: those that one process would draw.

    all ranks of a group, alike:   generator ──▶ draw for the whole tensor ──▶ its share
    replicas that share layers:    generator ──▶ draw for its own samples ──▶ gather ──▶ its share

The ranks of a tensor-parallel group have generators in one state, so each draws for the whole tensor and nothing is
communicated; the cost is that each draws all numbers. Replicas have different samples and generators; there each draws
what it would alone, and they gather the masks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.base.errors import InputError
from trimaran.graph.sharding.random_numbers import Draw
from trimaran.runtime.tensor.collectives import SampleEdges, TensorGroup, take_share

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class WholeDraws(TorchDispatchMode):
    """While it is entered, operations that draw for a share draw for the whole tensor, and keep the share.

    It is below autograd, so that the user's own operations run, with their own gradients.

    Args:
        group: shares the tensor
        draw: what is drawn
        samples: by which replicas share layers; None: all ranks draw for all samples
    """

    def __init__(self, group: TensorGroup, draw: Draw, samples: SampleEdges | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._group, self._draw, self._samples = group, draw, samples

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation of the user's, with those that it is made of."""
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **given)
        if func is torch.ops.aten.native_dropout.default:
            return self._drop(*args, **given)
        rest = [value for value in (*args[1:], *given.values()) if isinstance(value, torch.Tensor)]
        if rest or not args or not isinstance(args[0], torch.Tensor):
            raise InputError(
                f"{func} draws inside of itself, so the ranks that share a tensor cannot draw what one process would: "
                f"{_ADVICE}"
            )
        share = self._drawn(args[0], lambda whole: func(whole, *args[1:], **given))
        return args[0].copy_(share) if func._schema.is_mutable else share.clone()

    def _drop(self, tensor: torch.Tensor, p: float, train: bool | None = True) -> tuple[torch.Tensor, torch.Tensor]:
        if train is False:
            kept, mask = torch.native_dropout(tensor, p, train)
            return kept, mask
        mask = self._drawn(tensor, lambda whole: torch.native_dropout(whole, p, train)[1]).clone()
        return (tensor * mask).mul_(1 / (1 - p) if p < 1 else 0.0), mask

    def _drawn(self, share: torch.Tensor, draw: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        dim = share.dim() + self._draw.right
        shape = list(share.shape)
        shape[dim] *= self._group.size
        # Sections are of the size that was captured; a single one may have another by now.
        sections = self._draw.sections if shape[dim] == sum(self._draw.sections) else (shape[dim],)
        if self._samples is not None:
            shape[0] = self._samples.samples
        drawn = draw(self._empty(shape, share))
        if self._samples is not None:
            drawn = self._samples.gather_masks(drawn.to(torch.uint8)).to(drawn.dtype)
        return take_share(drawn, dim, sections, self._group.size, self._group.shard)

    def _empty(self, shape: list[int], like: torch.Tensor) -> torch.Tensor:
        """A tensor that lies in memory as that of one process, because generators fill memory in order."""
        order = self._draw.order
        if order is None or len(order) != len(shape):
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        made = torch.empty([shape[dim] for dim in order], dtype=like.dtype, device=like.device)
        return made.permute([order.index(dim) for dim in range(len(order))])


_ADVICE = (
    "set the dropout of attention to 0, let it be computed by plain operations (attn_implementation='eager', or "
    "torch.backends.cuda.enable_flash_sdp(False), enable_mem_efficient_sdp(False) and enable_cudnn_sdp(False)), or "
    "plan without tp (--forbid tp)"
)


def check_attention_draws(device: torch.device, precision: str, name: str) -> None:
    """Refuse dropout of attention where one process would draw inside of a fused kernel.

    Args:
        device: of the model
        precision: of the job
        name: of the attention

    Raises:
        InputError: the kernel draws other numbers for some heads than for all
    """
    cuda = torch.backends.cuda
    fused = cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled()
    # There are no such kernels for fp64, nor with dropout on CPUs.
    if device.type != "cpu" and precision != "fp64" and fused:
        raise InputError(
            f"the dropout of {name} is drawn inside of a fused kernel on {device.type}, so ranks that share its heads "
            f"would draw other numbers than one process: {_ADVICE}",
            code="shards.dropout-in-kernel",
            op=name,
        )


class ShardedRandomOperation(nn.Module):
    """A random operation on a share.

    Args:
        operation: what is called
        draws: for its share
    """

    def __init__(self, operation: Callable[..., Any], draws: WholeDraws) -> None:
        super().__init__()
        self._operation = operation
        self._draws = draws

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Its result."""
        operation = self._operation
        # Where nothing is drawn, the user's operation is called as it is.
        if isinstance(operation, _DROPOUTS) and (not operation.training or not operation.p):
            return operation(*arguments, **keywords)
        if operation is torch.ops.aten.scaled_dot_product_attention.default and not dropout_of(arguments, keywords):
            return operation(*arguments, **keywords)
        with self._draws:
            return operation(*arguments, **keywords)


def dropout_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> float:
    """The dropout with which `scaled_dot_product_attention` is called."""
    found: float = keywords.get("dropout_p", arguments[4] if len(arguments) > 4 else 0.0)
    return found
