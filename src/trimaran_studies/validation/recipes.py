"""Facts of the scripts of published figures that are not in the rows: one function for each family of scripts.

A recipe has facts of the public scripts: the variant of a network, the length of its sequences, the unit of a sample,
the release of the framework, the exchange of gradients, whether data are read from disk. Nothing in it is fitted. A row
of an unknown source gets a recipe by the name of its framework.

Benchmarks of one device: convnet-benchmarks, cnn-benchmarks, MXNet's tables, timm's, NeuSight's.

Source:
    soumith/convnet-benchmarks: README.md (January 2016: cuDNN R4), logs; jcjohnson/cnn-benchmarks: README.md, outputs
    (Torch7 with the cuDNN that the row names, models converted from Caffe and from fb.resnet.torch); apache/mxnet:
    docs/…/perf.md (MXNet 1.2 of 2018), example/image-classification/README.md (2016); rwightman's timm: results/
    (torch 1.12, AMP, synthetic); sitar-lab/NeuSight: scripts/asplos/label (Hugging Face models on torch 2.1).

tf_cnn_benchmarks: TensorFlow's own table of 2017, and Lambda's of later GPUs.

The scripts build ResNets of the first version (stride in the 1x1 convolutions), AlexNet in its form for one device, and
Inception-v3 without its auxiliary head. Synthetic images are on the device.

Source:
    tensorflow/docs: site/en/r1/guide/performance/benchmarks.md; tensorflow/benchmarks: scripts/tf_cnn_benchmarks,
    models/{alexnet,resnet,inception}_model.py; lambdal/lambda-tensorflow-benchmark: benchmark.sh, config/.

Two studies of schedulers: Gavel's rates of jobs on three kinds of GPU, and Pollux's step times on T4.

Gavel's figure is steps of all devices together each second; the batch is that of one device, the jobs are PyTorch's of
2019. Its "unconsolidated" placement puts each worker on another machine. Pollux's jobs run in AdaptDL on PyTorch.

Source:
    stanford-futuredata/gavel: workloads/pytorch, scheduler/; petuum/adaptdl: simulator/traces, examples/.

DLPerf: eight frameworks on the same nodes of eight V100, ResNet-50 v1.5, BERT-Base of 128 tokens, and InsightFace.

Each script reads ImageNet, or the pre-training data of BERT; their loaders differ greatly in speed.

Source:
    Oneflow-Inc/DLPerf: read-me files of each framework's folder, 2020-08 to 2021-03.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trimaran.pricing.exchange.step import Sync
from trimaran.pricing.kernels.software import Software
from trimaran_studies.validation.measurement import Row, reduced


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Facts of a script.

    Attributes:
        network: the network's name, one that `networks.names` knows or the row's
        options: of the job, such as {"sequence": "128"}
        software: framework and year
        sync: how gradients are exchanged
        real_data: whether the host reads and decodes data; None: not known
        items_per_sample: number of items that the figure counts in one sample
        batch_fixed: samples of a device, in place of the row's; 0: as in the row
        batch_factor: samples for each unit of the row's batch
        batch_in_items: whether the row's batch counts those items, not samples
        tf32: whether FP32 means TF32 on devices that have it
        batch: samples of a device where the row has no batch
        exchange: rule that groups gradients into calls, a name of `RECIPES`; "": the framework's
        wire_share: bytes of gradients that are sent, by their size
        loader: library that decodes photographs, a name of `LOADERS`; "": the framework's
        loader_cores: workers of all devices of a node together; 0: every core
        feed_samples_per_s: largest rate of the script's loader, one process for all devices; 0: by its cores
        accumulated_batch: whether the batch of a row with accumulation is that of the whole step
        devices_per_node: whether the row's number of devices is that of each node
        unequal_lengths: whether batches hold sentences of different lengths, padded to the longest of each batch
        split: whether its largest layer is split among the devices, so that its gradients are not exchanged
        machine: where it ran, in words, if the row's label is too short; "": as in the row
        device: where the row names none
        assumed: assumptions, in words
    """

    network: str
    options: Mapping[str, str] = field(default_factory=dict)
    software: Software
    sync: Sync = "nccl"
    real_data: bool | None = None
    items_per_sample: int = 1
    batch_fixed: int = 0
    batch_factor: int = 1
    batch_in_items: bool = False
    tf32: bool = False
    batch: int = 64
    exchange: str = ""
    wire_share: float = 1.0
    loader: str = ""
    loader_cores: int = 0
    feed_samples_per_s: float = 0.0
    accumulated_batch: bool = False
    devices_per_node: bool = False
    unequal_lengths: bool = False
    split: bool = False
    machine: str = ""
    device: str = ""
    assumed: tuple[str, ...] = ()


