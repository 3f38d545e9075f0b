"""Traces a step on meta tensors, which have shapes and no bytes: no device, no memory and no data are needed.

The shapes, and so the lives and sizes of everything, are those of a real step. Where meta tensors would take another
kernel than a device does, the device's is asked for: attention (`attend`), dropout (`drop_out`) and autocast
(`Autocast`), recurrent layers (`run_layers`). The backward runs under the same rules, as checkpoints run parts of the
forward again in it. What still differs: the fused forms of optimizers may need scratch memory
that is not seen; convolutions have no workspace.

Lets functions of torch be replaced while a model runs, also those that functions of torch call.

A function mode is told of `multi_head_attention_forward`, and is then switched off while that runs. To be told of what
runs inside as well, functions of `torch.nn.functional` run from a copy that does not ask whether they are overridden;
so do those that begin a backward within the forward, as what a checkpoint runs again runs inside of them.

Autocast on meta tensors: torch's own looks at the device of a tensor, and has none for these.

    lower precision   products and convolutions: arguments are cast to it
    float32           functions that lose too much otherwise, such as losses, norms and exponentials
    widest            functions of several tensors, which must agree
    as they are       everything else

Casts of parameters are kept until the outermost context of autocast ends, that of the forward or of a part of it that
runs again, so that a weight used twice in it is cast once. The backward is not cast.

Source:
    torch's documentation of autocast: its lists of operations on CUDA.

Attention on meta tensors, in the form that it takes on a device.

Without a device torch falls back on the plain form, which keeps the scores of every pair of tokens. A GPU runs a fused
kernel, which keeps one number for each row of them:

    flash      half precision, no mask
    efficient  any precision, any mask

Dropout on meta tensors, as a GPU has it: one kernel, which keeps a mask of one byte an element.

Without a device torch falls back on the plain form, which keeps noise in the precision of the input. In place there is
only the plain form, on a GPU as well.

Recurrent layers on meta tensors as a library of a GPU runs them: a call a layer, not operations for every step.

    forward            x [steps, batch, input], hx, cx, weights   ->  output, hy, cy, reserve
    backward_input     grad [steps, batch, state], hx, cx, weights, reserve  ->  gradients of x, hx, cx
    backward_weight    x, hx, output, weights, reserve            ->  gradients of the weights

The reserve is what the library keeps for the backward: gates and the new cell of every step. Between layers dropout
runs as one operation. Packed sequences, whose lengths are values, run step by step as torch runs them without a device.

Source:
    cuDNN's API for recurrent networks: one call for the gradients of data, one for those of weights.
"""

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.units import MOST_BYTES, format_bytes
from trimaran.base.user_errors import user_lines
from trimaran.graph.optimizers import Trained, trained_parameters, without_hooks
from trimaran.graph.trace.calls import replaced, tensors_in
from trimaran.graph.trace.record import ACCUMULATION, Recorder
from trimaran.graph.trace.tape import ModulePaths, in_backward
from trimaran.graph.trace.types import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, GATES, NAMESPACE, StepTrace

Replacement = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""Takes a function with its arguments, and gives the result."""

_BACKWARDS = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class Overrides(TorchFunctionMode):
    """Calls replacements in the place of functions, and says which function of a module runs.

    Args:
        replace: gives the replacement of a function by its name; None where there is none
        paths: told of functions that a module calls, with the names that torch.export gives them; None: nobody is told
    """

    def __init__(self, replace: Callable[[str], Replacement | None], paths: ModulePaths | None = None) -> None:
        super().__init__()
        self._replace = replace
        self._paths = paths
        self._calls: dict[Any, int] = {}
        self._inside = False
        self._starting = False

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function, or what replaces it."""
        if _accumulates():
            with _HOST:  # an optimizer that steps there has its counters on the host
                return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if func in _BACKWARDS:
            self._starting = True  # the gradient that it begins with is no function of the model
            try:
                return self._run(func, args, kwargs or {})
            finally:
                self._starting = False
        starts = self._starting and not in_backward()
        if self._inside or starts or self._paths is None or name == "__get__":  # a shape or the like: runs nothing
            return self._run(func, args, kwargs or {})
        number = self._calls[func] = self._calls.get(func, 0) + 1
        self._inside = True
        self._paths.begin_function(f"{type(func).__name__}.{name}_{number}")
        try:
            return self._run(func, args, kwargs or {})
        finally:
            self._paths.end_function()
            self._inside = False

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        replacement = self._replace(getattr(func, "__name__", ""))
        if replacement is not None:
            return replacement(func, args, kwargs)
        if isinstance(func, types.FunctionType) and (func in _BACKWARDS or func.__globals__ is vars(functional)):
            with self:
                return _without_questions(func)(*args, **kwargs)
        return func(*args, **kwargs)


