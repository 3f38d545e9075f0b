"""Options that are declared in groups mean what the functions that read them mean."""

import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from trimaran.base.errors import InputError
from trimaran.cli import app
from trimaran.cli.options import (
    PinOptions,
    PlanOptions,
    RequestOptions,
    RunOptions,
    SearchOptions,
    TargetOptions,
    with_sequence,
)
from trimaran.planner.pins import Pins, parse_pins
from trimaran.planning.requests import PlanRequest, parse_request, parse_target
from trimaran.pricing.failures import parse_reliability

_TAKES_THE_REST = {parse_pins: Pins, parse_request: PlanRequest, parse_target: parse_reliability}
_OTHER_NAMES = {"vp": "chunks", "micro_batch": "microbatch"}


@pytest.mark.parametrize(
    ("group", "reader"),
    [
        (PinOptions, parse_pins),
        (RequestOptions, parse_request),
        (SearchOptions, parse_request),
        (TargetOptions, parse_target),
        (RunOptions, parse_target),
        (PlanOptions, parse_request),
    ],
)
def test_a_group_has_the_names_and_the_defaults_of_its_reader(group: type, reader: Callable[..., Any]) -> None:
    # What a reader does not name goes by name to the value that it makes, or to the reader of a part of it.
    known = dict(inspect.signature(reader).parameters) | dict(inspect.signature(_TAKES_THE_REST[reader]).parameters)
    for field in dataclasses.fields(group):
        name = _OTHER_NAMES.get(field.name, field.name)
        assert name in known
        # Options that come several times have no value where none came.
        assert field.default == (known[name].default or None) or field.default == known[name].default


@pytest.mark.parametrize("command", ["plan", "explain", "train", "simulate"])
def test_a_command_with_groups_refuses_what_is_no_option(command: str) -> None:
    found = CliRunner().invoke(app, [command, "digits", "--dp", "two"])
    assert found.exit_code == 2
    assert "--dp" in found.output
    assert CliRunner().invoke(app, [command, "digits", "--pins", "x"]).exit_code == 2


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [
        ("torchrun", {"RANK": "0", "WORLD_SIZE": "2"}),
        ("Slurm", {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}),
    ],
)
def test_train_is_refused_where_a_launcher_has_started_several(launcher: str, variables: dict[str, str]) -> None:
    """Each would start its own ranks and train a whole run."""
    done = CliRunner().invoke(app, ["train", "digits", "--json"], env=variables)
    assert done.exit_code == 2
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["launcher"], error["size"]) == ("train.started-by-launcher", launcher, 2)


@pytest.mark.parametrize("command", ["plan", "price", "explain", "simulate", "memory", "scale", "crossover"])
def test_commands_about_other_machines_take_the_length_of_a_sequence(command: str) -> None:
    assert "--sequence" in CliRunner().invoke(app, [command, "--help"]).output


def test_a_length_is_an_option_of_the_job_and_only_of_jobs_that_have_it() -> None:
    assert with_sequence("gpt2", None) == "gpt2"
    assert with_sequence("GPT2:355m", 256) == "gpt2:355m:sequence=256"
    assert with_sequence("models/config.json:sequence=64", 512) == "models/config.json:sequence=512"
    for job in ("vgg16", "digits"):
        with pytest.raises(InputError, match="sequence"):
            with_sequence(job, 256)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("clusters dgx-h100 --device h100", "--device"),
        ("clusters --network ib-hdr", "--network"),
        ("clusters dgx-h100 --devices", "NAME"),
        ("clusters --devices --toml", "--devices"),
        ("clusters --toml", "--toml"),
        ("clusters dgx-h100 --toml --json", "--json"),
        ("profile digits --stalls --top 3", "--top"),
        ("profile digits --workers 0", "--workers"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(command: str, option: str) -> None:
    found = CliRunner().invoke(app, [*command.split(), *(() if "--json" in command else ("--json",))])
    assert found.exit_code == 2
    error = json.loads(found.stdout)["error"]
    assert (error["code"], error["option"]) == ("option.unused", option)


def test_a_list_of_machines_has_its_figures_in_json_too() -> None:
    listed = json.loads(CliRunner().invoke(app, ["clusters", "--json"]).stdout)["machines"]
    one = next(entry for entry in listed if entry["name"] == "dgx-h100")
    assert (one["cpu_cores"], one["own_links"]) == (112, "nvlink4 x18 switch")
    drawn = json.loads(CliRunner().invoke(app, ["clusters", "dgx-h100", "--json"]).stdout)["machine"]
    figures = {entry["link"]: entry for entry in drawn["figures"]}
    assert figures["nvlink4"]["bytes_per_s"] < figures["nvlink4"]["raw_bytes_per_s"] == 25e9
    assert all(entry["source"] for entry in figures.values())


@pytest.mark.parametrize(
    "words",
    [
        "rehearse --world 1 --kineto a.json --calibration b.json -- train.py",
        "scale lenet --cluster dgx1-v100 --measured c.json --kineto a.json",
        "plan llama2:7b --cluster dgx-h100 --batch 8 --strategies tp8 --strategy tp4",
    ],
)
def test_an_option_is_not_passed_over_for_another(words: str) -> None:
    found = CliRunner().invoke(app, words.split())
    assert found.exit_code == InputError.exit_code
    assert "leave one out" in found.stderr or "say one of" in found.stderr
