"""What the benchmarks of published points are: network, data, target; and which points are slips.

Counts of samples are facts of the data sets, as submissions of the benchmark log them (`train_samples`) or as the
reference implementation has them.
"""

from dataclasses import dataclass

from trimaran.convergence.types import CurveTable, Point, Unit


@dataclass(frozen=True, kw_only=True)
class Task:
    """A benchmark.

    `unit` is that of the curve: rows in steps become samples, rows in tokens samples of `tokens_per_sample`.
    `network` is empty where a checkpoint is tuned further: such a curve is not that of training the network.
    """

    name: str
    title: str
    unit: Unit = "epochs"
    network: str = ""
    samples_per_epoch: int | None = None
    tokens_per_sample: int | None = None
    program: str = "MLPerf Training reference convergence points, rounds"
    notes: tuple[str, ...] = ()


_HPC = "MLPerf HPC reference convergence points, rounds"
_TRAINING = "a target is reached when an evaluation says so: amounts are multiples of the time between evaluations"

_RETINANET = Task(
    name="retinanet",
    title="RetinaNet on OpenImages to 0.34 mAP",
    network="retinanet",
    samples_per_epoch=1_170_301,
    notes=(_TRAINING,),
)
_DIFFUSION = Task(
    name="stable-diffusion",
    title="Stable Diffusion v2 on LAION-400M to FID 90 and CLIP 0.15",
    unit="samples",
    network="stable-diffusion",
)

TASKS = {
    "resnet": Task(
        name="resnet50",
        title="ResNet-50 v1.5 on ImageNet to 75.9 % top-1",
        network="resnet50",
        samples_per_epoch=1_281_167,
        notes=(_TRAINING,),
    ),
    "bert": Task(
        name="bert-large", title="BERT-large on Wikipedia to 72 % of masked words", unit="samples", network="bert:large"
    ),
    "ssd": Task(
        name="ssd",
        title="SSD ResNet-34 on COCO to 23 % mAP",
        network="ssd",
        samples_per_epoch=117_266,
        notes=(_TRAINING,),
    ),
    "ssd(retinanet)": _RETINANET,
    "retinanet": _RETINANET,
    "dlrm": Task(
        name="dlrm", title="DLRM on Criteo Terabyte to AUC 0.8025", network="dlrm", samples_per_epoch=4_195_197_692
    ),
    "dlrm_dcnv2": Task(
        name="dlrm-dcnv2",
        title="DLRM-DCNv2 on Criteo Terabyte to AUC 0.80275",
        network="dlrm-dcnv2",
        samples_per_epoch=4_195_197_692,
    ),
    "gpt3": Task(
        name="gpt3-175b",
        title="GPT-3 175B on C4 from a checkpoint to log perplexity 2.69",
        unit="samples",
        network="gpt:175b",
        tokens_per_sample=2048,
        notes=("the amount counts from the benchmark's checkpoint, not from the start",),
    ),
    "unet3d": Task(
        name="unet3d",
        title="3D U-Net on KiTS19 to mean DICE 0.908",
        unit="samples",
        network="unet3d",
        samples_per_epoch=168,
    ),
    "sd": _DIFFUSION,
    "stable_diffusion": _DIFFUSION,
    "llama2_70b_lora": Task(
        name="llama2-70b-lora", title="Llama 2 70B, LoRA on GovReport to loss 0.925", unit="samples"
    ),
    "qwen35_397b_grpo": Task(
        name="qwen35-397b-grpo", title="Qwen3.5 397B, GRPO, to the benchmark's target", unit="samples"
    ),
    "cosmoflow": Task(
        name="cosmoflow",
        title="CosmoFlow to a mean absolute error of 0.124",
        network="cosmoflow",
        samples_per_epoch=524_288,
        program=_HPC,
    ),
    "deepcam": Task(
        name="deepcam",
        title="DeepCAM on CAM5 to IoU 0.82",
        network="deepcam",
        samples_per_epoch=121_266,
        program=_HPC,
        notes=(_TRAINING,),
    ),
    "oc20": Task(name="oc20", title="DimeNet++ on OC20 to forces MAE 0.036", network="dimenet++", program=_HPC),
    "openfold": Task(
        name="openfold", title="OpenFold to lDDT-Ca 0.8", unit="samples", network="openfold", program=_HPC
    ),
    "ResNet-18 (CIFAR-10)": Task(
        name="resnet18-cifar10",
        title="ResNet-18 on CIFAR-10, the runs that Pollux was simulated with",
        unit="samples",
        network="resnet18",
        samples_per_epoch=50_000,
    ),
}
"""By the name of the benchmark in the rows."""

SLIPS = {
    ("cosmoflow", 32): "7.85 epochs where twice the batch needs 18.3, more than twice the updates: another setting",
    ("unet3d-3.1", 64): "549489 samples where 56 needs 386400 and 80 needs 388500: another setting",
}
"""Points left out, by curve and batch, and why."""

_PAL = "Pal et al., IEEE Micro 2019, arXiv 1907.13257"
_INCEPTION = (
    (64, 4.0),
    (128, 4.0),
    (256, 4.0),
    (512, 4.0),
    (1024, 4.0),
    (2048, 4.0),
    (4096, 7.0),
    (8192, 12.0),
    (16384, 23.0),
)

PROJECTIONS = {
    "inception-v3-hybrid": CurveTable(
        task="Inception-V3 on ImageNet, epochs as in the study of hybrid parallelism, batch 64 a GPU",
        unit="epochs",
        points=tuple(Point(global_batch=batch, amount=epochs) for batch, epochs in _INCEPTION),
        source=f"{_PAL}: 4 epochs up to 32 GPUs, 7 at 64, 23 at 256; 12 at 128 follows from its speed-ups",
        samples_per_epoch=1_281_167,
        network="inception_v3",
        projection=True,
    ),
}

RATIOS = {
    "gnmt-hybrid": {
        "network": "gnmt",
        "ratio": 1.878,
        "source": f"{_PAL}: 8 % over data parallelism with a two-device speed-up of 1.15, solved backwards: "
        "2 * 1.08 / 1.15; the batch is not stated",
    },
    "big-lstm-hybrid": {
        "network": "big-lstm",
        "ratio": 2.0,
        "source": f"{_PAL}: 22 % over data parallelism with a two-device speed-up of 1.22, solved backwards: "
        "2 * 1.22 / 1.22, twice the batch gains nothing; the batch is not stated",
    },
}