@functools.cache
def _without_questions(func: types.FunctionType) -> types.FunctionType:
    namespace = {**func.__globals__, **dict.fromkeys(_QUESTIONS, _never)}
    copy = types.FunctionType(func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _never(*_: torch.Tensor) -> bool:
    return False


def _accumulates() -> bool:
    """Whether a gradient is being accumulated, or hooks run that were waiting for that."""
    node = torch._C._current_autograd_node() if in_backward() else None
    return node is not None and node.name() == ACCUMULATION


_LOWER = """
addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d einsum gru gru_cell linalg_multi_dot linalg_vecdot linear lstm lstm_cell matmul mm mv multi_dot prelu
rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention __matmul__ __rmatmul__
"""
_FLOAT32 = """
acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity cross_entropy cumprod
cumsum dist erfinv exp expm1 frobenius_norm group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm
linalg_matrix_norm linalg_vector_norm log log10 log1p log2 log_softmax logsumexp margin_ranking_loss mse_loss
multi_margin_loss multilabel_margin_loss nll_loss norm nuclear_norm pdist poisson_nll_loss pow prod reciprocal renorm
rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss
upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
upsample_trilinear3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d __pow__ __rpow__
"""
_WIDEST = """
addcdiv addcmul atan2 bilinear cat cross dot grid_sample index_put scatter_add stack tensordot vdot
"""

LOWER = frozenset(_LOWER.split())
FLOAT32 = frozenset(_FLOAT32.split())
WIDEST = frozenset(_WIDEST.split())


class Autocast(TorchDispatchMode):
    """The rules of autocast, where it is on. Entered around a backward, it lets go of casts when their context ends.

    Args:
        dtype: the lower precision
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype
        self._casts: dict[torch.Tensor, torch.Tensor] = {}

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compiled blocks run as they are."""
        return True

    def __torch_dispatch__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation; the first one outside of autocast finds no casts, as torch's own cache is empty by then."""
        torch.autocast_increment_nesting()
        if torch.autocast_decrement_nesting() == 0:
            self._casts.clear()
        return func(*args, **(kwargs or {}))

    def replacement(self, name: str) -> Replacement | None:
        """What runs in the place of a function; None where it runs as it is."""
        if name in LOWER:
            return self._lower
        if name in FLOAT32:
            return _in_float32
        return _in_widest if name in WIDEST else None

    def cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in the lower precision."""
        if not tensor.is_floating_point() or tensor.dtype in (self._dtype, torch.float64):
            return tensor
        if not (tensor.is_leaf and tensor.requires_grad):
            return tensor.to(self._dtype)
        if tensor not in self._casts:
            self._casts[tensor] = tensor.to(self._dtype)
        return self._casts[tensor]

    def _lower(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return func(*replaced(args, torch.Tensor, self.cast), **replaced(dict(kwargs), torch.Tensor, self.cast))


def _in_float32(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return _as(torch.float32, func, args, kwargs)


def _in_widest(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    dtypes = [tensor.dtype for tensor in tensors_in((args, dict(kwargs))) if tensor.is_floating_point()]
    return _as(max(dtypes, key=lambda dtype: dtype.itemsize), func, args, kwargs) if dtypes else func(*args, **kwargs)


def _as(dtype: torch.dtype, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() and tensor.itemsize < dtype.itemsize else tensor

    return func(*replaced(args, torch.Tensor, cast), **replaced(dict(kwargs), torch.Tensor, cast))


_HALVES = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
"""Elements of a head that the flash kernels of a GPU take at most."""


def attend(
    func: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`scaled_dot_product_attention` by a fused kernel of a GPU; arguments as of torch's own function `func`."""
    if query.dim() != 4:
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    flash = attn_mask is None and query.dtype in _HALVES and query.shape[-1] <= _LARGEST_HEAD
    if enable_gqa and not flash:  # flash reads fewer heads of keys and values as they are
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if flash:
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    keeps = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, keeps, dropout_p, is_causal, scale=scale
    )[0]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def drop_out(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`dropout` as a GPU runs it.

    Args:
        func: torch's own function, that of modules or the one below it
        args: its arguments by place
        kwargs: its arguments by name
    """
    given = dict(zip(("input", "p", "train", "inplace"), args, strict=False), **kwargs)
    value, share = given["input"], given.get("p", 0.5)
    trains = given.get("train", given.get("training", True))
    if given.get("inplace") or not trains or not 0 < share < 1 or not value.numel():
        return func(*args, **kwargs)
    return torch.native_dropout(value, share, True)[0]


CELLS: Mapping[str, str] = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "rnn", "rnn_relu": "rnn"}
"""Functions of torch that run whole layers, and the cell of each."""

_RETAINED = {"lstm": 6, "gru": 5, "rnn": 1}
"""Numbers kept for the backward by step, sample and unit: gates, the state before the output, and its activation."""

_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def run_layers(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`torch.lstm` and its like, layer by layer.

    Args:
        func: torch's own function
        args: its arguments by place
        kwargs: its arguments by name
    """
    name = func.__name__
    states = (args[1] if len(args) > 1 else None) if name == "lstm" else [args[1]] if len(args) > 1 else None
    if kwargs or len(args) != 9 or not isinstance(states, tuple | list) or not isinstance(args[2], tuple | list):
        return func(*args, **kwargs)  # packed
    x, _, weights, _, layers, dropout, trains, bidirectional, batch_first = args
    x = x.transpose(0, 1) if batch_first else x
    directions = 1 + bool(bidirectional)
    each = len(weights) // (layers * directions) * directions
    last: list[list[Tensor]] = []
    for layer in range(layers):
        if layer and dropout and trains:
            x = drop_out(torch.dropout, (x, dropout, True), {})
        own = [state[layer * directions : (layer + 1) * directions] for state in states]
        cx = own[1] if name == "lstm" else None
        out: tuple[Tensor, ...] = _Layer.apply(  # type: ignore[no-untyped-call]
            CELLS[name], x, own[0], cx, *weights[layer * each : (layer + 1) * each]
        )
        x = out[0]
        last.append(list(out[1:3] if name == "lstm" else out[1:2]))
    ends = [torch.cat(parts) if layers > 1 else parts[0] for parts in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *ends)


class _Layer(torch.autograd.Function):
    """One layer, of one or both directions."""

    @staticmethod
    def forward(ctx: Any, cell: str, x: Tensor, hx: Tensor, cx: Tensor | None, *weights: Tensor) -> tuple[Tensor, ...]:
        output, hy, cy, reserve = _call(cell, FORWARD)(x, hx, cx, list(weights))
        ctx.cell, ctx.has_cx = cell, cx is not None
        ctx.save_for_backward(x, hx, *([cx] if cx is not None else []), output, reserve, *weights)
        ctx.set_materialize_grads(False)
        return output, hy, cy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        x, hx, *rest = ctx.saved_tensors
        cx = rest.pop(0) if ctx.has_cx else None
        output, reserve, *weights = rest
        grad = grads[0] if grads[0] is not None else torch.zeros_like(output)
        # It runs also where nobody wants the gradient of the input: those of the weights need what it leaves.
        given = _call(ctx.cell, BACKWARD_INPUT)(grad, hx, cx, weights, reserve)
        wanted = ctx.needs_input_grad[1:4]
        of_x = [part if needed else None for part, needed in zip(given, wanted, strict=True)]
        of_weights: Sequence[Tensor | None] = [None] * len(weights)
        if any(ctx.needs_input_grad[4:]):
            of_weights = _call(ctx.cell, BACKWARD_WEIGHT)(x, hx, output, weights, reserve)
        return None, *of_x, *of_weights


def _call(cell: str, part: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), f"{cell}_{part}")


