"""Hugging Face's Trainer inside `virtual_memory`, which it knows nothing of."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

import trimaran

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(2, 64, (count, 32), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def train(folder: Path, budget: str | None, **arguments: Any) -> tuple[list[float], dict[str, torch.Tensor], Any]:
    """Six steps; the last batch of an epoch is short."""
    transformers.set_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=64,
            n_positions=32,
            n_embd=32,
            n_layer=3,
            n_head=4,
            bos_token_id=0,
            eos_token_id=1,
            use_cache=False,
        )
    )
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=16,
            num_train_epochs=2,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **arguments,
        ),
        train_dataset=Sentences(40),
        eval_dataset=Sentences(8),
    )
    context: Any = contextlib.nullcontext() if budget is None else trimaran.virtual_memory(budget, smallest=0)
    with context as memory:
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, {name: value.detach() for name, value in model.state_dict().items()}, memory and memory.report()


@pytest.mark.parametrize(
    "arguments",
    [
        {"gradient_accumulation_steps": 2},
        pytest.param({"eval_strategy": "epoch"}, marks=pytest.mark.sweep),
        pytest.param({"gradient_checkpointing": True}, marks=pytest.mark.sweep),
        {"bf16": True},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_a_trainer_trains_alike(tmp_path: Path, arguments: dict[str, Any]) -> None:
    losses, state, _ = train(tmp_path, None, **arguments)
    checkpoints = "gradient_checkpointing" in arguments  # which leaves nothing to move
    with_memory = train(tmp_path, "1GiB" if checkpoints else "75%", **arguments)
    assert len(losses) >= 3
    assert with_memory[0] == losses
    for name, value in with_memory[1].items():
        assert torch.equal(value, state[name]), name
    assert checkpoints or with_memory[2].plans >= 1
