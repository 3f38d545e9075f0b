"""Images: classification, segmentation, detection, contrastive pretraining."""

import random
from typing import Any

import torch
import torch.distributed as dist
from tests.field.entry import Family
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import Dataset, Subset, TensorDataset

from trimaran.base.job import Job

VISION = Family("vision")
SAMPLES, BATCH, CLASSES = 30, 8, 4


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05)


def images(size: int = 8, channels: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, channels, size, size, generator=generator)
    return TensorDataset(x, torch.randint(CLASSES, (SAMPLES,), generator=generator))


def classify(name: str, model: Any, **options: Any) -> Job:
    """A classifier of the images, with cross entropy."""
    return Job(**{
        "name": name,
        "model": model,
        "loss": nn.CrossEntropyLoss(),
        "optimizer": adamw,
        "dataset": images,
        "global_batch_size": BATCH,
        "precision": "fp64",
        **options,
    })  # fmt: skip


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1, survival: float = 1.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.layer1 = BasicBlock(8, 8)
        self.layer2 = BasicBlock(8, 12, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.layer2(self.layer1(self.stem(x)))).flatten(1))


def accuracy(output: Tensor, target: Tensor) -> float:
    return (output.argmax(-1) == target).double().mean().item()


@VISION.entry("batch norm, with an evaluation", by_microbatch=True)
def resnet() -> Job:
    return classify("resnet", ResNet, evaluation_dataset=images, metric=accuracy)


class ViT(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 16))
        self.position = nn.Parameter(torch.randn(1, 5, 16) * 0.02)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.encoder(x)[:, 0])


@VISION.entry("a class token, torch's own encoder")
def vit() -> Job:
    return classify("vit", ViT)


@VISION.entry("the same with dropout", by_microbatch=True)
def vit_dropout() -> Job:
    return classify("vit_dropout", lambda: ViT(0.1))


class SmallUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.out = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        return self.out(torch.cat([skip, self.up(self.bottom(skip))], 1))


class Scenes(Dataset[Any]):
    """Images with masks, of which each has another share of pixels that do not count."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        mask = torch.randint(CLASSES, (8, 8), generator=generator)
        mask[: index % 7] = 255
        return torch.randn(3, 8, 8, generator=generator), mask


@VISION.entry(
    "U-Net; cross entropy over the pixels that count (ignore_index=255)",
    weight=lambda batch: float((batch[1] != 255).sum()),
)
def segmentation() -> Job:
    return classify("segmentation", SmallUNet, loss=nn.CrossEntropyLoss(ignore_index=255), dataset=Scenes)


CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.5], dtype=torch.float64)


@VISION.entry(
    "cross entropy with weights of classes: a mean over these weights",
    weight=lambda batch: float(CLASS_WEIGHTS[batch[1]].sum()),
)
def class_weights() -> Job:
    return classify("class_weights", plain_cnn, loss=nn.CrossEntropyLoss(weight=CLASS_WEIGHTS))


def plain_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES),
    )  # fmt: skip


class Boxes(Dataset[Any]):
    """Images, and for each a dict of boxes and labels: as many as there are things in it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(index)
        things = index % 4
        boxes = torch.rand(things, 4, generator=generator)
        labels = torch.randint(CLASSES, (things,), generator=generator)
        return torch.randn(3, 8, 8, generator=generator), {"boxes": boxes, "labels": labels}


