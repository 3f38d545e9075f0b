"""A refusal for lack of memory names what fits; each way is a command whose plan fits devices and hosts by `price`."""

import json
import shlex
from typing import Any

import pytest
from tests.raising import raises
from tests.unit.planning import own_models
from typer.testing import CliRunner

from trimaran.base.errors import InfeasibleError
from trimaran.base.remedies import CATALOGUE
from trimaran.cli import app
from trimaran.graph.behaviour import TOO_LARGE
from trimaran.graph.capture import capture
from trimaran.planning.plan import make_plan
from trimaran.planning.refusals import SLOWEST
from trimaran.planning.requests import parse_request

QUESTIONS = (
    "llama3.2:1b --cluster rtx-4090 --batch 16",
    "llama3.2:1b --cluster rtx-3060 --batch 16",
    "llama3.2:1b --cluster t4 --batch 8",
    "llama3.2:1b --cluster 2xrtx-3090 --batch 16 --strategy 'dp2 zero2'",
    "llama3.2:3b --cluster rtx-3090 --batch 16",
    "llama3.2:3b --cluster l4 --batch 8",
    "gpt2:774m --cluster rtx-3080 --batch 16 --recompute none",
    "gpt2:1.5b --cluster rtx-4060 --batch 16",
    "qwen3:4b --cluster rtx-3070 --batch 8",
    "llama2:7b --cluster 4xa10g --batch 32",
    "mistral:7b --cluster rtx-a6000 --batch 16",
    "llama3:8b --cluster 4xrtx-4090 --batch 64",
    "llama3:8b --cluster 4xrtx-4090 --batch 64 --allow optimizer-offload",
    "llama3:8b --cluster 4xrtx-4090 --batch 64 --strategy 'tp4 recompute offload'",
    "llama3:8b --cluster 8xrtx-4090 --batch 64 --forbid tp --forbid pp --forbid memory",
    "llama3:8b --cluster 2xl40s --batch 16",
    "llama2:13b --cluster 4xl4 --batch 32",
    "qwen2.5:14b --cluster 2xa40 --batch 16",
    "llama3:70b --cluster 8xa40 --batch 64",
    "llama3:70b --cluster rtx-3060 --batch 8",
)
"""Of people with too little memory."""

SOME = tuple(QUESTIONS[number] for number in (0, 3, 6))

TRACED = (
    "alexnet --cluster gtx-980 --batch 64 --memory 700MiB",
    "text-gpt --cluster gtx-980 --batch 64 --memory 2MiB",
    "bert:base --cluster gtx-980 --batch 32 --memory 1GiB",
    "resnet50 --cluster rtx-3060 --batch 64 --memory 320MiB",
    "gpt2:774m --cluster rtx-3070 --batch 8 --software pytorch",
)
"""Of models that are traced; most are small, so that a limit makes the memory small too."""


BOUND = (
    "mixtral:8x7b --cluster dgx-h100:2 --batch 16 --to accelerate",
    "llama3.2:1b --cluster rtx-4060 --batch 16 --to accelerate",
    "llama2:13b --cluster 4xl4 --batch 32 --to torchtitan --pp 4",
    "mixtral:8x7b --cluster dgx-a100 --batch 16 --to pytorch",
)
"""For a runtime by name."""


