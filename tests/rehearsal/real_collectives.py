"""What the ranks of real gloo jobs exchange: `python real_collectives.py FOLDER WORLD PORT SCRIPT…`.

Each rank is a process, forked from one that has imported torch; the lists are written as FOLDER/SCRIPT-RANK.json.
A dispatch mode sees each operator of a process group as torch runs it, those that DDP asks for below Python too. The
reduction is not read from what was asked for but found from what came back: the members' inputs are exchanged through
a file, as the job's store ends with its first rank, and the reductions that give the result are noted. It shares no
code with the rehearsal.
"""

import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OPERATIONS = {
    "allreduce_": "all_reduce",
    "broadcast_": "broadcast",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "scatter_": "scatter",
    "gather_": "gather",
    "reduce_": "reduce",
    "barrier": "barrier",
    "send": "send",
    "recv_": "recv",
}
FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
"""Those that give their result; their group is named by their last argument."""

BOTH_WAYS = {"all_reduce", "broadcast", "reduce"}
REDUCTIONS = {
    "sum": lambda stacked: stacked.sum(0),
    "avg": lambda stacked: stacked.sum(0) / stacked.shape[0],
    "max": lambda stacked: stacked.max(0).values,
    "min": lambda stacked: stacked.min(0).values,
}


KEPT: list[object] = []


class Observer(TorchDispatchMode):
    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.calls: list[dict[str, object]] = []
        self.store = store

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # of a DTensor: what it does with its parts comes here
        if func.namespace == "_c10d_functional" and func._schema.name.split("::")[1] in FUNCTIONAL:
            return self.functional(func, args)
        if func.namespace != "c10d":
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("c10d::")
        operation = OPERATIONS[name]
        given, got, peer = [], [], -1
        group = None
        for argument, value in zip(func._schema.arguments, args, strict=False):
            tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
            if isinstance(value, torch.ScriptObject):
                try:
                    group = dist.ProcessGroup.unbox(value)
                except (RuntimeError, TypeError):
                    continue
            elif argument.name in ("dst", "src", "root_rank"):
                peer = value
            elif tensors and operation == "barrier":
                continue
            elif tensors and operation == "recv":
                got += tensors
            elif tensors and operation in BOTH_WAYS:
                given, got = tensors, tensors
            elif tensors and argument.name.startswith("output"):
                got += tensors
            elif tensors:
                given += tensors
        ranks = dist.get_process_group_ranks(group)
        before = [tensor.detach().clone() for tensor in given]
        result = func(*args, **kwargs)
        reductions = []
        if operation in ("all_reduce", "reduce_scatter"):
            (result[-1] if isinstance(result, (tuple, list)) else result).wait()
            reductions = self.reductions_of(operation, ranks, before, got)
        self.note(operation, ranks, given, got, peer, reductions)
        return result

    def functional(self, func, args):
        """An operator that gives its result."""
        operation = FUNCTIONAL[func._schema.name.split("::")[1]]
        ranks = dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(args[-1]))
        before = args[0].detach().clone()
        result = func(*args)
        reductions = []
        if operation in ("all_reduce", "reduce_scatter"):
            torch.ops._c10d_functional.wait_tensor(result)
            reductions = self.reductions_of(operation, ranks, [before], [result])
        self.note(operation, ranks, [before], [result], -1, reductions)
        return result

    def note(self, operation, ranks, given, got, peer, reductions) -> None:
        self.calls.append(
            {
                "operation": operation,
                "ranks": ranks,
                "given": [list(tensor.shape) for tensor in given],
                "got": [list(tensor.shape) for tensor in got],
                "types": sorted({str(tensor.dtype).removeprefix("torch.") for tensor in (*given, *got)}),
                "peer": ranks[peer] if 0 <= peer < len(ranks) else -1,
                "reductions": reductions,
            }
        )

    def reductions_of(self, operation, ranks, given, got) -> list[str]:
        """Reductions that give what came back."""
        mine = dist.get_rank()
        key = f"observed/{'-'.join(map(str, ranks))}/{sum(call['ranks'] == ranks for call in self.calls)}"
        flat = torch.cat([tensor.double().flatten() for tensor in given])
        buffer = io.BytesIO()
        torch.save(flat, buffer)
        self.store.set(f"{key}/{mine}", buffer.getvalue())
        all_given = torch.stack([torch.load(io.BytesIO(self.store.get(f"{key}/{rank}"))) for rank in ranks])
        found = torch.cat([tensor.double().flatten() for tensor in got])
        near = 1e-5 if all(tensor.dtype == torch.float32 for tensor in got) else 1e-2
        matching = []
        for name, reduce in REDUCTIONS.items():
            expected = reduce(all_given)
            if operation == "reduce_scatter":
                expected = expected.view(len(ranks), -1)[ranks.index(mine)]
            if torch.allclose(expected, found, rtol=near, atol=near * all_given.abs().max().item()):
                matching.append(name)
        return matching


def run(script: Path, out: Path, rank: int, world: int, port: int) -> None:
    """Be one rank."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"})
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    observer = Observer(dist.FileStore(str(out.with_name(f"{script.stem}-inputs")), -1))
    with observer:
        # The script has ended its groups. To free what DDP has of them may wait for a thread that waits for the
        # interpreter's lock; the process ends without that.
        KEPT.append(runpy.run_path(str(script), run_name="__main__"))
    out.write_text(json.dumps(observer.calls))


def main(folder: Path, world: int, first_port: int, scripts: list[Path]) -> None:
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401

    for port, script in enumerate(scripts, start=first_port):
        processes = []
        for rank in range(world):
            process = os.fork()
            if not process:
                status = 1
                try:
                    run(script, folder / f"{script.stem}-{rank}.json", rank, world, port)
                    status = 0
                except BaseException:  # noqa: BLE001 - a forked process ends here
                    traceback.print_exc()
                finally:
                    os._exit(status)
            processes.append(process)
        ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        if any(ends):
            sys.exit(f"{script.name}: ranks ended with {ends}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), [Path(path) for path in sys.argv[4:]])
