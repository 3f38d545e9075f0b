"""A Lightning module: a small vision transformer under the DDP strategy, precision bf16, metrics reduced over ranks."""

import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl


class ViT(nn.Module):
    def __init__(self, width=384, depth=6, heads=6, patch=16, side=128, classes=100):
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, F.gelu, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], dim=1) + self.places
        return self.head(self.encoder(x)[:, 0])


class Pictures(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(3, 128, 128, generator=generator), i % 100


class Lit(pl.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = ViT()

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, prog_bar=False, sync_dist=True)
        if self.global_rank == 0:
            print(f"batch {index}: loss {loss.item():.3f}", flush=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        out = self.net(x)
        self.log("val_loss", F.cross_entropy(out, y), sync_dist=True)
        self.log("val_acc", (out.argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    pl.seed_everything(0)
    world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    train = Pictures(16 * world)
    held = TensorDataset(torch.randn(32, 3, 128, 128), torch.randint(0, 100, (32,)))
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=local,
        num_nodes=world // local,
        strategy=sys.argv[1] if len(sys.argv) > 1 else "ddp",
        precision="bf16-mixed",
        max_steps=2,
        limit_val_batches=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=True,
        num_sanity_val_steps=1,
        log_every_n_steps=1,
    )
    trainer.fit(Lit(), DataLoader(train, 8, shuffle=True), DataLoader(held, 8))
    if trainer.is_global_zero:
        print({k: round(float(v), 3) for k, v in trainer.callback_metrics.items()}, flush=True)


if __name__ == "__main__":
    main()
