"""Recipes, followed operation by operation."""

from trimaran.graph.trace.types import Role, StepTrace, Tick
from trimaran.program.memory import RecomputeRecipe


def check_recipe(trace: StepTrace, recipe: RecomputeRecipe) -> None:
    """See that a recipe makes its storage from what it says it reads: each operation can be repeated, and changes no
    source.
    """
    made: dict[int, int] = {}
    for moment in recipe.ops:
        op = trace.events[moment]
        assert not isinstance(op, Tick), moment
        assert op.repeatable, moment
        statistics = {number for number, _ in op.writes if trace.storages[number].role == Role.BUFFER}
        for number, version in op.reads:
            # What is read is a source, or made by then.
            assert number in statistics or number in recipe.sources or made.get(number) == version, (moment, number)
        for number, version in op.writes:
            if number in statistics:
                continue
            assert number not in recipe.sources, (moment, number)
            made[number] = version
    assert made.get(recipe.storage) == trace.storages[recipe.storage].version, "it does not make its packed version"
