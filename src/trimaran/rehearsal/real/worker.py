"""One rank of a script that is run for real: `python -m trimaran.rehearsal.real.worker REQUEST.json`.

A request of which `together` names all ranks is one of them, and leaves what it did in the folder in which they meet; a
request without is that of the process that is compared with them, and leaves what it found.
"""

import contextlib
import os
import pickle
import random
import sys
import traceback
from pathlib import Path

import msgspec

from trimaran.base.files import put_in_place
from trimaran.rehearsal.record import End
from trimaran.rehearsal.request import RankRequest
from trimaran.rehearsal.worker import ScriptRank, environment, story_of


class RealRank(ScriptRank):
    """A rank, or the one process."""

    def run(self) -> None:
        """Run the script, and end the process."""
        request = self._request
        self._meeting, self._is_alone = Path(request.meeting), not request.together
        os.environ.update(environment(request) | {"MASTER_PORT": _free_port(self._meeting, request)})
        import numpy
        import torch
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        from trimaran.rehearsal.device.replaced import replace
        from trimaran.rehearsal.real import stand_in
        from trimaran.rehearsal.real.one_process import OneProcess
        from trimaran.rehearsal.real.watch import DEVICES, MOVED, ONE_BY_ONE, ROLLED, ProcessWatch

        torch.set_num_threads(1)
        for sow in (torch.manual_seed, random.seed, numpy.random.seed):  # a script that has no seed is run twice
            sow(request.rank)
        if self._is_alone:
            ranks = [pickle.loads(path.read_bytes()) for path in _seen_files(self._meeting)]  # noqa: S301  our own
            one_by_one = (self._meeting / ONE_BY_ONE).exists()
            self._watch: ProcessWatch = OneProcess(
                self._folder, request.most_steps, self._stop, ranks, one_by_one=one_by_one
            )
        else:
            moves = self._meeting / MOVED
            moved = pickle.loads(moves.read_bytes()).get(request.rank, {}) if moves.exists() else None  # noqa: S301  our own
            rolled = request.rank if (self._meeting / ROLLED).exists() else 0
            self._watch = ProcessWatch(self._folder, request.most_steps, self._stop, moved, rolled)
        told = self._watch.seen.replaced.setdefault
        devices = self._meeting / DEVICES
        store = "alone.store" if self._is_alone else "ranks.store"
        stand_in.install(
            lambda what: told(what, None),
            lambda: FileStore(str(self._meeting / store), request.world),
            request.rank,
            request.world,
            int(devices.read_text()) if self._is_alone and devices.exists() else request.per_node,
        )
        self._watch.install()
        replace(os, _exit=lambda status: self.end("exit", status))
        self.run_script(stand_in.OnCpu(lambda what: told(what, None), self._watch.drawn))

    def fail(self, error: BaseException) -> None:
        """An exception reached the top, perhaps that the comparison cannot go on."""
        from trimaran.rehearsal.real.watch import Unmatched

        if isinstance(error, Unmatched):
            self.end("invented", 0, str(error))
        if isinstance(error, MemoryError):
            self.end("invented", 0, f"it needs more memory than is free: {story_of(error)}")
        traceback.print_exc()
        self.end("error", 1, story_of(error))

    def _stop(self) -> None:
        """All that is kept is there: the process ends once that is so of all ranks."""
        from trimaran.rehearsal.real.watch import seen_file

        if not self._is_alone:
            self._leave_seen()
            if not all(seen_file(self._meeting, rank).exists() for rank in self._request.together):
                return
        self.end("steps", 0)

    def _leave_seen(self) -> None:
        from trimaran.rehearsal.real.watch import seen_file

        path = seen_file(self._meeting, self._request.rank)
        if not path.exists():
            put_in_place(path, pickle.dumps(self._watch.seen))

    def last_words(self, end: End) -> End:
        """Leave what was seen."""
        from trimaran.rehearsal.real.one_process import OneProcess
        from trimaran.rehearsal.real.watch import FOUND

        watch = self._watch
        if watch.is_over and end.how in ("error", "exit"):  # another rank has left, and a framework may say so
            end = End("steps", 0, "", -1)
        if isinstance(watch, OneProcess):
            if end.how in ("invented", "error", "seconds"):
                watch.result.reason = end.text or "it takes too long"
            watch.result.rounds = len(watch.seen.rounds)
            watch.result.replaced = list(watch.seen.replaced)
            put_in_place(self._meeting / FOUND, msgspec.json.encode(watch.result))
        else:
            with contextlib.suppress(OSError):
                self._leave_seen()
        return end


def _seen_files(meeting: Path) -> list[Path]:
    return sorted(meeting.glob("rank*.seen"), key=lambda path: int(path.stem[4:]))


def _free_port(meeting: Path, request: RankRequest) -> str:
    """A port for scripts that make a store; the groups of torch meet through a file."""
    named = meeting / "port"
    return named.read_text() if named.exists() and request.together else "0"


if __name__ == "__main__":
    RealRank(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RankRequest)).run()
