"""What a stale strategy cannot do exactly is refused before it starts, with another way."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests import builders, zoo
from tests.raising import raises

from trimaran.features.emulation import emulate
from trimaran.features.export.recipe import recipe_of_plan
from trimaran.graph.types import Graph
from trimaran.program.plan_file import Plan
from trimaran.program.strategy import stale_note
from trimaran.runtime.step.on_nan import check_on_nan
from trimaran.runtime.step.stashing import check_stale

STALE = builders.strategy(pp=2, schedule="pipedream")
FLUSHED = builders.strategy(pp=2, schedule="1f1b", microbatches=2)


@pytest.mark.parametrize(
    "asked", [{"observes": "--verify"}, {"observes": "--gradient-noise"}, {"saves": "--save-every"}]
)
def test_what_needs_steps_of_one_process_is_refused(asked: dict[str, str]) -> None:
    with raises("strategy.stale-run", match="--schedule 1f1b"):
        check_stale(STALE, **asked)
    check_stale(FLUSHED, **asked)


def test_a_callback_between_updates_is_refused() -> None:
    job = zoo.cnn()
    check_stale(STALE, job)
    with raises("strategy.stale-run", match="on_epoch"):
        check_stale(STALE, dataclasses.replace(job, on_step=lambda session, step, metrics: None))


def test_skipped_updates_are_refused() -> None:
    check_on_nan("skip", FLUSHED)
    with raises("on-nan.stale"):
        check_on_nan("skip", STALE)


def test_runtimes_that_keep_no_weights_are_refused() -> None:
    with raises("export.stale"):
        recipe_of_plan(cast(Plan, SimpleNamespace(strategy=STALE)), cast(Graph, None))
    with raises("emulate.stale"):
        emulate(cast(Any, None), STALE)


def test_the_note_says_what_it_is() -> None:
    assert "stale: not the training of one process" in stale_note(STALE)
    assert "the last 3 updates" in stale_note(builders.strategy(pp=4, schedule="pipedream"))
