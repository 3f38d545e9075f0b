"""What remedies save of the steps of a job, worked by hand in milliseconds."""

from typing import Any

import pytest
from tests.unit.features.diagnose.made import exchanging, findings, run, sampled, split, task, way

from trimaran.base.remedies import Remedy
from trimaran.features.diagnose import stalls
from trimaran.features.diagnose.remedies import advise_job
from trimaran.features.diagnose.stalls import as_observed, name_stall
from trimaran.measure.stalls.findings import StallFindings
from trimaran.program.gradients import Compression
from trimaran.program.strategy import Feeding

BYTES = 96


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "usable_cores", lambda: 8)
    monkeypatch.setattr(stalls, "summed_bytes", lambda *_: BYTES)


def advised(
    found: StallFindings, *, memory_bytes: int = 64 << 30, handover: float = 1e-3, **strategy: Any
) -> tuple[list[Remedy], list[Remedy]]:
    seen = as_observed(task(**strategy), found, "cached", memory_bytes=memory_bytes)
    return advise_job(seen, handover=lambda _: handover, whole=True)


def remedies(found: StallFindings, **fields: Any) -> dict[str, Remedy]:
    worth, not_worth = advised(found, **fields)
    return {remedy.name: remedy for remedy in (*worth, *not_worth)}


def test_the_largest_class_that_is_not_compute_is_the_limiter() -> None:
    assert name_stall(split(fetch=5.0, prepare=10.0, compute=100.0)) == "prepare"
    assert name_stall(split(fetch=5.0, compute=100.0)) == "compute"
    assert name_stall(split(unattributed=50.0, compute=50.0)) == "compute"


def test_the_steps_of_a_job_have_the_parts_of_those_of_a_script() -> None:
    """Rank 0 waits 5 ms, of which 2 are the exchange; of 20 ms of compute 4 are the update."""
    first = split(fetch=6.0, prepare=3.0, copy=1.0, compute=20.0, communication=2.0, synchronization=3.0)
    slow = way(first, split(fetch=6.0, prepare=3.0, copy=1.0, compute=23.0, communication=2.0))
    seen = as_observed(task(), findings(slow, busy=70.0), "cached", memory_bytes=1)
    parts = seen.first.parts
    assert (parts.load, parts.update, parts.exchange, parts.wait) == pytest.approx((0.01, 0.004, 0.002, 0.003))
    assert parts.forward == pytest.approx(0.016)
    assert seen.first.load_cpu == pytest.approx(0.3)
    assert seen.first.busy_cores == pytest.approx(1.0)
    assert seen.mean.step_s == pytest.approx(slow.mean.step_s)


def test_reads_spread_over_workers() -> None:
    """Of 60 ms a step reads for 40: 3 workers read a batch in 13.3 ms, less than the rest and 1 ms to take over: 21."""
    slow = way(split(fetch=40.0, compute=20.0), read=40.0)
    remedy = remedies(findings(slow))["load in 3 workers"]
    assert remedy.limiter == "loader"
    assert remedy.predicted_gain == pytest.approx(39 / 60)
    assert remedy.setting == {"workers": 3}
    assert "--workers 3; now 0" in remedy.action


