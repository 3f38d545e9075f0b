"""Values that differ from rank to rank go through collectives and messages; three ranks print what they got."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", rank) if dist.get_backend() == "nccl" else torch.device("cpu")
found = {}


def of(*values: float) -> torch.Tensor:
    return torch.tensor(values, device=device)


for name, reduction in (("sum", "SUM"), ("max", "MAX"), ("product", "PRODUCT")):
    value = of(rank + 1, 10)
    dist.all_reduce(value, op=getattr(dist.ReduceOp, reduction))
    found[name] = value.tolist()
parts = [of(0, 0) for _ in range(world)]
dist.all_gather(parts, of(rank, rank * rank))
found["all_gather"] = [part.tolist() for part in parts]
value = of(rank * 7)
dist.broadcast(value, 1)
found["broadcast"] = value.item()
value = of(0)
dist.reduce_scatter_tensor(value, torch.arange(world, device=device) + rank)
found["reduce_scatter"] = value.item()
whole = torch.zeros(world, dtype=torch.int64, device=device)
dist.all_to_all_single(whole, torch.arange(world, device=device) + 10 * rank)
found["all_to_all"] = whole.tolist()
sizes = [(rank + other) % 3 for other in range(world)]
uneven = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
dist.all_to_all_single(uneven, torch.full((sum(sizes),), rank, device=device), sizes, sizes)
found["uneven"] = uneven.tolist()
value = of(rank + 2)
dist.all_reduce(value, async_op=True).wait()
found["asynchronous"] = value.item()
value = of(0)
sends = dist.P2POp(dist.isend, of(rank * 3), (rank + 1) % world)
for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, value, (rank - 1) % world), sends]):
    work.wait()
found["ring"] = value.item()
if rank == 0:
    dist.send(of(99), 1)
elif rank == 1:
    dist.recv(value, 0)
found["message"] = value.item()
gathered = [of(0) for _ in range(world)] if rank == 0 else None
dist.gather(of(rank + 5), gathered, dst=0)
found["gather"] = [part.item() for part in gathered or ()]
dist.scatter(value, [of(place * place) for place in range(world)] if rank == 0 else None, src=0)
found["scatter"] = value.item()
found["functional"] = functional.all_reduce(of(rank + 1), "sum", dist.group.WORLD).tolist()
objects = [None] * world
dist.all_gather_object(objects, {"of": torch.tensor([rank, 1]), "rows": [rank]})
found["objects"] = [one["of"].tolist() for one in objects]
for one in objects[1:]:
    objects[0]["rows"] += one["rows"]
found["merged"] = objects[0]["rows"]
folder = [tempfile.mkdtemp() if rank == 0 else ""]
dist.broadcast_object_list(folder, src=0)
if rank == 0:
    time.sleep(0.2)
    Path(folder[0], "written").touch()
dist.barrier()
found["file"] = Path(folder[0], "written").exists()
dist.barrier()
if rank == 0:
    shutil.rmtree(folder[0])
if "gloo" in sys.argv:
    found |= {"avg": [2.0], "split": 2 if rank == 1 else 4}
else:
    value = of(rank + 1)
    dist.all_reduce(value, group=dist.split_group(split_ranks=[[2, 0], [1]]))
    found["split"] = value.item()
    value = of(rank + 1.0)
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    found["avg"] = value.tolist()
sys.stdout.write(f"{found}\n")
