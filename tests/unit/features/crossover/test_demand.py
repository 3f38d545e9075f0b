"""What batches need, alone and together."""

import numpy as np
import pytest
from tests.unit.features.crossover.cases import curve

from trimaran.features.crossover.candidates import COUNT, Demand, SamplesToTarget

EPOCHS = {64: 4.0, 256: 5.0, 1024: 8.0, 4096: 20.0}


def test_a_projection_is_taken_at_its_word_and_what_lies_between_is_not_below_it() -> None:
    demand = Demand(curve(EPOCHS))
    assert [demand.at(batch).amount for batch in EPOCHS] == list(EPOCHS.values())
    assert 5.0 < demand.at(512).amount < 8.0


def test_without_a_curve_all_batches_need_the_same() -> None:
    demand = Demand(None)
    assert demand.at(8) == demand.at(4096) == SamplesToTarget(1.0, 1.0, 1.0)
    assert not demand.is_absolute


def test_draws_have_the_intervals_of_the_curve() -> None:
    demand = Demand(curve(EPOCHS))
    drawn = demand.draws([64, 1024, 65536], np.random.default_rng(1))
    for batch in (64, 1024, 65536):
        low, high = np.quantile(drawn[batch], (0.05, 0.95))
        need = demand.at(batch)
        assert len(drawn[batch]) == COUNT
        assert np.log(low / need.low) == pytest.approx(0.0, abs=0.25 * np.log(need.high / need.low))
        assert np.log(high / need.high) == pytest.approx(0.0, abs=0.25 * np.log(need.high / need.low))
    # Beyond the data it is less sure.
    assert np.std(np.log(drawn[65536])) > 2 * np.std(np.log(drawn[1024]))


def test_neighbours_err_together_and_distant_batches_do_not() -> None:
    demand = Demand(curve(EPOCHS))
    drawn = demand.draws([4096, 8192, 4096 * 64], np.random.default_rng(1))
    logs = [np.log(drawn[batch] / demand.at(batch).amount) for batch in (4096, 8192, 4096 * 64)]
    # exp(−(ln 2)² / 2 (ln 4)²) = 0.88; exp(−(6 ln 2)² / 2 (2 ln 2)²) = 0.01
    assert np.corrcoef(logs[0], logs[1])[0, 1] == pytest.approx(0.88, abs=0.05)
    assert abs(np.corrcoef(logs[0], logs[2])[0, 1]) < 0.15
