"""Compression of gradients in a search: by consent alone, and only where it pays.

Two layers of a matrix of 32 by 32 and a bias of 32, two devices, batch 8: replicas take 0.5 ms to load, 16 forward,
32 backward and 1 + 0.4 + 8.448 ms to update; one device takes about twice that. An all-reduce takes 1 ms for 100 bytes.
"""

import dataclasses

import pytest
from tests import builders
from tests.builders import exact, network, table_for
from tests.graphs import parameter
from tests.raising import raises

from trimaran.base.units import format_seconds
from trimaran.graph.types import Graph
from trimaran.planner.candidates import evaluate
from trimaran.planner.choice import is_plain, is_reference, simplicity
from trimaran.planner.explanation.contrast import conclude, dissect
from trimaran.planner.explanation.explain import imagine, read_family
from trimaran.planner.explanation.remedies import remedies_for
from trimaran.planner.pins import NO_OPT_IN, OPT_IN, Pins, kinds_of, parse_pins
from trimaran.planner.problem import Problem, least
from trimaran.planner.result import said_of_compression
from trimaran.planner.search import prices, search
from trimaran.planner.space import METHODS, enumerate_strategies, offered, samples_factor
from trimaran.planner.trials import Trials
from trimaran.planning.best_strategy import chooser
from trimaran.pricing.gradient_compression import coding_keys
from trimaran.pricing.tables import Curve
from trimaran.program.gradients import Compression

BF16 = Compression(method="bf16")
RANK_4 = Compression(method="powersgd", rank=4)
CONSENTING = builders.pins(compress=True)
REPLICAS = builders.strategy(dp=2)
ROUNDED = builders.strategy(dp=2, compression=BF16)


def _graph(length: int = 2) -> Graph:
    graph = network(length)
    matrices = tuple(
        parameter(one.name, 4096, shape=(32, 32)) if one.name.endswith("weight") else parameter(one.name, 128)
        for one in graph.parameters
    )
    return dataclasses.replace(graph, parameters=matrices)


def _curve(seconds_per_byte: float) -> Curve:
    return tuple((size, exact(size * seconds_per_byte)) for size in (1, 10**3, 10**6))


def _problem(
    *, wire: float = 1e-5, encode: float = 0.0, decode: float = 0.0, pins: Pins = CONSENTING, length: int = 2
) -> Problem:
    """Seconds a byte of an all-reduce, of encoding and of decoding, whatever the method."""
    graph = _graph(length)
    curves = {
        builders.curve_key("AR", 2): _curve(wire),
        builders.curve_key("SEND", 2): _curve(1.0),
        builders.curve_key("BC", 2): _curve(wire),
    }
    for method in (*METHODS, Compression(method="powersgd", rank=8)):
        for key, seconds in zip(coding_keys(method), (encode, decode), strict=True):
            curves[key] = _curve(seconds)
    table = dataclasses.replace(table_for(graph), curves=curves, interference={})
    return builders.problem(graph=graph, table=table, pins=pins)


def test_without_consent_nothing_is_compressed() -> None:
    for pins in (
        builders.pins(),
        builders.pins(allow=("dp",)),
        builders.pins(compression="none"),
        builders.pins(compress=True, forbid=("compress",)),
    ):
        kept, _ = enumerate_strategies(_graph(), devices=2, batch=8, pins=pins)
        assert kept
        assert all(strategy.compression is None for strategy in kept)
    assert builders.pins().objection(ROUNDED) == NO_OPT_IN
    assert builders.pins(compression="none").objection(ROUNDED) == "--compression none"


def test_consent_restricts_nothing_else() -> None:
    without, _ = enumerate_strategies(_graph(), devices=2, batch=8)
    consenting, _ = enumerate_strategies(_graph(), devices=2, batch=8, pins=CONSENTING)
    assert [one for one in consenting if one.compression is None] == without
    methods = {one.compression for one in consenting if one.dp == 2 and one.microbatches == 1}
    assert methods == {None, *METHODS}


