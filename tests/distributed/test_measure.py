"""Measuring with real ranks: what comes back is complete, kept, and enough to predict a step."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tests import builders, zoo
from tests.raising import raises

from trimaran.base.errors import ExecutionError
from trimaran.base.job import Job
from trimaran.graph.capture.capture import capture
from trimaran.graph.types import Graph
from trimaran.launch.supervise import launch
from trimaran.machine.detect import detect_machine
from trimaran.measure.cache import cache_path
from trimaran.measure.costs import fingerprint_here, measure_costs
from trimaran.measure.trial_runs import run_trial
from trimaran.measure.wanted import wanted_curves
from trimaran.pricing.compute import operation_costs
from trimaran.pricing.program import price
from trimaran.pricing.table_files import decode_table
from trimaran.pricing.tables import CostTable, CurveKey
from trimaran.pricing.transfers import HOST, HOST_SEND, QUEUED, SEND
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.simulator.engine import simulate

pytestmark = pytest.mark.usefixtures("_forked")

BATCHES = (4, 8, 16)


@dataclass(frozen=True)
class Source:
    """Makes a job of the zoo in any process."""

    name: str

    def make(self) -> Job:
        job = getattr(zoo, self.name)()
        assert isinstance(job, Job)
        return job


class Watcher:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        self.heard.append(what)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, CostTable, Path]:
    """The costs of the small CNN for two ranks, and the cache that they are in."""
    directory = tmp_path_factory.mktemp("costs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIMARAN_CACHE", str(directory))
        graph = capture(zoo.cnn()).graph
        return graph, measure_costs(Source("cnn").make, graph, ranks=2, batches=BATCHES), directory


def test_everything_that_plans_for_two_ranks_need_is_measured(measured: tuple[Graph, CostTable, Path]) -> None:
    """Whatever is priced has a positive time, and its interval around it."""
    graph, table, _ = measured
    for strategy in (
        builders.strategy(),
        builders.strategy(dp=2),
        builders.strategy(pp=2, boundaries=graph.split_points[1:2], schedule="1f1b", microbatches=4),
    ):
        for program in (lower(graph, strategy, batch=16, clip=True), lower_evaluation(graph, strategy, batch=16)):
            costs = price(program, graph, strategy, table, detect_machine(strategy.devices).allocate(), batch=16)
            assert all(0 < cost.low <= cost.seconds <= cost.high for cost in costs.compute.values())
            assert simulate(program, costs).makespan_s > 0
            # Python between instructions: microseconds to some milliseconds, in a step and in an evaluation.
            assert all(1e-6 < seconds < 0.05 for seconds in costs.between_s)
            assert len(costs.between_s) == strategy.devices


@pytest.mark.alone
def test_the_parts_are_commensurate_with_the_whole(measured: tuple[Graph, CostTable, Path]) -> None:
    """Operations one by one and the model in one piece take the same time to within a factor of 3.

    The factor is 0.7 to 1.1 for a large batch; for tiny ones on a crowded machine it wanders.
    """
    graph, table, _ = measured
    for batch in BATCHES:
        costs = operation_costs(graph, table, batch=batch, execution="eager")
        together = sum(cost.forward.seconds + cost.backward.seconds for cost in costs.values())
        for points in table.wholes.values():
            whole = points[batch].forward.seconds + points[batch].backward.seconds
            assert 1 / 3 < whole / together < 3


@pytest.mark.alone
def test_curves_rise_from_the_smallest_size_to_the_largest(measured: tuple[Graph, CostTable, Path]) -> None:
    """16 MiB take longer than 16 B, by far more than any noise; what the thread does for them only takes some time.

    A message of one machine goes through memory: the word that it is there takes as long for any size, and the copies
    are the threads' work. Of each the shortest round counts, as other processes can only lengthen one.
    """
    _, table, _ = measured
    assert set(table.curves) == set(wanted_curves(2))
    for key, curve in table.curves.items():
        if key.kind.endswith(HOST) or key.kind == SEND:
            assert all(0.0 < cost.low < 0.1 for _, cost in curve)
        else:
            assert curve[-1][1].low > 5 * curve[0][1].low
    copies = table.curves[builders.curve_key(HOST_SEND, 2)]
    assert copies[-1][1].low > 2 * copies[0][1].low


def test_what_is_known_starts_no_process(
    measured: tuple[Graph, CostTable, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, table, directory = measured
    monkeypatch.setenv("TRIMARAN_CACHE", str(directory))
    watcher = Watcher()
    again = measure_costs(Source("cnn").make, graph, ranks=2, batches=BATCHES, progress=watcher)
    assert again == table
    assert watcher.heard == []


def test_another_batch_size_is_all_that_is_measured_of_it(
    measured: tuple[Graph, CostTable, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The links are known; what was known of other batches stays as it was."""
    graph, table, directory = measured
    monkeypatch.setenv("TRIMARAN_CACHE", str(directory))
    watcher = Watcher()
    more = measure_costs(Source("cnn").make, graph, ranks=2, batches=[2, *BATCHES], progress=watcher)
    assert "starting processes" in watcher.heard
    assert "measuring links" not in watcher.heard
    assert more.curves == table.curves
    for key, points in table.operations.items():
        assert {batch: more.operations[key][batch] for batch in BATCHES} == dict(points)
        assert 2 in more.operations[key]


