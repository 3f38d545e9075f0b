"""FSDP1 with its wrap policies, offload, and all kinds of state dicts."""
# ruff: noqa - as others write

import functools, os, sys, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    CPUOffload,
    ShardingStrategy,
    BackwardPrefetch,
    StateDictType,
    FullStateDictConfig,
    FullOptimStateDictConfig,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy, size_based_auto_wrap_policy, enable_wrap, wrap
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
    CheckpointImpl,
    apply_activation_checkpointing,
)

mode = sys.argv[1] if len(sys.argv) > 1 else "plain"
dist.init_process_group("nccl")
rank = dist.get_rank()
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)


class L(nn.Module):
    def __init__(s, d=256):
        super().__init__()
        s.l = nn.TransformerEncoderLayer(d, 4, 4 * d, batch_first=True, norm_first=True)

    def forward(s, x):
        return s.l(x)


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(1000, 256)
        s.b = nn.Sequential(*[L() for _ in range(3)])
        s.h = nn.Linear(256, 1000)

    def forward(s, x):
        return s.h(s.b(s.e(x)))


if mode == "meta":
    with torch.device("meta"):
        m = M()
    kw = dict(param_init_fn=lambda mod: mod.to_empty(device="cuda", recurse=False))
else:
    m = M()
    kw = {}
policy = (
    functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={L})
    if mode != "size"
    else functools.partial(size_based_auto_wrap_policy, min_num_params=100000)
)
bf = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)
strategy = {
    "hybrid": ShardingStrategy.HYBRID_SHARD,
    "grad": ShardingStrategy.SHARD_GRAD_OP,
    "no": ShardingStrategy.NO_SHARD,
}.get(mode, ShardingStrategy.FULL_SHARD)
m = FSDP(
    m,
    auto_wrap_policy=policy,
    mixed_precision=bf,
    sharding_strategy=strategy,
    device_id=torch.cuda.current_device(),
    limit_all_gathers=True,
    forward_prefetch=True,
    backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
    cpu_offload=CPUOffload(offload_params=True) if mode == "offload" else None,
    use_orig_params=mode in ("orig", "meta"),
    sync_module_states=mode == "orig",
    **kw,
)
apply_activation_checkpointing(
    m,
    checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
    check_fn=lambda s: isinstance(s, L),
)
if rank == 0:
    print(m)
o = torch.optim.AdamW(m.parameters(), 1e-3)
sch = torch.optim.lr_scheduler.StepLR(o, 1, 0.8)
for step in range(3):
    x = torch.randint(0, 1000, (4, 128), device="cuda")
    loss = nn.functional.cross_entropy(m(x).flatten(0, 1).float(), x.flatten())
    loss.backward()
    n = m.clip_grad_norm_(1.0)
    o.step()
    o.zero_grad()
    sch.step()
    dl = torch.zeros(2, device="cuda")
    dl[0] += loss.item()
    dl[1] += len(x)
    dist.all_reduce(dl)
    if rank == 0:
        print(
            f"step {step} loss {dl[0] / dl[1]:.4f} gnorm {n.item():.3f} mem {torch.cuda.max_memory_allocated() / 2**30:.3f}"
        )
with FSDP.state_dict_type(
    m,
    StateDictType.FULL_STATE_DICT,
    FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
    FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True),
):
    sd = m.state_dict()
    od = FSDP.optim_state_dict(m, o)
if rank == 0:
    torch.save({"m": sd, "o": od}, "full.pt")
    print("full state", len(sd))
with FSDP.state_dict_type(m, StateDictType.SHARDED_STATE_DICT):
    sh = m.state_dict()
    m.load_state_dict(sh)
with FSDP.state_dict_type(m, StateDictType.LOCAL_STATE_DICT) if False else FSDP.summon_full_params(m, writeback=False):
    print(rank, "summoned", sum(p.numel() for p in m.parameters()))
dist.barrier()
dist.destroy_process_group()
print("done")
