"""A crossover says why it is where it is."""

from tests.unit.features.crossover.cases import curve, option, worker

from trimaran.features.crossover.candidates import Demand, compare
from trimaran.features.crossover.find import lack_of_memory, reason_of
from trimaran.features.crossover.steps import ALONE

COUNTS = (4, 8, 16)


def paper(amounts: dict[int, float]) -> str:
    demand = Demand(curve(amounts))
    data = [option(count, 8, 1.0) for count in COUNTS]
    hybrid = [option(count, 8, 1.0, of=worker()) for count in COUNTS]
    found = compare(COUNTS, data, hybrid, demand, idle=False)
    return reason_of(found.rows, worker(), "paper", demand, devices=found.devices, needed=None)


def test_paper_mode_names_both_batches_and_both_speedups() -> None:
    """64 samples need twice the epochs of 32: a worker of two must exceed 1."""
    assert paper({16: 4.0, 32: 4.0, 64: 8.0, 128: 24.0}) == (
        "from 8 devices on: on 8 devices 64 samples need 2.00 times the epochs of 32; a worker must be more than 1.00 "
        "times as fast as one device, and is 1.50 times (pp2 1f1b m4)"
    )


def test_a_gain_that_is_lost_again_is_told() -> None:
    assert paper({16: 4.0, 32: 4.0, 64: 8.0, 128: 8.4}).startswith("at 8 devices, and not at 16: ")


def test_never_names_the_last_count() -> None:
    told = paper({16: 4.0, 32: 4.0, 64: 4.4, 128: 4.8})
    assert told.startswith("never: on 16 devices 128 samples need 1.09 times the epochs of 64")


def test_a_network_that_cannot_be_split_leaves_no_question() -> None:
    idle = worker(speedup=1.0, strategy=ALONE)
    assert "no model parallelism over 2 devices is faster" in reason_of(
        (), idle, "ours", Demand(None), devices=None, needed=1.8, idle=True
    )


def test_without_a_curve_a_hybrid_that_does_more_samples_is_ahead_where_smaller_batches_gain_little() -> None:
    """16 × 2 samples in 1.0 s against 8 of 2 × 4 in 1.2 / 1.5 s, the same 32 samples."""
    data, hybrid = [option(16, 2, 1.0)], [option(16, 4, 1.2, of=worker(batch=4))]
    rows = compare((16,), data, hybrid, Demand(None), idle=True).rows
    told = reason_of(rows, worker(), "ours", Demand(None), devices=None, needed=None)
    assert told.startswith("ahead unless smaller batches need far fewer epochs: on 16 devices at a global batch of 32")
    slow = compare((16,), data, [option(16, 4, 1.8, of=worker(batch=4))], Demand(None), idle=True).rows
    assert reason_of(slow, worker(), "ours", Demand(None), devices=None, needed=None).startswith(
        "never, whatever the curve"
    )


def test_memory_alone_can_decide() -> None:
    held = [option(16, 4, 1.0, of=worker())]
    assert lack_of_memory(2, [option(16, 4, 1.0)], held) == ""
    assert "a worker of 2 does" in lack_of_memory(2, [], held)
    assert lack_of_memory(2, [], []).startswith("neither a device nor a worker of 2")
