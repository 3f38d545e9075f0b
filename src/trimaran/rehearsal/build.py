"""Whether this build of torch can stand in for a device: its files are looked at, then it is tried once.

files of torch   a release that is supported, whose headers say where its tables have what is replaced: in
milliseconds, and torch is not imported
self_test.py     rehearsed as any script is; what must come of it is known by hand. Kept by build
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import re
import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trimaran.base.errors import EnvironmentProblem, TrimaranError
from trimaran.base.files import put_in_place, read_bytes, temporary_folder
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.system import SUPPORTED_TORCH, needs_linux
from trimaran.rehearsal.request import Gpu, RankRequest

TRIED_TORCH = "2.13.0"
"""The release that every change is tested with."""

_GUARD_HEADERS = ("c10/core/impl/DeviceGuardImplInterface.h",)
_HOOKS_HEADERS = ("ATen/detail/AcceleratorHooksInterface.h", "ATen/detail/CUDAHooksInterface.h")
"""Of each table, with those of what its class extends ahead."""

GUARD = ("getDevice", "setDevice", "deviceCount")
"""What is asked of the guard's table."""

HOOKS = {
    "isBuilt": "one",
    "isAvailable": "one",
    "hasPrimaryContext": "zero",
    "init": "nothing",
    "setCurrentDevice": "nothing",
    "getCurrentDevice": "zero",
    "exchangeDevice": "zero",
    "maybeExchangeDevice": "zero",
    "hasCUDA": "one",
}
"""What is answered in the table of hooks, by name."""

_SELF_TEST = Path(__file__).with_name("self_test.py")
_KEPT = "torch-builds"
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Build:
    """A build of torch, as its files say.

    Attributes:
        version: such as "2.14.1+cu130"
        kind: "CPU", or what it is built for, such as "CUDA 13.0"
        folder: of the package
        commit: of its source
    """

    version: str
    kind: str
    folder: Path
    commit: str

    def __str__(self) -> str:
        return f"torch {self.version} ({self.kind})"


def find_build() -> Build:
    """The torch that a rank would import.

    Raises:
        EnvironmentProblem: there is none
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise _refused("torch is not installed", "rehearse.no-torch")
    folder = Path(found.origin).parent
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError as error:
        raise _refused(f"torch in {folder} does not say what it is ({error})", "rehearse.torch-build") from error
    said = dict(re.findall(r"^(\w+)\s*(?::[^=\n]*)?=\s*'([^']*)'", text, flags=re.MULTILINE))
    kinds = {"hip": "ROCm", "xpu": "XPU", "cuda": "CUDA"}
    kind = next((f"{title} {said[name]}" for name, title in kinds.items() if said.get(name)), "CPU")
    return Build(said.get("__version__", "?"), kind, folder, said.get("git_version", ""))


@cache
def places(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Where the guard's functions and those of the hooks stand in their tables, the first being 0.

    Args:
        folder: of torch

    Raises:
        LookupError: the headers are not there, or lack what is replaced
    """
    guard, hooks = (_declared(folder / "include", names) for names in (_GUARD_HEADERS, _HOOKS_HEADERS))
    missing = sorted({*GUARD} - {*guard} | {*HOOKS} - {*hooks})
    if missing:
        raise LookupError(f"its headers do not declare {', '.join(missing)}")
    return guard, hooks


def _declared(root: Path, headers: tuple[str, ...]) -> dict[str, int]:
    """Places of a C++ class's virtual functions.

    Source:
        Itanium C++ ABI, 2.5.2: in the order in which they are declared, a destructor twice; what a class adds follows
        what it extends, and what overrides keeps its place.
    """
    found: dict[str, int] = {}
    place = 0
    for header in headers:
        try:
            text = (root / header).read_text(encoding="utf-8")
        except OSError as error:
            raise LookupError(f"it comes without {header}") from error
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
        text = re.sub(r"^#ifdef USE_ROCM.*?^#endif", "", text, flags=re.DOTALL | re.MULTILINE)
        for destructor, name in re.findall(r"\bvirtual\b[^;{(]*?(~?)\b(\w+)\s*\(", text):
            if name not in found or destructor:
                found.setdefault(destructor + name, place)
                place += 2 if destructor else 1
    return found