class Detector(nn.Module):
    """Four queries an image, matched to its things in order."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.boxes = nn.Linear(32, 16)
        self.classes = nn.Linear(32, 4 * (CLASSES + 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.backbone(x)
        return {"boxes": self.boxes(x).sigmoid().view(-1, 4, 4), "logits": self.classes(x).view(-1, 4, CLASSES + 1)}


def detection_sums(output: dict[str, Tensor], targets: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """The sum over all boxes, and how many there are."""
    total = output["boxes"].new_zeros(())
    for boxes, logits, target in zip(output["boxes"], output["logits"], targets, strict=True):
        count = len(target["labels"])
        wanted = torch.full((4,), CLASSES)
        wanted[:count] = target["labels"]
        total = total + functional.cross_entropy(logits, wanted, reduction="sum")
        total = total + functional.l1_loss(boxes[:count], target["boxes"], reduction="sum")
    return total, torch.tensor(sum(len(target["labels"]) for target in targets))


def detection_loss(output: dict[str, Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
    total, things = detection_sums(output, targets)
    return total / things.clamp(min=1)


def stack_images(samples: list[Any]) -> tuple[Tensor, list[dict[str, Tensor]]]:
    found, targets = zip(*samples, strict=True)
    return torch.stack(found), list(targets)


@VISION.entry(
    "targets are a list of dicts of as many boxes as there are; the loss is per box of the batch",
    way_out="detection_pair",
)
def detection() -> Job:
    return classify("detection", Detector, loss=detection_loss, dataset=Boxes, collate=stack_images)


@VISION.entry(
    "the same, whose loss returns (sum over the boxes, number of boxes)",
    weight=lambda batch: float(sum(len(target["labels"]) for target in batch[1])),
)
def detection_pair() -> Job:
    return classify("detection_pair", Detector, loss=detection_sums, dataset=Boxes, collate=stack_images)


class Views(Dataset[Any]):
    """Two views of each image, drawn when it is read."""

    def __init__(self) -> None:
        self.x = images().tensors[0]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], int]:
        x = self.x[index]
        return (x + 0.1 * torch.randn_like(x), x.flip(-1) if random.random() < 0.5 else x), 0


class SimClrNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU())
        self.projection = nn.Linear(32, 8)

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(functional.normalize(self.projection(self.encoder(x)), dim=-1) for x in (one, other))  # type: ignore[return-value]


def info_nce(output: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
    z = torch.cat(output)
    logits = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    n = len(z) // 2
    return functional.cross_entropy(logits, torch.cat([torch.arange(n) + n, torch.arange(n)]))


@VISION.entry(
    "InfoNCE: every sample of the batch is compared with every other; views drawn by the data set",
    way_out="simclr_gathered",
)
def simclr() -> Job:
    return classify("simclr", SimClrNet, loss=info_nce, dataset=Views)


def gathered(tensor: Tensor) -> Tensor:
    """The samples of all ranks, in order, with a backward."""
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(tensor))


def gathered_info_nce(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Both views of this rank's samples against those of all ranks."""
    if not dist.is_initialized():
        return info_nce(output, target)
    own, first = len(output[0]), len(output[0]) * dist.get_rank()
    one, other = (gathered(view) for view in output)
    n, rows = len(one), torch.arange(own) + first
    of_all, mine = torch.cat([one, other]), torch.cat([rows, rows + n])
    logits = (torch.cat(output) @ of_all.T / 0.5).masked_fill(mine[:, None] == torch.arange(2 * n), -1e9)
    return functional.cross_entropy(logits, (mine + n) % (2 * n))


@VISION.entry("the same, whose loss gathers over all ranks where there are some")
def simclr_gathered() -> Job:
    return classify("simclr_gathered", SimClrNet, loss=gathered_info_nce, dataset=Views)


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Flatten(), nn.Linear(192, 16))
        self.text = nn.EmbeddingBag(11, 16)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        encoded = (functional.normalize(x, dim=-1) for x in (self.image(image), self.text(text)))
        return (*encoded, self.logit_scale.exp())  # type: ignore[return-value]


class Captions(Dataset[Any]):
    def __init__(self) -> None:
        self.x = images().tensors[0]
        self.text = torch.randint(11, (SAMPLES, 5), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], int]:
        return (self.x[index], self.text[index]), index


def clip_loss(output: tuple[Tensor, Tensor, Tensor], _: Tensor) -> Tensor:
    image, text, scale = output
    logits = scale * image @ text.T
    wanted = torch.arange(len(image))
    return (functional.cross_entropy(logits, wanted) + functional.cross_entropy(logits.T, wanted)) / 2