def _define(cell: str) -> None:
    """Operations that give shapes, and nothing else."""
    states = "Tensor hx, Tensor? cx, Tensor[] weights"
    _LIBRARY.define(f"{cell}_{FORWARD}(Tensor x, {states}) -> (Tensor, Tensor, Tensor, Tensor)")
    _LIBRARY.define(f"{cell}_{BACKWARD_INPUT}(Tensor grad, {states}, Tensor reserve) -> (Tensor, Tensor, Tensor)")
    _LIBRARY.define(
        f"{cell}_{BACKWARD_WEIGHT}(Tensor x, Tensor hx, Tensor output, Tensor[] weights, Tensor reserve) -> Tensor[]"
    )

    def forward(x: Tensor, hx: Tensor, cx: Tensor | None, weights: list[Tensor]) -> tuple[Tensor, ...]:
        steps, batch, _ = x.shape
        directions, _, state = hx.shape
        hidden = weights[0].shape[0] // GATES[cell]
        reserve = x.new_empty(_RETAINED[cell] * steps * batch * directions * hidden)
        ends = torch.empty_like(hx), torch.empty_like(hx if cx is None else cx)
        return x.new_empty(steps, batch, directions * state), *ends, reserve

    def backward_input(
        grad: Tensor, hx: Tensor, cx: Tensor | None, weights: list[Tensor], reserve: Tensor
    ) -> tuple[Tensor, ...]:
        steps, batch, _ = grad.shape
        of_cell = torch.empty_like(hx if cx is None else cx)
        return grad.new_empty(steps, batch, weights[0].shape[1]), torch.empty_like(hx), of_cell

    def backward_weight(x: Tensor, hx: Tensor, output: Tensor, weights: list[Tensor], reserve: Tensor) -> list[Tensor]:
        return [torch.empty_like(weight) for weight in weights]

    for part, meaning in ((FORWARD, forward), (BACKWARD_INPUT, backward_input), (BACKWARD_WEIGHT, backward_weight)):
        _LIBRARY.impl(f"{cell}_{part}", meaning, "Meta")


