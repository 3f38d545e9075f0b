"""DLPerf: eight frameworks on the same nodes of eight V100, ResNet-50 v1.5, BERT-Base of 128 tokens, and InsightFace.

Each script reads ImageNet, or the pre-training data of BERT; how well it reads them differs a lot.

Source:
    Oneflow-Inc/DLPerf: read-me files of each framework's folder, 2020-08 to 2021-03.
"""

import re

from trimaran.costs.software import Software
from trimaran.session.validation.cells import reduced
from trimaran.session.validation.recipes import Recipe, compiled, lowered
from trimaran.session.validation.types import Row

_ONE_DECODER = 1000.0
"""Faces of 112 x 112 that one process decodes [1/s]: what the small network reaches on one device and on eight."""

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
        sync="p2p" if faces and mxnet_alone else "nccl",
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
    """Where NVIDIA's scripts keep weights in 16 bits."""
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
