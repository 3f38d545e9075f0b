"""A published measurement, what it was measured on, and what we say of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trimaran.cluster.machines import Machine
from trimaran.costs.scaled import Sync
from trimaran.costs.software import Software

Anchor = Literal["single", "none"]
"""Whether the figure of one device, where the source has it, may be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of a file of published measurements, as it stands there.

    Attributes:
        row_id: its own, or the number of its line
        family: such as "dp_throughput"
        fields: every other column that is not empty, by name
        measured: the figure
        unit: of the figure, as published
        anchor: the same set-up on one device, in the same unit; None where the source has none
        flag: a known slip of the source; "" where none is known
    """

    row_id: str
    family: str
    fields: Mapping[str, str]
    measured: float
    unit: str
    anchor: float | None
    flag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a row was measured on, in our words.

    Attributes:
        network: name of a job of ours
        options: of that job, such as {"sequence": "128"}
        batch_per_device: samples
        accumulation: microbatches of a step, whose gradients are exchanged once
        precision: "float32", "tf32", "float16" or "bfloat16"
        machine: nodes and fabric; also for one device, what it stands in
        device: name in the catalog
        devices: in use
        nodes: in use
        software: framework and year
        sync: how gradients are exchanged
        real_data: data are read and decoded by the host; None: not said
        items_per_sample: what the figure counts in one sample
        assumed: what the row does not say and we took for granted, in words
    """

    network: str
    options: Mapping[str, str]
    batch_per_device: int
    accumulation: int = 1
    precision: str
    machine: Machine
    device: str
    devices: int
    nodes: int
    software: Software
    sync: Sync
    real_data: bool | None
    items_per_sample: int = 1
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What we say of a row.

    Attributes:
        row: the row
        predicted: in the row's unit; None where it was skipped
        low: lower end of the 90 % interval
        high: upper end
        skipped: why there is no prediction; "" where there is one
        baselines: what simple rules say, by name, such as "linear" and "log2", where there is an anchor
        setup: as understood; None where it was not
        fits: whether the step fits the memory of the row's device; None where that is not asked or not known
        basis: what it was predicted from, in words, where that is another row; ""
        anchors: rows that it was predicted from
        several_nodes: whether devices of several nodes took part, where the set-up does not say it; None
    """

    row: Row
    predicted: float | None
    low: float | None = None
    high: float | None = None
    skipped: str = ""
    baselines: Mapping[str, float] | None = None
    setup: Setup | None = None
    fits: bool | None = None
    basis: str = ""
    anchors: tuple[str, ...] = ()
    several_nodes: bool | None = None

    @property
    def error(self) -> float | None:
        """`predicted / measured - 1`; None where there is no prediction."""
        return None if self.predicted is None else self.predicted / self.row.measured - 1
