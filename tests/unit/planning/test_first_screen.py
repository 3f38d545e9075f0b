"""The first screen of a plan: the verdict, what was assumed and what fp32 would cost, the simplest plan that may do.

The same in JSON, on the page of that JSON and on that of a plan file.
"""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import trimaran
from trimaran.features.report_page.make import report
from trimaran.planner.choice import may_be_as_fast, simplicity
from trimaran.planning.answer.documents import plan_document
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.answer.pages import print_simulation
from trimaran.planning.answer.results import Planned
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import parse_request, parse_target
from trimaran.program.plan_file import write_plan
from trimaran.report.plans import assumption_lines
from trimaran.report.tables import page_text

LINES, COLUMNS = 24, 80


def planned(job: str, **asked: Any) -> Planned:
    target = parse_target(**asked.pop("target", {}))
    return make_plan(job, parse_request(target=target, **asked))


def screen(found: Planned) -> str:
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    return " ".join(line.strip() for line in lines[:LINES])


PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16 gradients": ("qwen3:32b", {"cluster": "dgx-h100:8", "batch": 256}),
    "remainders": ("llama3:8b", {"cluster": "dgx-h100", "batch": 64}),
    "tokens": (
        "llama2:13b",
        {"cluster": "dgx-a100:4", "batch": 256, "target": {"tokens": "1T", "price": "2 USD/gpu-hour"}},
    ),
    "counts": ("llama3:8b", {"cluster": "dgx-h100:4", "batch": 128, "target": {"tokens": "1T", "counts": (8, 16, 32)}}),
}


@pytest.fixture(scope="module", params=PLANS)
def case(request: pytest.FixtureRequest) -> tuple[str, Planned]:
    job, asked = PLANS[request.param]
    return request.param, planned(job, **asked)


def test_the_first_screen_says_what_was_assumed_and_what_is_simpler(case: tuple[str, Planned]) -> None:
    name, found = case
    text, document = screen(found), plan_document(found)
    assert f"Assumed: sequences of {document['sequence']:,} tokens (--sequence)" in text
    assert "Simplest within the uncertainty: " in text
    for line in assumption_lines(document):
        assert line in text
    types = [one for one in document["assumed"] if one["what"] in ("gradients", "optimizer-state")]
    assert bool(types) == ("fp32" in text.partition("Assumed")[2].partition("Simplest")[0])
    if name == "tokens":
        # With the price of the whole training.
        assert document["simplest"]["cost"] == pytest.approx(
            document["cost"] * (1 + document["simplest"]["slower"]), rel=0.01
        )


def test_the_simplest_is_the_simplest_of_those_that_may_be_as_fast(case: tuple[str, Planned]) -> None:
    _, found = case
    search, simplest = found.modelled.search, found.modelled.search.simplest
    assert may_be_as_fast(simplest.cases, search.chosen.cases)
    close = [one for one in (*search.candidates, *search.references) if may_be_as_fast(one.cases, search.chosen.cases)]
    assert min(map(simplicity, (one.strategy for one in close))) == simplicity(simplest.strategy)
    document = plan_document(found)
    assert document["simplest"]["strategy"] == simplest.name
    assert document["simplest"]["slower"] == pytest.approx(simplest.step_time_s / search.chosen.step_time_s - 1)


def test_types_below_fp32_come_with_the_price_of_fp32() -> None:
    asked = {"cluster": "dgx-h100", "batch": 64, "devices": 8, "memory": "79.1GiB"}
    found = planned("llama3:8b", **asked)
    document = plan_document(found)
    assert {one["what"]: one["value"] for one in document["assumed"]}["optimizer-state"] == "remainders"
    pins = parse_request(pins=type(found.request.pins)(gradients="fp32", optimizer_state="fp32"), **asked)
    whole = make_plan("llama3:8b", pins)
    assert document["in_fp32"]["step_time_s"] == pytest.approx(whole.chosen.step_time_s)
    assert document["in_fp32"]["slower"] == pytest.approx(whole.chosen.step_time_s / found.chosen.step_time_s - 1)
    # What somebody said is not assumed.
    assert not plan_document(whole)["in_fp32"]
    assert {one["what"] for one in plan_document(whole)["assumed"]} == {"sequence"}


