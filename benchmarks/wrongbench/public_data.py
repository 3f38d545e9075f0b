"""Settings and data with which public scripts are small."""

import json
import sys
from pathlib import Path


def picotron() -> None:
    """A model of two layers, one page of stories, and a file of settings for each degree."""
    import datasets
    import transformers

    folder = Path("tiny")
    words = {f"w{number}": number for number in range(60)} | {"<unk>": 60}
    from tokenizers import Tokenizer, models, pre_tokenizers

    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>").save_pretrained(folder)
    made = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    network = transformers.LlamaForCausalLM(made)
    network.save_pretrained(folder)
    for kept in (Path("hf_model") / folder, Path("hf_model_safetensors")):
        network.save_pretrained(kept)
    texts = [" ".join(f"w{(place * 7 + k * k) % 60}" for k in range(200)) for place in range(200)]
    Path("stories").mkdir(exist_ok=True)
    datasets.Dataset.from_dict({"text": texts}).to_parquet("stories/train.parquet")
    given = json.loads(Path("template/base_config.json").read_text())
    given["model"] |= {
        "name": str(folder), "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
        "use_flash_attention": False,
    }  # fmt: skip
    given["training"] |= {"seq_length": 32, "micro_batch_size": 2, "gradient_accumulation_steps": 2, "num_samples": 200}
    given["dataset"] |= {"name": "stories"}
    given["environment"] |= {"HF_TOKEN": "none", "FLASH_ATTEN": "0"}
    for degree in ("dp", "tp", "pp"):
        for world in (1, 2, 4):
            sizes = dict.fromkeys(("tp_size", "cp_size", "pp_size", "dp_size"), 1) | {f"{degree}_size": world}
            Path(f"{degree}{world}.json").write_text(json.dumps(given | {"distributed": given["distributed"] | sizes}))


if __name__ == "__main__":
    {"picotron": picotron}[sys.argv[1]]()
