"""An accelerate script as `accelerate launch` starts it: prepare, accumulate, gather_for_metrics, a tracker of its own."""

import argparse

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.logging import get_logger
from accelerate.utils import DistributedDataParallelKwargs, ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

logger = get_logger(__name__, log_level="INFO")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--precision", default="bf16")
    options = parser.parse_args()
    plugin = None
    if options.fsdp:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["GPT2Block"],
            reshard_after_forward=True,
        )
    accelerator = Accelerator(
        mixed_precision=options.precision,
        gradient_accumulation_steps=options.accumulate,
        fsdp_plugin=plugin,
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        project_config=ProjectConfiguration(project_dir="."),
    )
    set_seed(1)
    accelerator.print(f"{accelerator.distributed_type} on {accelerator.num_processes} processes, {accelerator.device}")
    config = GPT2Config(n_layer=6, n_embd=768, n_head=12, n_positions=512, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config)
    count = 8 * accelerator.num_processes * 4
    data = TensorDataset(torch.randint(0, config.vocab_size, (count, 512)))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    held = DataLoader(TensorDataset(torch.randint(0, config.vocab_size, (8 * accelerator.num_processes, 512))), 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 1000)
    model, optimizer, loader, held, schedule = accelerator.prepare(model, optimizer, loader, held, schedule)
    done = 0
    for (tokens,) in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            done += 1
            mean = accelerator.reduce(loss.detach(), reduction="mean")
            accelerator.print(f"step {done}: loss {mean.item():.3f} lr {schedule.get_last_lr()[0]:.2e}", flush=True)
        if done == 2:
            break
    model.eval()
    losses = []
    for (tokens,) in held:
        with torch.no_grad():
            loss = model(input_ids=tokens, labels=tokens).loss
        losses.append(accelerator.gather_for_metrics(loss.repeat(4)))
    perplexity = torch.exp(torch.mean(torch.cat(losses)))
    accelerator.print(f"perplexity {perplexity.item():.2f} over {len(torch.cat(losses))} rows")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
