"""A ResNet as on ImageNet: mixup, moving average, scaler, resumed from its checkpoint, metrics reduced."""
# ruff: noqa - as others write

import argparse, copy, os, random, shutil, subprocess, time, tempfile
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.utils.data import Dataset, DataLoader
from torch.utils.data.distributed import DistributedSampler

ap = argparse.ArgumentParser()
ap.add_argument("--epochs", type=int, default=2)
ap.add_argument("-b", type=int, default=16)
ap.add_argument("--resume", default="latest.pth")
ap.add_argument("--mixup", type=float, default=0.2)
args = ap.parse_args()
try:
    git = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], stderr=subprocess.DEVNULL, text=True).strip()
except Exception:
    git = "unknown"


class Fake(Dataset):
    def __len__(self):
        return 16 * 16 * 3

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.rand(3, 64, 64, generator=g), i % 100


class Basic(nn.Module):
    def __init__(s, i, o, st):
        super().__init__()
        s.c1 = nn.Conv2d(i, o, 3, st, 1, bias=False)
        s.b1 = nn.BatchNorm2d(o)
        s.c2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        s.b2 = nn.BatchNorm2d(o)
        s.d = nn.Sequential(nn.Conv2d(i, o, 1, st, bias=False), nn.BatchNorm2d(o)) if st != 1 or i != o else None
        s.relu = nn.ReLU(inplace=True)

    def forward(s, x):
        y = s.b2(s.c2(s.relu(s.b1(s.c1(x)))))
        y += x if s.d is None else s.d(x)
        return s.relu(y)


class Net(nn.Module):
    def __init__(s, n=100):
        super().__init__()
        s.stem = nn.Sequential(
            nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        )
        s.body = nn.Sequential(Basic(32, 32, 1), Basic(32, 64, 2), Basic(64, 128, 2))
        s.pool = nn.AdaptiveAvgPool2d(1)
        s.fc = nn.Linear(128, n)
        for m in s.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(s, x):
        return s.fc(torch.flatten(s.pool(s.body(s.stem(x))), 1))


class EMA(torch.optim.swa_utils.AveragedModel):
    def __init__(self, m, decay, device):
        super().__init__(m, device, lambda a, p, n: decay * a + (1 - decay) * p, use_buffers=True)


class Meter:
    def __init__(s):
        s.sum = s.count = 0

    def update(s, v, n=1):
        s.sum += v * n
        s.count += n

    @property
    def avg(s):
        return s.sum / max(1, s.count)

    def all_reduce(s):
        t = torch.tensor([s.sum, s.count], dtype=torch.float32, device="cuda")
        dist.all_reduce(t, dist.ReduceOp.SUM, async_op=False)
        s.sum, s.count = t.tolist()


def accuracy(out, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        _, pred = out.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", init_method="env://")
    rank = dist.get_rank()
    if rank == 0:
        print("git", git, "| torch", torch.__version__, "| gpus", torch.cuda.device_count())
    model = Net().cuda(local).to(memory_format=torch.channels_last)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[local])
    ema = EMA(model, 0.999, torch.device("cuda", local))
    crit = nn.CrossEntropyLoss(label_smoothing=0.1).cuda(local)
    opt = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    sched = torch.optim.lr_scheduler.SequentialLR(
        opt,
        [
            torch.optim.lr_scheduler.LinearLR(opt, 0.01, total_iters=1),
            torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs),
        ],
        milestones=[1],
    )
    scaler = torch.cuda.amp.GradScaler()
    start, best = 0, 0.0
    path = os.path.join(tempfile.gettempdir(), args.resume)
    for attempt in range(2):
        if os.path.isfile(path):
            ck = torch.load(path, map_location=f"cuda:{local}", weights_only=False)
            start = ck["epoch"]
            best = ck["best"]
            ddp.load_state_dict(ck["state_dict"])
            opt.load_state_dict(ck["optimizer"])
            scaler.load_state_dict(ck["scaler"])
            sched.load_state_dict(ck["sched"])
            print(f"=> loaded checkpoint (epoch {start}) best {best}")
            break
        if rank == 0:
            torch.save(
                {
                    "epoch": 0,
                    "best": best,
                    "state_dict": ddp.state_dict(),
                    "optimizer": opt.state_dict(),
                    "scaler": scaler.state_dict(),
                    "sched": sched.state_dict(),
                },
                path,
            )
        dist.barrier()
    ds = Fake()
    samp = DistributedSampler(ds, shuffle=True)
    val_samp = DistributedSampler(ds, shuffle=False, drop_last=True)
    dl = DataLoader(
        ds,
        args.b,
        sampler=samp,
        num_workers=2,
        pin_memory=True,
        drop_last=True,
        persistent_workers=True,
        prefetch_factor=2,
    )
    vl = DataLoader(ds, args.b, sampler=val_samp, num_workers=0)
    for epoch in range(start, args.epochs):
        samp.set_epoch(epoch)
        ddp.train()
        losses, bt = Meter(), Meter()
        end = time.time()
        for i, (x, t) in enumerate(dl):
            x = x.cuda(local, non_blocking=True).to(memory_format=torch.channels_last)
            t = t.cuda(local, non_blocking=True)
            lam = np.random.beta(args.mixup, args.mixup)
            perm = torch.randperm(x.size(0), device=x.device)
            with torch.cuda.amp.autocast():
                out = ddp(lam * x + (1 - lam) * x[perm])
                loss = lam * crit(out, t) + (1 - lam) * crit(out, t[perm])
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            ema.update_parameters(model)
            losses.update(loss.item(), x.size(0))
            bt.update(time.time() - end)
            end = time.time()
            if rank == 0:
                print(
                    f"Epoch: [{epoch}][{i}/{len(dl)}] loss {losses.avg:.3f} lr {opt.param_groups[0]['lr']:.4f} scale {scaler.get_scale()}"
                )
        sched.step()
        ddp.eval()
        top1, top5 = Meter(), Meter()
        with torch.no_grad():
            for x, t in vl:
                x, t = x.cuda(local), t.cuda(local)
                out = ema(x)
                a1, a5 = accuracy(out, t, (1, 5))
                top1.update(a1[0], x.size(0))
                top5.update(a5[0], x.size(0))
        top1.all_reduce()
        top5.all_reduce()
        if rank == 0:
            print(f" * Acc@1 {top1.avg:.3f} Acc@5 {top5.avg:.3f}")
        is_best = top1.avg > best
        best = max(top1.avg, best)
        if rank == 0:
            torch.save(
                {
                    "epoch": epoch + 1,
                    "state_dict": ddp.state_dict(),
                    "best": best,
                    "optimizer": opt.state_dict(),
                    "scaler": scaler.state_dict(),
                    "sched": sched.state_dict(),
                },
                path,
            )
            if is_best:
                shutil.copyfile(path, path.replace("latest", "best"))
    if rank == 0:
        print(torch.cuda.memory_summary(abbreviated=True))
        print("finished", best)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
