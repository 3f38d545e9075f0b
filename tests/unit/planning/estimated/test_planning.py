"""Plans for machines that are not here: what they say, and what they refuse."""

import dataclasses
import json
from pathlib import Path

import pytest
from tests import builders
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.graph.types import Affine, Graph, Op, TensorSpec
from trimaran.planner.choice import fastest
from trimaran.planner.pins import Pins, pins_of_strategy
from trimaran.planning.analytical import check_pins
from trimaran.planning.answer.documents import plan_document
from trimaran.planning.answer.evidence import Modelled, Simulated
from trimaran.planning.answer.results import Planned
from trimaran.planning.estimated import longest_chain_s, shares_of_widths
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import NO_TARGET
from trimaran.program.plan_file import read_plan, write_plan


@pytest.fixture(scope="module")
def replicas() -> Planned:
    found = make_plan(
        "lenet", builders.cluster_request(cluster="dgx1-v100", devices=2, batch=4096, pins=builders.pins(dp=2))
    )
    assert isinstance(found.evidence, Simulated)
    return found


@pytest.fixture(scope="module")
def modelled() -> Planned:
    found = make_plan("llama2:70b", builders.cluster_request(cluster="hgx-h100:128", devices=1024, batch=2048))
    assert isinstance(found.evidence, Modelled)
    return found


def test_a_memory_plan_that_is_faster_than_what_fits_is_tried_and_taken_without_being_asked_for() -> None:
    """Whole on one card it lacks 1.3 GiB; two microbatches fit and take 3 % longer."""
    request = builders.cluster_request(cluster="titan-x", devices=1, batch=128, memory_bytes=9 << 30)
    found = make_plan("vgg16", request)
    named = make_plan("vgg16", dataclasses.replace(request, pins=pins_of_strategy("one device in 9GiB")))
    without = make_plan("vgg16", dataclasses.replace(request, pins=builders.pins(forbid=("memory",))))
    assert found.chosen.strategy == named.chosen.strategy
    assert found.chosen.step_time_s == named.chosen.step_time_s < 0.99 * without.chosen.step_time_s
    assert not any("lacks nothing but memory" in note for note in found.notes)


def test_one_device_takes_as_long_beside_two_as_alone() -> None:
    """What is compared over numbers of devices may have memory plans, and as many microbatches as fit, as well."""
    request = builders.cluster_request(cluster="2xtitan-x", devices=2, batch=128, memory_bytes=9 << 30)
    both = make_plan("vgg16", dataclasses.replace(request, target=dataclasses.replace(NO_TARGET, counts=(1, 2))))
    assert both.outlook is not None
    for count in (1, 2):
        alone = make_plan("vgg16", dataclasses.replace(request, devices=count))
        rows = [one for one in both.outlook.estimates if one.contender.devices == count]
        best_s = fastest(alone.simulated.search.candidates).step_time_s
        # More sizes of buckets are tried where nothing else is asked.
        assert min(row.contender.cases[1] for row in rows) == pytest.approx(best_s, rel=1e-3)


def test_a_named_budget_is_kept_beside_other_numbers_of_devices() -> None:
    request = builders.cluster_request(cluster="2xtitan-x", devices=2, batch=128, pins=pins_of_strategy("dp2 in 5GiB"))
    alone = make_plan("vgg16", request)
    both = make_plan("vgg16", dataclasses.replace(request, target=dataclasses.replace(NO_TARGET, counts=(1, 2))))
    assert both.chosen.strategy == alone.chosen.strategy
    assert both.chosen.strategy.memory_bytes == 5 << 30
    assert both.chosen.step_time_s == alone.chosen.step_time_s


def test_a_document_says_what_was_chosen_and_over_what(replicas: Planned) -> None:
    document = json.loads(json.dumps(plan_document(replicas)))
    chosen = document["chosen"]
    assert chosen["degrees"]["dp"] == 2
    assert chosen["speedup"] == pytest.approx(document["one_device_s"] / chosen["step_time_s"])
    assert 1.0 < chosen["speedup"] <= 2.0
    assert chosen["interval_s"][0] < chosen["step_time_s"] < chosen["interval_s"][1]
    assert {"gap", "bound_s", "placement", "peak_bytes", "limiter"} <= set(chosen)
    assert document["one_device_fits"] is True


