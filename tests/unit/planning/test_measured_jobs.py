"""What was measured of a job, by what it is, and what a measured step changes of a plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from trimaran.base.errors import InputError
from trimaran.jobs.resolve import JobSource
from trimaran.planning.analytical import Analytical, decoder_shape
from trimaran.planning.measured_jobs import MeasuredJob, compare_step, read_measured
from trimaran.planning.requests import parse_request
from trimaran.planning.target import Cell
from trimaran.pricing.analytical.fits_device import memory_of_kind
from trimaran.pricing.analytical.memory import largest_rank
from trimaran.program.strategy import Strategy

MEGATRON = """
 iteration       10/     100 | elapsed time per iteration (ms): 9100.5 | global batch size:    64 |
[Rank 0] memory (MB) | allocated: 2000.1 | max allocated: 51000.2 | reserved: 56000.0 | max reserved: 56320.0
 iteration       20/     100 | elapsed time per iteration (ms): 4030.0 | global batch size:    64 |
"""
TORCHTITAN = "[titan] step: 30  loss:  7.7  memory: 49.58GiB(52.20%)  tps: 5,966  tflops: 345.53  mfu: 34.94%\n"
STEP = "dp8 zero1 mb2 m4, step=4.0 s, batch=64"


def test_a_log_has_a_step_and_memory(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(MEGATRON)
    found = read_measured(f"dp8 zero1 m4, {log}")
    assert (found.kind, found.strategy, found.batch, found.step_s) == ("step", "dp8 zero1 m4", 64, 4.03)
    assert found.memory_bytes == 56320 * 2**20
    log.write_text(TORCHTITAN)
    assert read_measured(str(log)).token_rate == 5966.0


def test_files_are_told_by_what_is_in_them(tmp_path: Path) -> None:
    kinds = {"profile": {"traceEvents": []}, "factors": {"verdict": "fits"}, "calibration": {"fingerprint": {}}}
    for kind, content in kinds.items():
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps(content))
        assert read_measured(str(file)) == MeasuredJob(text=str(file), kind=kind, file=file)  # type: ignore[arg-type]


def test_a_run_has_its_strategy_and_its_step(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"strategy": "dp2"}))
    with pytest.raises(InputError, match=r"report\.json"):
        read_measured(str(run.parent))
    (run / "report.json").write_text(json.dumps({"measured": {"step_time_s": 0.5}}))
    found = read_measured(str(run.parent))
    assert (found.strategy, found.step_s) == ("dp2", 0.5)


@pytest.mark.parametrize("text", ["nonsense", "dp8", "dp8, dp4, step=1 s", "dp8, speed=1 s", "dp8, step=1 s, batch=0"])
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--measured"):
        read_measured(text)


def plan(measured: str | None, **asked: Any) -> Any:
    given = {"cluster": "dgx-a100", "devices": 8, "batch": 64, "sequence": 2048, "software": "megatron:2024"} | asked
    request = parse_request(**given, measured=measured)
    shape = decoder_shape("llama2:7b", request)
    assert shape is not None
    return Analytical(JobSource(reference="llama2:7b"), request, shape)


def test_a_measured_step_is_predicted_as_it_was_and_others_by_the_same_factor() -> None:
    free, tied = plan(None), plan(STEP)
    before, after = free.plan(), tied.plan()
    factor = tied.problem(cell(tied), None).measured
    assert after.evidence.chosen.strategy == before.evidence.chosen.strategy
    assert after.evidence.chosen.step_time_s == pytest.approx(factor * before.evidence.chosen.step_time_s)
    assert any("takes 4.00 s a step" in note for note in after.notes)


def cell(backend: Any) -> Any:
    return Cell(batch=backend.batch, devices=backend.devices)


def test_the_interval_is_not_wider_for_what_was_measured() -> None:
    wide, narrow = (plan(told, software="fsdp:2024").plan().evidence.chosen for told in (None, STEP))
    ratio = [high / low for low, high in (wide.interval_s, narrow.interval_s)]
    assert ratio[1] < ratio[0]


def test_measured_memory_is_the_memory_of_the_same_strategy() -> None:
    backend = plan("dp8 zero1 mb2 m4, memory=60 GiB allocated, batch=64")
    problem = backend.problem(cell(backend), None)
    strategy = Strategy(dp=8, zero=1, microbatch=2, microbatches=4)
    memory = largest_rank(problem.shape, strategy, bookkeeping=problem.bookkeeping)
    device, keeping = problem.machine.node.device, problem.bookkeeping
    told = memory_of_kind(memory, strategy, "allocated", device, keeping=keeping)
    assert told == pytest.approx(60 * 2**30, rel=0.01)
    again = compare_step(problem, strategy, read_measured("dp8, memory=60 GiB allocated"))
    assert again.memory_share == pytest.approx(1.0, abs=0.02)


def test_a_plan_leaves_a_twentieth_of_a_card_unless_memory_is_asked_for() -> None:
    usual, asked = plan(None), plan(None, memory="79GiB")
    device = usual.problem(cell(usual), None).machine.node.device
    assert usual.plan().evidence.problem.memory_limit == int(0.95 * device.usable_bytes)
    assert asked.plan().evidence.problem.memory_limit == min(79 * 2**30, device.usable_bytes)
