"""Ranks that share tensors draw what one process draws under their replica's seed; in fp64 to 1e-10."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests import builders
from tests.distributed import sharing
from tests.distributed.sharing import STEPS, Case, capture_jobs, share_all
from tests.field.entry import Entry
from tests.field.reference import train_plainly
from tests.forks.client import launch, server
from tests.representative import some_and_rest

ON_TWO = [
    Case(job="drawing", strategy=builders.strategy(tp=2)),
    Case(job="drawing", strategy=builders.strategy(tp=2, microbatches=2)),
    Case(job="drawn_gpt", strategy=builders.strategy(tp=2)),
    Case(job="drawn_gpt", strategy=builders.strategy(tp=2), sequence=True),
    Case(job="attending", strategy=builders.strategy(tp=2)),
    Case(job="drawn_alexnet", strategy=builders.strategy(dp=2, microbatches=2)),
]
ON_FOUR = [Case(job="drawn_gpt", strategy=builders.strategy(dp=2, tp=2), sequence=True)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        *some_and_rest("2", [ON_TWO[number] for number in (1, 3, 4, 5)], ON_TWO, 2),
        pytest.param(4, ON_FOUR, id="4", marks=pytest.mark.sweep),
    ],
)
def test_ranks_that_share_tensors_draw_as_one_process(ranks: int, cases: Sequence[Case], tmp_path: Path) -> None:
    server().call(capture_jobs, cases)
    by_rank = launch(share_all, (cases, str(tmp_path)), ranks=ranks, log_dir=tmp_path, device="cpu")
    for number, case in enumerate(cases):
        found, strategy = by_rank[0][number], case.strategy
        job = getattr(sharing, case.job)
        entry = Entry(name=case.job, family="", job=job, note="", by_microbatch=True)
        plain = train_plainly(entry, job(), STEPS, replicas=strategy.dp, microbatches=strategy.microbatches)
        assert found.losses == pytest.approx(plain.losses, rel=1e-10), case.name
        torch.testing.assert_close(found.weights, plain.weights, rtol=0, atol=1e-10)
        assert found.done == found.planned, case.name
        assert ("sequence" in found.styles) == case.sequence, case.name
