"""The path of somebody who has never seen Trimaran: build the wheel, install it in a fresh environment, ask, train.

    python scripts/newcomer.py
    python scripts/newcomer.py --newest                   # with what pip takes today, in place of constraints.txt
    python scripts/newcomer.py --folder /tmp/newcomer     # it stays, with all that is printed

Nothing of this repository is seen after the wheel was built, and nothing of an earlier run. The time of each step is
printed in a table. The exit code is 1 where a step fails, or prints a warning that `EXPLAINED` does not list.
"""

import argparse
import email.parser
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[1]

ADDRESS = "https://trimaran.example"
"""Of the repository, where `TRIMARAN_REPOSITORY_URL` does not say it: it shows that a wheel has what it is given."""

SUSPECT = re.compile(r"\bwarn|Warning|Traceback|deprecat|^ERROR|\[E\d", re.IGNORECASE)
"""What a newcomer would have to look up."""

EXPLAINED: Mapping[str, str] = {
    r"^WARNING: Location 'file:.*' is ignored": "pip is told of a folder of packages that does not have this one",
}
"""Patterns of suspect lines that may be printed, each with the reason."""

PLAN = ("llama2:70b", "--cluster", "dgx-h100:128", "--devices", "1024", "--batch", "1024", "--output", "plan.json")


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is done.

    Attributes:
        name: for people
        seconds: that it took [s]
    """

    name: str
    seconds: float


class Failed(Exception):
    """A step failed, or printed what nobody explains."""


class Newcomer:
    """Somebody with an empty folder.

    Args:
        folder: where all is done; what a step prints is in `<step>.log`
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outside = folder / "outside"
        self.outside.mkdir(parents=True)
        self.python = folder / "venv" / "bin" / "python"
        self.done: list[Step] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what is done in the block.

        Args:
            name: of the step
        """
        sys.stderr.write(f"newcomer: {name}\n")
        start = time.perf_counter()
        try:
            yield
        finally:
            self.done.append(Step(name, time.perf_counter() - start))

    def run(self, name: str, command: Sequence[str | Path], **variables: str) -> str:
        """Run a command outside of the repository, as a step.

        Args:
            name: of the step
            command: program and arguments
            **variables: of its environment

        Returns:
            What it printed.

        Raises:
            Failed: it failed, or printed what nobody explains
        """
        with self.step(name):
            done = subprocess.run(
                [str(word) for word in command],
                cwd=self.outside,
                env=self._environment() | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        (self.folder / f"{re.sub(r'[^a-z0-9]+', '-', name)}.log").write_text(done.stdout, encoding="utf-8")
        if done.returncode:
            raise Failed(f"{name}: exit code {done.returncode}\n{done.stdout}")
        strange = unexplained(done.stdout)
        if strange:
            raise Failed(f"{name} prints what nobody explains:\n" + "\n".join(strange))
        return done.stdout

    def trimaran(self, *words: str) -> str:
        """Run a command of the installed program, as a step.

        Args:
            *words: behind `trimaran`
        """
        return self.run(f"trimaran {words[0]} {words[1] if words[1:] else ''}".strip(), [self._program, *words])

    @property
    def _program(self) -> Path:
        return self.python.with_name("trimaran")

    def _environment(self) -> dict[str, str]:
        """Without paths into a repository or another environment, and with a cache that is empty."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        path = os.pathsep.join([str(self.python.parent), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"])
        cache = str(self.folder / "cache")
        return kept | {"PATH": path, "TRIMARAN_CACHE": cache, "PIP_ROOT_USER_ACTION": "ignore", "COLUMNS": "80"}


def unexplained(printed: str) -> list[str]:
    r"""Lines that look like a warning and are not explained.

    Args:
        printed: by a command

    Example:
        >>> unexplained("all is well\nUserWarning: it is not")
        ['UserWarning: it is not']
    """
    suspect = [line for line in printed.splitlines() if SUSPECT.search(line)]
    return [line for line in suspect if not any(re.search(pattern, line) for pattern in EXPLAINED)]


def check_wheel(path: Path, address: str) -> None:
    """Refuse a wheel that is not pure, or does not say what a page of a registry shows.

    Args:
        path: of the wheel
        address: of the repository

    Raises:
        Failed: with all that is wrong
    """
    wrong = []
    if not path.name.endswith("-py3-none-any.whl"):
        wrong.append(f"{path.name} is not pure")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        wrong += [f"{name} is no part of a pure wheel" for name in names if name.endswith((".so", ".pyc"))]
        wrong += [f"{name} should not be in it" for name in names if name.startswith(("tests/", "benchmarks/"))]
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        told = email.parser.Parser().parsestr(archive.read(metadata).decode("utf-8"))
    wrong += list(_wrong_metadata(told, address))
    if wrong:
        raise Failed("\n".join(wrong))


