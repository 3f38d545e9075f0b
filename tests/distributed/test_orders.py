"""Samplers and streams on real ranks: what is trained on is what a plain loop trains on, or nothing is."""

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.distributed.ordered import BATCH, JOBS, ROWS, job, pad
from tests.distributed.training import even_boundaries, full_batch, verifier
from tests.forks.client import launch, server
from tests.forks.server import may_capture
from torch.utils.data import default_collate

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture, capture
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Feeding, Strategy
from trimaran.runtime.data.orders import sample_order
from trimaran.runtime.executor import Executor
from trimaran.user_code.model import make_model
from trimaran.user_code.randomness import derive_seed, seeded

TOLERANCE = {"rtol": 0.0, "atol": 1e-10}


@functools.cache
def capture_once(name: str) -> tuple[Capture, dict[str, torch.Tensor]]:
    """A job captured, once in this process and in those that are forked from it, with a copy of its initial weights."""
    made = capture(JOBS[name]())
    return made, {key: tensor.clone() for key, tensor in made.model.state_dict().items()}


def capture_jobs(*names: str) -> None:
    """Capture jobs before their ranks are forked from this process."""
    for name in names if may_capture() else ():
        capture_once(name)


def open_job(world: World, name: str, strategy: Strategy) -> Executor:
    own = JOBS[name]()
    made, initial = capture_once(name)
    made.model.load_state_dict(initial)
    strategy = replace(strategy, boundaries=even_boundaries(made.graph.split_points, strategy.pp))
    batch = full_batch(own.global_batch_size, strategy)
    program, evaluation = lower(made.graph, strategy, batch=batch), lower_evaluation(made.graph, strategy, batch=batch)
    return Executor(own, strategy, program, evaluation, world, capture=made)


def train(
    world: World, name: str, strategy: Strategy, folder: str, steps: int, state: Any, feeding: Feeding, whole: bool
) -> tuple[list[float], dict[str, Any], tuple[str, ...]]:
    """Losses of some steps; where the feed is then, and its notes."""
    executor = open_job(world, name, strategy)
    feed = executor.feed(feeding)
    weights = Path(folder) / "weights.safetensors"
    if state is not None:
        feed.load_state_dict(state)
        executor.load(weights)
    losses: list[float] = []
    while feed.epoch < 2 and len(losses) < steps:
        for share in feed.shares():
            batch = executor.fetch(share) if whole else share
            losses.append(executor.step(batch, samples=share.samples if whole else None))
            if len(losses) == steps:
                break
    told = losses, feed.state_dict(), feed.notes
    executor.save(weights)
    executor.close()
    return told


def run(
    name: str,
    strategy: Strategy,
    folder: Path,
    *,
    steps: int = 100,
    state: Any = None,
    feeding: Feeding | None = None,
    whole: bool = False,
) -> Any:
    arguments = (name, strategy, str(folder), steps, state, feeding or Feeding(), whole)
    server().call(capture_jobs, name)
    ranks = launch(train, arguments, ranks=strategy.devices, log_dir=folder / "logs", device="cpu")
    assert all(one[:2] == ranks[0][:2] for one in ranks)
    return ranks[0]


def train_plainly(own: Job, batches: Iterator[list[Any]]) -> list[float]:
    """A plain loop over batches of samples, each one forward."""
    model = make_model(own)
    optimizer = own.optimizer(model.parameters())
    losses = []
    for samples in batches:
        batch = (own.collate or default_collate)(samples)
        output = model(**batch) if isinstance(batch, dict) else model(batch[0])
        loss = own.loss(output, batch if isinstance(batch, dict) else batch[1])  # type: ignore[misc]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def in_batches(order: list[Any]) -> Iterator[list[Any]]:
    return (order[start : start + BATCH] for start in range(0, len(order), BATCH))


def sampled() -> Iterator[list[Any]]:
    own = JOBS["weighted"]()
    data: Any = own.dataset()
    for epoch in range(2):
        with seeded(derive_seed(own.seed, "sampler", epoch)):
            order = list(own.sampler(data, epoch))  # type: ignore[misc]
        assert len(order) == ROWS - epoch
        assert len(set(order)) < len(order)
        yield from ([data[number] for number in part] for part in in_batches(order))


