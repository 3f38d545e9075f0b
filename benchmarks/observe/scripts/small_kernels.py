"""A recurrent cell unrolled in Python over a short sequence. Planted: a batch of 8, so every kernel is tiny."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    """Characters in, a class of the sequence out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 48)
        self.cell = nn.LSTMCell(48, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, text):
        state = None
        for token in self.embed(text).unbind(1):
            state = self.cell(token, state)
        return self.head(state[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    count = args.batch * args.steps
    data = TensorDataset(torch.randint(0, 64, (count, 24)), torch.randint(0, 10, (count,)))
    loader = DataLoader(data, batch_size=args.batch)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    criterion = nn.CrossEntropyLoss()
    ends = []
    for text, label in loader:
        optimizer.zero_grad()
        loss = criterion(model(text), label)
        loss.backward()
        optimizer.step()
        ends.append(time.perf_counter())
    warm = len(ends) // 5
    print(f"loss {loss.item():.3f}")
    print(f"{1e3 * (ends[-1] - ends[warm]) / (len(ends) - 1 - warm):.4f} ms/step")


if __name__ == "__main__":
    main()
