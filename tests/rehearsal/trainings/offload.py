"""Activations on the host between forward and backward; the state of the optimizer there, too."""

import torch
from common import DEVICE, STEPS, Net, batch, dist, loss_of, on_host, start

start()
model = Net().to(DEVICE)
large = 2**18


def pack(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host of what is large and no parameter."""
    if tensor.numel() * tensor.element_size() < large or isinstance(tensor, torch.nn.Parameter):
        return tensor
    with on_host():
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        copy.copy_(tensor.detach())
    return copy


def unpack(kept: torch.Tensor) -> torch.Tensor:
    """A copy on the device."""
    if kept.numel() * kept.element_size() < large or isinstance(kept, torch.nn.Parameter):
        return kept
    back = torch.empty(kept.shape, dtype=kept.dtype, device=DEVICE)
    back.copy_(kept)
    return back


parameters = list(model.parameters())
with on_host():
    masters = [torch.empty(one.shape, device="cpu") for one in parameters]
    for master, one in zip(masters, parameters, strict=True):
        master.copy_(one.detach())
optimizer = torch.optim.AdamW(masters, lr=1e-3, foreach=True)
for _ in range(STEPS):
    tokens, targets = batch()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = loss_of(model(tokens), targets)
    loss.backward()
    for one in parameters:
        dist.all_reduce(one.grad)
    with on_host():
        for master, one in zip(masters, parameters, strict=True):
            master.grad = torch.empty(one.shape, device="cpu")
            master.grad.copy_(one.grad)
        optimizer.step()
        optimizer.zero_grad()
    for one, master in zip(parameters, masters, strict=True):
        one.data.copy_(master.detach())
        one.grad = None
dist.destroy_process_group()
