from tests.unit.graph.kernels.steps import meta, of_kind, traced, worked
from torch import nn

from trimaran.graph.kernels.workload import Gradient, WorkKind
from trimaran.graph.types import Phase


def test_the_first_convolution_has_no_gradient_of_its_input() -> None:
    """4 samples of 3 channels of 8 x 8; 3 x 3 without padding leaves 6 x 6, then 4 x 4."""
    work = worked(lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 7, 3)), meta(4, 3, 8, 8))
    found = of_kind(work, WorkKind.CONVOLUTION)
    assert [(one.phase, one.gradient, one.module) for one in found] == [
        (Phase.FORWARD, Gradient.NONE, "0"),
        (Phase.FORWARD, Gradient.NONE, "1"),
        (Phase.BACKWARD, Gradient.INPUT, "1"),
        (Phase.BACKWARD, Gradient.WEIGHT, "1"),
        (Phase.BACKWARD, Gradient.WEIGHT, "0"),
    ]
    assert [one.dims for one in found[:2]] == [(4, 3, 8, 8, 5, 3, 3, 6, 6, 1), (4, 5, 6, 6, 7, 3, 3, 4, 4, 1)]
    assert found[2].dims == found[3].dims == found[1].dims
    assert found[1].flops == 2 * (4 * 7 * 4 * 4) * (5 * 3 * 3)


def test_what_a_convolution_reads_and_writes() -> None:
    """Floats: 4 x 3 x 64 in, 5 x 3 x 9 of weight, 5 of bias, 4 x 5 x 36 out; no bias in the gradient of the weight."""
    work = worked(lambda: nn.Conv2d(3, 5, 3), meta(4, 3, 8, 8))
    forward, of_weight = of_kind(work, WorkKind.CONVOLUTION)
    assert forward.nbytes == 4 * (768 + 135 + 5 + 720)
    assert of_weight.nbytes == 4 * (768 + 135 + 720)
    assert (forward.launches, of_weight.launches) == (2, 1)


def test_the_bias_of_a_convolution_is_a_sum_of_its_own() -> None:
    work = worked(lambda: nn.Conv2d(3, 5, 3), meta(4, 3, 8, 8))
    sums = [one for one in of_kind(work, WorkKind.REDUCTION) if one.phase is Phase.BACKWARD]
    assert [(one.dims, one.gradient) for one in sums] == [((720,), Gradient.WEIGHT)]
    assert [gradient.elements for gradient in work.gradients] == [5, 135]
    assert [work.works[gradient.work].kind for gradient in work.gradients] == [WorkKind.REDUCTION] * 2


def test_groups_divide_the_work() -> None:
    forward = of_kind(worked(lambda: nn.Conv2d(8, 16, 3, groups=4), meta(2, 8, 5, 5)), WorkKind.CONVOLUTION)[0]
    assert forward.dims[-1] == 4
    assert forward.flops == 2 * (2 * 16 * 3 * 3) * (2 * 3 * 3)


def test_a_transposed_convolution_is_told_as_the_forward_that_it_reverses() -> None:
    """It makes 6 channels of 16 x 16 from 8 of 8 x 8; the forward leads from the former to the latter."""
    work = worked(lambda: nn.ConvTranspose2d(8, 6, 2, stride=2), meta(3, 8, 8, 8))
    for one in of_kind(work, WorkKind.CONVOLUTION):
        assert one.dims == (3, 6, 16, 16, 8, 2, 2, 8, 8, 1)
        assert one.flops == 2 * (3 * 8 * 8 * 8) * (6 * 2 * 2)


def test_a_transposed_convolution_that_keeps_the_channels() -> None:
    work = worked(lambda: nn.ConvTranspose2d(8, 8, 2, stride=2), meta(3, 8, 8, 8))
    assert of_kind(work, WorkKind.CONVOLUTION)[0].dims == (3, 8, 16, 16, 8, 2, 2, 8, 8, 1)


def test_one_dim_has_a_height_of_one() -> None:
    forward = of_kind(worked(lambda: nn.Conv1d(4, 6, 5), meta(2, 4, 20)), WorkKind.CONVOLUTION)[0]
    assert forward.dims == (2, 4, 1, 20, 6, 1, 5, 1, 16, 1)


def test_gradients_of_products_are_told_apart() -> None:
    """10 x 4 by 4 x 6, then by 6 x 3: backwards d out (10 x 3) by the weight, and against the input."""
    work = worked(lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3, bias=False)), meta(10, 4))
    found = of_kind(work, WorkKind.PRODUCT)
    assert sorted((one.gradient, one.dims) for one in found if one.phase is Phase.BACKWARD) == sorted(
        [(Gradient.INPUT, (1, 10, 6, 3)), (Gradient.WEIGHT, (1, 3, 6, 10)), (Gradient.WEIGHT, (1, 6, 4, 10))]
    )
    assert [one.dims for one in found if one.phase is Phase.FORWARD] == [(1, 10, 6, 4), (1, 10, 3, 6)]


def test_the_split_loses_no_operation() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 5))

    batch = meta(2, 3, 8, 8)
    assert worked(make, batch).flops() == sum(op.flops for op in traced(make, batch).ops)
