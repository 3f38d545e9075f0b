"""Whether compressing gradients pays, as arXiv 2006.10103 has it of 64 V100 in 8 servers.

"... under full network utilization, there is no need for gradient compression in 100 Gbps network. On the other hand, a
lower speed network like 10 Gbps requires only 2×-5× gradients compression ratio to achieve almost linear scale-out."

Its networks of residual blocks, 32 images a GPU. "Almost linear" is taken as 90 % of what scaling comes to when nothing
goes over the wire.
"""

import pytest
from tests import builders

from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.plan import make_plan
from trimaran_studies.reproduce.compression_ratio import DEVICES, LOCAL_BATCH, NODES, least_ratio

pytestmark = pytest.mark.published


@pytest.mark.parametrize("network", ["resnet50", "resnet101"])
def test_at_100_gigabits_nothing_need_be_compressed(network: str) -> None:
    assert least_ratio(network, "ethernet-100g") == 1.0


@pytest.mark.parametrize("network", ["resnet50", "resnet101"])
def test_at_10_gigabits_a_ratio_of_2_to_5_is_enough(network: str) -> None:
    assert 2.0 <= least_ratio(network, "ethernet-10g") <= 5.0


@pytest.mark.parametrize(
    ("fabric", "compresses"), [pytest.param("ethernet-100g", False, marks=pytest.mark.sweep), ("ethernet-10g", True)]
)
def test_a_plan_with_consent_compresses_where_the_study_says_that_it_pays(fabric: str, compresses: bool) -> None:
    pins = builders.pins(dp=DEVICES, pp=1, tp=1, zero=0, microbatches=1, compress=True)
    cluster = f"dgx1-v100:{NODES}@{fabric}"
    batch = LOCAL_BATCH * DEVICES
    request = builders.cluster_request(cluster=cluster, devices=DEVICES, batch=batch, pins=pins, execution="eager")
    found = make_plan("resnet50", request)
    assert isinstance(found.evidence, Simulated)
    chosen = found.chosen.strategy.compression
    assert (chosen is not None) == compresses
    said = next(note for note in found.notes if "gradients" in note)
    assert said.startswith("gradients are sent as" if compresses else "compressing gradients is not worth it")
    if chosen is not None:
        whole = min(one.step_time_s for one in found.simulated.search.candidates if one.strategy.compression is None)
        assert found.chosen.step_time_s < whole
