"""Other architectures of transformers in a plain DDP loop: BERT, T5, ViT, Mixtral, Mamba, Whisper; by name."""

import os
import sys

import torch
import torch.distributed as dist
import transformers as hf
from torch.nn.parallel import DistributedDataParallel as DDP


def build(name):
    ids = lambda v, b=4, t=128: torch.randint(5, v, (b, t), device="cuda")
    if name == "bert":
        config = hf.BertConfig(num_hidden_layers=4)
        mask = torch.ones(4, 128, dtype=torch.long, device="cuda")
        mask[:, 100:] = 0
        return hf.BertForMaskedLM(config), lambda: dict(
            input_ids=(x := ids(config.vocab_size)),
            attention_mask=mask,
            labels=x.masked_fill(torch.rand_like(x.float()) > 0.15, -100),
        )
    if name == "t5":
        config = hf.T5Config(num_layers=3, d_model=512, decoder_start_token_id=0)
        return hf.T5ForConditionalGeneration(config), lambda: dict(
            input_ids=ids(config.vocab_size), labels=ids(config.vocab_size, t=32)
        )
    if name == "vit":
        config = hf.ViTConfig(num_hidden_layers=4, num_labels=100)
        return hf.ViTForImageClassification(config), lambda: dict(
            pixel_values=torch.randn(4, 3, 224, 224, device="cuda"), labels=torch.randint(0, 100, (4,), device="cuda")
        )
    if name == "mixtral":
        config = hf.MixtralConfig(
            hidden_size=512, intermediate_size=1024, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
            num_local_experts=8, vocab_size=8000, output_router_logits=True, use_cache=False,
        )  # fmt: skip
        return hf.MixtralForCausalLM(config), lambda: dict(input_ids=(x := ids(8000)), labels=x)
    if name == "mamba":
        config = hf.MambaConfig(hidden_size=512, num_hidden_layers=3, vocab_size=8000, use_cache=False)
        return hf.MambaForCausalLM(config), lambda: dict(input_ids=(x := ids(8000, 2, 64)), labels=x)
    if name == "whisper":
        config = hf.WhisperConfig(encoder_layers=2, decoder_layers=2, d_model=256, decoder_start_token_id=1,
                                  encoder_attention_heads=4, decoder_attention_heads=4,
                                  encoder_ffn_dim=512, decoder_ffn_dim=512, use_cache=False)  # fmt: skip
        return hf.WhisperForConditionalGeneration(config), lambda: dict(
            input_features=torch.randn(2, config.num_mel_bins, 3000, device="cuda"), labels=ids(1000, 2, 24)
        )
    raise SystemExit(f"unknown {name}")


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    for name in sys.argv[1:] or ["bert"]:
        model, batch = build(name)
        model = DDP(model.cuda().train(), device_ids=[torch.cuda.current_device()], find_unused_parameters=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for step in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(**batch()).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"{name} step {step} loss {loss.item():.3f}", flush=True)
        del model, optimizer
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
