"""Facts of an observed process: versions, ranks, model, loader, memory. Read rarely, never while a step runs."""

import os
import platform
import resource
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset

from trimaran_watch.ledger import KINDS, LEDGER
from trimaran_watch.roots import SEEN

_MOST_PLACES = 8
# How the classes are named that shard: those of the first form, and those that the second one makes.
_FSDP = ("FullyShardedDataParallel", "FSDP")


def describe_process() -> dict[str, Any]:
    """Figures of the process, in SI units, by name."""
    rank, world = _place()
    return {
        "pid": os.getpid(),
        "rank": rank,
        "world": world,
        "host": platform.node(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "model": _model(),
        "optimizer": _optimizer(),
        "loader": _loader(),
        "batch_nbytes": _batch_nbytes(),
        "memory": _memory(),
        "compiled": "torch._dynamo" in sys.modules and _compiled(),
        "other_optimizers": SEEN.others,
        "places": _places(),
    }


def _places() -> list[dict[str, Any]]:
    """Lines of code that waited longest in steps without an evaluation."""
    longest = sorted(LEDGER.all_places.items(), key=lambda entry: -entry[1][1])[:_MOST_PLACES]
    return [
        {
            "kind": KINDS[kind],
            "line": f"{_shortened(file)}:{line}",
            "function": function,
            "library": any(f"{os.sep}{folder}{os.sep}" in file for folder in ("site-packages", "dist-packages")),
            "calls": calls,
            "ns": ns,
        }
        for (kind, file, line, function), (calls, ns) in longest
    ]


def _shortened(file: str) -> str:
    """A file as it is imported: below the folder of the path that it was found in."""
    roots = [root for root in sys.path if root and file.startswith(root.rstrip(os.sep) + os.sep)]
    return file[len(max(roots, key=len).rstrip(os.sep)) + 1 :] if roots else file


def device_type() -> str:
    """Where the main root's parameters are; "cpu" where there is none."""
    if SEEN.main is None:
        return "cpu"
    first = next(SEEN.main.parameters(), None)
    return "cpu" if first is None else first.device.type


_known_place: list[tuple[int, int]] = []


def _place() -> tuple[int, int]:
    # Kept, because a script may leave its group before it ends.
    if dist.is_available() and dist.is_initialized():
        _known_place[:] = [(dist.get_rank(), dist.get_world_size())]
    return _known_place[0] if _known_place else (0, 1)


def _model() -> dict[str, Any] | None:
    model = SEEN.main
    if model is None:
        return None
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {
        "name": type(inner).__name__,
        "device": device_type(),
        "parameters": sum(parameter.numel() for parameter in trained),
        "parameter_nbytes": sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()),
        "gradient_nbytes": sum(parameter.numel() * parameter.element_size() for parameter in trained),
        "gradient_dtypes": sorted({str(parameter.dtype).removeprefix("torch.") for parameter in trained}),
        "tensors": len(trained),
        "ddp": _ddp(model) if isinstance(model, DistributedDataParallel) else None,
        "fsdp": any(type(module).__name__.startswith(_FSDP) for module in model.modules()),
        "roots": len(SEEN.roots),
    }


def _ddp(model: DistributedDataParallel) -> dict[str, Any]:
    logged = model._get_ddp_logging_data()
    return {
        "backend": str(logged.get("backend_name", "")),
        "comm_hook": str(logged.get("comm_hook", "")),
        "buckets": str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""),
        # Of the backwards that DDP itself has timed: the first ten, then every hundredth.
        "exchange_ns": int(logged.get("avg_backward_comm_time", 0)),
        "overlapped_ns": int(logged.get("avg_backward_compute_comm_overlap_time", 0)),
    }


def _optimizer() -> dict[str, Any] | None:
    optimizer = SEEN.optimizer
    if optimizer is None:
        return None
    kept = (value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values())
    return {
        "name": type(optimizer).__name__,
        "fused": bool(optimizer.defaults.get("fused")),
        "foreach": bool(optimizer.defaults.get("foreach")),
        "state_nbytes": sum(value.numel() * value.element_size() for value in kept if isinstance(value, torch.Tensor)),
    }


def _loader() -> dict[str, Any] | None:
    loader = SEEN.loader
    if loader is None:
        return None
    return {
        "workers": loader.num_workers,
        "iterable": isinstance(loader.dataset, IterableDataset),
        "batch_size": loader.batch_size,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": bool(loader.persistent_workers),
        "pin_memory": bool(loader.pin_memory),
    }


def _batch_nbytes() -> int:
    leaves = tree_leaves(SEEN.inputs)
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _host_nbytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _memory() -> dict[str, int | None]:
    cuda = torch.cuda.is_initialized()
    return {
        "peak_nbytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_peak_nbytes": torch.cuda.max_memory_allocated() if cuda else None,
        "total_nbytes": torch.cuda.mem_get_info()[1] if cuda else _host_nbytes(),
        "device_reserved_nbytes": torch.cuda.max_memory_reserved() if cuda else None,
    }


def _compiled() -> bool:
    from torch._dynamo.utils import counters

    return bool(counters["frames"].get("ok"))