def test_a_method_that_is_named_is_consent_and_the_only_one() -> None:
    pins = parse_pins(compression="powersgd:8")
    kept, _ = enumerate_strategies(_graph(), devices=2, batch=8, pins=pins)
    assert {one.compression for one in kept} == {Compression(method="powersgd", rank=8)}
    assert pins.names == ("--compression powersgd:8",)
    assert pins.objection(REPLICAS) == "--compression powersgd:8"


def test_consent_is_given_and_taken_back_by_its_name() -> None:
    pins = parse_pins(allow=["dp,compress"], forbid=["pp"])
    assert pins.names == ("--forbid pp", "--allow dp", OPT_IN)
    assert pins.without(OPT_IN) == parse_pins(allow=["dp"], forbid=["pp"])
    assert pins.without("--allow dp") == parse_pins(allow=["compress"], forbid=["pp"])
    assert kinds_of(ROUNDED) == {"dp", "compress"}


@pytest.mark.parametrize(
    ("pins", "devices", "words"),
    [
        (builders.pins(compression="bf16"), 1, "two replicas or more"),
        (builders.pins(compression="bf16", forbid=("compress",)), 2, "conflicts with --forbid compress"),
        (builders.pins(compression="bf16", zero=1), 2, "conflicts with --zero 1"),
        (builders.pins(compression="bf16", tp=2), 4, "conflicts with --tp 2"),
        (builders.pins(compression="bf16"), 2, ""),
        (builders.pins(compression="none", zero=1), 2, ""),
    ],
)
def test_pins_that_contradict_a_method_are_named(pins: Pins, devices: int, words: str) -> None:
    assert words in pins.conflict(devices)
    assert bool(pins.conflict(devices)) == bool(words)


def test_words_that_mean_no_method_are_refused() -> None:
    with raises("compression.unknown", match="bf16.*fp16.*powersgd:RANK"):
        parse_pins(compression="zip")
    with raises("pin.allowed-and-forbidden"):
        parse_pins(allow=["compress"], forbid=["compress"])


def test_where_the_wire_is_slow_a_compression_is_chosen_and_what_it_gains_is_said() -> None:
    """8,448 bytes take 84 ms, half of them 42; PowerSGD of rank 4 sends 2,304 bytes in 23 ms."""
    given = _problem(pins=builders.pins(compress=True, powersgd_samples=1.0))
    found = search(given)
    chosen = found.chosen.strategy.compression
    assert chosen == RANK_4
    said = said_of_compression(found, given.pins)
    assert said.startswith("gradients are sent as powersgd-r4: dp2 powersgd-r4 takes ")
    assert "accuracy may differ" in said
    (paid,) = (one for one in prices(given, found, chooser(builders.no_steps, Trials(given))) if one.pin == OPT_IN)
    assert paid.without is not None
    assert paid.without.strategy.compression is None
    assert paid.price < 0.0


def test_a_step_counts_as_often_as_its_method_needs_it() -> None:
    """Besides the wire a step takes 58.3 ms: 100.5 in 16 bits, 81.3 with PowerSGD of rank 4."""
    found = search(_problem())
    assert found.chosen.strategy.compression == BF16
    for one in found.candidates:
        factor = samples_factor(one.strategy.compression, CONSENTING)
        assert one.objective_s == factor * one.step_time_s
        assert one.cases == tuple(
            factor * seconds for seconds in (one.interval_s[0], one.step_time_s, one.interval_s[1])
        )
    even = 100.5 / 81.3
    for factor, method in ((0.9 * even, RANK_4), (1.1 * even, BF16)):
        pins = builders.pins(compress=True, powersgd_samples=factor)
        assert search(_problem(pins=pins)).chosen.strategy.compression == method


def test_a_factor_that_is_assumed_is_said_to_be_and_how_to_replace_it() -> None:
    assumed, own = (
        builders.pins(compression="powersgd:4"),
        builders.pins(compression="powersgd:4", powersgd_samples=1.25),
    )
    found = {pins: said_of_compression(search(_problem(pins=pins)), pins) for pins in (assumed, own)}
    factor = f"with {samples_factor(RANK_4, assumed):g} times the samples"
    assert factor in found[assumed]
    assert "That factor is assumed, as on built-in jobs: give your own as --powersgd-samples. Some" in found[assumed]
    assert "with 1.25 times the samples" in found[own]
    assert "assumed" not in found[own]


