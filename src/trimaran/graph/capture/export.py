"""The model of a job through `torch.export`, with the calls of its leaf modules marked.

The exported function takes the tensors of a batch in the order of their names and returns the tensors of the model's
output, so that the forms of batches and outputs stay outside. Dim 0 of every input is dynamic.

What a model returns, taken apart into tensors and put together again.

A segment hands tensors around; the loss and the metric of the job expect what the user's model returns: a tensor, a
tuple, a dict, an object of Hugging Face. The structure remembers the difference.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer
from torch.nn.modules import transformer
from torch.utils.checkpoint import CheckpointFunction

from trimaran.base.job import Job
from trimaran.user_code.batches import call_model, name_tensors, rebuild_batch
from trimaran.user_code.model import device_of, enter_mode, precision_context, quiet, untouched, without_user_hooks

# A decoding cache holds keys and values of every layer. Training never reads it, and it would cross every split point.
CACHES = frozenset({"past_key_values"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStructure:
    """How to make a model's output from its tensors.

    Attributes:
        build: makes the output from an iterator over the tensors
        dropped: names of the fields that are neither tensors nor plain values; they become None
    """

    build: Callable[[Iterator[Tensor]], Any]
    dropped: tuple[str, ...] = ()

    def rebuild(self, tensors: Sequence[Tensor]) -> Any:
        """The output that holds these tensors."""
        return self.build(iter(tensors))


def take_apart(output: Any, *, keep: bool = False) -> tuple[tuple[Tensor, ...], OutputStructure]:
    """The tensors of a model's output, and the structure around them.

    Args:
        output: what a model returned
        keep: what is neither tensor nor plain value stays as it is here, rather than to become None

    Example:
        >>> import torch
        >>> tensors, structure = take_apart({"a": torch.zeros(2), "b": (torch.ones(2), None)})
        >>> len(tensors), structure.rebuild(["x", "y"])
        (2, {'a': 'x', 'b': ('y', None)})
    """
    tensors: list[Tensor] = []
    dropped: list[str] = []
    build = _take(output, "", tensors, dropped if not keep else None)
    return tuple(tensors), OutputStructure(build=build, dropped=tuple(dropped))


def _take(value: Any, name: str, tensors: list[Tensor], dropped: list[str] | None) -> Callable[[Iterator[Tensor]], Any]:
    if isinstance(value, Tensor):
        tensors.append(value)
        return next
    if value is None or isinstance(value, bool | int | float | str):
        return lambda _: value
    if isinstance(value, Mapping):
        return _take_fields(value, dict(value), name, tensors, dropped)
    if isinstance(value, tuple | list):
        parts = [_take(part, f"{name}[{index}]", tensors, dropped) for index, part in enumerate(value)]
        kind: Any = type(value)
        if hasattr(value, "_fields"):
            return lambda source: kind(*[part(source) for part in parts])
        return lambda source: kind([part(source) for part in parts])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _take_fields(value, fields, name, tensors, dropped)
    if dropped is None:
        return lambda _: value
    dropped.append(name.lstrip(".") or type(value).__name__)
    return lambda _: None


def _take_fields(
    value: Any, fields: dict[str, Any], name: str, tensors: list[Tensor], dropped: list[str] | None
) -> Callable[[Iterator[Tensor]], Any]:
    """A mapping or a dataclass; objects of Hugging Face are both, and are made from keywords."""
    parts: dict[str, Callable[[Iterator[Tensor]], Any]] = {}
    for key, part in fields.items():
        if key in CACHES and part is not None and dropped is not None:
            dropped.append(f"{name}.{key}".lstrip("."))
        else:
            parts[key] = _take(part, f"{name}.{key}", tensors, dropped)
    kind: Any = type(value)
    if kind is dict:
        return lambda source: {key: part(source) for key, part in parts.items()}
    return lambda source: kind(**{key: part(source) for key, part in parts.items()})


# ---------------------------------------------------------------------------------------------------------------------
# What torch does not say of recurrent layers: their shapes at a glance, and figures that it hands to oneDNN


@contextmanager
def layers_at_a_glance(model: nn.Module) -> Iterator[None]:
    """Trace every recurrent layer as a few operations with the shapes of its results.

    Torch traces each time step by itself: minutes for a deep network on long sentences. A layer is called as a whole in
    the end, so what its trace holds does not matter; what it makes, and of what, does. Packed sequences and single
    samples are traced as torch does it.
    """
    own = (nn.LSTM, nn.GRU, nn.RNN)  # what somebody makes of them may return anything
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase) and type(module) in own]
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        vars(layer)["forward"] = _shapes_of(layer, layer.forward)
    try:
        yield
    finally:
        for layer, kept in zip(layers, before, strict=True):
            vars(layer).pop("forward")
            if kept is not None:
                vars(layer)["forward"] = kept


def _shapes_of(layer: nn.RNNBase, forward: Callable[..., Any]) -> Callable[..., Any]:
    directions = 2 if layer.bidirectional else 1
    state = layer.proj_size or layer.hidden_size

    def run(source: Any, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(source, Tensor) or source.dim() != _DIMS:
            return forward(source, *arguments, **keywords)
        ends = source.sum((1 if layer.batch_first else 0, 2)).view(1, -1, 1)
        output = source.sum(2, keepdim=True).repeat(1, 1, directions * state)
        state_h = ends.repeat(directions * layer.num_layers, 1, state)
        if not isinstance(layer, nn.LSTM):
            return output, state_h
        return output, (state_h, ends.repeat(directions * layer.num_layers, 1, layer.hidden_size))

    return run


_DIMS = 3
"""Of a batch of sequences: samples, steps, features."""


def workspace_bytes(lstm: nn.LSTM, source: Tensor) -> list[int]:
    """What oneDNN keeps of each layer and direction for its backward, in the order in which they run [bytes].

    Every sample and time step keeps its gates, states and their gradients: 9 rows of the hidden size and 6 of the
    larger of input and hidden size.

    Args:
        lstm: the module
        source: its input, of shape (steps, samples, features) or (samples, steps, features)

    Source:
        Fitted to the sizes that torch 2.13 keeps, over batch, steps, input and hidden size: within 12 % for small
        layers (padding to pages), within 1 % for large ones.
    """
    directions = 2 if lstm.bidirectional else 1
    rows = source.numel() // source.shape[-1] if source.shape[-1] else 0
    sizes = []
    for layer in range(lstm.num_layers):
        width = lstm.input_size if layer == 0 else lstm.hidden_size * directions
        row = 6 * max(width, lstm.hidden_size) + 9 * lstm.hidden_size
        sizes += [rows * row * source.element_size()] * directions
    return sizes


PREFIX = "model"  # attribute of the exported module under which the user's model is


class NotExportableError(Exception):
    """The model cannot be turned into a graph; the message is the reason, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """The model as a graph in one of its modes.

    Attributes:
        program: what torch made of it
        inputs: names of the batch's tensors, in the order of the graph's inputs
        structure: of the model's output
        asks_mode: the forward may do other things in the other mode, besides what leaf modules of torch do inside
    """

    program: ExportedProgram
    inputs: tuple[str, ...]
    structure: OutputStructure
    asks_mode: bool


