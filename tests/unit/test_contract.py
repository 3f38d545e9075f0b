"""What a job trains is found by running it: the package reads no code of users, and replaces nothing of torch."""

import ast
from collections.abc import Iterator
from pathlib import Path

import trimaran

PACKAGE = Path(trimaran.__file__).parent

READS_CODE = {
    "dis",
    "ast",
    "tokenize",
    "bytecode",
    "getsource",
    "getsourcelines",
    "getclosurevars",
    "get_instructions",
    "co_code",
    "co_names",
    "co_consts",
}

OWN_TEXT = {"graph/sharding/calls.py", "runtime/communication/point_to_point.py"}
"""They parse what Trimaran has written itself."""

SCRIPTS = "rehearsal/"
"""Runs scripts of users under a simulated device."""


def test_no_code_of_users_is_read() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name not in OWN_TEXT and not name.startswith(SCRIPTS) and (read := READS_CODE & set(_names(path))):
            found[name] = read
    assert not found


def _names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # As of getattr.
            yield node.value
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (one.name for one in node.names)


PATCHES = (
    "rehearsal/",
    "memory_hooks/",
    "memory_budget/",
    "graph/capture/",
    "graph/flops.py",
    "measure/observe/on-path/",
)
"""What replaces functions of torch for what it is: a simulated device, memory plans, a graph of the model with its
operations, an observer in the path of a script."""

OWN_PROCESS = {"runtime/data/workers.py": ["torch_worker._worker_info"]}
"""In a process of the loader: what torch's loader tells a data set there."""


def test_nothing_of_torch_is_replaced() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if not name.startswith(PATCHES) and (replaced := list(_replaced(ast.parse(path.read_bytes())))):
            found[name] = replaced
    assert found == OWN_PROCESS


def _replaced(tree: ast.Module) -> Iterator[str]:
    """Attributes of what is imported from torch that are assigned to, deleted or set, as text."""
    of_torch = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            of_torch |= {(one.asname or one.name).partition(".")[0] for one in node.names if _is_torch(one.name)}
        elif isinstance(node, ast.ImportFrom) and _is_torch(node.module or ""):
            of_torch |= {one.asname or one.name for one in node.names}
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [one for target in node.targets for one in ast.walk(target) if isinstance(one, ast.expr)]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "delattr"):
            targets = [ast.Attribute(node.args[0], "…", ast.Store())]
        for target in targets:
            is_written = isinstance(getattr(target, "ctx", None), ast.Store | ast.Del)
            if is_written and _holder(target) in of_torch:
                yield ast.unparse(target)


def _is_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def _holder(target: ast.expr) -> str:
    """The name of what an attribute or an entry is of, through `vars`, and attributes."""
    holder = target.value if isinstance(target, ast.Attribute | ast.Subscript) else None
    if isinstance(holder, ast.Call) and getattr(holder.func, "id", "") == "vars":
        holder = holder.args[0]
    while isinstance(holder, ast.Attribute | ast.Subscript):
        holder = holder.value
    return holder.id if isinstance(holder, ast.Name) else ""
