"""ResNet-50 with SyncBatchNorm in channels_last, torch.cuda.amp as of old, augmentations written with torch alone."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel as DDP

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 3


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, planes, stride=1):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, planes, 1), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = conv(planes, planes * 4, 1), nn.BatchNorm2d(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or inputs != planes * 4:
            self.shortcut = nn.Sequential(conv(inputs, planes * 4, 1, stride), nn.BatchNorm2d(planes * 4))

    def forward(self, x):
        skip = x if self.shortcut is None else self.shortcut(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += skip
        return self.relu(x)


class ResNet(nn.Module):
    def __init__(self, layers=(3, 4, 6, 3), classes=1000):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        stages, width = [], 64
        for number, count in enumerate(layers):
            for i in range(count):
                planes = 64 * 2**number
                stages.append(Bottleneck(width, planes, 2 if i == 0 and number > 0 else 1))
                width = planes * 4
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(width, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, Bottleneck):
                nn.init.constant_(m.bn3.weight, 0)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


def augment(x):
    """Random flips, shifts and a cut-out, on the device."""
    flip = torch.rand(x.size(0), device=x.device) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(-1), x)
    padded = F.pad(x, (4, 4, 4, 4), mode="reflect")
    dy, dx = torch.randint(0, 9, (2,)).tolist()
    x = padded[:, :, dy : dy + x.size(2), dx : dx + x.size(3)]
    size = x.size(-1) // 4
    top = torch.randint(0, x.size(-1) - size, (1,)).item()
    x = x.clone(memory_format=torch.channels_last)
    x[:, :, top : top + size, top : top + size] = 0
    mean = torch.tensor([0.485, 0.456, 0.406], device=x.device).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device=x.device).view(1, 3, 1, 1)
    return x.sub_(mean).div_(std)


def mixup(x, y, classes, alpha=0.2):
    share = torch.distributions.Beta(alpha, alpha).sample().item()
    order = torch.randperm(x.size(0), device=x.device)
    onehot = F.one_hot(y, classes).float()
    return share * x + (1 - share) * x[order], share * onehot + (1 - share) * onehot[order]


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0.0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def accuracy(output, target, topk=(1, 5)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def main():
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group(backend="nccl", init_method="env://")
    torch.backends.cudnn.benchmark = True
    model = nn.SyncBatchNorm.convert_sync_batchnorm(ResNet()).cuda(local)
    model = model.to(memory_format=torch.channels_last)
    model = DDP(model, device_ids=[local], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90)
    scaler = GradScaler()
    losses, top1 = AverageMeter(), AverageMeter()
    for step in range(STEPS):
        images = torch.rand(BATCH, 3, 224, 224).cuda(non_blocking=True).to(memory_format=torch.channels_last)
        target = torch.randint(0, 1000, (BATCH,)).cuda(non_blocking=True)
        images, soft = mixup(augment(images), target, 1000)
        with autocast():
            output = model(images)
            loss = torch.sum(-soft * F.log_softmax(output, dim=-1), dim=-1).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        acc1, acc5 = accuracy(output, target)
        losses.update(loss.item(), BATCH)
        top1.update(acc1.item(), BATCH)
        if dist.get_rank() == 0:
            print(
                f"[{step + 1}/{STEPS}] loss {losses.avg:.3f} acc@1 {top1.avg:.2f} acc@5 {acc5[0].item():.2f} "
                f"lr {scheduler.get_last_lr()[0]:.4f} mem {torch.cuda.max_memory_allocated() / 1e9:.2f} GB",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
