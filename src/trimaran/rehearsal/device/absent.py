"""Packages that a machine with a GPU has and a laptop lacks.

Triton comes with every CUDA build of torch, so it is always there, and never the one that is installed: kernels keep
their decorators, a launch is noted with its tensors and computes nothing. FlashAttention's functions lead to torch's
operator of the same kernel; it is there only for a script that cannot do without it, since what may be absent here may
be absent on the cluster as well.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch.utils._pytree import tree_leaves

from trimaran.rehearsal.device.replaced import replace
from trimaran.rehearsal.record import Kernel
from trimaran.rehearsal.recorder import ScriptRecorder, form_of
from trimaran.rehearsal.values import forget

TRITON_VERSION = "3.7.0"
"""That is said; the one that torch 2.13 for CUDA is released with is near."""

FLASH_VERSION = "2.8.3"
"""That is said, a release of August 2025."""

_OWN = str(Path(__file__).parents[1])


def install(recorder: ScriptRecorder, *, attention: bool) -> None:
    """Make the packages importable that are not installed.

    Args:
        recorder: notes launches
        attention: whether FlashAttention is among them
    """
    KernelFunction.recorder = recorder
    sys.modules.pop("triton", None)
    sys.meta_path.insert(0, AbsentPackage("triton", _of_triton, lambda name: _Anything(name=name), _wants_triton))
    if attention and "flash_attn" not in sys.modules and find_spec("flash_attn") is None:
        sys.meta_path.append(AbsentPackage("flash_attn", _of_flash_attention, _refuse))
        # transformers asks for what pip would have installed it as, and not for the module.
        folder = Path(tempfile.mkdtemp()) / f"flash_attn-{FLASH_VERSION}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {FLASH_VERSION}\n")
        (folder / "top_level.txt").write_text("flash_attn\n")
        sys.path.append(str(folder.parent))
    # torch itself goes on as without it: it would compile for a GPU.
    from torch.utils import _triton

    replace(_triton, has_triton_package=lambda: False, has_triton=lambda: False)


class AbsentPackage(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of one package.

    Args:
        name: of the package
        parts: what is in a module, by its name
        missing: what a name is that a module has not, by its whole name; may raise
        is_wanted: whether the package is there for who imports it now; may raise
    """

    def __init__(
        self,
        name: str,
        parts: Callable[[str], Mapping[str, Any]],
        missing: Callable[[str], Any],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name, self._parts, self._missing, self._is_wanted = name, parts, missing, is_wanted

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """A module of the package."""
        if name.partition(".")[0] != self.name or (name == self.name and not self._is_wanted()):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        """An empty one."""
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Fill it; a name that it has not is asked for when it is read."""
        vars(module).update(self._parts(module.__name__), __getattr__=partial(self._missing_in, module.__name__))

    def _missing_in(self, module: str, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return self._missing(f"{module}.{name}")


class _Anything(MagicMock):
    """Something that is named, called, indexed and calculated with, and stays nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator it keeps what it decorates."""
        if len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType, KernelFunction)):
            return args[0]
        return super().__call__(*args, **kwargs)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()


# ---------------------------------------------------------------------------------------------------------------------
# Triton


class KernelFunction:
    """A function under `triton.jit`, also under `autotune` and `heuristics`.

    Args:
        function: that would be compiled
    """

    recorder: ScriptRecorder
    """Set once a process."""

    def __init__(self, function: Any, *_: Any, **__: Any) -> None:
        self.fn = getattr(function, "fn", function)
        self.__name__ = self.__qualname__ = getattr(function, "__name__", "kernel")
        self.__module__, self.__doc__ = getattr(function, "__module__", ""), getattr(function, "__doc__", None)
        code = self.fn.__code__ if isinstance(self.fn, types.FunctionType) else None
        self.arg_names = list(code.co_varnames[: code.co_argcount]) if code is not None else []

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self.run

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """A launch: noted, with its tensors, of which any may be written."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
        for tensor in tensors:
            forget(tensor)
        if any(tensor.device.type == "cuda" for tensor in tensors):
            forms = tuple(form_of(tensor) for tensor in tensors)
            self.recorder.run(Kernel(f"triton.{self.__name__}", forms, (), {}, 0))
            self.recorder.note("Triton's kernels: launches are noted, not what they compute")
        return _Anything(name=f"{self.__name__}()")

    warmup = __call__ = run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name=f"{self.__name__}.{name}")


