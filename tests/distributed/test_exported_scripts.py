"""Scripts of plain PyTorch that plans are exported to: run on processes, their losses are those of one process."""

import os
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from torch.nn import functional

from trimaran.features.export.pytorch import to_pytorch
from trimaran.features.export.recipe import Recipe, Stage
from trimaran.pricing.analytical.shapes import gpt_shape

RUNNER = Path(__file__).with_name("exported.py")
STEPS = 4
LLAMA = builders.transformer_shape(
    layers=4, hidden=32, heads=4, kv_heads=2, head_size=8, ffn=64, vocabulary=128, sequence=16
)
GPT = gpt_shape(layers=4, hidden=32, heads=4, vocabulary=128, sequence=16)


def recipe(**settings: Any) -> Recipe:
    """Of a batch of 8 sequences on the decoder like Llama, in fp32."""
    shape = settings.pop("shape", LLAMA)
    dp, count = settings.get("dp", 1), settings.get("microbatches", 1)
    segments = settings.get("pp", 1) * settings.get("chunks", 1)
    stages = settings.pop("stages", tuple(Stage(modules=(), layers=shape.layers // segments) for _ in range(segments)))
    return Recipe(
        job="tiny", global_batch_size=8, microbatch=8 // (dp * count), stages=stages if segments > 1 else (),
        shape=shape, **settings,
    )  # fmt: skip


PLANS = {
    "dp2 zero3": recipe(dp=2, zero=3),
    "dp2 zero2 m2": recipe(dp=2, zero=2, microbatches=2),
    "dp2 zero1 m4": recipe(dp=2, zero=1, microbatches=4),
    "dp2 m2": recipe(dp=2, microbatches=2),
    "tp2": recipe(tp=2),
    "tp2 sequence": recipe(tp=2, sequence_parallel=True),
    "pp2 1f1b m4": recipe(pp=2, microbatches=4),
    "pp2 gpipe m2 uneven": recipe(
        pp=2, microbatches=2, schedule="gpipe", stages=(Stage(modules=(), layers=1), Stage(modules=(), layers=3))
    ),
    "pp2 interleaved x2 m4": recipe(pp=2, chunks=2, microbatches=4, schedule="interleaved"),
    "recompute m2": recipe(microbatches=2, recomputed=frozenset({"layers"})),
    "pp2 dp2 zero1 recompute": recipe(pp=2, dp=2, zero=1, microbatches=2, recomputed=frozenset({"layers"})),
    "tp2 dp2 zero3": recipe(tp=2, dp=2, zero=3, recomputed=frozenset({"attention"})),
    "tp2 pp2 sequence": recipe(tp=2, pp=2, microbatches=2, sequence_parallel=True),
    "gpt tp2 dp2 sequence zero1": recipe(shape=GPT, tp=2, dp=2, zero=1, sequence_parallel=True),
    "gpt dp2 zero3 recompute": recipe(shape=GPT, dp=2, zero=3, recomputed=frozenset({"layers"})),
}


def run_scripts(folder: Path, plans: Mapping[str, Recipe]) -> dict[str, list[float]]:
    """The losses of each script, all run by the same processes one after the other."""
    jobs = []
    for number, (name, found) in enumerate(plans.items()):
        path = folder / f"script{number}.py"
        path.write_text(to_pytorch(found).text)
        jobs.append(f"{found.devices}={path}")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    ranks = range(max(found.devices for found in plans.values()))
    started = [
        subprocess.Popen(
            [sys.executable, str(RUNNER), str(rank), str(STEPS), str(port), *jobs],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in ranks
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(said)[-4000:]
    found = {name: (folder / f"script{number}.out").read_text() for number, name in enumerate(plans)}
    return {name: [float(loss) for loss in re.findall(r"loss (\S+)", text)] for name, text in found.items()}


def reference(found: Recipe, folder: Path) -> list[float]:
    """Losses of a plain loop over whole batches, in this process."""
    path = folder / "reference.py"
    path.write_text(to_pytorch(recipe(shape=found.shape)).text)
    script = runpy.run_path(str(path))
    model = script["Segment"](0, script["initialize"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=script["RATE"], betas=(0.9, 0.95))
    losses = []
    for step in range(STEPS):
        tokens = script["read_tokens"](step)
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_are_those_of_one_process(tmp_path: Path) -> None:
    losses = run_scripts(tmp_path, PLANS)
    for name, found in PLANS.items():
        assert losses[name] == pytest.approx(reference(found, tmp_path), rel=1e-5), name
