"""A network of four layers that ranks train as one model, and ways to make several of it: `planted.py KIND`."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

kind = sys.argv[1]
rank = int(os.environ["RANK"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("outer", "inner"))
outer, inner = mesh["outer"].get_group(), mesh["inner"].get_group()
WIDTH, MICRO = 64, 2


class Network(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if kind == "experts" and number == 2:
                from torch.distributed.nn.functional import all_to_all_single

                x = all_to_all_single(torch.empty_like(x), x, group=inner)
            if kind == "by function":
                x = torch.relu(nn.functional.linear(x, Gathered.apply(layer.weight), Gathered.apply(layer.bias)))
            else:
                x = torch.relu(layer(x))
        return x


def reduce(parameters, group=None) -> None:
    for parameter in parameters:
        gradient = getattr(parameter.grad, "_local_tensor", parameter.grad)
        dist.all_reduce(gradient, group=group)
        gradient /= dist.get_world_size(group)


def reduce_flat(parameters, share: float = 1.0) -> None:
    gradients = [parameter.grad for parameter in parameters]
    flat = torch._utils._flatten_dense_tensors(gradients)
    dist.all_reduce(flat[: int(flat.numel() * share)], op=dist.ReduceOp.AVG)
    for gradient, part in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
        gradient.copy_(part)


def reduce_copies(parameters) -> None:
    for parameter in parameters:
        copy = parameter.grad.clone()
        dist.all_reduce(copy)
        copy /= world


def gather(parameters) -> None:
    for parameter in parameters:
        everyone = [torch.empty_like(parameter.grad) for _ in range(world)]
        dist.all_gather(everyone, parameter.grad)
        parameter.grad = torch.stack(everyone).mean(0)


def reduce_by_tree(parameters) -> None:
    first = rank // 2 * 2
    for parameter in parameters:
        dist.reduce(parameter.grad, dst=first, group=inner)
        if rank == first:
            dist.all_reduce(parameter.grad, group=outer)
        dist.broadcast(parameter.grad, src=first, group=inner)


def scatter(parameters) -> None:
    flat = torch._utils._flatten_dense_tensors([parameter.grad for parameter in parameters])
    shard.grad = torch.empty_like(shard)
    dist.reduce_scatter_tensor(shard.grad, flat)


class Gathered(torch.autograd.Function):
    """A parameter whose gradient is the mean of all ranks'."""

    @staticmethod
    def forward(ctx, parameter):
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx, gradient):
        everyone = [torch.empty_like(gradient) for _ in range(world)]
        dist.all_gather(everyone, gradient.contiguous())
        return torch.stack(everyone).mean(0)


def reduce_on_host(parameters) -> None:
    for parameter in parameters:
        copy = parameter.grad.cpu()
        dist.all_reduce(copy)
        parameter.grad = copy.to(device) / world


class Averaging(torch.optim.SGD):
    """Averages parameters when it has stepped."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)


WRITES = {
    "written back": lambda parameter, update: parameter.copy_(parameter.float().add_(update)),
    "written back alone": lambda parameter, update: parameter.copy_(parameter.float().add_(update)),
    "written back by list": lambda parameter, update: torch._foreach_copy_([parameter.add_(update)], [parameter]),
    "written where it is read": lambda parameter, update: torch.add(update, parameter.add_(update), out=parameter),
}


class Writing(torch.optim.Optimizer):
    """Reduces each gradient, and writes a parameter onto itself."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if kind != "written back alone":
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
                WRITES[kind](parameter, parameter.grad * -0.1)


