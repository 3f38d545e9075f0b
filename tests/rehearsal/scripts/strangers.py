"""Small trainings in the styles of different people; the argument says which."""
# ruff: noqa - as others write

import os, sys, math, time, random, json, numpy as np, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist, tempfile
from torch.nn.parallel import DistributedDataParallel as DDP

which = sys.argv[1]
dist.init_process_group("nccl")
R, W = dist.get_rank(), dist.get_world_size()
L = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(L)
dev = torch.device("cuda", L)


def p0(*a):
    if R == 0:
        print(*a, flush=True)


def packed_lstm():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(300, 64, padding_idx=0)
            s.l = nn.LSTM(64, 128, 2, batch_first=True, bidirectional=True, dropout=0.1)
            s.o = nn.Linear(256, 5)

        def forward(s, x, n):
            p = nn.utils.rnn.pack_padded_sequence(s.e(x), n.cpu(), batch_first=True, enforce_sorted=False)
            o, (h, c) = s.l(p)
            o, ln = nn.utils.rnn.pad_packed_sequence(o, batch_first=True)
            return s.o(torch.cat([h[-2], h[-1]], -1) + o.mean(1))

    m = DDP(M().to(dev), device_ids=[L])
    o = torch.optim.RMSprop(m.parameters())
    best, bad = 1e9, 0
    for ep in range(6):
        n = torch.randint(5, 40, (16,))
        x = torch.randint(1, 300, (16, int(n.max())))
        x[torch.arange(x.size(1))[None] >= n[:, None]] = 0
        l = F.cross_entropy(m(x.to(dev), n), torch.randint(5, (16,), device=dev))
        l.backward()
        nn.utils.clip_grad_value_(m.parameters(), 1.0)
        o.step()
        o.zero_grad()
        v = l.detach()
        dist.all_reduce(v)
        v = (v / W).item()
        p0("ep", ep, v)
        if v < best - 1e-3:
            best, bad = v, 0
        else:
            bad += 1
        stop = torch.tensor(int(bad >= 2), device=dev)
        dist.broadcast(stop, 0)
        if stop.item():
            p0("early stop at", ep)
            break


