"""Plans for target clusters on a page: the same as of this machine, with speedups or shares of the devices' peak."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests import builders

from trimaran.planning.answer.documents import plan_document
from trimaran.planning.answer.pages import print_plan
from trimaran.planning.answer.results import Planned
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import Objective, parse_target


@pytest.fixture(scope="module")
def simulated() -> Planned:
    return make_plan("lenet", builders.cluster_request(cluster="dgx1-v100", devices=2, batch=4096))


@pytest.fixture(scope="module")
def modelled() -> Planned:
    return make_plan("llama2:7b", builders.cluster_request(cluster="dgx-h100:2", batch=64))


def page(planned: Planned, *, terminal: bool = True) -> list[str]:
    text = io.StringIO()
    print_plan(Console(file=text, width=80, force_terminal=terminal, no_color=True), planned)
    return [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.parametrize("kind", ["simulated", "modelled"])
def test_a_plan_is_readable_at_80_columns(kind: str, request: pytest.FixtureRequest) -> None:
    planned = request.getfixturevalue(kind)
    lines = page(planned)
    assert lines[0].startswith(f"{planned.name} on {planned.devices} devices: {planned.chosen.name}, ")
    assert max(len(line) for line in lines) <= 80
    assert "…" not in "".join(lines)
    whole = " ".join(" ".join(lines).split())
    assert f"Global batch {planned.global_batch_size} on " in whole
    assert planned.precision in whole
    assert any(line.startswith("search: ") for line in lines)


def test_a_simulated_plan_has_speedups_and_limiters(simulated: Planned) -> None:
    lines = page(simulated, terminal=False)
    title = next(line for line in lines if line.split()[:2] == ["strategy", "step"])
    assert title.split() == ["strategy", "step", "interval", "peak", "speedup", "limiter"]
    speedup = plan_document(simulated)["chosen"]["speedup"]
    assert f"{speedup:.2f}" in next(line for line in lines if line.startswith("*"))
    assert f"{speedup:.2f} times one device" in " ".join(lines[:3])


def test_a_plan_of_the_analytical_model_has_shares_of_the_peak(modelled: Planned) -> None:
    lines = page(modelled, terminal=False)
    title = next(line for line in lines if line.split()[:2] == ["strategy", "step"])
    assert title.split() == ["strategy", "step", "interval", "peak", "mfu", "limiter"]
    document = plan_document(modelled)
    assert f"{document['chosen']['mfu']:.2f}" in next(line for line in lines if line.startswith("*"))
    tokens = f"{document['chosen']['tokens_per_s']:,.0f} tokens/s"
    assert tokens in " ".join(lines[:3])
    assert any(line.startswith("rejected: ") for line in lines)


def test_a_page_is_the_same_for_a_file_and_for_a_terminal(modelled: Planned) -> None:
    assert page(modelled, terminal=False) == page(modelled)


def test_documents_have_the_same_keys_for_every_backend(simulated: Planned, modelled: Planned) -> None:
    """Besides, the analytical model says what only it has."""
    one, other = plan_document(simulated), plan_document(modelled)
    assert set(other) - set(one) == {
        "sequence",
        "host_bytes",
        "host_limit_bytes",
        "idle_devices",
        "nearby_batches",
    }
    assert set(one) <= set(other)
    assert set(other["candidates"][0]) - set(one["candidates"][0]) == {"parts_s", "mfu", "tokens_per_s", "need_bytes"}
    assert set(one["candidates"][0]) <= set(other["candidates"][0])


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_a_plan_to_a_target_begins_with_the_target_and_says_idle_devices(objective: Objective, tmp_path: Path) -> None:
    """The cheapest training is on few devices: those are said, and no speedup by the one device that it is."""
    curve = tmp_path / "lenet.csv"
    curve.write_text("global_batch,epochs,samples_per_epoch\n256,3.0,60000\n1024,3.3,60000\n4096,5.0,60000\n")
    target = parse_target(curve=str(curve))
    request = builders.cluster_request(cluster="dgx1-v100", devices=2, objective=objective, target=target)
    planned = make_plan("lenet", request)
    lines = page(planned)
    whole = " ".join(lines[:8])
    figure = r"[\d.]+ (min|h|s|ms) to the target" if objective == "time" else r"[\d.]+ device-hours"
    assert re.match(figure, lines[0])
    by = f"batch {planned.global_batch_size} by {planned.chosen.name} on "
    assert re.search(f"the least {objective}( but for uncertainty)?: {by}", whole)
    taken = planned.chosen.strategy.devices
    assert f"lenet on {'1 of 2' if taken == 1 else '2'} devices: " in whole
    assert ("times one device" in whole) is (taken > 1)
    assert f"the least {objective}:" not in " ".join(lines[3:])


def test_a_bound_far_below_is_said_as_a_factor(modelled: Planned) -> None:
    """Of a search that ended early: a factor, not "within 541.2 %"."""
    search = modelled.evidence.search
    assert search is not None
    found = replace(search, bound_s=search.chosen.step_time_s / 6.4, is_complete=False)
    line = " ".join(page(replace(modelled, evidence=replace(modelled.evidence, search=found))))
    assert "a strategy may be up to 6.4 times as fast" in re.sub(r"\s+", " ", line)
