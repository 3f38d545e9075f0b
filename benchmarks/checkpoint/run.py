"""What a checkpoint with checksums costs: time and size, next to DCP, torch.save and safetensors.

One process saves the same state in each way, in turns, to a disk and to memory (/dev/shm), where no disk hides what the
processor does. Every way ends with what it wrote synced. Prints the tables of the README and writes
`benchmarks/results/checkpoint.json`.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.environment import describe_environment, environment_line, write_document  # noqa: E402

from trimaran.checkpoint_files.commit import Store  # noqa: E402
from trimaran.checkpoint_files.container import TensorFile, TensorStream  # noqa: E402

State = dict[str, torch.Tensor]
TARGET = 1.1
"""A save with checksums takes at most this many times what DCP takes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--layers", type=int, default=5, help="144 MiB of state each, and 375 MiB of embeddings")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="on the disk to measure")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "checkpoint.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch")
    state = make_state(options.layers)
    size = sum(tensor.nbytes for tensor in state.values())
    environment = describe_environment(devices=1)
    document: dict[str, Any] = {
        "schema_version": 1,
        "environment": environment,
        "rounds": options.rounds,
        "state": {"bytes": size, "tensors": len(state)},
        "target_ratio": TARGET,
        "hash_bytes_per_s": hash_rates(),
        "load_average_before": os.getloadavg(),
        "places": {},
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    for place, folder in (("disk", options.folder), ("memory", Path("/dev/shm"))):
        with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=folder) as made:
            document["places"][place] = measure(state, Path(made), options.rounds)
    document["load_average_after"] = os.getloadavg()
    show(document)
    print(f"\n{environment_line(environment)}")
    write_document(document, options.output)


def make_state(layers: int) -> State:
    """Weights of a decoder of width 1024 in fp32, with both moments of Adam."""
    width, words = 1024, 32_000
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (words, width), "norm.weight": (width,)}
    for layer in range(layers):
        shapes |= {
            f"layers.{layer}.attention.qkv.weight": (3 * width, width),
            f"layers.{layer}.attention.out.weight": (width, width),
            f"layers.{layer}.up.weight": (4 * width, width),
            f"layers.{layer}.down.weight": (width, 4 * width),
            f"layers.{layer}.norm.weight": (width,),
            f"layers.{layer}.norm.bias": (width,),
        }
    torch.manual_seed(0)
    kinds = ("parameter", "optimizer.exp_avg", "optimizer.exp_avg_sq")
    return {f"{kind}.{name}": torch.randn(shape) for kind in kinds for name, shape in shapes.items()}


class Trimaran:
    """Streamed with checksums of each block, manifest and marker."""

    def save(self, state: State, folder: Path) -> None:
        draft, stream = Store(folder).begin(1), TensorStream(state, {"format": "pt"})
        entry = draft.write("rank0.safetensors", stream, size=stream.size)
        draft.commit([entry], {"state.json": {"step": 1}}, {"tensors": list(state)})

    def load(self, state: State, folder: Path) -> State:
        with TensorFile(Store(folder).committed()[0].path_of("rank0.safetensors")) as file:
            return {name: file.tensor(name) for name in file.names}

    def verify(self, state: State, folder: Path) -> None:
        store = Store(folder)
        assert store.verify(store.committed()[0]) == []


