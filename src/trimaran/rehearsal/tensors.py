"""Tensors of a rehearsal: on the host real, on the simulated device, and where they are large, without data.

One dispatch mode sees every operation. What has only small tensors on the host runs as it is. The rest runs in torch's
fake mode, which tells shapes, types and devices; the recorder notes blocks and kernels, `values` keeps small values,
`groups` takes collectives. Fake modes of the script itself, and DTensor's when it asks for shapes, are left alone.
"""

import math
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from trimaran.graph.flops import flops_of
from trimaran.rehearsal.device.kernels import IN_PLACE_OF_PARTS
from trimaran.rehearsal.record import Kernel, TensorForm
from trimaran.rehearsal.recorder import ScriptRecorder, form_of
from trimaran.rehearsal.values import Values, set_twin, twin_of

LARGE_BYTES = 4 * 2**20
"""Tensors on the host from this size on are without data when they are made by their sizes [bytes]."""

MOST_COPIED = 65536
"""Elements of a tensor whose copy on the host gets a value."""

MOST_TRIED_BYTES = 256 * 2**20
"""Of the arguments of an operator that is run with zeros to learn what it makes [bytes]."""

_aten = torch.ops.aten

_BY_SIZES = {
    _aten.empty.memory_format,
    _aten.zeros.default,
    _aten.ones.default,
    _aten.full.default,
    _aten.randn.default,
    _aten.rand.default,
    _aten.empty_strided.default,
}
_WITHOUT_KERNEL = {
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
    _aten._unsafe_view.default,
    _aten.detach.default,
    _aten.lift_fresh.default,
    _aten.is_same_size.default,
    _aten._reshape_alias.default,
}
_DEVICE = torch.ops.prim.device.default

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d_functional")
"""Namespaces of operators that exchange."""

_SAID = (bool, int, float, str)

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


class _ModeOfThreads(FakeTensorMode):
    """torch's mode belongs to one thread. A script has others: they save, load and fetch while it trains."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = threading.local()
        super().__init__(allow_non_fake_inputs=True, static_shapes=True)

    @property
    def in_kernel_invocation(self) -> bool:
        """Whether this thread is in a kernel, where tensors say that they are on the device "meta"."""
        return getattr(self._inside, "kernel", False)

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._inside.kernel = value

    def __deepcopy__(self, _: Any) -> "_ModeOfThreads":
        """Tensors that are copied, as a model's for a moving average, stay of the one mode."""
        return self

    def __enter__(self) -> Any:
        self._lock.acquire()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._lock.release()


FAKE = _ModeOfThreads()
"""The one mode of all tensors without data in this process."""


_tried: set[Any] = set()
"""Operators that torch's fake mode does not know."""


