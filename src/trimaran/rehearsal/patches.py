"""What of torch is replaced in a rank's process, apart from its device and its groups.

`PATCHES` is the table: the module, the function that replaces parts of it, the reason.
"""

import contextlib
import functools
import inspect
import itertools
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    _foreach_supported_types,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as loaders

from trimaran.rehearsal.device.replaced import replace, when_imported
from trimaran.rehearsal.groups import RehearsedExchanges
from trimaran.rehearsal.recorder import ScriptRecorder
from trimaran.rehearsal.saved import SavedFiles
from trimaran.rehearsal.tensors import FAKE, RehearsalMode, is_pinned, pin, without_data
from trimaran.rehearsal.values import Values, is_small, set_twin, twin_of
from trimaran.user_code.held_state import held_tensors


class Patches:
    """Replaces, once a process.

    Args:
        recorder: notes what is done
        values: answers for tensors without data
        exchanges: process groups
        files: what is saved
        mode: makes the dispatch mode for a thread
        enough: called when a new step begins after the last that was asked for; does not return
        most_steps: steps of the optimizer
    """

    def __init__(
        self,
        recorder: ScriptRecorder,
        values: Values,
        exchanges: RehearsedExchanges,
        files: SavedFiles,
        mode: Callable[[], RehearsalMode],
        enough: Callable[[], None],
        most_steps: int,
    ) -> None:
        self._recorder = recorder
        self._values = values
        self._exchanges = exchanges
        self._files = files
        self._mode = mode
        self._enough = enough
        self._most_steps = most_steps
        self.active = False  # whether the script runs
        self._library: torch.library.Library  # held: what it registered goes with it

    def install(self) -> None:
        """Replace all of it."""
        torch._C._set_only_lift_cpu_tensors(True)
        replace(FakeTensorMode, avoid_device_init=property(lambda _: True))
        replace(fake_tensor, init_gpu_context=lambda _: None)  # a CUDA build would take a tensor of the device
        for known in (_foreach_supported_types, torch.utils._foreach_utils._foreach_supported_types):
            known.append(FakeTensor)  # optimizers take lists, as on the target
        for target, replacement, _ in PATCHES:
            when_imported(target, functools.partial(replacement, self))
        torch.distributions.Distribution.set_default_validate_args(False)  # their conditions are about data

    # -----------------------------------------------------------------------------------------------------------------
    # Tensors

    def _values_of_tensors(self, _: Any) -> None:
        """What a script reads from a tensor outside of operators."""
        values, numpy = self._values, torch.Tensor.numpy

        def item(tensor: torch.Tensor) -> Any:
            """Where torch asks below its modes, as `torch.tensor([loss, accuracy])` does."""
            self._recorder.synchronize(self._recorder.stream)
            return values.of(tensor, "item").item()

        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a CUDA build has one, and says that it is replaced
            self._library.impl("_local_scalar_dense", item, "CUDA", allow_override=True)

        def text(tensor: FakeTensor, form: str) -> str:
            if tensor.dim() == 0:
                return format(values.of(tensor, "format").item(), form)
            return f"tensor of {tuple(tensor.shape)} without data"

        replace(
            FakeTensor,
            __format__=text,
            numpy=lambda tensor, *args, **kwargs: numpy(values.of(tensor, "numpy"), *args, **kwargs),
            tolist=lambda tensor: values.of(tensor, "tolist").tolist(),
        )
        replace(
            torch.Tensor,
            pin_memory=lambda tensor, *_, **__: pin(tensor),
            is_pinned=lambda tensor, *_, **__: is_pinned(tensor),
            record_stream=lambda tensor, stream: self._use(tensor, stream),
        )
        # These two pin below the modes, where torch asks for CUDA. What follows `with torch.device` is noted before.
        _device_constructors()
        replace(torch, tensor=_pinning(torch.tensor))
        replace(torch.Tensor, new_tensor=_pinning(torch.Tensor.new_tensor))
        torch.jit._builtins._register_builtin(torch.tensor, "aten::tensor")

    def _parallel_losses(self, module: Any) -> None:
        """`loss_parallel` makes the loss of other operators than a cross-entropy's."""
        forward = module._nll_loss_forward

        def hinted(*args: Any, **kwargs: Any) -> Any:
            loss, weight = forward(*args, **kwargs)
            if loss.dim() == 0:
                self._values.take_as(loss, "loss")
            return loss, weight

        replace(module, _nll_loss_forward=hinted)

    def _use(self, tensor: torch.Tensor, stream: Any) -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        if isinstance(local, FakeTensor) and local.device.type == "cuda":
            self._recorder.use(local, stream.number)

    def _storages(self, _: Any) -> None:
        """FSDP resizes storages in place to give memory back and to take it again."""
        resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, nbytes: int) -> Any:
            self._recorder.resize(storage, nbytes)
            return resize(storage, nbytes)

        replace(torch.UntypedStorage, resize_=resize_)

    # -----------------------------------------------------------------------------------------------------------------
    # Modules

    def _modules(self, _: Any) -> None:
        """Parameters and buffers are without data from the start; moving a module keeps their identity."""
        recorder = self._recorder
        apply: Any = nn.Module._apply
        data: Any = torch._C.TensorBase.data
        pointer: Any = torch.Tensor.data_ptr
        make: Any = nn.Parameter.__new__
        register = nn.Module.register_buffer
        moved: dict[int, tuple[Any, nn.Parameter]] = {}
        overwrites = torch.__future__.get_overwrite_module_params_on_conversion
        swaps = torch.__future__.get_swap_module_params_on_conversion

        def apply_(module: nn.Module, change: Any, recurse: bool = True) -> nn.Module:
            if recurse:
                for child in module.children():
                    child._apply(change)
            for name, parameter in list(module._parameters.items()):
                if parameter is None:
                    continue
                if type(parameter) not in (FakeTensor, nn.Parameter, torch.Tensor) and not isinstance(
                    parameter, FakeTensor
                ):
                    return apply(module, change, recurse=False)  # type: ignore[no-any-return]  # DTensor and its like keep torch's own way
                if id(parameter) in moved:
                    module._parameters[name] = moved[id(parameter)][1]
                    continue
                with torch.no_grad():
                    changed = change(parameter)
                if changed is parameter:
                    continue
                gradient, parameter.grad = parameter.grad, None
                # As torch: on "meta" is another kind of tensor, and what is tied comes apart on the way from or to it.
                keeps = swaps() or (not overwrites() and parameter.is_meta == changed.is_meta)
                if isinstance(parameter, FakeTensor) and isinstance(changed, FakeTensor) and keeps:
                    parameter.data = changed
                    parameter.fake_device = changed.fake_device
                    recorder.take(parameter, "parameter")
                    recorder.name(parameter, "parameter")
                elif keeps and not isinstance(parameter, FakeTensor) and not isinstance(changed, FakeTensor):
                    parameter.data = changed
                else:
                    new = nn.Parameter(changed, parameter.requires_grad)
                    if keeps:
                        moved[id(parameter)] = (parameter, new)
                    module._parameters[name] = new
                    if changed.device.type == "cuda":
                        recorder.name(changed, "parameter")
                if gradient is not None:
                    with torch.no_grad():
                        module._parameters[name].grad = change(gradient)  # type: ignore[union-attr]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = change(buffer)
            return module

        def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
            if isinstance(tensor, FakeTensor) and type(value) in (torch.Tensor, nn.Parameter):
                value = _with_value(value)  # a copy on the host, as FSDP puts where it offloads
            if isinstance(value, FakeTensor):
                if isinstance(tensor, FakeTensor):
                    data.__set__(tensor, value)
                    tensor.fake_device = value.fake_device
                    set_twin(tensor, twin_of(value))
                    if value.device.type == "cuda":
                        is_parameter = isinstance(tensor, nn.Parameter) or tensor.requires_grad
                        recorder.take(value, "parameter" if is_parameter else None)
                        if is_parameter:  # as of local SGD: the average was made for something else
                            recorder.name(value, "parameter")
                    return
                if type(tensor) in (torch.Tensor, nn.Parameter):
                    is_parameter = isinstance(tensor, nn.Parameter)
                    new = nn.Parameter(value, tensor.requires_grad) if is_parameter else value.detach()
                    torch.utils.swap_tensors(tensor, new)
                    return
            data.__set__(tensor, value)

        of_storage: Any = torch.UntypedStorage.data_ptr
        places: dict[tuple[int, int], int] = {}
        free = 2**44

        def address(storage: torch.UntypedStorage) -> int:
            """Of one without data: a range for itself. By it scripts find parameters, and which share memory."""
            nonlocal free
            if storage.device.type != "meta":
                return int(of_storage(storage))
            nbytes = storage.nbytes()
            if not nbytes:
                return 0
            key = (storage._cdata, nbytes)
            if key not in places:
                places[key] = free
                free += -(-nbytes // 512) * 512
            return places[key]

        def data_ptr(tensor: torch.Tensor) -> int:
            if not isinstance(tensor, FakeTensor):
                return int(pointer(tensor))
            base = address(tensor.untyped_storage())
            return base + int(tensor.storage_offset()) * tensor.element_size() if base and tensor.numel() else 0

        def make_parameter(cls: Any, value: Any = None, requires_grad: bool = True) -> Any:
            if type(value) is torch.Tensor and value.device.type == "cpu" and self._here():
                value = without_data(value)
            if not isinstance(value, FakeTensor):
                return make(cls, value, requires_grad)
            made = make(nn.Parameter, value, requires_grad)
            if value.device.type == "cuda":
                recorder.name(value, "parameter")
            if cls is not nn.Parameter and type(made) is FakeTensor:
                made.__class__ = _kind_without_data(cls)
            return made

        make_subclass: Any = torch.Tensor._make_subclass

        def made_of(cls: Any, value: Any, require_grad: bool = False, **others: Any) -> Any:
            """A tensor of a script's own class, as it has itself where it has data."""
            if cls is FakeTensor:
                return make_subclass(cls, value, require_grad, **others)
            of_module = issubclass(cls, (nn.Parameter, nn.UninitializedBuffer))
            if of_module and type(value) is torch.Tensor and value.device.type == "cpu" and self._here():
                value = without_data(value)
            if not isinstance(value, FakeTensor):
                return make_subclass(cls, value, require_grad, **others)
            with torch._C.DisableTorchFunctionSubclass():
                made = value.detach()
            if issubclass(cls, nn.Parameter):
                return make_parameter(cls, made, require_grad)
            made.requires_grad_(require_grad)
            made.__class__ = _kind_without_data(cls)
            return made

        as_subclass: Any = torch.Tensor.as_subclass

        def seen_as(tensor: Any, cls: Any) -> Any:
            if not isinstance(tensor, FakeTensor):
                return as_subclass(tensor, cls)
            with torch._C.DisableTorchFunctionSubclass():
                made = tensor.view_as(tensor)
            if cls is not torch.Tensor:
                made.__class__ = _kind_without_data(cls)
            return made

        without: Any = FakeTensor.__new__

        def new_tensor(cls: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            """`type(parameter)(value, requires_grad=…)`, also with all that the parameter has by name."""
            if not isinstance(value, torch.Tensor):
                return without(cls, value, *args, **kwargs)
            trained = kwargs.pop("requires_grad", args[0] if args else True)
            made = make_parameter(nn.Parameter, value, trained)
            vars(made).update(_own(kwargs))
            return made

        def register_buffer(module: nn.Module, name: str, tensor: Any, persistent: bool = True) -> None:
            if type(tensor) is torch.Tensor and tensor.device.type == "cpu" and self._here():
                tensor = _with_value(tensor.detach())
            register(module, name, tensor, persistent)

        replace(nn.Module, _apply=apply_, register_buffer=register_buffer)
        replace(nn.Parameter, __new__=staticmethod(make_parameter))
        replace(torch.Tensor, _make_subclass=staticmethod(made_of), as_subclass=seen_as)
        replace(FakeTensor, __new__=staticmethod(new_tensor))
        replace(torch.Tensor, data=property(lambda tensor: data.__get__(tensor), set_data), data_ptr=data_ptr)
        replace(torch.UntypedStorage, data_ptr=address)

    def _here(self) -> bool:
        """Whether the script itself runs, and no fake mode that it made."""
        return self.active and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None

    # -----------------------------------------------------------------------------------------------------------------
    # Kernels of the target

    def _attention(self, _: Any) -> None:
        """The CPU build would take attention's plain form, which keeps all scores."""
        from trimaran.graph.trace.meta import attend as as_on_target

        plain = torch._C._nn.scaled_dot_product_attention

        def lower(value: Any) -> Any:
            """As autocast casts the arguments of attention, which the kernels below it do not ask for."""
            casts = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
            return value.to(torch.get_autocast_dtype("cuda")) if casts else value

        def attend(query: Any, *others: Any, **options: Any) -> Any:
            local = getattr(query, "_local_tensor", query)
            if local.device.type != "cuda":
                return plain(query, *others, **options)
            if torch.is_autocast_enabled("cuda"):
                query, others = lower(query), tuple(map(lower, others))
                options = {name: lower(value) for name, value in options.items()}
            if query.is_nested:
                return _attend_ragged(query, *others, **options)
            return as_on_target(plain, query, *others, **options)

        replace(torch._C._nn, scaled_dot_product_attention=attend)
        replace(functional, scaled_dot_product_attention=attend)
        import torch.nn.attention.flex_attention as flexible

        def flex_attention(
            query: Any,
            key: Any,
            value: Any,
            score_mod: Any = None,
            block_mask: Any = None,
            scale: Any = None,
            enable_gqa: bool = False,
            return_lse: bool = False,
            kernel_options: Any = None,
            return_aux: Any = None,
            **_: Any,
        ) -> Any:
            width = value.shape[-1]
            if width != query.shape[-1]:
                value = functional.pad(value, (0, query.shape[-1] - width))
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            out, sums = flash(query, key, value, 0.0, block_mask is not None, scale=scale)[:2]
            out = out[..., :width]
            if return_aux is not None:
                return out, flexible.AuxOutput(lse=sums, max_scores=None)
            return (out, sums) if return_lse else out

        replace(flexible, flex_attention=flex_attention)

    def _compile(self, _: Any) -> None:
        """Compiled code is not rehearsed; the same model uncompiled is, and that is said."""
        from torch._dynamo.eval_frame import OptimizedModule, _NullDecorator

        without: Any = _NullDecorator()

        class Uncompiled(OptimizedModule):
            """Looks like a compiled module, and calls the module."""

            def _initialize(self) -> None:
                self.forward = told(self._orig_mod.__call__)

        def told(function: Any) -> Any:
            self._recorder.note("torch.compile: rehearsed without it")

            @functools.wraps(function)
            def called(*args: Any, **kwargs: Any) -> Any:
                with self._recorder.compiled():
                    return function(*args, **kwargs)

            return called

        def compiled(model: Any = None, **_: Any) -> Any:
            if model is None:
                return compiled
            return Uncompiled(model, without) if isinstance(model, nn.Module) else told(model)

        def compile_in_place(module: nn.Module, *_: Any, **__: Any) -> None:
            module._compiled_call_impl = told(module._call_impl)

        replace(torch, compile=compiled)
        replace(nn.Module, compile=compile_in_place)

    # -----------------------------------------------------------------------------------------------------------------
    # Threads, processes

    def _threads(self, _: Any) -> None:
        """Modes belong to a thread, and are inherited by forked workers of loaders, which make real batches."""
        run = threading.Thread.run

        def with_mode(thread: threading.Thread) -> None:
            if not self.active:
                run(thread)
                return
            with self._mode():
                run(thread)

        replace(threading.Thread, run=with_mode)
        from torch.utils.data._utils import worker

        loop = worker._worker_loop

        @functools.wraps(loop)  # under its name it can be pickled: workers that are not forked know torch's alone
        def real_loop(*args: Any, **kwargs: Any) -> Any:
            self.active = False
            with _disable_current_modes():
                return loop(*args, **kwargs)

        worker._worker_loop = real_loop

    # -----------------------------------------------------------------------------------------------------------------
    # Parts of the step

    def _steps(self, _: Any) -> None:
        """Where a forward with gradients, a backward and a step of an optimizer begin and end."""
        recorder, exchanges = self._recorder, self._exchanges
        counts: dict[int, int] = {}
        optimizers: list[Optimizer] = []
        backward, make = torch.autograd.backward, Optimizer.__init__

        def begins(module: nn.Module, _: Any) -> None:
            if not recorder.trained or recorder.steps >= self._most_steps:
                if not torch.is_grad_enabled() or not module.training or not self.active or recorder.is_looking:
                    return
                if torch._C._current_graph_task_id() != -1:
                    return
                if recorder.steps >= self._most_steps:
                    self._enough()
                recorder.trained = True

        nn.modules.module.register_module_forward_pre_hook(begins)

        def noted_backward(*args: Any, **kwargs: Any) -> None:
            if recorder.steps >= self._most_steps and self.active and torch._C._current_graph_task_id() == -1:
                self._enough()  # a script without modules has no forward that would tell
            exchanges.gradients.are_followed = True
            outer, recorder.lines.backward = recorder.lines.backward, recorder.lines.stack() or recorder.lines.backward
            try:
                backward(*args, **kwargs)
            finally:
                recorder.lines.backward = outer
            if torch._C._current_graph_task_id() == -1:
                exchanges.backward_ended()
                for optimizer in optimizers:
                    for group in optimizer.param_groups:
                        for parameter in group["params"]:
                            self._name(parameter.grad, "gradient")

        def outside(closure: Any) -> Any:
            """A closure that an optimizer calls has the forward and the backward."""
            if not callable(closure) or isinstance(closure, Optimizer):
                return closure

            def called(*args: Any, **kwargs: Any) -> Any:
                recorder.end_update()
                try:
                    return closure(*args, **kwargs)
                finally:
                    recorder.begin_update()

            return called

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
            if id(optimizer) not in counts:  # its parameters may be other ones than those that it was made with
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        self._name(parameter, "parameter")
            if not recorder.is_looking:
                exchanges.gradients.before(optimizer)
            recorder.begin_update()
            return tuple(map(outside, args)), {name: outside(value) for name, value in kwargs.items()}

        def after(optimizer: Optimizer, *_: Any) -> None:
            trained = {id(one) for group in optimizer.param_groups for one in group["params"]}
            for value in held_tensors(list(optimizer.state.values())):
                if id(value) not in trained:
                    self._name(value, "optimizer")
            recorder.end_update()
            if recorder.is_looking:
                return
            exchanges.gradients.after(optimizer)
            updated = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
            for index, one in {one.device.index or 0: one for one in updated if one.device.type == "cuda"}.items():
                if not counts.get(id(optimizer)):
                    recorder.places(index, getattr(one, "_local_tensor", one), trained=True)
            if any(one.device.type == "cpu" for one in updated):
                recorder.note("the optimizer updates parameters on the host, and that time is not modelled")
            makes_state = id(optimizer) not in counts and not (recorder.trained or exchanges.gradients.are_followed)
            counts.setdefault(id(optimizer), 0)
            if not recorder.is_updating and not makes_state:  # states that are saved or loaded before any step
                counts[id(optimizer)] += 1
                if counts[id(optimizer)] > recorder.steps:
                    recorder.stepped()

        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            optimizers.append(optimizer)
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._name(parameter, "parameter")

        def looking(session: Any) -> None:
            """What `trimaran.init` does to know the job is none of its steps."""
            init = session.init

            def noted(*args: Any, **kwargs: Any) -> Any:
                recorder.is_looking = True
                try:
                    return init(*args, **kwargs)
                finally:
                    recorder.is_looking = False

            replace(session, init=noted)

        when_imported("trimaran.features.training.session", looking)
        replace(torch.autograd, backward=noted_backward)
        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)
        replace(Optimizer, __init__=made)

    def _lengths(self, _: Any) -> None:
        """How many steps the script says that it takes: by the length of its loader, or by its schedule."""
        recorder, batches = self._recorder, dict[int, list[int]]()
        ends: list[int] = [0]
        iterate, following = DataLoader.__iter__, loaders._BaseDataLoaderIter.__next__

        def opened(loader: Any) -> Any:
            iterator = iterate(loader)
            is_map = loader._dataset_kind == loaders._DatasetKind.Map  # the length of others is kept, and warned of
            if is_map and self.active and torch.is_grad_enabled() and not recorder.is_looking:
                with contextlib.suppress(TypeError, NotImplementedError):
                    iterator._trimaran_batches = batches.setdefault(id(loader), [len(loader), 0])  # type: ignore[attr-defined]
            return iterator

        def taken(iterator: Any) -> Any:
            if hasattr(iterator, "_trimaran_batches"):
                iterator._trimaran_batches[1] += 1
            return following(iterator)

        schedule = LRScheduler.__init__

        def scheduled(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            schedule(scheduler, *args, **kwargs)
            by_name = [getattr(one, "keywords", {}) for one in getattr(scheduler, "lr_lambdas", ())]
            said = [each.get(name) for each in (vars(scheduler), *by_name) for name in _LENGTHS]
            ends.extend(one for one in said if isinstance(one, int))

        def count() -> None:
            looked()
            length, drawn = max(batches.values(), key=lambda one: one[1], default=(0, 0))
            each = max(1, drawn // max(1, recorder.steps))
            recorder.record.to_come = max(-(-length // each), *ends)

        looked, recorder.last_look = recorder.last_look, count
        replace(DataLoader, __iter__=opened)
        replace(loaders._BaseDataLoaderIter, __next__=taken)
        replace(LRScheduler, __init__=scheduled)

    def _name(self, tensor: Any, purpose: Any) -> None:
        if isinstance(tensor, FakeTensor):
            if tensor.device.type == "cuda":
                self._recorder.name(tensor, purpose)
        elif is_traceable_wrapper_subclass(tensor):  # a share of a DTensor, codes and scales of one of few bits
            for part in tensor.__tensor_flatten__()[0]:
                self._name(getattr(tensor, part), purpose)

    # -----------------------------------------------------------------------------------------------------------------
    # Checks

    def _checks_of_ddp(self, _: Any) -> None:
        """DDP compares shapes with its peers below Python; there are none to compare with. What its buckets are for.

        What the comparison asks for is: how many parameters each rank has; sizes and strides of the first rank's.
        """
        import torch.distributed as dist
        import torch.nn.parallel.distributed as ddp

        def compared(group: Any, tensors: list[torch.Tensor], *_: Any) -> None:
            number = torch.zeros(1, dtype=torch.int64, device=tensors[0].device)
            dist.all_gather([torch.zeros_like(number) for _ in range(group.size())], number, group=group)
            sizes_and_strides = sum(2 * tensor.dim() for tensor in tensors)
            dist.broadcast(number.new_zeros(sizes_and_strides), group=group, group_src=0)

        for module in (torch.distributed.utils, ddp):
            replace(module, _verify_param_shape_across_processes=compared)
        reducer: Any = torch._C._distributed_c10d
        replace(reducer.Logger, set_runtime_stats_and_log=lambda _: None)
        for owner, name in ((ddp.DistributedDataParallel, "_ddp_init_helper"), (reducer.Reducer, "_rebuild_buckets")):
            replace(owner, **{name: self._for_communication(getattr(owner, name))})

    def _for_communication(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method whose memory is for messages, as the buckets of gradients are."""

        def marked(*args: Any, **kwargs: Any) -> Any:
            with self._recorder.taken_for():
                return method(*args, **kwargs)

        return marked

    def _synchronised_norms(self, _: Any) -> None:
        """SyncBatchNorm leaves out members with an empty input, which it finds by what they sent: there are none."""
        from torch.nn.modules._functions import SyncBatchNorm

        forward, values = SyncBatchNorm.forward, self._values

        def with_all(*args: Any) -> Any:
            before, values.all_true = values.all_true, True
            try:
                return forward(*args)  # type: ignore[no-untyped-call]
            finally:
                values.all_true = before

        replace(SyncBatchNorm, forward=staticmethod(with_all))

    def _nested(self, _: Any) -> None:
        """Rows of different lengths are told apart by a number, which torch's fake mode would make a symbol."""
        numbers = itertools.count(2**40)
        symbolic = FakeTensorMode.create_symbolic_nested_int

        def create(mode: FakeTensorMode, *, nt_tensor_id: int | None = None) -> Any:
            if mode is not FAKE:
                return symbolic(mode, nt_tensor_id=nt_tensor_id)
            return torch._C._get_nested_int(next(numbers) if nt_tensor_id is None else nt_tensor_id, 1)

        replace(FakeTensorMode, create_symbolic_nested_int=create)

        def number(tensor: torch.Tensor) -> Any:
            """Of a real tensor of lengths, whose copy on the device takes it along."""
            from torch.nested._internal.nested_tensor import _tensor_symint_registry

            return _tensor_symint_registry.get(tensor)

        replace(torch.Tensor, nested_int_memo=property(number))
        encode, recorder = nn.TransformerEncoder.forward, self._recorder

        def padded(encoder: nn.TransformerEncoder, src: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if src.device.type == "cuda" and encoder.enable_nested_tensor and not encoder.training:
                encoder.enable_nested_tensor = encoder.use_nested_tensor = False
                recorder.note("nn.TransformerEncoder: evaluated with its padding, not with nested tensors")
            return encode(encoder, src, *args, **kwargs)

        replace(nn.TransformerEncoder, forward=padded)

    def _optimizers_of_others(self, module: Any) -> None:
        """With `use_orig_params` an FSDP rank has state of the parameters that it holds a part of.

        It is told of the rest by others, which are taken to have what this one has.
        """
        keys_of, infos_of = module._map_param_key_to_optim_keys, module._allgather_state_info

        def keys(state: Any, group: Any, params: Any, names: Any, managed: Any, merge_keys: bool = False) -> Any:
            found, places = keys_of(state, group, params, names, managed, merge_keys)
            if merge_keys and found:
                every = [tuple(names[param]) for param in params.values() if param.requires_grad]
                others = {module._OptimStateKey(name, True) for name in every if name[0] in managed}
                found = sorted(set(found) | others)
            return found, places

        def infos(fsdp_state: Any, states: Any) -> Any:
            gathered = infos_of(fsdp_state, states)
            own = fsdp_state.process_group.rank()
            like = next((info for info in gathered[own].values() if info.tensors), None)
            if like is not None:
                filled = {name: info if info.tensors else like for name, info in gathered[own].items()}
                gathered = [one if rank == own else filled for rank, one in enumerate(gathered)]
            return gathered

        replace(module, _map_param_key_to_optim_keys=keys, _allgather_state_info=infos)

    def _parts_of_optimizers(self, module: Any) -> None:
        """Ranks tell each other their part of an optimizer's state, as bytes.

        Of a rank that is not rehearsed it is taken to be as this rank's, for its own parameters.
        """
        import torch.distributed as dist

        consolidate = module.ZeroRedundancyOptimizer.consolidate_state_dict
        asking: list[Any] = []

        def all_parts(optimizer: Any, to: int = 0) -> None:
            asking.append(optimizer)
            try:
                consolidate(optimizer, to)
            finally:
                asking.pop()

        def part(obj: Any, src_rank: int, group: Any = None, device: Any = None) -> Any:
            told = [obj]
            dist.broadcast_object_list(told, src=src_rank, group=group)
            is_told = told[0] is not obj or src_rank == dist.get_rank()
            return told[0] if is_told or not asking else like(asking[-1], dist.get_group_rank(group, src_rank))

        def like(optimizer: Any, rank: int) -> dict[str, Any]:
            own, numbers = optimizer.optim.state_dict(), itertools.count()
            groups, states = [], {}
            for mine, others in zip(own["param_groups"], optimizer._partition_parameters()[rank], strict=True):
                places = [next(numbers) for _ in others["params"]]
                groups.append({**mine, "params": places})
                for place, parameter in zip(places, others["params"], strict=True):
                    states[place] = {
                        key: torch.empty_like(parameter) if isinstance(value, torch.Tensor) and value.dim() else value
                        for key, value in next(iter(own["state"].values()), {}).items()
                    }
            return {"state": states, "param_groups": groups}

        replace(module.ZeroRedundancyOptimizer, consolidate_state_dict=all_parts)
        replace(module, _broadcast_object=part)

    def _long_lists(self, module: Any) -> None:
        """DTensor looks through all tensors of an optimizer's list again for each of them: once is enough.

        What it looks for is whether tensors with strided shards have one flag or both, so one tensor for each tells.
        """
        if not hasattr(module, "_propagate_use_strided_shard_flag"):  # torch 2.11 does not look
            return
        whole = module._propagate_use_strided_shard_flag
        kind = module._StridedShard
        seen: list[Any] = [None, SimpleNamespace(args_spec=())]

        def propagate(strategy: Any, schema: Any) -> None:
            if schema is not seen[0]:
                strided = (
                    spec for spec in schema.args_spec if any(isinstance(place, kind) for place in spec.placements)
                )
                by_flag = {spec.use_strided_shard_as_shard_order: spec for spec in strided}
                seen[:] = schema, SimpleNamespace(args_spec=tuple(by_flag.values()))
            if seen[1].args_spec:
                whole(strategy, seen[1])

        replace(module, _propagate_use_strided_shard_flag=propagate)

    def _profilers(self, _: Any) -> None:
        """The profiler finds no driver to ask about the device; the host's side of it works."""
        from torch.autograd import profiler

        make = profiler.profile.__init__

        def of_the_host(one: Any, *args: Any, **kwargs: Any) -> None:
            make(one, *args, **{**kwargs, "use_device": None} if "use_device" in kwargs else kwargs)
            self._recorder.note("torch.profiler: of the host only")

        replace(profiler.profile, __init__=of_the_host)

    def _saved(self, _: Any) -> None:
        self._files.install()

    def _stages(self, module: Any) -> None:
        replace(module, FakeTensor=_Never)


PATCHES: tuple[tuple[str, Callable[[Patches, Any], None], str], ...] = (
    ("torch", Patches._values_of_tensors, "values that scripts ask of tensors; pinned memory"),
    ("torch.storage", Patches._storages, "FSDP gives memory back by resizing storages in place"),
    ("torch.nn.modules.module", Patches._modules, "modules and parameters are without data from the start"),
    ("torch.nn.functional", Patches._attention, "the CPU build would keep all scores of attention"),
    (
        "torch",
        Patches._compile,
        "compiled code is not rehearsed: the script runs without, and that is said",
    ),
    (
        "torch.utils.data._utils.worker",
        Patches._threads,
        "modes belong to a thread; workers of loaders make real batches",
    ),
    ("torch.optim.optimizer", Patches._steps, "where forward, backward and update begin and end"),
    ("torch.utils.data.dataloader", Patches._lengths, "how many steps the script says that it takes"),
    ("torch.serialization", Patches._saved, "what is saved is kept, not written"),
    ("torch.nn.parallel.distributed", Patches._checks_of_ddp, "DDP compares shapes with its peers below Python"),
    ("torch.nn.modules._functions", Patches._synchronised_norms, "SyncBatchNorm leaves out members without data"),
    ("torch.nested", Patches._nested, "rows of different lengths would be told apart by symbols"),
    ("torch.autograd.profiler", Patches._profilers, "there is no driver for the profiler to ask"),
    (
        "torch.distributed.tensor._sharding_prop",
        Patches._long_lists,
        "DTensor looks through an optimizer's list for each of it",
    ),
    ("torch.distributed.pipelining.stage", Patches._stages, "a stage without data would be left on the host"),
    (
        "torch.distributed.tensor.parallel.loss",
        Patches._parallel_losses,
        "`loss_parallel` has no cross-entropy to know a loss by",
    ),
    (
        "torch.distributed.fsdp._optim_utils",
        Patches._optimizers_of_others,
        "FSDP asks others for their optimizer's state",
    ),
    (
        "torch.distributed.optim.zero_redundancy_optimizer",
        Patches._parts_of_optimizers,
        "so does ZeroRedundancyOptimizer",
    ),
)
"""What is replaced: a module, once it is imported; what replaces parts of it; why."""


def _attend_ragged(
    query: Any,
    key: Any,
    value: Any,
    _: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention of rows of different lengths, which lie one after another."""
    parts = [part.transpose(1, 2) for part in (query, key, value)]
    offsets, others = parts[0].offsets(), parts[1].offsets()
    most, most_of_others = int(offsets.diff().max()), int(others.diff().max())
    out = torch.ops.aten._flash_attention_forward(
        *(part.values() for part in parts), offsets.int(), others.int(), most, most_of_others, dropout_p, is_causal,
        False, scale=scale,
    )[0]  # fmt: skip
    return torch.nested.nested_tensor_from_jagged(out, offsets).transpose(1, 2)


def _pinning(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        tensor = make(*args, **kwargs)
        return pin(tensor) if pin_memory else tensor

    return made


@functools.cache
def _kind_without_data(cls: Any) -> Any:
    """A class of tensors, or of parameters, whose tensors have no data."""
    if issubclass(cls, FakeTensor):
        return cls

    def new(kind: Any, *args: Any, **kwargs: Any) -> Any:
        return cls.__new__(kind, *args, **_own(kwargs))

    members: dict[str, Any] = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__init__")}
    members["__new__"] = new
    asks = cls
    if issubclass(cls, (nn.UninitializedParameter, nn.UninitializedBuffer)):  # here its shape is asked for
        asks = nn.Parameter if issubclass(cls, nn.Parameter) else torch.Tensor
        members |= {"shape": torch.Tensor.shape, "cls_to_become": FakeTensor}
    kind: Any = type(cls)(cls.__name__, (cls, FakeTensor), members)
    kind.__torch_function__ = inspect.getattr_static(
        asks, "__torch_function__"
    )  # torch unsets it where a class is made
    return kind


def _own(attributes: dict[str, Any]) -> dict[str, Any]:
    """Of all that a tensor without data has by name what its script gave it."""
    kept = {"fake_mode", "fake_device", "constant", "real_tensor", "pytype", "dispatch_keys"}
    return {key: one for key, one in attributes.items() if key not in kept and not key.startswith("_")}


_LENGTHS = ("total_steps", "num_training_steps")
"""What schedules call the number of steps after which they end."""


class _Never:
    """What nothing is an instance of."""


def _with_value(tensor: torch.Tensor) -> FakeTensor:
    """A tensor without data that has the value of a real one, where that is small."""
    made = without_data(tensor)
    if is_small(tensor):
        set_twin(made, tensor)
    return made
