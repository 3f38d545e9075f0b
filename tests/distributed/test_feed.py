"""The feed on real ranks: the same global batches for any number of them, resumed, cached, and when data are wrong."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests import builders
from tests.distributed.training import Run, captured, open_executor
from tests.forks.client import launch, server
from tests.raising import raises

from trimaran.base.errors import ExecutionError, InputError
from trimaran.launch.world import World
from trimaran.program.strategy import Feeding, Strategy

WORKERS = Feeding(workers=1, copies_ahead=1)


def read(
    world: World, run: Run, feeding: Feeding, state: dict[str, Any] | None, folder: str
) -> tuple[list[torch.Tensor], dict[str, int], int, tuple[str, ...]]:
    """This rank's parts of the next global batches; where it is then, its reads, and what its feed notes."""
    tally = Path(folder) / f"reads of rank {world.rank}"
    tally.unlink(missing_ok=True)
    executor = open_executor(world, run, captured(run.job))
    # Workers inherit it. What looks at samples in advance is not the reading of the epochs.
    feed = executor.feed(feeding)
    os.environ["TRIMARAN_TEST_READS"] = str(tally)
    if state is not None:
        feed.load_state_dict(state)
    parts: list[torch.Tensor] = []
    while len(parts) < run.steps:
        for share in feed.shares():
            inputs = [share.microbatch(number) for number, size in enumerate(share.sizes) if size]
            parts.append(torch.cat([batch[0] for batch in inputs]) if executor.reads else torch.empty(0))
            if world.size > 1:
                # As the exchange of a step keeps ranks together.
                dist.barrier()
            if len(parts) == run.steps:
                break
    told = parts, feed.state_dict(), tally.stat().st_size if tally.exists() else 0, feed.notes
    executor.close()
    return told


def read_on(strategy: Strategy, folder: Path, *, job: str, steps: int, feeding: Feeding, state: Any = None) -> Any:
    run = Run(job=job, strategy=strategy, steps=steps)
    ranks = launch(
        read, (run, feeding, state, str(folder)), ranks=strategy.devices, log_dir=folder / "logs", device="cpu"
    )
    batches = [torch.cat(parts) for parts in zip(*(parts for parts, _, _, _ in ranks), strict=True)]
    assert all(place == ranks[0][1] for _, place, _, _ in ranks)
    return batches, ranks[0][1], [reads for _, _, reads, _ in ranks], [notes for *_, notes in ranks]


@pytest.mark.timeout(120)
def test_global_batches_are_the_same_bits_for_any_number_of_ranks(tmp_path: Path) -> None:
    """Two epochs of samples that are drawn anew each time; then the same in three parts by 2, 4 and 1 ranks."""
    whole, _, _, _ = read_on(builders.strategy(), tmp_path, job="rows_drawn", steps=10, feeding=Feeding())
    assert [len(batch) for batch in whole] == [7, 7, 7, 7, 5] * 2
    assert sorted(torch.cat(whole[:5])[:, 0].tolist()) == list(range(33))
    assert not torch.equal(torch.cat(whole[:5])[:, 1].sort()[0], torch.cat(whole[5:])[:, 1].sort()[0])
    four, _, _, _ = read_on(
        builders.strategy(dp=4, microbatches=2), tmp_path, job="rows_drawn", steps=10, feeding=Feeding(workers=1)
    )
    assert all(torch.equal(one, other) for one, other in zip(whole, four, strict=True))
    seen: list[torch.Tensor] = []
    state = None
    for strategy, steps, feeding in (
        (builders.strategy(dp=2, microbatches=3), 3, WORKERS),
        (builders.strategy(dp=4), 4, Feeding()),
        (builders.strategy(), 3, Feeding(workers=2)),
    ):
        batches, state, _, _ = read_on(strategy, tmp_path, job="rows_drawn", steps=steps, feeding=feeding, state=state)
        seen += batches
    assert all(torch.equal(one, other) for one, other in zip(whole, seen, strict=True))


