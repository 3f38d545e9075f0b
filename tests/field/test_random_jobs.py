"""Random jobs under random plans train what their plain loop trains, or are refused before they train.

Two hundred of them: `benchmarks/matrix/random_jobs.py`. Here a dozen, and those that were wrong once, made simple.
"""

import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.field.cells import DEFECTS
from tests.field.drawn import Cell, Recipe, cells_of, draw_recipes
from tests.forks.client import server

EXAMPLES = 12
STEPS = 3
LIMIT_S = 100.0

ONCE_WRONG: dict[str, Recipe] = {
    # FSDP2 did not see the loss in an object of a class of the user's: nothing was scattered.
    "own_output": Recipe(form="own", kinds=("zero2", "zero3m2")),
    # What is drawn for nodes was not told apart by samples, and the job refused.
    "noise_on_nodes": Recipe(modality="graph", form="keys", loss="mean", blocks=("noise", "edges"), kinds=("dp2",)),
}
"""By what was wrong, recipes that a plan trained otherwise, or was refused for; all are trained."""

REFUSED: dict[str, tuple[Recipe, str]] = {
    # Few batches take the way that others take.
    "branch": (Recipe(blocks=("branch",), kinds=("dp2",)), "depends on values of the batch"),
    # 5 samples in 3 parts: batch norm would raise after two microbatches.
    "one_sample": (Recipe(blocks=("batch_norm",), batch=5, drop_last=True, kinds=("m3",)), "fails on parts of 1 "),
    "average": (Recipe(blocks=("average",), kinds=("dp2", "m2")), "changes the buffer"),
}
"""Recipes that cannot be right, and of what the refusal speaks."""


def write_cells(path: str, recipes: Sequence[Recipe]) -> None:
    """What came of recipes, in a process that can be forked: it has one thread."""
    Path(path).write_bytes(pickle.dumps([cells_of(recipe, steps=STEPS) for recipe in recipes]))


def run(recipes: Sequence[Recipe], folder: Path) -> list[list[Cell]]:
    folder.mkdir()
    found, output = folder / "cells", folder / "output"
    with output.open("wb") as stream, Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), stream.fileno(), stream.fileno())
        process = server().fork(
            write_cells, str(found), recipes, streams=streams, environment=dict(os.environ), folder=folder
        )
    try:
        assert process.wait(LIMIT_S) == 0, output.read_text()
    finally:
        process.end()
    return pickle.loads(found.read_bytes())  # type: ignore[no-any-return]  # noqa: S301


@pytest.mark.timeout(120)
def test_random_jobs_are_right_or_refused(tmp_path: Path) -> None:
    recipes = [replace(recipe, kinds=recipe.kinds[:1]) for recipe in draw_recipes(EXAMPLES)]
    cells = []
    server()
    with ThreadPoolExecutor(2) as pool:
        halves = pool.map(run, (recipes[::2], recipes[1::2]), (tmp_path / "even", tmp_path / "odd"))
        for half, answers in zip((recipes[::2], recipes[1::2]), halves, strict=True):
            for recipe, answer in zip(half, answers, strict=True):
                for cell in answer:
                    assert cell.verdict not in DEFECTS, f"{cell.verdict}, {cell.kind}: {cell.detail}; {recipe}"
                cells += answer
    assert len(cells) == EXAMPLES
    assert sum(cell.verdict == "equal" for cell in cells) > len(cells) / 2


@pytest.mark.timeout(120)
def test_what_was_wrong_once_is_right_or_refused(tmp_path: Path) -> None:
    refused = {name: recipe for name, (recipe, _) in REFUSED.items()}
    recipes = {**ONCE_WRONG, **refused}
    for (name, recipe), answer in zip(recipes.items(), run(list(recipes.values()), tmp_path / "once"), strict=True):
        assert len(answer) == len(recipe.kinds)
        for cell in answer:
            assert cell.verdict == ("refused" if name in refused else "equal"), f"{name}, {cell.kind}: {cell.detail}"
            assert name not in refused or REFUSED[name][1] in cell.detail
