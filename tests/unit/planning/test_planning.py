"""What a plan from a file has no use for."""

from pathlib import Path

import pytest
from tests import builders
from tests.raising import raises

from trimaran.jobs.resolve import JobSource
from trimaran.planning.plan import obtain_plan
from trimaran.planning.requests import PlanRequest


@pytest.mark.parametrize(
    ("request_", "option"),
    [
        (builders.plan_request(pins=builders.pins(compression="bf16")), "--compression bf16"),
        (
            builders.plan_request(pins=builders.pins(compress=True, powersgd_samples=2.0)),
            "--allow compress, --powersgd-samples 2",
        ),
        (builders.plan_request(pins=builders.pins(allow=("dp",))), "--allow dp"),
        (builders.plan_request(pins=builders.pins(forbid=("cache", "pp"))), "--forbid pp"),
        (builders.plan_request(execution="compiled"), "--execution compiled"),
        (builders.plan_request(objective="time"), "--objective time"),
    ],
)
def test_what_a_made_plan_cannot_heed_is_refused_by_its_name(request_: PlanRequest, option: str) -> None:
    with raises("plan.option-needs-new-plan", match=f"leave {option} out", path="absent.json"):
        obtain_plan(JobSource(reference="digits"), request_, path=Path("absent.json"))


def test_how_a_made_plan_is_fed_may_be_said() -> None:
    request = builders.plan_request(pins=builders.pins(workers=1, forbid=("cache",)))
    with raises("file.unreadable") as caught:
        obtain_plan(JobSource(reference="digits"), request, path=Path("absent.json"))
    assert "made already" not in str(caught.value)
