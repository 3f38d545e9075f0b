"""Ranks that share tensors train as one process does, and communicate what the program says.

In fp64, losses and weights after clipped steps with momentum differ by rounding only: 1e-10.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests import builders
from tests.distributed import sharing
from tests.distributed.reference import evaluate_plainly, train_plainly
from tests.distributed.sharing import STEPS, Case, Found, capture_jobs, share_all
from tests.forks.client import launch, server
from tests.representative import some_and_rest

ON_TWO = [
    Case(job="gpt", strategy=builders.strategy(tp=2)),
    Case(job="gpt", strategy=builders.strategy(tp=2, microbatches=2), sequence=True),
    Case(job="llama", strategy=builders.strategy(tp=2), sequence=True),
    Case(job="llama", strategy=builders.strategy(tp=2, microbatches=2)),
    Case(job="bert", strategy=builders.strategy(tp=2), sequence=True),
    Case(job="head_norms", strategy=builders.strategy(tp=2, microbatches=2)),
    Case(job="head_norms", strategy=builders.strategy(tp=2), sequence=True),
    Case(job="encoder", strategy=builders.strategy(tp=2)),
    Case(job="mlp", strategy=builders.strategy(tp=2)),
    Case(job="mlp", strategy=builders.strategy(dp=2, microbatches=2)),
    Case(job="alexnet", strategy=builders.strategy(dp=2)),
    Case(job="channels", strategy=builders.strategy(tp=2, microbatches=2)),
]
ON_FOUR = [
    Case(job="gpt", strategy=builders.strategy(tp=4)),
    Case(job="gpt", strategy=builders.strategy(dp=2, tp=2, bucket_bytes=4096), sequence=True),
    Case(job="gpt", strategy=builders.strategy(pp=2, tp=2, schedule="1f1b", microbatches=2)),
    Case(job="head_norms", strategy=builders.strategy(pp=2, tp=2, schedule="1f1b", microbatches=2)),
    Case(job="head_norms", strategy=builders.strategy(dp=2, tp=2, zero=1, microbatches=2), sequence=True),
    Case(job="mlp", strategy=builders.strategy(dp=4)),
    # One of the stages shares nothing: its ranks have no group, and the run ended in a KeyError.
    Case(job="one_pair", strategy=builders.strategy(pp=2, tp=2, schedule="1f1b", microbatches=2)),
    Case(job="channels", strategy=builders.strategy(dp=2, tp=2)),
    Case(job="channels", strategy=builders.strategy(tp=4)),
    Case(job="llama", strategy=builders.strategy(dp=2, tp=2, zero=1, microbatches=2), sequence=True),
]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        # Without the rest: attention in each style and in groups, the classifier of replicas, convolutions, a pipeline.
        *some_and_rest("2", [ON_TWO[number] for number in (1, 3, 4, 5, 6, 9, 10, 11)], ON_TWO, 2),
        *some_and_rest("4", [ON_FOUR[number] for number in (1, 2, 3, 4, 5, 6, 9)], ON_FOUR, 4),
    ],
)
def test_ranks_that_share_tensors_equal_one_process(ranks: int, cases: Sequence[Case], tmp_path: Path) -> None:
    server().call(capture_jobs, cases)
    by_rank = launch(share_all, (cases, str(tmp_path)), ranks=ranks, log_dir=tmp_path, device="cpu")
    for number, case in enumerate(cases):
        check_equal(case, by_rank[0][number])
        for rank in range(ranks):
            found = by_rank[rank][number]
            assert found.losses == pytest.approx(by_rank[0][number].losses, rel=1e-12), case.name
            if rank == 0 or case.job in ("mlp", "alexnet"):
                # A vocabulary of 21 or 7 channels do not divide: the first share is the largest, which is planned with.
                assert found.done == found.planned, f"{case.name}, rank {rank}"


def check_equal(case: Case, found: Found) -> None:
    job = getattr(sharing, case.job)()
    expected = train_plainly(job, STEPS, replicas=case.strategy.dp, microbatches=case.strategy.microbatches)
    assert found.losses == pytest.approx(expected.losses, rel=1e-10), case.name
    weights = expected.model.state_dict()
    assert found.weights.keys() == weights.keys(), case.name
    torch.testing.assert_close(found.weights, dict(weights), rtol=0, atol=1e-10)
    assert found.scores[0] == found.scores[1], case.name
    expected_score = evaluate_plainly_on_training_data(job, expected.model)
    assert found.scores[0] == pytest.approx(expected_score, rel=1e-12), case.name
    assert ("sequence" in found.styles) == case.sequence, case.name


def evaluate_plainly_on_training_data(job: sharing.Job, model: torch.nn.Module) -> float:
    return evaluate_plainly(sharing.dataclasses.replace(job, evaluation_dataset=job.dataset), model)
