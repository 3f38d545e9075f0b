"""How many times fewer bytes an exact code of zeros leaves of what comes after a ReLU, before and after training.

Networks are trained for real on handwritten digits. Prints the tables of the README and writes
`benchmarks/results/compression.json`.
"""

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.compression.coding import (  # noqa: E402
    Counting,
    least_codec_rate,
    measure_coding,
    saved_s,
    total,
    zeros_needed,
)
from benchmarks.environment import describe_environment, environment_line, write_document  # noqa: E402

from trimaran.graph.trace.types import View  # noqa: E402
from trimaran.jobs.builtin import accuracy, load_images  # noqa: E402
from trimaran.memory_hooks.coding import (  # noqa: E402
    CODECS,
    Bytes,
    Codec,
    Coding,
)
from trimaran.networks.alexnet_overfeat_vgg import VGG_GROUPS, Vgg  # noqa: E402
from trimaran.networks.small_images import (  # noqa: E402
    LeNet,
    ResidualNetwork,
)
from trimaran.pricing.copy_codecs import GPU_PASSES  # noqa: E402

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, float]] = {
    "LeNet": (LeNet, 32, 4e-3),
    "residual, 14 convolutions": (ResidualNetwork, 16, 2e-3),
    "VGG-11, an eighth as wide": (
        lambda: Vgg(VGG_GROUPS[11], classes=10, channels=1, width=0.125, dropout=0.0, norm=True),
        32,
        2e-3,
    ),
    "VGG-16, an eighth as wide, dropout": (
        lambda: Vgg(VGG_GROUPS[16], classes=10, channels=1, width=0.125, dropout=0.5, norm=True),
        32,
        2e-3,
    ),
}
BATCH = 64
PUBLISHED_RATIO = 2.6
_ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "compression.json")
    parser.add_argument(
        "--limits-only", action="store_true", help="only the limits of exact codes; the rest of the result stays"
    )
    torch.set_num_threads(1)
    options = parser.parse_args()
    if options.limits_only:
        document = json.loads(options.output.read_text())
        document["limits"] = {"environment": describe_environment(devices=1)}
        document["limits"] |= limits(options.epochs)
        write_document(document, options.output)
        print(json.dumps(document["limits"], indent=1))
        return
    environment = describe_environment(devices=1)
    rows = [row(name, options.epochs) for name in NETWORKS]
    print(
        "| network | accuracy | after ReLU | ratio untrained | ratio trained | least | most | sparse | bf16 |\n"
        "|" + "---|" * 9
    )
    for one in rows:
        print(
            f"| {one['network']} | {one['accuracy']:.3f} | {one['raw_bytes'] / 2**20:.1f} MiB | "
            f"{one['untrained']:.2f} | {one['trained']:.2f} | {one['least']:.2f} | {one['most']:.2f} | "
            f"{one['sparse_s'] * 1e3:.1f} ms | {one['bf16_s'] * 1e3:.1f} ms |"
        )
    rates = codec_rates()
    print()
    for codec in CODECS:
        print(
            f"{codec}: code {rates[f'{codec}_encode_bytes_per_s'] / 1e9:.2f}, "
            f"undo {rates[f'{codec}_decode_bytes_per_s'] / 1e9:.2f} GB/s"
        )
    print(f"plain copy {rates['copy_bytes_per_s'] / 1e9:.1f} GB/s at 60 % zeros; {environment_line(environment)}\n")
    document: dict[str, Any] = {
        "schema_version": 1,
        "environment": environment,
        "published_ratio": PUBLISHED_RATIO,
        "networks": rows,
        "rates": rates,
        "worth": worth(rates, rows),
        "limits": {"environment": environment} | limits(options.epochs),
    }
    write_document(document, options.output)
    for where, one in document["worth"].items():
        print(f"{where}: {one['saved_s'] * 1e3:+.1f} ms for each GB and direction")


def row(name: str, epochs: int) -> dict[str, Any]:
    """A network untrained and trained."""
    size = NETWORKS[name][1]
    model, untrained, reached = trained_model(name, epochs)
    trained = ratios(model, size)
    each = [one.ratio for one in trained.values()]
    return {
        "network": name,
        "accuracy": reached,
        "raw_bytes": total(trained).raw_bytes,
        "untrained": total(untrained).ratio,
        "trained": total(trained).ratio,
        "least": min(each),
        "most": max(each),
        **{f"{codec}_s": coding_s(model, size, codec) for codec in CODECS},
    }


def trained_model(name: str, epochs: int) -> tuple[nn.Module, Any, float]:
    """A network trained from seed 0; what was coded before, and its accuracy."""
    make, size, rate = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    untrained = ratios(model, size)
    return model, untrained, train(model, size, rate, epochs)


def limits(epochs: int) -> dict[str, Any]:
    """The limits of exact codes, by network."""
    return {name: limit(trained_model(name, epochs)[0], size) for name, (_, size, _) in NETWORKS.items()}


