"""What a plan was made for, beside what there is: its kind of device, and their memory."""

import pytest
from tests import builders
from tests.raising import raises

from trimaran.machine.catalog import find_device
from trimaran.planning.plan_files import _check_kind, _memory_to_use
from trimaran.program import Plan

HERE = builders.cluster(memory_bytes=1000)


def plan_for(devices: tuple[str, ...], memory_bytes: tuple[int, ...] = ()) -> Plan:
    return builders.plan(
        job="digits",
        strategy=builders.strategy(dp=2),
        premises=builders.premises(graph_digest="", global_batch_size=24, devices=devices, memory_bytes=memory_bytes),
        prediction=builders.prediction(step_time_s=0.0),
    )


@pytest.mark.parametrize(
    ("then", "usable"),
    [((600, 1400), [600, 1000]), ((), [1000, 1000]), ((2000, 2000), [1000, 1000])],
)
def test_no_more_memory_is_used_than_was_planned_with(then: tuple[int, ...], usable: list[int]) -> None:
    """1,000 bytes are here: the smaller of then and now counts; a plan that says nothing takes what is here."""
    assert _memory_to_use(plan_for(("core", "core"), then), HERE, builders.plan_request()) == usable


def test_memory_that_the_user_names_counts_before_that_of_the_plan() -> None:
    """The cluster has it already (`local_cluster`): the plan's 600 bytes are not looked at."""
    plan = plan_for(("core", "core"), (600, 600))
    assert _memory_to_use(plan, HERE, builders.plan_request(memory_bytes=1000)) == [1000, 1000]


def test_memory_of_another_number_of_devices_is_refused() -> None:
    with raises("plan.wrong-budget-count", match=r"memory_bytes.*'digits'.*\b1\b.*\b2\b"):
        _memory_to_use(plan_for(("core", "core"), (600,)), HERE, builders.plan_request())


def test_a_plan_for_gpus_of_the_catalog_is_refused_where_there_are_none() -> None:
    title = find_device("v100").title
    with raises("plan.other-device", match=r"\b2\b", device=title):
        _check_kind(plan_for((title, title)), HERE)


def test_a_plan_for_gpus_is_used_where_there_are_some() -> None:
    title = find_device("v100").title
    _check_kind(plan_for((title, title)), builders.cluster(kind="cuda", memory_bytes=1000))


def test_a_plan_for_cores_is_used_on_cores() -> None:
    _check_kind(plan_for(("another core", "another core")), HERE)
