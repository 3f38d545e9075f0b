"""Rehearse the scripts of `compiled.toml` as they are, and compare with the published steps and memory.

Each run's checkout lies in a folder of its name under `--checkouts`; what its repository does not carry (tokens, a
tokenizer, weights) is made there: random or empty, of the sizes that the script asks for.
"""

import argparse
import json
import os
import pickle
import struct
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE.parent / "results" / "rehearsal_compiled.json"

TIKTOKEN = """
class Encoding:
    eot_token, max_token_value, n_vocab = 50256, 50256, 50257
    def encode(self, text, **_):
        return list(text.encode())
    def decode(self, tokens):
        return ""
    def decode_bytes(self, tokens):
        return b" "
def get_encoding(name):
    return Encoding()
"""
"""In place of tables that come from the network: tokens are bytes."""


def tokens(path: Path, count: int, *, bits: int = 16, header: bool = False) -> None:
    """A file of tokens, all 0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        if header:
            file.write(struct.pack("<3i", 20240520, 1, count) + bytes(1012))
        file.truncate(file.tell() + count * bits // 8)


def prepare(run: dict[str, Any], folder: Path) -> dict[str, str]:
    """Make what a script reads; variables that it needs."""
    if log := run.get("log"):
        text = (folder / log).read_text()
        text = text.lstrip("=\n")
        (folder / run["command"][0]).write_text(text[: text.index("\n====")])
        (folder / "logs").mkdir(exist_ok=True)
        for split in ("train", "val"):
            tokens(folder / f"data/fineweb10B/fineweb_{split}_000001.bin", 100_000_000, header=True)
    repository = run["repository"]
    if repository == "karpathy/nanoGPT":
        for split in ("train", "val"):
            tokens(folder / f"data/openwebtext/{split}.bin", 10_000_000)
    elif repository == "karpathy/llm.c":
        tokens(folder / "data/tiny_shakespeare_val.bin", 32_768, bits=32)
        gpt2_weights(folder / "gpt2")
    elif repository == "karpathy/nanochat":
        return nanochat(folder / "base")
    elif repository == "pytorch/torchtune":
        return {}
    if repository != "karpathy/nanochat":
        (folder / "tiktoken.py").write_text(TIKTOKEN)
    return {}


def gpt2_weights(folder: Path) -> None:
    """GPT-2 as the Hub has it, of random weights."""
    if folder.exists():
        return
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)


def nanochat(base: Path) -> dict[str, str]:
    """Texts, and a tokenizer of 65,536 tokens."""
    if not base.exists():
        import pyarrow
        import pyarrow.parquet
        import tiktoken
        import torch

        special = ["bos", "user_start", "user_end", "assistant_start", "assistant_end", "python_start", "python_end"]
        special += ["output_start", "output_end"]
        count = 2**16 - len(special)
        ranks = {bytes([number]): number for number in range(256)}
        ranks |= {bytes([number >> 8, number & 255]): number + 256 for number in range(count - 256)}
        encoding = tiktoken.Encoding(
            name="rustbpe",
            pat_str=r"\S+|\s+",
            mergeable_ranks=ranks,
            special_tokens={f"<|{name}|>": count + number for number, name in enumerate(special)},
        )
        (base / "tokenizer").mkdir(parents=True)
        (base / "base_data").mkdir()
        (base / "tokenizer/tokenizer.pkl").write_bytes(pickle.dumps(encoding))
        torch.save(torch.ones(2**16, dtype=torch.int32), base / "tokenizer/token_bytes.pt")
        table = pyarrow.table({"text": ["a text of words " * 200] * 8192})
        for shard in range(2):
            pyarrow.parquet.write_table(table, base / f"base_data/shard_{shard:05d}.parquet", row_group_size=1024)
    return {"NANOCHAT_BASE_DIR": str(base)}


def rehearse(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The answer to one rehearsal, beside what was published."""
    variables = prepare(run, folder)
    answer = folder / "answer.json"
    words = ["-m", "trimaran", "rehearse", "--cluster", run["cluster"], "--world", str(run["world"]), "--ranks", "0"]
    words += ["--output", str(answer), "--logs", str(folder / "printed"), "--quiet", "--", *run["command"]]
    if run["command"][0] == "-m":  # before the words of the script
        place = words.index("--")
        words[place : place + 2] = ["-m", "--"]
    environment = {**os.environ, **variables, "PYTHONPATH": str(folder)}
    ended = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if not answer.exists():
        return {"name": run["name"], "ended": ended.stdout[-1500:] + ended.stderr[-1500:]}
    return {"name": run["name"], **judged(run, json.loads(answer.read_text()))}


def judged(run: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Figures of an answer beside the published ones."""
    step, memory = found["step_time"], found["memory"]
    return {"step": step, "memory": memory}


def main() -> None:
    """Rehearse, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkouts", type=Path, required=True, help="folder of the checkouts")
    parser.add_argument("--only", default="", help="part of a name; writes nothing")
    asked = parser.parse_args()
    runs = tomllib.loads((HERE / "compiled.toml").read_text())["run"]
    for run in runs:
        if asked.only in run["name"]:
            print(json.dumps(rehearse(run, (asked.checkouts / run["name"]).resolve()))[:3000], flush=True)


if __name__ == "__main__":
    main()
