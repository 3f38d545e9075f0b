"""What is recorded of a run is what the program says, with clocks that agree."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch.distributed as dist
from tests import builders
from tests.distributed.test_equal_losses import BUCKET
from tests.distributed.training import Run, captured, open_executor, take_steps
from tests.forks.client import launch

from trimaran.base.timeline import COMPUTE, HOST, WAIT, Timeline
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction, Kind
from trimaran.runtime.record import Offset, exchange_pings

STEPS = 3


def record(world: World, runs: list[Run]) -> list[tuple[Timeline, dict[str, Instruction], int]]:
    """Timeline, instructions by id, and spans that were kept with recording switched off."""
    found = []
    for run in runs:
        executor = open_executor(world, run, captured(run.job))
        take_steps(executor, STEPS)
        timeline = executor.timeline()
        executor.recording = False
        take_steps(executor, 1)
        instructions = {instruction.id: instruction for instruction in executor.program}
        found.append((timeline, instructions, len(executor.timeline()) - len(timeline)))
        executor.close()
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "strategies",
    [
        (
            builders.strategy(dp=2, microbatches=2, bucket_bytes=BUCKET),
            builders.strategy(pp=2, schedule="1f1b", microbatches=4),
        ),
        (builders.strategy(dp=2, pp=2, schedule="gpipe", microbatches=2, bucket_bytes=BUCKET),),
    ],
    ids=["2 ranks", "4 ranks"],
)
def test_every_instruction_of_every_step_has_its_spans(strategies: tuple[Strategy, ...], tmp_path: Path) -> None:
    """DDP has its own buckets in the first step, so that is looked at for pipelines only. The CNN has buffers."""
    runs = [Run(job="cnn_fp64", strategy=strategy, steps=STEPS) for strategy in strategies]
    ranks = launch(record, (runs,), ranks=strategies[0].devices, log_dir=tmp_path, device="cpu")
    assert not any(len(timeline) for others in ranks[1:] for timeline, _, _ in others)
    for run, (timeline, instructions, ignored) in zip(runs, ranks[0], strict=True):
        assert ignored == 0
        assert timeline.steps == (0, 1, 2)
        for step in timeline.steps[run.strategy.pp == 1 :]:
            check_step(timeline.select(step=step), instructions, whole=run.strategy.pp == 1)


def sent(instruction: Instruction) -> int:
    """Bytes of an instruction. With sums of losses goes whether a rank has a request of a signal, in no program."""
    return instruction.nbytes + 8 * (instruction.kind is Kind.ALL_REDUCE and instruction.label in ("loss", "metric"))


def check_step(timeline: Timeline, instructions: dict[str, Instruction], *, whole: bool) -> None:
    """One step. DDP may put a parameter into the bucket next to it; segments have the buckets of the program."""
    spans = {span.instruction: span for span in timeline if span.stream != WAIT}
    waits = [span for span in timeline if span.stream == WAIT]
    assert spans.keys() == instructions.keys()
    assert {span.instruction for span in waits} == {
        instruction.id for instruction in instructions.values() if instruction.communicates
    }
    for name, span in spans.items():
        instruction = instructions[name]
        assert span.stream == instruction.stream, name
        if instruction.kind is not Kind.BROADCAST and instruction.communicates and not whole:
            assert span.nbytes == sent(instruction), name
    reduced = [name for name, instruction in instructions.items() if instruction.kind is Kind.ALL_REDUCE]
    assert sum(spans[name].nbytes for name in reduced) == sum(sent(instructions[name]) for name in reduced)
    for rank in timeline.ranks:
        lane = sorted(
            (span.start_s, span.end_s) for span in timeline.select(rank=rank) if span.stream in (COMPUTE, HOST, WAIT)
        )
        assert all(before[1] <= after[0] for before, after in pairwise(lane))
    sends = [i for i in instructions.values() if i.kind in (Kind.SEND_FORWARD, Kind.SEND_BACKWARD)]
    for send in sends:
        (receive,) = [i for i in instructions.values() if is_other_end(send, i)]
        assert spans[send.id].start_s <= spans[receive.id].end_s


def is_other_end(send: Instruction, other: Instruction) -> bool:
    kind = Kind.RECEIVE_FORWARD if send.kind is Kind.SEND_FORWARD else Kind.RECEIVE_BACKWARD
    ends = (other.kind, other.rank, other.segment, other.peer, other.peer_segment, other.microbatch)
    return ends == (kind, send.peer, send.peer_segment, send.rank, send.segment, send.microbatch)


def ping(world: World) -> Offset:
    group = dist.new_group(backend="gloo")
    return exchange_pings(group, 1)


def test_an_offset_is_right_within_its_uncertainty(tmp_path: Path) -> None:
    """Two ranks of one machine read the same clock: the offset is 0, whatever the messages say."""
    _, offset = launch(ping, ranks=2, log_dir=tmp_path, device="cpu")
    assert abs(offset.offset_ns) <= offset.uncertainty_ns
    assert 0 < offset.uncertainty_ns < 1e9
