"""A script for torchrun: it goes on from its newest checkpoint whenever it is started, and dies at given steps.

The first argument is its folder; the second the steps after which rank 1 dies, one a start.
"""

import os
import signal
import sys
from pathlib import Path

from tests.distributed.resumed_jobs import spoken

import trimaran

EVERY = 3


def main(folder: Path, deadly: list[int]) -> None:
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    session = trimaran.init(spoken())
    session.load_checkpoint(folder / "checkpoints", missing_ok=True)
    for batch in session.batches():
        loss = session.step(batch)
        if session.rank == 0:
            with (folder / f"start-{start}.txt").open("a") as file:
                file.write(f"{session.steps} {loss.hex()}\n")
        if session.steps % EVERY == 0:
            session.save_checkpoint(folder / "checkpoints", wait=False)
        if session.rank == 1 and start < len(deadly) and session.steps == deadly[start]:
            os.kill(os.getpid(), signal.SIGKILL)
    session.save(folder / "model.safetensors")
    session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(step) for step in sys.argv[2].split()])
