# world 2, ranks 0 1, kind wait
# A sum is read before it is there.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net

rank, world, device = begin()
model = net(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(3):
    model(batch(device)).pow(2).mean().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]  # fault
    if CLEAN:
        for work in works:
            work.wait()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
