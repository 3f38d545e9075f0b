"""torch.profiler with a schedule, record_function ranges, memory history, and memory figures in every log line."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=1000)
    model = DDP(nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda(), device_ids=[local])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = []
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda p: seen.append(p.step_num),
        record_shapes=True,
        profile_memory=True,
        with_stack=False,
    ) as prof:
        for step in range(4):
            with record_function("## data ##"):
                x = torch.randn(256, 2048, device="cuda")
            with record_function("## forward ##"):
                loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            prof.step()
            free, total = torch.cuda.mem_get_info()
            if dist.get_rank() == 0:
                print(
                    f"step={step} loss={loss.item():.4f} allocated={torch.cuda.memory_allocated()} "
                    f"peak={torch.cuda.max_memory_allocated()} reserved={torch.cuda.memory_reserved()} "
                    f"free={free / total:.1%}",
                    flush=True,
                )
    if dist.get_rank() == 0:
        print(f"traces {seen}; {len(prof.key_averages())} kinds of events")
        folder = tempfile.mkdtemp()
        torch.cuda.memory._dump_snapshot(os.path.join(folder, "memory.pickle"))
        torch.cuda.memory._record_memory_history(enabled=None)
        print(torch.cuda.memory_summary(device=local, abbreviated=False)[:40])
        print("utilization", torch.cuda.utilization() >= 0, flush=True)
    torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
