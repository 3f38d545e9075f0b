"""A CUDA device on a torch without one: its guard and its hooks, put in place by ctypes, no compiler needed.

torch asks two tables of functions about a kind of device. The *guard* says which device is current and how many there
are; autograd starts a thread for each. The *hooks* say whether CUDA is built, available and initialised. A CPU build
has none for CUDA: `.to("cuda")` raises, and a product that needs gradients ends the process.

    registry of guards   meta's guard does nothing, and is copied: first one that counts no device, which makes torch
                         install its own guard that does nothing for CUDA; then a copy of that one which counts `count`
    hooks                the one object that answers "no CUDA", given a copy of its table with a few answers changed

The tables are those of a C++ class, functions in the order in which its header declares them, so their places belong to
a version of torch. `check_build` refuses those whose places are not known.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trimaran.base.errors import InputError

_CUDA, _META = 1, 14
"""Numbers of the kinds of devices. Source: c10/core/DeviceType.h."""

_GUARD_SLOTS = 40
_HOOK_SLOTS = 64
"""Functions that are copied from a table; more than any version has, and readable, as tables lie between others."""

_PREFIX = 2
"""Entries ahead of a table's functions: offset to the top, type information. Source: Itanium C++ ABI."""

_COUNT = {(2, 13): 15}
"""Place of `deviceCount` among the guard's functions, by version. Source: c10/core/impl/DeviceGuardImplInterface.h."""

_CURRENT = {(2, 13): 2}
"""Place of `getDevice` among the guard's functions, by version; same source."""

_HOOKS: dict[tuple[int, int], dict[int, str]] = {
    (2, 13): {
        2: "one",
        3: "one",
        4: "false",
        5: "nothing",
        7: "nothing",
        8: "false",
        9: "false",
        10: "false",
        16: "one",
    }
}
"""Answers of the hooks by place. Source: aten/src/ATen/detail/CUDAHooksInterface.h."""

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_REGISTER = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
_GET_HOOKS = "_ZN2at6detail12getCUDAHooksEv"

current_index: Callable[[], int] = int
"""Index of the device that `.to("cuda")` means: 0 until what knows of `torch.cuda.set_device` replaces it."""

_kept: list[Any] = []
"""What torch points to now, held for the rest of the process."""


def build_version() -> tuple[int, int]:
    """Major and minor version of torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def check_build() -> None:
    """Refuse a torch whose tables are not known.

    Raises:
        InputError: another version, a build with CUDA, or one without the names that are needed
    """
    if torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None:
        raise InputError(
            f"a rehearsal runs on a CPU build of torch; this is {torch.__version__}: install the CPU wheel of "
            f"{_versions()} in another environment",
            code="rehearse.torch-with-cuda",
            torch=torch.__version__,
        )
    if build_version() not in _COUNT:
        raise InputError(
            f"a rehearsal knows the CPU builds of torch {_versions()}; this is {torch.__version__}: install one of "
            "these in another environment",
            code="rehearse.torch-version",
            torch=torch.__version__,
        )
    for library, names in (("libc10.so", (_REGISTRY, _REGISTER)), ("libtorch_cpu.so", (_GET_HOOKS,))):
        try:
            loaded = _load(library)
            for name in names:
                getattr(loaded, name)
        except (OSError, AttributeError) as error:
            raise InputError(
                f"this build of torch {torch.__version__} lacks what a rehearsal needs ({error}): "
                "install the CPU wheel for Linux",
                code="rehearse.torch-build",
                torch=torch.__version__,
            ) from error


def install(count: int) -> None:
    """Simulate `count` CUDA devices for this process. Once a process; nothing undoes it.

    Raises:
        InputError: see `check_build`
    """
    check_build()
    c10 = _load("libc10.so")
    registry = (ctypes.c_void_p * _HOOK_SLOTS).in_dll(c10, _REGISTRY)
    register = getattr(c10, _REGISTER)
    register.argtypes = [ctypes.c_int8, ctypes.c_void_p]
    place = _PREFIX + _COUNT[build_version()]
    if not registry[_CUDA]:
        register(_CUDA, _with_count(registry[_META], place, 0))
    torch._C._ensureCUDADeviceGuardSet()
    registry[_CUDA] = _with_count(registry[_CUDA], place, count)

    cpu = _load("libtorch_cpu.so")
    get_hooks = getattr(cpu, _GET_HOOKS)
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    table = _table(hooks[0], _HOOK_SLOTS)
    meta = _table(_first(registry[_META]), _GUARD_SLOTS)
    guard = _table(_first(registry[_CUDA]), _GUARD_SLOTS)
    answers = {
        "one": meta[place],  # meta counts one device
        "nothing": guard[_PREFIX + 3],  # setDevice, which does nothing
        "false": table[_PREFIX + 2],  # hasCUDA of a CPU build
    }
    for slot, answer in _HOOKS[build_version()].items():
        table[_PREFIX + slot] = answers[answer]
    hooks[0] = ctypes.addressof(table) + _PREFIX * ctypes.sizeof(ctypes.c_void_p)
    _kept.append(table)


def _load(library: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / library))


def _first(address: Any) -> int:
    """The table of an object."""
    return int(ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))[0])


def _table(functions: Any, slots: int) -> Any:
    """A copy of a table, with what is ahead of its functions."""
    source = ctypes.cast(functions - _PREFIX * ctypes.sizeof(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p))
    return (ctypes.c_void_p * slots)(*[source[slot] for slot in range(slots)])


def _with_count(guard: Any, place: int, count: int) -> int:
    """A guard like another one that counts `count` devices."""
    table = _table(_first(guard), _GUARD_SLOTS)
    counter = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(lambda _: count)
    table[place] = ctypes.cast(counter, ctypes.c_void_p).value
    # A device is two bytes, its kind and its index, which are returned in a register.
    current = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)(lambda _: current_index() << 8 | _CUDA)
    table[_PREFIX + _CURRENT[build_version()]] = ctypes.cast(current, ctypes.c_void_p).value
    made = (ctypes.c_void_p * 2)(ctypes.addressof(table) + _PREFIX * ctypes.sizeof(ctypes.c_void_p), 0)
    _kept.extend((table, counter, current, made))
    return ctypes.addressof(made)


def _versions() -> str:
    return " and ".join(f"{major}.{minor}" for major, minor in sorted(_COUNT))