class Reducing(torch.optim.Optimizer):
    """Reduces gradients by itself."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            flat = torch.cat([parameter.grad.flatten() for parameter in group["params"]])
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            start = 0
            for parameter in group["params"]:
                change = flat[start : start + parameter.numel()].view_as(parameter)
                parameter.add_(change / (change.norm() + 1e-8), alpha=-0.1)
                start += parameter.numel()


network = Network(2 if kind == "stages" else 4).to(device)
model: nn.Module = network
head = nn.Linear(WIDTH, WIDTH).to(device)
for parameter in (*network.parameters(), *head.parameters()):
    dist.broadcast(parameter.data, src=0)
if kind.startswith("ddp") or kind == "closure":
    model = DistributedDataParallel(network, gradient_as_bucket_view=kind == "ddp views")
if kind == "ddp halved hook":
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
if kind == "ddp low rank":
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
if kind == "ddp added later":
    network.extra = nn.Parameter(torch.ones(WIDTH, device=device))
    network.layers[0].register_forward_hook(lambda _, __, out: out * network.extra)
if kind.startswith("tensor"):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"layers.0": ColwiseParallel(), "layers.1": RowwiseParallel()}
    parallelize_module(network, mesh["inner"], plan)
if kind.startswith(("fsdp", "hybrid")) or kind == "tensor with data":
    from torch.distributed.fsdp import fully_shard

    along = {"hybrid": mesh, "hybrid one axis": mesh["inner"], "tensor with data": mesh["outer"]}.get(kind)
    for module in (*network.layers, network):
        fully_shard(module, mesh=along)
parameters = list(network.parameters())
trained = [*parameters, *(head.parameters() if kind.endswith("outside") else ())]
if kind == "masters":
    network.bfloat16()
    trained = [parameter.detach().float().requires_grad_() for parameter in parameters]
if kind == "sharded by hand":
    flat = torch._utils._flatten_dense_tensors([parameter.data for parameter in parameters])
    shard = nn.Parameter(flat.chunk(world)[rank].clone())
    trained = [shard]
optimizer = {
    "averaged in step": lambda: Averaging(trained, lr=0.1),
    "reduced in step": lambda: Reducing(trained),
    **dict.fromkeys(WRITES, lambda: Writing(trained, {})),
}.get(kind, lambda: torch.optim.AdamW(trained, lr=1e-3, foreach=False))()
no_sync = contextlib.ExitStack()
if kind == "ddp left open":
    no_sync.enter_context(model.no_sync())
if kind == "hooks":
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad, op=dist.ReduceOp.AVG))
if kind == "functional hooks":
    from torch.distributed._functional_collectives import all_reduce

    def average(parameter) -> None:
        parameter.grad.copy_(all_reduce(parameter.grad, "avg", dist.group.WORLD))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(average)
if kind == "in backward":
    MICRO = 1
    each = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in parameters}

    def step_one(parameter) -> None:
        dist.all_reduce(parameter.grad)
        each[parameter].step()
        parameter.grad = None

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(step_one)
if kind == "accumulated aside":
    for parameter in parameters:
        parameter.aside = torch.zeros_like(parameter)

    def put_aside(parameter) -> None:
        parameter.aside.add_(parameter.grad)
        parameter.grad = None

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(put_aside)
if kind.startswith("flat buffer"):
    start, flats = 0, torch.zeros(sum(one.numel() for one in parameters), device=device)
    for one in parameters:
        one.grad = flats[start : start + one.numel()].view_as(one)
        start += one.numel()
if kind == "warmed":
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def context(number: int):
    last = number == MICRO - 1
    if kind == "fsdp accumulate":
        model.set_requires_gradient_sync(last)
    if (kind == "ddp accumulate" and not last) or (kind == "ddp sync at first" and number):
        return model.no_sync()
    return contextlib.nullcontext()


def forward_and_backward(number: int) -> torch.Tensor:
    x = torch.randn(16, WIDTH).to(device)
    if kind == "stages":
        first, last = rank < world // 2, rank >= world // 2
        peer = rank + world // 2 if first else rank - world // 2
        if last:
            dist.recv(x, src=peer)
            x.requires_grad_()
        out = model(x)
        if first:
            dist.send(out.detach(), dst=peer)
            gradient = torch.empty_like(out)
            dist.recv(gradient, src=peer)
            out.backward(gradient)
        else:
            out.square().mean().backward()
            dist.send(x.grad, dst=peer)
        return out
    if kind == "ddp sync late":
        model.require_backward_grad_sync = False
    out = model(x.bfloat16() if kind == "masters" else x)
    loss = (head(out) if kind.endswith("outside") else out).square().mean()
    if kind == "ddp sync late" and number == MICRO - 1:
        model.require_backward_grad_sync = True
    loss.backward()
    return loss


def exchange() -> None:
    """Between the last backward and the step."""
    if kind in ("whole", "warmed", "masters"):
        reduce(parameters)
    if kind == "half":
        reduce(parameters[: len(parameters) // 2])
    if kind in ("pairs", "mesh whole"):
        reduce(parameters, inner)
    if kind in ("mesh one axis", "mesh whole", "tensor", "stages"):
        reduce(parameters, inner if kind == "stages" else outer)
    if kind == "tensor without data":
        reduce(network.layers[2:].parameters(), outer)
    if kind == "experts":
        reduce(network.layers[:2].parameters())
        reduce(network.layers[2:].parameters(), outer)
    if kind in ("flat", "flat half"):
        reduce_flat(parameters, 0.5 if kind == "flat half" else 1.0)
    if kind.startswith("flat buffer"):
        dist.all_reduce(flats[: flats.numel() // (2 if kind == "flat buffer half" else 1)])
    if kind == "accumulated aside":
        for parameter in parameters:
            dist.all_reduce(parameter.aside)
            parameter.grad, parameter.aside = parameter.aside, torch.zeros_like(parameter)
    others = {"copy": reduce_copies, "gathered": gather, "tree": reduce_by_tree, "by host": reduce_on_host}
    other = (others | {"sharded by hand": scatter}).get(kind)
    if other is not None:
        other(parameters)
    if kind == "masters":
        for master, parameter in zip(trained, parameters, strict=True):
            master.grad = parameter.grad.float()
    if kind == "noted":
        dist.all_reduce(torch.stack([parameter.grad.norm() for parameter in parameters]))


def exchange_after(step: int) -> None:
    """When it has stepped."""
    if kind == "late":
        reduce(parameters)
    if kind == "sharded by hand":
        dist.all_gather_into_tensor(flat, shard.data)
        for parameter, part in zip(parameters, torch._utils._unflatten_dense_tensors(flat, parameters), strict=True):
            parameter.data.copy_(part)
            parameter.grad = None
    if step == 1 and kind == "local":
        for parameter in parameters:
            dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)
    if step == 1 and kind == "local by difference":
        for parameter in parameters:
            difference = parameter.detach() - 1.0
            dist.all_reduce(difference, op=dist.ReduceOp.AVG)
            with torch.no_grad():
                parameter.add_(difference)
    if kind == "masters":
        for master, parameter in zip(trained, parameters, strict=True):
            parameter.data.copy_(master)
            parameter.grad = None


for step in range(3):
    for number in range(MICRO if kind != "closure" else 0):
        with context(number):
            forward_and_backward(number)
        if kind == "early" and number < MICRO - 1:
            reduce(parameters)
    exchange()
    if kind not in ("in backward", "closure") and not kind.startswith(("tensor", "fsdp outside")):
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        dist.all_reduce(getattr(norm, "_local_tensor", norm).clone())
    if kind == "closure":
        optimizer.step(lambda: forward_and_backward(0))
    elif kind != "in backward":
        optimizer.step()  # step
    exchange_after(step)
    optimizer.zero_grad(set_to_none=not kind.startswith("flat buffer"))
