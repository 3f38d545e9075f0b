"""`trimaran doctor`: software, devices and network of this machine, what is missing, what is exposed.

Each check is a fact with a verdict and, where something is missing, what to do. Nothing is changed and no
process is left.
"""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trimaran.base.errors import TrimaranError
from trimaran.base.system import SUPPORTED_TORCH

Verdict = Literal["ok", "missing", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at
        verdict: "ok"; "missing" where a command of Trimaran will fail; "note" where something optional is not there
        detail: what was found
        advice: what to do; empty where nothing is needed
    """

    name: str
    verdict: Verdict
    detail: str
    advice: str = ""


def examine() -> list[Check]:
    """Look at this machine.

    Returns:
        Findings, in the order in which they matter.
    """
    return [*_software(), *_hardware(), *_network(), *_files()]


def _software() -> Iterator[Check]:
    linux = sys.platform.startswith("linux")
    yield Check(
        name="system",
        verdict="ok" if linux else "note",
        detail=platform.system(),
        advice="" if linux else "planning, memory, scale, export and reports work here; what runs a script needs Linux",
    )
    version = platform.python_version()
    fine = sys.version_info >= (3, 11)
    yield Check(
        name="python", verdict="ok" if fine else "missing", detail=version, advice="" if fine else "use 3.11 or later"
    )
    yield _torch()
    yield _rehearsal(linux)
    compiler = shutil.which("g++") or shutil.which("clang++")
    yield Check(
        name="C++ compiler",
        verdict="ok" if compiler else "note",
        detail=compiler or "none found",
        advice="" if compiler else "torch.compile on a CPU needs one: without it only eager execution is planned",
    )


def _torch() -> Check:
    try:
        text = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Check(
            name="torch", verdict="missing", detail="not installed", advice="run: pip install 'torch>=2.11,<2.16'"
        )
    release = tuple(int(part) for part in text.split("+")[0].split(".")[:2])
    fine = SUPPORTED_TORCH[0] <= release <= SUPPORTED_TORCH[1]
    span = " to ".join(".".join(map(str, end)) for end in SUPPORTED_TORCH)
    return Check(
        name="torch", verdict="ok" if fine else "note", detail=text, advice="" if fine else f"tried with {span}"
    )


def _rehearsal(linux: bool) -> Check:
    """Whether this torch can stand in for a device; tried once for each build."""
    from trimaran.measure.cache import cache_directory
    from trimaran.rehearsal.build import WAY_OUT, check_build, commands

    if not linux:
        return Check(name="rehearsal", verdict="note", detail="needs Linux")
    try:
        build = check_build(cache_directory())
    except TrimaranError as error:
        wrong = str(error.figures.get("wrong", error.message))
        return Check(name="rehearsal", verdict="missing", detail=wrong, advice=f"{WAY_OUT}:\n{commands()}")
    return Check(name="rehearsal", verdict="ok", detail=f"tried: {build} stands in for a GPU")


def _hardware() -> Iterator[Check]:
    from trimaran.machine.detect import detect_machine

    devices = detect_machine().allocate().devices
    names = sorted({device.title for device in devices})
    yield Check(name="devices", verdict="ok", detail=f"{len(devices)}: {', '.join(names)}")


def _network() -> Iterator[Check]:
    import torch.distributed

    gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    yield Check(
        name="gloo",
        verdict="ok" if gloo else "missing",
        detail="available" if gloo else "not in this build of torch",
        advice="" if gloo else "several CPU ranks need it: install a torch build with gloo",
    )
    yield Check(name="NCCL", verdict="ok" if nccl else "note", detail="available" if nccl else "not in this build")
    yield Check(
        name="exposure",
        verdict="ok",
        detail="local ranks meet through a file and communicate over loopback, with --link over virtual links; "
        "no port is open to the network",
    )
    yield _rate_limited_links()


def _rate_limited_links() -> Check:
    """Whether links between local ranks can be rate-limited; tried, as permissions have many causes."""
    from trimaran.emulation.links import rate_limited_network
    from trimaran.machine.types import Link

    try:
        with rate_limited_network(Link(bytes_per_s=125e6, latency_s=0.0, source="to try"), ranks=2):
            return Check(name="rate-limited links", verdict="ok", detail="tried: links can be rate-limited")
    except TrimaranError as error:
        return Check(name="rate-limited links", verdict="note", detail="not possible here", advice=error.message)


def _files() -> Iterator[Check]:
    from trimaran.measure.cache import cache_directory

    cache = cache_directory()
    parent = next(path for path in [cache, *cache.parents] if path.exists())
    writable = os.access(parent, os.W_OK)
    yield Check(
        name="cache",
        verdict="ok" if writable else "missing",
        detail=str(cache),
        advice="" if writable else "set TRIMARAN_CACHE to a directory that can be written",
    )
    yield _calibration()


def _calibration() -> Check:
    from trimaran.measure.calibration.results import kept_path, read_calibration
    from trimaran.measure.costs import fingerprint_here

    path = kept_path(fingerprint_here(1))
    if not path.exists():
        return Check(
            name="calibration",
            verdict="note",
            detail="this machine is not calibrated",
            advice="trimaran doctor --measure: without it the noise of repeated runs is not known",
        )
    try:
        calibration = read_calibration(path)
    except TrimaranError as error:
        return Check(name="calibration", verdict="note", detail=error.message, advice="trimaran doctor --measure")
    ranks = calibration.fingerprint.ranks
    return Check(
        name="calibration", verdict="ok", detail=f"{calibration.date[:10]}, {ranks} {'rank' if ranks == 1 else 'ranks'}"
    )
