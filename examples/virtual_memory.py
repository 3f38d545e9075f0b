"""A plain training loop whose activations do not all fit: the context keeps the peak within a budget.

python examples/virtual_memory.py          # 60 % of what it needs without help
python examples/virtual_memory.py 12GiB
"""

import sys

import torch
from torch import nn
from torch.nn import functional

import trimaran


def main(budget: str = "60%") -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(500, 128), *layers, nn.Linear(128, 500)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with trimaran.virtual_memory(budget) as memory:
        for _ in range(8):
            words = torch.randint(500, (16, 65), device=device)
            scores = model(words[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(memory.report())


if __name__ == "__main__":
    main(*sys.argv[1:])
