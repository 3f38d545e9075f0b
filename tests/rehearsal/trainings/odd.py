"""What makes lifetimes odd: a function with its own backward, tied weights, in-place sums, a graph that is kept.

A graph of a backward (`create_graph`) is not among them: on a GPU another thread makes it and numbers its nodes, so a
GPU runs it in another order than a CPU.
"""

import torch
from common import DEVICE, STEPS, Net, adam, batch, dist, loss_of, start


class Squared(torch.autograd.Function):
    """Keeps its input and a product of it."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        root = x.abs() + 1
        ctx.save_for_backward(x, root)
        ctx.extra = x * 2
        return x * root

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        x, root = ctx.saved_tensors
        return gradient * (root + x.sign() * ctx.extra / 2)


start()
model = Net().to(DEVICE)
model.head.weight = model.words.weight
parameters = list(model.parameters())
optimizer = adam(parameters)
history = []
for _ in range(STEPS):
    tokens, targets = batch()
    embedded = model.words(tokens).detach().requires_grad_()
    x = embedded
    for layer in model.layers:
        x = layer(x)
        left, right = x.chunk(2, -1)
        x = torch.cat([left, Squared.apply(right)], -1)
    logits = model.head(model.norm(x))
    loss = loss_of(logits, targets)
    (slope,) = torch.autograd.grad(loss, embedded, retain_graph=True)
    total = loss * (1 + slope.square().sum())
    history.append(logits.detach()[:1].clone())
    total.backward()
    loss = loss_of(model(tokens), targets)
    loss.backward()
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.div_(dist.get_world_size())
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    del logits, slope
dist.destroy_process_group()
