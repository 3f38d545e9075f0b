"""Options about memory of plans for transformers on many devices: honoured or refused."""

import pytest
from tests import builders
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.planner.pins import parse_pins
from trimaran.planning.analytical import memory_words
from trimaran.planning.answer.evidence import Modelled
from trimaran.planning.answer.results import Planned
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import parse_request

CLUSTER = "hgx-h100:16"


def planned(*, batch: int = 256, **asked: object) -> Planned:
    return make_plan("llama2:13b", parse_request(cluster=CLUSTER, batch=batch, **asked))  # type: ignore[arg-type]


def modelled(found: Planned) -> Modelled:
    assert isinstance(found.evidence, Modelled)
    return found.evidence


def test_types_that_are_asked_for_are_those_of_the_plan() -> None:
    pins = parse_pins(gradients="bf16", optimizer_state="bf16-moments", dp=128)
    found = planned(pins=pins)
    strategy = found.chosen.strategy
    assert (strategy.gradients, strategy.optimizer_state) == ("bf16", "bf16-moments")
    assert strategy.name.endswith("bf16-gradients bf16-moments")
    assert any("2 of its gradient and 8 of Adam" in note for note in found.notes)
    assert found.request.pins.names == ("--gradients bf16", "--optimizer-state bf16-moments", "--dp 128")


def test_bf16_gradients_shorten_exchanges_between_replicas() -> None:
    steps = [
        planned(pins=parse_pins(gradients=kind, dp=128, zero=1, microbatches=2)).chosen.step.data_s  # type: ignore[union-attr]
        for kind in ("fp32", "bf16")
    ]
    assert steps[1] < steps[0]


def test_a_reserve_is_kept_free_and_said() -> None:
    found = planned(reserve="20GiB", pins=parse_pins(dp=128))
    evidence = modelled(found)
    room = evidence.problem.device_bytes - 20 * 2**30
    assert evidence.problem.memory_limit == room
    assert max(found.chosen.peak_bytes) <= room
    assert "20.0 GiB stay free" in memory_words(evidence.problem, evidence.chosen)


@pytest.mark.parametrize("memory", ["0GiB", 0])
def test_no_memory_is_refused_before_anything_is_planned(memory: str | int) -> None:
    for cluster in (CLUSTER, None):
        with raises("quantity.not-positive", match='"16 GiB"'):
            parse_request(cluster=cluster, memory=memory)


def test_memory_that_no_card_has_is_refused() -> None:
    with raises("device.budget-exceeds-memory", match="80.0 GiB"):
        planned(memory="400GiB")


def test_memory_that_no_card_has_is_refused_on_few_devices_too() -> None:
    with raises("device.budget-exceeds-memory", match="80.0 GiB"):
        make_plan("lenet", parse_request(cluster="hgx-h100", devices=2, memory="400GiB"))


@pytest.mark.parametrize("option", [{"reserve": "3GiB"}, {"pins": builders.pins_of_degrees(gradients="bf16")}])
def test_where_every_operation_is_priced_they_are_refused(option: dict[str, object]) -> None:
    with raises("plan.option-analytical"):
        make_plan("lenet", parse_request(cluster="hgx-h100", devices=2, **option))  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_training_in_32_bits_is_priced_at_its_peaks(precision: str) -> None:
    """16 bytes a parameter, and slower than in bf16 by less than the ratio of their peaks."""
    pins = parse_pins(dp=128, zero=3, microbatches=1, forbid=["memory"])
    wide, narrow = (planned(batch=128, precision=name, pins=pins) for name in (precision, "bf16"))
    keeping = modelled(wide).problem.bookkeeping
    assert keeping.weight_bytes + keeping.gradient_bytes + keeping.optimizer_bytes == 16
    device = modelled(wide).problem.machine.node.device
    ratio = device.compute["bf16"].flops_per_s / device.compute[precision].flops_per_s
    assert 1.5 < wide.chosen.step_time_s / narrow.chosen.step_time_s < ratio * 1.01
    assert any(f"products in {precision}" in note for note in wide.notes)


def test_training_in_32_bits_has_no_16_bit_gradients() -> None:
    with raises("memory.type-needs-16-bits", option="gradients"):
        planned(precision="fp32", pins=parse_pins(gradients="bf16"))


@pytest.mark.parametrize("text", ["much", "100%", "-1%", "5%%", "-3GiB"])
def test_a_reserve_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_request(cluster=CLUSTER, reserve=text)


def test_a_type_that_is_none_is_refused() -> None:
    with raises("pin.unknown-type", match="fp32, bf16"):
        parse_pins(gradients="fp64")


def test_a_type_against_a_strategy_of_another_is_refused() -> None:
    with raises("pin.type-and-strategy"):
        parse_pins(strategy="dp8 zero1 bf16-gradients", gradients="fp32")
    assert parse_pins(strategy="dp8 zero1", gradients="bf16").gradients == "bf16"
