"""Data and weights of zeros in the form in which public training scripts look for them, beside the script.

    python benchmarks/rehearsal/strangers_data.py images FOLDER CLASSES NUMBER      # FOLDER/{train,val}/c0/0.jpg …
    python benchmarks/rehearsal/strangers_data.py pets FOLDER NUMBER                # FOLDER/cat_0.jpg …
    python benchmarks/rehearsal/strangers_data.py table FOLDER NUMBER [column=words|int|image|list …]    # of `datasets`
    python benchmarks/rehearsal/strangers_data.py model FOLDER CLASS [option=value …]  # of transformers, published form
    python benchmarks/rehearsal/strangers_data.py tokenizer FOLDER bert|bytes SIZE
    python benchmarks/rehearsal/strangers_data.py timm FOLDER NETWORK               # HF_HOME with weights of timm
    python benchmarks/rehearsal/strangers_data.py metric FOLDER                     # of `evaluate`
    python benchmarks/rehearsal/strangers_data.py diffusion FOLDER                  # Stable Diffusion v1.5 in its form

Weights are files with a hole: a header of safetensors and nothing behind it on the disk.
"""

import json
import sys
from math import prod
from pathlib import Path
from typing import Any

WORDS = [
    "a",
    "rank",
    "gives",
    "each",
    "other",
    "rank",
    "what",
    "it",
    "has",
    "of",
    "the",
    "sum",
    "and",
    "takes",
    "what",
    "it",
    "lacks",
    "of",
    "it",
]
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
BERT = {
    "vocab_size": 28996,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
UNET = {
    "sample_size": 64,
    "in_channels": 4,
    "out_channels": 4,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
    "block_out_channels": [320, 640, 1280, 1280],
    "layers_per_block": 2,
}
VAE = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    "sample_size": 512,
    "layers_per_block": 2,
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}
CLIP = {
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "projection_dim": 768,
}
SCHEDULER = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "set_alpha_to_one": False,
    "steps_offset": 1,
    "skip_prk_steps": True,
}


def words(number: int, at: int) -> str:
    """Plain words."""
    return " ".join(WORDS[(at + k * 7) % len(WORDS)] for k in range(number))


def picture(at: int, size: int = 96) -> Any:
    """One picture of one colour."""
    from PIL import Image

    return Image.new("RGB", (size, size), (at * 37 % 256, at * 91 % 256, at * 13 % 256))


def images(folder: Path, classes: int, number: int) -> None:
    """A tree that torchvision's ImageFolder reads."""
    for split in ("train", "val"):
        for k in range(classes):
            (folder / split / f"c{k}").mkdir(parents=True, exist_ok=True)
            for at in range(number):
                picture(at + k).save(folder / split / f"c{k}" / f"{at}.jpg")


def pets(folder: Path, number: int) -> None:
    """Pictures whose name has the class."""
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(number):
        picture(at).save(folder / f"{('cat', 'dog')[at % 2]}_{at}.jpg")


def table(folder: Path, number: int, *columns: str) -> None:
    """A data set of `datasets` in a folder, one configuration for every name that may be asked for."""
    import datasets

    def value(kind: str, at: int) -> Any:
        if kind == "image":
            return picture(at, 512)
        if kind == "int":
            return at % 2
        if kind == "messages":
            return [{"role": "user", "content": words(20, at)}, {"role": "assistant", "content": words(200, at)}]
        return words(int(kind), at)

    rows = {name: [value(kind, at) for at in range(number)] for name, kind in (each.split("=") for each in columns)}
    folder.mkdir(parents=True, exist_ok=True)
    kept = datasets.Dataset.from_dict(rows)
    for split in ("train", "validation", "test"):
        kept.to_parquet(folder / f"{split}.parquet")
    names = ["default", "mrpc", "wikitext-2-v1", "wikitext-2-raw-v1"]
    lines = [f"- config_name: {name}\n  data_files:\n" + "".join(
        f"  - split: {split}\n    path: {split}.parquet\n" for split in ("train", "validation", "test")
    ) for name in names]  # fmt: skip
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(lines) + "---\n")


METRIC = """import datasets
import evaluate


class Metric(evaluate.Metric):
    def _info(self):
        whole = datasets.Value("int64")
        features = datasets.Features({"predictions": whole, "references": whole})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
"""