class _OnTensors(nn.Module):
    """The model as a function from the tensors of a batch to the tensors of its output."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.add_module(PREFIX, model)
        self.call = call

    def forward(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return self.call(self.get_submodule(PREFIX), tensors)


def export_model(job: Job, model: nn.Module, batch: Any, leaves: tuple[str, ...], *, training: bool) -> ExportedModel:
    """The model as a graph of tensor operations.

    Args:
        job: the job
        model: its model, which is left as it was
        batch: a few samples, as the model is called with
        leaves: paths of the leaf modules, whose calls are marked
        training: the mode to export

    Raises:
        NotExportableError: torch cannot; with its reason
    """
    names, tensors = tuple(name_tensors(batch)), tuple(name_tensors(batch).values())
    structures: list[OutputStructure] = []  # torch.export puts a module's attributes back, so it is kept outside of one

    def call(model: nn.Module, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        given = rebuild_batch(batch, dict(zip(names, tensors, strict=True)))
        output = call_model(job, model, given)
        if entries := sorted(set(names) ^ set(name_tensors(given))):
            raise NotExportableError(
                f'its forward puts "{entries[0]}" into the batch, or takes it out, and a rank of the loss has the '
                "batch as it was: return it from the forward"
            )
        found, structure = take_apart(output)
        if not found:
            raise NotExportableError(f"it returns a {type(output).__name__}, in which no tensors are found")
        structures.append(structure)
        return found

    wrapper = _OnTensors(model, call)
    wrapper.training = training
    with (
        quiet(),
        untouched(model),
        without_user_hooks(model),
        layers_at_a_glance(model),
        precision_context(job, device_of(model)),
        _without_reentrant_checkpoints(),
        _lengths_that_follow(model),
        _paths_of_sliced_modules(),
        _masks_unread(),
        _rounding_as_it_is(),
    ):
        enter_mode(model, training=training)
        try:
            with _asked_modes(model, leaves) as asked:
                program = torch.export.export(
                    wrapper,
                    (tensors,),
                    dynamic_shapes=(tuple({0: Dim.DYNAMIC} for _ in tensors),),
                    strict=False,
                    preserve_module_call_signature=tuple(f"{PREFIX}.{path}" for path in leaves),
                )
        except NotExportableError:
            raise
        except Exception as error:  # torch raises whatever the model's code or its own tracer raises
            raise NotExportableError(first_line(error)) from error
    _check_sizes(program, min(tensor.shape[0] for tensor in tensors), job.global_batch_size)
    return ExportedModel(program=program, inputs=names, structure=structures[-1], asks_mode=bool(asked))


@contextmanager
def _asked_modes(model: nn.Module, leaves: tuple[str, ...]) -> Iterator[list[str]]:
    """Types of the modules by whose mode a forward may go another way; layers of torch that are called whole are none.

    A mode is asked for by reading `training`, or told by a `train` or an `eval` of the module's own.
    """
    asked = [type(module).__name__ for module in model.modules() if _has_own_modes(module)]
    whole = {id(model.get_submodule(path)) for path in leaves}

    def get(module: nn.Module) -> bool:
        # The tracer reads it too, of every module.
        by = str(sys._getframe(1).f_globals.get("__name__"))
        of_torch = by.startswith("torch.") and (not by.startswith("torch.nn.") or id(module) in whole)
        if not of_torch:
            asked.append(type(module).__name__)
        try:
            return bool(vars(module)["training"])
        except KeyError:
            raise AttributeError("training") from None

    def put(module: nn.Module, value: bool) -> None:
        vars(module)["training"] = value

    known = vars(nn.Module).get("training")
    nn.Module.training = property(get, put)  # type: ignore[assignment]
    try:
        yield asked
    finally:
        if known is None:
            del nn.Module.training
        else:
            nn.Module.training = known


def _has_own_modes(module: nn.Module) -> bool:
    own = {"train", "eval"} & vars(module).keys() or isinstance(module, torch.jit.ScriptModule)
    return bool(own) or type(module).train is not nn.Module.train or type(module).eval is not nn.Module.eval


def _check_sizes(program: ExportedProgram, traced: int, most: int) -> None:
    """Refuse a graph that is that of the model for some numbers of samples only."""
    # Others are of sizes that values decide.
    symbols = {symbol: bounds for symbol, bounds in program.range_constraints.items() if str(symbol).startswith("s")}
    for bounds in symbols.values():
        if bounds.upper < most or bounds.lower >= traced:
            sizes = f"{bounds.lower} to {bounds.upper}" if bounds.upper < most else f"{bounds.lower} and more"
            raise NotExportableError(f"the forward takes another way where a batch has not {sizes} samples")
    # What Python decided by a size bounds no range where it is a quotient, or a remainder.
    sizes_of_batches = (*range(2, min(most, MOST_TRIED) + 1), most) if most > 1 else ()
    for decided in _decisions(program):
        if decided.free_symbols <= symbols.keys():
            for size in sizes_of_batches:
                if str(decided.subs(dict.fromkeys(symbols, size))) == "False":
                    raise NotExportableError(f"the forward takes another way where a batch has {size} samples")


def _decisions(program: ExportedProgram) -> list[Any]:
    """What held of the sizes of the batch that was traced, by which Python went on, as expressions of sympy."""
    for node in program.graph.nodes:
        shape = node.meta["val"].shape if isinstance(node.meta.get("val"), Tensor) else ()
        for size in shape:
            if isinstance(size, torch.SymInt):
                return [guard.expr for guard in size.node.shape_env.guards]
    return []


MOST_TRIED = 1024
"""Samples of a batch up to which each number of samples is tried, and not the whole batch alone."""


def first_line(error: BaseException) -> str:
    """The first line that says something, with the kind of the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextmanager
