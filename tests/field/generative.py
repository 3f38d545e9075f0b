"""Models that generate: VAE, GAN, WGAN, diffusion."""

from typing import Any

import torch
from tests.field.entry import Family
from tests.field.vision import SmallUNet, classify
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

from trimaran.base.job import Job

GENERATIVE = Family("generative")


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(24, 6), nn.Linear(24, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 192), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


def evidence(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    decoded, mean, log_variance = output
    likeness = functional.binary_cross_entropy(decoded, target.flatten(1), reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return (likeness + divergence) / len(target)


class Pictures(Dataset[Any]):
    """Values in [0, 1], to be made again."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(index))
        return x, x


@GENERATIVE.entry("draws of the reparametrization in the forward", by_microbatch=True)
def vae() -> Job:
    return classify("vae", Vae, loss=evidence, dataset=Pictures)


class Noisy(Dataset[Any]):
    """Pictures and the noise that a generator starts from."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], int]:
        generator = torch.Generator().manual_seed(index)
        return (torch.rand(12, generator=generator), torch.randn(4, generator=generator)), 0


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12))
        self.discriminator = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = self.generator(noise)
        return self.discriminator(real), self.discriminator(made.detach()), self.discriminator(made)


def _is_real(logits: Tensor, real: bool) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def gan_losses(output: tuple[Tensor, Tensor, Tensor], _: Tensor) -> tuple[Tensor, Tensor]:
    """Of the discriminator and of the generator."""
    real, detached, made = output
    return _is_real(real, True) + _is_real(detached, False), _is_real(made, True)


class TwoOptimizers:
    """One for each of the two networks."""

    def __init__(self, parameters: Any) -> None:
        named = dict(parameters.named_parameters())
        self.of = {
            part: torch.optim.Adam([tensor for name, tensor in named.items() if name.startswith(part)], lr=2e-3)
            for part in ("generator", "discriminator")
        }


def gan_step(model: Any, optimizer: Any, batch: Any) -> Tensor:
    """The discriminator first; then the generator, against the new discriminator."""
    (real, noise), _ = batch
    of_discriminator = _is_real(model.discriminator(real), True) + _is_real(
        model.discriminator(model.generator(noise).detach()), False
    )
    model.zero_grad()
    of_discriminator.backward()
    optimizer.of["discriminator"].step()
    model.zero_grad()
    _is_real(model.discriminator(model.generator(noise)), True).backward()
    optimizer.of["generator"].step()
    return of_discriminator.detach()


@GENERATIVE.entry(
    "two losses and two optimizers that take turns",
    own_optimizer=True,
    own_step=gan_step,
    wanted="two losses and two optimizers; today two sessions",
    way_out="a job and a session for each of the two networks, as in examples/gan.py",
)
def gan() -> Job:
    return classify("gan", Gan, loss=gan_losses, optimizer=TwoOptimizers, dataset=Noisy)


class Critic(nn.Module):
    """Scores, and the norm of the gradient of the score between real and made pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12)).requires_grad_(False)

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = self.generator(noise)
        between = torch.lerp(real, made, torch.rand(len(real), 1).to(real)).requires_grad_(True)
        slope = torch.autograd.grad(self.score(between).sum(), between, create_graph=True)[0]
        return self.score(real), self.score(made), slope.norm(dim=1)


def critic_loss(output: tuple[Tensor, Tensor, Tensor], _: Tensor) -> Tensor:
    real, made, norms = output
    return made.mean() - real.mean() + 10 * ((norms - 1) ** 2).mean()


@GENERATIVE.entry("the critic of a WGAN with a gradient penalty: a backward of a backward", by_microbatch=True)
def wgan_penalty() -> Job:
    return classify("wgan_penalty", Critic, loss=critic_loss, dataset=Noisy)


class Diffusion(nn.Module):
    """Guesses the noise that its forward has drawn, at times that it has drawn."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = SmallUNet()
        self.time = nn.Embedding(10, 3)
        self.out = nn.Conv2d(4, 3, 1)
        self.register_buffer("kept", torch.linspace(0.99, 0.1, 10).cumprod(0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        times = torch.randint(10, (len(x),), device=x.device)
        noise = torch.randn_like(x)
        kept = self.kept[times].view(-1, 1, 1, 1)
        noised = kept.sqrt() * x + (1 - kept).sqrt() * noise
        return self.out(self.net(noised + self.time(times)[:, :, None, None])), noise


class Ema:
    """An average of the weights, made after each step on every rank."""

    def __init__(self) -> None:
        self.average: AveragedModel | None = None

    def __call__(self, session: Any, step: int, metrics: dict[str, float]) -> None:
        if self.average is None:
            self.average = AveragedModel(session.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
        self.average.update_parameters(session.model)

    def averages(self) -> dict[str, Tensor]:
        """What was averaged so far, of whole tensors."""
        assert self.average is not None
        state = self.average.state_dict()
        whole = {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in state.items()}
        return {name: one.detach().clone() for name, one in whole.items()}


@GENERATIVE.entry(
    "times and noise drawn in the forward; an average of the weights by a callback",
    by_microbatch=True,
    way_out="ema_by_name",
)
def diffusion_ema() -> Job:
    return classify(
        "diffusion_ema",
        Diffusion,
        loss=lambda output, _: functional.mse_loss(*output),
        dataset=Pictures,
        on_step=Ema(),
    )


class Averaged(nn.Module):
    """Trains its weights, and answers with their average where it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9)).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.average.update_parameters(self.net)
            return self.net(x)
        return self.average(x)


class Points(Dataset[Any]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(12, generator=torch.Generator().manual_seed(index)), index % 4


@GENERATIVE.entry("an average of the weights that the forward makes, swapped in for evaluation", way_out="ema_by_name")
def ema_swapped() -> Job:
    return classify(
        "ema_swapped",
        Averaged,
        dataset=Points,
        evaluation_dataset=Points,
        metric=lambda output, target: -functional.cross_entropy(output, target).item(),
    )


class EmaByName:
    """An average of every weight, or of a rank's share of it, put into the model for an evaluation after each epoch."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}
        self.scores: list[float] = []

    @torch.no_grad()
    def __call__(self, session: Any, step: int, metrics: dict[str, float]) -> None:
        for name, weight in session.model.named_parameters():
            self.kept.setdefault(name, weight.detach().clone()).lerp_(weight, 0.1)

    @torch.no_grad()
    def evaluate(self, session: Any, epoch: int, metrics: dict[str, float]) -> None:
        trained = {name: weight.detach().clone() for name, weight in session.model.named_parameters()}
        for name, weight in session.model.named_parameters():
            weight.copy_(self.kept[name])
        self.scores.append(session.evaluate())
        for name, weight in session.model.named_parameters():
            weight.copy_(trained[name])

    def averages(self) -> dict[str, Tensor]:
        """Whole tensors, and the scores."""
        whole = {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in self.kept.items()}
        return {**whole, "scores": torch.tensor(self.scores, dtype=torch.float64)}


@GENERATIVE.entry("an average of the weights by a callback, put in for an evaluation after each epoch, and out again")
def ema_by_name() -> Job:
    average = EmaByName()
    return classify(
        "ema_by_name",
        lambda: nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)),
        dataset=Points,
        evaluation_dataset=Points,
        metric=lambda output, target: -functional.cross_entropy(output, target).item(),
        on_step=average,
        on_epoch=average.evaluate,
    )