def streamed() -> Iterator[list[Any]]:
    own = JOBS["stream"]()
    stream: Any = own.dataset()
    for epoch in range(2):
        stream.set_epoch(epoch)
        samples = iter(stream)
        for number in range(4):
            with seeded(derive_seed(own.seed, "stream", epoch, number)):
                yield list(islice(samples, BATCH))


def counted() -> Iterator[list[Any]]:
    data: Any = JOBS["counting"]().dataset()
    for _ in range(2):
        yield from in_batches(list(data))


REFERENCES = {"weighted": sampled, "stream": streamed, "counting": counted}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["weighted", "stream"])
def test_samplers_and_streams_train_as_a_plain_loop(name: str, tmp_path: Path) -> None:
    """Two epochs of 29 samples, or 29 and 28, in batches of 8; for any ranks, microbatches and ways of feeding.

    In three stages the one in the middle reads nothing, and hears how many samples there are.
    """
    expected = train_plainly(JOBS[name](), REFERENCES[name]())
    assert len(expected) == 8
    ways = [
        (builders.strategy(), Feeding(), False),
        (builders.strategy(dp=2, microbatches=3), Feeding(workers=2 * (name == "weighted"), copies_ahead=1), False),
        (builders.strategy(dp=2, microbatches=2), Feeding(), True),
        (builders.strategy(dp=4), Feeding(cached=True), False),
        (builders.strategy(pp=3, schedule="1f1b", microbatches=2), Feeding(), False),
    ]
    for strategy, feeding, whole in ways:
        losses, _, _ = run(name, strategy, tmp_path, feeding=feeding, whole=whole)
        torch.testing.assert_close(losses, expected, **TOLERANCE)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["weighted", "counting"])
def test_a_run_goes_on_in_the_middle_of_an_epoch_with_other_ranks(name: str, tmp_path: Path) -> None:
    expected = train_plainly(JOBS[name](), REFERENCES[name]())
    seen: list[float] = []
    state = None
    for ranks, steps in ((2, 3), (1, 2), (2, 100)):
        losses, state, notes = run(name, builders.strategy(dp=ranks), tmp_path, steps=steps, state=state)
        seen += losses
        assert not notes
    torch.testing.assert_close(seen, expected, **TOLERANCE)


@pytest.mark.timeout(120)
def test_a_stream_without_a_state_begins_its_epoch_again(tmp_path: Path) -> None:
    first, state, _ = run("stream", builders.strategy(dp=2), tmp_path, steps=3)
    losses, _, notes = run("stream", builders.strategy(pp=3, microbatches=2), tmp_path, state=state)
    assert (len(first), len(losses)) == (3, 8)
    assert [note.partition(",")[0] for note in notes] == ["epoch 0 of the stream began again"]


@pytest.mark.timeout(120)
def test_batches_in_which_samples_are_not_seen_train_as_in_a_plain_loop(tmp_path: Path) -> None:
    data: Any = JOBS["named"]().dataset()
    order = run_order(job(dataset=JOBS["named"]().dataset))
    batches = ([data[number] for number in part] for part in order)
    expected = train_plainly(JOBS["named"](), batches)
    assert set(pad([data[0]])) == {"rows", "owners", "names", "no"}
    for strategy, feeding, whole in (
        (builders.strategy(dp=2, microbatches=2), Feeding(workers=1), False),
        (builders.strategy(dp=2), Feeding(), True),
    ):
        losses, _, _ = run("named", strategy, tmp_path, feeding=feeding, whole=whole)
        torch.testing.assert_close(losses, expected, **TOLERANCE)


def run_order(own: Job) -> Iterator[list[int]]:
    for epoch in range(2):
        yield from in_batches(sample_order(ROWS, seed=own.seed, epoch=epoch).tolist())


def verify(world: World, names: list[str]) -> list[int]:
    """Steps of each job that were the same in one process, which goes through the data by itself."""
    found = []
    for name in names:
        executor = open_job(world, name, builders.strategy(dp=2, microbatches=2))
        feed = executor.feed()
        verify = verifier(executor, JOBS[name](), builders.strategy(dp=2, microbatches=2), world)
        for share in feed.shares():
            verify.step(share, epoch=feed.epoch, index=feed.index - 1)
        found.append(verify.verified.steps)
        executor.close()
    return found