def graph():
    class G(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
            s.o = nn.Linear(64, 4)

        def forward(s, x, ei, b, ng):
            for l in s.l:
                m = l(x)[ei[0]]
                agg = torch.zeros_like(x).index_add_(0, ei[1], m)
                deg = (
                    torch.zeros(x.size(0), device=x.device)
                    .scatter_add_(0, ei[1], torch.ones(ei.size(1), device=x.device))
                    .clamp_(min=1)
                )
                mx = torch.full_like(x, -1e9).scatter_reduce(0, ei[1][:, None].expand_as(m), m, "amax")
                x = F.relu(x + agg / deg[:, None] + mx)
            al = torch.zeros(ng, device=x.device).index_add(0, b, x.sum(1))
            a = torch.sparse_coo_tensor(ei, torch.ones(ei.size(1), device=x.device), (x.size(0),) * 2).coalesce()
            x = torch.sparse.mm(a, x)
            return s.o(torch.zeros(ng, 64, device=x.device).index_reduce(0, b, x, "mean")) + al[:, None]

    m = DDP(G().to(dev), device_ids=[L])
    o = torch.optim.Adam(m.parameters())
    for i in range(3):
        n = random.randint(50, 90)
        e = torch.randint(0, n, (2, 400))
        e = e[:, e[0] != e[1]]
        e = torch.unique(e, dim=1).to(dev)
        b = torch.sort(torch.randint(0, 8, (n,)))[0].to(dev)
        k = torch.randperm(e.size(1), device=dev)[: int(e.size(1) * 0.9)]
        loss = F.cross_entropy(m(torch.randn(n, 64, device=dev), e[:, k], b, 8), torch.randint(4, (8,), device=dev))
        loss.backward()
        o.step()
        o.zero_grad()
        p0("graph", i, loss.item(), int(b.max()) + 1)


def detection():
    from scipy.optimize import linear_sum_assignment

    class D(nn.Module):
        def __init__(s):
            super().__init__()
            s.b = nn.Sequential(nn.Conv2d(3, 32, 16, 16), nn.GroupNorm(8, 32), nn.GELU())
            s.t = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
            s.p = nn.Linear(32, 64)
            s.q = nn.Parameter(torch.randn(20, 64))
            s.c = nn.Linear(64, 11)
            s.x = nn.Linear(64, 4)

        def forward(s, im):
            f = s.p(s.b(im).flatten(2).mT)
            h = s.t(f, s.q.expand(im.size(0), -1, -1))
            return s.c(h), s.x(h).sigmoid()

    m = DDP(D().to(dev), device_ids=[L])
    o = torch.optim.AdamW(m.parameters(), 1e-4)
    for i in range(3):
        ts = [
            (torch.randint(10, (n,)).to(dev), torch.rand(n, 4).to(dev))
            for n in [random.randint(1, 6) for _ in range(4)]
        ]
        c, x = m(torch.randn(4, 3, 128, 128, device=dev))
        with torch.no_grad():
            C = -c.flatten(0, 1).softmax(-1)[:, torch.cat([t[0] for t in ts])] + 5 * torch.cdist(
                x.flatten(0, 1), torch.cat([t[1] for t in ts]), p=1
            )
            C = C.view(4, 20, -1).cpu()
            idx = [linear_sum_assignment(ci[k]) for k, ci in enumerate(C.split([len(t[0]) for t in ts], -1))]
        bi = torch.cat([torch.full((len(a),), k) for k, (a, _) in enumerate(idx)])
        si = torch.cat([torch.as_tensor(a) for a, _ in idx])
        tc = torch.full((4, 20), 10, dtype=torch.long, device=dev)
        tc[bi, si] = torch.cat([t[0][j] for t, (_, j) in zip(ts, idx)])
        nb = torch.as_tensor([sum(len(t[0]) for t in ts)], dtype=torch.float, device=dev)
        dist.all_reduce(nb)
        nb = torch.clamp(nb / W, min=1).item()
        lb = (
            F.l1_loss(
                x[bi, si], torch.cat([t[1][torch.as_tensor(j)] for t, (_, j) in zip(ts, idx)]), reduction="none"
            ).sum()
            / nb
        )
        lc = F.cross_entropy(c.transpose(1, 2), tc)
        d = {"ce": lc, "bbox": lb}
        names = sorted(d)
        v = torch.stack([d[n] for n in names])
        dist.all_reduce(v)
        v /= W
        loss = lc + 5 * lb
        if not math.isfinite(loss.item()):
            sys.exit(1)
        o.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 0.1)
        o.step()
        p0(i, {k: round(float(a), 4) for k, a in zip(names, v)})
    m.eval()
    with torch.no_grad():
        c, x = m(torch.randn(2, 3, 128, 128, device=dev))
        s, l = c.softmax(-1)[..., :-1].max(-1)
        keep = s > 0.5
        res = [{"n": int(k.sum()), "b": xx[k].cpu().numpy().shape} for k, xx in zip(keep, x)]
        allr = [None] * W
        dist.all_gather_object(allr, res)
        p0("eval", len(allr), res)


def find_batch():
    m = nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096)).to(dev)
    bs = 1 << 22
    tries = []
    while bs:
        try:
            x = torch.randn(bs, 4096, device=dev)
            m(x).square().mean().backward()
            break
        except torch.cuda.OutOfMemoryError as e:
            tries.append(bs)
            bs //= 2
            m.zero_grad()
            x = None
            torch.cuda.empty_cache()
        except RuntimeError as e:
            if "out of memory" in str(e):
                bs //= 2
            else:
                raise
    b = torch.tensor(bs, device=dev)
    dist.all_reduce(b, op=dist.ReduceOp.MIN)
    p0("batch", b.item(), "failed", tries)
    m.zero_grad()
    x = None
    m = DDP(m, device_ids=[L])
    o = torch.optim.SGD(m.parameters(), 0.1)
    for i in range(2):
        m(torch.randn(min(int(b), 1024), 4096, device=dev)).square().mean().backward()
        o.step()
        o.zero_grad()
        p0("step", i)


