"""Published memory of torchtitan's Llama 3.1 8B under FSDP2, next to a rehearsal of the training script of that commit.

    git -C torchtitan worktree add ../torchtitan-9dec370 9dec370
    pip install datasets torchdata tiktoken tensorboard
    python benchmarks/rehearsal/published_memory.py torchtitan-9dec370

`train.py` and `train_configs/llama3_8b.toml` run as they are, with a batch of 2, as the table says. What no one can
download here is made: a tokenizer of as many tokens, and a text. Nothing is fitted. The card of the table has 96 GB,
the rehearsed one has more, so that whether it fits is not the question.
"""

import argparse
import base64
import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from environment import describe_environment, write_result

import trimaran

COMMIT = "9dec370"
RESERVED_GIB = {8: 82.4, 128: 67.0}
"""Of eager rows by number of GPUs: pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md."""
ALLOCATORS = {"default": "", "expandable segments": "expandable_segments:True"}
"""The script for one node asks for expandable segments, that for several does not; the table says neither."""
TOKENS = 128_000
STEPS = 4
"""From the second one on the figure is the same."""


def prepare(source: Path, folder: Path) -> Path:
    """A copy of the checkout with what it would download."""
    made = folder / "torchtitan"
    shutil.copytree(source, made, ignore=shutil.ignore_patterns(".git", "outputs"))
    # Else an installed torchtitan would be found first.
    (made / "torchtitan" / "__init__.py").touch()
    single = [bytes([value]) for value in range(256)]
    words = (bytes(letters) for letters in itertools.product(range(97, 123), repeat=5))
    tokens = [*single, *itertools.islice(words, TOKENS - len(single))]
    lines = (f"{base64.b64encode(token).decode()} {number}" for number, token in enumerate(tokens))
    (made / "tokenizer.model").write_text("\n".join(lines), encoding="utf-8")
    texts = made / "tests" / "assets" / "c4_test"
    texts.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"text": " ".join(f"word{number}" for number in range(400))})
    (texts / "data.json").write_text(f"{text}\n" * 3000, encoding="utf-8")
    return made


def case(world: int, allocator: str) -> dict[str, Any]:
    arguments = ["--job.config_file", "train_configs/llama3_8b.toml", "--training.batch_size", "2"]
    arguments += ["--training.dataset", "c4_test", "--model.tokenizer_path", "tokenizer.model"]
    found = trimaran.rehearse(
        "train.py",
        [*arguments, "--training.steps", str(STEPS)],
        world=world,
        cluster=f"dgx-h200:{world // 8}",
        ranks="0",
        steps=STEPS,
        alloc_conf=ALLOCATORS[allocator],
    )
    reserved, published = max(one.reserved_bytes for one in found.ranks) / 2**30, RESERVED_GIB[world]
    return {
        "gpus": world,
        "allocator": allocator,
        "published_reserved_gib": published,
        "rehearsed_reserved_gib": round(reserved, 2),
        "error": round(reserved / published - 1.0, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help=f"a checkout of torchtitan at {COMMIT}")
    asked = parser.parse_args()
    os.environ |= {"HF_DATASETS_OFFLINE": "1"}
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        made = prepare(asked.source.absolute(), Path(folder))
        os.environ |= {"HF_HOME": f"{folder}/home", "PYTHONPATH": f"{made}:{os.environ.get('PYTHONPATH', '')}"}
        with contextlib.chdir(made):
            for world, allocator in itertools.product(RESERVED_GIB, ALLOCATORS):
                cases.append(case(world, allocator))
                print(cases[-1], flush=True)
    document = {"schema_version": 1, "environment": describe_environment(), "commit": COMMIT, "cases": cases}
    write_result(document, "rehearsal_published_memory")


if __name__ == "__main__":
    main()
