"""A small CNN on images that are decompressed and augmented as they are read. Planted: one process does it all."""

import argparse
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 96


class CompressedImages(Dataset):
    """Images in memory, compressed as they would be on disk."""

    def __init__(self, count):
        rng = np.random.default_rng(0)
        smooth = rng.integers(0, 255, (32, SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
        images = smooth.repeat(8, axis=1).repeat(8, axis=2) ^ rng.integers(0, 4, (32, SIDE, SIDE, 3), dtype=np.uint8)
        self.files = [zlib.compress(image.tobytes(), 6) for image in images]
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        raw = zlib.decompress(self.files[index % len(self.files)])
        image = np.frombuffer(raw, dtype=np.uint8).reshape(SIDE, SIDE, 3).astype(np.float32) / 255
        y, x = torch.randint(0, SIDE - 64, (2,)).tolist()
        image = image[y : y + 64, x : x + 64]
        if torch.rand(()) < 0.5:
            image = image[:, ::-1]
        image = (image - image.mean()) / (image.std() + 1e-5)
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(CompressedImages(32 * args.steps), batch_size=32, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    ends = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        ends.append(time.perf_counter())
    warm = len(ends) // 5
    print(f"loss {loss.item():.3f}")
    print(f"{1e3 * (ends[-1] - ends[warm]) / (len(ends) - 1 - warm):.4f} ms/step")


if __name__ == "__main__":
    main()
