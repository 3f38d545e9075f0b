"""Parameters that no sample of a global batch uses have no gradient, on any kind of plan, as in a plain loop.

An optimizer leaves them alone: no weight decay, no momentum. In fp64 losses equal one process's that sees each global
batch whole, to 1e-10 over 20 steps, and weights to 1e-9 after them.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.reference import Reference, train_plainly
from tests.distributed.training import Outcome, Run, captured, train_all
from tests.forks.client import launch
from tests.raising import raises
from tests.representative import some_and_rest

from trimaran.base.errors import ExecutionError
from trimaran.graph.capture import capture as unused
from trimaran.graph.capture.capture import unused_parameters
from trimaran.graph.types import parameter_use
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy
from trimaran.runtime.parts.setup import check_use

STEPS = 20
REPLICAS = builders.strategy(dp=2, bucket_bytes=512)
WHOLE = [
    builders.strategy(),
    REPLICAS,
    builders.strategy(dp=2, microbatches=2),
    builders.strategy(dp=2, zero=1, bucket_bytes=512),
    builders.strategy(dp=2, zero=2, microbatches=2),
    builders.strategy(dp=2, zero=3),
    builders.strategy(dp=2, sync="p2p", bucket_bytes=512),
]
PARTS = [
    builders.strategy(dp=2, bucket_bytes=512),
    builders.strategy(dp=2, zero=1, bucket_bytes=512),
    builders.strategy(dp=2, zero=3),
    builders.strategy(dp=2, sync="p2p", bucket_bytes=512),
    builders.strategy(pp=2, schedule="gpipe", microbatches=4),
]


def _runs(devices: int) -> list[Run]:
    cases = [(job, strategy) for job in ("wayward_adamw", "wayward_sgd") for strategy in WHOLE]
    cases += [("wayward_clipped", strategy) for strategy in (WHOLE[2], WHOLE[5], WHOLE[6])]
    cases += [("two_heads", strategy) for strategy in PARTS]
    cases += [
        ("wayward_adamw", replace(REPLICAS, dp=4, sync="hierarchical", nodes=2)),
        ("two_heads", builders.strategy(dp=2, pp=2, schedule="1f1b", microbatches=2, bucket_bytes=512)),
    ]
    return [
        # Four replicas leave out the batch of three samples at the end of an epoch.
        Run(job=job, strategy=strategy, steps=STEPS if strategy.dp < 4 else 13)
        for job, strategy in cases
        if strategy.devices == devices
    ]


def _some(runs: list[Run]) -> list[Run]:
    """Each strategy with moments, momentum on plain replicas and where each rank has a part, and each other job."""
    return [run for run in runs if run.job != "wayward_sgd" or run.strategy in (WHOLE[0], WHOLE[1], WHOLE[5])]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("devices", "runs"),
    [
        (1, _runs(1)),
        *some_and_rest("2", _some(_runs(2)), _runs(2), 2),
        (4, _runs(4)),
    ],
)
def test_what_nobody_uses_is_left_alone_on_any_plan(devices: int, runs: list[Run], tmp_path: Path) -> None:
    ranks = launch(train_all, (runs,), ranks=devices, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        _compare(run, [rank[number] for rank in ranks])


@functools.cache
def _plain(job: str, steps: int) -> Reference:
    return train_plainly(make_job(job), steps)


def _compare(run: Run, outcomes: Sequence[Outcome]) -> None:
    reference = _plain(run.job, run.steps)
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(reference.losses, abs=1e-10), run.name
    for name, tensor in reference.model.state_dict().items():
        assert (outcomes[0].weights[name] - tensor).abs().max() <= 1e-9, f"{run.name}: {name}"


def test_a_backward_tells_which_parameters_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{layer}.{part}" for layer in ("other", "never") for part in ("weight", "bias")} | {"shared"}
    made = captured("two_heads")
    assert unused_parameters(make_job("two_heads"), made) == names
    monkeypatch.setattr(unused, "LARGEST_FLOPS", 0.0)
    assert unused_parameters(make_job("two_heads"), made) == names


def test_a_model_that_was_captured_tells_which_parameters_have_a_gradient() -> None:
    uses = {job: parameter_use(captured(job).graph) for job in ("cnn_fp64", "half_frozen", "two_heads", "wayward_sgd")}
    assert uses == {"cnn_fp64": "always", "half_frozen": "always", "two_heads": "fixed", "wayward_sgd": "varies"}


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        (builders.strategy(dp=2, zero=3, units=("deep",)), "unused-parameters.sharded-units"),
        (builders.strategy(tp=2), "unused-parameters.pipeline"),
    ],
)
def test_what_would_wait_for_a_part_that_another_rank_leaves_out_is_refused(strategy: Strategy, code: str) -> None:
    with raises(code):
        check_use(make_job("wayward_sgd"), strategy, "varies")


def _forgetful(world: World) -> str:
    """Every other step leaves out a layer, which nobody was told."""
    try:
        train_all(world, [Run(job="forgetful", strategy=REPLICAS, steps=4)])
    except ExecutionError as error:
        return error.message
    return ""


@pytest.mark.timeout(60)
def test_a_gradient_that_is_missing_against_what_was_captured_ends_the_run(tmp_path: Path) -> None:
    (first, _) = launch(_forgetful, ranks=2, log_dir=tmp_path, device="cpu")
    assert first.startswith("1.weight, 1.bias got no gradient in this step")
