"""A user's own loop on whatever world started it; run as a script by the tests under torchrun, and in forks."""

import json
import sys
from pathlib import Path

import torch
from tests import builders
from tests.distributed.training import Run, captured, open_executor

from trimaran.launch.world import join_world, leave_world


def main(job: str, stages: int, steps: int, folder: str) -> None:
    torch.set_num_threads(1)
    world = join_world(device="cpu")
    strategy = builders.strategy(dp=world.size // stages, pp=stages, microbatches=2, schedule="1f1b")
    executor = open_executor(world, Run(job=job, strategy=strategy, steps=steps), captured(job))
    feed = executor.feed()
    losses: list[float] = []
    parts = 0
    while len(losses) < steps:
        for share in feed.shares():
            batch = executor.fetch(share)
            parts = len(batch)
            losses.append(executor.step(batch, samples=share.samples))
    told = {
        "rank": world.rank,
        "size": world.size,
        "losses": losses,
        "reads": executor.reads,
        "parts": parts,
    }
    (Path(folder) / f"{world.rank}.json").write_text(json.dumps(told))
    executor.close()
    leave_world()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
