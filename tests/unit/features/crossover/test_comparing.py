"""Hybrids against data parallelism where both are made up, so that the answer is known."""

import pytest
from tests.unit.features.crossover.cases import curve, option, worker

from trimaran.features.crossover.candidates import Demand, compare, equal_batch_limit, first_ahead
from trimaran.features.crossover.steps import Exchanged
from trimaran.report.crossover import Row
from trimaran_studies.reproduce.hybrid_speedup import hybrid_over_data

EPOCHS = {16: 4.0, 32: 4.0, 64: 8.0, 128: 24.0}


def ends(row: Row) -> tuple[float, float]:
    assert row.speedup_interval is not None
    return row.speedup_interval


def test_a_fixed_local_batch_gives_the_studys_criterion() -> None:
    """Local batch 8 in 1 s; on 16 devices 128 samples against 64: 1.5 / 2 · 24 / 8 = 2.25."""
    demand = Demand(curve(EPOCHS))
    counts = (4, 8, 16)
    data = [option(count, 8, 1.0) for count in counts]
    hybrid = [option(count, 8, 1.0, of=worker()) for count in counts]
    found = compare(counts, data, hybrid, demand, idle=False)
    for row in found.rows:
        few, many = EPOCHS[row.devices * 4], EPOCHS[row.devices * 8]
        assert row.ahead_by == pytest.approx(hybrid_over_data(2, worker_speedup=1.5, epoch_ratio=many / few))
    assert [row.ahead_by for row in found.rows] == pytest.approx([0.75, 1.5, 2.25])
    assert found.devices == 8
    assert found.interval[0] == 8


def test_with_the_local_batch_free_data_parallelism_keeps_its_epochs() -> None:
    """On 16 devices at 2 samples each, in 0.3 s, data parallelism needs 4 epochs; a hybrid of 8 × 8 needs 8."""
    demand = Demand(curve(EPOCHS))
    data = [option(16, 2, 0.3), option(16, 8, 1.0)]
    hybrid = [option(16, 8, 1.0, of=worker()), option(16, 4, 0.55, of=worker(batch=4))]
    found = compare((16,), data, hybrid, demand, idle=True)
    (row,) = found.rows
    assert (row.data_parallel.name, row.hybrid.name) == ("16 × 2", "8 of 2 × 4")
    # 32 samples each: 0.3 s against 0.55 / 1.5 s.
    assert row.ahead_by == pytest.approx(0.3 * 1.5 / 0.55)
    assert found.devices is None
    assert ends(row)[0] <= row.ahead_by <= ends(row)[1]


def test_devices_may_be_left_idle() -> None:
    """Where 16 devices wait for each other 10 s, 8 of them are better used alone."""
    waits = Exchanged(10.0, 0.0, 1.0, 0.0)
    data = [option(8, 8, 1.0), option(16, 8, 1.0, exchange=waits)]
    hybrid = [option(8, 8, 1.0, of=worker())]
    demand = Demand(None)
    assert compare((16,), data, hybrid, demand, idle=True).rows[0].data_parallel.devices == 8
    assert compare((16,), data, hybrid, demand, idle=False).rows == ()


def test_the_largest_batch_at_which_the_hybrid_has_the_shorter_step() -> None:
    data = [option(8, 1, 0.9), option(8, 2, 1.0), option(8, 4, 1.1)]
    hybrid = [option(8, 2, 1.0, of=worker()), option(8, 4, 1.4, of=worker()), option(8, 8, 2.0, of=worker())]
    # 8 samples: 0.67 s against 0.9 s; 16: 0.93 against 1.0; 32: 1.33 against 1.1.
    assert equal_batch_limit(data, hybrid) == 16
    assert equal_batch_limit(data, hybrid[2:]) is None


def test_a_surer_worker_gives_a_narrower_interval() -> None:
    demand = Demand(None)
    wide, narrow = (
        compare((2,), [option(2, 8, 1.0)], [option(2, 8, 1.0, of=worker(spread=spread))], demand, idle=False)
        for spread in (0.2, 0.02)
    )
    assert wide.rows[0].ahead_by == narrow.rows[0].ahead_by == pytest.approx(0.75)
    low, high = ends(narrow.rows[0])
    assert ends(wide.rows[0])[0] < low < high < ends(wide.rows[0])[1]
    # 5 % and 95 % of a normal law: the ends of the worker's own interval, as nothing else is unsure.
    assert (low, high) == pytest.approx((0.75 * 0.98, 0.75 * 1.02), rel=5e-3)


def test_a_surer_exchange_gives_a_narrower_interval() -> None:
    """Data parallelism computes 1 s and exchanges 1 s, 0.5 to 3 s; the hybrid computes 1 s for half as many samples."""
    data = [option(2, 8, 1.0, exchange=Exchanged(1.0, 0.0, 1.0, 0.0, ends)) for ends in ((1.0, 1.0), (0.5, 3.0))]
    hybrid = [option(2, 8, 1.5, of=worker(spread=0.0))]
    sure, unsure = (ends(compare((2,), [one], hybrid, Demand(None), idle=False).rows[0]) for one in data)
    assert sure == pytest.approx((1.0, 1.0))
    assert unsure == pytest.approx((1.5 / 2, 4.0 / 2), rel=0.05)


def test_the_crossover_of_a_steeper_curve_is_not_later() -> None:
    demand = Demand(curve(EPOCHS))
    counts = (4, 8, 16)
    data = [option(count, 8, 1.0) for count in counts]
    hybrid = [option(count, 8, 1.0, of=worker()) for count in counts]
    batches = sorted({one.global_batch for one in (*data, *hybrid)})
    found = []
    for share in (-1.0, 0.0, 1.0):
        needs = demand.steeper(batches, share)
        cost = lambda one, needs=needs: one.step_s() * needs[one.global_batch] / one.global_batch  # noqa: E731
        found.append(first_ahead(counts, data, hybrid, cost, idle=False) or 10**6)
    assert found == sorted(found, reverse=True)
    assert found[1] == 8
