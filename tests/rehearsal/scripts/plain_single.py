"""No process group at all unless there are several ranks; argparse, json logs, a text file read and written."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.nn as nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--log", default="")
    args = parser.parse_args()
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        if args.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank = torch.distributed.get_rank() if distributed else 0
    text = Path(__file__).read_text()
    codes = torch.tensor([min(ord(c), 127) for c in text], device=args.device)
    model = nn.ModuleDict(
        {"embed": nn.Embedding(128, 64), "rnn": nn.RNN(64, 128, batch_first=True), "out": nn.Linear(128, 128)}
    )
    model.to(args.device)
    if distributed:
        for p in model.parameters():
            torch.distributed.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records = []
    for epoch in range(args.epochs):
        start = time.time()
        x = codes[: 64 * 32].view(32, 64)
        h, _ = model["rnn"](model["embed"](x[:, :-1]))
        loss = nn.functional.cross_entropy(model["out"](h).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if distributed:
            for p in model.parameters():
                torch.distributed.all_reduce(p.grad)
                p.grad /= torch.distributed.get_world_size()
        optimizer.step()
        records.append({"epoch": epoch, "loss": loss.item(), "seconds": time.time() - start})
        if rank == 0:
            print(json.dumps(records[-1]), flush=True)
    if args.log and rank == 0:
        Path(args.log).write_text(json.dumps(records))
    if distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
