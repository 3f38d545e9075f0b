"""Batches on their way to a GPU while it computes."""

import itertools

import pytest
import torch
from tests.gpu.running import DEVICE, open_executor, zoo_job

from trimaran.program.strategy import Feeding
from trimaran.runtime.data.pipeline import Feed

STEPS = 30


@pytest.mark.parametrize(
    "feeding",
    [
        Feeding(),
        Feeding(copies_ahead=1),
        Feeding(workers=2),
        Feeding(workers=2, copies_ahead=2),
        Feeding(workers=2, copies_ahead=2, pinned=False, cached=True),
    ],
    ids=repr,
)
def test_losses_do_not_depend_on_how_batches_come(feeding: Feeding) -> None:
    """In fp64. A batch that were used before it has come, or written over while it is used, would change them.

    To 1e-9: kernels of a GPU add in another order each time, also for one way of feeding.
    """
    job = zoo_job("cnn_fp64")
    losses = []
    for one in (Feeding(), feeding):
        executor, _ = open_executor(job)
        feed = executor.feed(one)
        shares = (share for _ in itertools.count() for share in feed.shares())
        losses.append([executor.step(share) for share in itertools.islice(shares, STEPS)])
        executor.close()
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize("feeding", [Feeding(copies_ahead=1), Feeding(workers=2, copies_ahead=2)])
def test_batches_are_on_the_device_bit_for_bit(feeding: Feeding) -> None:
    """While the device is busy with something else, and memory is let go and taken again."""
    job = zoo_job("cnn")
    square = torch.ones(2048, 2048, device=DEVICE)
    feeds = [
        Feed(job, replicas=1, microbatches=2, replica=0, reads=True, feeding=one, device=device)
        for one, device in ((Feeding(), "cpu"), (feeding, DEVICE))
    ]
    for plain, placed in zip(*(feed.shares() for feed in feeds), strict=True):
        square @ square
        inputs, target = placed.whole()
        assert inputs.device == torch.device(DEVICE)
        for mine, theirs in zip((inputs, target), plain.whole(), strict=True):
            assert torch.equal((mine * 1).cpu(), theirs)
        del inputs, target
    feeds[1].close()
