"""Replicas whose weights have homes, sync="p2p": gradients go there, are applied there, and weights come back.

In fp64 the losses are one process's to 1e-10 over 20 steps, 8 without the sweeps, and the weights to 1e-9 after them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests import builders
from tests.distributed.test_equal_losses import compare
from tests.distributed.test_recording import check_step, record
from tests.distributed.training import Run, train_all
from tests.forks.client import launch
from tests.representative import few_and_many

from trimaran.pricing.types import Cost, ProgramCosts, Transfer
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind, Program
from trimaran.report import comparison
from trimaran.report.breakdown import PARTS
from trimaran.simulator.engine import simulate

STEPS = (8, 20)
"""Without the sweeps and in them; an epoch has six."""
BUCKET = 8192
HOMES = builders.strategy(dp=2, bucket_bytes=BUCKET, sync="p2p")
EACH_PARAMETER = replace(HOMES, bucket_bytes=1)
ACCUMULATED = replace(HOMES, microbatches=2)
TWO_RANKS = [
    *(("cnn_fp64", strategy) for strategy in (HOMES, EACH_PARAMETER, ACCUMULATED)),
    ("unet_fp64", EACH_PARAMETER),  # batch norm
    ("gpt_weighted", HOMES),  # a weight that is used twice, a loss that is (sum, weight), clipped
    ("lstm_scheduled", HOMES),
    ("lstm_unused", EACH_PARAMETER),
    ("half_frozen", EACH_PARAMETER),
    ("cnn_ragged", HOMES),
]
# The CNN is one bucket: three of four ranks are home to nothing.
FOUR_RANKS = [
    ("cnn_fp64", builders.strategy(dp=4, sync="p2p")),
    ("gpt_clipped", builders.strategy(dp=4, bucket_bytes=1, sync="p2p")),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("cases", "steps"),
    [
        *few_and_many("2 ranks", [TWO_RANKS[number] for number in (2, 3, 4, 5, 8)], TWO_RANKS, STEPS),
        *few_and_many("4 ranks", FOUR_RANKS[1:], FOUR_RANKS, STEPS),
    ],
)
def test_losses_with_homes_equal_one_process(cases: Sequence[tuple[str, Strategy]], steps: int, tmp_path: Path) -> None:
    runs = [Run(job=job, strategy=strategy, steps=steps) for job, strategy in cases]
    ranks = launch(train_all, (runs,), ranks=cases[0][1].dp, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        compare(run, [rank[number] for rank in ranks])


@pytest.mark.timeout(120)
def test_a_run_with_homes_is_recorded_and_compared_line_by_line(tmp_path: Path) -> None:
    """Every instruction of the program has its spans in every step, the first included, and a measured figure."""
    runs = [Run(job="cnn_fp64", strategy=EACH_PARAMETER, steps=3)]
    ((timeline, instructions, _),) = launch(record, (runs,), ranks=2, log_dir=tmp_path, device="cpu")[0]
    for step in timeline.steps:
        check_step(timeline.select(step=step), instructions, whole=False)
    program = Program(
        ranks=tuple(tuple(i for i in instructions.values() if i.rank == rank) for rank in range(2)),
        segments=1,
        microbatches=1,
    )
    check_program(program)
    found = comparison.compare(program, simulate(program, _priced(program)), timeline)
    assert {entry.kind for entry in found.kinds} >= {Kind.REDUCE, Kind.BROADCAST, Kind.UPDATE}
    assert all(found.instructions[name].predicted_s > 0.0 for name in instructions)
    for rank in found.ranks:
        assert sum(rank.figure(part).measured_s or 0.0 for part in PARTS) == pytest.approx(rank.step.measured_s)


def _priced(program: Program) -> ProgramCosts:
    """A millisecond for everything, marks at the ends of their backwards."""
    second = Cost(1e-3, 1e-3, 1e-3, "by hand")
    wire = Transfer(latency_s=0.0, flow_s=1e-3, links=("wire",), low=1e-3, high=1e-3, source="by hand")
    return ProgramCosts(
        compute={item.id: second for item in program if not item.communicates},
        transfers={item.id: wire for item in program if item.communicates},
        marks={(item.id, mark.name): 1.0 for item in program for mark in item.marks},
    )
