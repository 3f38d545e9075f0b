"""What a script finds in the place of GPUs and NCCL where it is run for real on the CPU.

    asked for                                 found
    a CUDA device, or memory of one           the CPU
    NCCL, or a mesh of CUDA devices           gloo
    bf16, fp16, autocast                      fp32
    memory that nothing is written to         zeros
    dropout                                   none: ranks and one process would draw other masks
    statistics of a batch in a batch norm     those that it keeps: a mean over a rank's samples is another one
    torch.compile                             the function as it is
    FlashAttention, imported by the script    attention of torch; of the rest that it can be imported

So that ranks and one process differ by rounding alone where they train the same model.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trimaran.rehearsal.device import absent
from trimaran.rehearsal.device.replaced import replace

_CPU = torch.device("cpu")
_BYTES = 80 * 2**30
_LOW = {torch.bfloat16, torch.float16}

DRAWS: Mapping[Any, str] = {
    getattr(torch, name): name
    for name in (
        *("randn", "rand", "randint", "randperm", "normal", "bernoulli", "multinomial"),
        *("randn_like", "rand_like", "randint_like"),
    )
}
"""Functions that make tensors of random numbers."""

_EMPTY = {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty}
"""Functions that make tensors of whatever the memory has."""

_PLACING = {torch.Tensor.to, torch._C._nn._parse_to}
"""Functions that take a device by its position."""

Told = Callable[[str], None]


class OnCpu(TorchFunctionMode):
    """Devices and types of functions of torch become those that are there.

    Args:
        told: hears what was replaced
        drawn: is given each tensor of random numbers, and the name of its function; what it returns is taken
    """

    def __init__(self, told: Told, drawn: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._told, self._drawn = told, drawn

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func in (torch.Tensor.half, torch.Tensor.bfloat16):
            self._told("fp32 for 16 bits")
            return args[0].float()
        if func is torch.device:  # scripts ask for its type
            return func(*args, **kwargs)
        placed = "device" if func in _PLACING else ""
        args = tuple(self._here(value, placed) for value in args)
        kwargs = {name: self._here(value, name) for name, value in kwargs.items() if name != "pin_memory"}
        result = func(*args, **kwargs)
        if func in _EMPTY:
            with torch.no_grad():
                result.zero_()
        name = DRAWS.get(func)
        return result if name is None else self._drawn(name, result)

    def _here(self, value: Any, name: str = "") -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            self._told("the CPU for CUDA devices")
            return _CPU
        if isinstance(value, torch.dtype) and value in _LOW:
            self._told("fp32 for 16 bits")
            return torch.float32
        if isinstance(value, str) and value.startswith("cuda"):
            return _CPU
        return _CPU if name == "device" and isinstance(value, int) and not isinstance(value, bool) else value


def install(told: Told, store: Callable[[], Any], rank: int, world: int, devices: int) -> None:
    """Replace what is not there.

    Args:
        told: hears what was replaced
        store: gives the store through which ranks find each other
        rank: of this process
        world: ranks in all
        devices: that the script sees
    """
    _install_groups(told, store, rank, world)
    _install_devices(devices)
    _install_layers(told)
    parts = {"flash_attn_func": _attend}
    sys.meta_path.append(absent.AbsentPackage("flash_attn", lambda _: parts, _only_imported, _asked_by_script))


# ---------------------------------------------------------------------------------------------------------------------
# Groups


def _install_groups(told: Told, store: Callable[[], Any], rank: int, world: int) -> None:
    begin, new_group, barrier = dist.init_process_group, dist.new_group, dist.barrier

    def init_process_group(backend: Any = None, *_: Any, timeout: Any = None, **__: Any) -> None:
        if "nccl" in str(backend):
            told("gloo for NCCL")
        begin("gloo", store=store(), rank=rank, world_size=world, **({} if timeout is None else {"timeout": timeout}))

    def other_group(ranks: Any = None, timeout: Any = None, *_: Any, group_desc: Any = None, **kwargs: Any) -> Any:
        own = {"use_local_synchronization": kwargs.get("use_local_synchronization", False)}
        return new_group(ranks, timeout, "gloo", group_desc=group_desc, **own)

    def wait_for_all(group: Any = None, async_op: bool = False, **_: Any) -> Any:
        return barrier(group, async_op)

    parts = {"init_process_group": init_process_group, "new_group": other_group, "barrier": wait_for_all}
    parts |= {
        name: _summed(getattr(dist, name))
        for name in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
    }
    for owner in (dist, dist.distributed_c10d):
        replace(owner, **parts)
    made = device_mesh.DeviceMesh.__init__

    def make_mesh(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        made(self, "cpu", *args, **kwargs)

    replace(device_mesh.DeviceMesh, __init__=make_mesh)
    mesh = device_mesh.init_device_mesh

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return mesh("cpu", *args, **kwargs)

    for owner in (dist, device_mesh):
        replace(owner, init_device_mesh=init_device_mesh)
    wrap = nn.parallel.DistributedDataParallel.__init__

    def wrapped(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any
    ) -> None:
        wrap(self, module, None, None, *args, **kw)

    replace(nn.parallel.DistributedDataParallel, __init__=wrapped)

    def exchange(state, bucket):  # type: ignore[no-untyped-def]
        told("fp32 for 16 bits")
        return default_hooks.allreduce_hook(state, bucket)

    for low in ("fp16", "bf16"):
        setattr(default_hooks, f"{low}_compress_hook", exchange)  # DDP asks for its name
        setattr(default_hooks, f"{low}_compress_wrapper", lambda hook: hook)


def _summed(collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective for which gloo has no mean: it sums, and divides afterwards."""

    @functools.wraps(collective)
    def reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        means = [place for place, value in enumerate(given) if _is_mean(value)]
        if not means and not _is_mean(kwargs.get("op")):
            return collective(tensor, *args, **kwargs)
        for place in means:
            given[place] = dist.ReduceOp.SUM
        if not means:
            kwargs["op"] = dist.ReduceOp.SUM
        groups = [value for value in (*given, kwargs.get("group")) if isinstance(value, dist.ProcessGroup)]
        work = collective(tensor, *given, **(kwargs | {"async_op": False}))
        tensor /= dist.get_world_size(*groups[:1])
        return _Done() if kwargs.get("async_op") else work

    return reduce


