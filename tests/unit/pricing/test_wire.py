"""What compressed gradients take. Two layers of a matrix of 32 by 32 and a bias of 32: 4096 + 128 bytes each.

Layer i takes (i + 1) ms a sample forward and twice that backward, the loss 1 and 2 ms; replicas have 8 samples. Their
backward takes 16 ms for the loss, 32 for the second layer, 16 for the first. Buckets of 4 KiB hold a layer each.
"""

import dataclasses

import pytest
from tests import builders
from tests.builders import about, exact, network, table_for
from tests.graphs import parameter
from tests.raising import raises
from tests.unit.pricing.test_fed_step import SAMPLES

from trimaran.graph.types import Graph
from trimaran.machine.catalog import find_device
from trimaran.machine.find import find_machine
from trimaran.planner.candidates import at_end
from trimaran.pricing.gradient_compression import code_program, coding_keys, reduce_key
from trimaran.pricing.program import price
from trimaran.pricing.tables import CostTable, Curve
from trimaran.pricing.types import ProgramCosts
from trimaran.program.gradients import Compression
from trimaran.program.lowering.lower import lower
from trimaran.program.strategy import Feeding, Strategy
from trimaran.program.types import Program
from trimaran.simulator.engine import simulate

BF16 = Compression(method="bf16")
RANK2 = Compression(method="powersgd", rank=2)
LAYER_BYTES = 4096 + 128
BATCH = 16


def _graph() -> Graph:
    graph = network(2)
    sizes = {name: (4096, (32, 32)) if name.endswith("weight") else (128, (32,)) for name in _names(graph)}
    parameters = tuple(parameter(name, nbytes, shape=shape) for name, (nbytes, shape) in sizes.items())
    return dataclasses.replace(graph, parameters=parameters)


def _names(graph: Graph) -> list[str]:
    return [one.name for one in graph.parameters]


GRAPH = _graph()


def _flat(seconds: float) -> Curve:
    return tuple((size, about(seconds, 0.5)) for size in (1, 10**6))


def coded_table(*, encode_s: float = 4e-3, decode_s: float = 2e-3, method: Compression = BF16) -> CostTable:
    table = table_for(GRAPH)
    encode, decode = coding_keys(method)
    curves = {
        builders.curve_key("AR", 2): tuple((size, exact(10e-3)) for size in (1, 10**6)),
        encode: _flat(encode_s),
        decode: _flat(decode_s),
    }
    return dataclasses.replace(table, curves=curves, interference={})


CLUSTER = builders.cluster()


def priced(strategy: Strategy, table: CostTable) -> tuple[Program, ProgramCosts]:
    program = lower(GRAPH, strategy, batch=BATCH)
    return program, price(program, GRAPH, strategy, table, CLUSTER, batch=BATCH)


LAYERS = builders.strategy(dp=2, bucket_bytes=4096, compression=BF16)


