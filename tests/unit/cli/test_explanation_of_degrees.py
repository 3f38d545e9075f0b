"""The explanation of parallel degrees on a terminal of 80 columns."""

import io
import json

import pytest
from rich.console import Console
from tests import builders

from trimaran.planner.pins import Pins
from trimaran.planning.answer.explained import Explained, explanation_document, print_explanation
from trimaran.planning.explanation import explain_plan


def explained(pins: Pins, *why_not: str) -> Explained:
    request = builders.cluster_request(cluster="dgx-h100:2", batch=64, pins=pins)
    return explain_plan("llama2:7b", request, why_not=why_not)


def test_degrees_are_explained_in_80_columns() -> None:
    text = io.StringIO()
    print_explanation(Console(file=text, width=80), explained(builders.pins(), "fsdp", "tp8-pp2-zero1", "ddp"))
    shown = text.getvalue()
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "…" not in shown
    for part in ("Limited by ", "What the step is made of", "Runners-up", "Why not fsdp?", "Why not tp8-pp2-zero1?"):
        assert part in shown
    assert "+" in next(line for line in shown.splitlines() if line.startswith("step  "))


def test_the_document_has_the_same_figures_and_says_what_pins_cost() -> None:
    found = explained(builders.pins(pp=8, forbid=("tp",)), "fsdp")
    document = json.loads(json.dumps(explanation_document(found)))
    plan = document["plan"]
    assert plan["degrees"]["pp"] == 8
    assert sum(plan["parts_s"].values()) == pytest.approx(plan["step_time_s"])
    prices = {entry["pin"]: entry for entry in document["pins"]}
    assert prices.keys() == {"--pp 8", "--forbid tp", "all pins"}
    freed = prices["all pins"]
    assert freed["price"] > 0.0
    assert (1.0 + freed["price"]) * freed["without_step_time_s"] == pytest.approx(plan["step_time_s"])
    assert document["why_not"][0]["best"]["step_time_s"] < plan["step_time_s"]
