"""Decorators of kernels that are not compiled."""

from trimaran.rehearsal.device.absent import KernelFunction, _config, _decorator


def test_decorators_keep_what_they_decorate_with_and_without_arguments() -> None:
    def kernel(x: int, block: int) -> int:
        return x * block

    for made in (_decorator(kernel), _decorator(num_warps=4)(kernel), _decorator(_decorator(kernel))):
        assert isinstance(made, KernelFunction)
        assert made.fn is kernel
        assert made.arg_names == ["x", "block"]
    assert vars(_config({"BLOCK": 64}, num_warps=8)) == {"kwargs": {"BLOCK": 64}, "num_warps": 8, "num_stages": 3}