def ragged():
    try:
        from flash_attn import flash_attn_varlen_func

        has = True
    except ImportError:
        has = False
    m = (
        nn.ModuleDict(
            {
                "e": nn.Embedding(500, 128),
                "qkv": nn.Linear(128, 384),
                "o": nn.Linear(128, 128),
                "h": nn.Linear(128, 500),
            }
        )
        .to(dev)
        .bfloat16()
    )
    o = torch.optim.AdamW(m.parameters(), fused=True)
    for i in range(3):
        seqs = [torch.randint(500, (random.randint(10, 60),)) for _ in range(6)]
        ids = torch.cat(seqs).to(dev)
        cu = F.pad(torch.tensor([len(s) for s in seqs]).cumsum(0), (1, 0)).int().to(dev)
        h = m["e"](ids)
        q, k, v = m["qkv"](h).view(-1, 3, 4, 32).unbind(1)
        nj = lambda t: torch.nested.nested_tensor_from_jagged(t, cu.long()).transpose(1, 2)
        a = (
            F.scaled_dot_product_attention(nj(q), nj(k), nj(v), is_causal=True)
            .transpose(1, 2)
            .values()
            .reshape(-1, 128)
        )
        x = m["h"](h + m["o"](a))
        l = F.cross_entropy(x.float()[:-1], ids[1:])
        l.backward()
        for p in m.parameters():
            dist.all_reduce(p.grad)
        o.step()
        o.zero_grad()
        p0("varlen", i, has, l.item(), int(cu[-1]))
    nt = torch.nested.nested_tensor(
        [torch.randn(n, 16, device=dev) for n in (3, 5, 2)], layout=torch.jagged, requires_grad=True
    )
    lin = nn.Linear(16, 16).to(dev)
    y = F.layer_norm(lin(nt), (16,))
    pd = torch.nested.to_padded_tensor(y, 0.0)
    pd.sum().backward()
    p0("nested", pd.shape, nt.grad is not None)
    x, xs = (
        torch.nested.nested_tensor([torch.randn(n, 4) for n in (3, 5)], layout=torch.jagged).to(dev),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).to(dev).eval(),
    )
    p0(
        "enc",
        xs(
            torch.randn(2, 5, 16, device=dev), src_key_padding_mask=torch.zeros(2, 5, dtype=torch.bool, device=dev)
        ).shape,
        [t.shape for t in x.unbind()],
    )


def recompute():
    from torch.utils.checkpoint import (
        checkpoint,
        checkpoint_sequential,
        create_selective_checkpoint_contexts,
        CheckpointPolicy,
    )

    class Sq(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            ctx.n = 2
            return x * w

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * w, (g * x).sum(0)

    class B(nn.Module):
        def __init__(s, d=128):
            super().__init__()
            s.a, s.b, s.w = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Parameter(torch.ones(d))

        def forward(s, x):
            return Sq.apply(x + s.b(F.dropout(F.gelu(s.a(x)), 0.1, s.training)), s.w)

    pol = lambda ctx, op, *a, **k: (
        CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE
    )
    bs = nn.ModuleList([B() for _ in range(6)]).to(dev)
    m = DDP(bs, device_ids=[L], static_graph=True)
    o = torch.optim.NAdam(bs.parameters())

    class All(nn.Module):
        def __init__(s):
            super().__init__()
            s.bs = bs

        def forward(s, x):
            x = checkpoint(s.bs[0], x, use_reentrant=True)
            x = checkpoint(s.bs[1], x, use_reentrant=False)
            x = checkpoint(
                s.bs[2], x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(pol)
            )
            x = checkpoint_sequential(list(s.bs[3:5]), 2, x, use_reentrant=False)
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                return s.bs[5](x)

    m = DDP(All(), device_ids=[L], static_graph=True)
    for i in range(4):
        with torch.amp.autocast("cuda", torch.float16):
            l = m(torch.randn(32, 64, 128, device=dev, requires_grad=True)).float().pow(2).mean()
        if i % 2 == 0:
            with m.no_sync():
                (l / 2).backward()
        else:
            (l / 2).backward()
            o.step()
            o.zero_grad()
            p0("ck", i, l.item())


def gan_average():
    G = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.LeakyReLU(0.2), nn.Linear(256, 784), nn.Tanh())
    D = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(784, 256)),
        nn.LeakyReLU(0.2),
        nn.utils.parametrizations.weight_norm(nn.Linear(256, 1)),
    )
    import copy

    G, D = nn.SyncBatchNorm.convert_sync_batchnorm(G).to(dev), D.to(dev)
    E = copy.deepcopy(G).eval().requires_grad_(False)
    G, D = DDP(G, device_ids=[L], broadcast_buffers=False), DDP(D, device_ids=[L])
    og, od = torch.optim.Adam(G.parameters(), 2e-4, (0.5, 0.999)), torch.optim.Adam(D.parameters(), 2e-4, (0.5, 0.999))
    pl = torch.zeros([], device=dev)
    betas = torch.linspace(1e-4, 0.02, 1000)
    ac = torch.cumprod(1 - betas, 0).to(dev)
    for i in range(4):
        x = torch.rand(32, 784, device=dev)
        z = torch.randn(32, 64, device=dev)
        t = torch.randint(0, 1000, (32,), device=dev)
        x = ac[t].sqrt()[:, None] * x + (1 - ac[t]).sqrt()[:, None] * torch.randn_like(x)
        D.requires_grad_(True)
        ld = F.softplus(-D(x)).mean() + F.softplus(D(G(z).detach())).mean()
        od.zero_grad()
        ld.backward()
        od.step()
        D.requires_grad_(False)
        lg = F.softplus(-D(G(z))).mean()
        og.zero_grad()
        lg.backward()
        for p in G.parameters():
            if p.grad is not None:
                torch.nan_to_num(p.grad, nan=0, posinf=1e5, neginf=-1e5, out=p.grad)
        og.step()
        pl.lerp_(lg.detach(), 0.01)
        with torch.no_grad():
            for a, b in zip(E.parameters(), G.module.parameters()):
                a.copy_(b.lerp(a, 0.999))
            for a, b in zip(E.buffers(), G.module.buffers()):
                a.copy_(b)
        st = torch.stack([ld.detach(), lg.detach()])
        out = [torch.empty_like(st) for _ in range(W)]
        dist.all_gather(out, st)
        p0(
            "gan",
            i,
            torch.stack(out).mean(0).tolist(),
            pl.item(),
            (E(z) * 127.5 + 128).clamp(0, 255).to(torch.uint8).cpu().numpy().shape,
        )


