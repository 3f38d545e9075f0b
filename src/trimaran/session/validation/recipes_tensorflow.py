"""tf_cnn_benchmarks: TensorFlow's own table of 2017, and Lambda's of later GPUs.

The scripts build ResNets of the first version (stride in the 1x1 convolutions), AlexNet in its form for one device, and
Inception-v3 without its auxiliary head. Synthetic images lie on the device.

Source:
    tensorflow/docs: site/en/r1/guide/performance/benchmarks.md; tensorflow/benchmarks: scripts/tf_cnn_benchmarks,
    models/{alexnet,resnet,inception}_model.py; lambdal/lambda-tensorflow-benchmark: benchmark.sh, config/.
"""

from trimaran.costs.scaled import Sync
from trimaran.costs.software import Software
from trimaran.session.validation.cells import reduced
from trimaran.session.validation.recipes import Recipe, lowered
from trimaran.session.validation.types import Row


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
        return "p2p" if "/gpu" in config else "server"
    if "without nccl" in config:
        return "p2p"
    return "nccl" if "nccl" in config or "horovod" in config else "p2p"


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
        # Gradients are made compact for their transfer: 16 bits where the network computes in them.
        wire_share=0.5 if reduced(row) else 1.0,
        real_data=False,
        tf32=True,
    )


_WITHOUT_XLA = ("1080", "v100", "a100", "3090", "cloud")
"""Machines whose logs are named without XLA in tools/log2csv.py."""
