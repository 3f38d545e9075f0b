"""What a calibration brings counts before the cache, each table for the links that it was measured with."""

import dataclasses
from dataclasses import dataclass

import pytest
from tests import builders
from tests.builders import curve, network, table_for

from trimaran.base.job import Job
from trimaran.measure.cache import load_cached, store
from trimaran.measure.costs import fingerprint_here, forget, job_digest, measure_costs
from trimaran.measure.wanted import wanted_curves
from trimaran.pricing.tables import CostTable

LINK = builders.link(bytes_per_s=125e6, source="asked: 1 Gb/s")
GRAPH = network()
BOTH = dict.fromkeys(("AR", "SEND"), builders.interference(compute=1.5, communication=2.0, source="measured: by hand"))


@dataclass(frozen=True)
class Source:
    """A job that cannot be made: whoever starts a process for it fails."""

    reference: str = "nobody"

    def make(self) -> Job:
        raise NotImplementedError


def machine(whole_s: float) -> CostTable:
    """All that two ranks need at a batch of 8."""
    table = table_for(GRAPH, whole_s=whole_s)
    return dataclasses.replace(
        table,
        fingerprint=fingerprint_here(2),
        steps={job_digest(Source().make, GRAPH): table.steps[GRAPH.digest]},
        curves={**table.curves, **dict.fromkeys(wanted_curves(2), curve(1e-4, 1e9))},
        interference=BOTH,
        between=builders.between(1e-4, 1e-5),
    )


def held() -> CostTable:
    """The same transfers, slower."""
    return builders.cost_table(
        fingerprint=fingerprint_here(2, LINK),
        curves=dict.fromkeys(machine(0.5).curves, curve(1e-3, 1.25e8)),
        interference=BOTH,
    )


def test_what_is_given_counts_before_the_cache() -> None:
    store(machine(9.0))
    table = measure_costs(Source().make, GRAPH, ranks=2, batches=[8], known=(machine(0.5), held()))
    assert table.wholes == machine(0.5).wholes
    assert table.curves == machine(0.5).curves


@pytest.mark.parametrize("cached", [True, False])
def test_held_links_have_their_own_transfers_and_the_machines_compute(cached: bool) -> None:
    given = (machine(0.5), held())
    if cached:
        for table in given:
            store(table)
    found = measure_costs(Source().make, GRAPH, ranks=2, batches=[8], link=LINK, known=() if cached else given)
    assert found.wholes == machine(0.5).wholes
    assert found.curves == held().curves


def test_what_is_kept_of_a_job_can_be_forgotten_and_nothing_else() -> None:
    other = network(3)
    store(machine(0.5))
    store(dataclasses.replace(table_for(other), fingerprint=fingerprint_here(2)))
    forget(Source().make, GRAPH, ranks=2)
    left = load_cached(fingerprint_here(2))
    assert left.wholes == table_for(other).wholes
    assert list(left.steps) == [other.digest]
    assert not {key.content for key in left.operations} & {op.content for op in GRAPH.ops}
    assert left.curves.keys() >= set(wanted_curves(2))