def check_build(kept: Path, progress: Progress = ignore_progress) -> Build:
    """Refuse a torch that cannot stand in for a device. What was tried once with a build is not tried again.

    Args:
        kept: folder of the cache
        progress: is told while it is tried

    Raises:
        EnvironmentProblem: none, one that is not supported, or one that fails the self-test; with the commands that
            make an environment that works; or this is not Linux
    """
    needs_linux("rehearsing a script")
    build = look_at_build()
    path = kept / _KEPT / f"{_key(build)}.json"
    try:
        wrong = str(json.loads(read_bytes(path))["wrong"])
    except (TrimaranError, OSError, ValueError, KeyError, TypeError):
        progress("trying this build of torch, once", 0, 1)
        wrong = tried()
        progress("trying this build of torch, once", 1, 1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put_in_place(path, json.dumps({"torch": str(build), "wrong": wrong}).encode())
        except OSError:
            pass  # it is tried again next time
    if wrong:
        raise _refused(f"{build} does not behave as a rehearsal needs: {wrong}", "rehearse.torch-untrue")
    return build


def look_at_build() -> Build:
    """Refuse a torch that cannot stand in for a device as far as its files say; nothing is imported.

    Raises:
        EnvironmentProblem: see `check_build`
    """
    build = find_build()
    release = tuple(int(part) for part in re.findall(r"\d+", build.version)[:2])
    first, last = SUPPORTED_TORCH
    if not first <= release <= last:
        span = " to ".join(".".join(map(str, end)) for end in SUPPORTED_TORCH)
        raise _refused(f"a rehearsal runs on torch {span}; this is {build.version}", "rehearse.torch-version")
    if build.kind.partition(" ")[0] not in ("CPU", "CUDA"):
        raise _refused(f"a rehearsal runs on builds for the CPU or for CUDA; this is {build}", "rehearse.torch-build")
    try:
        places(build.folder)
    except LookupError as error:
        raise _refused(f"a rehearsal does not know {build}: {error}", "rehearse.torch-unknown") from error
    return build


def tried() -> str:
    """Rehearse the self-test.

    Returns:
        What is not as it must be; empty: nothing.

    Raises:
        EnvironmentProblem: a process cannot be started
    """
    from trimaran.rehearsal.launch import run_ranks

    with temporary_folder("trimaran-build-") as folder:
        request = RankRequest(
            script=str(_SELF_TEST),
            rank=0,
            world=2,
            per_node=2,
            gpu=Gpu("a GPU", "h100-sxm", 80 * 2**30, (9, 0), 132),
            together=(0,),
            meeting=str(folder),
            record=str(folder / "record"),
            output=str(folder / "output"),
            most_steps=sys.maxsize,
            most_seconds=_LIMIT_S,
            patience_s=1.0,
        )
        (run,) = run_ranks([request], folder=folder)
    record = run.record
    if record.end.how != "finished":
        lines = [line.strip() for line in run.printed.strip().splitlines()]
        return lines[-1] if lines else record.end.text or f"its process ended with status {run.status}"
    asked = Counter((one.operation, one.nbytes) for one in record.collectives)
    wrong = [f"{asked[call]} of {call}, not {number}" for call, number in _EXCHANGED.items() if asked[call] != number]
    return f"the self-test's exchanges: {'; '.join(wrong)}" if wrong else ""


_LAYER_BYTES = 4 * (64 + 64 * 3 * 64 + 64 * 64)
"""Of the self-test's layer, in fp32: a norm and two products [bytes]."""

_EXCHANGED = {
    ("all_reduce", _LAYER_BYTES): 2,
    ("all_gather", _LAYER_BYTES): 2,
    ("reduce_scatter", _LAYER_BYTES): 2,
    ("all_reduce", 4 * 256): 1,
}
"""What the self-test exchanges, with the bytes of each and how often: two steps of DDP, two of FSDP2, one by itself."""


def _key(build: Build) -> str:
    """Of what a trial depends on: the build and where it lies, the interpreter, this room."""
    digest = hashlib.sha256(f"{build} {build.commit} {build.folder} {sys.version}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _refused(wrong: str, code: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"{wrong}: {WAY_OUT}:\n{commands()}", code=code, wrong=wrong)


WAY_OUT = "make an environment that can"


def commands() -> str:
    """The two commands that make an environment in which scripts are rehearsed."""
    try:
        installed = importlib.metadata.distribution("trimaran")
        origin = json.loads(installed.read_text("direct_url.json") or "{}")["url"]
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError):
        origin = "trimaran"
    source = shlex.quote(str(origin).removeprefix("file://"))
    return (
        f"  python{sys.version_info.major}.{sys.version_info.minor} -m venv rehearsal-env\n"
        f"  rehearsal-env/bin/pip install torch=={TRIED_TORCH} {source}"
    )