def gathered_clip_loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    """The rows of this rank against the columns of all ranks."""
    if not dist.is_initialized():
        return clip_loss(output, target)
    return _local_clip_loss(output, gathered(output[0]), gathered(output[1]))


def detached_clip_loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    """The same by a gather that has no backward."""
    if not dist.is_initialized():
        return clip_loss(output, target)
    of_all = []
    for one in output[:2]:
        parts = [torch.empty_like(one) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, one.detach().contiguous())
        parts[dist.get_rank()] = one
        of_all.append(torch.cat(parts))
    return _local_clip_loss(output, *of_all)


def _local_clip_loss(output: tuple[Tensor, Tensor, Tensor], images_of_all: Tensor, texts_of_all: Tensor) -> Tensor:
    image, text, scale = output
    wanted = torch.arange(len(image)) + dist.get_rank() * len(image)
    to_text = functional.cross_entropy(scale * image @ texts_of_all.T, wanted)
    return (to_text + functional.cross_entropy(scale * text @ images_of_all.T, wanted)) / 2


@VISION.entry("contrastive over the batch; a learned scale of no dims", way_out="clip_gathered")
def clip() -> Job:
    return classify("clip", Clip, loss=clip_loss, dataset=Captions)


@VISION.entry("the same, whose loss gathers over all ranks where there are some")
def clip_gathered() -> Job:
    return classify("clip_gathered", Clip, loss=gathered_clip_loss, dataset=Captions)


@VISION.entry("the same, by a gather without a backward: other ranks get no gradient", way_out="clip_gathered")
def clip_detached() -> Job:
    return classify("clip_detached", Clip, loss=detached_clip_loss, dataset=Captions)


class CenteredClip(Clip):
    """Images are compared with the mean of those before, which each rank makes of its own."""

    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(16))

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        encoded, words, scale = super().forward(image, text)
        centered = encoded - self.center
        if self.training:
            with torch.no_grad():
                self.center.lerp_(encoded.mean(0), 0.3)
        return centered, words, scale


@VISION.entry("a loss that gathers, and a mean in a buffer that a rank makes of its own samples")
def clip_centered() -> Job:
    return classify("clip_centered", CenteredClip, loss=gathered_clip_loss, dataset=Captions)


class Moco(nn.Module):
    """Keys of earlier batches in a queue; the encoder of keys follows that of queries."""

    queue: Tensor
    pointer: Tensor

    def __init__(self, *, gathers: bool = False) -> None:
        super().__init__()
        self.gathers = gathers
        self.query = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 8))
        self.key = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 8))
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", functional.normalize(torch.randn(8, 16), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        q = functional.normalize(self.query(one), dim=1)
        with torch.no_grad():
            for of_query, of_key in zip(self.query.parameters(), self.key.parameters(), strict=True):
                of_key.mul_(0.99).add_(of_query, alpha=0.01)
            k = functional.normalize(self.key(other), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1) / 0.2
        if self.training:
            self._enqueue(k)
        return logits

    @torch.no_grad()
    def _enqueue(self, keys: Tensor) -> None:
        if self.gathers and dist.is_initialized():
            parts = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, keys.contiguous())
            keys = torch.cat(parts)
        start = int(self.pointer)
        self.queue[:, (start + torch.arange(len(keys))) % 16] = keys.T
        self.pointer[0] = (start + len(keys)) % 16


@VISION.entry(
    "a queue of keys in a buffer that the forward fills, and an encoder that follows", way_out="moco_gathered"
)
def moco() -> Job:
    return classify("moco", Moco, dataset=Views)


@VISION.entry("the same, with the keys of all ranks in the queue of each")
def moco_gathered() -> Job:
    return classify("moco_gathered", lambda: Moco(gathers=True), dataset=Views)