def init():
    return dev


def net(d=64):
    return nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))


def steps(m, o, dev, n=3, d=64):
    for i in range(n):
        l = m(torch.randn(8, d, device=dev)).pow(2).mean()
        l.backward()
        o.step()
        o.zero_grad()
        p0("step", i, l.item())


def sharded_optimizer():
    dev = init()
    from torch.distributed.optim import ZeroRedundancyOptimizer as Z

    m = DDP(net().to(dev), [L])
    o = Z(m.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3, parameters_as_bucket_view=True)
    sch = torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)
    steps(m, o, dev)
    sch.step()
    o.consolidate_state_dict(to=0)
    if R == 0:
        torch.save(o.state_dict(), os.path.join(tempfile.gettempdir(), "z.pt"))
        print("zero state", len(o.state_dict()["state"]))
    dist.barrier()


def sharded_while_reduced():
    dev = init()
    from torch.distributed.optim import ZeroRedundancyOptimizer as Z
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    m = DDP(net().to(dev), [L], static_graph=True, gradient_as_bucket_view=True)
    o = Z(m.parameters(), optimizer_class=torch.optim.Adam, overlap_with_ddp=True, lr=1e-3)
    m.register_comm_hook(None, hook_with_zero_step(allreduce_hook, m, o))
    steps(m, o, dev, 5)
    p0("zero overlap")


