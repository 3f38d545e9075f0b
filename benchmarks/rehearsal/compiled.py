"""Rehearse the scripts of `compiled.toml` as they are, and compare with the published steps and memory.

Each run's checkout lies in a folder of its name under `--checkouts`; what its repository does not carry (tokens, a
tokenizer, weights) is made there: random or empty, of the sizes that the script asks for.
"""

import argparse
import json
import os
import pickle
import struct
import sys
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from environment import describe_environment, write_result

from trimaran.features.rehearse.ask import ask, find_target
from trimaran.features.rehearse.runs import rehearse_ranks
from trimaran.rehearsal.fusion import fused
from trimaran.rehearsal.memory import read_memory
from trimaran.rehearsal.record import Record, read_record, write_record
from trimaran.rehearsal.time import step_time

HERE = Path(__file__).parent

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


def record_of(run: dict[str, Any], folder: Path) -> Record:
    """Rank 0 of a run, rehearsed for two steps; one that is there is read."""
    path = folder / "rank0.record"
    if not path.exists():
        os.environ |= prepare(run, folder) | {"PYTHONPATH": str(folder)}
        os.chdir(folder)
        script, *arguments = [word for word in run["command"] if word != "-m"]
        is_module = len(arguments) + 1 < len(run["command"])
        sys.path.insert(0, str(folder))
        asked = ask(
            script,
            arguments,
            world=run["world"],
            cluster=run["cluster"],
            is_module=is_module,
            ranks="0",
            steps=2,
            limit="30min",
        )
        write_record(path, rehearse_ranks(asked).records[0])
        sys.path.remove(str(folder))  # where a tiktoken.py may lie
    return read_record(path)


def judged(run: dict[str, Any], record: Record) -> dict[str, Any]:
    """What is said of a run, beside what was published."""
    machine = find_target(run["cluster"], world=run["world"], per_node=None, memory=None).machine
    step, memory = step_time([record], machine).step, read_memory(record)
    fused_record = fused(record)
    return {
        "name": run["name"],
        "published_s": run["seconds"],
        "step_s": step.seconds,
        "interval_s": [step.low, step.high],
        "error": step.seconds / run["seconds"] - 1.0,
        "within": step.low <= run["seconds"] <= step.high,
        "verdict": memory.fit.verdict,
        "reserved_bytes": memory.reserved,
        "fused_bytes": read_memory(fused_record).reserved,
    }


def main() -> None:
    """Rehearse, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkouts", type=Path, required=True, help="folder of the checkouts")
    parser.add_argument("--only", default="", help="part of a name; writes nothing")
    asked = parser.parse_args()
    runs = tomllib.loads((HERE / "compiled.toml").read_text())["run"]
    cases = []
    for run in runs:
        if asked.only in run["name"]:
            cases.append(judged(run, record_of(run, (asked.checkouts / run["name"]).resolve())))
            print(json.dumps(cases[-1]), flush=True)
    errors = [abs(case["error"]) for case in cases]
    summary = {"median_error": median(errors), "within": sum(case["within"] for case in cases), "cases": len(cases)}
    print(json.dumps(summary))
    if not asked.only:
        write_result(
            {"schema_version": 1, "environment": describe_environment(), "summary": summary, "cases": cases},
            "rehearsal_compiled",
        )


if __name__ == "__main__":
    main()
