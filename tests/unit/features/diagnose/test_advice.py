"""What remedies save, worked by hand in milliseconds."""

from dataclasses import replace
from typing import Any

import pytest
from tests import builders
from tests.unit.features.diagnose.made import evidence, exchanging, findings, run, sampled, split, uneven, way

from trimaran.base.remedies import Remedy
from trimaran.features.diagnose.stall_remedies import Evidence, advise_on_stalls, gain, name_stall, replay
from trimaran.measure.stalls.rank import ExchangeTime
from trimaran.pricing.gradient_compression import coding_keys
from trimaran.pricing.types import Cost
from trimaran.program.gradients import Compression
from trimaran.program.strategy import Feeding


def remedies(given: Evidence) -> dict[str, Remedy]:
    worth, not_worth = advise_on_stalls(given)
    return {remedy.name: remedy for remedy in (*worth, *not_worth)}


def test_the_largest_class_that_is_not_compute_is_the_limiter() -> None:
    assert name_stall(split(fetch=5.0, prepare=10.0, compute=100.0)) == "prepare"
    assert name_stall(split(fetch=5.0, compute=100.0)) == "compute"
    assert name_stall(split(unattributed=50.0, compute=50.0)) == "compute"


def test_reads_spread_over_workers() -> None:
    """Of 60 ms a step reads for 40. With 2 workers a batch comes every 20 ms, the rest with 1 ms to take over is 21."""
    slow = way(split(fetch=40.0, compute=20.0), read=40.0, busy=40.0)
    remedy = remedies(evidence(findings(slow)))["pre-load in 2 workers"]
    assert remedy.limiter == "fetch"
    assert remedy.predicted_gain == pytest.approx(39 / 60)
    assert remedy.setting == {"workers": 2}


def test_waits_for_ranks_whose_data_are_late_go_with_the_waits_for_data() -> None:
    """30 ms of reading and 10 ms of waiting for a rank that reads longer: 21 of 60 ms stay, as if all had read 40."""
    slow = way(split(fetch=30.0, synchronization=10.0, compute=20.0), read=30.0, busy=40.0, late=10.0)
    assert remedies(evidence(findings(slow)))["pre-load in 2 workers"].predicted_gain == pytest.approx(39 / 60)


def test_work_is_done_by_the_cores_that_there_are() -> None:
    """Two ranks compute 20 ms and prepare 40 ms; taking over is 1 ms: 122 ms of work a step.

    Four cores do it in 30.5 ms, for which two workers a rank suffice; two cores take 61 ms, longer than now.
    """
    slow = way(split(prepare=40.0, compute=20.0), prepared=40.0, busy=120.0)
    four = remedies(evidence(findings(slow), cores=4))["pre-load in 2 workers"]
    assert four.predicted_gain == pytest.approx(29.5 / 60)
    assert remedies(evidence(findings(slow), cores=2))["pre-load in 1 worker"].predicted_gain == pytest.approx(-1 / 60)


def test_more_workers_are_counted_from_those_that_there_are() -> None:
    """Two workers read 40 ms each, so that a batch comes every 20 ms; the rest with taking over is 6 ms.

    Seven bring one every 5.7 ms, six every 6.7.
    """
    slow = way(split(fetch=13.0, prepare=2.0, compute=5.0), read=40.0, taken=2.0, busy=20.0)
    found = remedies(evidence(findings(slow), strategy=builders.strategy(dp=2, feeding=Feeding(workers=2))))
    assert found["pre-load in 7 workers"].predicted_gain == pytest.approx(14 / 20)


def test_samples_are_kept_where_they_repeat_and_fit() -> None:
    """30 ms of loading become 1 ms, 4 samples of 0.25 ms. All of the data: 1000 samples of 1000 bytes."""
    slow = way(split(fetch=20.0, prepare=10.0, compute=30.0), read=20.0, prepared=10.0)
    kept = remedies(evidence(findings(slow)))["keep samples in memory"]
    assert kept.predicted_gain == pytest.approx(29 / 60)
    assert "976.6 KiB" in kept.basis
    small = remedies(evidence(findings(slow), memory_bytes=1_500_000))["keep samples in memory"]
    assert (small.predicted_gain, "too much" in small.basis) == (0.0, True)
    for other, word in (({"repeats": False}, "random"), ({"stored_bytes": 0}, "alike")):
        drawn = run(sampled=sampled(**other))
        kept = remedies(evidence(findings(slow, runs=(drawn, drawn))))["keep samples in memory"]
        assert (kept.predicted_gain, word in kept.basis) == (0.0, True)


