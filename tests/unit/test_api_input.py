"""What a program asks for is refused as on the command line: one clear error, never a foreign one or another answer."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from tests.raising import raises

import trimaran
from trimaran import InputError, Loading, Pins, TargetRequest
from trimaran.jobs.resolve import resolve

JOB = resolve("digits")


def plan(**asked: Any) -> Any:
    return trimaran.plan("lenet", **{"cluster": "dgx1-v100", "devices": 2, **asked})


def scale(**asked: Any) -> Any:
    return trimaran.predict_scaling("lenet", **{"cluster": "dgx1-v100", "devices": (1, 2), "local_batch": 64, **asked})


def memory(**asked: Any) -> Any:
    return trimaran.estimate_memory("lenet", **{"device": "titan-x", "largest_batch": False, **asked})


def crossover(**asked: Any) -> Any:
    return trimaran.find_crossover("lenet", **{"cluster": "dgx1-v100", "devices": (8,), **asked})


def collective(**asked: Any) -> Any:
    given: dict[str, Any] = {"op": "all_reduce", "nbytes": 1e6, "cluster": "dgx1-v100", "devices": 8, **asked}
    trimaran.collective_algorithms(given.pop("op"), given.pop("nbytes"), **given)


WRONG: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    *((plan, {"devices": devices}) for devices in (0, -1, (1, 0), (), "2", 2.5, True)),
    *((plan, {"batch": batch}) for batch in (0, -3, "x", 1.5, 10**20)),
    *((plan, {"memory": memory}) for memory in ("x", -5, 0)),
    *((plan, {"gap": gap}) for gap in (math.nan, math.inf, -1.0)),
    *((plan, {"time_limit_s": limit}) for limit in (math.nan, -1.0)),
    *((plan, {"strategy": words}) for words in ("", "dp2 xx")),
    *((plan, {"pins": pins}) for pins in (Pins(forbid=("xx",)), Pins(zero=7), Pins(allow=("dp",), forbid=("dp",)))),  # type: ignore[arg-type]
    (plan, {"loading": Loading(host_cores=0, decode="1ms")}),
    (plan, {"loading": Loading(copies_ahead=-1, decode="1ms")}),
    *((plan, {"pins": pins}) for pins in (Pins(dp=0), Pins(dp="2"), Pins(strategy="dp2", tp=2))),  # type: ignore[arg-type]
    (plan, {"loading": Loading(loader=100)}),  # type: ignore[arg-type]
    *((plan, {"target": target}) for target in (TargetRequest(within_s=1e6), TargetRequest(budget=1e6))),
    (plan, {"target": TargetRequest(curve="resnet50", tokens=1e9)}),
    (plan, {"tokens": "1T", "target": TargetRequest(tokens=1e9)}),
    (plan, {"batch": 64, "target": TargetRequest(batches=(64, 128))}),
    *((plan, {"strategy": "dp2", **limit}) for limit in ({"gap": 0.1}, {"time_limit_s": 9.0})),
    (plan, {"software": "megatron"}),
    (plan, {"cluster": "dgx1-v100:2@"}),
    *((scale, {"devices": devices}) for devices in ((), (0,), "8")),
    *((scale, {"local_batch": batch}) for batch in ((), 0, -4, 1.5)),
    (scale, {"options": {"sequence": "x"}}),
    (scale, {"software": "megatron"}),
    *((memory, {"slowdown_limit": limit}) for limit in (math.nan, -1.0)),
    (memory, {"policy": "ourselves"}),
    *((crossover, {"devices": devices}) for devices in ((), (0,), (-8,))),
    (crossover, {"software": "megatron"}),
    *((collective, {"nbytes": nbytes}) for nbytes in (-1.0, math.nan, math.inf)),
    *((collective, {"year": year}) for year in (math.nan, -5.0)),
    *((plan, {name: 5}) for name in ("cluster", "pins", "target", "loading", "strategy", "software")),
    *((verb, {"software": 5}) for verb in (scale, crossover)),
    (memory, {"device": 5}),
]


@pytest.mark.parametrize(("verb", "asked"), WRONG, ids=[f"{verb.__name__} {asked}" for verb, asked in WRONG])
def test_what_means_nothing_is_refused(verb: Callable[..., Any], asked: dict[str, Any]) -> None:
    with pytest.raises(trimaran.InputError) as refused:
        verb(**asked)
    assert str(refused.value)


def init(**asked: Any) -> Any:
    return trimaran.init(asked.pop("job", JOB), **asked)


def virtual(**asked: Any) -> Any:
    return trimaran.virtual_memory(**{"budget": "1GiB", **asked})


def exported(**asked: Any) -> Any:
    return trimaran.export_checkpoint(**{"source": "nothing", "target": "nothing.pt", **asked})


def order(**asked: Any) -> Any:
    return trimaran.sample_order(**{"samples": 4, "seed": 0, "epoch": 0, **asked})


def rehearsal(**asked: Any) -> Any:
    return trimaran.rehearse(__file__, world=2, **asked)


def others(**asked: Any) -> Any:
    ((name, value),) = asked.items()
    arguments = {"simulate": (value, value), "write_plan": ("nothing.json", value)}
    return getattr(trimaran, name)(*arguments.get(name, (value,)))


NAMED: list[tuple[Callable[..., Any], str, Any]] = [
    *((init, "job", value) for value in ("digits", None)),
    *((init, "plan", value) for value in (5, ["dp2"])),
    *((init, name, "yes") for name in ("record", "accept_inexact", "verify", "gradient_noise", "hang_timeout")),
    *((init, name, value) for name in ("verify", "gradient_noise") for value in (-1, 1.5, True)),
    *((init, "on_nan", value) for value in ("maybe", None, 3)),
    *((init, "hang_timeout", value) for value in (-1, 0, math.nan, math.inf, True)),
    *((virtual, name, "no") for name in ("enforce", "account", "recompute")),
    *((virtual, "limit_s", value) for value in ("5", math.nan, 0)),
    *((virtual, name, 5.5) for name in ("budget", "host", "smallest", "codec")),
    *((exported, name, 5) for name in ("source", "target", "to", "optimizer", "trust_pickle")),
    *((order, name, value) for name in ("samples", "epoch") for value in (-1, "5", 1.5)),
    *((rehearsal, "steps", value) for value in (0, -1, "3")),
    *((rehearsal, "limit", value) for value in (0, -5.0, math.nan, math.inf)),
    (rehearsal, "hints", {"loss": math.nan}),
    *((others, name, 5) for name in ("observe", "parse_split", "read_plan", "write_plan", "simulate")),
]


@pytest.mark.parametrize(("verb", "name", "value"), NAMED)
def test_an_argument_that_means_nothing_is_named(verb: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(trimaran.InputError, match=name.removesuffix("s")):
        verb(**{name: value})


@pytest.mark.parametrize("job", [5, None])
def test_a_job_is_named_by_a_text(job: Any) -> None:
    with pytest.raises(trimaran.InputError, match="named by a text"):
        trimaran.plan(job, cluster="dgx1-v100")


@pytest.mark.parametrize("name", ["tokens", "within_s", "budget", "most_local_batch", "samples_per_epoch"])
@pytest.mark.parametrize("value", [0, -5.0, math.nan, "1T"])
def test_a_target_has_figures_above_0(name: str, value: Any) -> None:
    """A training of less than nothing ended in a division by zero."""
    with pytest.raises(trimaran.InputError, match="expected"):
        TargetRequest(**{name: value})


def test_a_strategy_among_pins_is_the_strategy_of_its_name() -> None:
    """Pins that said nothing but its name left open what the name decides."""
    pinned, named = plan(pins=Pins(strategy="dp2 zero1")), plan(strategy="dp2 zero1")
    assert pinned.request.pins == named.request.pins
    assert pinned.chosen.step_time_s == named.chosen.step_time_s


def test_a_share_that_is_none_is_no_target() -> None:
    with pytest.raises(trimaran.InputError, match="share of the time"):
        TargetRequest(least_saved=math.nan)


def test_kinds_of_a_program_have_the_names_of_the_command_line() -> None:
    """Other names of kinds are read, so that none is taken for nothing; a number of bytes is a size."""
    named = plan(pins=Pins(forbid=("fsdp",)), memory=2**30)
    assert named.request.pins == Pins(forbid=("zero",))
    degrees = trimaran.plan("gpt2:124m", cluster="dgx-a100", batch=64, pins=Pins(forbid=("cp", "uneven")))
    assert degrees.request.pins == Pins(forbid=("cp", "uneven"))
    assert named.request.memory_bytes == 2**30
    assert scale(devices=2).rows == scale(devices=(2,)).rows


def test_a_batch_that_fits_in_no_parts_is_refused_at_once() -> None:
    """No more microbatches are looked for than a plan may have, however many samples there are."""
    with pytest.raises(trimaran.InfeasibleError, match="no strategy fits"):
        plan(batch=999_999_937)


def test_empty_names_are_refused_and_not_taken_as_none() -> None:
    with pytest.raises(InputError, match="unknown machine"):
        trimaran.plan("lenet", cluster="", batch=8)
    with pytest.raises(InputError, match="precision"):
        memory(precision="")


def test_a_collective_over_nodes_needs_no_number_of_them_in_the_name_of_the_machine() -> None:
    """It was told that nothing joins the nodes of a machine with network cards, and "dgx-a100:2" had four nodes."""
    asked: dict[str, Any] = {"devices": 16, "nodes": 2}
    there = trimaran.collective_cost("all_reduce", 1e8, cluster="dgx-a100:2", **asked)
    assert trimaran.collective_cost("all_reduce", 1e8, cluster="dgx-a100", **asked) == there
    found = trimaran.collective_algorithms("all_reduce", 1e8, cluster="dgx-a100", **asked)
    assert found[0].seconds == pytest.approx(there.seconds)
    with raises("collective.too-few-nodes", match="dgx-a100:2 has 2 nodes, and 4 are asked for"):
        trimaran.collective_cost("all_reduce", 1e8, cluster="dgx-a100:2", devices=32, nodes=4)
