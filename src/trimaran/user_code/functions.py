"""Functions in files of the user, as "file.py:function".

Errors in such a file are reported as the user's, with the line and without a traceback of ours.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader
from pathlib import Path
from types import ModuleType

from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.files import given, is_file
from trimaran.base.outcome import note_always
from trimaran.base.user_errors import ends_process, left, named, refuse_training, users


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


@functools.cache
def _load(path: Path) -> ModuleType:
    if not is_file(given(path)):
        raise InputError(f"no file {path}", code="user-function.missing-file", path=str(path))
    path = given(path).resolve()
    name = f"trimaran_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file", path=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # The file may import its neighbours, as it could when run as a script.
    sys.path.insert(0, str(path.parent))
    try:
        with asked(str(path), code="user-function.file-raises"), _not_training():
            _execute(module, spec.loader, path)
    finally:
        sys.path.remove(str(path.parent))
    return module


@contextmanager
def asked(reference: str, *of: object, code: str) -> Iterator[None]:
    """Around code of a file of the user's, which draws the same in each process and gets no arguments of a command.

    Args:
        reference: "file.py" or "file.py:function"
        of: the function
        code: of the error where it raises

    Raises:
        InputError: it raised, ended the process, or began to train
    """
    from trimaran.user_code.randomness import seeded

    arguments = sys.argv
    sys.argv = [reference.rpartition(":")[0] or reference]
    try:
        with seeded(0), users(reference, *of, code=code):
            yield
    except BaseException as error:
        if not ends_process(error):
            raise
        raise left(error) from error
    finally:
        sys.argv = arguments
    note_always(named(f"code of {reference}", *of))


@contextmanager
def _not_training() -> Iterator[None]:
    """Around the import of a file: an update of an optimizer, or a process group that it leaves, is of a training."""
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    grouped = dist.is_available() and dist.is_initialized()
    hook = register_optimizer_step_pre_hook(lambda *_: refuse_training("a step of an optimizer"))
    try:
        yield
    finally:
        hook.remove()
    if not grouped and dist.is_available() and dist.is_initialized():
        refuse_training("a process group of torch.distributed")


def _execute(module: ModuleType, loader: Loader, path: Path) -> None:
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        text = (error.text or "").rstrip()
        raise InputError(
            f"{path}:{error.lineno}: syntax error: {error.msg}\n    {text.strip()}", code="user-function.syntax-error"
        ) from None


def _function(module: ModuleType, name: str, path: str) -> Callable[..., object]:
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    raise InputError(
        f'{path} has no function "{name}"{did_you_mean(name, names)}',
        code="user-function.missing",
        path=path,
        function=name,
    )
