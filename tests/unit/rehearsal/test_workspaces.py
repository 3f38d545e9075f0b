"""Workspaces of libraries."""

import math

import torch

from trimaran.machine.catalog import find_device
from trimaran.pricing.exchange import replica_memory
from trimaran.rehearsal.record import Kernel, TensorForm
from trimaran.rehearsal.workspaces import is_product, product_bytes, scratch_bytes


def test_workspaces_of_products_are_those_of_the_predictor() -> None:
    for architecture, nbytes in replica_memory.PRODUCT_WORKSPACE_BYTES.items():
        capability = {"hopper": (9, 0), "blackwell": (10, 0)}[architecture]
        assert product_bytes(capability) == nbytes
    assert find_device("a100").architecture == "ampere"
    assert product_bytes((8, 0)) == replica_memory._PRODUCT_WORKSPACE_BYTES
    assert product_bytes((9, 0), ":4096:2:16:8") == product_bytes((8, 0))


def test_products_are_operators_of_torch() -> None:
    for name in ("mm.default", "addmm.default", "bmm.default", "baddbmm.default", "_scaled_mm.default"):
        operator, overload = name.split(".")
        kernel = Kernel(str(getattr(getattr(torch.ops.aten, operator), overload)), (), (), {}, 1)
        assert is_product(kernel)
    assert not is_product(Kernel("aten.relu.default", (), (), {}, 0))


def _attention(heads: int, shared: int, length: int, width: int) -> Kernel:
    query, key = TensorForm((2, heads, length, width), "bfloat16"), TensorForm((2, shared, length, width), "bfloat16")
    return Kernel(
        "aten._scaled_dot_product_flash_attention_backward.default", (query, query, key, key), (query, key, key), {}, 1
    )


def test_attention_takes_sums_in_32_bits() -> None:
    sums = 4 * math.prod((2, 8, 256, 64)) + 4 * math.prod((2, 8, 256))
    assert scratch_bytes(_attention(8, 8, 256, 64)) == sums
    assert scratch_bytes(_attention(8, 8, 200, 64)) == sums  # whole blocks of 128 rows
    assert scratch_bytes(_attention(8, 2, 256, 64)) == sums + 2 * 2 * math.prod((2, 8, 256, 64))
    assert scratch_bytes(Kernel("aten.mm.default", (), (), {}, 1)) == 0
