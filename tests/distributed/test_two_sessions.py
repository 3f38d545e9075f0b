"""Two sessions in one script, as `examples/gan.py` has them, equal a plain loop; alone and in one world."""

import dataclasses
import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests import builders
from tests.distributed.resuming import open_in_turn
from tests.distributed.training import Run
from tests.forks.client import launch
from tests.forks.world import run_world

import trimaran
from trimaran.program.strategy import Strategy
from trimaran.runtime.data.orders import sample_order

EXAMPLE = Path(__file__).parents[2] / "examples" / "gan.py"


def load_example(samples: int = 512) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gan_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SAMPLES = samples
    return module


def train_plainly(samples: int = 512) -> list[float]:
    """The same networks in a loop of torch alone, on whole batches."""
    gan = load_example(samples)
    job = gan.critic_job()
    torch.manual_seed(job.seed)
    critic = gan.Critic().double()
    torch.manual_seed(gan.generator_job(critic).seed)
    generator = gan.make_generator().double()
    optimizers = gan.adam(critic.parameters()), gan.adam(generator.parameters())
    data = gan.make_samples()
    losses = []
    for epoch in range(gan.EPOCHS):
        order = sample_order(len(data), seed=job.seed, epoch=epoch)
        for start in range(0, len(data), gan.BATCH):
            real, noise, target = data[order[start : start + gan.BATCH]]
            false = generator(noise)
            told = gan.critic_loss(critic(real, false.detach()), target)
            told.backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            scores = critic(false, false)[:, 1:]
            fooled = torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.ones_like(target))
            fooled.backward()
            optimizers[1].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            losses += [told.item(), fooled.item()]
    return losses


@pytest.fixture(scope="module")
def plain() -> list[float]:
    return train_plainly()


def test_two_sessions_of_one_process_equal_a_plain_loop(plain: list[float]) -> None:
    """64 updates of each network, whose losses depend on each other: 1e-10."""
    assert load_example().train()[0] == pytest.approx(plain, abs=1e-10)


def train_in_world(folder: str, samples: int = 512) -> None:
    import torch.distributed as dist

    losses = load_example(samples).train()[0]
    (Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps([losses, dist.is_initialized()]))


@pytest.mark.timeout(120)
def test_two_sessions_share_a_world_that_ends_with_the_last_one(plain: list[float], tmp_path: Path) -> None:
    """As under torchrun, where the first session makes the process group that the second one uses, and closes first."""
    run_world(train_in_world, str(tmp_path), processes=2, folder=tmp_path)
    for rank in range(2):
        losses, joined = json.loads((tmp_path / f"{rank}.json").read_text())
        assert not joined
        assert losses == pytest.approx(plain, abs=1e-10)


UNEVEN = 551  # the last batch of an epoch has 39 samples: 20 for one replica, 19 for the other


@pytest.mark.timeout(120)
def test_the_second_session_trains_on_a_last_smaller_batch_of_the_first(tmp_path: Path) -> None:
    """It was refused in the middle of the training, as a batch of a wrong size."""
    plain = train_plainly(UNEVEN)
    assert load_example(UNEVEN).train()[0] == pytest.approx(plain, abs=1e-10)
    run_world(train_in_world, str(tmp_path), UNEVEN, processes=2, folder=tmp_path)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text())[0] == pytest.approx(plain, abs=1e-10)


def train_in_turn(folder: str) -> None:
    """Three sessions, one after the other: each ends the world of the one before it."""
    losses = []
    for seed in range(3):
        with trimaran.init(dataclasses.replace(load_example().critic_job(), seed=seed, epochs=1)) as session:
            losses.append([session.step(batch) for batch in session.batches()])
    (Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(losses))


@pytest.mark.timeout(120)
def test_sessions_in_turn_join_a_world_each(tmp_path: Path) -> None:
    """The second waited for addresses of the first, which nobody listened at any more."""
    run_world(train_in_turn, str(tmp_path), processes=2, folder=tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert [len(losses) for losses in first] == [8, 8, 8]


@pytest.mark.parametrize("strategy", [builders.strategy(dp=2, zero=3, units=("blocks.0",)), builders.strategy(tp=2)])
def test_a_session_that_is_closed_leaves_no_threads(strategy: Strategy, tmp_path: Path) -> None:
    run = Run(job="gpt_fp64", strategy=strategy, steps=1)
    for threads in launch(open_in_turn, (run, 3), ranks=2, log_dir=tmp_path, device="cpu"):
        assert threads[0] == threads[-1]