def fake(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """An operation without data."""
    if func in _tried:
        return _by_trial(func, args, kwargs)
    key = _asked(func, args, kwargs)
    form = _forms.get(key) if key is not None else None
    if form is not None:
        return args[0] if form is _IN_PLACE else _rebuilt(form, args)
    out = _without_data(func, args, kwargs)
    if key is not None:
        _forms[key] = _form(_kinds[func], out, args)
    return out


def _without_data(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """`fake` of an operation that was not asked for before."""
    if any(_plain(one) is not one for value in (*args, *kwargs.values()) for one in _tensors(value)):
        args, kwargs = tree_map_only(torch.Tensor, _plain, (args, dict(kwargs)))
    try:
        with FAKE:
            out = IN_PLACE_OF_PARTS.get(func, func)(*args, **kwargs)
    except (UnsupportedOperatorException, NotImplementedError, torch.AcceleratorError):
        out = _by_trial(func, args, kwargs)  # a CPU build has no kernel of the device, one for CUDA no device
        _tried.add(func)
    if type(out) is FakeTensor and out.constant is not None:
        constant, out.constant = out.constant, None
        set_twin(out, constant)
    return out


_forms: dict[tuple[Any, ...], Any] = {}
"""What operations make, by what they are asked with: layers and steps ask for the same again. None: not kept."""

_NEW, _VIEW, _IN_PLACE = "new", "view", "in place"

_kinds: dict[Any, str] = {}
"""Whether an operator makes new tensors only, one view of its first tensor, or writes into that; "": something else."""

_PLAIN_ARGUMENTS = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NotKept(Exception):
    """An argument tells more than its form."""


def _asked(func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The key under which what an operation makes is kept; None: more than forms of tensors and plain arguments."""
    kind = _kinds.get(func)
    if kind is None:
        kind = _kinds[func] = _kind(func)
    if not kind:
        return None
    try:
        named = tuple((name, _argument(value)) for name, value in kwargs.items()) if kwargs else ()
        return func, tuple(map(_argument, args)), named, torch.get_default_dtype()
    except _NotKept:
        return None


def _kind(func: Any) -> str:
    schema = func._schema
    unknown = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
    if func.namespace != "aten" or not schema.returns or unknown & set(func.tags):
        return ""
    if all(one.alias_info is None for one in (*schema.arguments, *schema.returns)):
        return _NEW
    first, others = schema.arguments[0], schema.arguments[1:]
    alone = len(schema.returns) == 1 and first.alias_info is not None and str(first.type) == "Tensor"
    if not alone or str(schema.returns[0].type) != "Tensor" or any(one.alias_info is not None for one in others):
        return ""
    if func.is_view:
        return _VIEW
    return _IN_PLACE if first.alias_info.is_write and schema.name.endswith("_") else ""


def _argument(value: Any) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        if value.layout != torch.strided or value.constant is not None or value.fake_mode is not FAKE:
            raise _NotKept
        if value.is_neg() or value.is_conj():
            raise _NotKept
        return value.shape, value.stride(), value.dtype, value.fake_device, value.storage_offset()
    if kind is list or kind is tuple:
        return tuple(map(_argument, value))
    if kind not in _PLAIN_ARGUMENTS:
        raise _NotKept
    return kind, value  # 1, 1.0 and True are equal


def _form(kind: str, out: Any, args: Any) -> Any:
    """What was made, and how to make its like: whether it is one tensor, a tuple or a list, and its tensors' forms."""
    if kind == _IN_PLACE:
        return _IN_PLACE if out is args[0] else None
    made = [out] if isinstance(out, torch.Tensor) else out
    if not isinstance(made, (tuple, list)) or not made:
        return None
    storages = {leaf.untyped_storage()._cdata for leaf in tree_leaves(args) if isinstance(leaf, FakeTensor)}
    forms: list[Any] = []
    for one in made:
        if type(one) is not FakeTensor or one.layout != torch.strided or one.constant is not None:
            return None
        if one.requires_grad or one.is_neg() or one.is_conj() or twin_of(one) is not None:
            return None
        storage = one.untyped_storage()
        if kind == _VIEW and (not isinstance(args[0], FakeTensor) or storage._cdata not in storages):
            return None
        if kind == _NEW:
            last = sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
            nbytes = (last + 1 if one.numel() else 0) * one.element_size()
            if one.storage_offset() or storage.nbytes() != nbytes or storage._cdata in storages:
                return None
            storages.add(storage._cdata)
        forms.append((tuple(one.shape), one.stride(), one.dtype, one.fake_device, one.storage_offset()))
    return kind, None if made is not out else type(made), forms


def _rebuilt(form: tuple[str, Any, list[Any]], args: Any) -> Any:
    kind, several, forms = form
    storage = args[0].untyped_storage() if kind == _VIEW else None
    if storage is not None and args[0].is_inference() != torch.is_inference_mode_enabled():
        with torch.inference_mode(args[0].is_inference()):  # a view is of the kind of its base, whatever the mode
            return _rebuilt(form, args)
    with in_kernel_invocation_manager(FAKE):
        parts = [torch.empty_strided(one[0], one[1], dtype=one[2], device="meta") for one in forms]
        if storage is not None:
            for part, one in zip(parts, forms, strict=True):
                part.set_(storage, one[4], one[0], one[1])
    outs = [FakeTensor(FAKE, part, one[3]) for part, one in zip(parts, forms, strict=True)]
    return outs[0] if several is None else several(outs)


def _by_trial(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What an operator makes that is not known without data: it is run on the host, with zeros.

    Raises:
        NotImplementedError: it has no kernel for the host, refuses zeros or would take too much memory
    """
    tensors = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > MOST_TRIED_BYTES:
        raise NotImplementedError(f"a rehearsal does not know what {func} makes, and its tensors are large")
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), torch.device("cpu"))
    stands: dict[int, torch.Tensor] = {}

    def real(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor):
            return tensor
        value = twin_of(tensor)
        value = _zeros(tensor) if value is None else value.clone()
        stands[id(value)] = tensor
        return value

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in stands:
            return stands[id(value)]
        if value.layout != torch.strided:
            raise NotImplementedError(
                f"a rehearsal does not know what {func} makes, which is of layout {value.layout}: "
                "take sparse_coo or dense tensors"
            )
        with FAKE:
            return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device=device)

    try:
        with _disable_current_modes(), torch.no_grad():
            plain = tree_map_only(torch.Tensor, real, args)
            named = tree_map_only(torch.Tensor, real, dict(kwargs))
            if named.get("device") is not None:
                named["device"] = "cpu"
            made = func(*plain, **named)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        raise NotImplementedError(f"a rehearsal does not know what {func} makes: {str(error)[:200]}") from error
    return tree_map(back, made)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    zeros = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
    return zeros.zero_()


def without_data(tensor: torch.Tensor) -> FakeTensor:
    """A tensor's form, without its data."""
    with _disable_current_modes():
        return FAKE.from_tensor(tensor)


class RehearsalMode(TorchDispatchMode):
    """Runs every operation of the script.

    Args:
        recorder: notes what is done
        values: keeps what is known
        device: index of the simulated device that is current
        exchanges: runs an operator of `COLLECTIVES`
    """

    def __init__(self, recorder: ScriptRecorder, values: Values, device: Any, exchanges: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._values = values
        self._device = device
        self._exchanges = exchanges
        self._composite: dict[Any, bool] = {}

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Not one of torch's own, so it sees what these do."""
        return False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so there is nothing to keep from the compiler at each operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # asked for at every operation
            return args[0].fake_device
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)
        simulated = False
        for kind in types:
            if kind is FakeTensor or issubclass(kind, FakeTensor):
                simulated = True
            elif (
                kind not in _PLAIN
                and not issubclass(kind, torch.nn.Parameter)
                and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
            ):
                return NotImplemented
        if func is _aten.is_pinned.default:
            return is_pinned(args[0])
        if kwargs.get("pin_memory"):
            made = self.__torch_dispatch__(func, types, args, {**kwargs, "pin_memory": False})
            pin(made)
            return made
        device: Any = kwargs.get("device")
        if device is not None:
            device = torch.device(device)
            if device.type == "cuda":
                simulated = True
                index = self._device.use(self._device.index_of(device))
                if device.index is None:
                    kwargs = {**kwargs, "device": torch.device("cuda", index)}
        elif not simulated:  # operators that are put together from others may name it by place
            simulated = any(isinstance(value, torch.device) and value.type == "cuda" for value in args)
        if simulated and self._decomposes(func):
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if func.namespace in COLLECTIVES:
            return self._exchanges.run(func, args, kwargs)
        if not simulated:
            if func in _BY_SIZES and (device is None or device.type == "cpu"):
                sizes = args[0] if args and isinstance(args[0], (list, tuple)) else ()
                if sizes and math.prod(sizes) * 4 >= LARGE_BYTES:
                    return self._run(func, args, kwargs)
            if func is _aten._to_copy.default and _is_cast(args[0], kwargs.get("dtype")):
                return self._run(func, (without_data(args[0]),), kwargs)
            return func(*args, **kwargs)
        if func is _aten.copy_.default and not isinstance(args[0], FakeTensor):
            self._waits(args[1])
            value = self._values.of(args[1], "copy")
            with _disable_current_modes():
                return args[0].copy_(value)
        if func is _aten._local_scalar_dense.default:
            self._waits(args[0])
            return self._values.of(args[0], "item").item()
        if func is _aten.equal.default or func is _aten.allclose.default:
            return self._equal(args[0], args[1])
        if func is _aten.is_nonzero.default:
            self._waits(args[0])
            return bool(self._values.of(args[0], "bool").item())
        return self._run(func, args, kwargs)

    def _decomposes(self, func: Any) -> bool:
        known = self._composite.get(func)
        if known is None:
            known = self._composite[func] = (
                func.namespace == "aten"
                and func not in IN_PLACE_OF_PARTS
                and bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))
            )
        return known

    def _waits(self, tensor: torch.Tensor) -> None:
        """The host waits for what it asks of the device."""
        if tensor.device.type == "cuda":
            self._recorder.synchronize(self._recorder.stream)

    def _equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        self._waits(one)
        left, right = (twin_of(x) if isinstance(x, FakeTensor) else x for x in (one, other))
        if left is not None and right is not None:
            with _disable_current_modes():
                return torch.equal(left, right)
        if one.shape != other.shape:
            return False
        self._recorder.invent("condition", "equal", True)
        return True

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if "sparse_compressed" in func.name() or "to_sparse_" in func.name():
            raise NotImplementedError(
                f"{func} makes a tensor with rows or columns compressed, which is not rehearsed: "
                "take sparse_coo or dense tensors"
            )
        if func is _aten._to_copy.default:
            target = kwargs.get("device")
            source = args[0]
            if target is not None and source.layout == torch.sparse_coo:
                with self:
                    return _sparse_copy(source, torch.device(target), kwargs.get("dtype"))
            if target is not None and torch.device(target).type == "cpu" and source.device.type == "cuda":
                if not kwargs.get("non_blocking"):
                    self._waits(source)
                if source.numel() <= MOST_COPIED:
                    value = self._values.of(source, "cpu")
                    with _disable_current_modes():
                        return value.to(dtype=kwargs.get("dtype") or source.dtype).clone()
        if func is _aten._coalesce.default:
            self._recorder.invent("distinct values", "coalesce", "all")
            with self:
                return _sparse_copy(args[0], args[0].device, None)._coalesced_(True)
        try:
            if func is _aten._pack_padded_sequence.default:
                out = self._packed(*args)
            else:
                out = None if _writes_lists(func) else fake(func, args, kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            out = self._with_unknown_shape(func, args, kwargs)
        if type(out) is torch.Tensor and func is _aten.detach.default:
            return out
        self._note(func, args, kwargs, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        outs = list(_tensors(out))
        on_device = any(made.device.type == "cuda" for made in outs) or _has_device(args)
        if not func.is_view:
            kernel = None
            if on_device and func not in _WITHOUT_KERNEL and func.namespace != "prim":
                kernel = self._kernel(func, args, kwargs, out, outs)
                self._recorder.run(kernel)
            source = args[0] if func is _aten._to_copy.default else args[1] if func is _aten.copy_.default else None
            from_host = source is not None and source.device.type == "cpu" and on_device
            if from_host:
                self._recorder.sent(source)
            purpose = "input" if from_host and source is args[0] else None
            for made in outs:
                if isinstance(made, FakeTensor) and made.device.type == "cuda":
                    self._recorder.take(made, purpose)  # type: ignore[arg-type]
            if kernel is not None:
                self._recorder.scratch(kernel)
                self._recorder.moves((args, kwargs), outs)
            self._exchanges.gradients.follow(func, args, kwargs, outs)
        self._values.follow(func, args, kwargs, outs)

    def _kernel(self, func: Any, args: Any, kwargs: Any, out: Any, outs: list[torch.Tensor]) -> Kernel:
        schema = func._schema.arguments
        inputs: list[TensorForm] = []
        others: dict[str, Any] = {}
        for position, value in enumerate(args):
            _sort(schema[position].name if position < len(schema) else str(position), value, inputs, others)
        for name, value in kwargs.items():
            _sort(name, value, inputs, others)
        try:
            flops = int(flops_of(func, args, kwargs, out))
        except (TypeError, ValueError, IndexError, AttributeError, AssertionError, NotImplementedError):
            flops = 0
        name = str(func)
        rounded = any(form.dtype == "float32" for form in inputs) and _rounds(name, flops)
        return Kernel(name, tuple(inputs), tuple(form_of(made) for made in outs), others, flops, rounded)

    def _with_unknown_shape(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation makes whose shape depends on data."""
        source = args[0]
        twin = twin_of(source)
        self._waits(source)
        made = self._values.computed(func, args, kwargs)
        if made is not None:
            return tree_map(lambda value: self._real(value, source), made)
        if func is _aten.nonzero.default:
            return self._made((self._true(source, "nonzero"), source.dim()), torch.int64, source)
        if func is _aten.masked_select.default:
            return self._made((self._true(args[1], "masked_select"),), source.dtype, source)
        if func is _aten.index.Tensor:
            places: list[Any] = []
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    count = self._true(index, "index")
                    places += [self._made((count,), torch.int64, source) for _ in range(index.dim())]
                else:
                    places.append(index)
            return fake(func, (source, places), kwargs)
        if func is _aten.bincount.default:
            bins = int((kwargs.get("minlength") or (args[2] if len(args) > 2 else 0)) or 1)
            self._recorder.invent("routing", "bincount", "balanced")
            return self._made((bins,), torch.int64, source, self._values.balanced(source.numel(), bins))
        if func in (_aten._unique2.default, _aten.unique_dim.default):
            count = int(twin.unique().numel()) if twin is not None else source.numel()
            if twin is None:
                self._recorder.invent("distinct values", "unique", count)
            return (
                self._made((count,), source.dtype, source),
                self._made(tuple(source.shape), torch.int64, source),
                self._made((count,), torch.int64, source),
            )
        if func is _aten.repeat_interleave.Tensor:
            count = kwargs.get("output_size") or (int(twin.sum()) if twin is not None else source.numel())
            return self._made((int(count),), torch.int64, source)
        raise NotImplementedError(
            f"{func} makes a tensor whose shape depends on data, which a rehearsal does not have; "
            "give it an output size, or leave that part of the script out"
        )

    def _real(self, value: Any, like: torch.Tensor) -> Any:
        """A tensor without data that is known."""
        if not isinstance(value, torch.Tensor):
            return value
        return self._made(tuple(value.shape), value.dtype, like, value)

    def _packed(self, tensor: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        """Rows of sequences one after another, and how many sequences each step has."""
        counts = self._values.of(lengths, "pack_padded_sequence")
        with _disable_current_modes():
            longest = int(counts.max())
            sizes = (counts[None, :] > torch.arange(longest)[:, None]).sum(1)
        return self._made((int(counts.sum()), *tensor.shape[2:]), tensor.dtype, tensor), sizes

    def _true(self, mask: torch.Tensor, asked: str) -> int:
        """How many elements of a mask are set."""
        twin = twin_of(mask) if isinstance(mask, FakeTensor) else mask
        if twin is not None:
            with _disable_current_modes():
                return int(twin.count_nonzero())
        if self._values.all_true:
            return mask.numel()
        density = getattr(mask, "_trimaran_density", None)
        count = round(density * mask.numel()) if density is not None else max(1, mask.numel() // 2)
        self._recorder.invent("true elements", asked, f"{count} of {mask.numel()}")
        return count

    def _made(
        self, shape: tuple[int, ...], dtype: torch.dtype, like: torch.Tensor, twin: torch.Tensor | None = None
    ) -> torch.Tensor:
        out: torch.Tensor = fake(_aten.empty.memory_format, (list(shape),), {"dtype": dtype, "device": like.device})
        set_twin(out, twin)
        return out


def _sparse_copy(source: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    """A sparse tensor on another device: its parts are copied, each a tensor like any other."""
    return torch.sparse_coo_tensor(
        source._indices().to(device),
        source._values().to(device, dtype),
        source.shape,
        is_coalesced=source.is_coalesced(),
        check_invariants=False,
    )


_list_writers: dict[Any, bool] = {}


def _writes_lists(func: Any) -> bool:
    """Whether an operator only writes into lists of tensors, as optimizers' do: without data there is nothing to do."""
    known = _list_writers.get(func)
    if known is None:
        name = func._schema.name
        known = _list_writers[func] = (
            name.startswith(("aten::_foreach_", "aten::_fused_"))
            and not func._schema.returns
            and func._schema.is_mutable
        )
    return known


def _is_cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> bool:
    """Whether much on the host becomes another type of floating point, as weights that were read from a file do."""
    to = tensor.dtype if dtype is None else dtype
    large = tensor.device.type == "cpu" and tensor.numel() * max(tensor.element_size(), to.itemsize) >= LARGE_BYTES
    return large and to != tensor.dtype and to.is_floating_point and tensor.is_floating_point()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with data of a script's own class as what it is without the class."""
    if isinstance(tensor, FakeTensor) or type(tensor) in _PLAIN:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Say that a tensor on the host is in pinned memory; it stays where it is."""
    if tensor.device.type == "cpu":
        tensor._trimaran_pinned = True  # type: ignore[attr-defined]
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a script asked for a tensor in pinned memory."""
    return getattr(tensor, "_trimaran_pinned", False)


def _tensors(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, (tuple, list)):
        for value in out:
            if isinstance(value, torch.Tensor):
                yield value


def _has_device(args: Any) -> bool:
    """Whether a tensor among the arguments is on the device."""
    for value in args:
        if isinstance(value, torch.Tensor):
            if value.device.type == "cuda":
                return True
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value[0].device.type == "cuda"
    return False


def _rounds(name: str, flops: int) -> bool:
    """Whether torch is set to round the inputs of a product in fp32 to TF32, as by default those of convolutions."""
    if not flops:
        return False
    cudnn: Any = torch.backends.cudnn
    setting: Any = torch.backends.cuda.matmul
    if "_cudnn_rnn" in name:
        setting = cudnn.rnn
    elif "convolution" in name and cudnn.enabled:
        setting = cudnn.conv
    return bool(setting.fp32_precision == "tf32")


def _sort(name: str, value: Any, inputs: list[TensorForm], others: dict[str, Any]) -> None:
    """An argument: a tensor, a list of them, or something else that JSON can say."""
    if isinstance(value, torch.Tensor):
        inputs.append(form_of(value))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        inputs.extend(form_of(item) for item in value if isinstance(item, torch.Tensor))
    elif value is None or isinstance(value, _SAID):
        others[name] = value
    elif isinstance(value, (list, tuple)):
        others[name] = [item if item is None or isinstance(item, _SAID) else str(item) for item in value]
    else:
        others[name] = str(value)