def test_a_backward_encodes_each_bucket_where_it_is_complete() -> None:
    """64 ms and twice 4 ms; the second layer is complete after 48 ms, and encoded after 52 of 72."""
    program, costs = priced(LAYERS, coded_table())
    assert costs.compute["r0/0B0"].seconds == pytest.approx(72e-3)
    assert costs.marks["r0/0B0", "b0"] == pytest.approx(52 / 72)
    assert costs.marks["r1/0B0", "b1"] == pytest.approx(1.0)
    # Errors of one curve are common to its buckets: 2 ms each way, twice.
    assert (costs.compute["r0/0B0"].low, costs.compute["r0/0B0"].high) == pytest.approx((68e-3, 76e-3))
    assert {item.nbytes for item in program if item.label in ("b0", "b1")} == {LAYER_BYTES // 2}


def test_a_bucket_is_decoded_when_its_sum_is_there_and_its_rank_is_free() -> None:
    """Load 1, forward 32, backward until 105 ms. The sums take 85 to 95 and 105 to 115 ms, decoding until 107 and 117.

    The update of four tensors and 8,448 bytes takes 1 + 0.4 + 8.448 ms.
    """
    program, costs = priced(LAYERS, coded_table())
    timeline = simulate(program, costs)
    spans = {span.instruction: (span.start_s, span.end_s) for span in timeline}
    assert spans["r0/0AR#b0"] == pytest.approx((85e-3, 95e-3))
    assert spans["r0/0AR#b1"] == pytest.approx((105e-3, 115e-3))
    assert spans["r0/U"][0] == pytest.approx(117e-3)
    assert timeline.makespan_s == pytest.approx(126.848e-3)


def test_decoding_hides_behind_the_sums_of_later_buckets() -> None:
    """Decoding of 8 ms: the first until 113 ms, behind a sum that takes until 115, the second until 123."""
    program, costs = priced(LAYERS, coded_table(decode_s=8e-3))
    (update,) = (span for span in simulate(program, costs) if span.instruction == "r0/U")
    assert update.start_s == pytest.approx(123e-3)


def test_decoding_counts_at_the_ends_of_its_interval() -> None:
    _, costs = priced(LAYERS, coded_table())
    assert at_end(costs, "high").decoding["r0/0AR#b0"].seconds == pytest.approx(3e-3)


def test_cores_that_workers_share_decode_too() -> None:
    """Two ranks decode two buckets, 20 ms each: half of 80 ms more for each of two cores."""
    fed = dataclasses.replace(LAYERS, feeding=Feeding(workers=64))

    def period_s(decode_s: float) -> float:
        table = coded_table(decode_s=decode_s)
        step = dataclasses.replace(table.steps[GRAPH.digest], samples=SAMPLES)
        period = priced(fed, dataclasses.replace(table, steps={GRAPH.digest: step}))[1].period
        assert period is not None
        return period.seconds

    assert period_s(20e-3) - period_s(0.0) == pytest.approx(40e-3)


def test_what_is_not_compressed_is_priced_as_before() -> None:
    plain = dataclasses.replace(LAYERS, compression=None)
    with_curves = coded_table()
    key = builders.curve_key("AR", 2)
    without = dataclasses.replace(with_curves, curves={key: with_curves.curves[key]})
    assert priced(plain, with_curves) == priced(plain, without)
    assert priced(plain, without)[1].decoding == {}


def test_gradients_of_16_bits_cost_no_coding() -> None:
    halves = tuple(dataclasses.replace(one, dtype="bfloat16", nbytes=one.nbytes // 2) for one in GRAPH.parameters)
    graph = dataclasses.replace(GRAPH, parameters=halves)
    for method in (BF16, RANK2):
        strategy = builders.strategy(dp=2, compression=method)
        program = lower(graph, strategy, batch=BATCH)
        table = dataclasses.replace(coded_table(method=method), steps={graph.digest: coded_table().steps[GRAPH.digest]})
        costs = price(program, graph, strategy, table, CLUSTER, batch=BATCH)
        assert costs.compute["r0/0B0"].seconds == pytest.approx(64e-3)
        assert costs.decoding["r0/0AR#b0"].seconds == 0.0
        assert costs.second_rounds == {}
        (reduce,) = (item for item in program.ranks[0] if item.label == "b0")
        assert reduce.nbytes == LAYER_BYTES


def test_numbers_of_16_bits_are_summed_at_their_own_pace() -> None:
    key = reduce_key(BF16, 2)
    assert key is not None
    table = coded_table()
    slower = dataclasses.replace(
        table, curves={**table.curves, key: tuple((size, exact(15e-3)) for size in (1, 10**6))}
    )
    costs = priced(LAYERS, slower)[1]
    buckets, loss = costs.transfers["r0/0AR#b0"], costs.transfers["r0/AR#loss"]
    assert buckets.latency_s + buckets.flow_s == pytest.approx(15e-3)
    assert loss.latency_s + loss.flow_s == pytest.approx(10e-3)


def test_a_method_that_nobody_measured_is_refused_with_what_measures_it() -> None:
    with raises("cost-table.missing-compression", match="--allow", compression="bf16"):
        priced(LAYERS, coded_table(method=RANK2))


@pytest.mark.parametrize(
    ("method", "kept"),
    [
        (None, 0),
        (BF16, 2 * LAYER_BYTES),
        # The matrices alone, and 2 · 32 numbers of each Q.
        (RANK2, 2 * 4096 + 2 * 4 * 2 * 32),
    ],
)
def test_a_rank_keeps_what_compression_has_lost(method: Compression | None, kept: int) -> None:
    """Parameters, gradients and one byte of state a byte: three times 8,448."""
    table = coded_table(method=method or BF16)
    _, costs = priced(builders.strategy(dp=2, compression=method), table)
    assert costs.resident_bytes == (3 * 2 * LAYER_BYTES + kept,) * 2


def test_what_is_on_the_wire_lives_until_the_update() -> None:
    program, costs = priced(LAYERS, coded_table())
    assert costs.memory["r0/0AR#b0"] == (LAYER_BYTES // 2, 0)
    assert costs.memory["r0/U"] == (0, LAYER_BYTES)
    timeline = simulate(program, costs)
    assert timeline.peak_bytes(0) >= costs.resident_bytes[0]


def test_on_a_gpu_coding_is_passes_over_memory() -> None:
    """Of 8,448 bytes: 7 times that to encode and 1.5 to decode at what memory sustains, and 3 and 1 launches."""
    device = find_device("v100-16gb")
    machine = find_machine("dgx1-v100").allocate(2)
    strategy = builders.strategy(dp=2, compression=BF16)
    program = lower(GRAPH, strategy, batch=BATCH)
    coding = code_program(program, GRAPH, strategy, coded_table(method=RANK2), machine)["r0/0AR#b0"]
    rate = device.bandwidth.bytes_per_s * device.bandwidth.fraction
    assert coding.encode.seconds == pytest.approx(7 * 2 * LAYER_BYTES / rate + 3 * device.launch.seconds)
    assert coding.decode.seconds == pytest.approx(1.5 * 2 * LAYER_BYTES / rate + device.launch.seconds)
    assert coding.encode.low < coding.encode.seconds < coding.encode.high
