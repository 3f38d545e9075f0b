"""A name says which class is meant: no two classes of the package share one."""

import ast
from collections import defaultdict
from pathlib import Path

import trimaran

PACKAGE = Path(trimaran.__file__).parent


def test_no_two_classes_share_a_name() -> None:
    files = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert {name: places for name, places in files.items() if len(places) > 1} == {}
