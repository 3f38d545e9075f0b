"""The process of one rehearsed rank: `python -m trimaran.rehearsal.worker REQUEST.json`.

Reads a `RankRequest`, simulates the device, runs the script as `__main__` and writes the record, however the script
ends. The exit status is the script's own; what it prints goes where this process prints.

Whether a script can do without something is seen by running it: it is first run without, as on a device that has no
more memory. One that fails of that is run a second time by the same process and given it, so that what it would need is
told.
"""

import contextlib
import logging
import os
import re
import resource
import runpy
import sys
import threading
import time
import traceback
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from trimaran.base.secrets import masked
from trimaran.rehearsal.record import End, Ending, Record, write_record
from trimaran.rehearsal.request import RankRequest
from trimaran.simulator.allocator import Allocator

_FLASH = re.compile(r"flash_attn|FlashAttention")
"""In what is raised for want of it, by Python and by transformers."""


def environment(request: RankRequest) -> dict[str, str]:
    """What torchrun says to a rank."""
    local = request.rank % request.per_node
    node = request.rank // request.per_node
    return {
        "RANK": str(request.rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(request.world),
        "LOCAL_WORLD_SIZE": str(min(request.per_node, request.world)),
        "GROUP_RANK": str(node),
        "NODE_RANK": str(node),
        "GROUP_WORLD_SIZE": str(-(-request.world // request.per_node)),
        "ROLE_RANK": str(request.rank),
        "ROLE_WORLD_SIZE": str(request.world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "rehearsal",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    } | ({"PYTORCH_CUDA_ALLOC_CONF": request.allocator} if request.allocator else {})


class ScriptRank:
    """A process that runs a script as one rank, and tells how it ended.

    Args:
        request: what to run
    """

    def __init__(self, request: RankRequest) -> None:
        self._request = request
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._process, self._exit = os.getpid(), os._exit
        self._folder = str(Path.cwd() if request.is_module else Path(request.script).absolute().parent)
        self.record = Record(
            rank=request.rank,
            world=request.world,
            per_node=request.per_node,
            device=request.gpu.catalog_name,
            memory_bytes=request.gpu.memory_bytes,
            script=[request.script, *request.arguments],
        )

    def run_script(self, mode: AbstractContextManager[object]) -> None:
        """Run it as `__main__` in a mode, and end the process as it says, or when its time is over."""
        request = self._request
        limit = threading.Timer(request.most_seconds, self.out_of_time)
        limit.daemon = True
        limit.start()
        sys.argv = [request.script, *request.arguments]
        sys.path.insert(0, self._folder)
        try:
            with mode:
                if request.is_module:
                    runpy.run_module(request.script, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(request.script, run_name="__main__")
        except SystemExit as left:
            if left.code is not None and not isinstance(left.code, int):
                sys.stderr.write(f"{left.code}\n")
            self.leave(left, left.code if isinstance(left.code, int) else int(left.code is not None))
        except BaseException as error:  # noqa: BLE001  the end of the process
            self.fail(error)
        self.end("finished", 0)

    def out_of_time(self) -> None:
        """The seconds that it was given are over."""
        self.end("seconds", 0)

    def leave(self, left: SystemExit, status: int) -> None:
        """The script leaves by itself."""
        self.end("exit", status)

    def fail(self, error: BaseException) -> None:
        """An exception reached the top."""
        raise NotImplementedError

    def end(self, how: Ending, status: int, text: str = "", lines: int = -1) -> None:
        """Leave what was seen and the record, and end the process. Of a forked child: end it, no more."""
        if os.getpid() != self._process:
            self._exit(status)
        with self._lock:
            self.record.end = self.last_words(End(how, status, masked(text), lines))
            self.record.host_s = time.monotonic() - self._began
            self.record.host_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            write_record(Path(self._request.record), self.record)
            with contextlib.suppress(OSError):  # no one is left who could look for it
                self._request.ending_of(self._request.rank).touch()
            sys.stdout.flush()
            sys.stderr.flush()
            self._exit(status)

    def last_words(self, end: End) -> End:
        """What is to be done before the process ends; how it did."""
        return end


class Rank(ScriptRank):
    """One rank that is rehearsed."""

    def __init__(self, request: RankRequest) -> None:
        super().__init__(request)
        self._began_in = str(Path.cwd()), dict(os.environ)

    def run(self) -> None:
        """Rehearse, and end the process with the script's status."""
        request = self._request
        os.environ.update(environment(request))
        _without_triton()
        import torch

        from trimaran.rehearsal.device import absent, cuda, guard, kernels
        from trimaran.rehearsal.device.replaced import replace
        from trimaran.rehearsal.groups import RehearsedExchanges
        from trimaran.rehearsal.lines import Lines
        from trimaran.rehearsal.patches import Patches
        from trimaran.rehearsal.recorder import ScriptRecorder
        from trimaran.rehearsal.saved import SavedFiles
        from trimaran.rehearsal.tensors import RehearsalMode
        from trimaran.rehearsal.values import Values

        self.record.torch = str(torch.__version__)
        guard.install(min(request.per_node, request.world))
        kernels.install()
        self._lines = Lines(self.record, self._folder)
        self._recorder = ScriptRecorder(self.record, self._lines, Allocator(request.gpu.memory_bytes))
        self._recorder.pool.may_refuse = lambda: "memory" not in request.granted
        self._recorder.capability = request.gpu.capability
        device = cuda.install(self._recorder, request)
        absent.install(self._recorder, attention="flash_attn" in request.granted)
        values = Values(self._recorder, request.hints)
        exchanges = RehearsedExchanges(self._recorder, request)
        exchanges.install()

        def mode() -> RehearsalMode:
            return RehearsalMode(self._recorder, values, device, exchanges)

        files = SavedFiles(self._recorder, request)
        patches = Patches(
            self._recorder, values, exchanges, files, mode, lambda: self.end("steps", 0), request.most_steps
        )
        patches.install()
        self._lines.install()
        replace(os, _exit=lambda status: self.end("exit", status, "", self._lines.stack()))
        if (os.cpu_count() or 1) < request.per_node:  # shared among more devices, one has none
            set_threads = torch.set_num_threads
            replace(torch, set_num_threads=lambda count: set_threads(max(1, count)))
        self._patches = patches
        patches.active = True
        self.run_script(mode())

    def out_of_time(self) -> None:
        """The seconds that it was given are over."""
        self.end("seconds", 0, "", self._lines.of_main_thread())

    def leave(self, left: SystemExit, status: int) -> None:
        """The script leaves by itself, of an error perhaps."""
        cause: BaseException | None = left
        while isinstance(cause, SystemExit):
            cause = cause.__cause__ or cause.__context__
        text = story_of(cause) if status and isinstance(cause, Exception) else ""
        trace = cause.__traceback__ if text and cause is not None else left.__traceback__
        self._give(cause)
        self.end("exit", status, text, self._lines.of_traceback(trace))

    def fail(self, error: BaseException) -> None:
        """An exception reached the top."""
        self._patches.active = False
        traceback.print_exc()
        self._give(error)
        cause, text = _cause_of(error), story_of(error)
        how: Ending = "invented" if isinstance(cause, NotImplementedError) and "depends on data" in text else "error"
        self.end(how, 1, text, self._lines.of_traceback(error.__traceback__))

    def last_words(self, end: End) -> End:
        """The record is whole; a rank that failed of its memory is run again."""
        if end.status and self._recorder.has_refused:
            self._run_again("memory")
        self._recorder.finish()
        return end

    def _give(self, error: BaseException | None) -> None:
        """Run again with what an error is the lack of, where that can be given."""
        while error is not None and not (isinstance(error, ImportError) and _FLASH.search(str(error))):
            error = error.__cause__ or error.__context__
        if error is not None and "flash_attn" not in self._request.granted:
            self._run_again("flash_attn")

    def _run_again(self, granted: str) -> None:
        """Become a new process of this rank, with what is granted; what the first run printed and made is gone."""
        from trimaran.rehearsal.launch import clean_up, command_of

        asked, left_s = self._request, self._request.most_seconds - (time.monotonic() - self._began)
        if os.getpid() != self._process or left_s <= 0.0:
            return
        clean_up(asked.made_folders)
        asked = msgspec.structs.replace(asked, granted=(*asked.granted, granted), most_seconds=left_s)
        path = Path(f"{asked.record}.again")
        path.write_bytes(msgspec.json.encode(asked))
        sys.stdout.flush()
        sys.stderr.flush()
        os.truncate(asked.output, 0)  # opened for appending: what follows is written from the new end
        folder, variables = self._began_in
        os.chdir(folder)
        os.execve(sys.executable, command_of(path), variables)


def _without_triton() -> None:
    """Have torch imported as where Triton is not installed: it would compile for a GPU."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]
    sys.modules["triton"] = None  # type: ignore[assignment]  # an import fails
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # a CUDA build misses it


def _cause_of(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def story_of(error: BaseException) -> str:
    """An exception in a line, with what it came of."""
    text = _line_of(_cause_of(error))
    if error.__cause__ is None or text.startswith("OutOfMemoryError"):
        return text
    return f"{_line_of(error)}; its cause: {text}"


def _line_of(error: BaseException) -> str:
    """An exception in a line: its first line with text; of one that a worker sent, that of the worker's own too."""
    lines = [line for line in str(error).splitlines() if line.strip(' "')]
    kind = type(error).__name__
    if (place := max((at for at, line in enumerate(lines) if line.startswith('  File "')), default=-1)) >= 0:
        told = next((line for line in lines[place:] if not line.startswith(" ")), lines[-1].strip())
        first = lines[0].strip(" -.:")
        return told if first.startswith("Traceback") else f"{told} ({first})"
    if lines:
        return f"{kind}: {lines[0].strip()}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{kind}, which says nothing{f': {frames[-1].line}' if frames and frames[-1].line else ''}"


if __name__ == "__main__":
    Rank(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RankRequest)).run()