class Dcp:
    """`torch.distributed.checkpoint`, which syncs its files by default."""

    def save(self, state: State, folder: Path) -> None:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), no_dist=True)

    def load(self, state: State, folder: Path) -> State:
        found = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        dcp.load(found, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
        return found


class TorchSave:
    """`torch.save`, then a sync of file and folder."""

    def save(self, state: State, folder: Path) -> None:
        folder.mkdir()
        with (folder / "state.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)

    def load(self, state: State, folder: Path) -> State:
        found: State = torch.load(folder / "state.pt", weights_only=True)
        return found


class Safetensors:
    """`safetensors.torch.save_file`, then a sync of file and folder."""

    def save(self, state: State, folder: Path) -> None:
        folder.mkdir()
        save_file(state, folder / "state.safetensors")
        with (folder / "state.safetensors").open("rb") as file:
            os.fsync(file.fileno())
        sync_folder(folder)

    def load(self, state: State, folder: Path) -> State:
        # Copied, as the others do: what is mapped is read when it is used.
        return {name: tensor.clone() for name, tensor in load_file(folder / "state.safetensors").items()}


WAYS: dict[str, Any] = {
    "trimaran, with checksums": Trimaran(),
    "DCP": Dcp(),
    "torch.save": TorchSave(),
    "safetensors": Safetensors(),
}


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def forget(folder: Path) -> None:
    """Let loading read the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(task: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = task()
    return time.perf_counter() - start, result


def measure(state: State, folder: Path, rounds: int) -> dict[str, Any]:
    """All ways in turns, each round starting with another one."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in WAYS}
    sizes: dict[str, int] = {}
    names = list(WAYS)
    for number in range(rounds):
        for name in [*names[number % len(names) :], *names[: number % len(names)]]:
            way, place = WAYS[name], folder / "state"
            # What was written before is on the disk before a clock starts.
            os.sync()

            def keep(what: str, seconds: float, name: str = name) -> None:
                times[name].setdefault(what, []).append(seconds)

            processor = time.process_time()
            keep("save", timed(lambda way=way, place=place: way.save(state, place))[0])
            keep("save_processor", time.process_time() - processor)
            sizes[name] = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            # Memory that a machine gives for the first time takes longer than everything else (of a virtual machine up
            # to 3 s/GB): the first load takes it, whichever the way, and is apart.
            keep("first_load", timed(lambda way=way, place=place: way.load(state, place))[0])
            seconds, found = timed(lambda way=way, place=place: way.load(state, place))
            keep("load", seconds)
            assert found.keys() == state.keys()
            if number == 0:
                assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
            del found
            forget(place)
            keep("load_from_disk", timed(lambda way=way, place=place: way.load(state, place))[0])
            if hasattr(way, "verify"):
                keep("verify", timed(lambda way=way, place=place: way.verify(state, place))[0])
                forget(place)
                keep("verify_from_disk", timed(lambda way=way, place=place: way.verify(state, place))[0])
            shutil.rmtree(place)
            print(f"{folder.parent} round {number + 1}: {name}: save {times[name]['save'][-1]:.2f} s", flush=True)
    ways = {
        name: {
            "bytes": sizes[name],
            **{what: {"median_s": statistics.median(found), "all_s": found} for what, found in times[name].items()},
        }
        for name in names
    }
    ratios = [own / other for own, other in zip(times[names[0]]["save"], times["DCP"]["save"], strict=True)]
    return {
        "ways": ways,
        "save_ratio_to_dcp": ways[names[0]]["save"]["median_s"] / ways["DCP"]["save"]["median_s"],
        "save_ratio_to_dcp_by_round": ratios,
        "load_ratio_to_dcp": ways[names[0]]["load"]["median_s"] / ways["DCP"]["load"]["median_s"],
    }


def hash_rates() -> dict[str, float]:
    """What one core computes, the best of five [bytes/s]."""
    content = os.urandom(64 * 2**20)
    hashes: dict[str, Callable[[bytes], Any]] = {
        "zlib.crc32": zlib.crc32,
        "hashlib.blake2b": lambda data: hashlib.blake2b(data).digest(),
        "hashlib.sha256": lambda data: hashlib.sha256(data).digest(),
    }
    try:
        import xxhash
    except ImportError:
        pass
    else:
        hashes["xxhash.xxh3_128"] = xxhash.xxh3_128_digest
    return {
        name: len(content) / min(timed(lambda compute=compute: compute(content))[0] for _ in range(5))
        for name, compute in hashes.items()
    }


def show(document: dict[str, Any]) -> None:
    size = document["state"]["bytes"]
    print(
        f"\n{size / 2**30:.2f} GiB in {document['state']['tensors']} tensors, medians of {document['rounds']} rounds\n"
    )
    for place, found in document["places"].items():
        columns = [
            "save",
            "to DCP",
            "processor",
            "load",
            "load, nothing cached",
            "verify",
            "verify, nothing cached",
            "size",
        ]
        print(f"| {place} | {' | '.join(columns)} |")
        print("|" + "---|" * 9)
        reference = found["ways"]["DCP"]["save"]["median_s"]
        for name, way in found["ways"].items():
            figures = [
                f"{way[what]['median_s']:.2f} s" if what in way else ""
                for what in ("load", "load_from_disk", "verify", "verify_from_disk")
            ]
            save = way["save"]["median_s"]
            figures = [
                f"{save:.2f} s",
                f"{save / reference:.2f}",
                f"{way['save_processor']['median_s']:.2f} s",
                *figures,
                f"{way['bytes'] / 1e6:.1f} MB",
            ]
            print(f"| {name} | {' | '.join(figures)} |")
        print()
    print(", ".join(f"{name} {rate / 1e9:.2f} GB/s" for name, rate in document["hash_bytes_per_s"].items()))


if __name__ == "__main__":
    main()
