"""What is expected of training through rank 0, by hand from a table: reads of 1 ms, 2 ms of a core a sample."""

from dataclasses import replace

import pytest
from tests import builders
from tests.builders import curve, exact, network, table_for

from trimaran.pricing.curves import at_size
from trimaran.pricing.tables import CostTable, SampleCosts
from trimaran.program.strategy import Feeding
from trimaran_studies.reproduce.input_pipeline_real import predict_star
from trimaran_studies.reproduce.torch_data_parallel import ALL, NONE, Remedies

GRAPH = network()
SAMPLES = SampleCosts(
    read=exact(1e-3),
    read_again=exact(1e-3),
    prepare=exact(2e-3),
    batch=exact(0.0),
    take=exact(5e-4),
    take_per_byte=0.0,
    start_s=0.1,
    sample_bytes=100,
    stored_bytes=100,
    samples=100,
    repeats=True,
)
AHEAD = Feeding(workers=2)


def table() -> CostTable:
    """The model: 10 ms forward, 20 ms backward at a share of 8."""
    plain = table_for(GRAPH, whole_s=0.01)
    return replace(plain, steps={GRAPH.digest: replace(plain.steps[GRAPH.digest], samples=SAMPLES)})


def predicted(remedies: Remedies, *, cores: int = 16) -> float:
    found = predict_star(remedies, GRAPH, table(), batch=16, ranks=2, feeding=AHEAD, cores=cores)
    assert found is not None
    return found


def sent_s(nbytes: int) -> float:
    return at_size(table().curves[builders.curve_key("BC", 2)], nbytes).seconds


def beside_feeding() -> float:
    """Compute, weights out, gradients in, and the update."""
    weights = sum(one.nbytes for one in GRAPH.parameters)
    update_s = table().steps[GRAPH.digest].update.at(tensors=len(GRAPH.parameters), nbytes=weights).seconds
    return 0.03 + 2 * sent_s(weights) + update_s


def test_one_thread_loads_all_and_scatters_half() -> None:
    """16 samples of 3 ms; 800 bytes go to the other rank."""
    assert predicted(NONE) == pytest.approx(0.048 + sent_s(800) + beside_feeding())


def test_split_loads_half_and_scatters_nothing() -> None:
    assert predicted(Remedies(split=True)) == pytest.approx(0.024 + beside_feeding())


def test_what_workers_load_ahead_is_hidden_behind_the_rest() -> None:
    """Two workers make 16 samples in 24 ms, less than the rest; half a millisecond is left to take them."""
    assert predicted(Remedies(preload=True)) == pytest.approx(5e-4 + sent_s(800) + beside_feeding())


def test_one_core_for_everything_bounds_the_step() -> None:
    """At least 32 ms of preparing and 60 ms of two ranks that compute."""
    assert predicted(Remedies(preload=True), cores=1) >= 0.092


def test_every_rank_that_reads_takes_its_share_over() -> None:
    """One core prepares 32 ms, computes 60 ms and the update, and takes two shares over, half a millisecond each."""
    update_s = beside_feeding() - 0.03 - 2 * sent_s(sum(one.nbytes for one in GRAPH.parameters))
    found = predicted(Remedies(split=True, preload=True), cores=1)
    assert found == pytest.approx(0.092 + update_s + 2 * 5e-4)


def test_half_of_the_bytes_go_faster() -> None:
    assert predicted(Remedies(compress=True)) < predicted(NONE)
    assert predicted(ALL) < predicted(Remedies(split=True, preload=True))


def test_weights_and_gradients_are_copied_beside_being_sent() -> None:
    """Messages through memory are but a word there, which the star's collectives do not use. A copy of the weights
    takes 0.1 s: packed and unpacked, and the gradients packed, added and unpacked."""
    plain = table()
    size = sum(one.nbytes for one in GRAPH.parameters)
    copies = ((1, exact(0.0)), (size, exact(0.1)))
    curves = {
        **plain.curves,
        builders.curve_key("SEND", 2): curve(1e-6, 1e12),
        builders.curve_key("SEND host", 2): copies,
    }
    found = predict_star(NONE, GRAPH, replace(plain, curves=curves), batch=16, ranks=2, feeding=AHEAD, cores=16)
    assert found == pytest.approx(predicted(NONE) + 5 * 0.1)


def test_nothing_is_predicted_of_samples_that_nobody_measured() -> None:
    without = table_for(GRAPH, whole_s=0.01)
    assert predict_star(NONE, GRAPH, without, batch=16, ranks=2, feeding=AHEAD, cores=2) is None
