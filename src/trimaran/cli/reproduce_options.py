"""Options of `trimaran reproduce`, and which reproduction takes which."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DEVICE, RANKS, STEPS = "titan-x", 2, 18

# Options that some reproductions alone take.
_TAKEN_BY = {
    "--device": ("vdnn",),
    "--devices": ("dgx1 --real",),
    "--steps": ("dgx1 --real", "feeding --real"),
    "--plot": ("feeding",),
}


class Paper(StrEnum):
    """What can be reproduced."""

    VDNN = "vdnn"
    DGX1 = "dgx1"
    HYBRID = "hybrid"
    FEEDING = "feeding"


Which = Annotated[
    Paper,
    typer.Argument(
        help="vdnn: Rhu et al., MICRO 2016. dgx1: data parallelism on a DGX-1, Mojumder et al., IISWC 2018. "
        "hybrid: data and model parallelism together, Pal et al., IEEE Micro 2019. "
        "feeding: split, pre-load, compress, Xu et al., ICCAD 2021.",
        show_default=False,
    ),
]
DeviceName = Annotated[
    str | None,
    typer.Option(
        "--device", help='vdnn: device of the catalog that is simulated, such as "titan-x".', show_default=DEVICE
    ),
]
Networks = Annotated[
    str | None,
    typer.Option(
        "--networks",
        help='Some of its networks, such as "alexnet,vgg16:256".  [default: all, with its batches]',
        show_default=False,
    ),
]
Real = Annotated[bool, typer.Option("--real", help="Run networks on this machine instead, small ones without a GPU.")]

Plot = Annotated[Path | None, typer.Option("--plot", help="feeding: draw it into this SVG file.", show_default=False)]
RealDevices = Annotated[
    int | None,
    typer.Option("--devices", help="dgx1 --real: processes, or GPUs where there are as many.", show_default=str(RANKS)),
]
RealSteps = Annotated[
    int | None,
    typer.Option("--steps", help="dgx1 and feeding --real: timed steps of each, at least.", show_default=str(STEPS)),
]


def check_options(which: str, given: Mapping[str, object]) -> None:
    """Refuse options that a reproduction does not take.

    Args:
        which: the reproduction, such as "dgx1 --real"
        given: options and their values; None: not given

    Raises:
        InputError: one is for others
    """
    from trimaran.errors import InputError

    for option, value in given.items():
        if value is not None and which not in _TAKEN_BY[option]:
            takes = " and ".join(f'"reproduce {name}"' for name in _TAKEN_BY[option])
            raise InputError(
                f'"reproduce {which}" takes no {option}, which is for {takes}: leave it out', option=option
            )
