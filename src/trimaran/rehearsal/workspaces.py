"""Memory that libraries take from the allocator for themselves: cuBLAS keeps it, attention gives it back at once.

Source:
    pytorch/pytorch, aten/src/ATen/cuda/CublasHandlePool.cpp: a workspace for each handle and stream, of
    CUBLAS_WORKSPACE_CONFIG, else ":4096:8" on Hopper and Blackwell and ":4096:2:16:8" before; a thread has handles of
    its own, so autograd's has its own workspace; cuBLASLt uses the same one.
    aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, `mha_bwd`: sums of the query's gradient and of the
    softmax in 32 bits, and where heads share keys and values, gradients of these for every head.
    What cuDNN takes within a convolution is not known and left out.
"""

import re

from trimaran.rehearsal.record import Kernel

_PRODUCTS = frozenset(
    f"aten.{name}.{overload}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "_scaled_mm", "addmm_")
    for overload in ("default", "out", "dtype", "dtype_out")
) | {"aten._addmm_activation.default", "aten.linear.default"}

_SIZES = re.compile(r":(\d+):(\d+)")

_FLASH = "aten._scaled_dot_product_flash_attention_backward.default"


def product_bytes(capability: tuple[int, int], configured: str = "") -> int:
    """Workspace of the library of products, for each of its callers [bytes].

    Args:
        capability: of the device's architecture
        configured: CUBLAS_WORKSPACE_CONFIG

    Example:
        >>> [product_bytes(each) // 1024 for each in ((9, 0), (8, 0))], product_bytes((9, 0), ":16:8")
        ([32768, 8320], 131072)
    """
    sizes = [1024 * int(size) * int(count) for size, count in _SIZES.findall(configured)]
    if sizes:
        return sum(sizes)
    return 4096 * 8 * 1024 if capability[0] in (9, 10, 12) else 4096 * 2 * 1024 + 16 * 8 * 1024


def is_product(kernel: Kernel) -> bool:
    """Whether the library of products runs it."""
    return kernel.name in _PRODUCTS


def scratch_bytes(kernel: Kernel) -> int:
    """What an operator takes after its results and gives back when it ends [bytes]."""
    if kernel.name != _FLASH:
        return 0
    query, key = kernel.inputs[1], kernel.inputs[2]
    samples, heads, length, width = query.shape
    rows, columns = -(-length // 128) * 128, -(-width // 32) * 32 if width <= 192 else 256
    found = 4 * samples * heads * rows * (columns + 1)
    if key.shape[1] != heads:
        found += 2 * 2 * samples * key.shape[2] * heads * width
    return found
