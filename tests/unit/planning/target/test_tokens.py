"""A training of a number of tokens: days, cost and goodput by the same path as a training to a target."""

import json
import math
import textwrap
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from tests.raising import raises
from typer.testing import CliRunner

import trimaran
from trimaran.base.errors import InfeasibleError
from trimaran.cli import app
from trimaran.jobs.resolve import JobSource
from trimaran.machine.prices import parse_price
from trimaran.planner.pins import Pins
from trimaran.planner.target_estimates import TargetEstimate, choose_within
from trimaran.planning.answer.documents import plan_document
from trimaran.planning.answer.results import Planned
from trimaran.planning.plan import make_plan, obtain_plan
from trimaran.planning.requests import TargetRequest, parse_request, parse_target
from trimaran.pricing.failures import DAY_S
from trimaran.report.plans import load_lines, run_lines, target_verdict
from trimaran.report.tables import make_console

PINS = Pins(tp=1, pp=1, cp=1, zero=3, recompute="none")
TOKENS = 2e11


def planned(**asked: Any) -> Planned:
    target = {"tokens": TOKENS} | asked.pop("target", {})
    asked = {"cluster": "dgx-h100:32", "batch": 512} | asked
    request = parse_request(pins=PINS, target=parse_target(**target), **asked)
    return make_plan("llama2:7b", request)


@pytest.fixture(scope="module")
def plain() -> Planned:
    return planned(target={"price": "3 USD/device-hour"})


def test_the_time_is_that_of_the_steps_and_of_failures(plain: Planned) -> None:
    outlook = plain.outlook
    assert outlook is not None
    chosen, run = outlook.chosen, outlook.chosen.run
    assert run is not None
    updates = math.ceil(TOKENS / (512 * 4096))
    assert chosen.training is not None
    assert chosen.training.updates.amount == updates
    assert run.work_s == pytest.approx(updates * plain.chosen.step_time_s)
    assert chosen.time_s == pytest.approx(run.work_s / run.goodput)
    assert 0.9 < run.goodput < 1.0
    low, high = chosen.time_interval_s or (0.0, 0.0)
    # Wider than the step's interval: that of the failures is in it too.
    assert chosen.time_s is not None
    step_low, step, step_high = chosen.contender.cases
    assert high / chosen.time_s > step_high / step
    assert low / chosen.time_s < step_low / step
    assert run.checkpoint_bytes == pytest.approx(6.74e9 * 14, rel=0.01)


@pytest.mark.parametrize("price", ["3 USD/device-hour", "24 USD/node-hour"])
@pytest.mark.parametrize(("spares", "held"), [(None, 0), ("0", 0), ("3", 3), ("99%", 1)])
def test_only_spare_nodes_that_were_asked_for_are_paid(spares: str | None, held: int, price: str) -> None:
    found = planned(target={"price": price, "spares": spares})
    outlook, document = found.outlook, plan_document(found)
    assert outlook is not None
    assert outlook.chosen.time_s is not None
    run, hours = document["run"], outlook.chosen.time_s / 3600.0
    assert run["money"] == pytest.approx(3.0 * 256 * hours)
    assert run["device_hours"] == pytest.approx(256 * hours)
    assert run["spares_paid"] == (spares is not None)
    assert run["spares_money"] == pytest.approx(3.0 * 8 * run["spare_nodes"] * hours)
    assert document["cost"] == outlook.chosen.cost == pytest.approx(3.0 * (256 + 8 * held) * hours)
    assert run["money"] / run["money_interval"][0] == pytest.approx(document["cost"] / document["cost_interval"][0])
    lines = text_of(document)
    headline = " ".join(lines[: lines.index("")])
    assert ("spare" in headline) == bool(held)
    # What is not asked for is offered, with what it would cost.
    assert any(line.startswith("+ 1 spare node: ") for line in lines) == (spares is None)


@pytest.mark.parametrize(
    ("counts", "asked", "cheapest"),
    [((8, 64), {}, 8), ((8, 64), {"spares": "8"}, 64), ((8, 16, 64), {"spares": "0"}, 16)],
)
def test_spare_nodes_that_nobody_asked_for_decide_nothing(
    counts: tuple[int, ...], asked: dict[str, str], cheapest: int
) -> None:
    target = {"counts": counts, "price": "3 USD/device-hour", "budget": "1B USD"} | asked
    document = plan_document(planned(target=target, devices=64))
    rows = {row["devices"]: row for row in document["candidates"]}
    assert min(rows, key=lambda count: rows[count]["cost"]) == cheapest
    assert f"cheapest: {cheapest}." in " ".join(text_of(document))


