"""For how long a save that is not waited for holds a training up, beside what the save takes.

One process trains a wide network with Adam, whose state is 1 GiB, and saves it in turns: waited for; not waited for,
while steps go on. Two figures of a save that is not waited for: until it returns, which is the copy to host memory;
and how much longer the steps take that run while files are written, in sum. Prints both and writes
`benchmarks/results/checkpoint_held_up.json`.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, write_document  # noqa: E402

import trimaran  # noqa: E402

WIDTH, LAYERS = 3072, 10
"""Each layer has 36 MiB of weights, and 72 MiB of Adam's moments."""
TARGET = 0.05
LONGEST_S = 120.0


def make_model() -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)), nn.Linear(WIDTH, 2)
    )


def make_job() -> trimaran.Job:
    return trimaran.Job(
        name="held-up",
        model=make_model,
        dataset=lambda: TensorDataset(torch.randn(64, WIDTH), torch.randint(2, (64,))),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
        global_batch_size=16,
        epochs=1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="on the disk to measure")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "checkpoint_held_up.json")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "schema_version": 1,
        "environment": describe_environment(devices=1),
        "load_average_before": os.getloadavg(),
        "target_share": TARGET,
        "places": {},
    }
    torch.set_num_threads(1)  # as a rank has
    session = trimaran.init(make_job())
    batch = torch.randn(16, WIDTH), torch.randint(2, (16,))
    document["state_bytes"] = 3 * sum(one.nbytes for one in session.model.parameters())
    for place, parent in {"disk": options.folder, "memory": Path("/dev/shm")}.items():
        folder = Path(tempfile.mkdtemp(dir=parent))
        try:
            document["places"][place] = measure(session, batch, folder, options.rounds)
        finally:
            shutil.rmtree(folder)
    session.close()
    write_document(document, options.output)
    show(document)


def timed(task: Any) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def measure(session: Any, batch: Any, folder: Path, rounds: int) -> dict[str, list[float]]:
    """Save in a folder.

    Args:
        session: that trains
        batch: of its steps
        folder: of the checkpoints
        rounds: of each kind

    Returns:
        Times of saves that are waited for, and, of saves that are not, until they return and how much longer the steps
        beside them took in sum [s]. The first one that is not waited for takes memory for its copy, and is apart.
    """
    waited, returned, slower = [], [], []
    for _ in range(rounds):
        session.step(batch)
        waited.append(timed(lambda: session.save_checkpoint(folder)))
    for _ in range(rounds + 1):
        plain = statistics.median(timed(lambda: session.step(batch)) for _ in range(5))
        returned.append(timed(lambda: session.save_checkpoint(folder, wait=False)))
        start, steps, before = time.perf_counter(), 0, session.saved
        # What was committed last changes when the files are there.
        while session.saved == before and time.perf_counter() - start < LONGEST_S:
            session.step(batch)
            steps += 1
        slower.append(time.perf_counter() - start - steps * plain)
    session.save_checkpoint(folder)  # until the older ones are deleted
    return {"waited_s": waited, "first_s": returned[:1], "returned_s": returned[1:], "slower_s": slower[1:]}


def show(document: dict[str, Any]) -> None:
    print(environment_line(document["environment"]))
    print(f"state {document['state_bytes'] / 2**30:.2f} GiB")
    for place, rounds in document["places"].items():
        middle = {name: statistics.median(values) for name, values in rounds.items()}
        print(
            f"{place}: a save takes {middle['waited_s']:.2f} s; not waited for it returns after "
            f"{1e3 * middle['returned_s']:.0f} ms ({middle['returned_s'] / middle['waited_s']:.1%}; target "
            f"{document['target_share']:.0%}), the first one after {1e3 * middle['first_s']:.0f} ms; the steps beside "
            f"it take {middle['slower_s']:.2f} s longer"
        )


if __name__ == "__main__":
    main()
