"""What is asked of a plan, as it is written on the command line, and what comes of the link."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.builders import problem
from tests.graphs import chain
from tests.raising import raises

from trimaran.features.emulation import emulate_subject
from trimaran.jobs.resolve import JobSource
from trimaran.machine.detect import lacks_gpus
from trimaran.planner.candidates import Candidate
from trimaran.planner.pins import pins_of_strategy, read_pins
from trimaran.planner.problem import assess
from trimaran.planning.estimated import asked_of_file
from trimaran.planning.explanation import explain_plan
from trimaran.planning.loaded_plans import _rejoined, _rescored, as_planned, load_plan
from trimaran.planning.preparation import local_cluster
from trimaran.planning.requests import Loading, parse_request
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import program_lines, read_plan, write_plan
from trimaran.program.strategy import Strategy

PLAN = builders.plan(
    job="digits",
    strategy=builders.strategy(dp=2),
    premises=builders.premises(
        graph_digest="", global_batch_size=24, devices=("core", "core"), memory_bytes=(1000, 1000)
    ),
    prediction=builders.prediction(step_time_s=0.0, peak_bytes=()),
    objective="epoch",
)
THERE = dataclasses.replace(
    PLAN,
    premises=dataclasses.replace(
        PLAN.premises,
        cluster="dgx1-v100",
        devices=("NVIDIA Tesla V100 SXM2 16 GB",) * 2,
        options=("--loader 90 images/s per worker", "--host-cores 8", "--copies-ahead 0"),
    ),
)
GIGABIT = builders.link(bytes_per_s=125e6, source="asked: 1Gb/s")


def test_nothing_asked_is_everything_this_machine_has() -> None:
    assert parse_request() == builders.plan_request()


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("1Gb/s", 125e6), ("200 Mb/s", 25e6), ("25MB/s", 25e6), ("1 Gbit/s", 125e6), ("1Gbps", 125e6)],
)
def test_a_link_is_a_rate(text: str, bytes_per_s: float) -> None:
    link = parse_request(link=text).link
    assert link == builders.link(bytes_per_s=bytes_per_s, source=f"asked: {text}")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1Gb", "quantity.malformed"),
        ("fast", "quantity.malformed"),
        ("0Mb/s", "quantity.not-positive"),
        ("", "quantity.malformed"),
    ],
)
def test_a_link_that_is_no_rate_is_refused(text: str, code: str) -> None:
    with raises(code, match="rate"):
        parse_request(link=text)


def test_the_cluster_of_this_machine_has_the_link_that_was_asked_for() -> None:
    assert local_cluster(builders.plan_request(devices=1, link=GIGABIT)).machine.node.rate_limit == GIGABIT
    assert local_cluster(builders.plan_request(devices=1)).machine.node.rate_limit is None


def test_a_plan_for_other_links_is_told() -> None:
    (told,) = _rejoined(GIGABIT, None)
    assert "made for links limited to 1 Gb/s, and here they are limited to nothing" in told


def test_the_same_rate_written_otherwise_is_the_same_link() -> None:
    assert _rejoined(GIGABIT, parse_request(link="125MB/s").link) == ()


def test_what_is_not_asked_is_as_the_plan_was_made_for() -> None:
    source, request = as_planned(PLAN, JobSource(reference="digits"), builders.plan_request())
    assert source == JobSource(reference="digits", global_batch_size=24)
    assert request == builders.plan_request(devices=2, objective="epoch")


def test_what_is_asked_goes_before_the_plan() -> None:
    asked = (
        JobSource(reference="digits", global_batch_size=48),
        builders.plan_request(devices=1, objective="throughput"),
    )
    assert as_planned(PLAN, *asked) == asked


def test_a_batch_that_is_the_job_s_own_overrides_nothing() -> None:
    """What was measured is kept under the whole source."""
    own = JobSource(reference="digits")
    plan = dataclasses.replace(
        PLAN, premises=dataclasses.replace(PLAN.premises, global_batch_size=own.make().global_batch_size)
    )
    assert as_planned(plan, own, builders.plan_request())[0] == own


def rescored(step_time_s: float, now: Candidate) -> tuple[str, ...]:
    return _rescored(dataclasses.replace(PLAN.prediction, step_time_s=step_time_s), now)


def test_a_prediction_that_no_longer_holds_is_told_where_there_is_one() -> None:
    now = assess(builders.strategy(), problem())
    assert "+100%" in rescored(now.step_time_s / 2, now)[0]
    assert rescored(now.step_time_s, now) == rescored(0.0, now) == ()


@pytest.mark.parametrize(
    "given",
    [{"link": "1Gb/s"}, {"oversubscribe": True}, {"calibration": Path("none.json")}, {"objective": "epoch"}],
    ids=["link", "oversubscribe", "calibration", "epoch"],
)
def test_options_about_a_plan_for_a_cluster_are_those_of_clusters(given: dict[str, Any]) -> None:
    """They were read as those of a plan for this machine, and then left out."""
    code = "target.epoch-objective" if "objective" in given else "plan.option-of-this-machine"
    with raises(code, match="on a cluster"):
        parse_request(**given, **asked_of_file(THERE, cluster=None))


def test_an_option_of_clusters_is_read_about_a_plan_for_one_whose_name_is_not_typed() -> None:
    request = parse_request(software="pytorch:2020", **asked_of_file(THERE, cluster=None))
    assert (request.cluster, request.software.year if request.software else None) == ("dgx1-v100", 2020.0)
    assert parse_request(**asked_of_file(PLAN, cluster=None)).is_here


@pytest.mark.skipif(not lacks_gpus(), reason="it asks torch for the GPUs that may be here")
def test_whether_a_plan_is_for_this_machine_is_known_without_torch(tmp_path: Path) -> None:
    """`explain plan.json` of a plan for a cluster spent half of its time on an import."""
    write_plan(tmp_path / "plan.json", THERE)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from trimaran.planning.estimated import asked_of_file\n"
        "from trimaran.program.plan_file import read_plan\n"
        "assert asked_of_file(read_plan(Path('plan.json')), cluster=None)['cluster'] == 'dgx1-v100'\n"
        "raise SystemExit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, timeout=120).returncode == 0


def test_what_is_said_of_an_input_pipeline_is_said_in_addition_to_the_plan() -> None:
    pins = builders.pins(workers=2)
    request = parse_request(pins=pins, **asked_of_file(THERE, cluster=None, loading=Loading(host_cores=4)))
    assert request.loading == Loading(loader="90 images/s per worker", host_cores=4, copies_ahead=0)
    decoded = parse_request(**asked_of_file(THERE, cluster=None, loading=Loading(decode="7ms")))
    assert decoded.loading == Loading(decode="7ms", host_cores=8, copies_ahead=0)


def test_a_plan_for_this_machine_has_chosen_its_batch_too() -> None:
    """`explain plan.json --objective time` answered as if nothing had been asked."""
    with raises("explain.curve-and-plan", match="the plan has one"):
        as_planned(PLAN, JobSource(reference="digits"), builders.plan_request(objective="time"))


@pytest.mark.parametrize(("given", "option"), [({"gap": 0.1}, "--gap"), ({"time_limit_s": 9.0}, "--time-limit")])
def test_a_whole_strategy_leaves_no_search_to_end(given: dict[str, Any], option: str) -> None:
    with raises("pin.strategy-and-search", match=option):
        parse_request(pins=pins_of_strategy("dp2 zero1"), **given)
    # Which operation is where is searched for.
    assert parse_request(pins=pins_of_strategy("placed on 2"), **given).pins.pp == 2


@pytest.mark.parametrize("gap", [-0.1, 1.5, 5.0, math.nan, math.inf])
def test_a_gap_is_a_share(gap: float) -> None:
    """`--gap 5` for 5 % took any plan."""
    with raises("plan.bad-gap", match="such as 0.05 for 5 %"):
        parse_request(gap=gap)
    assert parse_request(gap=1.0).gap == 1.0


@pytest.mark.parametrize(("strategy", "execution"), [("dp2", "compiled"), ("dp2 compiled", "eager")])
def test_a_strategy_that_runs_otherwise_than_is_asked_is_refused(strategy: str, execution: Any) -> None:
    """It was "its network cannot be spread so, or there are too few devices"."""
    with raises("plan.execution-and-strategy", match="leave --execution out"):
        parse_request(cluster="dgx1-v100", pins=pins_of_strategy(strategy), execution=execution)
    assert parse_request(cluster="dgx1-v100", pins=pins_of_strategy("dp2"), execution="eager").execution == "eager"


def test_64_bits_are_no_precision_of_commands() -> None:
    """It was listed among those that are taken, and refused."""
    with raises("precision.unknown", match="one of ieee, fp32, tf32, bf16, fp16, fp8, not"):
        parse_request(cluster="dgx-h100", precision="fp64")


def of_file(folder: Path, strategy: Strategy) -> Path:
    """The file of a plan with a program of a chain."""
    program = program_lines(lower(chain(4), strategy, batch=24))
    write_plan(folder / "plan.json", dataclasses.replace(PLAN, strategy=strategy, program=program))
    return folder / "plan.json"


def test_a_plan_for_this_machine_refuses_what_only_the_analytical_model_knows(tmp_path: Path) -> None:
    """`simulate plan.json --reserve 5%` left it out."""
    path = of_file(tmp_path, builders.strategy(dp=2))
    with raises("plan.option-analytical"):
        load_plan(path, JobSource(reference="digits"), parse_request(reserve="5%"))


@pytest.mark.parametrize("devices", [2, 8])
def test_a_plan_is_emulated_on_the_devices_that_it_is_for(devices: int, tmp_path: Path) -> None:
    """On more than those it ran as if nothing had been said."""
    path = of_file(tmp_path, builders.strategy(dp=4))
    with raises("emulate.other-number-of-devices", match=f"is a plan for 4; leave it out, or plan for {devices}"):
        emulate_subject(str(path), devices=devices, link="1Gb/s")


def test_a_plan_says_how_many_devices_are_emulated_and_the_link_alone_is_asked_for(tmp_path: Path) -> None:
    path = of_file(tmp_path, builders.strategy(dp=4))
    with raises("input", match="^say the rate limit of the links between them: --link 1Gb/s$"):
        emulate_subject(str(path))


@pytest.mark.parametrize(
    "asked", [{"pins": read_pins(["--dp 4"])}, {"pins": read_pins(["--forbid dp"])}, {"execution": "compiled"}]
)
def test_what_a_plan_does_not_keep_is_refused_with_a_plan_that_is_explained(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    """The plan was explained as if nothing had been asked, or told to fit nowhere."""
    path = of_file(tmp_path, builders.strategy(dp=2))
    with raises("plan.option-needs-new-plan", match="is a plan that is made already"):
        explain_plan("digits", parse_request(**asked), path=path)


def test_a_plan_of_this_machine_is_not_explained_at_another_batch(tmp_path: Path) -> None:
    """It was explained at its own, without a word, where `simulate` refuses."""
    path = of_file(tmp_path, builders.strategy(dp=2))
    source, _ = as_planned(read_plan(path), JobSource(reference="digits"), parse_request(batch=128))
    assert source.global_batch_size == 128
