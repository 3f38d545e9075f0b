"""The Hugging Face Trainer: DDP as it comes, or FSDP2 through fsdp_config; evaluation, callbacks, metrics."""

import argparse
import os

import torch
from torch.utils.data import Dataset
from transformers import (
    DataCollatorForLanguageModeling,  # noqa: F401
    EarlyStoppingCallback,  # noqa: F401
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Random(Dataset):
    def __init__(self, count, length, vocabulary):
        self.count, self.length, self.vocabulary = count, length, vocabulary

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        ids = torch.randint(0, self.vocabulary, (self.length,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


class Memory(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print(f"after step {state.global_step}: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()
    set_seed(42)
    extra = {}
    if options.fsdp:
        extra = {
            "fsdp": True,
            "fsdp_config": {
                "version": 2,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
                "reshard_after_forward": True,
                "state_dict_type": "SHARDED_STATE_DICT",
            },
        }
    arguments = TrainingArguments(
        output_dir=os.environ.get("OUTPUT_DIR", "trainer_out"),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=options.accumulate,
        max_steps=options.steps,
        learning_rate=2e-5,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        bf16=True,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        eval_strategy="steps" if options.evaluate else "no",
        eval_steps=2,
        dataloader_num_workers=1,
        gradient_checkpointing=options.fsdp,
        **extra,
    )
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=options.layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        max_position_embeddings=1024,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Random(65536, 512, config.vocab_size),
        eval_dataset=Random(64, 512, config.vocab_size),
        callbacks=[Memory()],
    )
    result = trainer.train()
    if trainer.is_world_process_zero():
        print(f"trained {result.global_step} steps, mean loss {result.training_loss:.3f}", flush=True)
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
