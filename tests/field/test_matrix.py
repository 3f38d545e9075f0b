"""Some of the matrix: jobs as practitioners write them train as a plain loop does, or are refused before they train.

All of it is `benchmarks/matrix/run.py`. Here four steps of AdamW: losses, gradients of the first step, weights, buffers
and the optimizer's state to 1e-10.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.field.catalog import CATALOG
from tests.field.cells import KINDS, OPTIMIZERS, Answer, Cell, Stage, cells_apart, compare, run_job
from tests.field.reference import train_plainly
from tests.representative import each
from torch import Tensor

STEPS = 4
LIMIT_S = 100.0

EQUAL = {
    "resnet": ("dp2",),
    "vit_dropout": ("m2", "pp2"),
    "segmentation": ("zero1",),
    "detection_pair": ("m2",),
    "clip_gathered": ("dp2",),
    "moco_gathered": ("dp2",),
    "stochastic_depth_python": ("dp2",),
    "one_sample_left": ("dp2", "zero3"),
    "frozen_norm": ("pp2",),
    "backbone_in_eval": ("p2p",),
    "compiled": ("dp2",),
    "bf16": ("zero2",),
    "plateau": ("zero1",),
    "hf_causal_longest": ("dp2",),
    "hf_from_checkpoint": ("pp2",),
    "hf_strings": ("dp2",),
    "weight_tying": ("pp2", "tp2"),
    "checkpointed_dropout": ("placed",),
    "masked_words": ("zero3",),
    "curriculum": ("dp2",),
    "muon": ("zero1",),
    "wgan_penalty": ("dp2",),
    "diffusion_ema": ("zero1",),
    "ema_by_name": ("zero1",),
    "graphs": ("m2",),
    "experts": ("zero1",),
    "early_exit": ("dp2",),
    "lora": ("memory",),
    "quantized_parameters": ("zero3",),
}
"""Cells that are right, and must not become refusals: a job of each kind of evidence."""

REFUSED = {
    "simclr": ("dp2",),
    "clip_gathered": ("m2", "zero3"),
    "spectral": ("m2",),
    "diffusion_ema": ("zero3",),
    "ema_swapped": ("zero2",),
    "ema_by_name": ("zero2",),
    "muon": ("tp2",),
    "gan": ("one",),
    "sparse_embedding": ("one",),
}
"""Cells that cannot be right."""


LONG = frozenset(
    {
        "bf16",
        "compiled",
        "curriculum",
        "early_exit",
        "experts",
        "hf_from_checkpoint",
        "hf_strings",
        "moco_gathered",
        "one_sample_left",
        "segmentation",
        "stochastic_depth_python",
    }
)
"""Left to `make test-all`: others are of the same kind of plan, family and verdict."""


def made(name: str, kinds: Sequence[str]) -> Iterator[Cell]:
    return run_job(name, kinds, ("adamw",), steps=STEPS)


def cells_of(name: str, kinds: Sequence[str], folder: Path) -> dict[str, Cell]:
    found = cells_apart(made, name, kinds, folder=folder, limit_s=LIMIT_S)
    return {cell.kind: cell for cell in found}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", each(names := sorted({*EQUAL, *REFUSED}), *(set(names) - LONG)))
def test_a_job_is_right_or_refused(name: str, tmp_path: Path) -> None:
    kinds = (*EQUAL.get(name, ()), *REFUSED.get(name, ()))
    found = cells_of(name, kinds, tmp_path)
    assert set(found) == set(kinds)
    for kind, cell in found.items():
        assert cell.verdict == ("equal" if kind in EQUAL.get(name, ()) else "refused"), f"{kind}: {cell.detail}"


def test_what_differs_is_seen() -> None:
    """The plain loop beside itself, then with one number of each kind moved by more than rounding."""
    entry = CATALOG["temperature"]
    job = dataclasses.replace(entry.job(), optimizer=OPTIMIZERS["adamw"])
    plain = train_plainly(entry, job, STEPS)
    first = Stage(
        weights=plain.first, gradients={name: one for name, one in plain.gradients.items() if one is not None}
    )
    last = Stage(weights=plain.weights, state=plain.state)
    same = Answer(losses=tuple(plain.losses), first=first, last=last)
    assert compare(entry, plain, [same]) == ("equal", "")
    moments = {**plain.state["temperature"], "exp_avg": plain.state["temperature"]["exp_avg"] * 1.001}
    for moved in (
        dataclasses.replace(same, losses=tuple(loss + 1e-9 for loss in plain.losses)),
        dataclasses.replace(same, first=dataclasses.replace(first, gradients=_moved(first.gradients))),
        dataclasses.replace(same, last=dataclasses.replace(last, weights=_moved(plain.weights))),
        dataclasses.replace(same, last=dataclasses.replace(last, state={**plain.state, "temperature": moments})),
        dataclasses.replace(same, first=dataclasses.replace(first, apart="parameter temperature")),
    ):
        assert compare(entry, plain, [moved])[0] == "different"


def _moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, "temperature": tensors["temperature"] * (1 + 1e-8)}


def test_every_family_and_kind_is_there() -> None:
    assert len(CATALOG) >= 60
    assert {"vision", "language", "generative", "structured", "adapted"} == {entry.family for entry in CATALOG.values()}
    assert len(KINDS) == 11
