"""How many files five commands go through, and how often a call leads back to one of them.

    python scripts/walks.py                # a table of the five
    python scripts/walks.py plan --files   # of one of them, with its files in the order in which they are entered

A file of the packages is entered where one of its functions is called; what runs when it is imported does not count,
nor does the code that dataclasses generate. A call from one file to another is an edge, counted once however often it
is made. Returns are edges beyond one for each file that is entered: there a reader who follows the calls from one file
to the next meets a file that is known already. Processes that a command starts are part of its walk. The cache is
empty.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WALKS = {
    "train": "-m trimaran train digits --devices 2 --epochs 1",
    "plan": "-m trimaran plan llama2:70b --cluster dgx-h100:128 --batch 1024",
    "memory": "-m trimaran memory vgg16 --device v100-sxm2-16gb --batch 64",
    "validate": "-m trimaran_studies validate --family memory",
    "step": "examples/own_loop.py",
}

NOTE = """
import os, sys, threading
_root, _path = {root!r} + os.sep, {path!r}
_file = os.open(_path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
_noted = set()
def _imported(frame):
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_root) and not code.co_flags & 1 and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False
def _note(frame, event, _):
    if event != "call":
        return
    code = frame.f_code
    if not code.co_filename.startswith(_root) or not code.co_flags & 1:  # bodies of modules and of classes
        return
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(_root):
        caller = caller.f_back
    edge = ("" if caller is None else caller.f_code.co_filename, code.co_filename)
    if edge not in _noted and not _imported(caller):
        _noted.add(edge)
        os.write(_file, "\\t".join(edge).encode() + b"\\n")
threading.setprofile(_note)
sys.setprofile(_note)
"""
"""Is imported when a process starts, also one that a command starts: notes each edge once a process."""


@dataclass(frozen=True)
class Walk:
    """What one command goes through.

    Attributes:
        files: that are entered, in this order, from the folder of packages
        edges: calls from one of them to another
    """

    files: tuple[str, ...]
    edges: frozenset[tuple[str, str]]

    @property
    def returns(self) -> int:
        """Edges beyond one for each file but the first."""
        return max(0, len(self.edges) - len(self.files) + 1)


def walk(command: Sequence[str], source: Path) -> Walk:
    """Run a command of the interpreter with the packages of a folder, and note where it goes."""
    with tempfile.TemporaryDirectory(prefix="walk-") as name:
        folder = Path(name)
        (folder / "note").mkdir()
        path = folder / "edges"
        (folder / "note/sitecustomize.py").write_text(NOTE.format(root=str(source), path=str(path)))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(folder / "note"), str(source)]),
            "TRIMARAN_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        (folder / "work").mkdir()
        process = subprocess.run(
            [sys.executable, *command],
            cwd=folder / "work",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode != 0:
            sys.exit(f"{shlex.join(command)} ended with {process.returncode}:\n{process.stdout}{process.stderr}")
        files: dict[str, None] = {}
        edges = set()
        for line in path.read_text().splitlines():
            caller, callee = (str(Path(end).relative_to(source)) if end else "" for end in line.split("\t"))
            files[callee] = None
            if caller and caller != callee:
                edges.add((caller, callee))
    return Walk(tuple(files), frozenset(edges))


def main() -> None:
    """Read the options, walk, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("walks", nargs="*", metavar="WALK", help=f"of {', '.join(WALKS)}; all where none is given")
    parser.add_argument("--files", action="store_true", help="list the files too, with the files that call each")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the folder of the packages")
    arguments = parser.parse_args()
    if unknown := set(arguments.walks) - WALKS.keys():
        parser.error(f"no such walk: {', '.join(sorted(unknown))}")
    print(f"{'walk':10}{'files':>6}{'returns':>9}")  # noqa: T201
    for name in arguments.walks or WALKS:
        command = shlex.split(WALKS[name])
        if not command[0].startswith("-"):
            command[0] = str(ROOT / command[0])
        found = walk(command, arguments.source.resolve())
        print(f"{name:10}{len(found.files):6}{found.returns:9}", flush=True)  # noqa: T201
        if arguments.files:
            for file in found.files:
                callers = sorted(caller for caller, callee in found.edges if callee == file)
                print(f"  {file}  <- {', '.join(callers)}")  # noqa: T201


if __name__ == "__main__":
    main()
