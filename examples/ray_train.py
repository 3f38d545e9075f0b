"""A training under Ray Train: Ray starts the workers and their process group, and `trimaran.init` joins it.

python examples/ray_train.py FOLDER        # a folder that all workers see
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import trimaran


def make_dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(480, 20, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(dim=1))


def make_job() -> trimaran.Job:
    return trimaran.Job(
        name="ray-train",
        model=lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        dataset=make_dataset,
        global_batch_size=48,
        epochs=5,
    )


def loop(config: dict[str, str]) -> None:
    """What each worker runs."""
    session = trimaran.init(make_job())
    session.load_checkpoint(config["folder"], missing_ok=True)
    for batch in session.batches():
        session.step(batch)
    session.save_checkpoint(config["folder"])
    session.save(Path(config["folder"]) / "model.safetensors")
    session.close()


def main() -> None:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    workers = ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available())
    TorchTrainer(loop, train_loop_config={"folder": str(folder)}, scaling_config=workers).fit()


if __name__ == "__main__":
    main()
