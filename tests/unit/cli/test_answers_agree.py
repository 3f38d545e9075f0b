"""Plan, explanation and simulation give one account of a step, the useful part first."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trimaran.cli import app
from trimaran.program.plan import plan_path

_ASKED = ("lenet", "--cluster", "dgx1-v100", "--devices", "2", "--batch", "4096")


def said(*command: str) -> str:
    found = CliRunner().invoke(app, list(command), env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.output
    return found.stdout


def limit(page: str) -> str:
    """The sentence on what limits a step, however it is wrapped."""
    whole = " ".join(page.split())
    return next(
        iter(re.findall(r"limited by [^.]*: [\d.]+ \S+, \d+ % of the step[^.]*\.", whole, re.IGNORECASE))
    ).lower()


def test_plan_explanation_and_simulation_name_one_bottleneck_with_one_share() -> None:
    plan, why, step = (said(command, *_ASKED) for command in ("plan", "explain", "simulate"))
    assert limit(plan) == limit(why) == limit(step)
    document = json.loads(said("explain", *_ASKED, "--json"))
    assert document["plan"]["binding"] == limit(plan)
    assert document["plan"]["limiter"].split(",")[0] in limit(plan)


def test_an_explanation_begins_with_the_plan_and_ends_with_what_was_rejected_by_count() -> None:
    page = said("explain", *_ASKED)
    order = [
        "lenet on 2 devices: ",
        "Limited by ",
        "What the step is made of",
        "Remedies",
        "What a change",
        "Runners-up",
    ]
    places = [page.index(part) for part in order]
    assert places == sorted(places)
    rejected = json.loads(said("explain", *_ASKED, "--json"))["rejected"]
    assert len(rejected) > 1
    assert page.index("rejected: ") > places[-1]
    whole = said("explain", *_ASKED, "--verbose")
    one = next(entry["strategy"] for entry in rejected if entry["cause"] == "bound")
    assert one in " ".join(whole.split())
    assert one not in " ".join(page.split())


@pytest.mark.parametrize("command", ["plan", "scale", "memory"])
def test_an_answer_ends_with_the_next_command(command: str) -> None:
    asked = {
        "plan": _ASKED,
        "scale": ("lenet", "--cluster", "dgx1-v100", "--devices", "1,8"),
        "memory": ("lenet", "--device", "titan-x", "--no-largest-batch"),
    }[command]
    last = said(command, *asked).rpartition("\nNext")[2]
    assert re.match(r"(, [^:]*)?: trimaran \w+ lenet ", last)


def test_a_cluster_without_a_number_of_nodes_grows_to_its_devices() -> None:
    asked = ("lenet", "--cluster", "dgx1-v100", "--devices", "16", "--batch", "4096")
    found = CliRunner().invoke(app, ["plan", *asked, "--json"])
    assert found.exit_code == 0
    assert "dgx1-v100:2" in found.stderr
    assert json.loads(found.stdout)["devices"] == 16
    counted = ("lenet", "--cluster", "dgx1-v100:1", "--devices", "16", "--batch", "4096")
    refused = CliRunner().invoke(app, ["plan", *counted, "--json"])
    assert json.loads(refused.stdout)["error"]["code"] == "machine.too-few-devices"


def test_a_configuration_is_a_job_where_a_plan_file_may_stand_too(tmp_path: Path) -> None:
    configuration, plan = tmp_path / "config.json", tmp_path / "plan.json"
    configuration.write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    plan.write_text(json.dumps({"schema_version": 3, "kind": "plan", "model_type": "of a plan"}))
    assert plan_path(str(configuration)) is None
    assert plan_path(str(plan)) == plan
    assert plan_path(str(tmp_path / "missing.json")) == tmp_path / "missing.json"
