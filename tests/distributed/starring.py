"""Duties of ranks that train through rank 0."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran.base.job import Job
from trimaran.launch.world import World
from trimaran.runtime.data.orders import sample_order
from trimaran.user_code.model import make_model
from trimaran_studies.reproduce.input_pipeline_rank import Star
from trimaran_studies.reproduce.torch_data_parallel import Remedies

BATCH, FEATURES = 8, 6


def star_job() -> Job:
    """A network with batch norm off, in fp64, on 32 samples."""
    return Job(
        name="star",
        model=lambda: nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3)).double(),
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9),
        dataset=_samples,
        global_batch_size=BATCH,
    )


def _samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(32, FEATURES, dtype=torch.float64, generator=generator)
    return TensorDataset(inputs, torch.randint(3, (32,), generator=generator))


def train_stars(world: World, cases: list[Remedies], steps: int) -> list[tuple[list[float], dict[str, torch.Tensor]]]:
    """Losses and weights of each case, as this rank has them."""
    found = []
    for remedies in cases:
        star = Star(star_job(), world, remedies, workers=1)
        losses = [star.step() for _ in range(steps)]
        star.close()
        weights = {name: value.detach().clone() for name, value in star.model.state_dict().items()}
        found.append((losses, weights))
    return found


def train_alone(steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same in one process, on the same global batches."""
    job = star_job()
    model, dataset = make_model(job), _samples()
    optimizer = job.optimizer(model.parameters())
    losses = []
    for number in range(steps):
        epoch, place = divmod(number, 32 // BATCH)
        order = sample_order(32, seed=job.seed, epoch=epoch)[place * BATCH : (place + 1) * BATCH]
        inputs, targets = (part[order] for part in dataset.tensors)
        loss = functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model.state_dict()
