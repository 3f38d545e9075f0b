"""Ways to name a device and to move things: default devices, types, copies to and fro, storages, CUDA graphs, DataParallel."""

import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn


def main():
    local = int(os.environ["LOCAL_RANK"])
    assert torch.cuda.is_available(), "needs a GPU"
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        raise SystemExit("not enough GPUs")
    device = torch.device(f"cuda:{local}")
    torch.cuda.set_device(device)
    torch.accelerator.set_device_index(local)
    dist.init_process_group(backend="nccl", device_id=device)
    print(f"rank {dist.get_rank()} on {torch.cuda.get_device_name(device)} "
          f"({torch.accelerator.current_accelerator()}, {torch.backends.cudnn.version()})", flush=True)  # fmt: skip
    with torch.device("cuda"):
        a = torch.zeros(4, 4)
        layer = nn.Linear(4, 4)
    assert a.is_cuda and layer.weight.is_cuda and a.get_device() == local, a.device
    assert a.device == device and a.device.type == "cuda"
    b = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    c = torch.from_numpy(np.eye(2, dtype=np.float32)).to(device)
    assert (b @ c).cpu().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    d = torch.as_tensor([1, 2, 3]).cuda(local).long().float().half().to(torch.bfloat16).double()
    assert d.sum().item() == 6.0
    e = torch.empty(3, pin_memory=True)
    e.fill_(2.0)
    f = torch.empty(3, device="cuda")
    f.copy_(e, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    assert float(f.sum()) == 6.0
    assert f.untyped_storage().nbytes() == 12 and f.data_ptr() is not None and f.element_size() == 4
    g = torch.cuda.FloatTensor(5).fill_(1.0) if hasattr(torch.cuda, "FloatTensor") else None
    h = f.new_tensor([7.0, 8.0])
    assert h.device.type == "cuda" and h[1].item() == 8.0
    i = torch.arange(6, device="cuda").reshape(2, 3)
    assert i.max().item() == 5 and int(i[1, 2]) == 5 and i.sum().cpu().numpy() == 15
    j = torch.linspace(0, 1, 5).pin_memory().to("cuda", non_blocking=True)
    assert abs(j[-1].item() - 1.0) < 1e-6
    for pinned in (torch.tensor([1, 2], pin_memory=True), j.cpu().new_tensor([1, 2], pin_memory=True)):
        assert pinned.is_pinned() and pinned.to("cuda", non_blocking=True).sum().item() == 3
    with torch.device("cuda"):
        assert torch.tensor([1.0]).is_cuda and torch.zeros(1).is_cuda
    k = torch.full_like(i, 3)
    k[0] += 1
    k[k > 3] = 0
    assert k.tolist() == [[0, 0, 0], [3, 3, 3]], k.tolist()
    for value in i.flatten():
        int(value)
    generator = torch.Generator(device="cuda")
    generator.manual_seed(5)
    n = torch.randn(4, generator=generator, device="cuda")
    torch.cuda.manual_seed(1)
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    with torch.random.fork_rng(devices=[local]):
        torch.manual_seed(3)
    with torch.cuda.device(local):
        m = nn.DataParallel(nn.Linear(8, 8).cuda(), device_ids=[local])
        m(torch.randn(2, 8, device="cuda")).sum().backward()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    static = torch.randn(8, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            net(static).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    net.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        out = net(static)
        out.sum().backward()
    for _ in range(2):
        static.copy_(torch.randn(8, 64, device="cuda"))
        graph.replay()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.step()
    torch.set_default_device("cuda")
    o = torch.ones(2)
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    moved = net.to("cpu")
    assert next(moved.parameters()).device.type == "cpu"
    net = net.to(device).half().float().bfloat16()
    assert next(net.parameters()).dtype == torch.bfloat16
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert event.query()
    del a, b, c
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    torch.cuda.reset_max_memory_allocated()
    dist.all_reduce(f)
    print(
        f"rank {dist.get_rank()} ok: {g is None or g.numel()} {n.shape} {o.device} {torch.cuda.list_gpu_processes() is not None}",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