def _config(kwargs: Any = None, num_warps: int = 4, num_stages: int = 3, **others: Any) -> SimpleNamespace:
    """`triton.Config`."""
    return SimpleNamespace(kwargs=dict(kwargs or {}), num_warps=num_warps, num_stages=num_stages, **others)


def _decorator(*args: Any, **kwargs: Any) -> Any:
    """A decorator of kernels that is used with and without arguments."""
    if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, KernelFunction)):
        return KernelFunction(args[0])
    return KernelFunction


def _wants_triton() -> bool:
    """Whether it is there: for all but torch, which then would compile; it looks before another package is told.

    Raises:
        ModuleNotFoundError: it is torch, which is not to find what is installed either
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(("<frozen", _OWN)):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename.startswith(f"{Path(torch.__file__).parent}/"):
        raise ModuleNotFoundError("No module named 'triton'", name="triton")
    importlib.import_module("torch._inductor.runtime.triton_compat")
    return True


def _of_triton(module: str) -> Mapping[str, Any]:
    """Its decorators and the few functions that are called from Python."""
    if module == "triton.language":
        return {"constexpr": lambda value=None: value}
    if module != "triton" and not f"{module}.".startswith("triton.runtime."):
        return {}
    return {
        "__version__": TRITON_VERSION,
        **dict.fromkeys(("jit", "autotune", "heuristics"), _decorator),
        **dict.fromkeys(("JITFunction", "Autotuner", "Heuristics", "KernelInterface"), KernelFunction),
        "Config": _config,
        "cdiv": lambda number, by: -(-number // by),
        "next_power_of_2": lambda number: 1 << max(0, int(number) - 1).bit_length(),
    }


# ---------------------------------------------------------------------------------------------------------------------
# FlashAttention


def _of_flash_attention(module: str) -> Mapping[str, Any]:
    """Attention by the kernel that torch has as well.

    Raises:
        ImportError: it has layers other than attention
    """
    if module == "flash_attn.bert_padding":
        return {"index_first_axis": lambda rows, at: rows[at], "pad_input": _padded, "unpad_input": _unpadded}
    if module not in ("flash_attn", "flash_attn.flash_attn_interface"):
        raise _refusal(module)
    return {
        "__version__": FLASH_VERSION,
        "flash_attn_func": _attend,
        "flash_attn_qkvpacked_func": lambda packed, *args, **kwargs: _attend(*packed.unbind(2), *args, **kwargs),
        "flash_attn_kvpacked_func": lambda query, packed, *args, **kwargs: _attend(
            query, *packed.unbind(2), *args, **kwargs
        ),
        "flash_attn_varlen_func": _attend_ragged,
        "flash_attn_with_kvcache": _generates,
    }


def _refuse(name: str) -> Any:
    raise _refusal(name)


def _refusal(name: str) -> ImportError:
    return ImportError(
        f"{name} of flash_attn {FLASH_VERSION} is not rehearsed, of which attention alone is: take torch's own layer, "
        "or install flash_attn where Trimaran is installed",
        name=name,
    )


def _unpadded(rows: torch.Tensor, mask: torch.Tensor, unused_mask: Any = None) -> tuple[Any, ...]:
    """Samples one after another, at their most: none has padding. From (samples, steps, …) to (rows, …)."""
    samples, steps = mask.shape
    ends = torch.arange(0, (samples + 1) * steps, steps, dtype=torch.int32, device=mask.device)
    return rows.flatten(0, 1), torch.arange(samples * steps, device=mask.device), ends, steps, mask.sum(-1)


def _padded(rows: torch.Tensor, at: torch.Tensor, samples: int, steps: int) -> torch.Tensor:
    """From (rows, …) to (samples, steps, …)."""
    made: torch.Tensor = rows.unflatten(0, (samples, steps))
    return made


def _generates(*_: Any, **__: Any) -> Any:
    """Imported next to the others by what trains, and called by what generates."""
    raise _refusal("flash_attn.flash_attn_with_kvcache")


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **_: Any,
) -> torch.Tensor:
    """Rows, steps, heads, width; torch's has the heads ahead of the steps."""
    parts = (part.transpose(1, 2) for part in (query, key, value))
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    made: torch.Tensor = flash(*parts, dropout_p, causal, scale=softmax_scale)[0]
    return made.transpose(1, 2)


def _attend_ragged(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **_: Any,
) -> torch.Tensor:
    """Sequences one after another."""
    flash = torch.ops.aten._flash_attention_forward
    made: torch.Tensor = flash(
        query, key, value, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), dropout_p, causal, False,
        scale=softmax_scale,
    )[0]  # fmt: skip
    return made
