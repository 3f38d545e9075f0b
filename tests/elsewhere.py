"""Run commands of Trimaran as on Windows or macOS: what the standard library lacks there, Trimaran does not find here.

    python tests/elsewhere.py win32 < commands.json

Modules of Trimaran see the standard library without the modules and names that typeshed (it comes with mypy) has for
Linux and not for the other platform, and without the folders in which Linux tells of itself; torch and all other
packages see this machine as it is. What such a name would do elsewhere is not tried.

Source:
    typeshed, stdlib/: conditions on `sys.platform`; Python, library reference, `os.open`, `os.kill`,
    `subprocess.Popen`: what Windows does otherwise.
"""

import ast
import builtins
import contextlib
import importlib
import io
import json
import pkgutil
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OURS = {"trimaran", "trimaran_studies", "trimaran_watch"}
LOOKED_AT = ("os", "signal", "socket", "select", "time", "mmap", "ctypes", "asyncio", "errno", "shutil", "tempfile")
"""Modules that exist everywhere and have more on Linux."""

LINUX_FOLDERS = ("/proc", "/sys", "/dev/shm", "/etc/os-release")


def names(module: str, platform: str) -> set[str]:
    """What a module of the standard library has on a platform, by typeshed."""
    import mypy

    stubs = Path(mypy.__file__).parent / "typeshed" / "stdlib"
    path = next(found for found in (stubs / f"{module}.pyi", stubs / module / "__init__.pyi") if found.exists())
    return set(_defined(ast.parse(path.read_text(encoding="utf-8")).body, platform))


def _defined(body: Sequence[ast.stmt], platform: str) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.If):
            holds = _holds(statement.test, platform)
            yield from _defined(statement.body if holds else statement.orelse, platform)
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.ImportFrom) and statement.module and statement.module.startswith("_"):
            # `from _socket import SOCK_CLOEXEC as SOCK_CLOEXEC`
            yield from (name.asname for name in statement.names if name.asname)


def _holds(test: ast.expr, platform: str) -> bool:
    told = {"sys": types.SimpleNamespace(platform=platform, version_info=sys.version_info), "TYPE_CHECKING": True}
    return bool(eval(compile(ast.Expression(test), "typeshed", "eval"), told))  # noqa: S307 typeshed's own conditions


def missing_modules(platform: str) -> set[str]:
    """Modules without a single name on a platform."""
    import mypy

    stubs = Path(mypy.__file__).parent / "typeshed" / "stdlib"
    known = {path.stem for path in stubs.glob("*.pyi")} & sys.stdlib_module_names
    return {name for name in known if _public(name, "linux") and not _public(name, platform)}


def _public(module: str, platform: str) -> set[str]:
    return {name for name in names(module, platform) if not name.startswith("_")}


class _Seen(types.ModuleType):
    """A module as it is on the other platform."""

    def __init__(self, real: types.ModuleType, hidden: set[str], instead: dict[str, object]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(_real=real, _hidden=hidden, **instead)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["_hidden"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        return getattr(self.__dict__["_real"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["_real"], name, value)


def pretend(platform: str) -> None:
    """Show modules of Trimaran, from now on, what the standard library is on "win32" or "darwin"."""
    gone = missing_modules(platform)
    seen = {}
    for name in (*LOOKED_AT, "sys", "platform", "multiprocessing", "subprocess"):
        hidden = names(name, "linux") - names(name, platform)
        seen[name] = _Seen(importlib.import_module(name), hidden, _instead(name, platform))
    real_import = builtins.__import__

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:  # noqa: A002
        importer = (globals or {}).get("__name__") or ""
        if level == 0 and importer.split(".")[0] in OURS:
            if name == "msvcrt" and platform == "win32":
                return types.SimpleNamespace(locking=_locking, LK_NBLCK=2)
            if name in gone:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in seen and fromlist:
                return seen[name]
            found = real_import(name, globals, locals, fromlist, level)
            return found if fromlist else seen.get(name.split(".")[0], found)
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = imported
    sys.addaudithook(_without_linux_folders)


def _instead(module: str, platform: str) -> dict[str, object]:
    if module == "sys":
        return {"platform": platform}
    if module == "platform":
        return {"system": lambda: {"win32": "Windows", "darwin": "Darwin"}[platform]}
    if platform != "win32":
        return {}
    if module == "os":
        return {"name": "nt", "open": _open_no_folder, "kill": _kill, "O_BINARY": 0}
    if module == "subprocess":
        return {"Popen": _Popen, "run": _Popen}
    if module == "ctypes":
        return {"CDLL": _library, "windll": types.SimpleNamespace(kernel32=_Kernel)}
    return {"get_context": _get_context} if module == "multiprocessing" else {}


def _open_no_folder(path: Any, *arguments: Any, **named: Any) -> int:
    import os

    if Path(path).is_dir():
        raise PermissionError(13, "Permission denied", str(path))
    return os.open(path, *arguments, **named)


def _kill(pid: int, number: int) -> None:
    raise AssertionError(f"on Windows, os.kill({pid}, {number}) ends the process, whatever the signal")


class _Popen(subprocess.Popen[Any]):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        for name in ("preexec_fn", "pass_fds"):
            if named.get(name):
                raise ValueError(f"{name} is not supported on Windows platforms")
        super().__init__(*arguments, **named)


def _get_context(method: str | None = None) -> Any:
    import multiprocessing

    if method in ("fork", "forkserver"):
        raise ValueError(f"cannot find context for {method!r}")
    return multiprocessing.get_context("spawn")


def _library(name: str | None, *arguments: Any, **named: Any) -> Any:
    import ctypes

    if name is None:
        raise TypeError("bad argument type for built-in operation")
    return ctypes.CDLL(name, *arguments, **named)


class _Kernel:
    """What Windows tells: 16 GiB."""

    @staticmethod
    def GetPhysicallyInstalledSystemMemory(kibibytes: Any) -> int:  # noqa: N802
        kibibytes._obj.value = 16 * 2**20
        return 1


def _locking(descriptor: int, mode: int, nbytes: int) -> None:
    """What `msvcrt.locking` does, by the locks of this machine."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PermissionError(13, "Permission denied") from error


def _without_linux_folders(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(LINUX_FOLDERS):
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in {"pathlib", "io", "os", "codecs"}:
            frame = frame.f_back
        if frame.f_globals.get("__name__", "").split(".")[0] in OURS:
            raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))


def run(arguments: list[str], platform: str) -> dict[str, object]:
    """A command in this process: its exit code and what it prints into a file, which is not UTF-8 on Windows."""
    from trimaran.cli import main

    encoding = "cp1252" if platform == "win32" else "utf-8"
    out, told = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        sys.argv = ["trimaran", *arguments]
        try:
            main()
        except SystemExit as end:
            code = end.code
    return {"code": code or 0, "stdout": _content(out), "stderr": _content(told)}


def _content(stream: io.TextIOWrapper) -> str:
    stream.flush()
    written = stream.buffer
    assert isinstance(written, io.BytesIO)
    return written.getvalue().decode(stream.encoding)


def imported() -> dict[str, str]:
    """Every module of Trimaran that cannot be imported, with what it lacks."""
    failed = {}
    for package in ("trimaran", "trimaran_studies"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except Exception as error:  # noqa: BLE001 whatever it is, it is told
                    failed[module.name] = f"{type(error).__name__}: {error}"
    return failed


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    platform = sys.argv[1]
    if platform != "linux":
        pretend(platform)
    told = [run(command, platform) for command in asked["commands"]]
    json.dump({"told": told, "failed": imported() if asked["imports"] else {}}, sys.stdout)
