"""What is public of the study of hybrid parallelism, and what its figures rest on.

Source:
    Pal et al., "Optimizing Multi-GPU Parallelization Strategies for Deep Learning Training", IEEE Micro 39(5), 2019;
    arXiv:1907.13257. Its abstract has the gains: 26.5, 8 and 22 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Grade = Literal["published", "recalled", "derived"]
"""Published: in the abstract. Recalled: no public text has it, and the arithmetic gives the published gain.
Derived: the figure with which the published gain comes out, solved backwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedHybrid:
    """A network of the study.

    Attributes:
        network: reference
        title: as the study has it
        method: model parallelism inside a worker: "placement" of branches, or "stages" of a pipeline
        local_batch: of a worker [samples]
        worker_speedup: SU^2, two devices over one [1]
        epochs: to the target by number of devices with a local batch each; where only a ratio is known, 1 and that
        epochs_grade: where they come from
        devices: at which there is a figure
        assumed_devices: the study's text that is public says "at scale", and the count is ours
        published: gain of the hybrid over data parallelism, by devices, as a share
        published_grades: of each
        note: what the reader should know
    """

    network: str
    title: str
    method: str
    local_batch: int
    worker_speedup: float
    epochs: Mapping[int, float]
    epochs_grade: Grade
    devices: tuple[int, ...]
    assumed_devices: bool
    published: Mapping[int, float]
    published_grades: Mapping[int, Grade]
    note: str


STUDIED: tuple[StudiedHybrid, ...] = (
    StudiedHybrid(
        network="inception_v3",
        title="Inception-V3",
        method="placement",
        local_batch=64,
        worker_speedup=1.32,
        epochs={1: 4, 2: 4, 4: 4, 8: 4, 16: 4, 32: 4, 64: 7, 128: 12, 256: 23},
        epochs_grade="recalled",
        devices=(8, 16, 32, 64, 128, 256),
        assumed_devices=False,
        published={64: 0.155, 128: 0.131, 256: 0.265},
        published_grades={64: "recalled", 128: "recalled", 256: "published"},
        note="epochs at 128 devices are derived from the gain there",
    ),
    StudiedHybrid(
        network="gnmt",
        title="GNMT",
        method="stages",
        local_batch=128,
        worker_speedup=1.15,
        epochs={128: 1.0, 256: 1.878},
        epochs_grade="derived",
        devices=(256,),
        assumed_devices=True,
        published={256: 0.08},
        published_grades={256: "published"},
        note="the ratio of epochs, 1.878, is solved backwards from the published 8 %; 256 devices are assumed",
    ),
    StudiedHybrid(
        network="biglstm",
        title="BigLSTM",
        method="stages",
        local_batch=128,
        worker_speedup=1.22,
        epochs={16: 1.0, 32: 2.0},
        epochs_grade="derived",
        devices=(32,),
        assumed_devices=True,
        published={32: 0.22},
        published_grades={32: "published"},
        note="the ratio of epochs, 2, is solved backwards from the published 22 %: twice the replicas gain nothing; "
        "32 devices are assumed",
    ),
)

WIDTH = 2
"""Devices of a worker."""

CLUSTER = "dgx1-v100-32gb"
"""The machine of our figures: V100 joined by NVLink, with memory for BigLSTM."""
