"""A delay of a known length lands in its class of the step, and leaves the others as they are."""

from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import builders
from tests.distributed import stalled
from tests.distributed.stalled import STEP_S
from tests.distributed.test_throttled_links import obstacle
from tests.forks.client import launch

from trimaran.base.job import Job
from trimaran.emulation.links import launch_on
from trimaran.features.diagnose.remedies import advise_job, step_with_workers
from trimaran.features.diagnose.stalls import as_observed, summed_bytes
from trimaran.graph.capture.capture import capture
from trimaran.measure.observe.analysis import measure_handover
from trimaran.measure.stalls.findings import StallFindings, analyse_stalls
from trimaran.measure.stalls.steps import CLASSES, StepSplit
from trimaran.planning.requests import parse_link
from trimaran.pricing.curves import at_size
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.types import Program

pytestmark = pytest.mark.alone

JOBS = [
    ("plain", 0),
    ("fetch", 0),
    ("prepare", 0),
    ("collate", 0),
    ("once", 0),
    ("compute", 0),
    ("late", 0),
    ("fetch", 2),
]


def programs(job: Job) -> tuple[Program, Program]:
    graph = capture(job).graph
    strategy = builders.strategy(dp=2)
    return (
        lower(graph, strategy, batch=job.global_batch_size),
        lower_evaluation(graph, strategy, batch=job.global_batch_size),
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], StallFindings]:
    """All jobs have the same network, and so the same program."""
    program, evaluation = programs(stalled.plain())
    logs = tmp_path_factory.mktemp("logs")
    one, other = launch(stalled.measure, (JOBS, program, evaluation, 0), ranks=2, log_dir=logs, device="cpu")
    return {name: analyse_stalls(program, pair) for name, pair in zip(JOBS, zip(one, other, strict=True), strict=True)}


def added(to: StepSplit, by: StepSplit) -> dict[str, float]:
    """What a split has more than another one, by class, in shares of the delay."""
    pairs = zip(CLASSES, astuple(by), astuple(to), strict=True)
    return {name: (after - before) / STEP_S for name, after, before in pairs}


def assert_lands(more: dict[str, float], **expected: float) -> None:
    """Within a tenth of the delay, in its class and in the others."""
    assert more == pytest.approx(dict.fromkeys(CLASSES, 0.0) | expected, abs=0.1)


def test_a_delay_lands_in_its_class(found: dict[tuple[str, int], StallFindings]) -> None:
    plain = found["plain", 0].ways["cached"].mean
    for job, name in (("fetch", "fetch"), ("prepare", "prepare"), ("collate", "prepare"), ("compute", "compute")):
        assert_lands(added(plain, found[job, 0].ways["cached"].mean), **{name: 1.0})


def test_a_late_rank_computes_and_the_other_one_waits_for_it(found: dict[tuple[str, int], StallFindings]) -> None:
    plain, late = found["plain", 0].ways["cached"], found["late", 0].ways["cached"]
    assert_lands(added(plain.ranks[0], late.ranks[0]), synchronization=1.0)
    assert_lands(added(plain.ranks[1], late.ranks[1]), compute=1.0)


def test_what_the_first_reading_costs_is_in_cold_steps_alone(found: dict[tuple[str, int], StallFindings]) -> None:
    ways = found["once", 0].ways
    assert_lands(added(ways["cached"].mean, ways["cold"].mean), fetch=1.0)
    assert ways["cached"].mean.fetch < 0.1 * STEP_S


def test_synthetic_steps_load_nothing(found: dict[tuple[str, int], StallFindings]) -> None:
    for name in (("fetch", 0), ("prepare", 0), ("fetch", 2)):
        synthetic = found[name].ways["synthetic"].mean
        assert synthetic.loading_s < 0.01 * STEP_S
        assert synthetic.step_s < 0.5 * STEP_S


