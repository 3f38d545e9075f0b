"""Which exchange is faster, as far as constants are known."""

import pytest
from tests.unit.simulator.test_exchange import LARGE_FIRST, MXNET, SMALL, estimate

from trimaran.graph.kernels.workload import Workload
from trimaran.machine.find import find_machine
from trimaran.pricing.exchange.step import Sync
from trimaran.simulator.data_parallel import DataParallelSetup
from trimaran.simulator.exchange_comparison import StepEnds, speed_ratio, step_ends


def ends(job: Workload, sync: Sync) -> StepEnds:
    return step_ends(
        DataParallelSetup(
            workload=job,
            estimate=estimate(job),
            machine=find_machine("dgx1-v100"),
            devices=8,
            sync=sync,
            software=MXNET,
        )
    )


@pytest.mark.parametrize("sync", ["nccl", "kvstore", "server", "byteps"])
def test_a_step_is_between_its_ends(sync: Sync) -> None:
    found = ends(LARGE_FIRST, sync)
    assert found.interval[0] <= found.seconds <= found.interval[1]
    assert found.pairs[0][0] <= found.interval[0] <= found.interval[1] <= found.pairs[2][1]


def test_one_large_tensor_is_surely_slower_by_copies() -> None:
    ratio = speed_ratio(ends(LARGE_FIRST, "nccl"), ends(LARGE_FIRST, "kvstore"))
    assert ratio.faster is True
    assert speed_ratio(ends(LARGE_FIRST, "kvstore"), ends(LARGE_FIRST, "nccl")).faster is False


def test_where_ends_overlap_nothing_is_sure() -> None:
    ratio = speed_ratio(ends(SMALL, "nccl"), ends(SMALL, "kvstore"))
    assert ratio.low <= ratio.value <= ratio.high
    assert (ratio.faster is None) == (ratio.low <= 1.0 <= ratio.high)


def test_a_ratio_is_one_against_itself() -> None:
    same = StepEnds(seconds=1.0, pairs=((1.0, 1.0),) * 3)
    assert speed_ratio(same, same).faster is None
