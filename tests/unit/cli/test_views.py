"""What commands say in JSON and in words, of plans by the costs of `tests/builders.py`."""

import dataclasses
import functools
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tests import builders
from tests.builders import problem
from tests.unit.report.runs import PROGRAM, measured, predicted

from trimaran.base.job import Job
from trimaran.cli.output import console, set_verbosity
from trimaran.cli.views.plans import print_trained
from trimaran.features.training.rank import Epoch, TrainOptions
from trimaran.features.training.run_record import RunDirectory
from trimaran.features.training.trackers import name_of_metric
from trimaran.features.training.train import FinishedTraining
from trimaran.graph.behaviour import WholeMetric
from trimaran.jobs.resolve import JobSource
from trimaran.planner.epoch import EpochData
from trimaran.planner.explanation.explain import SimulatedCase, explain, read_family
from trimaran.planner.explanation.what_if import parse_change
from trimaran.planner.problem import Problem
from trimaran.planner.search import search
from trimaran.planning.answer.documents import plan_document
from trimaran.planning.answer.explained import Explained, explanation_document, print_explanation
from trimaran.planning.answer.pages import simulation_document
from trimaran.planning.answer.results import Planned
from trimaran.planning.answer.written_plans import predict
from trimaran.program.plan_file import program_lines
from trimaran.report.comparison import compare
from trimaran.report.run_report import run_report

GIGABIT = builders.link(bytes_per_s=125e6, source="asked: 1Gb/s")


def epochs() -> Problem:
    """An epoch is 10 steps of 60.0 ms on two replicas; links are said to be held."""
    given = problem()
    cluster = builders.linked(given.cluster, link=GIGABIT)
    return dataclasses.replace(given, cluster=cluster, epoch=EpochData(samples=80, drop_last=True))


def planned(given: Problem) -> Planned:
    found = search(given)
    chosen = found.chosen
    job = Job(
        model=dict,  # type: ignore[arg-type]  # never made
        loss=None,
        optimizer=dict,  # type: ignore[arg-type]
        dataset=dict,  # type: ignore[arg-type]
        global_batch_size=given.batch,
        name="a [red] job",
    )
    premises = builders.premises(graph_digest="", global_batch_size=given.batch, devices=("core",), memory_bytes=(1,))
    return builders.planned(
        source=JobSource(reference="file.py:make"),
        job=job,
        graph=given.graph,
        cluster=given.cluster,
        table=given.table,
        plan=builders.plan(
            job="file.py:make",
            strategy=chosen.strategy,
            premises=premises,
            prediction=predict(chosen),
            program=program_lines(chosen.program),
        ),
        chosen=chosen,
        search=found,
    )


def explained(given: Problem) -> Explained:
    made = planned(given)
    found = made.simulated.search
    assert found is not None
    changes = [parse_change("compute=x2")]
    explanation = explain(SimulatedCase(problem=given, found=found, why_not=[read_family("[pp]")], changes=changes))
    return Explained(planned=made, found=found, explanation=explanation)


def test_a_simulation_says_of_what_it_is() -> None:
    document = simulation_document(planned(epochs()))
    assert {name: document[name] for name in ("job", "global_batch_size", "link", "objective", "strategy")} == {
        "job": "file.py:make",
        "global_batch_size": 8,
        "link": "1 Gb/s",
        "objective": "epoch",
        "strategy": "dp2",
    }
    plain = simulation_document(planned(problem()))
    assert (plain["link"], plain["objective"]) == (None, "throughput")


def test_speed_is_that_against_one_device() -> None:
    """98.5 ms against 60.0 ms."""
    chosen = plan_document(planned(problem()))["chosen"]
    assert chosen["speedup"] == pytest.approx(98.5 / 60.0, abs=0.01)
    assert chosen["degrees"]["dp"] == 2
    assert chosen["samples_per_s"] == pytest.approx(8 / chosen["step_time_s"])


def test_an_explanation_says_by_what_it_compares() -> None:
    document = explanation_document(explained(epochs()))
    assert (document["link"], document["objective"]) == ("1 Gb/s", "epoch")
    plan, alternative, change = document["plan"], document["alternatives"][0], document["what_if"][0]
    assert plan["epoch_s"] > plan["step_time_s"]
    assert alternative["slower"] == pytest.approx(alternative["epoch_s"] / plan["epoch_s"] - 1)
    assert change["gain"] == pytest.approx(1 - change["epoch_s"] / plan["epoch_s"])
    plain = explanation_document(explained(problem()))
    assert (plain["link"], plain["objective"], plain["plan"]["epoch_s"]) == (None, "throughput", None)