class DropPath(nn.Module):
    """Leaves out a block for some samples, or for all; by torch's generator or python's."""

    def __init__(self, block: nn.Module, *, python: bool) -> None:
        super().__init__()
        self.block, self.python = block, python

    def forward(self, x: Tensor) -> Tensor:
        if self.python:
            return x if self.training and random.random() < 0.3 else x + self.block(x)
        kept = (torch.rand(len(x), 1, 1, 1) > 0.3).to(x) if self.training else 1.0
        return x + self.block(x) * kept


def _deep(*, python: bool) -> nn.Module:
    blocks = [DropPath(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU()), python=python) for _ in range(3)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, *head)


@VISION.entry("stochastic depth a sample, by torch's generator", by_microbatch=True)
def stochastic_depth() -> Job:
    return classify("stochastic_depth", lambda: _deep(python=False))


@VISION.entry(
    "stochastic depth a batch, by python's generator: a block's weights may have no gradient", by_microbatch=True
)
def stochastic_depth_python() -> Job:
    return classify("stochastic_depth_python", lambda: _deep(python=True))


def nine_images() -> Subset[Any]:
    return Subset(images(), range(9))


@VISION.entry("dropout, and a last batch of one sample, which is fewer than there are replicas", by_microbatch=True)
def one_sample_left() -> Job:
    return classify(
        "one_sample_left", lambda: ViT(0.1), dataset=nine_images, evaluation_dataset=nine_images, metric=accuracy
    )


class FrozenNorms(ResNet):
    """Batch norm stays in evaluation mode while the rest trains."""

    def train(self, mode: bool = True) -> "FrozenNorms":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


@VISION.entry("batch norm frozen by a train() of its own")
def frozen_norm() -> Job:
    return classify("frozen_norm", FrozenNorms)


def _with_backbone_in_eval() -> nn.Module:
    model = ResNet()
    return _backbone_to_eval(model)


def _backbone_to_eval(model: Any) -> nn.Module:
    model.train()
    for part in (model.stem, model.layer1, model.layer2):
        part.eval()
    return model


@VISION.entry("the factory puts the backbone in evaluation mode on purpose", modes=_backbone_to_eval)
def backbone_in_eval() -> Job:
    return classify("backbone_in_eval", _with_backbone_in_eval)


@VISION.entry(
    "spectral norm, whose vectors each forward in training changes",
    by_microbatch=True,
    way_out="replicas, without microbatches",
)
def spectral() -> Job:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), spectral_norm(nn.Linear(192, 16)), nn.ReLU(), spectral_norm(nn.Linear(16, CLASSES))
        )

    return classify("spectral", model)


@VISION.entry("the factory gives a compiled model")
def compiled() -> Job:
    return classify("compiled", lambda: torch.compile(plain_cnn(), backend="aot_eager"))


@VISION.entry(
    "autocast to bfloat16: sums of shares are rounded to 8 bits, and so is what an optimizer keeps of them: to 20 %",
    tolerance=0.2,
)
def bf16() -> Job:
    return classify("bf16", plain_cnn, precision="bf16")


@VISION.entry("gradients clipped by their global norm")
def clipped() -> Job:
    return classify("clipped", plain_cnn, clip_norm=0.05)


@VISION.entry("the learning rate falls when the loss does", own_optimizer=True, wanted="a schedule that sees the loss")
def plateau() -> Job:
    return classify(
        "plateau",
        plain_cnn,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
    )


class WithoutDecay:
    """Weight decay for matrices alone: biases and norms are told by their names."""

    def __call__(self, parameters: Any) -> torch.optim.Optimizer:
        named = [(name, tensor) for name, tensor in parameters.named_parameters() if tensor.requires_grad]
        plain = [tensor for name, tensor in named if name.endswith("bias") or "norm" in name]
        decayed = [tensor for name, tensor in named if not (name.endswith("bias") or "norm" in name)]
        return torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-3
        )


@VISION.entry("AdamW without decay for biases and norms, by their names", own_optimizer=True)
def no_decay() -> Job:
    return classify("no_decay", ViT, optimizer=WithoutDecay())
