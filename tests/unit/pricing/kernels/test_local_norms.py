import dataclasses

from tests.unit.pricing.kernels.shapes import elementwise

from trimaran.graph.kernels.workload import Work
from trimaran.graph.types import Phase
from trimaran.pricing.kernels.estimate import with_local_norms
from trimaran.pricing.kernels.software import Software

ELEMENTS = 1_000
FORWARD = ("aten.mul", "aten.constant_pad_nd", "aten.avg_pool3d", "aten.mul", "aten.add", "aten.pow", "aten.div")


def _layer(phase: Phase, names: tuple[str, ...]) -> list[Work]:
    return [dataclasses.replace(elementwise(ELEMENTS, name=name, phase=phase), module="norm1") for name in names]


LAYER = _layer(Phase.FORWARD, FORWARD) + _layer(Phase.BACKWARD, ("aten.avg_pool3d_backward", *["aten.mul"] * 12))
OTHER = elementwise(ELEMENTS)


def test_a_kernel_of_its_own_moves_three_tensors_forward_and_five_back() -> None:
    """1,000 numbers of 4 bytes: 12,000 and 20,000 bytes in all, where the operators move 56,000 and 104,000."""
    found = with_local_norms([*LAYER, OTHER], Software(framework="mxnet"))
    moved = {phase: sum(work.nbytes for work in found[:-1] if work.phase is phase) for phase in Phase}
    assert moved[Phase.FORWARD] in range(11_990, 12_011)
    assert moved[Phase.BACKWARD] in range(19_980, 20_021)
    assert sum(work.launches for work in found[:-1]) == 2
    assert found[-1] == OTHER


def test_pytorch_runs_its_operators() -> None:
    assert list(with_local_norms(LAYER, Software())) == LAYER
