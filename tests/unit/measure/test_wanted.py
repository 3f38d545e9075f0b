import dataclasses

from tests import builders
from tests.builders import about, curve, exact, network, table_for
from tests.unit.pricing.test_fed_step import SAMPLES

from trimaran.graph.types import Graph
from trimaran.measure.wanted import Wanted, WholeRun, choose_batches, find_missing, forms, wanted_curves
from trimaran.pricing.gradient_compression import coding_keys
from trimaran.pricing.tables import CostTable
from trimaran.program.gradients import Compression

GRAPH = network(4)


def _known(graph: Graph) -> CostTable:
    """Everything that 2 ranks need at batches of 4 and 8."""
    table = table_for(graph)
    whole = builders.whole_cost(forward=exact(1.0), backward=exact(2.0), evaluation=exact(0.5))
    step = table.steps[graph.digest]
    return dataclasses.replace(
        table,
        wholes={
            builders.whole_key(graph.digest, form): {4: whole, 8: whole} for form in ("module", "replicated", "graph")
        },
        steps={"job": step},
        curves={**table.curves, **dict.fromkeys(wanted_curves(2)[3:], curve(1e-5, 1e10))},
        interference={"AR": builders.interference(), "SEND": builders.interference()},
        between=builders.between(1e-4, 1e-5),
    )


def _missing(table: CostTable, *batches: int, graph: Graph = GRAPH, ranks: int = 2, job: str = "job") -> Wanted:
    return find_missing(table, graph, job=job, ranks=ranks, batches=batches, executions=("eager",))


def test_nothing_is_measured_twice() -> None:
    assert _missing(_known(GRAPH), 4, 8).nothing


def test_another_batch_size_wants_passes_runs_and_loads_of_that_size_only() -> None:
    wanted = _missing(_known(GRAPH), 8, 16)
    assert wanted.passes == (16,)
    assert {run.batch for run in wanted.wholes} == {16}
    assert not wanted.update


def test_an_operation_that_another_job_had_is_known() -> None:
    """The same operations in another graph: only the whole model is new."""
    other = dataclasses.replace(GRAPH, ops=(*GRAPH.ops[:3], *GRAPH.ops[4:]))
    wanted = _missing(_known(GRAPH), 4, 8, graph=other)
    assert wanted.passes == ()
    assert WholeRun(form="graph", execution="eager", batch=4) in wanted.wholes


def test_a_changed_job_wants_its_update_and_loading_again() -> None:
    """Loading is measured beside runs on all ranks; the module as it is runs on one."""
    wanted = _missing(_known(GRAPH), 4, 8, job="edited")
    assert (wanted.update, wanted.passes) == (True, ())
    assert [(run.form, run.batch) for run in wanted.wholes] == [("replicated", 4), ("replicated", 8)]


def test_links_that_are_missing_are_measured_alone() -> None:
    table = dataclasses.replace(_known(GRAPH), curves={})
    wanted = _missing(table, 4, 8)
    kinds = ("SEND", "AR", "BC", "SEND host", "RECV host", "AR host")
    assert wanted == Wanted(curves=tuple(builders.curve_key(kind, 2) for kind in kinds))


def test_compressions_that_plans_may_use_are_measured_once() -> None:
    """Sums of 16 bits too; PowerSGD sums in 32."""
    methods = (Compression(method="bf16"), Compression(method="powersgd", rank=2))

    def missing(table: CostTable, ranks: int = 2) -> Wanted:
        return find_missing(
            table, GRAPH, job="job", ranks=ranks, batches=(4, 8), executions=("eager",), compressions=methods
        )

    wanted = missing(_known(GRAPH))
    assert wanted == Wanted(encodings=methods, curves=(builders.curve_key("AR bf16", 2),))
    keys = [*wanted.curves, *(key for method in methods for key in coding_keys(method))]
    known = _known(GRAPH)
    full = dataclasses.replace(known, curves={**known.curves, **dict.fromkeys(keys, curve(1e-5, 1e10))})
    assert missing(full).nothing
    assert missing(_known(GRAPH), ranks=1).encodings == ()


def test_one_rank_needs_no_links_and_one_form() -> None:
    wanted = _missing(builders.cost_table(fingerprint=table_for(GRAPH).fingerprint), 8, ranks=1)
    assert (wanted.curves, wanted.interference) == ((), ())
    assert wanted.wholes == (WholeRun(form="module", execution="eager", batch=8),)


def test_a_model_without_cuts_is_not_measured_in_segments() -> None:
    assert forms(dataclasses.replace(GRAPH, split_points=()), ranks=2, execution="eager") == ("module", "replicated")


def test_of_many_batch_sizes_a_few_are_measured_with_the_ends_among_them() -> None:
    assert choose_batches(range(1, 101)) == (1, 21, 41, 60, 80, 100)
    assert choose_batches([32, 64]) == (32, 64)


def test_compiled_runs_are_few() -> None:
    wanted = find_missing(_known(GRAPH), GRAPH, job="job", ranks=2, batches=(4, 8, 16), executions=("compiled",))
    assert [(run.form, run.batch) for run in wanted.wholes] == [("replicated", 4), ("replicated", 16)]


def test_a_batch_size_whose_loading_is_not_known_is_run_again() -> None:
    table = _known(GRAPH)
    step = dataclasses.replace(table.steps["job"], load={4: about(1.0, 0.1)})
    wanted = _missing(dataclasses.replace(table, steps={"job": step}), 4, 8)
    assert wanted == Wanted(wholes=(WholeRun(form="replicated", execution="eager", batch=8),))


def test_samples_are_measured_where_they_are_wanted_and_not_known() -> None:
    def missing(table: CostTable, *, samples: bool) -> Wanted:
        return find_missing(table, GRAPH, job="job", ranks=2, batches=(4, 8), executions=("eager",), samples=samples)

    known = _known(GRAPH)
    assert missing(known, samples=False).nothing
    assert missing(known, samples=True) == Wanted(samples=True)
    step = dataclasses.replace(known.steps["job"], samples=SAMPLES)
    assert missing(dataclasses.replace(known, steps={"job": step}), samples=True).nothing