def test_a_run_is_not_refused_for_spare_nodes_that_nobody_asked_for() -> None:
    broken = {"mtbf": "1d/node", "repair": "365d", "tokens": 1e13}
    assert "No spare nodes" in " ".join(text_of(plan_document(planned(cluster="dgx-h100:256", target=broken))))
    with raises("failures.repairs-too-long", InfeasibleError):
        planned(cluster="dgx-h100:256", target=broken | {"spares": "99%"})


def test_the_document_has_the_figures(plain: Planned) -> None:
    document = plan_document(plain)
    run = document["run"]
    assert run["tokens"] == TOKENS
    assert run["days"] == pytest.approx(document["time_to_accuracy_s"] / DAY_S)
    assert sum(run["parts_s"].values()) == pytest.approx(run["days"] * DAY_S)
    assert run["goodput"] == pytest.approx(run["parts_s"]["training"] / sum(run["parts_s"].values()))
    assert run["goodput_interval"][0] < run["goodput"] < run["goodput_interval"][1]
    assert (run["currency"], run["money"]) == ("USD", document["cost"])
    assert run["daly_every_s"] == pytest.approx(run["checkpoint_every_s"], rel=0.01)
    assert document["objective"] == "time"
    json.dumps(document, allow_nan=False)


def test_an_unknown_price_is_not_known() -> None:
    document = plan_document(planned())
    assert document["run"]["money"] is document["run"]["currency"] is None
    assert document["run"]["device_hours"] > 0
    assert document["cost_unit"] == "device-hours"


def test_a_budget_is_in_the_currency_of_the_price_wherever_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "rack.toml"
    file.write_text(
        '[machine]\nnodes = 32\nprice = "24 EUR/node-hour"\n[[nodes]]\nname = "own"\nlike = "dgx-h100"\nsource = "ours"'
    )
    assert plan_document(planned(cluster=str(file)))["run"]["currency"] == "EUR"
    with raises("tokens.two-currencies"):
        planned(cluster=str(file), target={"budget": "1M USD"})


def text_of(document: dict[str, Any]) -> list[str]:
    console = make_console(width=80)
    with console.capture() as captured:
        for line in (*textwrap.wrap(target_verdict(document), 80), "", *run_lines(document)):
            console.print(line, markup=False)
    assert any(isinstance(line, Table) for line in run_lines(document))
    return captured.get().splitlines()


def test_the_verdict_stands_first_within_80_columns(plain: Planned) -> None:
    lines = text_of(plan_document(plain))
    assert lines[0].startswith("200B tokens on 256 devices: ")
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    assert "goodput" in text
    assert "USD" in text
    assert "spare node" in text
    assert "cost not known" in " ".join(text_of(plan_document(planned())))


def test_given_failures_and_storage_count() -> None:
    given = {"mtbf": "2 days/node", "checkpoint_rate": "1 GB/s", "restart": "30min", "repair": "2h"}
    bad = plan_document(planned(target=given))["run"]
    assert bad["mean_time_between_failures_s"] == pytest.approx(2 * DAY_S / 32)
    assert bad["mean_time_between_failures_interval_s"] == pytest.approx([2 * DAY_S / 32] * 2)
    assert bad["checkpoint_write_s"] == pytest.approx(bad["checkpoint_bytes"] / 1e9)
    assert bad["restart_s"] == pytest.approx(1800 + bad["checkpoint_bytes"] / 1e9)
    assert set(bad["sources"].values()) == {"given"}
    waits = plan_document(planned(target=given | {"checkpoint_waits": True}))["run"]
    assert waits["checkpoint_stall_s"] == pytest.approx(waits["checkpoint_write_s"])
    assert waits["goodput"] < bad["goodput"] < 0.9


def test_failures_that_leave_no_progress_are_said() -> None:
    with raises("failures.no-progress", InfeasibleError):
        planned(target={"mtbf": "1h/node", "restart": "3h"})


def test_numbers_of_devices_are_compared() -> None:
    found = planned(target={"counts": (64, 128, 256), "days": 3.0, "price": "3 USD/device-hour"}, devices=256)
    document = plan_document(found)
    rows = {row["devices"]: row for row in document["candidates"]}
    assert sorted(rows) == [64, 128, 256]
    within = {count for count, row in rows.items() if row["time_to_accuracy_s"] <= 3.0 * DAY_S}
    assert document["limits"] == {"days": 3.0, "budget": None, "met": bool(within)}
    assert within
    cheapest = min(within, key=lambda count: rows[count]["cost"])
    assert document["devices"] == cheapest
    lines = text_of(document)
    assert lines[0].startswith("Within 3 days: ")
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("*") and str(cheapest) in line for line in lines)