def _without_reentrant_checkpoints() -> Iterator[None]:
    """Refuse reentrant activation checkpointing, whose forward runs without gradients: a graph would have none."""

    def refuse(*_: object) -> Any:
        raise NotExportableError("it checkpoints activations with use_reentrant=True; with False it can be traced")

    known = vars(CheckpointFunction).get("apply")
    CheckpointFunction.apply = staticmethod(refuse)  # type: ignore[method-assign]
    try:
        yield
    finally:
        if known is None:
            del CheckpointFunction.apply
        else:
            CheckpointFunction.apply = known  # type: ignore[method-assign]


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Tensor) and value.dim() else len(value)


@contextmanager
def _lengths_that_follow(model: nn.Module) -> Iterator[None]:
    """Let `len(tensor)` in the user's forwards be the size of the batch, whichever that is.

    Python wants a plain number of `len`, by which an export would hold for one batch size alone. So the functions of
    the user's modules see another `len` while they are traced.
    """
    known: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        # That of a scripted module is not there on its class.
        names = getattr(inspect.unwrap(getattr(type(module), "forward", _length)), "__globals__", {})
        if not str(names.get("__name__", "torch")).startswith("torch.") and "len" not in names:
            known[id(names)] = names
    for names in known.values():
        names["len"] = _length
    try:
        yield
    finally:
        for names in known.values():
            del names["len"]