def test_an_explanation_names_links_and_keeps_brackets_as_they_are() -> None:
    text = io.StringIO()
    print_explanation(Console(file=text, width=80), explained(epochs()))
    words = " ".join(text.getvalue().split())
    assert "a [red] job on 2 devices: dp2, " in words
    assert "an epoch, 60.0 ms a step" in words
    assert "Global batch 8 over 1 Gb/s." in words
    assert "Why not [pp]?" in words


def test_a_training_that_was_over_says_so_and_how_to_train_more(capsys: pytest.CaptureFixture[str]) -> None:
    done = tuple(Epoch(epoch=number, loss=1.0, accuracy=None, seconds=1.0, samples=64) for number in (1, 2))
    report: Any = SimpleNamespace(comparison=None, samples_per_s=None, final={})
    planned: Any = SimpleNamespace(source=JobSource(reference="digits", epochs=2))
    for before, said in (
        (2, "Nothing was left to train: 2 epochs had been done before. To train more: trimaran train digits --resume "),
        (1, "Trained 1 epoch more, 2 in all."),
        (0, "Trained 2 epochs."),
    ):
        trained = FinishedTraining(
            run=RunDirectory(path=Path("runs/new")),
            planned=planned,
            epochs=done,
            epochs_before=before,
            report=report,
            options=TrainOptions(resume=Path("runs/old")),
        )
        print_trained(console(), trained)
        printed = capsys.readouterr().out
        assert said in printed
        assert ("--resume runs/old --epochs 4" in printed) == (before == 2)


def test_a_metric_has_the_name_of_its_function(capsys: pytest.CaptureFixture[str]) -> None:
    """An F1 was called accuracy."""

    def f1_score(*_: object) -> float:
        return 0.5

    assert name_of_metric(WholeMetric(f1_score)) == name_of_metric(functools.partial(f1_score, 1)) == "f1 score"
    assert name_of_metric(lambda *_: 0.5) == name_of_metric(None) == "metric"
    epoch = Epoch(epoch=1, loss=1.0, accuracy=0.5, seconds=1.0, samples=64)
    planned: Any = SimpleNamespace(source=JobSource(reference="digits", epochs=1))
    report: Any = SimpleNamespace(comparison=None, samples_per_s=None, final={"accuracy": 0.5})
    run, metric = RunDirectory(path=Path("runs/new")), name_of_metric(f1_score)
    print_trained(console(), FinishedTraining(run=run, planned=planned, epochs=(epoch,), metric=metric, report=report))
    said = capsys.readouterr().out
    assert said.count("f1 score 0.5000") == 2
    assert "accuracy" not in said


def test_quietly_a_training_says_what_it_has_reached_too(capsys: pytest.CaptureFixture[str]) -> None:
    """After the verdict of its plan, which has ended with an empty line."""
    epoch = Epoch(epoch=1, loss=1.0, accuracy=None, seconds=1.0, samples=64)
    planned: Any = SimpleNamespace(source=JobSource(reference="digits", epochs=1))
    report: Any = SimpleNamespace(comparison=None, samples_per_s=None, final={})
    run = RunDirectory(path=Path("runs/new"))
    set_verbosity(quiet=True)
    try:
        out = console()
        out.print("The plan.\n\nIts candidates.")
        print_trained(out, FinishedTraining(run=run, planned=planned, epochs=(epoch,), report=report))
    finally:
        set_verbosity()
    assert capsys.readouterr().out == "The plan.\nTrained 1 epoch.\n"


def test_a_training_has_the_step_of_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks differ: 10 s in the mean, which the report and its page show; the slowest rank is in the table."""
    comparison = compare(PROGRAM, predicted(), measured(6))
    first, second = comparison.ranks
    slower = dataclasses.replace(second, measured=dataclasses.replace(second.measured, step_s=14.0))
    compared = dataclasses.replace(comparison, ranks=(first, slower))
    report = run_report(
        job="digits",
        strategy=builders.strategy(pp=2, boundaries=("conv2",), schedule="1f1b", microbatches=4),
        prediction=builders.prediction(step_time_s=9.0, interval_s=(8.5, 9.5), peak_bytes=(150, 260)),
        comparison=compared,
    )
    planned: Any = SimpleNamespace(source=JobSource(reference="digits", epochs=2))
    run = RunDirectory(path=Path("runs/new"))
    print_trained(console(), FinishedTraining(run=run, planned=planned, report=report, comparison=compared))
    said = " ".join(capsys.readouterr().out.split())
    assert "A step took 10.0 s, predicted 9.00 s." in said
    assert "a step took 10.0 s and was predicted at 9.00 s" in report._repr_html_()
