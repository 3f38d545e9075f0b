"""Decorators of kernels that are not compiled."""

from trimaran.rehearsal.device.absent import KernelFunction, _Config, _decorator


def test_decorators_keep_what_they_decorate_with_and_without_arguments() -> None:
    jit = _decorator(KernelFunction)

    def kernel(x: int, block: int) -> int:
        return x * block

    for made in (jit(kernel), jit(num_warps=4)(kernel), jit(jit(kernel))):
        assert isinstance(made, KernelFunction)
        assert made.fn is kernel
        assert made.arg_names == ["x", "block"]
    assert _Config({"BLOCK": 64}, num_warps=8).all_kwargs() == {"BLOCK": 64, "num_warps": 8, "num_stages": 3}