def answered(words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command without its program."""
    found = CliRunner().invoke(app, [*shlex.split(words), "--json"])
    return found.exit_code, json.loads(found.stdout)


def ways_of(question: str) -> list[dict[str, Any]]:
    code, document = answered(f"plan {question}")
    assert code == 3, document
    ways = document["error"]["ways"]
    assert len(ways) >= 2, document["error"]
    steps = [way["step_time_s"] for way in ways]
    assert steps == sorted(steps)
    return ways  # type: ignore[no-any-return]


def priced(command: str, plan: dict[str, Any]) -> dict[str, Any]:
    """The price of a plan's strategy by the options that both commands have."""
    words = shlex.split(command)[2:]
    given = dict(zip(words[1::2], words[2::2], strict=True))
    kept = {name: given[name] for name in ("--cluster", "--batch", "--sequence", "--memory") if name in given}
    options = shlex.join([word for pair in kept.items() for word in pair])
    code, document = answered(f"price {words[0]} {options} --strategy '{plan['chosen']['strategy']}'")
    assert code == 0, document
    return document


@pytest.mark.parametrize(
    "question", [pytest.param(one, marks=[] if one in SOME else [pytest.mark.sweep]) for one in QUESTIONS]
)
def test_each_way_out_is_a_command_whose_plan_fits_devices_and_hosts(question: str) -> None:
    found = []
    for way in ways_of(question):
        code, plan = answered(way["command"].removeprefix("trimaran "))
        assert code == 0, (way["command"], plan)
        price = priced(way["command"], plan)
        assert price["fits"], (way["command"], price)
        assert price["peak_bytes"] <= price["memory_limit_bytes"]
        assert not price["host_bytes"] or price["host_bytes"] <= price["host_limit_bytes"]
        assert price["step_time_s"] <= way["step_time_s"] * 1.0001
        found.append(price["step_time_s"])
    assert max(found) <= SLOWEST * min(found)


@pytest.mark.parametrize(
    "question", [pytest.param(one, marks=[] if one == BOUND[0] else [pytest.mark.sweep]) for one in BOUND]
)
def test_each_way_out_for_a_runtime_is_planned_for_that_one_or_says_that_it_is_not(question: str) -> None:
    names = [way["name"] for way in ways_of(question)]
    assert not any("--forbid" in name for name in names), f"what {question} did not say is to be left out"
    for way in ways_of(question):
        code, plan = answered(way["command"].removeprefix("trimaran "))
        assert code == 0, (way["command"], plan)
        assert ("--to" in way["command"]) == ("--to" not in way["name"])
        assert plan["chosen"]["peak_bytes"] <= plan["memory_limit_bytes"]
        assert plan["chosen"]["step_time_s"] <= way["step_time_s"] * 1.0001


@pytest.mark.sweep
def test_all_kinds_of_ways_occur() -> None:
    kinds = {way["id"] for question in QUESTIONS for way in ways_of(question)}
    all_kinds = {"shorter-sequence", "8-bit-optimizer", "offload", "recompute", "fewer-pins", "more-devices"}
    assert kinds == all_kinds | {"larger-device"}
    assert kinds <= CATALOGUE.keys()


@pytest.mark.parametrize(
    "question", [pytest.param(one, marks=[] if one == TRACED[0] else [pytest.mark.sweep]) for one in TRACED]
)
def test_traced_models_have_the_same_table(question: str) -> None:
    ways = ways_of(question)
    assert {"more-devices", "larger-device"} & {way["id"] for way in ways}
    code, plan = answered(ways[0]["command"].removeprefix("trimaran "))
    assert code == 0
    assert plan["chosen"]["peak_bytes"] <= plan["memory_limit_bytes"]


def test_what_was_assumed_is_said() -> None:
    """A generic host of four cards is taken to have 128 GiB, and a Llama 3 sequences of 8,192 tokens."""
    question = "plan llama3:8b --cluster 4xrtx-4090 --batch 64 --allow optimizer-offload"
    _, document = answered(question)
    error = document["error"]
    assert (error["sequence"], error["host_memory_bytes"]) == (8192, 128 * 2**30)
    for told in ("8,192 tokens (--sequence)", "128.0 GiB", "host_memory="):
        assert told in error["message"]
    asked = parse_request(cluster="4xrtx-4090", batch=64, sequence=8192)
    with raises("analytical.nothing-fits", InfeasibleError) as caught:
        make_plan("llama3:8b", asked)
    assert "Assumed" not in caught.value.message
    assert len(caught.value.figures["ways"]) >= 2


def test_the_page_has_a_table_and_the_commands() -> None:
    found = CliRunner().invoke(app, shlex.split(f"plan {QUESTIONS[0]}"))
    assert found.exit_code == 3
    lines = found.stderr.splitlines()
    commands = [line for line in lines if line.startswith("trimaran plan ")]
    assert len(commands) >= 2
    assert any(line.split()[:1] == ["with"] and "step" in line for line in lines)


OWN = {"cnn": "8MiB", "encoder": "3MiB", "unet": "2MiB", "lstm": "1MiB", "decoder": "2MiB"}
"""Models of a user's own (`own_models.py`), with limits that make the memory too small."""


@pytest.mark.parametrize("name", [pytest.param(one, marks=[] if one == "lstm" else [pytest.mark.sweep]) for one in OWN])
def test_each_way_out_for_a_model_of_ones_own_is_planned_and_fits(name: str) -> None:
    ways = ways_of(f"{own_models.__file__}:{name} --cluster gtx-980 --batch 16 --memory {OWN[name]}")
    for way in ways:
        code, plan = answered(way["command"].removeprefix("trimaran "))
        assert code == 0, (way["command"], plan)
        assert plan["chosen"]["peak_bytes"] <= plan["memory_limit_bytes"]
    assert ways[-1]["step_time_s"] <= SLOWEST * ways[0]["step_time_s"]


def test_a_model_that_this_machine_does_not_hold_is_planned_without_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the plan says that nobody looked whether its parts add up."""
    monkeypatch.setattr(capture, "memory_bytes", lambda: 1000)
    code, plan = answered(f"plan {own_models.__file__}:never_made --cluster 2xgtx-980 --batch 16 --dp 2")
    assert code == 0, plan
    assert any(TOO_LARGE in note for note in plan["notes"])
