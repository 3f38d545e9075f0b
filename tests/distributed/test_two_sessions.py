"""Two sessions in one script, as `examples/gan.py` has them, equal a plain loop; alone and in one world."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trimaran.runtime.data import sample_order

EXAMPLE = Path(__file__).parents[2] / "examples" / "gan.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gan_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_plainly() -> list[float]:
    """The same networks in a loop of torch alone, on whole batches."""
    gan = load_example()
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


@pytest.mark.timeout(120)
def test_two_sessions_share_a_world_that_ends_with_the_last_one(plain: list[float], tmp_path: Path) -> None:
    """Under torchrun, where the first session makes the process group that the second one uses, and closes first."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r})\n"
        "import json, gan, torch.distributed as dist\n"
        "losses = gan.train()[0]\n"
        "print(json.dumps([losses, dist.is_initialized()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [joined for _, joined in told] == [False, False]
    for losses, _ in told:
        assert losses == pytest.approx(plain, abs=1e-10)
