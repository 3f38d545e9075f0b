"""What a script catches: whether it expects that an import fails, or that memory runs out."""

import dis
import functools
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

EVERYTHING = "*"
"""Name of what is caught by `except:` and may be by `with`."""

_OWN = f"{Path(__file__).parents[1]}/"
_TORCH = f"{Path(torch.__file__).parent}/"


@functools.lru_cache(maxsize=4096)
def names_caught(code: types.CodeType, at: int) -> frozenset[str]:
    """Names of the errors that are caught where an instruction lies in a `try` or `with` of its function."""
    entries: Sequence[Any] = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    caught: set[str] = set()
    instructions: list[dis.Instruction] | None = None
    for entry in entries:
        if not entry.start <= at < entry.end:
            continue
        instructions = instructions or list(dis.get_instructions(code))
        first = next(place for place, one in enumerate(instructions) if one.offset == entry.target)
        loaded: set[str] = set()
        for one in instructions[first:]:
            if one.opname.startswith("LOAD"):
                loaded.add(str(one.argval))
            elif one.opname == "CHECK_EXC_MATCH":
                caught |= loaded
            elif one.opname == "WITH_EXCEPT_START":
                caught.add(EVERYTHING)
                break
            elif one.opname == "RERAISE":
                break
            elif one.opname not in ("BUILD_TUPLE", "PUSH_NULL"):
                loaded.clear()
        if instructions[first + 1].opname == "POP_TOP":  # `except:`
            caught.add(EVERYTHING)
    return frozenset(caught)


def shortage_is_caught() -> bool:
    """Whether the script or a package of it, neither torch, catches that memory runs out in what runs now."""
    return any(
        "OutOfMemoryError" in caught
        or (caught and _speaks_of_memory(code))
        or "should_reduce_batch_size" in code.co_names
        for code, caught in _handlers()
    )


def _handlers() -> Iterator[tuple[types.CodeType, frozenset[str]]]:
    """Of all functions that run, in this thread and in the main one, which waits for those of autograd."""
    begins: list[Any] = [sys._getframe(1)]
    if isinstance(threading.current_thread(), threading._DummyThread):
        # One of autograd; in one of the script's the main thread runs on, and its frames are gone under who looks.
        begins.append(sys._current_frames().get(threading.main_thread().ident or 0))
    for frame in begins:
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(("<frozen", _OWN, _TORCH)):
                yield code, names_caught(code, frame.f_lasti)
            frame = frame.f_back


def _speaks_of_memory(code: types.CodeType) -> bool:
    return any(isinstance(text, str) and "out of memory" in text.lower() for text in code.co_consts)