def test_without_a_look_at_samples_nothing_is_said_of_loading() -> None:
    slow = findings(way(split(fetch=40.0, compute=20.0), read=40.0), runs=(run(sampled=None),) * 2)
    assert {remedy.limiter for remedy in remedies(evidence(slow)).values()} == {"communication", "synchronization"}


def test_copies_go_ahead_on_devices_only() -> None:
    """10 ms of copies beside 15 ms of compute."""
    slow = way(split(copy=10.0, compute=15.0))
    assert remedies(evidence(findings(slow), on_device=True))["copy ahead"].predicted_gain == pytest.approx(10 / 25)
    assert "copy ahead" not in remedies(evidence(findings(slow)))


@pytest.mark.parametrize(
    ("buckets", "expected_s"),
    [
        ([], 0.0),
        # Hidden: 2 + 100 / 100 before the end.
        ([(5.0, 100.0)], 0.0),
        # The second leaves when the first has gone, 1 s after the end.
        ([(2.0, 100.0), (1.0, 300.0)], 6.0),
    ],
)
def test_buckets_leave_one_after_the_other(buckets: list[tuple[float, float]], expected_s: float) -> None:
    assert replay(buckets, ExchangeTime(latency_s=2.0, bytes_per_s=100.0)) == expected_s


def test_half_the_bytes_leave_half_of_what_is_exposed_and_the_latency() -> None:
    """A bucket of 96 bytes takes 2 + 96 ms after the backward, of 48 bytes 2 + 48: 48/98 of 49 ms go.

    Less 3 ms of encoding and 1 ms of decoding, of 98 ms.
    """
    bf16 = Compression(method="bf16")
    coding = {
        key: ((96, Cost(cost, cost, cost, "")),) for key, cost in zip(coding_keys(bf16), (3e-3, 1e-3), strict=True)
    }
    own = exchanging(way(split(compute=49.0, communication=49.0)), latency=2.0, bytes_per_ms=1.0, b0=0.0)
    slow = replace(own, buckets=(replace(own.buckets[0], nbytes=96),), runs=(replace(own.runs[0], coding=coding),) * 2)
    remedy = remedies(evidence(slow))["compress gradients, bf16"]
    assert remedy.predicted_gain == pytest.approx((49 * 48 / 98 - 4) / 98)
    sent = replace(evidence(slow).strategy, compression=bf16)
    assert not [name for name in remedies(evidence(slow, strategy=sent)) if name.startswith("compress")]


def test_an_exchange_that_is_hidden_is_not_worth_compressing() -> None:
    hidden = exchanging(way(split(compute=66.0)), latency=1.0, bytes_per_ms=1e6, b0=20.0, b1=10.0)
    _, not_worth = advise_on_stalls(evidence(hidden))
    named = {remedy.name: remedy for remedy in not_worth}
    assert named["compress gradients, bf16"].predicted_gain == 0.0
    # Nothing is saved of a step, and half as many steps more are needed.
    assert named["compress gradients, powersgd-r4"].predicted_gain == pytest.approx(-0.5)
    assert named["accumulate 4 batches"].predicted_gain == 0.0


def test_contention_is_not_saved_by_sending_less() -> None:
    """49 ms are waited for an exchange of 1 + 1 ms, which would be 1 + 0.5."""
    own = exchanging(way(split(compute=49.0, communication=49.0)), latency=1.0, bytes_per_ms=96.0, b0=0.0)
    busy = replace(own, buckets=(replace(own.buckets[0], nbytes=96),))
    remedy = remedies(evidence(busy))["compress gradients, bf16"]
    assert remedy.predicted_gain == pytest.approx(0.5 / 98)


def test_accumulation_spares_rounds_and_updates() -> None:
    """Three quarters of 20 ms of exchange and 4 ms of update, of 60 ms."""
    slow = findings(way(split(compute=40.0, communication=20.0)))
    assert remedies(evidence(slow))["accumulate 4 batches"].predicted_gain == pytest.approx(0.75 * 24 / 60)


def test_a_slower_rank_costs_what_it_works_more_than_the_mean() -> None:
    """Rank 1 works 50 ms, rank 0 30 ms and waits for it: 10 of 50 ms with even work."""
    slow = findings(way(split(compute=30.0, synchronization=20.0), split(compute=50.0)))
    remedy = remedies(evidence(slow))["even out the ranks"]
    assert remedy.predicted_gain == pytest.approx(10 / 50)
    assert remedy.setting == {"rank": 1}


