"""Loops of accelerate and Lightning's Trainer inside `virtual_memory`, which they know nothing of."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

import trimaran

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

STEPS = 4
BATCH = 128


class Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Made when they are asked for: a tensor of all rows would count as memory of the step."""

    def __len__(self) -> int:
        return BATCH * 2 * STEPS + 24  # the last batch is short

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.arange(16.0).mul(index % 11 + 1).sin()
        return row, torch.tensor(index % 2)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)]
    return nn.Sequential(*layers)


Trained = tuple[list[float], dict[str, torch.Tensor]]
Stop = Callable[[int], None]


def never(_step: int) -> None:
    pass


def by_accelerate(context: Any, stop: Stop) -> Trained:
    """Accumulation, clipping, a schedule, and an evaluation after each epoch."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # another test may have chosen otherwise
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True, mixed_precision="no")
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, shuffle=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses = []
    with context:
        for _epoch in range(2):
            for step, (rows, labels) in enumerate(loader):
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(rows), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
                stop(step)
            model.eval()
            with torch.no_grad():
                losses.append(accelerator.gather_for_metrics(model(rows)).sum().item())
            model.train()
    return losses, model.state_dict()


def by_lightning(context: Any, stop: Stop) -> Trained:
    """Forward and backward in the optimizer's closure, with autocast; accumulation, clipping, validation."""
    lightning = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    losses: list[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            losses.append(loss.item())
            stop(index)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            losses.append(self.network(batch[0]).sum().item())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]

    module = Module()
    lightning.seed_everything(1)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        precision="bf16-mixed",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        limit_val_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, shuffle=True)
    with context:
        trainer.fit(module, loader, torch.utils.data.DataLoader(Rows(), batch_size=BATCH))
    return losses, module.network.state_dict()


WAYS = {"accelerate": by_accelerate, "lightning": by_lightning}


def assert_nothing_is_left() -> None:
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert not optimizers._global_optimizer_pre_hooks
    assert not optimizers._global_optimizer_post_hooks


@pytest.mark.parametrize("way", WAYS)
def test_a_foreign_loop_trains_alike_within_the_budget(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    losses, state = WAYS[way](contextlib.nullcontext(), never)
    memory = trimaran.virtual_memory("85%", smallest=0, account=True)
    with_memory = WAYS[way](memory, never)
    assert with_memory[0] == losses
    for name, value in state.items():
        assert torch.equal(with_memory[1][name], value), name
    report = memory.report()
    assert report.decisions
    assert report.measured_peak_bytes is not None
    assert report.budget_bytes is not None
    assert report.measured_peak_bytes <= report.budget_bytes
    assert not any("still held" in note for note in report.notes)  # a batch that the loop holds is nothing to tell
    assert_nothing_is_left()


@pytest.mark.parametrize("way", WAYS)
def test_an_end_in_the_middle_leaves_nothing_and_another_block_works(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning turns an interrupt into an exit."""
    monkeypatch.chdir(tmp_path)

    def stop(step: int) -> None:
        if step == 2 * STEPS - 1:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        WAYS[way](trimaran.virtual_memory("85%", smallest=0), stop)
    assert_nothing_is_left()
    after = WAYS[way](trimaran.virtual_memory("85%", smallest=0), never)
    assert after[0] == WAYS[way](contextlib.nullcontext(), never)[0]