def limit(model: nn.Module, size: int) -> dict[str, Any]:
    """The limit of exact codes of what comes after a ReLU: by the entropy of words, storage by storage; and of lzma."""
    found: list[Counting] = []

    def counting() -> Counting:
        found.append(Counting())
        return found[-1]

    began_s = time.process_time()
    measure_coding(_step_of(model, size), model, make_codec=counting)
    took_s = time.process_time() - began_s
    words, zeros = sum(one.words for one in found), sum(one.zeros for one in found)
    kept = [one.words - one.zeros for one in found]
    planes = [sum(n * one.plane_bits[p] for n, one in zip(kept, found, strict=True)) / sum(kept) for p in range(4)]
    return {
        "zeros": zeros / words,
        "plane_bits": planes,
        "ratio_of_sparse": 32 * words / (words + 32 * (words - zeros)),
        "ratio_by_entropy": 32 * words / sum(one.bits for one in found),
        "ratio_of_lzma": 4 * words / sum(one.packed_bytes for one in found),
        "lzma_bytes_per_s": 4 * words / took_s,
        "zeros_needed": zeros_needed(PUBLISHED_RATIO, sum(planes)),
    }


def coding_s(model: nn.Module, size: int, name: str) -> float:
    """Time of coding what comes after a ReLU in a step on images that were not trained on; median of some steps [s]."""
    times_s = []
    for _ in range(_ROUNDS):
        clocks: list[Timed] = []

        def timed(clocks: list[Timed] = clocks) -> Timed:
            clocks.append(Timed(CODECS[name]()))
            return clocks[-1]

        measure_coding(_step_of(model, size), model, make_codec=timed)
        times_s.append(sum(one.seconds for one in clocks))
    return statistics.median(times_s)


class Timed:
    """A codec with the time of its coding.

    Attributes:
        seconds: so far [s]
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.name, self.traffic, self.seconds = codec.name, codec.traffic, 0.0

    def takes(self, views: Sequence[View], start: int) -> bool:
        return self._codec.takes(views, start)

    def encode(self, source: Bytes, target: Bytes) -> int:
        begin_s = time.perf_counter()
        length = self._codec.encode(source, target)
        self.seconds += time.perf_counter() - begin_s
        return length

    def decode(self, source: Bytes, target: Bytes) -> None:
        self._codec.decode(source, target)


def ratios(model: nn.Module, size: int) -> Any:
    """What is coded in a step on images that were not trained on."""
    return measure_coding(_step_of(model, size), model)[1]


def _step_of(model: nn.Module, size: int) -> Callable[[], None]:
    images, classes = load_images(train=False, size=size)[:BATCH]

    def step() -> None:
        model.zero_grad()
        functional.cross_entropy(model(images), classes).backward()

    return step


def train(model: nn.Module, size: int, rate: float, epochs: int) -> float:
    """Train on the digits; the accuracy on those that were kept."""
    images, classes = load_images(train=True, size=size)[:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[chosen]), classes[chosen]).backward()
            optimizer.step()
    model.eval()
    kept, truth = load_images(train=False, size=size)[:]
    with torch.no_grad():
        reached = accuracy(model(kept), truth)
    model.train()
    return reached


def codec_rates() -> dict[str, float]:
    """Rates on this machine, by bytes that go in, of 16 MiB with three words of five zero; medians."""
    values = np.random.default_rng(0).standard_normal(4 << 20).astype(np.float32)
    values[np.random.default_rng(1).random(len(values)) < 0.6] = 0.0
    device = values.view(np.uint8)
    host, back = np.zeros_like(device), np.zeros_like(device)
    works: dict[str, Callable[[], object]] = {}
    for name, make in CODECS.items():
        coding = Coding(make())
        works[f"{name}_encode"] = functools.partial(coding.save, device, host)
        works[f"{name}_decode"] = functools.partial(coding.load, host, back)
    works["copy"] = lambda: np.copyto(back, device)
    return {f"{name}_bytes_per_s": len(device) / median_s(work) for name, work in works.items()}


def median_s(work: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_ROUNDS):
        begin_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begin_s)
    return statistics.median(times_s)


def worth(rates: dict[str, float], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Time saved for each GB and direction: here, and modelled for a GPU that codes with ordinary operations."""
    ratio = min(one["trained"] for one in rows)
    places = {
        "this CPU": (rates["copy_bytes_per_s"], rates["sparse_encode_bytes_per_s"]),
        "titan-x, PCIe 3.0 (modelled)": (12.8e9, 252e9 / GPU_PASSES["sparse"]),
        "h200, PCIe 5.0 (modelled)": (53e9, 3.6e12 / GPU_PASSES["sparse"]),
        "NVLink-C2C (modelled)": (350e9, 3.6e12 / GPU_PASSES["sparse"]),
    }
    return {
        name: {
            "saved_s": saved_s(10**9, link_bytes_per_s=link, codec_bytes_per_s=codec, ratio=ratio),
            "codec_bytes_per_s": codec,
            "least_codec_bytes_per_s": least_codec_rate(link, ratio),
        }
        for name, (link, codec) in places.items()
    }


if __name__ == "__main__":
    main()
