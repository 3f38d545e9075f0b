"""Memory of the last rank in Megatron-LM's training tests, which is the rank that writes their figures.

What the program keeps is known from its source: gradients are 32-bit buffers in bf16 and 16-bit ones in fp16; a product
library's workspace of 32 MiB for each of its two callers where the test fixes it, and one of Transformer Engine; the
loss has logits in 16 and in 32 bits, and two more 32-bit forms where it is compiled.
"""

from trimaran.costs.transformers.encoder_decoder import two_stack_memory
from trimaran.costs.transformers.rank_memory import Bookkeeping, RankMemory, rank_memory
from trimaran.session.validation.megatron_arguments import division_of, shape_of, stacks_of
from trimaran.session.validation.megatron_cases import MegatronCase

_MIB = 1024 * 1024
_FIXED_WORKSPACE = 32 * _MIB
"""Of `CUBLAS_WORKSPACE_CONFIG=:4096:8`, and PyTorch's own on Hopper and later [bytes]."""

_USUAL_WORKSPACE = 4096 * 2 * 1024 + 16 * 8 * 1024
"""PyTorch's own before Hopper [bytes]."""

_RELEASE_DEVICES = 512
"""Assumed of runs before a release, whose number of devices is not published."""

_TEST_DEVICES = 8
"""Of all other tests (tests/test_utils/recipes of the repository)."""


def megatron_rank(case: MegatronCase, *, path: str, device: str, devices: int | None) -> RankMemory:
    """Memory of the last rank of a test.

    Args:
        case: the test
        path: of its file of figures: it names the container that they were taken in
        device: as the row calls it
        devices: of the run; None: not said

    Returns:
        By part.
    """
    division = division_of(case, devices or devices_of(case, device))
    if case.family == "t5":
        return two_stack_memory(stacks_of(case), division, bookkeeping=_bookkeeping(case, path, device))
    last = division.pipeline - 1
    return rank_memory(shape_of(case), division, stage=last, bookkeeping=_bookkeeping(case, path, device))


def devices_of(case: MegatronCase, device: str) -> int:
    """Devices of a test whose row does not say it."""
    degrees = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
    least = 1
    for degree in degrees:
        least *= int(case.arguments.get(degree, 1))
    usual = _TEST_DEVICES
    if "release" in case.name:
        usual = _RELEASE_DEVICES
    elif case.name.endswith("1node") and "B200" in device.upper():
        usual = _TEST_DEVICES // 2
    return max(least, usual)


def _bookkeeping(case: MegatronCase, path: str, device: str) -> Bookkeeping:
    given = case.arguments
    local = given.get("transformer-impl") == "local" or given.get("spec") == "local"
    before_hopper = any(name in device.upper() for name in ("A100", "V100"))
    fixed = "fixed-workspace" in given or not before_hopper
    product = _FIXED_WORKSPACE if fixed else _USUAL_WORKSPACE
    engine = 4 * _MIB if before_hopper else 32 * _MIB
    logit = 6
    if "cross-entropy-loss-fusion" in given:
        logit += 8
    if "defer-embedding-wgrad-compute" in given:
        logit += 4
    fp8 = "fp8-format" in given
    return Bookkeeping(
        weight_bytes=4 if fp8 and "fp8-param-gather" not in given else 2,
        gradient_bytes=2 if "fp16" in given else 4,
        logit_bytes=logit,
        product_input_bytes=1 if fp8 else 2,
        attention="unfused" if _keeps_probabilities(case, local=local, path=path) else "fused",
        dense_mask="no-create-attention-mask-in-dataloader" not in given,
        workspace_bytes=4 * product if local else 2 * product + engine,
    )


def _keeps_probabilities(case: MegatronCase, *, local: bool, path: str) -> bool:
    """Whether attention is not fused: by argument, or since an older container has no deterministic fused kernel."""
    backend = case.arguments.get("attention-backend", "auto")
    if local or backend in ("unfused", "local"):
        return True
    return backend == "auto" and "deterministic" in case.arguments and "lts_dgxa100_dracooci" in path