def _is_mean(value: Any) -> bool:
    return isinstance(value, dist.ReduceOp.RedOpType | dist.ReduceOp) and value == dist.ReduceOp.AVG


class _Done:
    """A collective that has ended."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


# ---------------------------------------------------------------------------------------------------------------------
# Devices


def _install_devices(count: int) -> None:
    nothing: Mapping[str, Callable[..., Any]] = {
        name: lambda *_, **__: None
        for name in (
            *("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"),
            *("init", "ipc_collect", "set_per_process_memory_fraction", "reset_max_memory_allocated"),
        )
    }
    zero: Mapping[str, Callable[..., Any]] = {
        name: lambda *_, **__: 0
        for name in (
            *("current_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
        )
    }
    replace(
        torch.cuda,
        **nothing,
        **zero,
        device_count=lambda: count,
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_device_capability=lambda *_: (9, 0),
        get_device_properties=lambda *_: SimpleNamespace(
            name="CPU", total_memory=_BYTES, major=9, minor=0, multi_processor_count=1
        ),
        mem_get_info=lambda *_: (_BYTES, _BYTES),
        get_rng_state=lambda *_: torch.get_rng_state(),
        get_rng_state_all=list,
        set_rng_state_all=lambda *_: None,
        set_rng_state=lambda *_: None,
        device=lambda *_, **__: contextlib.nullcontext(),
        stream=lambda *_, **__: contextlib.nullcontext(),
        is_bf16_supported=lambda *_, **__: True,
        get_device_name=lambda *_, **__: "CPU",
        Stream=_Stream,
        Event=_Stream,
        current_stream=lambda *_, **__: _Stream(),
        default_stream=lambda *_, **__: _Stream(),
    )
    load, cuda = torch.load, torch.device("cuda")
    replace(torch, load=lambda file, map_location=None, *args, **kwargs: load(file, "cpu", *args, **kwargs))
    here = {name: part for name, part in {**nothing, **zero}.items() if hasattr(torch.accelerator, name)}
    replace(
        torch.accelerator,
        **here,
        set_device_index=lambda *_: None,
        set_device_idx=lambda *_: None,
        current_device_index=lambda: 0,
        device_count=lambda: count,
        is_available=lambda: True,
        current_accelerator=lambda *_, **__: cuda,
        current_stream=lambda *_, **__: _Stream(),
    )


class _Stream:
    """A stream, or an event: nothing but the CPU runs."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Layers


