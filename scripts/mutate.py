"""Whether the tests notice a fault: mutations of the core, and the tests that reach each of them.

    python scripts/mutate.py --count 200 --budget 30 --out mutations.json

Mutations are drawn over all sites of the core with a fixed seed: an operator replaced, a constant changed, a condition
reversed. The suite is run once on a copy of the package that notes which test reaches which site, also in processes
that the test starts. Then each mutation is written into a copy of the package, and tests that reach it run until one
fails: those of the same room first, the quickest first, until they took `--budget` seconds without the mutation. What
that leaves alive is a survivor; a longer test of the suite may still notice it.
"""

import argparse
import ast
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
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
FOLDERS = ("tests/unit", "tests/property", "tests/published", "tests/forks", "tests/commands", "tests/distributed")
"""Of tests that notice faults; those of kept answers compare figures, which notice all and say nothing."""
MOST_TESTS = 60


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
        outcome: "killed", "survived", "timeout", or "not reached"
        tests: that ran
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


NOTE = """
import builtins as _builtins, os as _os
_noted = set()
def _reached(number):
    test = _os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (number, test) not in _noted:
        _noted.add((number, test))
        file = _os.open({reached!r}, _os.O_APPEND | _os.O_CREAT | _os.O_WRONLY)
        _os.write(file, f"{{number}}\\t{{test}}\\n".encode())
        _os.close(file)
_builtins._reached = _reached
"""
"""Runs when the package is imported: notes, once a process, that a test has reached a site."""

PLUGIN = """
import os
def pytest_runtest_logreport(report):
    if os.environ.get("PYTEST_XDIST_WORKER"):
        with open({durations!r}, "a") as file:
            file.write(f"{{report.nodeid}}\\t{{report.duration}}\\t{{report.outcome}}\\n")
"""
"""Notes how long each phase of a test took, and how it ended."""