def test_a_shorter_step_that_needs_more_samples_is_told_with_how_many_it_may_need() -> None:
    """In 16 bits 100.5 ms a step, with PowerSGD 81.3."""
    found = search(_problem())
    best = min((one for one in found.candidates if one.strategy.compression == RANK_4), key=lambda one: one.objective_s)
    said = said_of_compression(found, CONSENTING)
    assert said.startswith("gradients are sent as bf16: ")
    even = found.chosen.step_time_s / best.step_time_s
    assert (
        f"With less than {even:.2f} times the samples {best.strategy.name} would be sooner at the target, at " in said
    )
    assert f"{format_seconds(best.step_time_s)}. Some of each gradient" in said


def test_a_shorter_step_that_is_later_at_the_target_is_contrasted_with_its_samples() -> None:
    """In 16 bits 100.5 ms a step, with PowerSGD 81.3, which 1.5 times makes 122."""
    given = _problem()
    found = search(given)
    best = min((one for one in found.candidates if one.strategy.compression == RANK_4), key=lambda one: one.objective_s)
    mine, theirs = dissect(found.chosen, given), dissect(best, given)
    said = conclude(mine, theirs)
    assert "21 % slower to the target than dp2 bf16 (81.4 ms against 101 ms, with 1.5 times the samples)" in said
    assert ": in a step, " in said
    assert "with 0.667 times the samples" in conclude(theirs, mine)
    assert "samples" not in conclude(mine, mine)


def test_a_remedy_that_needs_more_samples_says_so_beside_its_figures() -> None:
    given = _problem(pins=builders.pins(pp=1, tp=1, zero=0))
    chosen = evaluate(REPLICAS, given)
    bases = {one.name: one.basis for one in remedies_for(chosen, dissect(chosen, given).parts, given)}
    assert bases["PowerSGD of rank 4"].endswith(", and training needs 1.5 times the samples.")
    assert "samples" not in bases["16-bit communication"]


def test_a_lower_rank_is_not_assumed_to_need_fewer_samples() -> None:
    factors = [samples_factor(Compression(method="powersgd", rank=rank), builders.pins()) for rank in (1, 2, 3, 4, 8)]
    assert factors == sorted(factors, reverse=True)
    assert min(factors) >= samples_factor(BF16, builders.pins()) == samples_factor(None, builders.pins()) == 1.0


@pytest.mark.parametrize("factor", [0.99, 0.0, -1.0, float("inf"), float("nan")])
def test_a_factor_that_is_none_is_refused(factor: float) -> None:
    with raises("pin.bad-powersgd-samples", match=r"--powersgd-samples.*\b1\b"):
        parse_pins(powersgd_samples=factor)


def test_of_methods_that_are_as_fast_the_most_faithful_is_chosen() -> None:
    """Of 58.3 ms of other work: 5.1 ms for whole gradients, 2.5 in 16 bits, 1.4 with PowerSGD of rank 4."""
    given = _problem(wire=6e-7, pins=builders.pins(compress=True, forbid=("zero",)))
    chosen = search(given).chosen
    assert chosen.strategy.compression == BF16
    assert search(_problem(wire=1e-8)).chosen.strategy.compression is None
    # Sharded state takes 59.2 ms, less than in 16 bits, and loses nothing.
    assert search(_problem(wire=4e-7)).chosen.strategy.compression is None


def test_what_takes_longer_to_encode_than_it_saves_is_not_worth_it_and_the_figures_say_so() -> None:
    """Encoding takes as long as the wire."""
    given = _problem(wire=1e-6, encode=1e-6, decode=1e-6)
    found = search(given)
    assert found.chosen.strategy == REPLICAS
    assert any(one.strategy.compression is not None for one in found.candidates)
    said = said_of_compression(found, given.pins)
    assert said.startswith("compressing gradients is not worth it: dp2 ")
    assert " ms a step, dp2 " in said
    assert said_of_compression(found, builders.pins()) == ""