def test_a_rank_that_is_slower_by_chance_need_not_be_slower_again() -> None:
    """Rank 1 works 40 ms in one block and 20 in the other, rank 0 the other way round in all but the mean."""
    one, other = (split(compute=20.0, synchronization=20.0), split(compute=40.0)), (split(compute=40.0),) * 2
    turns = replace(way(split(compute=30.0), split(compute=40.0)), rank_blocks=(one, other))
    low, _ = remedies(evidence(findings(turns)))["even out the ranks"].gain_interval
    assert low < 0.0


def test_advice_is_ranked_and_apart_from_what_is_not_worth_it() -> None:
    slow = way(split(fetch=40.0, compute=20.0), read=40.0, busy=40.0)
    worth, not_worth = advise_on_stalls(evidence(findings(slow)))
    gains: list[Any] = [remedy.predicted_gain for remedy in (*worth, *not_worth)]
    assert gains == sorted(gains, reverse=True)
    assert {remedy.name for remedy in not_worth} >= {"split on the host", "accumulate 4 batches"}


def test_what_may_as_well_cost_is_no_advice() -> None:
    """Two blocks of three wait 1 ms for their data, one 118: two workers save two thirds of the mean, none of most."""
    mean = split(fetch=40.0, compute=20.0)
    blocks = [split(fetch=fetch, compute=20.0) for fetch in (1.0, 118.0, 1.0)]
    unsure = uneven(way(mean, read=40.0, busy=40.0), *blocks)
    worth, not_worth = advise_on_stalls(evidence(findings(unsure)))
    named = {remedy.name: remedy for remedy in not_worth}
    assert not worth
    assert named["pre-load in 2 workers"].predicted_gain == pytest.approx(39 / 60)
    assert named["pre-load in 2 workers"].gain_interval[0] < 0.0


def test_the_surer_gain_comes_first() -> None:
    """Accumulating saves about half of every step, keeping samples two thirds of some and little of others."""
    mean = split(fetch=40.0, communication=40.0, compute=20.0)
    blocks = [split(fetch=fetch, communication=80.0 - fetch, compute=20.0) for fetch in (35.0, 45.0, 40.0)]
    sure = uneven(way(mean, read=40.0), *blocks)
    worth, _ = advise_on_stalls(evidence(findings(sure, update_s=0.0), cores=2))
    ends = [remedy.gain_interval[0] for remedy in worth]
    assert len(ends) > 1
    assert ends == sorted(ends, reverse=True)


def test_of_one_block_no_gain_is_sure() -> None:
    one = way(split(fetch=40.0, compute=20.0), read=40.0, busy=40.0)
    worth, not_worth = advise_on_stalls(evidence(findings(uneven(one, one.mean))))
    assert not worth
    assert not_worth[0].gain_interval == (0.0, 0.99)
    loss = gain(evidence(findings(uneven(one, one.mean))), lambda split: -0.5 * split.step_s)
    assert loss["gain_interval"] == pytest.approx((-1.49, 0.99))


def test_no_more_workers_are_advised_than_cores_and_memory_bear() -> None:
    """Two ranks with 16 workers each on 2 cores are at the limit; in 1 GiB there is room for one of 256 MiB each."""
    slow = way(split(fetch=40.0, compute=20.0), read=400.0, busy=40.0)
    for workers, fields in ((16, {"cores": 2}), (32, {"cores": 2}), (0, {"memory_bytes": 1 << 28})):
        given = evidence(findings(slow), strategy=builders.strategy(dp=2, feeding=Feeding(workers=workers)), **fields)
        assert not [name for name in remedies(given) if name.startswith("pre-load")]
    given = evidence(findings(slow), memory_bytes=1 << 30)
    assert "pre-load in 1 worker" in remedies(given)


def test_more_workers_do_not_take_what_the_present_ones_should_have_taken_already() -> None:
    """Eight workers that read 40 ms each allow a step of 21 ms, which nine do not beat; 60 ms have another cause."""
    slow = way(split(fetch=40.0, compute=20.0), read=40.0, busy=40.0)
    given = evidence(findings(slow), strategy=builders.strategy(dp=2, feeding=Feeding(workers=8)))
    assert remedies(given)["pre-load in 9 workers"].predicted_gain == pytest.approx(0.0)
