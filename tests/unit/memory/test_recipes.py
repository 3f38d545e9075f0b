"""Recipes, from traces made by hand."""

import pytest
from tests.recipes import check_recipe
from tests.unit.memory.traces import TraceMaker, chain

from trimaran.graph.trace.types import Role, StepTrace
from trimaran.memory.problem import find_recipes
from trimaran.pricing.offload_costs import MemoryCosts, measured_costs
from trimaran.simulator.memory import recipe_peak


def costs(trace: StepTrace) -> MemoryCosts:
    return measured_costs(trace, to_host_bytes_per_s=1.0, to_device_bytes_per_s=1.0)


def finished(maker: TraceMaker, *packs: int) -> StepTrace:
    """The trace, with a backward that unpacks in reverse order."""
    for pack in reversed(packs):
        maker.unpack(pack)
        maker.op([], [], 1.0)
    return maker.trace()


def test_what_is_changed_in_place_is_made_by_all_its_operations() -> None:
    """c is packed; bn makes y, add_ and relu_ change it; y is packed at version 2. The weight is a source."""
    maker = TraceMaker()
    weight = maker.make(8, Role.PARAMETER, before=True)
    x, c = maker.make(100, Role.INPUT, before=True), maker.make(100)
    maker.op([x, weight], [c], 5.0)
    first, second = maker.pack(x), maker.pack(c)
    y = maker.make(100)
    maker.op([c, weight], [y], 1.0)
    maker.op([y, x], [y], 1.0)
    maker.op([y], [y], 1.0)
    trace = finished(maker, first, second, maker.pack(y))
    recipe = find_recipes(trace, costs(trace))[y][0]
    assert (recipe.ops, recipe.sources, recipe.duration_s) == ((3, 4, 5), (weight, x, c), 3.0)
    check_recipe(trace, recipe)


def test_a_recipe_goes_through_what_nobody_packs() -> None:
    """t is not packed: u = f(g(x)) needs both operations, and t is there only between them."""
    maker = TraceMaker()
    x, t, u = maker.make(100, Role.INPUT, before=True), maker.make(70), maker.make(50)
    maker.op([x], [t], 1.0)
    maker.op([t], [u], 2.0)
    trace = finished(maker, maker.pack(x), maker.pack(u))
    recipe = find_recipes(trace, costs(trace))[u][0]
    assert (recipe.ops, recipe.sources, recipe.duration_s) == ((0, 1), (x,), 3.0)
    assert recipe_peak(trace, recipe) == 70 + 50


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_longer_recipes_go_through_packed_storages(depth: int) -> None:
    """Storage 3 of a chain: from 2; from 1; from the input; there is no more."""
    trace = chain((10, 20, 30, 40, 50), (1.0, 2.0, 4.0, 8.0))
    recipes = find_recipes(trace, costs(trace), depth=depth)[3]
    expected = [((4,), (2,), 4.0), ((2, 4), (1,), 6.0), ((0, 2, 4), (0,), 7.0)]
    assert [(one.ops, one.sources, one.duration_s) for one in recipes] == expected[: depth + 1]
    for recipe in recipes:
        check_recipe(trace, recipe)


def test_running_statistics_are_neither_source_nor_result() -> None:
    maker = TraceMaker()
    mean = maker.make(4, Role.BUFFER, before=True)
    x, y = maker.make(100, Role.INPUT, before=True), maker.make(100)
    maker.op([x, mean], [y, mean], 1.0)
    trace = finished(maker, maker.pack(x), maker.pack(y))
    recipe = find_recipes(trace, costs(trace))[y][0]
    assert (recipe.ops, recipe.sources) == ((0,), (x,))
    check_recipe(trace, recipe)


def test_what_cannot_be_repeated_has_no_recipe_and_may_be_a_source() -> None:
    """Layer 1 draws random numbers: storage 2 has no recipe, 3 is made of it, and no recipe goes through it."""
    trace = chain((10, 10, 10, 10, 10), (1.0,) * 4, repeatable=(True, False, True, True))
    recipes = find_recipes(trace, costs(trace), depth=3)
    assert 2 not in recipes
    assert [one.sources for one in recipes[3]] == [(2,)]


def test_banned_storages_have_no_recipe_and_are_in_none() -> None:
    trace = chain((10, 10, 10, 10, 10), (1.0,) * 4)
    recipes = find_recipes(trace, costs(trace), banned={2}, depth=3)
    assert 2 not in recipes
    assert [one.sources for one in recipes[3]] == [(2,)]


def test_a_value_that_was_overwritten_before_it_was_packed_is_made_again() -> None:
    """x is read by f, then changed and packed: f's result needs the old x, which nobody has."""
    maker = TraceMaker()
    weight = maker.make(8, Role.PARAMETER, before=True)
    x, y = maker.make(100), maker.make(100)
    maker.op([weight], [x], 1.0)
    maker.op([x], [y], 1.0)
    maker.op([x], [x], 1.0)
    trace = finished(maker, maker.pack(x), maker.pack(y))
    recipes = find_recipes(trace, costs(trace))
    assert (recipes[y][0].ops, recipes[y][0].sources) == ((0, 1), (weight,))
    assert (recipes[x][0].ops, recipes[x][0].sources) == ((0, 2), (weight,))


def test_a_recipe_that_would_change_its_source_is_refused() -> None:
    """x is packed at version 0, and an operation that makes y changes it: a repetition would change it again."""
    maker = TraceMaker()
    x, y = maker.make(100, Role.INPUT, before=True), maker.make(100)
    packed = maker.pack(x)
    maker.op([x], [y, x], 1.0)
    maker.op([x], [x], 1.0)
    trace = finished(maker, packed, maker.pack(y))
    assert y not in find_recipes(trace, costs(trace))


def test_a_parameter_that_changes_before_the_last_use_is_no_source() -> None:
    maker = TraceMaker()
    weight = maker.make(8, Role.PARAMETER, before=True)
    y = maker.make(100)
    maker.op([weight], [y], 1.0)
    packed = maker.pack(y)
    maker.op([weight], [weight], 1.0)
    trace = finished(maker, packed)
    assert find_recipes(trace, costs(trace)) == {}


def test_recipes_are_not_longer_than_asked_for() -> None:
    maker = TraceMaker()
    here = maker.make(10, Role.INPUT, before=True)
    first = maker.pack(here)
    for _ in range(5):
        after = maker.make(10)
        maker.op([here], [after], 1.0)
        here = after
    trace = finished(maker, first, maker.pack(here))
    assert find_recipes(trace, costs(trace), most_ops=4) == {}
    assert len(find_recipes(trace, costs(trace), most_ops=5)[here][0].ops) == 5