def lowered(row: Row, *names: str) -> str:
    """Cells of a row in small letters, with blanks between them; missing ones are empty.

    Args:
        row: the row
        names: of columns
    """
    return " ".join(row.fields.get(name, "") for name in names).lower()


def said(row: Row, name: str) -> str:
    """A part `name=text` of the row's column `config`, such as "resnet50" of "Model=resnet50; Epochs=4"."""
    for part in row.fields.get("config", "").split(";"):
        key, _, text = part.partition("=")
        if key.strip().lower() == name.lower():
            return text.strip()
    return ""


def compiled(row: Row) -> bool:
    """Whether the row says that kernels were fused by a compiler."""
    config = row.fields.get("config", "").lower().replace(" ", "")
    return any(word in config for word in ("xla=yes", "withxla", "xla=&check", "usexla", "withgraphkernel")) or (
        "xla" in config and not any(word in config for word in ("without", "w/oxla", "xla=no", "xla=&cross"))
    )


_CUDNN_YEARS = {"2": 2015.2, "3": 2015.6, "4": 2016.1, "5": 2016.4, "51": 2016.6, "6": 2017.3, "7": 2017.8, "8": 2021.0}


def convnet_benchmarks(row: Row) -> Recipe:
    """A row of convnet-benchmarks; the framework's column names the library of kernels."""
    text = lowered(row, "framework")
    found = re.search(r"cudnn\[r(\d)\]", text)
    library = f"cudnn-{found.group(1)}.0" if found else re.sub(r"[^a-z0-9]+", "-", text).strip("-")
    if text == "cudnn":
        library = "cudnn-4.0"
    framework = "tensorflow" if "tensorflow" in text else "caffe" if "caffe" in text else "torch7"
    year = _CUDNN_YEARS.get(found.group(1), 2016.0) if found else 2015.8
    return Recipe(
        network=re.sub(r"\(.*", "", row.fields.get("model", "")).strip(),
        software=Software(
            framework=framework, year=year, libraries=library, source="soumith/convnet-benchmarks: README.md"
        ),
        real_data=False,
    )


def cnn_benchmarks(row: Row) -> Recipe:
    """A row of cnn-benchmarks."""
    text = lowered(row, "framework", "config")
    found = re.search(r"cudnn[ _]?(\d)(\d)?0?(\d)?", text)
    library, year = "nn", 2016.5
    if "no cudnn" not in text and found:
        major, minor = found.group(1), found.group(2) or "0"
        library = f"cudnn-{major}.{minor}"
        year = _CUDNN_YEARS.get(major + (minor if minor != "0" else ""), 2016.5)
    return Recipe(
        network=row.fields.get("model", ""),
        software=Software(
            framework="torch7", year=year, libraries=library, source="jcjohnson/cnn-benchmarks: README.md"
        ),
        real_data=False,
    )


def mxnet_tables(row: Row) -> Recipe:
    """A row of MXNet's page on speed, or of its read-me of image classification (K80, 2016)."""
    old = "image-classification" in lowered(row, "source_path") or "k80_scaling" in lowered(row, "source_file")
    several = row.fields.get("n_nodes", "1") not in ("", "1")
    return Recipe(
        network=re.sub(r"[\\(].*", "", row.fields.get("model", "")).strip(),
        software=Software(
            framework="mxnet",
            year=2016.8 if old else 2018.4,
            source="apache/mxnet: example/image-classification/README.md" if old else "apache/mxnet: faq/perf.md",
        ),
        sync="server" if several else "kvstore",
        batch_factor=_FACTOR if "*16" in lowered(row, "model").replace("\\", "") else 1,
        real_data=old,
    )


_FACTOR = 16
"""AlexNet's batches in MXNet's page, by those of the column."""


def timm(row: Row) -> Recipe:
    """A row of timm's training benchmark; "img N" in `config` is the edge of the image."""
    text = lowered(row, "framework", "config", "source_path")
    edge = re.search(r"img (\d+)", text)
    release = re.search(r"pt(1\d{1,2}|\d{2})", text)
    return Recipe(
        network=row.fields.get("model", ""),
        options={"image": edge.group(1)} if edge else {},
        software=Software(
            framework="pytorch",
            year=_torch_year(release.group(1)) if release else 2022.5,
            compiled=any(word in text for word in ("dynamo", "inductor", "aot")),
            channels_last="nhwc" in text,
            source="rwightman's pytorch-image-models: results/",
        ),
        real_data=False,
    )