def metric(folder: Path) -> None:
    """A metric of `evaluate`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{folder.name}.py").write_text(METRIC)


def hollow(file: Path, tensors: dict[str, Any]) -> None:
    """A file of safetensors whose values are a hole in it."""
    types = {"torch.float32": "F32", "torch.bfloat16": "BF16", "torch.float16": "F16", "torch.int64": "I64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        end = at + prod(tensor.shape) * tensor.element_size()
        header[name] = {"dtype": types[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + at)


def model(folder: Path, name: str, *options: str) -> None:
    """The configuration of a class of transformers, with what is given, and its weights."""
    import torch
    import transformers

    given = {key: json.loads(value) for key, value in (each.split("=", 1) for each in options)}
    kept, has_values = getattr(torch, given.pop("dtype", "float32")), given.pop("values", False)
    made = getattr(transformers, name)
    config = made.config_class(**{**(BERT if name.startswith("Bert") else {}), **given})
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [name]
    config.dtype = kept
    config.save_pretrained(folder)
    if has_values:
        torch.manual_seed(0)
        made(config).to(kept).save_pretrained(folder)
        return
    with torch.device("meta"):
        built = made(config).to(kept)
    tied = (
        set(getattr(built, "_tied_weights_keys", None) or ())
        if getattr(config, "tie_word_embeddings", False)
        else set()
    )
    hollow(folder / "model.safetensors", {key: each for key, each in built.state_dict().items() if key not in tied})


def hub(folder: Path, name: str) -> None:
    """A network of timm with its published head, where the Hub's client keeps what it has loaded."""
    import timm
    import torch

    with torch.device("meta"):
        built = timm.create_model(name)
    kept = folder / "hub" / f"models--{built.default_cfg['hf_hub_id'].replace('/', '--')}"
    (kept / "snapshots" / "0").mkdir(parents=True, exist_ok=True)
    (kept / "refs").mkdir(exist_ok=True)
    (kept / "refs" / "main").write_text("0")
    hollow(kept / "snapshots" / "0" / "model.safetensors", built.state_dict())


def tokenizer(folder: Path, kind: str, size: int) -> None:
    """A tokenizer with as many words as a published one has."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "bert":
        lines = [
            "[PAD]",
            *(f"[unused{k}]" for k in range(1, 100)),
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            *sorted(set(WORDS)),
        ]
        lines += [f"w{k}" for k in range(size - len(lines))]
        (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"do_lower_case": False, "model_max_length": 512, "tokenizer_class": "BertTokenizer"})
        )
        return
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {each: k for k, each in enumerate(letters)} | {f"w{k}": k for k in range(256, size - 1)}
    made = Tokenizer(models.BPE(vocab=vocabulary | {"<|endoftext|>": size - 1}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    settings = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024, "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def diffusion(folder: Path) -> None:
    """Stable Diffusion v1.5: its U-Net, autoencoder, text encoder, tokenizer and scheduler."""
    import diffusers
    import torch
    import transformers

    parts = {
        "unet": diffusers.UNet2DConditionModel,
        "vae": diffusers.AutoencoderKL,
    }
    for name, made in parts.items():
        with torch.device("meta"):
            built = made(**(UNET if name == "unet" else VAE))
        (folder / name).mkdir(parents=True, exist_ok=True)
        built.save_config(folder / name)
        hollow(folder / name / "diffusion_pytorch_model.safetensors", built.state_dict())
    model(folder / "text_encoder", "CLIPTextModel", *(f"{key}={json.dumps(value)}" for key, value in CLIP.items()))
    (folder / "scheduler").mkdir(exist_ok=True)
    diffusers.PNDMScheduler(**SCHEDULER).save_config(folder / "scheduler")
    (folder / "tokenizer").mkdir(exist_ok=True)
    letters = [
        *map(chr, range(33, 127)),
        *map(chr, range(161, 173)),
        *map(chr, range(174, 256)),
        *map(chr, range(256, 324)),
    ]
    vocabulary = {each: k for k, each in enumerate([*letters, *(f"{each}</w>" for each in letters)])}
    vocabulary |= {f"w{k}": k for k in range(512, 49406)} | {"<|startoftext|>": 49406, "<|endoftext|>": 49407}
    (folder / "tokenizer" / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    names = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({**names, "model_max_length": 77, "tokenizer_class": "CLIPTokenizer"})
    )
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.6.0",
        "requires_safety_checker": False,
        "scheduler": ["diffusers", "PNDMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "safety_checker": [None, None],
        "feature_extractor": [None, None],
    }
    assert transformers
    (folder / "model_index.json").write_text(json.dumps(index))


def main() -> None:
    kind, folder, *others = sys.argv[1:]
    if kind == "images":
        images(Path(folder), int(others[0]), int(others[1]))
    elif kind == "pets":
        pets(Path(folder), int(others[0]))
    elif kind == "table":
        table(Path(folder), int(others[0]), *others[1:])
    elif kind == "model":
        model(Path(folder), others[0], *others[1:])
    elif kind == "tokenizer":
        tokenizer(Path(folder), others[0], int(others[1]))
    elif kind == "timm":
        hub(Path(folder), others[0])
    elif kind == "metric":
        metric(Path(folder))
    elif kind == "diffusion":
        diffusion(Path(folder))
    else:
        sys.exit(f"no such kind of data: {kind}")


if __name__ == "__main__":
    main()
