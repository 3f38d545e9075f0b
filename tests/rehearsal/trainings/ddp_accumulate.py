"""DDP with gradients in views of its buckets, summed over three microbatches."""

from common import DEVICE, STEPS, Net, adam, batch, dist, loss_of, start
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(Net().to(DEVICE), gradient_as_bucket_view=True)
optimizer = adam(model.parameters())
for _ in range(STEPS):
    for _ in range(2):
        with model.no_sync():
            tokens, targets = batch(4)
            (loss_of(model(tokens), targets) / 3).backward()
    tokens, targets = batch(4)
    (loss_of(model(tokens), targets) / 3).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
dist.destroy_process_group()