def metrics():
    dev = init()
    m = DDP(nn.Linear(64, 10).to(dev), [L])
    o = torch.optim.SGD(m.parameters(), 0.1)
    best = -1.0
    bad = 0
    stop = torch.zeros(1, dtype=torch.int32, device=dev)
    ds = torch.utils.data.TensorDataset(torch.randn(100, 64), torch.randint(0, 10, (100,)))
    dl = torch.utils.data.DataLoader(ds, 8, sampler=torch.utils.data.DistributedSampler(ds, shuffle=False))
    for ep in range(6):
        m.train()
        l = F.cross_entropy(m(torch.randn(8, 64, device=dev)), torch.randint(0, 10, (8,), device=dev))
        l.backward()
        o.step()
        o.zero_grad()
        m.eval()
        c = torch.zeros(1, device=dev)
        n = torch.zeros(1, device=dev)
        preds = []
        lost = 0.0
        with torch.inference_mode():
            for x, y in dl:
                z = m(x.to(dev))
                c += (z.argmax(-1).cpu() == y).sum().to(dev)
                n += len(y)
                preds.append(z.softmax(-1))
                lost += F.cross_entropy(z, y.to(dev), reduction="sum")
        p = torch.cat(preds)
        out = [torch.empty_like(p) for _ in range(W)]
        dist.all_gather(out, p)
        p = torch.cat(out)[: len(ds)]
        every = [None] * W
        dist.all_gather_object(every, {"rank": R, "n": int(n), "loss": float(lost)})
        tot = sum(e["n"] for e in every)
        avg = sum(e["loss"] for e in every) / tot
        dist.reduce(c, 0)
        dist.all_reduce(n)
        if R == 0:
            acc = (c / n).item()
            bad = 0 if acc > best else bad + 1
            best = max(best, acc)
            stop.fill_(int(bad >= 2))
        dist.broadcast(stop, src=0)
        p0("eval", ep, tuple(p.shape), tot, round(avg, 3), best)
        if stop.item() == 1:
            p0("stopped at", ep)
            break


def resumed_epochs():
    dev = init()
    class_ = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 10, (512,)))
    s = torch.utils.data.DistributedSampler(class_, shuffle=True, drop_last=True, seed=3)

    def seed_worker(i):
        np.random.seed(torch.initial_seed() % 2**32)
        random.seed(i)

    dl = torch.utils.data.DataLoader(
        class_,
        8,
        sampler=s,
        num_workers=2,
        persistent_workers=True,
        pin_memory=True,
        prefetch_factor=4,
        worker_init_fn=seed_worker,
    )
    m = DDP(nn.Linear(64, 10).to(dev), [L])
    o = torch.optim.SGD(m.parameters(), 0.1)
    start = 0
    snap = os.path.join(tempfile.gettempdir(), "snapshot.pt")
    if os.path.exists(snap):
        d = torch.load(snap, map_location=f"cuda:{L}")
        m.module.load_state_dict(d["m"])
        start = d["ep"]
    for ep in range(start, 2):
        s.set_epoch(ep)
        m.train()
        tot = torch.zeros(3, device=dev)
        for i, (x, y) in enumerate(dl):
            x, y = x.to(dev, non_blocking=True), y.to(dev, non_blocking=True)
            out = m(x)
            l = F.cross_entropy(out, y)
            o.zero_grad()
            l.backward()
            o.step()
            tot += torch.stack([l.detach() * len(y), (out.argmax(1) == y).sum(), torch.tensor(len(y), device=dev)])
        dist.all_reduce(tot)
        p0(f"epoch {ep} loss {tot[0] / tot[2]:.3f} acc {100 * tot[1] / tot[2]:.1f}% n {int(tot[2])}")
        if R == 0:
            torch.save({"m": m.module.state_dict(), "ep": ep + 1}, snap)
        dist.barrier()


def routed_tokens():
    dev = init()
    E = W
    gate = nn.Linear(64, E).to(dev)
    ex = net().to(dev)
    o = torch.optim.Adam([*gate.parameters(), *ex.parameters()])
    for i in range(2):
        x = torch.randn(128, 64, device=dev)
        w, idx = gate(x).softmax(-1).max(-1)
        order = idx.argsort()
        cnt = torch.bincount(idx, minlength=E)
        got = torch.empty_like(cnt)
        dist.all_to_all_single(got, cnt)
        si, so = cnt.tolist(), got.tolist()
        y = x.new_empty(sum(so), 64)
        dist.all_to_all_single(y, x[order].contiguous(), so, si)
        y = ex(y)
        back = torch.empty_like(x)
        import torch.distributed.nn.functional as DF

        back = DF.all_to_all_single(back, y, si, so)
        out = torch.zeros_like(x).index_add(0, order, back) * w[:, None]
        l = out.pow(2).mean()
        l.backward()
        [dist.all_reduce(p.grad) for p in gate.parameters()]
        o.step()
        o.zero_grad()
        p0("moe", i, l.item(), sum(si))


globals()[which]()
dist.barrier(device_ids=[L])
p0("done", which)
dist.destroy_process_group()