@pytest.mark.timeout(120)
def test_each_rank_reads_its_share_and_a_cache_reads_nothing_twice(tmp_path: Path) -> None:
    """32 samples, batches of 8, two epochs: 16 samples a rank and epoch; with a cache only in the first one.

    The eighth microbatch of each rank, of four samples, is loaded again to see that the data have not changed.
    """
    plain, _, reads, _ = read_on(builders.strategy(dp=2), tmp_path, job="rows_quiet", steps=8, feeding=Feeding())
    assert reads == [32, 32]
    # Workers may begin the second epoch, by three microbatches of four samples, before the other rank has read all.
    for feeding, twice in ((Feeding(cached=True), 8), (Feeding(workers=1, cached=True), 32)):
        kept, _, reads, notes = read_on(builders.strategy(dp=2), tmp_path, job="rows_quiet", steps=8, feeding=feeding)
        assert notes == [(), ()]
        assert all(torch.equal(one, other) for one, other in zip(plain, kept, strict=True))
        assert 32 <= sum(reads) <= 32 + twice
    _, _, _, notes = read_on(builders.strategy(dp=2), tmp_path, job="rows_drawn", steps=1, feeding=Feeding(cached=True))
    assert all("sample 0 draws random numbers" in note for (note,) in notes)


@pytest.mark.timeout(120)
def test_a_stage_that_reads_no_data_is_fed_none(tmp_path: Path) -> None:
    """In three stages the first reads the inputs, the last the targets."""
    strategy = builders.strategy(pp=3, schedule="1f1b", microbatches=2)
    _, _, reads, _ = read_on(strategy, tmp_path, job="rows_quiet", steps=4, feeding=Feeding())
    assert reads == [32, 0, 32]


def train(world: World, run: Run, feeding: Feeding, folder: str) -> None:
    executor = open_executor(world, run, captured(run.job))
    os.environ["TRIMARAN_TEST_PIDS"] = folder
    feed = executor.feed(feeding)
    for share in feed.shares():
        executor.step(share)


def alive(folder: Path) -> list[int]:
    """Processes that have read data and still run."""
    return [int(one.name) for one in folder.iterdir() if state_of(one.name) not in ("", "Z", "X")]


def state_of(pid: str) -> str:
    """Of a process, as the system says; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("job", "feeding", "kind", "code", "figures"),
    [
        ("rows_raise", Feeding(), InputError, "feed.bad-samples", {"match": r"\b40\b"}),
        ("rows_raise_in_worker", WORKERS, InputError, "feed.bad-samples", {"match": r"\b40\b"}),
        ("rows_shape", WORKERS, InputError, "feed.bad-samples", {"match": '"input".*Job.collate'}),
        ("rows_die_in_worker", WORKERS, ExecutionError, "feed.worker-died", {"match": "SIGKILL"}),
    ],
)
def test_data_that_are_wrong_end_the_run(
    job: str, feeding: Feeding, kind: Any, code: str, figures: dict[str, Any], tmp_path: Path
) -> None:
    """With its cause in words, and with nothing left: at most the rank that reads the sample knows."""
    pids = tmp_path / "pids"
    pids.mkdir()
    run = Run(job=job, strategy=builders.strategy(dp=2), steps=100)
    with raises(code, kind, **figures) as caught:
        launch(train, (run, feeding, str(pids)), ranks=2, log_dir=tmp_path, device="cpu")
    assert "Traceback" not in str(caught.value)
    assert caught.value.figures["rank"] in (0, 1)
    assert len(list(pids.iterdir())) >= 2
    # What has been killed takes a moment to be gone.
    wait_until(lambda: alive(pids) == [])


def hold(folder: str) -> None:
    """Load ahead, and never end."""
    run = Run(job="rows_shape", strategy=builders.strategy(), steps=1)
    executor = open_executor(World(), run, captured(run.job))
    os.environ["TRIMARAN_TEST_PIDS"] = folder
    shares = executor.feed(Feeding(workers=2, ahead=4)).shares()
    next(shares).microbatch(0)
    (Path(folder) / "ready").mkdir()
    signal.pause()


@pytest.mark.timeout(60)
def test_workers_end_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    """Nobody else ends them here: no parent of ranks, as under another launcher."""
    with Path(os.devnull).open("r+b") as nothing:
        holder = server().fork(hold, str(tmp_path), streams=[nothing.fileno()] * 3, environment=dict(os.environ))
    try:
        wait_until(lambda: (tmp_path / "ready").exists())
        (tmp_path / "ready").rmdir()
        wait_until(lambda: len(alive(tmp_path)) == 2)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(10)
        wait_until(lambda: alive(tmp_path) == [])
    finally:
        holder.end()


def wait_until(condition: Any) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
