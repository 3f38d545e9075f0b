"""A GAN: two networks with two losses and two optimizers, each a job with a session of its own, in one script.

python examples/gan.py
torchrun --standalone --nproc-per-node 2 examples/gan.py

The critic's session reads the data, real samples with noise beside them, and both sessions train on it. What one job
reads of the other's network is read through `session.model`: the generator's loss calls the critic with its weights
detached, so that a step of the generator leaves no gradients in the critic.
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

import trimaran

SAMPLES, NOISE, BATCH, EPOCHS = 512, 2, 64, 8


def make_samples() -> TensorDataset:
    """Points near a circle, noise for as many false ones, and a target that is not used."""
    generator = torch.Generator().manual_seed(1)
    angles = torch.rand(SAMPLES, generator=generator, dtype=torch.float64) * 2 * torch.pi
    real = torch.stack([angles.cos(), angles.sin()], dim=1)
    real += 0.05 * torch.randn(SAMPLES, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(SAMPLES, NOISE, generator=generator, dtype=torch.float64)
    return TensorDataset(real, noise, torch.zeros(SAMPLES, 1, dtype=torch.float64))


def as_pairs(samples: list[tuple[torch.Tensor, ...]]) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A batch of the critic: real samples and noise as its two inputs."""
    real, noise, target = (torch.stack(part) for part in zip(*samples, strict=True))
    return (real, noise), target


class Critic(nn.Module):
    """One score for each real sample and one for each false one."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, real: torch.Tensor, false: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.score(real), self.score(false)], dim=1)


def critic_loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Real samples are told from false ones; a mean over the samples of the batch."""
    return binary_cross_entropy_with_logits(scores, torch.tensor([[1.0, 0.0]]).to(scores).expand_as(scores))


def make_generator() -> nn.Module:
    return nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), nn.Linear(32, 2))


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2, betas=(0.5, 0.999))  # type: ignore[arg-type]


def critic_job() -> trimaran.Job:
    return trimaran.Job(
        name="critic",
        model=Critic,
        loss=critic_loss,
        optimizer=adam,
        dataset=make_samples,
        collate=as_pairs,
        global_batch_size=BATCH,
        epochs=EPOCHS,
        precision="fp64",
        seed=1,
    )


def generator_job(critic: nn.Module) -> trimaran.Job:
    """The generator's part; its batches come from the critic's session, and its own data only show their form."""

    def fools(false: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        weights = {name: weight.detach() for name, weight in critic.named_parameters()}
        scores = torch.func.functional_call(critic, weights, (false, false))
        return binary_cross_entropy_with_logits(scores[:, 1:], torch.ones_like(target))

    return trimaran.Job(
        name="generator",
        model=make_generator,
        loss=fools,
        optimizer=adam,
        dataset=lambda: TensorDataset(*make_samples().tensors[1:]),
        global_batch_size=BATCH,
        precision="fp64",
        seed=2,
    )


def train() -> tuple[list[float], float]:
    """Train both networks in turns.

    Returns:
        The losses of critic and generator, one after the other, the same on every rank; and how far from the center
        this rank's last false samples are, on average.
    """
    losses: list[float] = []
    critic = trimaran.init(critic_job())
    generator = trimaran.init(generator_job(critic.model))
    for (real, noise), target in critic.batches():
        with torch.no_grad():
            false = generator.model(noise)
        losses.append(critic.step(((real, false), target)))
        losses.append(generator.step((noise, target)))
    radius = float(false.norm(dim=1).mean())
    if critic.rank == 0:
        print(f"{critic.strategy.name}: losses {losses[-2]:.3f}, {losses[-1]:.3f}; radius {radius:.2f}")
    critic.close()
    generator.close()
    return losses, radius


if __name__ == "__main__":
    train()