for _cell in GATES:
    _define(_cell)

Loss = Callable[[nn.Module, Any], torch.Tensor]
"""Runs the forward of a model on a batch, and gives the scalar that is minimised."""

_META, _HOST = torch.device("meta"), torch.device("cpu")

_DRAWS = frozenset(
    ["normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_"]
)
"""Fill a tensor with random numbers, in place."""


def trace_on_meta(
    make_model: Callable[[], nn.Module],
    make_batch: Callable[[], Any],
    loss: Loss,
    *,
    make_optimizer: Callable[[Trained], Optimizer] | None = None,
    autocast: torch.dtype | None = None,
) -> StepTrace:
    """Trace one step of training.

    With an optimizer the second of two steps is traced, so that its state is there from the beginning.

    Args:
        make_model: makes the model, in training mode; its weights are never filled
        make_batch: makes a batch: tensors, or tuples, lists and dicts of them
        loss: `(model, batch)` to the scalar loss
        make_optimizer: makes the optimizer from parameters; None: no update, and no state
        autocast: lower precision, such as `torch.bfloat16`; None: none

    Returns:
        The trace, with no durations.

    Raises:
        InputError: the model cannot run without data, as where it decides by the values of a tensor; what else fails in
            it is raised as it is
    """
    rules = _Rules(autocast)
    with _telling():
        model = _model_on_meta(make_model)
        batch = replaced(make_batch(), torch.Tensor, _to_meta)
        optimizer = _made(make_optimizer, model) if make_optimizer is not None else None
        if optimizer is not None:
            _step(model, batch, loss, optimizer, rules)
            optimizer.zero_grad(set_to_none=True)
        return _recorded(model, batch, loss, optimizer, rules)


def trace_twice_on_meta(
    make_model: Callable[[], nn.Module],
    make_batches: tuple[Callable[[], Any], Callable[[], Any]],
    loss: Loss,
    *,
    make_optimizer: Callable[[Trained], Optimizer],
    autocast: torch.dtype | None = None,
) -> tuple[StepTrace, StepTrace]:
    """Trace two steps of training, the first without an update.

    Its gradients then give the optimizer its state, which is there in the second from the beginning. So the two cost
    half of what two calls of `trace_on_meta` do; no update depends on the batch.

    Args:
        make_model: as for `trace_on_meta`
        make_batches: make the batch of each
        loss: `(model, batch)` to the scalar loss
        make_optimizer: makes the optimizer from parameters
        autocast: lower precision; None: none

    Raises:
        InputError: as for `trace_on_meta`
    """
    rules = _Rules(autocast)
    with _telling():
        model = _model_on_meta(make_model)
        optimizer = _made(make_optimizer, model)
        first, second = (replaced(make_batch(), torch.Tensor, _to_meta) for make_batch in make_batches)
        model.zero_grad(set_to_none=True)
        without = _recorded(model, first, loss, None, rules)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return without, _recorded(model, second, loss, optimizer, rules)


def _made(make_optimizer: Callable[[Trained], Optimizer], model: nn.Module) -> Optimizer:
    """The optimizer of a model, without the hooks of a user, who wants to hear of a training's steps only."""
    optimizer = make_optimizer(trained_parameters(model))
    without_hooks(optimizer)
    return optimizer


