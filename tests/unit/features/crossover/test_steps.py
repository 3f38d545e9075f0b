"""Steps of hybrids put together from parts, against the simulation of the whole."""

import json
from pathlib import Path

import pytest
from tests import builders

from trimaran.features.crossover.candidates import Demand, as_planned, free_options, local_batches, tried_counts
from trimaran.features.crossover.steps import ALONE, Exchanged, Replicas, Workers, _idle
from trimaran.machine.find import find_machine
from trimaran.planner.pins import Pins
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.plan import make_plan
from trimaran.simulator.exchange_comparison import step_ends

NODE = "dgx1-v100"


def plan(batch: int, devices: int, pins: Pins) -> Simulated:
    found = make_plan("resnet18", builders.cluster_request(cluster=NODE, devices=devices, batch=batch, pins=pins))
    return found.simulated


@pytest.fixture(scope="module")
def replicas() -> Replicas:
    return Replicas(DataParallelJob(reference="resnet18", machine=find_machine(NODE)))


@pytest.fixture(scope="module")
def workers() -> Workers:
    return Workers("resnet18", builders.cluster_request(cluster=NODE), 64)


@pytest.mark.sweep
def test_four_pipelines_of_two_devices_are_within_three_per_cent_of_their_simulation(replicas: Replicas) -> None:
    """Both wait for the slowest of all eight once, and copy gradients into buffers once."""
    alone = plan(64, 2, builders.pins(pp=2, dp=1, schedule="1f1b", microbatches=4))
    whole = plan(256, 8, builders.pins(pp=2, dp=4, schedule="1f1b", microbatches=4))
    step_s = replicas.alone_s(64) / alone.speedup + replicas.exchange(64, 8, width=2).added_s(alone.speedup)
    assert step_s == pytest.approx(whole.chosen.step_time_s, rel=0.03)


def test_exchanges_hide_less_behind_shorter_backwards() -> None:
    """4 s of communication, 1 s of it exposed; a backward of 6 s hides 3 s still when it takes 3 s, and 2 s later 2."""
    exchange = Exchanged(exposed_s=1.0, overlapped_s=3.0, backward_s=6.0, other_s=0.0)
    assert [exchange.added_s(speedup) for speedup in (1.0, 2.0, 3.0, 6.0)] == [1.0, 1.0, 2.0, 3.0]


def test_what_an_exchange_adds_has_the_ends_that_a_scaling_study_prints(replicas: Replicas) -> None:
    alone_s, exchange = replicas.alone_s(16), replicas.exchange(16, 8)
    added_s = replicas.job.step(16, 8).step.seconds - alone_s
    ends_s = tuple(alone_s + factor * added_s for factor in exchange.ends)
    assert ends_s == pytest.approx(step_ends(replicas.job.setup(16, 8)).interval)


def test_slower_links_never_shorten_an_exchange(replicas: Replicas) -> None:
    added = [replicas.exchange(16, 8, links).added_s(1.0) for links in (0.5, 1.0, 2.0)]
    assert added == sorted(added, reverse=True)
    assert replicas.exchange(16, 1).added_s(1.0) == 0.0


def test_the_planners_worker_is_simulated_again_at_other_batches(workers: Workers) -> None:
    base, small = workers.at(2, 64), workers.at(2, 1)
    assert base.speedup_interval[0] < base.speedup < base.speedup_interval[1]
    assert base.speedup_links_half <= base.speedup <= base.speedup_links_double
    assert 1.0 < base.speedup < 2.0
    # One sample cannot be divided into microbatches: stages do not overlap.
    assert small.speedup < base.speedup
    assert small.strategy == ALONE or "m4" not in small.strategy