def test_a_plan_of_a_strategy_is_an_ordinary_file(replicas: Planned, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", replicas.evidence.whole_plan)
    plan = read_plan(tmp_path / "plan.json")
    assert plan.strategy == replicas.chosen.strategy
    assert plan.premises.graph_digest == replicas.simulated.problem.graph.digest
    assert plan.prediction.step_time_s == pytest.approx(replicas.chosen.step_time_s)


def test_many_devices_are_planned_by_the_shape_of_a_transformer(modelled: Planned, tmp_path: Path) -> None:
    """Nothing of 70 billion parameters is made: the whole takes seconds."""
    document = plan_document(modelled)
    degrees = document["chosen"]["degrees"]
    assert degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"] == 1024
    assert document["chosen"]["peak_bytes"] < 80e9
    assert 0.3 < document["chosen"]["mfu"] < 0.7
    write_plan(tmp_path / "plan.json", modelled.evidence.whole_plan)
    plan = read_plan(tmp_path / "plan.json")
    assert plan.strategy == modelled.chosen.strategy
    assert (plan.premises.layers, plan.premises.sequence_length, plan.has_program) == (80, 4096, False)
    assert plan.prediction.step_time_s == pytest.approx(modelled.chosen.step_time_s)


def test_pins_reach_the_search_over_degrees() -> None:
    request = builders.cluster_request(
        cluster="hgx-h100:16",
        devices=128,
        batch=256,
        pins=builders.pins(tp=8, forbid=("pp",), zero=1),
        precision="bf16",
    )
    document = plan_document(make_plan("llama2:13b", request))
    degrees = document["chosen"]["degrees"]
    assert (degrees["tp"], degrees["pp"], degrees["zero"]) == (8, 1, 1)


def test_a_schedule_that_price_knows_is_planned_on_many_devices_too() -> None:
    pins = builders.pins(schedule="zero-bubble")
    request = builders.cluster_request(cluster="dgx-a100:4", batch=128, pins=pins, precision="bf16")
    degrees = plan_document(make_plan("llama3:8b", request))["chosen"]["degrees"]
    assert degrees["schedule"] == "zero-bubble"
    assert degrees["pp"] > 1


@pytest.mark.parametrize(
    ("pins", "option"),
    [
        (builders.pins(keep=(("layer4", 1),)), "--keep layer4=1"),
        (builders.pins(schedule="gpipe"), "--schedule"),
        (builders.pins(microbatches=8), r"--microbatches \b8\b"),
        (builders.pins(nodes=2), r"--nodes \b2\b"),
        (builders.pins(compress=True, powersgd_samples=2.0), "--allow compress"),
    ],
)
def test_pins_that_mean_nothing_for_the_analytical_model_are_refused(pins: Pins, option: str) -> None:
    with raises("analytical.option-unsupported", match=option):
        check_pins(pins)


@pytest.mark.parametrize(
    ("words", "word"), [("dp2 in 40GiB", "memory budget"), ("dp2 cached", "feeding"), ("dp2 compiled", "execution")]
)
def test_words_of_simulated_programs_are_refused_by_the_analytical_model(words: str, word: str) -> None:
    with raises("analytical.option-unsupported", match=word):
        check_pins(pins_of_strategy(words))


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("dp4 pp2 1f1b layers:20+12", "strategy.cannot-be-built", "32 in all"),
        ("dp4 pp2 1f1b x2", "strategy.cannot-be-built", "interleaved"),
        ("dp8 pp2 1f1b", "strategy.wrong-devices", "16 devices"),
    ],
)
def test_a_named_strategy_that_cannot_be_built_says_why(words: str, code: str, reason: str) -> None:
    """It lacks no memory."""
    request = builders.cluster_request(cluster="dgx-h100:1", batch=64, pins=pins_of_strategy(words))
    with raises(code, match=reason):
        make_plan("llama3.2:1b", request)


@pytest.mark.parametrize(("words", "reason"), [("dp2 hierarchical", "several nodes"), ("placed on 2", "side by side")])
def test_a_strategy_that_the_network_or_the_machine_does_not_have_says_what_is_missing(words: str, reason: str) -> None:
    request = builders.cluster_request(cluster="dgx1-v100", devices=2, batch=64, pins=pins_of_strategy(words))
    with raises("pin.no-strategy", InfeasibleError, match=reason):
        make_plan("lenet", request)


def test_more_devices_than_the_machine_has_are_refused() -> None:
    with raises("machine.too-few-devices", available=8):
        make_plan("lenet", builders.cluster_request(cluster="dgx1-v100:1", devices=9))


def test_what_fits_nowhere_is_refused_with_the_figures() -> None:
    """LeNet's batch of 4,096 images needs more than 1 MiB in any way."""
    with raises("plan.nothing-fits", InfeasibleError, match="MiB|KiB"):
        make_plan("lenet", builders.cluster_request(cluster="dgx1-v100", devices=1, batch=4096, memory_bytes=2**20))


def fork() -> Graph:
    """a, then b and c side by side, then d."""

    def op(name: str, *inputs: str) -> Op:
        spec = TensorSpec(name=name, shape=("B",), dtype="float32", nbytes=Affine(0, 4))
        return Op(id=name, target="aten.add", inputs=inputs, outputs=(spec,))

    return Graph(
        name="fork",
        inputs=(),
        ops=(op("a"), op("b", "a"), op("c", "a"), op("d", "b", "c")),
        buffers={},
        storages={},
    )


def test_the_longest_chain_takes_the_slower_branch() -> None:
    """1 + max(2, 4) + 3 = 8."""
    assert longest_chain_s(fork(), {"a": 1.0, "b": 2.0, "c": 4.0, "d": 3.0}) == 8.0


def test_branches_run_side_by_side_while_both_last() -> None:
    """Of 8 s, two run from 1 to 3: a quarter of the time."""
    assert shares_of_widths(fork(), {"a": 1.0, "b": 2.0, "c": 4.0, "d": 3.0}) == {1: 0.75, 2: 0.25}
