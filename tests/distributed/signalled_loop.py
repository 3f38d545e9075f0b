"""A user's script that gets signals: `trimaran.init` and a loop, closed in several manners."""

import signal
import sys
import threading
from pathlib import Path

import torch
from tests.distributed.signalled_jobs import plain

import trimaran


def main(how: str, folder: Path) -> None:
    torch.set_num_threads(1)
    own = how == "own handler"
    if own:
        signal.signal(signal.SIGUSR1, lambda *_: say(folder, 0, "own handler"))
    before = signal.getsignal(signal.SIGUSR1)
    if how == "ignores":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    session = trimaran.init(plain())
    if how == "does not look":
        data, target = session.job.dataset().tensors
        while True:
            session.step((data[:16], target[:16]))
            say(folder, session.rank, f"step {session.steps}")
    if how == "with":
        with session:
            loop(session, folder)
        say(folder, 0, "not reached")
    loop(session, folder)
    if how == "never closed":
        return
    if not own:
        session.save(folder / f"model{session.rank}.safetensors")
        say(folder, session.rank, f"stopped by {signal.Signals(session.stop_signal or 0).name}, weights saved")
    try:
        session.close()
    finally:
        if own and signal.getsignal(signal.SIGUSR1) is before:
            say(folder, 0, "put back")
        assert not [one for one in threading.enumerate() if one.name == "trimaran-signals"]


def loop(session: trimaran.Session, folder: Path) -> None:
    for batch in session.batches():
        session.step(batch)
        say(folder, session.rank, f"step {session.steps}")


def say(folder: Path, rank: int, text: str) -> None:
    with (folder / f"{rank}.txt").open("a") as file:
        file.write(f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