def test_local_batches_and_counts_that_are_tried() -> None:
    assert local_batches(64)[0] == 1
    assert local_batches(64)[-1] == 256
    assert tried_counts((64, 48), 2) == (2, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def test_every_option_uses_whole_workers(replicas: Replicas, workers: Workers) -> None:
    found = free_options((8,), 2, base=4, replicas=replicas, workers=workers)
    assert {one.devices for one in found} == {2, 4, 8}
    assert {one.global_batch for one in found if one.devices == 8} == {4, 8, 16, 32, 64}
    assert all(one.step_s() > 0 for one in found)
    # One worker has nobody to exchange with.
    assert all(one.exchanges[1.0].added_s(1.0) == 0.0 for one in found if one.devices == 2)


def test_workers_in_which_one_device_works_alone_are_as_many_replicas(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four workers of two devices, four of which do nothing, take as long as four devices."""
    workers = Workers("resnet18", builders.cluster_request(cluster=NODE), 4)
    monkeypatch.setattr(Workers, "at", lambda _, width, batch: _idle(width, batch))
    hybrid = free_options((8,), 2, base=4, replicas=replicas, workers=workers)
    data = free_options((4,), 1, base=4, replicas=replicas, workers=workers)
    assert [one.step_s() for one in hybrid] == [one.step_s() for one in data]


def test_the_best_hybrid_has_the_step_of_the_plan_with_as_many_replicas() -> None:
    """Over slow links the fastest worker alone is not that of the fastest hybrid: the latter sends less at once."""
    cluster = f"{NODE}:4@ethernet-10g"
    workers = Workers("resnet18", builders.cluster_request(cluster=cluster), 16)
    found = free_options(
        (32,),
        2,
        base=16,
        replicas=Replicas(DataParallelJob(reference="resnet18", machine=find_machine(cluster))),
        workers=workers,
        links=(1.0,),
        known=(1024, 1024),
    )
    assert [(one.devices, one.local_batch) for one in found] == [(32, 64)]
    (best,) = as_planned((32,), found, Demand(None), workers)
    pins = builders.pins(dp=16, pp=2, forbid=("zero", "sharded", "p2p", "hierarchical", "memory"))
    planned = make_plan("resnet18", builders.cluster_request(cluster=cluster, devices=32, batch=1024, pins=pins))
    assert best.step_s() == planned.chosen.step_time_s
    assert best.step_s() < found[0].step_s()


def test_a_hybrid_may_be_fastest_where_a_worker_alone_leaves_a_device_idle() -> None:
    """Two stages of a small network halve what each of two replicas sends: 1.17 ms, and 1.35 ms with idle devices."""
    workers = Workers("digits", builders.cluster_request(cluster=NODE), 32)
    found = free_options(
        (4,),
        2,
        base=32,
        replicas=Replicas(DataParallelJob(reference="digits", machine=find_machine(NODE))),
        workers=workers,
        links=(1.0,),
        known=(256, 256),
    )
    (before,) = found
    assert before.worker is not None
    assert before.worker.strategy == ALONE
    (best,) = as_planned((4,), found, Demand(None), workers)
    planned = make_plan(
        "digits", builders.cluster_request(cluster=NODE, devices=4, batch=256, pins=builders.pins(dp=2, pp=2))
    )
    assert best.step_s() == pytest.approx(planned.chosen.step_time_s)
    assert best.step_s() < before.step_s()
    assert best.worker is not None
    assert best.worker.strategy != ALONE


def test_free_local_batch(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 samples take 200 ms, 32 take 110 ms: two devices must be more than 1.818 times as fast as one."""
    monkeypatch.setattr(Replicas, "alone_s", lambda _, batch: {64: 0.2, 32: 0.11}[batch])
    assert replicas.needed_speedup(64, 2) == pytest.approx(1.81818, abs=1e-5)
    assert replicas.needed_speedup(1, 2) is None


def test_a_decoder_is_simulated_on_more_devices_than_its_plan_is(tmp_path: Path) -> None:
    """`plan` asks the analytical model beyond 64 devices, which knows no orders of pipelines but 1F1B."""
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 128, "n_positions": 32}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "bos_token_id": 0, "eos_token_id": 0, **sizes}))
    workers = Workers(str(path), builders.cluster_request(cluster=f"{NODE}:16"), 4)
    assert workers.planned(2, 4, 128) is not None