def test_nothing_within_the_limits_is_said_first() -> None:
    found = planned(target={"counts": (64, 128), "days": 0.1}, devices=128)
    document = plan_document(found)
    assert document["limits"]["met"] is False
    assert document["devices"] == 128
    assert text_of(document)[0].startswith("Nothing is within 0.1 days")


def estimates() -> list[TargetEstimate]:
    from tests.unit.planner.target.estimates import contender

    figures = [(8, 100.0, 10.0), (16, 60.0, 12.0), (32, 40.0, 20.0)]
    return [
        TargetEstimate(contender=contender(devices=count), time_s=time_s, cost=cost) for count, time_s, cost in figures
    ]


@pytest.mark.parametrize(
    ("within_s", "budget", "devices", "met"),
    [
        (70.0, None, 16, True),
        (1000.0, None, 8, True),
        (30.0, None, 32, False),
        (None, 15.0, 16, True),
        (None, 1.0, 8, False),
        (50.0, 25.0, 32, True),
        (50.0, 15.0, 32, False),
    ],
)
def test_the_choice_within_limits(within_s: float | None, budget: float | None, devices: int, met: bool) -> None:
    chosen, is_met = choose_within(estimates(), within_s=within_s, budget=budget)
    assert (chosen.devices, is_met) == (devices, met)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"curve": "resnet50", "tokens": "1T"}, "tokens.and-curve"),
        ({"days": 30.0}, "tokens.length-unknown"),
        ({"mtbf": "3 days/node"}, "tokens.length-unknown"),
        ({"budget": "1M USD"}, "tokens.length-unknown"),
        ({"tokens": "1T", "days": -1.0}, "target.bad-amount"),
        ({"tokens": "many"}, "quantity.not-a-number"),
        ({"tokens": "0"}, "quantity.not-a-number"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], code: str) -> None:
    with raises(code):
        parse_request(target=parse_target(**options))


def test_what_no_plan_can_answer_is_refused() -> None:
    target = TargetRequest(tokens=1e9)
    with raises("tokens.needs-cluster"):
        trimaran.plan("digits", target=target)
    with raises("tokens.not-a-decoder"):
        trimaran.plan("resnet50", cluster="dgx-h100", target=target)
    with raises("tokens.counts-need-cluster"):
        trimaran.plan("digits", devices=[1, 2])
    with raises("tokens.budget-without-price"):
        planned(target={"budget": "1M USD"})
    with raises("tokens.two-currencies"):
        planned(target={"budget": "1M EUR", "price": "3 USD/device-hour"})
    with raises("lengths.not-a-decoder"):
        trimaran.plan("resnet50", cluster="dgx-h100", lengths="512:1")
    with raises("experts.none"):
        trimaran.plan("llama2:7b", cluster="dgx-h100", expert_imbalance=2.0)
    for degrees in ({"ep": 2}, {"etp": 2}):
        with raises("analytical.option-unsupported"):
            trimaran.plan("llama2:7b", cluster="dgx-h100:16", pins=Pins(**degrees))
    with raises("tokens.and-epochs"):
        parse_request(target=parse_target(tokens="1T", samples_per_epoch=1000))
    with raises("experts.bad-imbalance"):
        trimaran.plan("llama2:7b", cluster="dgx-h100", expert_imbalance=0.5)
    with raises("lengths.packing-alone"):
        trimaran.plan("llama2:7b", cluster="dgx-h100", packing="padded")


def test_padding_is_not_trained_on() -> None:
    lengths = "512:0.5,4096:0.5"
    packed = planned(lengths=lengths, packing="packed")
    padded = planned(lengths=lengths, packing="padded")
    updates = {}
    for name, found in (("packed", packed), ("padded", padded)):
        assert found.outlook is not None
        assert found.outlook.chosen.training is not None
        updates[name] = found.outlook.chosen.training.updates.amount
    assert updates["packed"] == math.ceil(TOKENS / (512 * 4096))
    assert updates["padded"] == math.ceil(TOKENS / (512 * 2304))