@pytest.mark.parametrize(("part", "is_unsure"), [(0.99, True), (0.9, False)])
def test_the_uncertainty_is_the_reason_only_where_it_is_as_large(part: float, is_unsure: bool) -> None:
    """1 % less in all cases is less than the model leaves out, 10 % is more."""
    given = _problem(wire=1e-6, encode=1e-6, decode=1e-6)
    found = search(given)
    low, median, high = (part * seconds for seconds in found.chosen.cases)
    lossy = next(one for one in found.candidates if one.strategy.compression is not None)
    quicker = dataclasses.replace(lossy, step_time_s=median, ends=lambda: ((low, high), None), samples_factor=1.0)
    said = said_of_compression(dataclasses.replace(found, candidates=(found.chosen, quicker)), given.pins)
    assert said.endswith(", within the uncertainty") == is_unsure


def test_the_best_of_all_methods_is_chosen_as_by_trying_each() -> None:
    given = _problem(wire=1e-5, encode=1e-6, decode=1e-6)
    found = search(given)

    strategies, _ = enumerate_strategies(given.graph, devices=2, batch=8, pins=CONSENTING)
    every = [evaluate(one, given).step_time_s for one in strategies if one.pp == one.tp == 1 and not one.zero]
    assert min(one.step_time_s for one in found.candidates) <= min(every) * (1 + 1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 4096, 2**20])
def test_no_step_is_below_its_bound(method: Compression, size: int) -> None:
    given = _problem(wire=1e-5, encode=1e-6, decode=2e-6, length=4)
    strategy = builders.strategy(dp=2, bucket_bytes=size, compression=method)
    lower, found = least(strategy, given), evaluate(strategy, given)
    for bounded, cases in zip(lower.cases, found.cases, strict=True):
        assert bounded <= cases * (1 + 1e-9)
    assert max(lower.peak_bytes) <= max(found.peak_bytes)


def test_lossless_comes_before_lossy_and_the_faithful_before_the_less_faithful() -> None:
    ranks = [dataclasses.replace(ROUNDED, compression=Compression(method="powersgd", rank=rank)) for rank in (4, 1)]
    pipeline = builders.strategy(pp=2, boundaries=("op0",), microbatches=2)
    fp16 = dataclasses.replace(ROUNDED, compression=Compression(method="fp16"))
    found = sorted([*ranks, fp16, pipeline, ROUNDED, REPLICAS], key=simplicity)
    assert found == [REPLICAS, pipeline, ROUNDED, fp16, *ranks]


def test_compressed_replicas_are_no_baseline() -> None:
    assert is_plain(REPLICAS)
    assert not is_plain(ROUNDED)
    assert not is_reference(ROUNDED, devices=2)


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("bf16", [True, False]),
        ("dp2-bf16", [True, False]),
        ("compress", [True, True]),
        ("powersgd:2", [False, True]),
        ("powersgd r2", [False, True]),
        ("powersgd-r4", [False, False]),
        ("dp", [False, False]),
        ("dp2 m1", [False, False]),
        ("b1MiB", [False, False]),
    ],
)
def test_names_of_compressed_strategies(name: str, members: list[bool]) -> None:
    family = read_family(name)
    factored = dataclasses.replace(ROUNDED, compression=Compression(method="powersgd", rank=2))
    assert [strategy in family for strategy in (ROUNDED, factored)] == members
    assert (REPLICAS in family) == (name in ("dp", "dp2 m1"))


def test_what_was_never_searched_is_imagined_from_its_name() -> None:
    assert list(imagine(read_family("bf16"))) == [ROUNDED]
    assert [one.compression for one in imagine(read_family("compress"))] == list(METHODS)


def test_fp16_is_offered_by_its_name_alone() -> None:
    assert all(method.method != "fp16" for method in offered(CONSENTING))
    assert offered(builders.pins(compression="fp16")) == (Compression(method="fp16"),)