def test_a_damaged_cache_is_set_aside_and_measured_again() -> None:
    path = cache_path(fingerprint_here(1))
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"schema_version": 1, "dig')
    graph = capture(zoo.lstm()).graph
    table = measure_costs(Source("lstm").make, graph, ranks=1, batches=[4])
    assert {key.content for key in table.operations} == {op.content for op in graph.ops}
    assert path.with_suffix(".damaged").exists()
    assert decode_table(path.read_bytes()).operations == table.operations


def test_a_job_that_is_another_one_in_the_ranks_is_refused() -> None:
    other = capture(zoo.unet()).graph
    with raises("measure.other-graph", ExecutionError):
        measure_costs(Source("lstm").make, other, ranks=1, batches=[4])


def test_a_job_that_cannot_be_sent_is_refused() -> None:
    with raises("measure.cannot-send"):
        measure_costs(lambda: zoo.lstm(), capture(zoo.lstm()).graph, ranks=1, batches=[4])


@pytest.mark.alone
def test_compute_and_communication_never_speed_each_other_up(measured: tuple[Graph, CostTable, Path]) -> None:
    _, table, _ = measured
    assert sorted(table.interference) == ["AR", "SEND"]
    sums = table.interference["AR"]
    assert min(sums.compute, sums.communication, sums.latency) >= 1.0
    assert sums.source.startswith("measured")
    # Ranks of one machine hand messages over in memory, where no other thread takes part.
    sends = table.interference["SEND"]
    assert (sends.compute, sends.communication, sends.latency) == (1.0, 1.0, 1.0)


def test_three_ranks_agree_on_their_curves(tmp_path: Path) -> None:
    first, *others = launch(_curves, ranks=3, log_dir=tmp_path, device="cpu", timeout_s=60)
    assert [other == first for other in others] == [True, True]
    assert [f"{key.kind} {key.ranks}" for key in first] == [
        *("SEND 2", "AR 2", "AR 3", "BC 2", "BC 3"),
        *("SEND host 2", "RECV host 2", "AR host 2"),
    ]


def _curves(world: object) -> object:
    from trimaran.launch.world import World
    from trimaran.measure.calibration.links import measure_curves

    assert isinstance(world, World)
    return measure_curves(world, wanted_curves(3), sizes=(16, 4096))


def test_transfers_of_owners_are_measured_in_queues(tmp_path: Path) -> None:
    """Weights handed out with what the rank's thread does for each, reductions with what they cost a backward."""
    first, second = launch(_owners, ranks=2, log_dir=tmp_path, device="cpu", timeout_s=60)
    assert first == second
    assert sorted(key.kind for key in first) == [f"BC{QUEUED}", f"RD{QUEUED}"]
    assert all(cost.seconds > 0.0 for curve in first.values() for _, cost in curve)


def _owners(world: object) -> object:
    from trimaran.launch.world import World
    from trimaran.measure.calibration.links import measure_curves

    assert isinstance(world, World)
    keys = [CurveKey(f"{kind}{QUEUED}", 2) for kind in ("BC", "RD")]
    return measure_curves(world, keys, sizes=(16, 4096))


def with_an_odd_sample() -> Job:
    """One sample in every few batches is no number, and so is the loss of its step."""
    job = zoo.cnn()
    images, classes = job.dataset()[:]
    images = images.clone()
    images[:: 3 * job.global_batch_size] = math.nan
    return replace(job, dataset=lambda: torch.utils.data.TensorDataset(images, classes))


def test_a_sample_that_a_training_may_skip_is_no_reason_against_a_strategy() -> None:
    """`--on-nan skip` trains by dp2 zero2, of which a plan said that nothing fits: its trial ended at that step."""
    strategy, job = builders.strategy(dp=2, zero=2), with_an_odd_sample()
    graph = capture(job).graph
    batch = job.global_batch_size
    programs = lower(graph, strategy, batch=batch), lower_evaluation(graph, strategy, batch=batch)
    assert run_trial(with_an_odd_sample, strategy, *programs).backward_s > 0
