"""Tensor parallelism, with activations between layers sharded by sequence."""

from common import DEVICE, Net, adam, dist, start, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

_, world = start()
mesh = init_device_mesh(DEVICE.type, (world,))
model = Net().to(DEVICE)
parallelize_module(
    model,
    mesh,
    {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
)
for layer in model.layers:
    layer.attention.heads //= world
    parallelize_module(
        layer,
        mesh,
        {
            "norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=Shard(1)),
            "norm2": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        },
    )
train(model, adam(model.parameters()))
dist.destroy_process_group()