def _recorded(model: nn.Module, batch: Any, loss: Loss, optimizer: Optimizer | None, rules: "_Rules") -> StepTrace:
    recorder = Recorder(model)
    with recorder:
        _step(model, batch, loss, optimizer, rules, recorder.paths)
    trace = recorder.recording.trace
    nbytes = sum(storage.nbytes for storage in trace.storages)
    if nbytes > MOST_BYTES:
        raise _too_large(f"{format_bytes(nbytes)} in its tensors, more than")
    return trace


def _too_large(what: str) -> InputError:
    most = f"{MOST_BYTES // 2**50} PiB"
    text = f"the step has {what} {most}: take a smaller batch, shorter sequences or smaller samples"
    return InputError(text, code="trace.too-large")


def _step(
    model: nn.Module,
    batch: Any,
    loss: Loss,
    optimizer: Optimizer | None,
    rules: "_Rules",
    paths: ModulePaths | None = None,
) -> None:
    with _META, Overrides(rules.of, paths):
        with rules.asked_for():
            value = loss(model, batch)
        with rules.backward():
            value.backward()
        del value
    if optimizer is not None:
        optimizer.step()


_READS_VALUES = ("item() cannot be called on meta", "out of meta tensor", "convert meta device type tensor to numpy")
"""What torch says where a value is read that a meta tensor does not have."""


@contextmanager
def _telling() -> Iterator[None]:
    """What fails because there are no data is told as such; all else is an error of the step itself."""
    try:
        yield
    except TrimaranError:
        raise
    except (RuntimeError, NotImplementedError, TypeError) as error:
        if "overflow" in str(error):  # of a tensor's elements or bytes, which torch counts in 64 bits
            raise _too_large("a tensor of more than") from error
        if any(words in str(error) for words in _READS_VALUES):
            why = "its course depends on the values of its tensors"
        elif isinstance(error, NotImplementedError):
            why = "torch cannot run one of its operations without them"
        else:
            raise
        lines = "\n".join([_first_line(error), *user_lines(error)])
        raise InputError(
            f"this step cannot be traced without data: {why}: {lines}\nRecord a real step with `Recorder`, or run it "
            "under `trimaran.virtual_memory`",
            code="trace.needs-data",
            error=type(error).__name__,
        ) from error


class _Rules:
    """Which functions run in another form."""

    def __init__(self, autocast: torch.dtype | None) -> None:
        self._dtype = autocast
        self._autocast = Autocast(autocast) if autocast is not None else None

    def asked_for(self) -> AbstractContextManager[Any]:
        """Modules that ask whether autocast is on, as recurrent ones do, are told; meta tensors are not cast by it."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast("cpu", dtype=self._dtype, cache_enabled=False)

    def backward(self) -> AbstractContextManager[Any]:
        """Around the backward: parts of the forward may run again in it, with casts of weights that end with them."""
        return nullcontext() if self._autocast is None else self._autocast

    @property
    def _casting(self) -> Autocast | None:
        """The rules of autocast; None: it is off here."""
        return self._autocast if torch.is_autocast_enabled("cpu") else None

    def of(self, name: str) -> Replacement | None:
        """What runs in the place of a function; None where it runs as it is."""
        if name == "scaled_dot_product_attention":
            return self._attend
        if name == "dropout":
            return drop_out
        if name in CELLS:
            return self._run_layers
        casting = self._casting
        return casting.replacement(name) if casting is not None else None

    def _attend(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        args, kwargs = self._cast(args, kwargs)
        return attend(func, *args, **kwargs)

    def _run_layers(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        args, kwargs = self._cast(args, kwargs)
        return run_layers(func, args, kwargs)

    def _cast(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        casting = self._casting
        if casting is None:
            return args, kwargs
        cast: tuple[tuple[Any, ...], Mapping[str, Any]] = replaced((args, dict(kwargs)), torch.Tensor, casting.cast)
        return cast


class _Undrawn(TorchFunctionMode):
    """Weights without values are not drawn: on meta tensors that costs more than a step."""

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function, unless all it does is to draw numbers that a meta tensor does not have."""
        if getattr(func, "__name__", "") in _DRAWS:
            tensor = args[0] if args else (kwargs or {}).get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **(kwargs or {}))


def _model_on_meta(make_model: Callable[[], nn.Module]) -> nn.Module:
    """Make a model on meta tensors; one that reads values while it is made is made for real first."""
    try:
        with _META, _Undrawn():
            model = make_model()
    except (RuntimeError, NotImplementedError):
        model = make_model()
    return model.to(_META)


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_meta else torch.empty_like(tensor, device=_META)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(". ")
