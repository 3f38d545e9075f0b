"""What watching adds to a step, within one process, so that a slow moment of the machine touches both sides alike.

    .venv/bin/python benchmarks/observe/overhead.py

The small recurrent network of scripts/small_kernels.py is trained in blocks of ten steps, every other block watched. In
the blocks between, the wrappers are still there and stand aside: what calling through them costs is on both sides.
Prints the median difference of neighbouring blocks with its 90 % interval by the sign test; --json prints figures.
"""

import argparse
import importlib.util
import json
import sys
import threading
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trimaran.measure.observe.injection import load_watch

BLOCK = 10


def make_step():
    path = Path(__file__).parent / "scripts" / "small_kernels.py"
    spec = importlib.util.spec_from_file_location("small_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    criterion = nn.CrossEntropyLoss()
    data = TensorDataset(torch.randint(0, 64, (80_000, 24)), torch.randint(0, 10, (80_000,)))
    batches = iter(DataLoader(data, batch_size=8))

    def step():
        text, label = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(text), label)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    plain = make_step()
    for _ in range(50):
        plain()
    watch = load_watch()
    watch.install_all()
    watch.OUTPUT.renew()
    for _ in range(50):
        plain()
    taken = {True: [], False: []}
    for number in range(args.blocks):
        # Off, off, on, on, off, ...: neither side is always the later one.
        on = number % 4 >= 2
        watch.LEDGER.thread = threading.get_ident() if on else 0
        start = time.perf_counter()
        for _ in range(BLOCK):
            plain()
        taken[on].append((time.perf_counter() - start) / BLOCK)
    ratios = sorted(on / off - 1 for on, off in zip(taken[True], taken[False], strict=True))
    half = 0.82 * len(ratios) ** 0.5
    low, high = ratios[int(len(ratios) / 2 - half)], ratios[int(len(ratios) / 2 + half)]
    result = {"step_s": median(taken[False]), "overhead": median(ratios), "overhead_interval": [low, high]}
    if args.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    print(f"{1e3 * result['step_s']:.3f} ms a step; watching adds {100 * result['overhead']:+.2f} %", end=" ")
    print(f"(90 %: {100 * low:+.2f} to {100 * high:+.2f} %)")


if __name__ == "__main__":
    main()