def _wrong_metadata(told: Message, address: str) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = str(told.get_payload())
    if told["Description-Content-Type"] != "text/markdown" or not readme.lstrip().startswith("# Trimaran"):
        yield "the metadata has no readme"
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", readme, flags=re.MULTILINE | re.DOTALL)):
        if not target.startswith(("https://", "#")):
            yield f"a link of the readme leads nowhere outside of the repository: {target}"
    urls = told.get_all("Project-URL") or []
    if not any(url.startswith("Repository, ") and address in url for url in urls):
        yield f"the metadata has no address of the repository: {urls}"
    needed = {"".join(name.split()) for name in told.get_all("Requires-Dist") or []}
    torch = next(name for name in project["dependencies"] if name.startswith("torch"))
    ends = set(torch.removeprefix("torch").split(","))
    if not any(name.startswith("torch") and set(name.removeprefix("torch").split(",")) == ends for name in needed):
        yield f"the metadata does not say {torch}: {sorted(needed)}"
    if told["Requires-Python"] != project["requires-python"]:
        yield f"the metadata says Python {told['Requires-Python']}"


def install(newcomer: Newcomer, python: str, *, newest: bool) -> None:
    """The wheel, and a fresh environment with it.

    Args:
        newcomer: with an empty folder
        python: that makes the environment
        newest: what it needs is not held to constraints.txt

    Raises:
        Failed: a step failed, or printed what nobody explains
    """
    wheels = newcomer.folder / "wheels"
    address = os.environ.get("TRIMARAN_REPOSITORY_URL") or ADDRESS
    constraints = str(ROOT / "constraints.txt")
    newcomer.run("make an environment", [python, "-m", "venv", newcomer.python.parent.parent])
    pip = [newcomer.python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    newcomer.run(
        "build the wheel",
        [*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT],
        TRIMARAN_REPOSITORY_URL=address,
        PIP_CONSTRAINT=constraints,
    )
    (wheel,) = wheels.glob("trimaran-*.whl")
    with newcomer.step("check the wheel"):
        check_wheel(wheel, address)
    newcomer.run("install the wheel", [*pip, "install", *(() if newest else ("--constraint", constraints)), wheel])
    where = "import trimaran; print(trimaran.__file__)"
    if not newcomer.run("import it", [newcomer.python, "-c", where]).startswith(str(newcomer.folder)):
        raise Failed("another Trimaran than the installed one is imported")


def use(newcomer: Newcomer) -> None:
    """First commands in the environment.

    Args:
        newcomer: who has installed the wheel

    Raises:
        Failed: a step failed, or printed what nobody explains
    """
    newcomer.trimaran("doctor")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (job,) = re.findall(r"## Your job\n\n```python\n(.*?)```", readme, re.DOTALL)
    (newcomer.outside / "job.py").write_text(job, encoding="utf-8")
    newcomer.trimaran("rehearse", "--world", "2", "--", "job.py")
    newcomer.trimaran("plan", "job.py:make_job", "--devices", "2", "--output", "job.json")
    newcomer.trimaran("train", "job.py:make_job", "--plan", "job.json")
    longer = job.replace("global_batch_size=64,", "global_batch_size=64, epochs=10,")  # enough steps to be seen
    (newcomer.outside / "longer.py").write_text(longer, encoding="utf-8")
    newcomer.trimaran("observe", "--", str(newcomer.python), "longer.py")
    newcomer.trimaran("plan", *PLAN)
    newcomer.trimaran("report", "plan.json", "--output", "plan.html")
    newcomer.trimaran("train", "digits", "--devices", "2")
    *_, run = sorted((newcomer.outside / "runs").iterdir(), key=lambda made: made.stat().st_mtime)
    newcomer.trimaran("report", str(run.relative_to(newcomer.outside)), "--output", "run.html")
    for page in ("plan.html", "run.html"):
        nbytes = (newcomer.outside / page).stat().st_size
        if not 0 < nbytes < 2_000_000:
            raise Failed(f"{page} has {nbytes:,} bytes; a report has fewer than 2,000,000")


def main() -> int:
    """Walk the path, and print how long each step took."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--folder", type=Path, help="of all files, new or empty; default: a temporary one")
    arguments.add_argument("--python", default=sys.executable, help="makes the environment")
    arguments.add_argument("--newest", action="store_true", help="the dependencies that pip takes today")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="trimaran-newcomer-") as temporary:
        newcomer = Newcomer((asked.folder or Path(temporary)).absolute())
        told = ""
        try:
            install(newcomer, asked.python, newest=asked.newest)
            use(newcomer)
        except Failed as failed:
            told = str(failed)
    width = max(len(step.name) for step in newcomer.done)
    steps = [*newcomer.done, Step("all", sum(step.seconds for step in newcomer.done))]
    sys.stdout.write("".join(f"{step.name:<{width}}  {step.seconds:7.1f} s\n" for step in steps))
    if told:
        sys.stderr.write(f"newcomer: {told}\n")
    return 1 if told else 0


if __name__ == "__main__":
    raise SystemExit(main())