def test_the_interface_takes_tokens_and_several_numbers_of_devices() -> None:
    found = trimaran.plan(
        "llama2:7b",
        cluster="dgx-h100:32",
        devices=[128, 256],
        batch=512,
        tokens="200B",
        pins=PINS,
        target=TargetRequest(
            price=parse_price("3 USD/device-hour"), reliability=trimaran.Reliability(mtbf_s=365 * DAY_S)
        ),
    )
    assert found.outlook is not None
    assert {one.devices for one in found.outlook.estimates} == {128, 256}
    assert found.outlook.chosen.run is not None
    assert found.outlook.tokens == 2e11


def test_the_command_says_the_same() -> None:
    words = "plan llama2:7b --cluster dgx-h100:32 --batch 512 --tp 1 --pp 1 --zero 3 --tokens 200B --json"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["run"]["tokens"] == 2e11
    refused = CliRunner().invoke(app, ["plan", "llama2:7b", "--cluster", "dgx-h100:32", "--days", "3", "--json"])
    assert json.loads(refused.stdout)["error"]["code"] == "tokens.length-unknown"


def test_an_explanation_names_the_wait_for_unequal_documents() -> None:
    words = "explain llama2:7b --cluster dgx-h100:16 --batch 256 --dp 1 --lengths 512:0.6,4096:0.4"
    done = CliRunner().invoke(app, [*words.split(), "--why-not", "fsdp"])
    assert done.exit_code == 0, done.output
    assert "unequal documents" in done.stdout


def test_a_plan_that_is_made_takes_no_documents(tmp_path: Any) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    request = parse_request(cluster="dgx-h100", lengths="512:1", expert_imbalance=2.0)
    with raises("plan.option-needs-new-plan"):
        obtain_plan(JobSource(reference="llama2:7b"), request, path=path)


def test_plans_with_experts_say_what_unequal_loads_do() -> None:
    asked = {"cluster": "dgx-h100:16", "batch": 256, "pins": Pins(pp=4, tp=1, cp=1, ep=8)}
    plain = plan_document(make_plan("mixtral:8x7b", parse_request(**asked)))
    loads = plain["expert_loads"]
    assert [row["imbalance"] for row in loads] == [1.0, 2.0, 4.0]
    assert [row["planned"] for row in loads] == [True, False, False]
    assert loads[0]["step_time_s"] == pytest.approx(plain["chosen"]["step_time_s"])
    assert loads[0]["step_time_s"] < loads[1]["step_time_s"] < loads[2]["step_time_s"]
    assert loads[0]["peak_bytes"] < loads[1]["peak_bytes"] < loads[2]["peak_bytes"]
    planned_for = plan_document(make_plan("mixtral:8x7b", parse_request(**asked, expert_imbalance=3.0)))
    assert [row["imbalance"] for row in planned_for["expert_loads"]] == [1.0, 2.0, 3.0, 4.0]
    assert planned_for["chosen"]["step_time_s"] > plain["chosen"]["step_time_s"]
    console = make_console(width=80)
    with console.capture() as captured:
        for line in load_lines(planned_for):
            console.print(line, markup=False)
    text = captured.get()
    assert "3 times the balanced load (planned)" in text
    assert max(map(len, text.splitlines())) <= 80


def test_every_part_of_a_step_has_a_meaning() -> None:
    from trimaran.planner.analytical.candidates import PARTS
    from trimaran.planning.answer.explained import _MEANINGS

    assert set(PARTS.values()) - {"update"} <= {str(part) for part in _MEANINGS}


def test_a_given_strategy_has_the_training_that_its_plan_has(tmp_path: Any) -> None:
    pins = ["--tp", "1", "--pp", "1", "--zero", "3", "--forbid", "memory"]
    common = [
        "llama2:7b",
        "--cluster",
        "dgx-h100:32",
        "--batch",
        "512",
        "--tokens",
        "200B",
        "--mtbf",
        "100days/node",
        "--json",
    ]
    planned_there = json.loads(CliRunner().invoke(app, ["plan", *common, *pins]).stdout)
    words = planned_there["chosen"]["strategy"]
    done = CliRunner().invoke(app, ["price", *common, "--strategy", words])
    assert done.exit_code == 0, done.output
    training = json.loads(done.stdout)["training"]
    assert training["run"] == planned_there["run"]
    table = tmp_path / "strategies.txt"
    table.write_text(f"{words}\ndp16 zero3 mb1\n")
    listed = CliRunner().invoke(app, ["price", *common[:-1], "--strategies", str(table)])
    assert listed.exit_code == 0, listed.output
    assert "days" in listed.stdout
    shown = CliRunner().invoke(app, ["price", *common[:-1], "--strategy", words])
    assert shown.stdout.startswith("200B tokens on 256 devices: ")