def _install_layers(told: Told) -> None:
    def as_it_is(values: torch.Tensor, p: float = 0.5, *_: Any, training: bool = True, **__: Any) -> torch.Tensor:
        if p and training:
            told("no dropout")
        return values

    names = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    replace(functional, **{name: functools.partial(as_it_is) for name in names})
    replace(torch, dropout=lambda values, *_, **__: values)
    attend, normalize = functional.scaled_dot_product_attention, functional.batch_norm

    def attention(
        query: Any, key: Any, value: Any, mask: Any = None, dropout_p: float = 0.0, *args: Any, **kw: Any
    ) -> Any:
        if "attn_mask" in kw:
            mask = kw.pop("attn_mask")
        return attend(query, key, value, mask, 0.0, *args, **kw)

    def batch_norm(
        values: Any,
        mean: Any,
        variance: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        *rest: Any,
        **kw: Any,
    ) -> Any:
        if training and mean is not None:
            told("batch norms with the statistics that they keep")
        return normalize(values, mean, variance, weight, bias, training and mean is None, *rest, **kw)

    replace(functional, scaled_dot_product_attention=attention, batch_norm=batch_norm)

    def synchronised(self: Any, values: torch.Tensor) -> Any:
        return batch_norm(values, self.running_mean, self.running_var, self.weight, self.bias, self.training)

    replace(nn.SyncBatchNorm, forward=synchronised)
    made = nn.RNNBase.__init__

    def make_recurrent(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.dropout = 0.0

    replace(nn.RNNBase, __init__=make_recurrent)

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        told("no compilation")
        return (lambda function: function) if model is None else model

    replace(torch, compile=compile_nothing)
    replace(nn.Module, compile=lambda *_, **__: None)
    begin = torch.amp.autocast_mode.autocast.__init__

    def no_autocast(self: Any, device_type: str = "cpu", *args: Any, **kwargs: Any) -> None:
        told("fp32 for 16 bits")
        begin(self, "cpu", enabled=False)

    replace(torch.amp.autocast_mode.autocast, __init__=no_autocast)
    whole = MixedPrecisionPolicy.__init__

    def no_policy(self: Any, *_: Any, cast_forward_inputs: bool = True, **__: Any) -> None:
        told("fp32 for 16 bits")
        whole(self, cast_forward_inputs=cast_forward_inputs)

    replace(MixedPrecisionPolicy, __init__=no_policy)
    default = torch.set_default_dtype
    replace(torch, set_default_dtype=lambda dtype: default(torch.float32 if dtype in _LOW else dtype))


# ---------------------------------------------------------------------------------------------------------------------
# FlashAttention


def _asked_by_script() -> bool:
    """Whether a script imports it; libraries ask whether it is there, and do without."""
    frame: Any = sys._getframe(1)
    while "importlib" in frame.f_code.co_filename or frame.f_code.co_filename == absent.__file__:
        frame = frame.f_back
    return "site-packages" not in frame.f_code.co_filename


def _only_imported(name: str) -> Callable[..., Any]:
    """What raises where it is called."""

    def called(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name} needs a GPU: take torch's own layer")

    return called


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **_: Any,
) -> torch.Tensor:
    """From rows, steps, heads, width to the same; torch's has the heads ahead of the steps."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    attend = functional.scaled_dot_product_attention
    return attend(query, key, value, is_causal=causal, scale=softmax_scale, enable_gqa=True).transpose(1, 2)
