"""What a job is trained by is found by running it: the package reads no code of users, and replaces nothing of torch.

What is left of both is listed here, by file, and the lists only get shorter.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import trimaran

PACKAGE = Path(trimaran.__file__).parent

READS_CODE = {"dis", "ast", "getsource", "getclosurevars", "co_code", "co_names", "co_consts"}

OWN_TEXT = {"graph/sharding/calls.py", "runtime/communication/point_to_point.py"}
"""They parse what Trimaran has written itself."""

SCRIPTS = "rehearsal/"
"""Runs scripts of users under a simulated device."""

STILL_READING = {
    "graph/optimizers.py": {"getclosurevars"},
    "user_code/held_state.py": {"dis", "co_names", "co_consts"},
}

OF_TORCH = {"torch", "dist", "distributed_c10d", "clip_grad", "prune", "torch_worker", "nn", "functional"}


def test_no_code_of_users_is_read_but_where_it_is_listed() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name not in OWN_TEXT and not name.startswith(SCRIPTS) and (read := READS_CODE & set(_names(path))):
            found[name] = read
    assert found == STILL_READING


def _names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (one.name for one in node.names)


PATCHES = {"rehearsal", "memory_hooks", "measure"}
"""Rooms that replace functions of torch for what they are: a simulated device, memory plans, an observer."""

STILL_ASSIGNING = {
    "graph/capture/export.py",
    "runtime/data/workers.py",
}


def test_nothing_of_torch_is_replaced_but_where_it_is_listed() -> None:
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name.split("/")[0] not in PATCHES and any(map(_is_of_torch, _assigned(path))):
            found.add(name)
    assert found == STILL_ASSIGNING


def _assigned(path: Path) -> Iterator[ast.expr]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Assign):
            yield from (one for target in node.targets for one in ast.walk(target) if isinstance(one, ast.expr))


def _is_of_torch(target: ast.expr) -> bool:
    holder = target.value if isinstance(target, ast.Attribute | ast.Subscript) else None
    if isinstance(holder, ast.Call) and getattr(holder.func, "id", "") == "vars":
        holder = holder.args[0]
    while isinstance(holder, ast.Attribute):
        holder = holder.value
    return isinstance(holder, ast.Name) and holder.id in OF_TORCH
