"""Fourteen commands: which function answers their words, and names of before, which say how to ask from now on."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from trimaran.cli import app
from trimaran.cli.forms import FORMS, STUDIES, words_of

_GROUP = typer.main.get_command(app)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.json").write_text(json.dumps({"nodes": [], "edges": []}))
    (tmp_path / "plan.json").write_text(json.dumps({"job": "digits"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "weights.safetensors").touch()
    (tmp_path / "runs").mkdir()
    return tmp_path


def answered_by(words: list[str]) -> tuple[str, list[str]]:
    """The name of the function that answers, and the words that it is given."""
    context = typer.Context(_GROUP, info_name="trimaran")
    _, command, rest = _GROUP.resolve_command(context, words)  # type: ignore[attr-defined]
    while hasattr(command, "commands"):
        _, command, rest = command.resolve_command(typer.Context(command, parent=context), rest)
    return command.callback.__name__, rest


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "function"),
    [
        ("plan digits", "plan"),
        ("plan resnet50 --cluster dgx1-v100 --output plan.json", "plan"),
        ("plan --output plan.json digits", "plan"),
        ("plan --output=plan.json digits", "plan"),
        ("plan config.json --cluster dgx-h100", "plan"),
        ("plan plan.json --trace step.json", "simulate"),
        ("plan -n 2 plan.json", "simulate"),
        ("plan damaged.json", "simulate"),
        ("plan graph.json --devices 2", "place"),
        ("plan --gap 0.1 graph.json", "place"),
        ("plan llama2:7b --cluster dgx-h100 --strategies tp8", "price"),
        ("plan llama2:7b --cluster dgx-h100 --strategy tp8", "plan"),
        ("train digits --link 1Gb/s", "train"),
        ("train --emulate digits --link 1Gb/s", "emulate"),
        ("crossover resnet50 --cluster dgx1-v100", "crossover"),
        ("crossover digits --measure", "converge"),
        ("doctor", "doctor"),
        ("doctor --measure digits", "calibrate"),
        ("observe digits --by kind", "profile"),
        ("observe --devices 2 jobs.py:mine --stalls", "profile"),
        ("observe -- python train.py digits", "observe"),
        ("observe train.py", "observe"),
        ("observe --not-again train.py digits", "observe"),
        ("export plan.json --to torchtitan", "export"),
        ("export runs --output model.pt", "export"),
        ("catalog jobs", "jobs"),
        ("catalog machines h200", "clusters"),
        ("catalog curve --list", "curve"),
        ("catalog checkpoint runs --verify", "checkpoint"),
    ],
)
def test_what_words_are_about_says_which_form_answers(words: str, function: str) -> None:
    assert answered_by(words.split())[0] == function


@pytest.mark.usefixtures("folder")
def test_an_export_of_a_folder_or_of_weights_is_that_of_a_checkpoint() -> None:
    own = _GROUP.commands["export-checkpoint"]  # type: ignore[attr-defined]
    for words in ("export runs", "export weights.safetensors --output w.pt"):
        context = typer.Context(_GROUP, info_name="trimaran")
        assert _GROUP.resolve_command(context, words.split())[1] is own  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [*FORMS, *STUDIES])
def test_a_name_of_before_says_how_to_ask(name: str) -> None:
    old = name.replace("-", " ") if name == "export-checkpoint" else name
    said = CliRunner().invoke(app, [*reversed(old.split()), "--help"], env={"COLUMNS": "80"})
    assert said.exit_code == 0
    if name in STUDIES:
        assert f"`python -m trimaran_studies {name}`" in said.stderr
    else:
        assert f"`trimaran {FORMS[name].command}" in said.stderr
    assert words_of(name)[0] in ("trimaran", "python")
    assert "Note:" not in said.stdout


def test_a_page_of_help_names_the_other_forms() -> None:
    page = CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "80"}).stdout
    for usage in ("plan PLAN.json", "plan GRAPH.json", "plan JOB --strategies"):
        assert usage in page
    assert (
        CliRunner()
        .invoke(app, ["doctor", "--measure", "--help"])
        .stdout.startswith("Usage: trimaran doctor --measure [JOB]")
    )
