"""A CUDA device for a torch without one, or in place of one that is there: by ctypes, no compiler needed.

torch asks two tables of functions about a kind of device. The *guard* says which device is current and how many there
are; autograd starts a thread for each. The *hooks* say whether CUDA is built, available and initialised. A CPU build
has none for CUDA: `.to("cuda")` raises, and a product that needs gradients ends the process. A CUDA build has its own,
which ask the driver.

    registry of guards   meta's guard does nothing, and is copied: first one that counts no device, which makes torch
                         install its own guard that does nothing for CUDA; then a copy of that one which counts `count`
    hooks                the one object that answers gets the table of a CPU build, with a few answers changed
    timers               of DDP: that of CUDA is not found

The tables are those of C++ classes: their functions in the order in which the headers declare them that torch brings.
So places are read there, and what they do is tried by `trimaran.rehearsal.build` before a script is.
"""

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trimaran.rehearsal import build

_CUDA, _META = 1, 14
"""Numbers of the kinds of devices. Source: c10/core/DeviceType.h."""

_GUARD_SLOTS = 40
_HOOK_SLOTS = 64
"""Functions that are copied from a table; more than any version has, and readable, as tables lie between others."""

_PREFIX = 2
"""Entries ahead of a table's functions: offset to the top, type information. Source: Itanium C++ ABI."""

_POINTER = ctypes.sizeof(ctypes.c_void_p)

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_REGISTER = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
_GET_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_BASE_HOOKS = "_ZTVN2at18CUDAHooksInterfaceE"
"""The table of hooks of a CPU build, which a CUDA build has as well."""

_TIMERS = "_ZN4c10d13TimerRegistryEv"

_NO_KIND = 127
"""Number of no kind of device."""

current_index: Callable[[], int] = int
"""Index of the device that `.to("cuda")` means: 0 until what knows of `torch.cuda.set_device` replaces it."""

_kept: list[Any] = []
"""What torch points to now, held for the rest of the process."""


def install(count: int) -> None:
    """Simulate `count` CUDA devices for this process. Once a process; nothing undoes it.

    Raises:
        LookupError: headers that do not say where the functions are
        OSError, AttributeError, ValueError: a library or a name in it is not there
    """
    guard_at, hooks_at = build.places(Path(torch.__file__).parent)
    c10 = _load("libc10.so")
    registry = (ctypes.c_void_p * (_META + 1)).in_dll(c10, _REGISTRY)
    register = getattr(c10, _REGISTER)
    register.argtypes = [ctypes.c_int8, ctypes.c_void_p]
    register(_CUDA, _with_count(registry[_META], guard_at, 0))
    torch._C._ensureCUDADeviceGuardSet()
    registry[_CUDA] = _with_count(registry[_CUDA], guard_at, count)

    cpu = _load("libtorch_cpu.so")
    get_hooks = getattr(cpu, _GET_HOOKS)
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    base = ctypes.addressof(ctypes.c_void_p.in_dll(cpu, _BASE_HOOKS))
    table = _table(base + _PREFIX * _POINTER, _HOOK_SLOTS)
    meta = _table(_first(registry[_META]), _GUARD_SLOTS)
    answers = {
        "one": meta[_PREFIX + guard_at["deviceCount"]],  # meta counts one device
        "nothing": meta[_PREFIX + guard_at["setDevice"]],
        "zero": table[_PREFIX + hooks_at["hasCUDA"]],  # of a CPU build
    }
    for name, answer in build.HOOKS.items():
        table[_PREFIX + hooks_at[name]] = answers[answer]
    hooks[0] = ctypes.addressof(table) + _PREFIX * _POINTER
    _kept.append(table)
    _forget_timer(cpu)


def _forget_timer(cpu: ctypes.CDLL) -> None:
    """Let DDP find no timer of CUDA, which a CUDA build has and which asks the driver.

    Source: c10/util/Registry.h begins with a std::unordered_map from kinds of devices. In libstdc++ its list of entries
    begins at its third word; an entry is a pointer to the next one, then the kind.
    """
    registry = getattr(cpu, _TIMERS)
    registry.restype = ctypes.c_void_p
    entry = ctypes.c_void_p.from_address(registry() + 2 * _POINTER).value
    while entry:
        kind = ctypes.c_int8.from_address(entry + _POINTER)
        if kind.value == _CUDA:
            kind.value = _NO_KIND
        entry = ctypes.c_void_p.from_address(entry).value


def _load(library: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / library))


def _first(address: Any) -> int:
    """The table of an object."""
    return int(ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))[0])


def _table(functions: Any, slots: int) -> Any:
    """A copy of a table, with what is ahead of its functions."""
    source = ctypes.cast(functions - _PREFIX * _POINTER, ctypes.POINTER(ctypes.c_void_p))
    return (ctypes.c_void_p * slots)(*[source[slot] for slot in range(slots)])


def _with_count(guard: Any, places: Mapping[str, int], count: int) -> int:
    """A guard like another one that counts `count` devices."""
    table = _table(_first(guard), _GUARD_SLOTS)
    counter = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(lambda _: count)
    table[_PREFIX + places["deviceCount"]] = ctypes.cast(counter, ctypes.c_void_p).value
    # A device is two bytes, its kind and its index, which are returned in a register.
    current = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)(lambda _: current_index() << 8 | _CUDA)
    table[_PREFIX + places["getDevice"]] = ctypes.cast(current, ctypes.c_void_p).value
    made = (ctypes.c_void_p * 2)(ctypes.addressof(table) + _PREFIX * _POINTER, 0)
    _kept.extend((table, counter, current, made))
    return ctypes.addressof(made)
