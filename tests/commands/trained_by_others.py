"""Training scripts as people write them for trainers of others: python trained_by_others.py huggingface|lightning.

Two batches a step, an evaluation every ten steps, a schedule, clipping; batches of sentences padded to the longest.
What is printed is all that training decides: losses, and a sum over the bytes of the weights.
"""

import hashlib
import logging
import sys
import warnings

import torch
from torch import nn

STEPS = 40


def huggingface():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        DataCollatorWithPadding,
        PreTrainedTokenizerFast,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(1)
    words = ["[PAD]", "[UNK]", *(f"w{number}" for number in range(30))]
    model = models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = [" ".join(words[2 + (row * 7 + at) % 30] for at in range(3 + row % 11)) for row in range(200)]
    rows = [{**tokenizer(text), "labels": number % 2} for number, text in enumerate(texts)]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    network = BertForSequenceClassification(BertConfig(vocab_size=len(words), num_labels=2, **sizes))
    trainer = Trainer(
        model=network,
        args=TrainingArguments(
            "saved",
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=STEPS,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            eval_strategy="steps",
            eval_steps=10,
            save_steps=20,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows,
        eval_dataset=rows[:16],
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    losses = [entry.get("loss", entry.get("eval_loss")) for entry in trainer.state.log_history]
    return losses, network


def lightning():
    import pytorch_lightning

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    losses = []

    class Module(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 2))

        def forward(self, rows):
            return self.network(rows)

        def training_step(self, batch, index):
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def validation_step(self, batch, index):
            losses.append(self(batch[0]).sum().item())

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]

    pytorch_lightning.seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.randn(80, 8), torch.arange(80) % 2)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    trainer = pytorch_lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        limit_val_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir="saved",
    )
    module = Module()
    trainer.fit(module, loader, torch.utils.data.DataLoader(data, batch_size=4))
    return losses, module


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found, trained = {"huggingface": huggingface, "lightning": lightning}[sys.argv[1]]()
    digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in trained.parameters()))
    sys.stdout.write(f"losses {found!r} weights {digest.hexdigest()}\n")
    sys.exit(3)
