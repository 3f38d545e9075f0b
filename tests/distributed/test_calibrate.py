"""A calibration of this machine with real ranks: what plans take from it, and what an interrupted one leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import builders
from tests.commands.running import trimaran

from trimaran.features.calibration import calibrate
from trimaran.jobs.resolve import JobSource
from trimaran.measure.calibration.results import Calibration, read_calibration
from trimaran.measure.wanted import wanted_curves
from trimaran.planning.plan import make_plan

pytestmark = pytest.mark.usefixtures("_forked")

JOBS = Path(__file__).parents[1] / "commands" / "faulty_jobs.py"
SOURCE = JobSource(reference=f"{JOBS}:good")


class Watcher:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        self.heard.append(what)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Calibration, Path]:
    """A calibration of two devices with a job, as returned, and its file; the cache that it filled is gone."""
    folder = tmp_path_factory.mktemp("calibration")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIMARAN_CACHE", str(folder / "cache"))
        watcher = Watcher()
        calibration = calibrate(
            jobs=(SOURCE,), devices=2, repeats=2, steps=20, output=folder / "machine.json", progress=watcher
        )
    assert watcher.heard.count("starting processes") == 2  # the machine, then the job
    return calibration, folder / "machine.json"


def test_everything_has_a_figure_within_its_interval(written: tuple[Calibration, Path]) -> None:
    calibration, path = written
    assert read_calibration(path) == calibration
    (device,) = calibration.devices
    estimates = [device.copy_bytes_per_s, device.axpy_bytes_per_s, device.operator_s]
    estimates += [product.flops_per_s for product in device.products]
    estimates += [end for link in calibration.links for end in (link.small_s, link.bytes_per_s)]
    assert all(0 < estimate.low <= estimate.value <= estimate.high for estimate in estimates)
    # The job's plans may gather sharded weights.
    transfers = {tuple(key) for key in wanted_curves(2, on_cpu=False, gathers=True)}
    assert {(link.kind, link.ranks) for link in calibration.links} == transfers
    assert [noise.ranks for noise in calibration.noise] == [1, 2]
    assert all(-1 < noise.low < 0 < noise.high for noise in calibration.noise)


def test_a_plan_by_the_file_measures_nothing(written: tuple[Calibration, Path]) -> None:
    """Though the cache is empty; and the run that the plan is for is compared with the noise of the file."""
    calibration, path = written
    watcher = Watcher()
    planned = make_plan(SOURCE, builders.plan_request(devices=2, calibration=path), progress=watcher)
    assert "searching" in watcher.heard
    assert "starting processes" not in watcher.heard
    assert planned.simulated.noise == calibration.noise[planned.simulated.plan.strategy.devices - 1]
    # Steps of 0.3 ms: whether a worker is said to be worth something or nothing depends on what was measured of it.
    others = tuple(one for one in planned.notes if not one.startswith(("loading in ", "1 worker a rank: ")))
    assert others == planned.simulated.graph.notes


def test_a_run_says_its_noise(written: tuple[Calibration, Path], tmp_path: Path) -> None:
    calibration, path = written
    arguments = ("train", f"{JOBS}:good", "--devices", "2", "--calibration", str(path), "--json")
    done = trimaran(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["noise"]
    assert said["interval"] in [[noise.low, noise.high] for noise in calibration.noise]
    assert said["runs"] == 2


def test_control_c_leaves_no_file_and_no_process(tmp_path: Path) -> None:
    """The ranks are found by a mark in their environment; they are there before the interruption."""
    mark = f"{tmp_path}".encode()
    process = subprocess.Popen(
        [sys.executable, "-m", "trimaran", "doctor", "--measure", "--devices", "2", "-o", "machine.json"],
        cwd=tmp_path,
        env=os.environ | {"TRIMARAN_TEST_MARK": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(_marked(mark)) < 3 and time.monotonic() < deadline and process.poll() is None:
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "trimaran: interrupted\n")
    assert _marked(mark) == []
    assert list(tmp_path.iterdir()) == []


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"TRIMARAN_TEST_MARK=" + mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