def test_work_is_done_by_the_cores_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks compute 20 ms and prepare 40 ms: 120 ms of work a step, which two cores do in no less than now."""
    slow = findings(way(split(prepare=40.0, compute=20.0), prepared=40.0), busy=120.0)
    four = remedies(slow)["load in 3 workers"]
    assert four.predicted_gain == pytest.approx(39 / 60)
    monkeypatch.setattr(stalls, "usable_cores", lambda: 2)
    assert remedies(slow)["load in 1 worker"].predicted_gain == pytest.approx(0.0)


def test_more_workers_are_counted_from_what_they_were_seen_to_take() -> None:
    """Two workers read 40 ms each, so that a batch comes every 20 ms; eight bring one every 5, and the rest is 7."""
    slow = way(split(fetch=13.0, compute=7.0), read=40.0)
    found = remedies(findings(slow), feeding=Feeding(workers=2))
    assert found["load in 8 workers"].predicted_gain == pytest.approx(1 - 7 / 20, abs=0.01)


def test_samples_are_kept_where_they_repeat_and_fit() -> None:
    """30 ms of loading become 1 ms, 4 samples of 0.25 ms. All of the data: 1000 samples of 1000 bytes."""
    slow = way(split(fetch=20.0, prepare=10.0, compute=30.0), read=20.0, prepared=10.0)
    kept = remedies(findings(slow))["keep samples in memory"]
    assert kept.predicted_gain == pytest.approx(29 / 60)
    assert "976.6 KiB" in kept.basis
    small = remedies(findings(slow), memory_bytes=1_500_000)["keep samples in memory"]
    assert (small.predicted_gain, "too much" in small.basis) == (0.0, True)
    for other, word in (({"repeats": False}, "random"), ({"stored_bytes": 0}, "alike")):
        drawn = run(sampled=sampled(**other))
        kept = remedies(findings(slow, runs=(drawn, drawn)))["keep samples in memory"]
        assert (kept.predicted_gain, word in kept.basis) == (0.0, True)
    assert "keep samples in memory" not in remedies(findings(slow), feeding=Feeding(cached=True))


def test_half_the_bytes_leave_half_of_what_is_exposed_and_the_latency() -> None:
    """96 bytes take 2 + 96 ms alone, 48 bytes 2 + 48: of 98 ms of waiting 48 go."""
    own = exchanging(way(split(compute=98.0, communication=98.0)), latency=2.0, bytes_per_ms=1.0)
    assert remedies(own)["send bf16 gradients"].predicted_gain == pytest.approx(48 / 196)
    assert "--allow compress" in remedies(own)["send bf16 gradients"].action
    assert "send bf16 gradients" not in remedies(own, compression=Compression(method="bf16"))


def test_contention_is_not_saved_by_sending_less() -> None:
    """49 ms are waited for an exchange of 1 + 1 ms, which would be 1 + 0.5."""
    own = exchanging(way(split(compute=49.0, communication=49.0)), latency=1.0, bytes_per_ms=96.0)
    assert remedies(own)["send bf16 gradients"].predicted_gain == pytest.approx(0.5 / 98)


def test_accumulation_spares_rounds_and_updates() -> None:
    """Three quarters of 20 ms of exchange and 4 ms of update, of 60 ms."""
    slow = findings(way(split(compute=40.0, communication=20.0)))
    assert remedies(slow)["accumulate 4 steps"].predicted_gain == pytest.approx(0.75 * 24 / 60)


def test_a_slower_rank_costs_what_it_works_more_than_the_mean() -> None:
    """Rank 1 works 50 ms, rank 0 30 ms and waits for it: 10 of 50 ms with even work."""
    slow = findings(way(split(compute=30.0, synchronization=20.0), split(compute=50.0)))
    remedy = remedies(slow)["shares by speed"]
    assert remedy.predicted_gain == pytest.approx(10 / 50)
    assert remedy.setting == {"rank": 1}


def test_a_rank_that_is_slower_by_chance_need_not_be_slower_again() -> None:
    """Rank 1 works 30 ms for five steps, then 20 for five, rank 0 the other way round but for one step."""
    long, short = split(compute=30.0), split(compute=20.0)
    turns = [[long] * 5 + [short] * 5, [short] * 4 + [long] * 6]
    worth, not_worth = advised(findings(way(long), turns=turns))
    (remedy,) = (one for one in not_worth if one.id == "even-ranks")
    assert remedy.predicted_gain > 0.01
    assert remedy.gain_interval[0] < 0.0
    assert not [one for one in worth if one.id == "even-ranks"]


def test_what_may_as_well_cost_is_no_advice_and_the_surer_gain_comes_first() -> None:
    """Five steps wait 1 ms for their data, five 118; accumulating saves about as much of each."""
    turns = [[split(fetch=1.0, compute=20.0)] * 5 + [split(fetch=118.0, compute=20.0)] * 5] * 2
    worth, not_worth = advised(findings(way(split(fetch=40.0, compute=20.0), read=40.0), turns=turns), handover=0.05)
    assert not [one for one in worth if one.id == "load-ahead"]
    assert [one for one in not_worth if one.id == "load-ahead"]
    slow = findings(way(split(fetch=40.0, communication=40.0, compute=20.0), read=40.0))
    worth, _ = advised(slow)
    ends = [remedy.gain_interval[0] for remedy in worth]
    assert len(ends) > 1
    assert ends == sorted(ends, reverse=True)


def test_of_one_block_no_gain_is_sure() -> None:
    one = findings(way(split(fetch=40.0, compute=20.0), read=40.0, steps=5))
    worth, not_worth = advised(one)
    assert not worth
    assert not_worth[0].gain_interval == (0.0, 0.99)


def test_no_more_workers_are_advised_than_memory_bears() -> None:
    """In 1 GiB there is room for one worker of 256 MiB of each rank; in 256 MiB for none."""
    slow = findings(way(split(fetch=40.0, compute=20.0), read=40.0))
    assert "load in 1 worker" in remedies(slow, memory_bytes=1 << 30)
    assert not [name for name in remedies(slow, memory_bytes=1 << 28) if name.startswith("load")]
