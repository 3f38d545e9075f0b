"""Where in the user's code something happens.

In the forward the stack of Python tells. In the backward, which a thread of autograd runs, it holds no line of the
user's: autograd numbers its nodes in the order in which the forward makes them, and noting that number with every
operation of the forward tells, for a node that runs, which line and which module made it.
"""

import bisect
import gc
import sys
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as hooks

from trimaran.rehearsal.record import Frame, Record

MOST_FRAMES = 5
"""Of a stack that are kept: the innermost of installed packages, then the user's own."""

_OWN_PACKAGE = str(Path(__file__).parents[1]) + "/"
_TORCH = str(Path(torch.__file__).parent) + "/"
_STANDARD = tuple({sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/"})
_INSTALLED = tuple({sysconfig.get_path("purelib") + "/", sysconfig.get_path("platlib") + "/"})


class Lines:
    """Tells lines and modules, and keeps them in the record's tables.

    Args:
        record: that takes them
        folder: of the script, against which paths are shown
    """

    def __init__(self, record: Record, folder: str) -> None:
        self._record = record
        self._folder = folder.rstrip("/") + "/"
        self._codes: dict[int, tuple[CodeType, tuple[str, bool] | None]] = {}
        self._known: dict[tuple[Frame, ...], int] = {(): 0}
        self._quick: dict[tuple[Any, ...], int] = {}
        self._modules: dict[str, int] = {"": 0}
        self._names: dict[int, str] = {}
        self._roots: list[nn.Module] = []
        self._stack: list[int] = [0]
        self._numbers: list[int] = []
        self._places: list[tuple[int, int]] = []
        self.backward = 0  # lines that asked for the backward that runs

    def install(self) -> None:
        """Follow which module runs."""
        hooks.register_module_forward_pre_hook(self._begin)
        hooks.register_module_forward_hook(self._end, always_call=True)

    def here(self) -> tuple[int, int]:
        """Lines and module of what runs now, as positions in the record's tables."""
        lines = self._walk(sys._getframe(1))
        node: Any = torch._C._current_autograd_node()
        if node is None:
            if not lines:
                return self.backward, self._stack[-1]
            self._note(lines, self._stack[-1])
        elif not lines:
            made = self.of_node(node._sequence_nr())
            # Nodes that gather gradients are made with no line; DDP's buckets go out of their hooks.
            return made if made[0] else (self.backward, self._stack[-1])
        return lines, self._stack[-1]

    def of_node(self, number: int) -> tuple[int, int]:
        """Lines and module that made a node of autograd."""
        place = bisect.bisect_right(self._numbers, number)
        return self._places[place] if place < len(self._places) else (0, 0)

    def of_keeper(self, before: int) -> int:
        """Lines that made the tensor whose graph reaches furthest back, to a node before that number; 0: none does."""
        found = (before, 0, 0)
        for tensor in gc.get_objects():
            if type(tensor) is not FakeTensor or tensor.grad_fn is None:
                continue
            waiting, seen = [tensor.grad_fn], {tensor.grad_fn}
            while waiting:
                node: Any = waiting.pop()
                later = {one for one, _ in node.next_functions if one is not None} - seen
                seen |= later
                waiting += later
            own = tensor.grad_fn._sequence_nr()
            found = min(found, (min(one._sequence_nr() for one in seen), -own, self.of_node(own)[0]))
        return found[2]

    def of_traceback(self, traceback: TracebackType | None) -> int:
        """Lines at which an exception was raised."""
        frames = []
        while traceback is not None:
            self._told(traceback.tb_frame.f_code)
            frames.append((id(traceback.tb_frame.f_code), traceback.tb_lineno))
            traceback = traceback.tb_next
        return self._intern(frames[::-1])

    @property
    def are_in_module(self) -> bool:
        """Whether a module runs."""
        return len(self._stack) > 1

    def stack(self) -> int:
        """Lines of what runs now, without its module."""
        return self._walk(sys._getframe(1))

    def of_main_thread(self) -> int:
        """Lines of what the main thread runs now."""
        return self._walk(sys._current_frames().get(threading.main_thread().ident or 0))

    def _walk(self, frame: Any) -> int:
        found: list[tuple[int, int]] = []
        codes = self._codes
        while frame is not None:
            code = frame.f_code
            told = (codes.get(id(code)) or self._told(code))[1]
            if told is not None:
                found.append((id(code), frame.f_lineno))
                if told[1] and len(found) >= MOST_FRAMES:
                    break
            frame = frame.f_back
        return self._intern(found)

    def _intern(self, found: Sequence[tuple[int, int]]) -> int:
        key = tuple(found)
        index = self._quick.get(key)
        if index is None:
            frames = []
            for number, line in found:
                code, told = self._codes[number]
                if told:
                    frames.append(Frame(told[0], line, code.co_name, told[1]))
            others = [frame for frame in frames if not frame.own][:2]
            own = [frame for frame in frames if frame.own][: MOST_FRAMES - len(others)]
            kept = tuple(frame for frame in frames if frame in others or frame in own)
            index = self._known.get(kept)
            if index is None:
                index = self._known[kept] = len(self._record.lines)
                self._record.lines.append(kept)
            self._quick[key] = index
        return index

    def _told(self, code: CodeType) -> tuple[CodeType, tuple[str, bool] | None]:
        """A code and `_file` of its file, kept by identity: to hash a code takes all of its instructions."""
        return self._codes.setdefault(id(code), (code, self._file(code.co_filename)))

    def _file(self, path: str) -> tuple[str, bool] | None:
        """How a file is shown and whether it is the user's own; None: of Python, torch or this package."""
        if path.startswith(("<", _OWN_PACKAGE, _TORCH)):
            return None
        for folder in _INSTALLED:
            if path.startswith(folder):
                name = path[len(folder) :]
                return None if name == "typing_extensions.py" else (name, False)  # wraps torch's deprecated functions
        if path.startswith(_STANDARD):
            return None
        return (path.removeprefix(self._folder)), True

    # -----------------------------------------------------------------------------------------------------------------
    # Modules

    def _begin(self, module: nn.Module, _: Any) -> None:
        name = self._names.get(id(module))
        if name is None:
            self._adopt(module)
            name = self._names[id(module)]
        index = self._modules.get(name)
        if index is None:
            index = self._modules[name] = len(self._record.modules)
            self._record.modules.append(name)
        self._stack.append(index)

    def _end(self, *_: Any) -> None:
        if len(self._stack) > 1:
            self._stack.pop()

    def _adopt(self, root: nn.Module) -> None:
        prefix = "" if not self._roots else type(root).__name__
        self._roots.append(root)
        for path, module in root.named_modules(prefix=prefix):
            self._names.setdefault(id(module), path or type(root).__name__)

    def parameters(self) -> dict[int, str]:
        """Names of parameters of modules that have run, by identity."""
        return {
            id(parameter): path.replace("_fsdp_wrapped_module.", "").removeprefix("module.")
            for number, root in reversed(list(enumerate(self._roots)))
            for path, parameter in root.named_parameters(prefix=type(root).__name__ if number else "")
        }

    def _note(self, lines: int, module: int) -> None:
        """What runs now made the nodes whose numbers are below the next one, since the note before."""
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
            self._places.append((lines, module))
