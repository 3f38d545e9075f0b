"""What the scripts behind published figures run, as far as a row does not say it: one function a family of scripts.

A recipe holds facts of the public scripts: which variant of a network, how long its sequences are, what counts as a
sample, which release of the framework, how gradients are exchanged, whether data are read from disk. Nothing in it is
fitted. A row of a source that is not known gets a recipe by the name of its framework alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimaran.costs.scaled import Sync
from trimaran.costs.software import Software
from trimaran.session.validation.types import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a script runs.

    Attributes:
        network: the network's name, in words that `networks.names` knows or the row's own
        options: of the job, such as {"sequence": "128"}
        software: framework and year
        sync: how gradients are exchanged
        real_data: data are read and decoded by the host; None: not known
        items_per_sample: what the figure counts in one sample
        batch_fixed: samples of a device, whatever the row says; 0: as it says
        batch_factor: samples for each that the row's batch counts
        batch_in_items: the row's batch counts those items too, not samples
        tf32: what is called FP32 is TF32 on devices that have it
        batch: samples of a device where the row does not say
        exchange: what joins gradients into calls, a name of `costs.exchange_recipes`; "": as the framework does
        wire_share: bytes of gradients that travel, as a share of their own
        loader: what decodes photographs, a name of `costs.feeding`; "": the framework's own
        loader_cores: workers of all devices of a node together; 0: every core
        feed_samples_per_s: what the script's loader hands over at most, in one process for all devices; 0: by its cores
        accumulated_batch: the row's batch is that of the whole step where it says that gradients are accumulated
        devices_per_node: the row's number of devices is that of each node
        unequal_lengths: its batches hold sentences of different lengths, padded to the longest of each batch
        split: its largest layer is divided among the devices, so its gradients are not exchanged
        machine: where it ran, in words, if the row calls it too little; "": as the row says
        device: on what, where the row names none
        assumed: what was taken for granted, in words
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