def probe(mutations: Sequence[Mutation], package: Path) -> set[int]:
    """Put a note of its number in front of each site; the numbers of those where the grammar lets it be there."""
    probed: set[int] = set()
    by_file: dict[str, list[int]] = {}
    for number, mutation in enumerate(mutations):
        by_file.setdefault(mutation.module, []).append(number)
    for module, numbers in by_file.items():
        path = package / module
        for number in numbers:
            before = path.read_bytes()
            lines = before.splitlines(keepends=True)
            mutation = mutations[number]
            # A probe moves what is behind it on its line: sites are found again by their text.
            start = next(
                (
                    (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
                    for node in ast.walk(ast.parse(before))
                    if isinstance(node, ast.expr)
                    and node.lineno == mutation.line
                    and ast.unparse(node) == mutation.before
                ),
                None,
            )
            if start is None:
                continue
            first, begin, last, end = start
            lines[last - 1] = lines[last - 1][:end] + b"))" + lines[last - 1][end:]
            lines[first - 1] = (
                lines[first - 1][:begin] + f"(_reached({number}) or (".encode() + lines[first - 1][begin:]
            )
            path.write_bytes(b"".join(lines))
            try:
                compile(path.read_bytes(), str(path), "exec")
                probed.add(number)
            except SyntaxError:
                path.write_bytes(before)
    return probed


class Tests:
    """The tests of a tree, and which of them reach each mutation.

    Args:
        tree: a checkout
        mutations: that will be judged
        budget_s: of tests for a mutation, as long as they take without it [s]
        limit_s: after which tests are ended [s]
        jobs: processes in which the suite is run once
        folders: of tests
    """

    def __init__(
        self,
        tree: Path,
        mutations: Sequence[Mutation],
        *,
        budget_s: float,
        limit_s: float,
        jobs: int,
        folders: Sequence[str],
    ) -> None:
        self.tree, self.budget_s, self.limit_s = tree, budget_s, limit_s
        self.seconds: dict[str, float] = {}
        self.reaching: dict[int, list[str]] = {}
        self._reach(mutations, jobs, folders)

    def _reach(self, mutations: Sequence[Mutation], jobs: int, folders: Sequence[str]) -> None:
        """Run the suite once, on a copy that notes what is reached."""
        with tempfile.TemporaryDirectory(prefix="reached-") as name:
            folder = Path(name)
            package, reached, durations = folder / "src", folder / "reached", folder / "durations"
            shutil.copytree(plain(self.tree), package)
            probed = probe(mutations, package)
            init = package / "trimaran/__init__.py"
            text = init.read_text().splitlines(keepends=True)
            text.insert(ast.parse("".join(text)).body[0].end_lineno or 0, NOTE.format(reached=str(reached)))
            init.write_text("".join(text))
            (folder / "noted_durations.py").write_text(PLUGIN.format(durations=str(durations)))
            options = ["-n", str(jobs), "--dist", "loadfile", "-p", "noted_durations"]
            self._pytest([*options, *folders], f"{package}:{self.tree}:{folder}", folder / "cache", None)
            for line in durations.read_text().splitlines():
                test, took, outcome = line.split("\t")
                self.seconds[test] = self.seconds.get(test, 0.0) + float(took)
                if outcome != "passed":
                    self.seconds[test] = math.inf
            imported = set(range(len(mutations))) - probed
            for line in sorted(set(reached.read_text().splitlines())):
                number, _, test = line.partition("\t")
                if not test:
                    imported.add(int(number))
                elif math.isfinite(self.seconds.get(test, math.inf)):
                    self.reaching.setdefault(int(number), []).append(test)
            # What is evaluated when a module is imported: any test of its room may notice it.
            for number in imported - self.reaching.keys():
                room = Path(mutations[number].module).parts[1]
                self.reaching[number] = [
                    test for test, took in self.seconds.items() if f"/{room}" in test and math.isfinite(took)
                ]

    def _pytest(self, arguments: Sequence[str], path: str, cache_folder: Path, limit_s: float | None) -> int:
        """Run pytest; its exit status, or -1 where it took too long."""
        environment = os.environ | {
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TRIMARAN_CACHE": str(cache_folder),
        }
        marks = "not alone and not sweep" if "sweep:" in (self.tree / "pyproject.toml").read_text() else "not alone"
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "-m", marks, *arguments],
            cwd=self.tree,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return -1

    def run(self, tests: Sequence[str], package: Path, cache_folder: Path) -> tuple[str, float]:
        """Run some on a package: "survived", "killed" or "timeout", and how long they took [s]."""
        start = time.monotonic()
        status = self._pytest(["-x", *tests], f"{package}:{self.tree}", cache_folder, self.limit_s)
        outcome = {-1: "timeout", 0: "survived", 5: "survived"}.get(status, "killed")
        return outcome, time.monotonic() - start

    def chosen(self, number: int, mutation: Mutation) -> tuple[str, ...]:
        """Tests that reach a mutation, within the budget."""
        room = Path(mutation.module).parts[1]
        chosen, spent = [], 0.0
        for test in sorted(
            self.reaching.get(number, ()), key=lambda test: (f"/{room}" not in test, self.seconds[test])
        ):
            if chosen and spent + self.seconds[test] > self.budget_s:
                break
            chosen.append(test)
            spent += self.seconds[test]
            if len(chosen) == MOST_TESTS:
                break
        return tuple(chosen)


@cache
def plain(tree: Path) -> Path:
    """A copy of the package without a mutation."""
    folder = Path(tempfile.mkdtemp(prefix="plain-")) / "src"
    shutil.copytree(tree / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def judge(number: int, mutation: Mutation, tests: Tests) -> Outcome:
    """Run tests that reach a mutation on it."""
    chosen = tests.chosen(number, mutation)
    if not chosen:
        return Outcome(mutation, "not reached", (), 0.0)
    with tempfile.TemporaryDirectory(prefix="mutated-") as name:
        package = Path(name) / "src"
        shutil.copytree(plain(tests.tree), package)
        write(mutation, package)
        outcome, took = tests.run(chosen, package, Path(name) / "cache")
    return Outcome(mutation, outcome, chosen, round(took, 1))


def main() -> None:
    """Draw mutations, judge each, and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="a checkout")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--budget", type=float, default=30.0, help="seconds that the tests of a mutation take without it"
    )
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which tests are ended")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pattern", default=".", help="of modules, as a regular expression")
    parser.add_argument("tests", nargs="*", help="folders or files of tests; default: all but kept answers")
    given = parser.parse_args()
    tree = given.tree.resolve()
    every = [site for site in sites(tree) if re.search(given.pattern, site.module)]
    drawn = random.Random(given.seed).sample(every, given.count)
    tests = Tests(
        tree, drawn, budget_s=given.budget, limit_s=given.limit, jobs=given.jobs, folders=given.tests or FOLDERS
    )
    done: list[Outcome] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(lambda one: judge(*one, tests), enumerate(drawn)):
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