@contextmanager
def _masks_unread() -> Iterator[None]:
    """Let torch's transformers apply a mask as it is, where nobody says whether it is a causal one.

    They compare its values, by which an export cannot go, and leave a causal one to a kernel that masks the same.
    """
    known = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = known


@contextmanager
def _rounding_as_it_is() -> Iterator[None]:
    """Leave unread how cuDNN rounds: torch.export asks by a flag that torch refuses to read in some settings.

    So it does after `torch.backends.fp32_precision = "ieee"`. And what was read would be set again.
    """
    get, put = torch._C._get_cudnn_allow_tf32, torch._C._set_cudnn_allow_tf32
    torch._C._get_cudnn_allow_tf32, torch._C._set_cudnn_allow_tf32 = (lambda: False), (lambda arg: None)
    try:
        yield
    finally:
        torch._C._get_cudnn_allow_tf32, torch._C._set_cudnn_allow_tf32 = get, put


@contextmanager
def _paths_of_sliced_modules() -> Iterator[None]:
    """Give modules that a forward reaches through a slice of a list, as in `self.layers[1:]`, their paths in the model.

    In a model that has a module under two names torch.export calls them "layers.slice(1, None, None).0", and keeps no
    signature of their calls: they would stay unfolded, and a recurrent layer would be what stands for it in an export.
    """
    known = _ModuleStackTracer.path_of_module

    def path_of_module(self: Any, mod: nn.Module) -> str:
        return unsliced(known(self, mod), self.scope_root)

    _ModuleStackTracer.path_of_module = path_of_module  # type: ignore[method-assign]
    try:
        yield
    finally:
        _ModuleStackTracer.path_of_module = known  # type: ignore[method-assign]


def unsliced(path: str, root: nn.Module) -> str:
    """The path of a module without slices of the lists that it is in.

    Args:
        path: with slices, as torch.export writes them
        root: the path begins there

    Example:
        >>> root = nn.ModuleDict({"list": nn.ModuleList([nn.ReLU(), nn.Tanh()]), "row": nn.Sequential(nn.ReLU())})
        >>> unsliced("list.slice(1, None, None).0", root), unsliced("row.slice(0, None, None).0", root)
        ('list.1', 'row.0')
    """
    found: list[str] = []
    names: list[str] | None = None  # of what the slices so far leave
    for part in path.split("."):
        if not part.startswith("slice("):
            found.append(part if names is None else names[int(part)])
            names = None
            continue
        container = root.get_submodule(".".join(found))
        if isinstance(container, nn.ModuleList):  # a slice of another list counts from 0; one of a sequence does not
            bounds = (None if bound == "None" else int(bound) for bound in part[len("slice(") : -1].split(", "))
            names = (names or list(container._modules))[slice(*bounds)]
    return ".".join(found)