@pytest.mark.parametrize(
    ("job", "asked", "assumed"),
    [
        ("llama3:8b", {"sequence": 4096, "batch": 64}, set()),
        ("llama3:8b:sequence=2048", {"batch": 64}, set()),
        ("llama3.2:1b", {}, {"batch", "sequence"}),
        ("lenet", {"devices": 1}, {"batch"}),
    ],
)
def test_what_was_said_is_not_assumed(job: str, asked: dict[str, Any], assumed: set[str]) -> None:
    found = plan_document(planned(job, cluster="dgx-h100", **asked))
    assert {one["what"] for one in found["assumed"] if one["what"] in ("batch", "sequence")} == assumed


def words_of(path: Path) -> str:
    text = re.sub(r"<[^>]+>", " ", path.read_text(encoding="utf-8"))
    return " ".join(unescape(text).split())


def test_pages_say_the_same(case: tuple[str, Planned], tmp_path: Path) -> None:
    name, found = case
    document = plan_document(found)
    answer, plan = tmp_path / "answer.json", tmp_path / "plan.json"
    answer.write_text(json.dumps(document), encoding="utf-8")
    write_plan(plan, found.evidence.whole_plan)
    for path in (answer, plan):
        report(path, path.with_suffix(".html"))
        text = words_of(path.with_suffix(".html"))
        for line in assumption_lines(document):
            # A plan file has no training of tokens.
            assert (line if path is answer or name not in ("tokens", "counts") else line.split(" a step")[0]) in text


def test_a_page_of_several_numbers_of_devices_compares_them(tmp_path: Path) -> None:
    for number, target in enumerate(
        (
            {"counts": (8, 16)},
            {"counts": (8, 16, 32), "tokens": "1T", "price": "2 USD/gpu-hour"},
            {"counts": (8, 32), "tokens": "1T", "price": "2 USD/gpu-hour", "spares": "2"},
        )
    ):
        document = plan_document(planned("llama3:8b", cluster="dgx-h100:4", batch=128, target=target))
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        made = report(path, path.with_suffix(".html"))
        text = words_of(path.with_suffix(".html"))
        assert "Scaling" in made.sections
        assert "Scaling" not in {title for title, _ in made.absent}
        assert "compares no numbers of devices" not in text
        table = text.partition("best plan [samples/s]")[2].partition("Where a step goes")[0]
        assert all(re.search(rf"\b{count} ", table) for count in target["counts"])
        if "tokens" in target:
            assert len(re.findall(r"[\d,]+ USD", table)) >= len(target["counts"]) * (1 + ("spares" in target))
            assert "days" in table
            assert "cheapest: " in text
            assert "1T tokens on " in made.verdict


@pytest.mark.parametrize(
    ("job", "asked"),
    [
        ("llama3.2:1b", {"batch": 16}),
        ("llama3.2:1b", {"batch": 16, "target": {"tokens": "1B", "price": "2 USD/gpu-hour"}}),
        ("lenet", {}),
    ],
)
def test_an_answer_for_one_device_never_says_ranks_exchange_or_communication(job: str, asked: dict[str, Any]) -> None:
    found = planned(job, cluster="dgx-h100", devices=1, **asked)
    told = [str(found)]
    if isinstance(found.evidence, Simulated):
        told.append(page_text(lambda out: print_simulation(out, found)))
    told.append(str(trimaran.explain(found)))
    for text in told:
        assert not re.search(r"(?i)\branks?\b|exchang|communicat|straggl", text), text
    chosen = plan_document(found)["chosen"]
    assert not any(re.search("rank|exchang|communicat", name) for name in chosen["groups_s"])