def _torch_year(release: str) -> float:
    """Year of a release of torch, such as "112" for 1.12 or "21" for 2.1.

    There are three a year; 1.12 was of June 2022, 2.0 of the next spring.

    Example:
        >>> _torch_year("112"), _torch_year("24")
        (2022.5, 2024.5)
    """
    if release.startswith("1"):
        return 2022.5 + (int(release[1:]) - 12) * 0.3
    return 2023.2 + int(release[1:]) * 0.325


def neusight(row: Row) -> Recipe:
    """A row of NeuSight: Hugging Face's models in eager mode; matrix products in true FP32."""
    sequence = row.fields.get("seq_len", "")
    recipe = Recipe(
        network=row.fields.get("model", ""),
        options={"sequence": sequence, "optimizer": "adam"} if sequence else {},
        software=Software(framework="pytorch", year=2023.8, source="sitar-lab/NeuSight: PyTorch 2.1, transformers"),
        real_data=False,
    )
    if "bert" not in lowered(row, "model"):
        return recipe
    return replace(recipe, options={**recipe.options, "head": "squad"})


def tensorflow_2017(row: Row) -> Recipe:
    """A row of TensorFlow's guide: 1.1 of spring 2017, cuDNN 5.1, several ways of keeping the variables."""
    dataset = lowered(row, "dataset", "config")
    return Recipe(
        network=row.fields.get("model", ""),
        software=Software(
            framework="tensorflow",
            year=2017.3,
            libraries="cudnn-5.1",
            source="tensorflow/docs: benchmarks.md: TensorFlow 1.1, CUDA 8, cuDNN 5.1",
        ),
        sync=_sync(lowered(row, "config")),
        real_data="real" in dataset if "real" in dataset or "synth" in dataset else None,
    )


def _sync(config: str) -> Sync:
    if "distributed" in config or "byteps" in config:
        return "server"
    if "parameter_server" in config:
        # With the variables on a GPU each sum is made on one device, as a star of peer copies.
        return "kvstore" if "/gpu" in config else "server"
    if "without nccl" in config:
        return "kvstore"
    return "nccl" if "nccl" in config or "horovod" in config else "kvstore"


def lambda_tensorflow(row: Row) -> Recipe:
    """A row of Lambda's table of 2020: replicated variables, NCCL, synthetic images, XLA on some machines."""
    machine = lowered(row, "machine", "gpu")
    return Recipe(
        network=row.fields.get("model", ""),
        software=Software(
            framework="tensorflow",
            year=2020.8,
            compiled=not any(name in machine for name in _WITHOUT_XLA) or "3x rtx 3090" in machine,
            source="lambdal/lambda-tensorflow-benchmark: benchmark.sh, tools/log2csv.py",
        ),
        # Its V100 are "Tesla_V100-SXM3-32GB", which only boards of sixteen have.
        machine="HGX-2" if "v100 32gb" in machine else "",
        sync="nccl",
        exchange="tf-replicated",
        # Gradients are compressed for their transfer, to 16 bits where the network computes in them.
        wire_share=0.5 if reduced(row) else 1.0,
        real_data=False,
        tf32=True,
    )


_WITHOUT_XLA = ("1080", "v100", "a100", "3090", "cloud")
"""Machines whose logs are named without XLA in tools/log2csv.py."""

MULTI30K_PIECES = 30
"""Pieces of a sentence of Multi30k, padded to the longest of its batch."""


def gavel(row: Row) -> Recipe:
    """A row of Gavel's tables."""
    model = row.fields.get("model", "").lower()
    recipe = Recipe(
        network=model,
        software=Software(framework="pytorch", year=2019.5, source="stanford-futuredata/gavel: PyTorch 1.1 to 1.4"),
        real_data="resnet" in model,
    )
    if model in ("lm", "language model"):
        return replace(recipe, network="lm", options={"sequence": "35"})
    if model == "transformer":
        return replace(
            recipe,
            network="transformer-base",
            options={"sequence": str(MULTI30K_PIECES), "vocabulary": "9500"},
            unequal_lengths=True,
        )
    return recipe


