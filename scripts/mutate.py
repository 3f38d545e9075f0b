"""Whether the tests notice a fault: mutations of the core, and the tests nearest to each of them.

    python scripts/mutate.py --count 200 --budget 60 --out mutations.json

Mutations are drawn over all sites of the core with a fixed seed: an operator replaced, a constant changed, a condition
reversed. Each is written into a copy of the package, and the tests nearest to the module run on it until one fails:
test files that import the module, then those that import what imports it, until they take `--budget` seconds without a
mutation. What that leaves alive is a survivor; the other tests of the suite may still notice it.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
LEFT_OUT = ("gpu", "golden", "field")
"""Folders of tests that take long, or that need a device."""


@dataclass(frozen=True)
class Mutation:
    """One change of one expression.

    Attributes:
        module: below `src`
        line: of the expression
        before: its source
        after: what stands there instead
        start: of the expression, as line and column in bytes
        end: likewise
    """

    module: str
    line: int
    before: str
    after: str
    start: tuple[int, int]
    end: tuple[int, int]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutation.

    Attributes:
        mutation: the change
        outcome: "killed", "survived", "timeout", or "no tests"
        tests: files that ran, the nearest first
        seconds: that they took [s]
    """

    mutation: Mutation
    outcome: str
    tests: tuple[str, ...]
    seconds: float


def sites(tree: Path) -> Iterator[Mutation]:
    """Every mutation of the core."""
    for path in sorted((tree / "src/trimaran").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parsed = ast.parse(text)
        said = {
            id(item)
            for node in ast.walk(parsed)
            if isinstance(node, (ast.JoinedStr, ast.arg, ast.AnnAssign, ast.Raise))
            for part in ([node.annotation] if isinstance(node, (ast.arg, ast.AnnAssign)) else [node])
            if part is not None
            for item in ast.walk(part)
        }
        for node in ast.walk(parsed):
            if isinstance(node, ast.expr) and id(node) not in said:
                for changed in changes(node):
                    yield Mutation(
                        str(path.relative_to(tree / "src")),
                        node.lineno,
                        ast.unparse(node),
                        f"({ast.unparse(changed)})",
                        (node.lineno, node.col_offset),
                        (node.end_lineno or 0, node.end_col_offset or 0),
                    )


def changes(node: ast.expr) -> Iterator[ast.expr]:
    """What one expression becomes."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in OPERATORS and not isinstance(left, ast.Constant | ast.JoinedStr):
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.Compare(left, [op], rights) if type(op) in OPERATORS:
            yield ast.Compare(left, [OPERATORS[type(op)]()], rights)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(OPERATORS[type(op)](), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(value) if isinstance(value, bool):
            yield ast.Constant(not value)
        case ast.Constant(value) if isinstance(value, int | float):
            yield ast.Constant(value + 1 if isinstance(value, int) else value * 1.1 + 1e-3)
        case _:
            return


def write(mutation: Mutation, package: Path) -> None:
    """Put it into a copy of the package."""
    path = package / mutation.module
    lines = path.read_bytes().splitlines(keepends=True)
    (first, begin), (last, end) = mutation.start, mutation.end
    text = lines[first - 1][:begin] + mutation.after.encode() + lines[last - 1][end:]
    path.write_bytes(b"".join([*lines[: first - 1], text, *lines[last:]]))


def module_of(path: Path, root: Path) -> str:
    """The dotted name of a module."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: Path) -> dict[str, set[str]]:
    """Modules and test files, by what imports them; a name that a package hands on counts as its module's."""
    files = {module_of(path, tree / "src"): path for path in (tree / "src").rglob("*.py")}
    handed: dict[tuple[str, str], str] = {}
    for name, path in files.items():
        if path.name == "__init__.py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    handed.update({(name, alias.asname or alias.name): node.module for alias in node.names})
    users: dict[str, set[str]] = {}
    tests = [
        path
        for path in (tree / "tests").rglob("test_*.py")
        if path.relative_to(tree / "tests").parts[0] not in LEFT_OUT
    ]
    named = [(name, path) for name, path in files.items() if path.name != "__init__.py"]
    for user, path in [*named, *((str(path.relative_to(tree)), path) for path in tests)]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trimaran"):
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    origin = whole if whole in files else handed.get((str(node.module), alias.name), str(node.module))
                    users.setdefault(origin, set()).add(user)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    users.setdefault(alias.name, set()).add(user)
    return users


def nearest(users: dict[str, set[str]], module: str) -> list[str]:
    """Test files by their distance from a module, those of its name first."""
    seen, found = {module}, []
    queue = deque([(module, 0)])
    while queue:
        name, distance = queue.popleft()
        for user in sorted(users.get(name, ())):
            if user not in seen:
                seen.add(user)
                if user.endswith(".py"):
                    found.append((distance, module.rpartition(".")[2] not in user, user))
                else:
                    queue.append((user, distance + 1))
    return [user for _, _, user in sorted(found)]


class Tests:
    """The tests of a tree."""

    def __init__(self, tree: Path, budget_s: float, limit_s: float) -> None:
        self.tree, self.budget_s, self.limit_s = tree, budget_s, limit_s
        self.users = imports(tree)
        self._known: dict[str, tuple[bool, float]] = {}
        self._lock = Lock()

    def run(self, files: tuple[str, ...], package: Path, cache_folder: str) -> tuple[str, float]:
        """Run some on a package: "passed", "failed" or "timeout", and the time of the processor [s]."""
        environment = os.environ | {
            "PYTHONPATH": f"{package}:{self.tree}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TRIMARAN_CACHE": cache_folder,
        }
        marks = "not alone and not sweep" if "sweep:" in (self.tree / "pyproject.toml").read_text() else "not alone"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "-m", marks]
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, *files],
            cwd=self.tree,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return "timeout", time.monotonic() - start
        return ("passed" if status in (0, 5) else "failed"), time.monotonic() - start

    def chosen(self, module: str, package: Path) -> tuple[str, ...]:
        """The nearest files that pass without a mutation, within the budget."""
        chosen, spent = [], 0.0
        for file in nearest(self.users, module):
            with self._lock:
                known = self._known.get(file)
            if known is None:
                with tempfile.TemporaryDirectory() as folder:
                    status, took = self.run((file,), package, folder)
                known = status == "passed", took
                with self._lock:
                    self._known[file] = known
            if known[0]:
                chosen.append(file)
                spent += known[1]
            if spent >= self.budget_s or len(chosen) >= 12:
                break
        return tuple(chosen)


