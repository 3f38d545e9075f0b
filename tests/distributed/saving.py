"""A rank that saves checkpoints until it is killed: `python saving.py FOLDER RANK RANKS FIRST`.

Ranks agree through files next to the folder, so that nothing but the protocol and the kill matters. Rank 0 writes a
line `committed STEP` when a commit has returned.
"""

import sys
import time
from pathlib import Path

from trimaran.checkpoint_files.commit import FileEntry, Store

SIZE = 3_000_000


def content(step: int, rank: int) -> bytes:
    return (f"step {step} of rank {rank}; ".encode() * (SIZE // 16))[:SIZE]


def wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(0.001)
    return path.read_text()


def put(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}")
    part.write_text(text)
    part.rename(path)


def main(folder: Path, rank: int, ranks: int, first: int) -> None:
    store, talk = Store(folder), folder.parent / f"talk-{first}"
    talk.mkdir(exist_ok=True)
    for step in range(first, first + 1000):
        if rank == 0:
            draft = store.begin(step, ranks=ranks)
            put(talk / f"draft-{step}", draft.name)
        else:
            draft = store.join(wait_for(talk / f"draft-{step}"))
        entry = draft.write(f"rank{rank}.safetensors", [content(step, rank)], size=SIZE)
        put(talk / f"entry-{step}-{rank}", " ".join(map(str, entry.checksums)))
        if rank == 0:
            entries = [entry]
            for other in range(1, ranks):
                checksums = wait_for(talk / f"entry-{step}-{other}").split()
                entries.append(FileEntry(f"rank{other}.safetensors", SIZE, tuple(map(int, checksums))))
            draft.commit(entries, {"state.json": {"step": step}})
            print(f"committed {step}", flush=True)  # noqa: T201
            store.prune()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