def pollux(row: Row) -> Recipe:
    """A row of Pollux's traces."""
    model = lowered(row, "model")
    recipe = Recipe(
        network=row.fields.get("model", "").split("(")[0].strip(),
        software=Software(framework="pytorch", year=2020.5, source="petuum/adaptdl: examples, PyTorch 1.5 to 1.7"),
        real_data="imagenet" in model or "cifar" in model,
    )
    if "cifar" in model:
        return replace(recipe, network="resnet18-cifar")
    if "bert" in model:
        return replace(recipe, network="bert-base", options={"sequence": "384", "head": "squad", "optimizer": "adamw"})
    return recipe


_ONE_DECODER = 1000.0
"""Faces of 112 x 112 that one process decodes [1/s]: the rate of the small network on one device and on eight."""

_FRAMEWORKS = (
    ("mindspore", "mindspore"),
    ("oneflow/", "oneflow"),
    ("paddle", "paddle"),
    ("mxnet", "mxnet"),
    ("pytorch", "pytorch"),
    ("tensorflow", "tensorflow"),
    ("oneflow", "oneflow"),
)


def dlperf(row: Row) -> Recipe:
    """A row of DLPerf."""
    metric, path = lowered(row, "metric"), lowered(row, "framework")
    framework = next((name for word, name in _FRAMEWORKS if word in f"{metric} {path}"), "pytorch")
    model = lowered(row, "model")
    bert = "bert" in model
    faces = "insightface" in model
    # ArcFace's own script keeps weights in KVStore "device" and decodes faces in one process; Partial FC has Horovod.
    mxnet_alone = framework == "mxnet" and not _partial(row)
    workers = re.search(r"worker=(\d+)", lowered(row, "config"))
    return Recipe(
        network="bert-base" if bert else _network(row),
        options={"sequence": "128", "guesses": "20", "optimizer": "adam"} if bert else {},
        software=Software(
            framework=framework,
            year=2020.7,
            libraries="apex" if bert and "deeplearningexamples/pytorch" in path else "",
            compiled=compiled(row),
            channels_last="deeplearningexamples/mxnet" in path or framework == "oneflow",
            source="Oneflow-Inc/DLPerf: read-me files, 2020",
        ),
        loader=_loader(row, framework, path),
        loader_cores=int(workers.group(1)) if workers else 0,
        feed_samples_per_s=_ONE_DECODER if faces and mxnet_alone else 0.0,
        sync="kvstore" if faces and mxnet_alone else "nccl",
        exchange=_exchange(framework, path),
        wire_share=0.5 if reduced(row) and _sends_halves(framework, path, bert=bert) else 1.0,
        split="model parallel" in lowered(row, "config") or _partial(row),
        real_data=not bert and "synthetic" not in lowered(row, "config"),
    )


def _exchange(framework: str, path: str) -> str:
    """NVIDIA's MXNet script tunes Horovod; TensorFlow's own models use MirroredStrategy."""
    if "deeplearningexamples" in path:
        return "horovod-tuned" if framework == "mxnet" else ""
    return "tf-mirrored" if framework == "tensorflow" else ""


def _sends_halves(framework: str, path: str, *, bert: bool) -> bool:
    """Whether NVIDIA's script keeps weights, and so gradients, in 16 bits."""
    return "deeplearningexamples" in path and (framework == "mxnet" or (framework == "pytorch" and bert))


def _partial(row: Row) -> bool:
    return any(word in lowered(row, "config", "framework") for word in ("partial fc", "sample ratio", "partailfc"))


def _loader(row: Row, framework: str, path: str) -> str:
    """NVIDIA's scripts decode with DALI, others where the row says so; OneFlow has a decoder like DALI's."""
    if "deeplearningexamples" in path:
        if framework == "mxnet":
            return "dali"
        return "dali-cpu" if framework != "tensorflow" or "dali" in lowered(row, "config") else "tensorflow"
    if framework == "oneflow":
        return "dali"
    if "dali" in lowered(row, "config") or framework == "mindspore":
        return "dali-cpu"
    return "mxnet" if framework == "mxnet" else ""


def _network(row: Row) -> str:
    model = row.fields.get("model", "")
    text = f"{model} {row.fields.get('config', '')}".lower()
    if "insightface" in text or "arcface" in text:
        small = "mobilefacenet" in text or "& y1 &" in text
        people = 360_232 if "glint" in text else 85_742
        return f"insightface-{'y1' if small else 'r100'}-{people}"
    return model
