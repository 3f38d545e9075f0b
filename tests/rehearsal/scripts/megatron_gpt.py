"""Megatron-core's minimal GPT loop: tensor and pipeline parallel from parallel_state, forward_backward_func, its DDP."""

import os
import sys
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

TP, PP = int(sys.argv[1]) if len(sys.argv) > 1 else 2, int(sys.argv[2]) if len(sys.argv) > 2 else 1
LENGTH, MICRO, COUNT, VOCABULARY = 512, 2, 4, 8192


def batches():
    while True:
        tokens = torch.randint(0, VOCABULARY, (MICRO, LENGTH + 1)).cuda()
        yield {
            "tokens": tokens[:, :-1].contiguous(),
            "labels": tokens[:, 1:].contiguous(),
            "position_ids": torch.arange(LENGTH, device="cuda").expand(MICRO, -1),
            "attention_mask": torch.tril(torch.ones(1, 1, LENGTH, LENGTH, device="cuda")) < 0.5,
        }


def loss_func(output):
    loss = output.float().mean()
    return loss, {"lm loss": loss.detach()}


def forward_step(data, model):
    return model(**{("input_ids" if k == "tokens" else k): v for k, v in next(data).items()}), loss_func


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(TP, PP)
    model_parallel_cuda_manual_seed(123)
    config = TransformerConfig(
        num_layers=4,
        hidden_size=1024,
        num_attention_heads=16,
        use_cpu_initialization=False,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        bf16=True,
        tensor_model_parallel_size=TP,
        pipeline_model_parallel_size=PP,
        attention_softmax_in_fp32=True,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    ).cuda()
    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(grad_reduce_in_fp32=False, overlap_grad_reduce=False),
        Float16Module(config, model),
    )
    config.finalize_model_grads_func = finalize_model_grads
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    forward_backward = get_forward_backward_func()
    data = batches()
    for step in range(2):
        optimizer.zero_grad()
        model.zero_grad_buffer()
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=data,
            model=model,
            num_microbatches=COUNT,
            seq_length=LENGTH,
            micro_batch_size=MICRO,
            decoder_seq_length=LENGTH,
            forward_only=False,
        )
        for p in model.parameters():
            p.grad = p.main_grad.to(p.dtype) if getattr(p, "main_grad", None) is not None else p.grad
        optimizer.step()
        last = parallel_state.is_pipeline_last_stage()
        mean = torch.stack([x["lm loss"] for x in losses]).mean() if last else None
        if last and parallel_state.get_tensor_model_parallel_rank() == 0:
            print(f"iteration {step} lm loss {mean.item():.4f} on rank {torch.distributed.get_rank()}", flush=True)
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
