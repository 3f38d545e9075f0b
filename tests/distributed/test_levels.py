"""Replicas whose gradients are summed within nodes and then across them: four ranks as two nodes of two.

In fp64 the losses are one process's to 1e-10 over 20 steps, 8 without the sweeps, and the weights to 1e-9 after them.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import builders
from tests.distributed.test_equal_losses import BUCKET, compare
from tests.distributed.test_recording import check_step, record
from tests.distributed.training import Run, train_all
from tests.forks.client import launch
from tests.representative import few_and_many

from trimaran.program.strategy import Strategy

STEPS = (8, 20)
"""Without the sweeps and in them; an epoch has six."""
LEVELS = builders.strategy(dp=4, sync="hierarchical", nodes=2, bucket_bytes=BUCKET)
EACH_PARAMETER = builders.strategy(dp=4, sync="hierarchical", nodes=2, bucket_bytes=1)
ACCUMULATED = builders.strategy(dp=4, sync="hierarchical", nodes=2, bucket_bytes=BUCKET, microbatches=2)
CASES = [
    *(("cnn_fp64", strategy) for strategy in (LEVELS, EACH_PARAMETER, ACCUMULATED)),
    ("unet_fp64", EACH_PARAMETER),  # batch norm
    ("gpt_clipped", LEVELS),
    ("half_frozen", EACH_PARAMETER),
    # DDP has nine buckets in every step, as it counts the weights without a gradient too, and the program has eight.
    ("lstm_unused", builders.strategy(dp=4, sync="hierarchical", nodes=2, bucket_bytes=2000)),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("cases", "steps"), few_and_many("some", [CASES[number] for number in (2, 3, 4, 6)], CASES, STEPS)
)
def test_losses_in_levels_equal_one_process(cases: Sequence[tuple[str, Strategy]], steps: int, tmp_path: Path) -> None:
    runs = [Run(job=job, strategy=strategy, steps=steps) for job, strategy in cases]
    ranks = launch(train_all, (runs,), ranks=4, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        compare(run, [rank[number] for rank in ranks])


@pytest.mark.timeout(120)
def test_every_level_of_every_bucket_is_recorded(tmp_path: Path) -> None:
    """DDP has its own buckets in the first step, and may put a parameter into the bucket next to it later.

    A sum across nodes is posted when the one within the node has ended.
    """
    runs = [Run(job="cnn_fp64", strategy=LEVELS, steps=3)]
    ((timeline, instructions, _),) = launch(record, (runs,), ranks=4, log_dir=tmp_path, device="cpu")[0]
    for step in timeline.steps[1:]:
        found = timeline.select(step=step)
        check_step(found, instructions, whole=True)
        spans = {span.instruction: span for span in found if span.stream == "communication"}
        for name, span in spans.items():
            if "0RS#" in name:
                assert spans[name.replace("0RS#", "0AR#")].start_s > span.start_s
                assert spans[name.replace("0RS#", "0AG#")].start_s >= spans[name.replace("0RS#", "0AR#")].start_s
