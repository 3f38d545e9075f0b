"""A convolutional net on scikit-learn's digits, on whatever device there is: validation, a plateau scheduler, early stop."""

import os

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

use_cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if use_cuda else "gloo")
local = int(os.environ.get("LOCAL_RANK", 0))
device = torch.device("cuda", local) if use_cuda else torch.device("cpu")
if use_cuda:
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
torch.manual_seed(0)
np.random.seed(0)

images, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(images.astype("float32") / 16, labels, random_state=0)
train = TensorDataset(torch.from_numpy(train_x).view(-1, 1, 8, 8), torch.from_numpy(train_y))
test = TensorDataset(torch.from_numpy(test_x).view(-1, 1, 8, 8), torch.from_numpy(test_y))
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=32, sampler=sampler, num_workers=2, pin_memory=use_cuda)
test_loader = DataLoader(test, batch_size=128)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Dropout2d(0.1),
    nn.Flatten(),
    nn.Linear(64 * 16, 128),
    nn.ReLU(),
    nn.Linear(128, 10),
).to(device)
model = DistributedDataParallel(model, device_ids=[local] if use_cuda else None)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)

best, worse = float("inf"), 0
for epoch in range(3):
    model.train()
    sampler.set_epoch(epoch)
    total, seen, right = 0.0, 0, 0
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        total += loss.item() * y.size(0)
        seen += y.size(0)
        _, predicted = out.max(1)
        right += predicted.eq(y).sum().item()
    model.eval()
    correct = torch.zeros(1, device=device)
    cost = torch.zeros(1, device=device)
    with torch.no_grad():
        for x, y in test_loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            cost += criterion(out, y) * len(y)
            correct += (out.argmax(dim=1) == y).float().sum()
    dist.all_reduce(correct)
    dist.all_reduce(cost)
    cost = cost.item() / len(test) / dist.get_world_size()
    scheduler.step(cost)
    if dist.get_rank() == 0:
        print(
            f"epoch {epoch}: train loss {total / seen:.3f} accuracy {100.0 * right / seen:.1f}%, "
            f"test loss {cost:.3f} accuracy {100 * correct.item() / len(test) / dist.get_world_size():.1f}%, "
            f"lr {optimizer.param_groups[0]['lr']:g}",
            flush=True,
        )
    if cost < best:
        best, worse = cost, 0
    else:
        worse += 1
        if worse >= 3:
            if dist.get_rank() == 0:
                print("no better for three epochs, stopping")
            break
dist.destroy_process_group()
