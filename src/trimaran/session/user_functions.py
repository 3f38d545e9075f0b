"""Functions in files of the user's, as "file.py:function".

Whatever goes wrong in such a file is told as the user's error, with the line, never as a traceback of ours.
"""

import difflib
import functools
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from trimaran.errors import InputError, TrimaranError
from trimaran.user_errors import user_lines


def load_function(reference: str) -> Callable[..., object]:
    """A function of the user's.

    Args:
        reference: "file.py:function"

    Raises:
        InputError: no such file or function, or the file raises
    """
    path, colon, name = reference.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise InputError(f'"{reference}" is no "file.py:function"', code="user-function.malformed", reference=reference)
    return _function(_load(Path(path)), name, path)


def line_of(error: Exception, path: Path) -> str:
    """Where in a user's file an error came from, as "file.py:12"; the file alone where it came from elsewhere."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f"{path}:{frames[-1].lineno}" if frames else str(path)


def summary_of(error: Exception) -> str:
    """An error in a line, as "ValueError: no such thing"."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


@functools.cache
def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"no file {path}", code="user-function.missing-file", path=str(path))
    path = path.resolve()
    name = f"trimaran_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file", path=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # The file may import its neighbours, as it could when run as a script.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except TrimaranError:
        raise
    except SyntaxError as error:
        text = (error.text or "").rstrip()
        raise InputError(
            f"{path}:{error.lineno}: syntax error: {error.msg}\n    {text.strip()}", code="user-function.syntax-error"
        ) from None
    except Exception as error:
        raise InputError(
            "\n".join([f"{line_of(error, path)}: the file raised {summary_of(error)}", *user_lines(error)]),
            code="user-function.file-raises",
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _function(module: ModuleType, name: str, path: str) -> Callable[..., object]:
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else f"; it has {', '.join(names) or 'no functions'}"
    raise InputError(f'{path} has no function "{name}"{hint}', code="user-function.missing", path=path, function=name)
