"""Training of a published network on one GPU, in bf16 by autocast: `alone.py gpt2 8` or `alone.py resnet50 64`."""

import sys

import torch

from trimaran.jobs.resolve import resolve

job, batch = resolve(sys.argv[1]), int(sys.argv[2])
model = job.model().to("cuda")
optimizer = job.optimizer(model.parameters())
data = job.dataset()
for _ in range(3):
    inputs, targets = (part.to("cuda") for part in torch.utils.data.default_collate([data[n] for n in range(batch)]))
    with torch.autocast("cuda", torch.bfloat16):
        loss = job.loss(model(inputs), targets)
        loss = loss[0] / loss[1] if isinstance(loss, tuple) else loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
