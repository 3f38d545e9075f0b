"""Every error has a code that programs can rely on."""

import ast
import functools
import pickle
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import trimaran
from trimaran.base import errors
from trimaran.base.errors import InputError, TrimaranError

SOURCE = Path(trimaran.__file__).parent
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*")


def codes_in(tree: ast.AST) -> Iterator[str]:
    """The codes that a module gives to errors."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword):
            name, given = node.arg, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, given = node.targets[0].id, node.value
        else:
            continue
        if name != "code":
            continue
        for part in ast.walk(given):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


@functools.cache
def codes_by_module() -> dict[str, list[str]]:
    """The modules in which each code is given."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for code in codes_in(ast.parse(path.read_text(encoding="utf-8"))):
            found[code].append(str(path.relative_to(SOURCE)))
    return found


def kinds() -> list[type[TrimaranError]]:
    """All classes of errors."""
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TrimaranError)]


def test_codes_are_a_subject_and_a_problem() -> None:
    found = codes_by_module()
    assert len(found) > 500
    assert [code for code in found if not CODE.fullmatch(code)] == []


def test_a_code_is_given_in_one_place() -> None:
    assert {code: modules for code, modules in codes_by_module().items() if len(modules) > 1} == {}


def test_every_class_has_a_default_code_of_its_own() -> None:
    codes = [kind("wrong").code for kind in kinds()]
    assert codes == ["internal", "input", "infeasible", "solver", "environment", "execution", "corrupt-data"]


@pytest.mark.parametrize("code", [None, "strategy.batch-not-divisible"])
def test_the_code_and_the_figures_are_kept_in_another_process(code: str | None) -> None:
    again = pickle.loads(pickle.dumps(InputError("wrong", code=code, batch=30)))  # noqa: S301 our own bytes
    assert (type(again), again.message, again.code, again.figures) == (
        InputError,
        "wrong",
        code or "input",
        {"batch": 30},
    )
