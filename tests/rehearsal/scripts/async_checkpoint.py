"""FSDP2 and TP with a parallel loss, saved while it trains."""
# ruff: noqa - as others write

import os, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist, torch.distributed.checkpoint as dcp, tempfile
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy, register_fsdp_forward_method
from torch.distributed.tensor import Replicate, Shard, DTensor, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    PrepareModuleInput,
    parallelize_module,
    loss_parallel,
)
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as ptd
from torch.distributed.checkpoint.state_dict import (
    get_state_dict,
    set_state_dict,
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    w = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (w // 4, 4), mesh_dim_names=("dp", "tp"))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = dist.get_rank()

    class B(nn.Module):
        def __init__(s, d=512, h=8):
            super().__init__()
            s.h = h
            s.n1 = nn.RMSNorm(d)
            s.n2 = nn.RMSNorm(d)
            s.q = nn.Linear(d, d, bias=False)
            s.k = nn.Linear(d, d, bias=False)
            s.v = nn.Linear(d, d, bias=False)
            s.o = nn.Linear(d, d, bias=False)
            s.w1 = nn.Linear(d, 4 * d, bias=False)
            s.w2 = nn.Linear(4 * d, d, bias=False)
            s.w3 = nn.Linear(d, 4 * d, bias=False)

        def forward(s, x, freqs):
            y = s.n1(x)
            y = s.att(y, freqs)
            x = x + y
            z = s.n2(x)
            return x + s.ff(z)

        def att(s, y, freqs):
            q, k, v = (l(y).unflatten(-1, (-1, 64)).transpose(1, 2) for l in (s.q, s.k, s.v))
            q, k = rope(q, freqs), rope(k, freqs)
            return s.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

        def ff(s, z):
            return s.w2(F.silu(s.w1(z)) * s.w3(z))

    def rope(x, f):
        xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(xc * f[: x.shape[2]]).flatten(3).type_as(x)

    class T(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(2048, 512)
            s.layers = nn.ModuleDict({str(i): B() for i in range(2)})
            s.n = nn.RMSNorm(512)
            s.out = nn.Linear(512, 2048, bias=False)
            s.register_buffer("f", s.freqs(), persistent=False)

        def freqs(s):
            t = torch.outer(torch.arange(1024), 1.0 / 10000 ** (torch.arange(0, 64, 2)[:32].float() / 64))
            return torch.polar(torch.ones_like(t), t)

        def forward(s, x):
            h = s.e(x)
            for l in s.layers.values():
                h = l(h, s.f)
            return s.out(s.n(h))

        def init_weights(s):
            with torch.device("cuda"):
                s.f = s.freqs()
            for p in s.parameters():
                if p.dim() > 1:
                    nn.init.trunc_normal_(p, std=0.02)
                else:
                    nn.init.ones_(p)

    with torch.device("meta"):
        m = T()
    tp = mesh["tp"]
    parallelize_module(
        m,
        tp,
        {
            "e": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "n": SequenceParallel(),
            "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        },
    )
    for l in m.layers.values():
        parallelize_module(
            l,
            tp,
            {
                "n1": SequenceParallel(),
                "n2": SequenceParallel(),
                "q": ColwiseParallel(input_layouts=Shard(1)),
                "k": ColwiseParallel(input_layouts=Shard(1)),
                "v": ColwiseParallel(input_layouts=Shard(1)),
                "o": RowwiseParallel(output_layouts=Shard(1)),
                "w1": ColwiseParallel(input_layouts=Shard(1)),
                "w3": ColwiseParallel(input_layouts=Shard(1)),
                "w2": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
    for k in list(m.layers):
        m.layers[k] = ptd(m.layers[k], preserve_rng_state=False)
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for l in m.layers.values():
        fully_shard(l, mesh=mesh["dp"], mp_policy=mp, reshard_after_forward=True)
    fully_shard(m, mesh=mesh["dp"], mp_policy=mp)
    m.to_empty(device="cuda")
    with torch.no_grad():
        m.init_weights()
    opt = torch.optim.AdamW(m.parameters(), 3e-4, foreach=True)

    class App(Stateful):
        def state_dict(s):
            a, b = get_state_dict(m, opt)
            return {"model": a, "optim": b}

        def load_state_dict(s, d):
            set_state_dict(m, opt, model_state_dict=d["model"], optim_state_dict=d["optim"])

    fut = None
    with tempfile.TemporaryDirectory() as folder:
        for step in range(3):
            x = torch.randint(0, 2048, (2, 1025), device="cuda")
            x, y = x[:, :-1], x[:, 1:]
            with loss_parallel():
                p = m(x)
                loss = F.cross_entropy(p.flatten(0, 1), y.flatten())
                del p
                loss.backward()
            n = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0, foreach=True)
            if isinstance(n, DTensor):
                n = n.full_tensor()
            opt.step()
            opt.zero_grad()
            l = loss.full_tensor() if isinstance(loss, DTensor) else loss
            if rank == 0:
                print(f"step: {step} loss: {l.item():7.4f} norm {n.item():.4f}")
            if step == 1:
                if fut is not None:
                    fut.result()
                fut = dcp.async_save({"app": App()}, checkpoint_id=f"{folder}/step-{step}")
        fut.result()
        dcp.load({"app": App()}, checkpoint_id=f"{folder}/step-1")
        full = get_model_state_dict(m, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        print(rank, "exported", len(full))
    dist.destroy_process_group()


main()
