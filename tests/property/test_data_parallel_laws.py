"""Laws of a data-parallel step: it is as long as its program in the engine, from first to last.

The first law builds the program by hand; it holds to rounding. The second lowers and prices a captured network as a
plan does; it holds to 0.1 %, since a plan gives operations of the same content the mean of their costs, and torch's
order of the parameters of one operation is not that of its kernels.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import builders
from tests.property.test_exchange_laws import lowered

from trimaran.graph.kernels.workload import Work, WorkKind, Workload
from trimaran.graph.types import Phase
from trimaran.machine.find import find_machine
from trimaran.planner.problem import assess, least, quick_bounds, split_for
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.estimated_problem import machine_problem
from trimaran.pricing.exchange.costs import ExchangeOptions, handling_s, straggling
from trimaran.pricing.exchange.frameworks import DDP, ExchangeRecipe
from trimaran.pricing.kernels.estimate import StepEstimate
from trimaran.pricing.types import Cost
from trimaran.program.gradients import first_bucket_bytes
from trimaran.simulator.data_parallel import DataParallelSetup, data_parallel_step, ready_gradients
from trimaran.simulator.engine import simulate

# Sums of tens of floats near 1, in another order than the engine's.
TOLERANCE = 1e-9

FORWARD_S, UPDATE_S = 1.0, 0.25
"""Of the programs of `lowered`."""

MACHINES = {"dgx1-v100": 8, "dgx-a100:2": 16, "dgx1-v100:4@ethernet-10g": 32, "4xrtx-3090": 4}

recipes = st.builds(
    ExchangeRecipe,
    name=st.just("drawn"),
    first_bytes=st.sampled_from([0, 1 << 20]),
    bucket_bytes=st.sampled_from([0, 1 << 20, 25 << 20, 1 << 62]),
    keys=st.sampled_from([0, 3]),
    overlaps=st.booleans(),
    call_s=st.sampled_from([0.0, 20e-6, 1e-2]),
    tensor_s=st.sampled_from([0.0, 1e-3]),
    step_s=st.sampled_from([0.0, 3e-3]),
    passes=st.sampled_from([0, 4]),
    collectives=st.sampled_from([("all_reduce",), ("reduce", "broadcast")]),
    interference=st.sampled_from([1.0, 1.1, 1.5]),
    source=st.just("drawn"),
)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Workload, StepEstimate]:
    """A network of up to ten layers, the last of them first in the backward, and what it takes alone."""
    sizes = draw(st.lists(st.sampled_from([4_000, 800_000, 4_000_000, 100_000_000]), min_size=1, max_size=10))
    spent = draw(st.lists(st.floats(0.01, 0.3), min_size=len(sizes), max_size=len(sizes)))

    def work(phase: Phase, module: str) -> Work:
        return builders.work(
            kind=WorkKind.PRODUCT, phase=phase, module=module, name="mm", flops=1.0, nbytes=1, dims=(1,)
        )

    gradients = [
        builders.weight_gradient(name=f"{n}.weight", module=str(n), elements=nbytes // 4, nbytes=nbytes, work=n + 1)
        for n, nbytes in enumerate(sizes)
    ]
    works = (
        work(Phase.FORWARD, ""),
        *(work(Phase.BACKWARD, str(number)) for number in range(len(sizes))),
        work(Phase.UPDATE, ""),
    )
    parts = [Cost(seconds, seconds, seconds, "drawn") for seconds in (FORWARD_S, sum(spent), UPDATE_S)]
    estimate = StepEstimate(
        work_s=(FORWARD_S, *spent, UPDATE_S),
        forward=parts[0],
        backward=parts[1],
        update=parts[2],
        host_s=0.0,
        device_s=FORWARD_S + sum(spent) + UPDATE_S,
        source="drawn",
    )
    made = builders.workload(
        name="drawn", works=works, gradients=tuple(gradients), parameter_bytes=sum(sizes), input_bytes=1
    )
    return made, estimate


@given(job=jobs(), recipe=recipes, name=st.sampled_from(sorted(MACHINES)))
def test_a_data_parallel_step_is_what_the_engine_makes_of_its_program(
    job: tuple[Workload, StepEstimate], recipe: ExchangeRecipe, name: str
) -> None:
    work, estimate = job
    machine, devices = find_machine(name), MACHINES[name]
    setup = DataParallelSetup(
        workload=work,
        estimate=estimate,
        machine=machine,
        devices=devices,
        nodes=machine.nodes,
        options=ExchangeOptions(recipe=recipe, explain=False),
    )
    gradients = ready_gradients(work, estimate)
    # Two ranks stand for all: they are alike, and the price of a call is that of the group.
    program, costs = lowered(2, setup.run(gradients).calls, estimate.backward.seconds, recipe.interference)
    nbytes = sum(gradient.nbytes for gradient in work.gradients)
    copies_s = handling_s(recipe, machine, tensors=len(work.gradients), nbytes=nbytes)
    costs = replace(costs, between_s=(copies_s, copies_s), straggling=straggling(devices, machine.nodes))
    step = data_parallel_step(setup)
    assert step.step.seconds == pytest.approx(simulate(program, costs).makespan_s, abs=TOLERANCE)


@settings(max_examples=12)
@given(
    network=st.sampled_from(["lenet", "resnet18", "alexnet"]),
    name=st.sampled_from(sorted(MACHINES)),
    local_batch=st.sampled_from([16, 64]),
    bucket_bytes=st.sampled_from([1 << 17, 1 << 20, 25 << 20, 1 << 30]),
    half=st.booleans(),
)
def test_planned_replicas_take_a_data_parallel_step(
    network: str, name: str, local_batch: int, bucket_bytes: int, half: bool
) -> None:
    machine, devices, precision = find_machine(name), MACHINES[name], "fp16" if half else "fp32"
    asked = builders.cluster_request(cluster=name, devices=devices, batch=local_batch * devices, precision=precision)
    planned = assess(builders.strategy(dp=devices, bucket_bytes=bucket_bytes), machine_problem(network, asked))
    recipe = replace(DDP, first_bytes=first_bucket_bytes(bucket_bytes), bucket_bytes=bucket_bytes)
    job = DataParallelJob(
        reference=network,
        machine=machine,
        precision=precision,
        exchange=ExchangeOptions(recipe=recipe, explain=False),
    )
    assert planned.step_time_s == pytest.approx(job.step(local_batch, devices).step.seconds, rel=1e-3)


@settings(max_examples=12)
@given(
    name=st.sampled_from(sorted(MACHINES)),
    rows=st.sampled_from([1, 2, 4]),
    microbatches=st.sampled_from([1, 2, 4]),
    bucket_bytes=st.sampled_from([1 << 17, 25 << 20]),
)
def test_no_bound_on_a_catalog_machine_is_above_the_step(
    name: str, rows: int, microbatches: int, bucket_bytes: int
) -> None:
    """Waits for the slowest and copies of gradients are in both."""
    devices = MACHINES[name]
    problem = machine_problem("resnet18", builders.cluster_request(cluster=name, devices=devices, batch=64 * devices))
    wanted = builders.strategy(
        dp=devices // rows, pp=rows, microbatches=microbatches, schedule="1f1b", bucket_bytes=bucket_bytes
    )
    strategy = split_for(wanted, problem)
    found = assess(strategy, problem)
    low, middle, high = found.cases
    for bound in (least(strategy, problem), quick_bounds(problem).of(strategy)):
        assert bound.cases[0] <= low * (1 + TOLERANCE)
        assert bound.cases[1] <= middle * (1 + TOLERANCE)
        assert bound.cases[2] <= high * (1 + TOLERANCE)