def test_with_workers_the_wait_is_named_by_what_they_do(found: dict[tuple[str, int], StallFindings]) -> None:
    """Two workers read 40 ms each for a batch, so that one comes every 20 ms, to one rank later than to the other."""
    way = found["fetch", 2].ways["cached"]
    assert way.mean.step_s == pytest.approx(STEP_S / 2, rel=0.15)
    assert way.mean.fetch + way.mean.synchronization > 0.6 * way.mean.step_s
    assert way.mean.prepare < 0.2 * way.mean.step_s


def test_workers_make_of_a_step_what_is_predicted(found: dict[tuple[str, int], StallFindings]) -> None:
    """From the steps without workers, and within 15 %; two ranks wait for whichever batch comes later."""
    made = stalled.plain()
    program, _ = programs(made)
    task: Any = SimpleNamespace(
        job=made, strategy=builders.strategy(dp=2), program=program, cluster=builders.cluster(2)
    )
    seen = as_observed(task, found["fetch", 0], "cached", memory_bytes=64 << 30)
    predicted_s = step_with_workers(seen, 2, arrives_s=0.0)(seen.mean)
    assert predicted_s == pytest.approx(found["fetch", 2].ways["cached"].mean.step_s, rel=0.15)
    worth, _ = advise_job(seen, handover=measure_handover, whole=True)
    assert worth[0].id in ("keep-samples", "load-ahead")  # how many workers, the processor says
    assert worth[0].predicted_gain > 0.8


def test_in_a_pipeline_waiting_for_the_stage_before_is_synchronization(tmp_path: Path) -> None:
    """The slow layer is in the first stage and runs once for each of two microbatches, while the second stage waits."""
    one = stalled.compute()
    graph = capture(one).graph
    strategy = builders.strategy(pp=2, boundaries=graph.split_points[:1], microbatches=2)
    program, evaluation = (make(graph, strategy, batch=one.global_batch_size) for make in (lower, lower_evaluation))
    runs = launch(
        stalled.measure_strategy, ("compute", strategy, program, evaluation), ranks=2, log_dir=tmp_path, device="cpu"
    )
    first, last = analyse_stalls(program, runs).ways["synthetic"].ranks
    assert first.compute == pytest.approx(2 * STEP_S, rel=0.1)
    assert last.synchronization == pytest.approx(2 * STEP_S, rel=0.1)
    assert last.communication < 0.1 * STEP_S


def test_little_belongs_to_no_class(found: dict[tuple[str, int], StallFindings]) -> None:
    for name in JOBS[1:4]:
        mean = found[name].ways["cached"].mean
        assert 0.0 <= mean.unattributed < 0.03 * mean.step_s


@pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "links can be held to a rate")
def test_a_slow_link_is_communication(tmp_path: Path) -> None:
    """Of two ranks each sends every byte of the gradients once: 1 MiB and a bias at 25 MB/s, 43 ms.

    Of all blocks the shortest counts, as other processes can only lengthen what the link takes.
    """
    program, evaluation = programs(stalled.wide())
    gradient_bytes = summed_bytes(builders.strategy(dp=2), program)
    assert gradient_bytes == 33 * 8192 * 4
    link = parse_link("200Mb/s")
    arguments = ([("wide", 0)], program, evaluation, gradient_bytes)
    one, other = launch_on(link, stalled.measure, arguments, ranks=2, log_dir=tmp_path, device="cpu")
    findings = analyse_stalls(program, (*one, *other))
    blocks = [block for way in findings.ways.values() for block in way.blocks]
    shortest = min(blocks, key=lambda block: block.step_s)
    assert shortest.communication == pytest.approx(gradient_bytes / link.bytes_per_s, rel=0.1)
    assert shortest.synchronization < 0.1 * shortest.communication
    alone = at_size(one[0].exchange, gradient_bytes).seconds
    assert alone == pytest.approx(gradient_bytes / link.bytes_per_s, rel=0.1)