@pytest.mark.timeout(120)
def test_verification_sees_the_same_samples(tmp_path: Path) -> None:
    """Also of data that each rank draws when it makes them."""
    server().call(capture_jobs, *REFERENCES)
    found = launch(verify, ([*REFERENCES, "drawn"],), ranks=2, log_dir=tmp_path, device="cpu")
    assert found[0] == [4, 4, 4, 4]


def evaluate(world: World, name: str, strategy: Strategy) -> float:
    executor = open_job(world, name, strategy)
    score = executor.evaluate(JOBS[name]().evaluation_dataset())  # type: ignore[misc]
    executor.close()
    return score


@pytest.mark.timeout(120)
def test_a_stream_is_evaluated_as_a_whole(tmp_path: Path) -> None:
    """13 samples in batches of 8 and 5."""
    own = JOBS["evaluated"]()
    inputs, targets = default_collate(list(own.evaluation_dataset()))  # type: ignore[misc, call-overload]
    expected = own.metric(make_model(own)(inputs), targets)  # type: ignore[misc]
    scores = launch(
        evaluate, ("evaluated", builders.strategy(dp=2, microbatches=2)), ranks=2, log_dir=tmp_path, device="cpu"
    )
    torch.testing.assert_close(scores, [expected, expected], **TOLERANCE)


def refused(world: World, names: list[str]) -> list[str]:
    """What is said of each job, and after how many steps."""
    said = []
    for name in names:
        executor = open_job(world, name, builders.strategy(dp=2))
        try:
            if "evaluation" in name:
                executor.evaluate(JOBS[name]().evaluation_dataset())  # type: ignore[misc]
            feed = executor.feed()
            for _ in range(2):
                for share in feed.shares():
                    executor.step(share)
            said.append("trained")
        except InputError as error:
            said.append(f"{executor.steps} steps: {error.message}")
        executor.close()
    return said


SAID = {
    "sampler shares": r"0 steps: rank 0: Job.sampler, for epoch 0, made a DistributedSampler.* one of 2 parts",
    "sampler by rank": r"0 steps: Job.sampler gave rank 0 and rank 1 different orders .*, of 29 and 28 indices",
    "sampler raises": r"0 steps: rank 1: Job.sampler, for epoch 0, failed: ZeroDivisionError.*ordered.py:\d+",
    "sampler of state": r"0 steps: rank 0: Job.sampler gave two orders for epoch 0, .* from position \d+ on",
    "sampler ends": r"4 steps: rank 0: Job.sampler, for epoch 1, gave no index",
    "stream by rank": r"0 steps: .* of 8 samples the last ones differ between rank 0 and rank 1.*split_by_node",
    "stream ends early": r"2 steps: the stream .* rank 0 has had 24 samples where rank 1 has had 19",
    "stream later": r"2 steps: the stream .* of 24 samples the last ones differ",
    "stream raises": r"1 steps: rank 1: sample 10 of the stream could not be read: OSError: no such shard",
    "stream once": r"4 steps: the stream gave no sample in epoch 1: its __iter__ must begin anew",
    "stream with sampler": r"0 steps: Job.sampler gives numbers of samples, and Job.dataset makes a stream",
    "drawn by none": r"0 steps: Job.dataset makes other samples on rank 1 than on rank 0: the first ones differ",
    "data by rank": r"0 steps: Job.dataset makes a data set of 29 samples on rank 0, and .* 28 samples on rank 1",
    "evaluation by rank": r"0 steps: the stream that Job.evaluation_dataset makes .* had 13 .* 12",
}


@pytest.mark.timeout(120)
def test_what_would_train_other_samples_is_refused_on_every_rank(tmp_path: Path) -> None:
    """In one world, which goes on: no rank waits for another."""
    ranks = launch(refused, (list(SAID),), ranks=2, log_dir=tmp_path, device="cpu")
    for said in ranks:
        for (name, expected), found in zip(SAID.items(), said, strict=True):
            assert re.search(expected, found), f"{name}: {found}"