@cache
def plain(tree: Path) -> Path:
    """A copy of the package without a mutation."""
    folder = Path(tempfile.mkdtemp(prefix="plain-")) / "src"
    shutil.copytree(tree / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def judge(mutation: Mutation, tests: Tests) -> Outcome:
    """Run the nearest tests on a mutation."""
    module = module_of(Path(mutation.module), Path())
    files = tests.chosen(module, plain(tests.tree))
    if not files:
        return Outcome(mutation, "no tests", (), 0.0)
    with tempfile.TemporaryDirectory(prefix="mutated-") as name:
        package = Path(name) / "src"
        shutil.copytree(plain(tests.tree), package)
        write(mutation, package)
        status, took = tests.run(files, package, f"{name}/cache")
    outcome = {"passed": "survived", "failed": "killed"}.get(status, status)
    return Outcome(mutation, outcome, files, round(took, 1))


def main() -> None:
    """Draw mutations, judge each, and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="a checkout")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--budget", type=float, default=40.0, help="seconds that the tests of a mutation take without it"
    )
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which tests are ended")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pattern", default=".", help="of modules, as a regular expression")
    given = parser.parse_args()
    tree = given.tree.resolve()
    every = [site for site in sites(tree) if re.search(given.pattern, site.module)]
    drawn = random.Random(given.seed).sample(every, given.count)
    tests = Tests(tree, given.budget, given.limit)
    done: list[Outcome] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(lambda mutation: judge(mutation, tests), drawn):
            done.append(outcome)
            counts = Counter(one.outcome for one in done)
            report = {
                "sites": len(every),
                "seed": given.seed,
                "counts": counts,
                "mutations": [asdict(one) for one in done],
            }
            given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            print(  # noqa: T201
                len(done),
                dict(counts),
                f"{outcome.mutation.module}:{outcome.mutation.line}",
                outcome.outcome,
                flush=True,
            )
    shutil.rmtree(plain(tree).parent)


if __name__ == "__main__":
    main()
