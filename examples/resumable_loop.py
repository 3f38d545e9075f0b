"""A training loop that can be ended at any moment and started again: alone, under torchrun, or under Slurm.

It saves its whole state every 50 steps and where a signal ends it, and begins with the newest state there is.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import trimaran

CHECKPOINTS = "checkpoints"  # on a file system that all nodes see


def make_dataset() -> TensorDataset:
    digits = load_digits()
    images = torch.from_numpy(digits.images[:1500]).float().unsqueeze(1) / 16
    return TensorDataset(images, torch.from_numpy(digits.target[:1500]).long())


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(16 * 4 * 4, 10),
    )


def make_job() -> trimaran.Job:
    return trimaran.Job(
        name="resumable-loop",
        model=make_model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        dataset=make_dataset,
        global_batch_size=60,
        epochs=16,
    )


def main() -> None:
    session = trimaran.init(make_job())
    session.load_checkpoint(CHECKPOINTS, missing_ok=True)  # the first time there is none
    for batch in session.batches():
        loss = session.step(batch)
        if session.rank == 0:
            print(f"step {session.steps} loss {loss!r}", flush=True)
        if session.steps % 50 == 0:
            session.save_checkpoint(CHECKPOINTS, wait=False)
    if session.stop_signal is not None:
        session.save_checkpoint(CHECKPOINTS)
    else:
        session.save("model.safetensors")
    session.close()  # after a signal: exit code 128 and its number


if __name__ == "__main__":
    main()
