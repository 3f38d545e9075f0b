"""A training script that knows nothing of Trimaran, with delays planted where its arguments say, in milliseconds.

python observed_script.py [--steps N] [--load MS] [--forward MS] [--backward MS] [--update MS] [--other MS]

With `--end badly` it ends with exit code 3, with `--end terminated` by a signal.
"""

import argparse
import json
import os
import pickle
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SPENT = {"load": [], "forward": [], "backward": [], "update": [], "other": []}


def spend(kind, ms):
    """Spend time; it may take longer, where others want the processor."""
    start = time.perf_counter()
    while time.perf_counter() < start + ms * 1e-3:
        pass
    SPENT[kind].append(time.perf_counter() - start)


class Slow(torch.autograd.Function):
    """The identity, with a delay in its backward."""

    @staticmethod
    def forward(ctx, value, ms):
        ctx.ms = ms
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        spend("backward", ctx.ms)
        return gradient, None


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.layer = nn.Linear(8, 8)

    def forward(self, value):
        spend("forward", self.args.forward)
        return Slow.apply(self.layer(value), self.args.backward)


class Data(Dataset):
    def __init__(self, args):
        self.args = args

    def __len__(self):
        return 4 * self.args.steps

    def __getitem__(self, index):
        spend("load", self.args.load / 4)
        return torch.full((8,), float(index % 5))


class Descent(torch.optim.SGD):
    delay = 0.0

    def step(self, closure=None):
        spend("update", self.delay)
        return super().step(closure)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--end", default="well")
    for kind in ("load", "forward", "backward", "update", "other"):
        parser.add_argument(f"--{kind}", type=float, default=0.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Net(args)
    optimizer = Descent(model.parameters(), lr=1e-3)
    Descent.delay = args.update
    for batch in DataLoader(Data(args), batch_size=4, num_workers=args.workers):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        spend("other", args.other)
    # What a script leaves behind must not depend on who watches.
    state = f"loss {loss.item()!r} weights {model.layer.weight.sum().item()!r} model {len(pickle.dumps(model))}"
    # Of the steps that a watch counts: the first tenth is warm-up. A batch is four samples.
    mean = {kind: sum(each[len(each) // 10 :]) / (args.steps - args.steps // 10) for kind, each in SPENT.items()}
    sys.stderr.write(f"spent {json.dumps(mean)}\n")
    sys.stdout.write(state + "\n")
    if args.end == "terminated":
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(3 if args.end == "badly" else 0)


if __name__ == "__main__":
    main()
