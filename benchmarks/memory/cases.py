"""What is compared: cases (a network, a batch, a precision, a budget) and arms (ways to train it in that budget).

Plain data, without torch. An arm that keeps everything, with no limit, is the oracle: its step is what the others are
compared with, and its peak is what a budget in percent is a share of.

    python3 benchmarks/memory/run.py --subset first --minutes 8
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

GIB = 2**30
ORACLE = "oracle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One network to train in less memory than it takes.

    Attributes:
        name: as on the command line
        network: a name of `trimaran catalog jobs`
        batch: samples
        precision: "fp32", "tf32" or "bf16" (autocast)
        card_bytes: memory of the card that is emulated, context included [bytes]; None: the budget is a share
        share: budget as a share of the oracle's peak [0..1], where no card is emulated
        reduced: whether the network is narrow and the batch small, to try the code
    """

    name: str
    network: str
    batch: int
    precision: str
    card_bytes: int | None = None
    share: float | None = None
    reduced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to train in a budget.

    Attributes:
        name: as on the command line
        rank: in which round it runs; those of a lower one come first, over all cases
        bitwise: whether its gradients must equal the oracle's bit for bit
        note: what it is, in a line
    """

    name: str
    rank: int
    bitwise: bool
    note: str


CASES = (
    Case(name="vgg16-fp32", network="vgg16", batch=256, precision="fp32", card_bytes=12 * GIB),
    Case(name="vgg16-tf32", network="vgg16", batch=256, precision="tf32", card_bytes=12 * GIB),
    Case(name="vgg16-bf16", network="vgg16", batch=256, precision="bf16", card_bytes=12 * GIB),
    Case(name="resnet50-tf32", network="resnet50", batch=256, precision="tf32", share=0.5),
    Case(name="gpt2-medium-bf16", network="gpt2-medium", batch=16, precision="bf16", share=0.5),
    Case(name="resnet50-fp32", network="resnet50", batch=256, precision="fp32", share=0.5),
    Case(name="resnet50-bf16", network="resnet50", batch=256, precision="bf16", share=0.5),
    Case(name="resnet50-43", network="resnet50", batch=256, precision="tf32", share=0.43),
)

ARMS = (
    Arm(name=ORACLE, rank=0, bitwise=True, note="keeps everything; no limit"),
    Arm(name="ours", rank=1, bitwise=True, note="keep, offload or recompute, as planned"),
    Arm(name="vdnn_all", rank=2, bitwise=True, note="the paper's policy: every input of a layer leaves"),
    Arm(name="checkpoint", rank=2, bitwise=True, note="each block recomputed whole"),
    Arm(name="save_on_cpu", rank=2, bitwise=True, note="torch's hooks, page-locked memory"),
    Arm(name="ours_recompute", rank=3, bitwise=True, note="ours, without offloading"),
    Arm(name="ours_offload", rank=3, bitwise=True, note="ours, without recomputing"),
    Arm(name="vdnn_conv", rank=3, bitwise=True, note="the paper's policy: inputs of convolutions leave"),
    Arm(name="torchtune", rank=3, bitwise=True, note="torchtune's OffloadActivations"),
    Arm(name="compile", rank=4, bitwise=False, note="torch.compile with activation_memory_budget"),
    Arm(name="save_on_cpu_pageable", rank=4, bitwise=True, note="torch's hooks, pageable memory"),
)

SUBSETS: dict[str, tuple[str, ...]] = {
    "first": ("vgg16-fp32", "vgg16-tf32", "vgg16-bf16", "resnet50-tf32", "gpt2-medium-bf16"),
    "vgg16": ("vgg16-fp32", "vgg16-tf32", "vgg16-bf16"),
    "all": tuple(case.name for case in CASES),
}


def reduce(case: Case) -> Case:
    """The same case with a narrow network and a small batch, at a budget that is a share.

    Args:
        case: a full one
    """
    return replace(case, batch=16, card_bytes=None, share=0.9, reduced=True)


def cells(cases: Sequence[Case], arms: Sequence[Arm]) -> Iterator[tuple[Case, Arm]]:
    """What to run, the most telling first: round after round over all cases, so that a cut leaves whole rounds.

    Args:
        cases: chosen
        arms: chosen; the oracle is always run, as the others need it
    """
    chosen = {arm.name: arm for arm in (ARMS[0], *arms)}
    for rank in sorted({arm.rank for arm in chosen.values()}):
        for case in cases:
            for arm in chosen.values():
                if arm.rank == rank:
                    yield case, arm
