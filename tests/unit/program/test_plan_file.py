import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.graphs import chain
from tests.raising import raises

from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import (
    CandidateRow,
    PlannedLink,
    check_plan,
    format_plan,
    plan_program,
    program_lines,
    read_plan,
    write_plan,
)

STRATEGY = builders.strategy(dp=2)
GRAPH = chain(3)
PREDICTION = builders.prediction(step_time_s=0.1, interval_s=(0.09, 0.12), peak_bytes=(600, 600))
PLAN = builders.plan(
    job="digits",
    strategy=STRATEGY,
    premises=builders.premises(
        graph_digest=GRAPH.digest,
        global_batch_size=8,
        devices=("one core", "one core"),
        memory_bytes=(1000, 1000),
        costs_digest="abc",
    ),
    prediction=PREDICTION,
    candidates=(
        CandidateRow(strategy=STRATEGY, verdict="chosen", prediction=PREDICTION, limiter="compute of rank 1"),
        CandidateRow(strategy=builders.strategy(), verdict="rejected", reason="needs 2000 bytes of 1000"),
    ),
    program=program_lines(lower(GRAPH, STRATEGY, batch=8)),
)


def written(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    write_plan(path, PLAN)
    return path


def edited(path: Path, change: dict[str, object], *, by_hand: bool = False) -> Path:
    plain = json.loads(path.read_text()) | change
    if by_hand:
        del plain["digest"]
    path.write_text(json.dumps(plain))
    return path


def test_a_plan_reads_back(tmp_path: Path) -> None:
    assert read_plan(written(tmp_path)) == PLAN


def test_a_plan_keeps_what_its_links_were_held_to(tmp_path: Path) -> None:
    link = builders.link(bytes_per_s=125e6, source="asked: 1Gb/s")
    premises = dataclasses.replace(PLAN.premises, link=PlannedLink.of(link))
    assert premises.rate_limit == link
    plan = dataclasses.replace(PLAN, premises=premises)
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan


def test_a_plan_that_says_nothing_of_links_was_made_for_free_ones(tmp_path: Path) -> None:
    path = written(tmp_path)
    plain = json.loads(path.read_text())
    del plain["premises"]["link"], plain["digest"]
    path.write_text(json.dumps(plain))
    assert read_plan(path) == PLAN


def test_the_same_plan_is_the_same_file(tmp_path: Path) -> None:
    first = written(tmp_path).read_bytes()
    assert written(tmp_path).read_bytes() == first
    assert format_plan(dataclasses.replace(PLAN)).encode() == first


def test_the_schema_version_is_first_and_the_program_is_lines(tmp_path: Path) -> None:
    plain = json.loads(written(tmp_path).read_text())
    assert next(iter(plain)) == "schema_version"
    assert plain["program"][0] == "program segments=1 microbatches=1 ranks=2"


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    written(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "plan.json"
    folder.mkdir()
    with raises("file.unwritable", EnvironmentProblem):
        write_plan(folder, PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_writing_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with raises("file.unwritable", EnvironmentProblem):
        write_plan(tmp_path / "none" / "plan.json", PLAN)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with raises("file.unreadable"):
        read_plan(tmp_path / "plan.json")


def test_a_truncated_file_is_corrupt(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with raises("file.not-json", CorruptDataError):
        read_plan(path)


def test_a_file_of_other_bytes_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe\x00")
    with raises("file.not-utf8", CorruptDataError):
        read_plan(path)


def test_an_edited_file_is_corrupt(tmp_path: Path) -> None:
    with raises("plan-file.digest-mismatch", CorruptDataError):
        read_plan(edited(written(tmp_path), {"job": "other"}))


def test_a_plan_made_by_hand_needs_no_digest(tmp_path: Path) -> None:
    path = edited(written(tmp_path), {"job": "other"}, by_hand=True)
    assert read_plan(path) == dataclasses.replace(PLAN, job="other")


def test_a_wrong_type_in_a_plan_made_by_hand_is_refused_with_its_path(tmp_path: Path) -> None:
    path = edited(written(tmp_path), {"strategy": {"dp": "two"}}, by_hand=True)
    with raises("file.wrong-value", match=r"`int`.*`str`.*`\$\.strategy\.dp`"):
        read_plan(path)


@pytest.mark.parametrize("name", ["workers", "ahead", "copies_ahead"])
def test_a_plan_that_would_start_any_number_of_processes_is_refused(name: str, tmp_path: Path) -> None:
    for value in (4096, 4097):
        path = edited(written(tmp_path), {"strategy": {"dp": 2, "feeding": {name: value}}}, by_hand=True)
        if value <= 4096:
            assert getattr(read_plan(path).strategy.feeding, name) == value
        else:
            with raises("strategy.too-many-workers", match=rf"feeding\.{name}\b", value=4097, most=4096):
                read_plan(path)


def test_an_unknown_key_in_a_plan_made_by_hand_is_refused_with_its_path(tmp_path: Path) -> None:
    path = edited(written(tmp_path), {"strategy": {"dp": 2, "replicas": 2}}, by_hand=True)
    with raises("file.unknown-key", match=r"`\$\.strategy\.replicas`"):
        read_plan(path)


def test_an_illegal_program_in_a_plan_made_by_hand_is_refused(tmp_path: Path) -> None:
    lines = [line for line in PLAN.program if not line.startswith("U ")]
    with raises("program.illegal", rule=12):
        read_plan(edited(written(tmp_path), {"program": lines}, by_hand=True))


def test_an_unreadable_program_is_refused_with_its_line(tmp_path: Path) -> None:
    with raises("program-text.unexpected", match=r"plan\.json.*\$\.program", line=1):
        read_plan(edited(written(tmp_path), {"program": ["nothing"]}, by_hand=True))


def test_a_program_for_other_ranks_than_the_strategy_is_refused(tmp_path: Path) -> None:
    path = edited(written(tmp_path), {"strategy": {"dp": 4}}, by_hand=True)
    with raises("plan-file.rank-mismatch", match=r"\b4\b.*\b2\b"):
        read_plan(path)


def test_the_program_of_a_plan_is_that_of_its_strategy() -> None:
    assert plan_program(PLAN) == lower(GRAPH, STRATEGY, batch=8)


def test_what_it_was_made_for_is_accepted() -> None:
    check_plan(PLAN, graph_digest=GRAPH.digest, world_size=2, memory_bytes=(1000, 1000), global_batch_size=8)


@pytest.mark.parametrize(
    ("now", "figures"),
    [
        ({"graph_digest": "fedc"}, {"match": "fedc"}),
        ({"world_size": 4}, {"match": r"\b2\b.*\b4\b"}),
        ({"global_batch_size": 16}, {"match": r"\b8\b.*\b16\b"}),
        ({"memory_bytes": (1000, 500)}, {"match": r"rank 1: 1000 B.*\b500 B.*\b600 B"}),
    ],
)
def test_what_changed_is_said(now: dict[str, object], figures: dict[str, Any]) -> None:
    with raises("plan.outdated", **figures):
        check_plan(PLAN, **now)  # type: ignore[arg-type]


def test_everything_that_changed_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        check_plan(PLAN, graph_digest="fedc", world_size=4)
    assert len(caught.value.figures["changed"]) == 2  # type: ignore[arg-type]


def test_less_memory_than_planned_is_accepted_where_the_prediction_fits() -> None:
    check_plan(PLAN, memory_bytes=(700, 5000))


def test_without_a_prediction_of_memory_less_than_planned_is_refused() -> None:
    plan = dataclasses.replace(PLAN, prediction=builders.prediction(step_time_s=0.1, interval_s=(0.09, 0.12)))
    with raises("plan.outdated", match=r"rank 0.*\b1000 B.*\b700 B.*\b1000 B"):
        check_plan(plan, memory_bytes=(700, 5000))


def test_a_plan_with_homes_comes_back_as_it_was(tmp_path: Path) -> None:
    homes = builders.strategy(dp=2, sync="p2p")
    plan = dataclasses.replace(PLAN, strategy=homes, program=program_lines(lower(GRAPH, homes, batch=8)))
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(("degree", "value"), [("dp", 10**9), ("dp", 0), ("tp", -1), ("microbatches", 2**62)])
def test_degrees_that_no_machine_has_are_refused(tmp_path: Path, degree: str, value: int) -> None:
    """Before there is a value for each rank of them."""
    plain = json.loads(written(tmp_path).read_text())
    strategy = plain["strategy"] | {degree: value}
    with raises("plan-file.degree-out-of-range", match=rf"strategy\.{degree} is {value}", degree=value):
        read_plan(edited(tmp_path / "plan.json", {"strategy": strategy}, by_hand=True))


def test_a_plan_of_many_ranks_reads_back_and_one_that_would_not_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of 128 ranks was written with 33 MiB, of which half could be read."""
    row = CandidateRow(strategy=STRATEGY, verdict="rejected", reason="x" * 17 * 2**20)
    long = dataclasses.replace(PLAN, candidates=(row,))
    write_plan(tmp_path / "long.json", long)
    assert read_plan(tmp_path / "long.json") == long
    monkeypatch.setattr("trimaran.program.plan_file.MOST_PLAN_BYTES", 2**20)
    with raises("plan-file.too-long", match="plan for fewer devices"):
        write_plan(tmp_path / "longer.json", long)
    assert not (tmp_path / "longer.json").exists()
