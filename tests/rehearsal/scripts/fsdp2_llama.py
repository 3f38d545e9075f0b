"""Llama from its transformers configuration under FSDP2: made on meta, bfloat16, activation checkpointing."""

import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "tiny": dict(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                 num_key_value_heads=4, vocab_size=4096),
    "1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
               num_key_value_heads=8, vocab_size=128256),
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, vocab_size=128256),
    "70b": dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
                num_key_value_heads=8, vocab_size=128256),
}  # fmt: skip

parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=SIZES, default="1b")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--length", type=int, default=8192)
parser.add_argument("--checkpointing", choices=["none", "wrapper", "transformers"], default="wrapper")
args = parser.parse_args()

local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device(f"cuda:{local_rank}")
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
rank = dist.get_rank()
logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
log = logging.getLogger("train")
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))

config = LlamaConfig(
    **SIZES[args.size], max_position_embeddings=args.length, tie_word_embeddings=False, attn_implementation="sdpa"
)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
model.config.use_cache = False
if args.checkpointing == "transformers":
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.train()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for number, layer in enumerate(model.model.layers):
    if args.checkpointing == "wrapper":
        layer = checkpoint_wrapper(layer)
        model.model.layers[number] = layer
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
assert isinstance(model, FSDPModule)
model.to_empty(device="cuda")
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.trunc_normal_(parameter, std=0.02)
        else:
            torch.nn.init.ones_(parameter)
model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
log.info("sharded over %d ranks: %.2f GiB of parameters", mesh.size(), torch.cuda.memory_allocated() / 2**30)

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
for step in range(args.steps):
    start = time.perf_counter()
    tokens = torch.randint(0, config.vocab_size, (args.batch, args.length), device=device)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach().clone()
    dist.all_reduce(shown, op=dist.ReduceOp.AVG)
    log.info(
        "step %d loss %.4f grad norm %.4f time %.2f s peak %.2f GiB",
        step,
        shown.item(),
        norm.full_tensor().item(),
        time.perf_counter() - start,
        torch.cuda.max_memory_allocated() / 2**30,
    )
dist.destroy_process_group()
log.info("finished")
