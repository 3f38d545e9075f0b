"""Every collective that torch.distributed has, objects included, synchronous, asynchronous and functional."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dnn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


@record
def main():
    dist.init_process_group("nccl", timeout=timedelta(minutes=5))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    assert dist.is_initialized() and dist.get_backend() == "nccl"
    dev = "cuda"
    x = torch.arange(4.0, device=dev) + rank

    a = x.clone()
    work = dist.all_reduce(a, async_op=True)
    work.wait()
    dist.all_reduce(x.clone(), async_op=True).get_future().wait()
    dist.all_reduce(x.clone(), async_op=True).get_future().then(lambda future: future.value()[0].div_(world)).wait()
    several = [dist.all_reduce(x.clone(), async_op=True).get_future() for _ in range(2)]
    torch.futures.collect_all(several).wait()
    torch.futures.collect_all([dist.all_reduce(x.clone(), async_op=True).get_future()]).then(lambda all_of: None).wait()
    torch.futures.wait_all([dist.all_reduce(x.clone(), async_op=True).get_future()])
    dist.all_reduce(x.clone(), async_op=True).get_future().add_done_callback(lambda future: future.value())
    dist.all_reduce(x.clone(), async_op=True).synchronize()
    pieces = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(pieces, x)
    whole = torch.empty(4 * world, device=dev)
    dist.all_gather_into_tensor(whole, x)
    part = torch.empty(4, device=dev)
    dist.reduce_scatter_tensor(part, whole)
    dist.reduce_scatter(part, list(whole.chunk(world)), op=dist.ReduceOp.MAX)
    dist.broadcast(x, src=0)
    dist.reduce(x, dst=0, op=dist.ReduceOp.SUM)
    got = [torch.empty_like(x) for _ in range(world)] if rank == 0 else None
    dist.gather(x, got, dst=0)
    dist.scatter(x, list(whole.chunk(world)) if rank == 0 else None, src=0)
    dist.all_to_all_single(torch.empty(4 * world, device=dev), whole)
    outs = [torch.empty(4, device=dev) for _ in range(world)]
    dist.all_to_all(outs, list(whole.chunk(world)))
    nxt, prev = (rank + 1) % world, (rank - 1) % world
    sent, received = torch.full((8,), float(rank), device=dev), torch.empty(8, device=dev)
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, nxt), dist.P2POp(dist.irecv, received, prev)]):
        request.wait()
    if rank == 0:
        dist.send(sent, 1)
    elif rank == 1:
        dist.recv(received, 0)
    dist.barrier()
    dist.barrier(device_ids=[torch.cuda.current_device()])

    everyone = [None] * world
    dist.all_gather_object(everyone, {"rank": rank, "host": os.uname().nodename})
    assert len(everyone) == world and all(isinstance(e, dict) for e in everyone)
    said = ["from zero", 42] if rank == 0 else [None, None]
    dist.broadcast_object_list(said, src=0)
    assert said == ["from zero", 42], said
    gathered = [None] * world if rank == 0 else None
    dist.gather_object(rank * rank, gathered, dst=0)
    mine = [None]
    dist.scatter_object_list(mine, [f"piece {i}" for i in range(world)] if rank == 0 else None, src=0)
    assert len(mine) == 1

    half = dist.new_group(list(range(0, world, 2)))
    local, _ = dist.new_subgroups(group_size=min(8, world))
    if rank % 2 == 0:
        dist.all_reduce(x, group=half)
        assert dist.get_world_size(half) == (world + 1) // 2
    dist.all_reduce(x, op=dist.ReduceOp.AVG, group=local)
    with dist._coalescing_manager(group=None, device=torch.device("cuda"), async_ops=True) as cm:
        for t in (torch.ones(16, device=dev), torch.ones(16, device=dev)):
            dist.all_reduce(t)
    cm.wait()

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(dev))

    def summed(_, bucket):
        reduced = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return reduced.then(lambda future: future.value()[0].div_(world))

    model.register_comm_hook(None, summed)
    model(x).sum().backward()

    y = funcol.all_reduce(x, "sum", dist.group.WORLD)
    y = funcol.all_gather_tensor(y, 0, dist.group.WORLD)
    y = funcol.reduce_scatter_tensor(y, "avg", 0, dist.group.WORLD)
    w = torch.randn(4, device=dev, requires_grad=True)
    torch.cat(dnn.all_gather(w)).square().sum().backward()
    dnn.all_reduce(w.exp()).sum().backward()
    mesh = dist.init_device_mesh("cuda", (world,))
    d = distribute_tensor(torch.randn(world * 2, 8, device=dev), mesh, [Shard(0)])
    e = DTensor.from_local(torch.ones(3, device=dev), mesh, [Partial()]).redistribute(placements=[Replicate()])
    total = (d @ d.T).redistribute(placements=[Replicate()]).to_local().sum()
    if rank == 0:
        print(f"sum {a.sum().item():.1f}, everyone {len(everyone)}, last square {gathered[-1]}, {y.shape}, {e.shape}, "
              f"{w.grad.shape} total {total.item():.2f}", flush=True)  # fmt: skip
        print(f"received from {received[0].item():.0f}", flush=True)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"key-{rank}", "value")
    assert store.get(f"key-{rank}") == b"value"
    dist.monitored_barrier if False else None
    dist.destroy_process_group()
    if rank == 0:
        print("all collectives done", flush=True)


if __name__ == "__main__":
    main()
