"""Modes of torch under which a batch and its parts are compared.

`Coupled` gives a part of a batch the random numbers that were drawn for its samples in the whole. `Promoting` computes
in fp64. `WithoutBatchEffects` leaves out dropout and the statistics of a batch. `Losses` keeps the losses that are
called.
"""

import functools
import random
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.base.user_errors import is_users
from trimaran.user_code.randomness import derive_seed, seed_generators

_OF_TORCH = str(Path(torch.__file__).parent)

_Site = tuple[str | int, ...]
"""The instructions of the code outside of torch that have led to a draw, by file and place."""

MOST_CLASSES = 4096
"""Class weights of a loss that are looked at."""


_SMALL = 4096
"""Elements of a tensor that is kept, or followed."""


def span_of(tensor: Tensor) -> tuple[int, int]:
    """The addresses of the first element and behind the last one.

    Args:
        tensor: that has storage
    """
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def has_storage(tensor: Tensor) -> bool:
    """Whether a tensor is a strided one with elements in memory.

    Args:
        tensor: any
    """
    # Lazy parameters, and tensors of classes that compute on others, have none.
    plain = not is_lazy(tensor) and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    strided = plain and tensor.layout is torch.strided and not tensor.is_nested
    return strided and tensor.device.type != "meta" and tensor.numel() > 0


def _drops_nothing(operation: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation would drop out, as attention may, with no chance: what it makes is no draw."""
    place = next((place for place, one in enumerate(operation._schema.arguments) if one.name == "dropout_p"), -1)
    return place >= 0 and not (args[place] if place < len(args) else kwargs.get("dropout_p", 0.0))


class Draws:
    """What was drawn for a whole batch, in order.

    Args:
        sizes: of the parts that will get it; none: not known, or there are none
    """

    def __init__(self, sizes: Sequence[int] = ()) -> None:
        self.sizes = tuple(sizes)
        self.below: dict[int, int] = {}
        """Of draws of numbers of samples, by their place: what all are below."""
        self.made: list[tuple[str, list[Tensor]]] = []
        self.taken: dict[tuple[int, int], int] = {}
        """Of each draw, and each of its tensors: how much of it earlier parts have got."""
        self.sites: dict[_Site, list[int]] = {}
        """Where calls from one place draw alike: the places of what they drew."""
        self._ordering: dict[int, Tensor] = {}
        """Numbers that were drawn, one for each sample, by where they lie."""

    def keep_within(self, drawn: Tensor, below: int) -> None:
        """Have numbers of samples of the whole, as of a permutation, name none of another part.

        Args:
            drawn: one for each sample, or several; changed in place
            below: they are from 0 up to here
        """
        samples = sum(self.sizes)
        if len(self.sizes) < 2 or not drawn.dim() or drawn.shape[0] % samples or below % samples or not below:
            return
        self.below[len(self.made)] = below
        rows, each = drawn.shape[0] // samples, below // samples
        permutes = drawn.dim() == 1 and bool(torch.equal(drawn.sort().values, torch.arange(below).to(drawn)))
        kept, start = drawn.clone(), 0
        for size in self.sizes:
            stop = start + size
            of_part = drawn[start * rows : stop * rows]
            if permutes:
                inside = kept[(kept >= start * each) & (kept < stop * each)]
            else:
                inside = start * each + of_part % (size * each)
            of_part.copy_(inside)
            start = stop

    def keep_order(self, drawn: Tensor) -> None:
        """Know numbers of the whole, one for each sample, as those by which it may be ordered.

        Args:
            drawn: any draw
        """
        if len(self.sizes) > 1 and drawn.shape == (sum(self.sizes),) and drawn.is_floating_point():
            self._ordering[drawn.data_ptr()] = drawn

    def sorted_within(self, sort: Callable[[Tensor], Any], given: Tensor) -> Any:
        """The order of drawn numbers in each part by itself, as of a permutation; None: they are no such numbers.

        Args:
            sort: gives numbers in their order, and the places where they were
            given: to be sorted
        """
        if given.shape != (sum(self.sizes),) or self._ordering.get(_address(given)) is None:
            return None
        starts = [sum(self.sizes[:number]) for number in range(len(self.sizes))]
        found = [sort(one) for one in given.split(list(self.sizes))]
        return tuple(
            torch.cat([one + start * number for one, start in zip(of_parts, starts, strict=True)])
            for number, of_parts in enumerate(zip(*found, strict=True))
        )


def _below(name: str, args: Any) -> int | None:
    """What the whole numbers of a draw are below; None: they are none from 0 on, or that is not known."""
    if name == "randperm":
        return int(args[0])
    if name == "multinomial":
        return len(args[0]) if args[0].dim() == 1 else None
    lowest, most = (args[0], args[1]) if name == "randint" and isinstance(args[1], int) else (0, args[0])
    return int(most) if name == "randint" and not lowest else None


def place_of_user() -> str:
    """The innermost line of the user's code that runs now, as "job.py:12"; empty: none does.

    What asks for a look is none: a library may compute a loss that nobody else has written.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "trimaran.graph.examine":
        if is_users(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _apart(value: Tensor) -> Tensor:
    """A copy of which no mode hears."""
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return value.detach().clone()


def _address(value: Tensor) -> int:
    """Where a small tensor lies; 0: it is none."""
    return value.data_ptr() if has_storage(value) and value.numel() <= _SMALL else 0


class Coupled(TorchDispatchMode):
    """Keeps what is drawn for a whole batch, or gives a part of it to a part of the batch.

    Args:
        draws: filled by the whole, read by the parts
        bound: start, stop and samples of the whole, for a part; None: this is the whole
        others: the figure that ranks send each other; None: what they send
        keeps: keep what each operation makes
        alike: a seed by which each place of the code draws the same whenever it is run, as in a loop over samples, by
            numpy and `random` too; None: what is drawn goes on
    """

    def __init__(
        self,
        draws: Draws,
        bound: tuple[int, int, int] | None,
        *,
        others: int | None = None,
        keeps: bool = False,
        alike: int | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keeps, self._alike = keeps, alike
        self.kept: list[tuple[str, Any, str]] = []
        """Of each operation, its name, what it made, or read, and the line of the user's code."""
        self._draws, self._bound, self._next, self._others = draws, bound, 0, others
        self.drew = self.lost = self.mixed = self.communicated = self.reads = False
        self.own = self.generates = False
        """Something is drawn from a generator of the job; a part draws from it what the whole draws otherwise."""
        self.states: list[int] = []
        """Of the generator of each draw, before it; 0: it drew nothing, as attention without dropout."""
        self.parted: set[int] = set()
        """Draws of which a part of the batch has other shapes than the whole."""
        self.operations: list[str] = []
        self.read: list[int | bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(str(func))
        name = func.overloadpacket.__name__.removesuffix("_")
        communicates = func.namespace in ("c10d", "_c10d_functional", "c10d_functional")
        self.communicated |= communicates
        draws = torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(func, args, kwargs or {})
        generator = (kwargs or {}).get("generator")
        source = generator or torch.default_generator
        own = generator is not None and generator is not torch.default_generator
        site = None
        if draws and self._alike is not None and not own:
            site = self._draw_alike()
        before = source.get_state() if draws else None
        result = None
        if name == "sort" and self._bound is None:
            result = self._draws.sorted_within(lambda part: func(part, *args[1:], **(kwargs or {})), args[0])
        if result is None:
            result = func(*args, **(kwargs or {}))
        if self._keeps and isinstance(result, Tensor):
            small = not result.is_sparse and not result.is_nested and result.numel() <= _SMALL
            self.kept.append((str(func), _apart(result) if small else torch.empty(0), place_of_user()))
        if communicates and self._others is not None:
            received = {id(one): one for one in pytree.tree_leaves((args[:1], result)) if isinstance(one, Tensor)}
            for one in received.values():
                one.detach().fill_(self._others)
        if before is not None:
            self.states.append(0 if torch.equal(before, source.get_state()) else hash(before.numpy().tobytes()))
        self.mixed |= isinstance(result, Tensor) and result.is_floating_point() and result.dtype is not torch.float64
        if func is torch.ops.aten._local_scalar_dense.default:
            self.reads = True
            if isinstance(result, bool | int):
                self.read.append(result)
                self.kept += [(str(func), result, place_of_user())] if self._keeps else []
        if draws:
            self.drew = True
            self.own |= own
            made = [
                one for one in (result if isinstance(result, tuple | list) else [result]) if isinstance(one, Tensor)
            ]
            self._share(str(func), made, own=own, below=_below(name, args), site=site)
        return result

    def draw_on_host(self, draw: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a function of numpy, or of `random`, draws: alike whenever it is called there, and a part its share.

        Args:
            draw: the function
            args: that it is given
            kwargs: the same
        """
        site = self._draw_alike()
        made = draw(*args, **kwargs)
        if isinstance(made, numpy.ndarray) and made.dtype.kind in "biuf" and made.flags.writeable:
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
                name = {"permutation": "randperm"}.get(draw.__name__, draw.__name__)
                whole = args and all(isinstance(one, int) for one in args[:2] if one is not None)
                below = _below(name, (*args[:2], 0)) if whole else None
                self._share(name, [torch.from_numpy(made)], own=False, below=below, site=site)
        return made

    @contextmanager
    def on_hosts(self) -> Iterator[None]:
        """Numpy and `random` draw alike inside, too, where that is asked for."""
        hosts = () if self._alike is None else ((numpy.random, numpy.random.mtrand._rand), (random, random._inst))
        drawing = [
            (module, name, function)
            for module, owner in hosts
            for name, function in vars(module).items()
            if getattr(function, "__self__", None) is owner and "seed" not in name and "state" not in name
        ]
        try:
            for module, name, function in drawing:
                # One whose keywords a library reads looks as what it wraps.
                wrapped = functools.wraps(function)(lambda *a, _draw=function, **k: self.draw_on_host(_draw, a, k))
                setattr(module, name, wrapped)
            yield
        finally:
            for module, name, function in drawing:
                setattr(module, name, function)

    def _draw_alike(self) -> "_Site":
        """Have what is drawn next depend on the instruction alone, which is told."""
        frame: types.FrameType | None = sys._getframe(2)
        site: list[str | int] = []
        while frame is not None and frame.f_globals.get("__name__") != "trimaran.graph.examine":
            if not frame.f_code.co_filename.startswith((_OF_TORCH, __file__)):
                site += (frame.f_code.co_filename, frame.f_lasti)
            frame = frame.f_back
        seed_generators(derive_seed(self._alike or 0, *site))
        return tuple(site)

    def _share(self, name: str, made: list[Tensor], *, own: bool, below: int | None, site: "_Site | None") -> None:
        """Keep what is drawn for the whole; of a part put what is its own in the place of it."""
        if self._bound is not None:
            self._take(name, made, own=own, below=below, site=site)
            return
        if below is not None and len(made) == 1:
            self._draws.keep_within(made[0], below)
        for one in made:
            self._draws.keep_order(one)
        if site is not None:
            self._draws.sites.setdefault(site, []).append(len(self._draws.made))
        self._draws.made.append((name, [one.detach().clone() for one in made]))

    def _place_of(self, made: list[Tensor], site: "_Site") -> int:
        """Of what was drawn there for the whole that which is most of a size with what is drawn for a part."""

        def is_like(place: int) -> int:
            whole = self._draws.made[place][1]
            return sum(
                one == other
                for pair in zip(made, whole, strict=False)
                for one, other in zip(pair[0].shape, pair[1].shape, strict=False)
            )

        return max(self._draws.sites.get(site, ()), key=is_like, default=len(self._draws.made))

    def checking(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function makes that reads values to see that they are within bounds, and decides nothing by them."""
        reads, count = self.reads, len(self.read)
        found = func(*args, **kwargs)
        self.reads = reads
        del self.read[count:]
        return found

    def _take(self, name: str, made: list[Tensor], *, own: bool, below: int | None, site: "_Site | None") -> None:
        place = self._next if site is None else self._place_of(made, site)
        self._next += 1
        if place >= len(self._draws.made) or self._draws.made[place][0] != name:
            self.lost = True
            return
        for number, (one, whole) in enumerate(zip(made, self._draws.made[place][1], strict=False)):
            if one.shape != whole.shape:
                self.parted.add(place)
                self.generates |= own
            elif site is not None:
                # It is what the whole has drawn there, or would have by these arguments.
                continue
            part = self._part(one, whole, (place, number))
            if part is None:
                self.lost = True
            else:
                one.copy_(part)
                if below is not None and self._bound is not None and self._draws.below.get(place, below) != below:
                    # Numbers of samples, from the first of the part on.
                    one -= self._draws.below[place] // self._bound[2] * self._bound[0]

    def _part(self, one: Tensor, whole: Tensor, key: tuple[int, int]) -> Tensor | None:
        """What a part gets of a draw: along the dim of the samples what is theirs, along others the beginning."""
        if one.shape == whole.shape:
            return whole
        if one.dim() != whole.dim() or self._bound is None:
            return None
        start, stop, samples = self._bound
        part: Tensor | None = None
        for dim in range(one.dim()):
            size, most = one.shape[dim], whole.shape[dim]
            if size == most:
                continue
            if size > most:
                return None
            if part is not None:
                # Padded to a shorter length than the whole.
                part = part.narrow(dim, 0, size)
                continue
            each, rest = divmod(most, samples)
            if not rest and size == each * (stop - start):
                begin = start * each
            else:
                # Nodes of graphs, or what else there are more or fewer of in every sample, one sample after the other.
                begin = self._draws.taken.get(key, 0) if start else 0
                self._draws.taken[key] = begin + size
                if begin + size > most:
                    return None
            part = whole.narrow(dim, begin, size)
        return part


class Promoting(TorchFunctionMode):
    """In a model in fp64, what the loss or the forward holds in fewer bits (class weights, constants) is fp64 too.

    So is what it would round to 16 bits, by which parts would be further from the whole than any limit that tells them
    apart.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("half", "bfloat16") and args[0].is_floating_point():
            return args[0].double()
        if name in ("to", "type") and isinstance(args[0], Tensor) and args[0].is_floating_point():
            args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            tensors = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
            dtypes = {one.dtype for one in tensors}
            fits = torch.float64 in dtypes and not dtypes.isdisjoint(_FEWER) and not name.endswith("_")
            if not fits or not _ABOUT_DTYPES.search(str(error)):
                raise
            args, kwargs = pytree.tree_map_only(
                Tensor, lambda one: one.double() if one.dtype in _FEWER else one, (args, kwargs)
            )
            return func(*args, **kwargs)


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _SHORT else value


_SHORT = (torch.float16, torch.bfloat16)
_FEWER = (torch.float32, *_SHORT)
_ABOUT_DTYPES = re.compile("dtype|scalar type|Double|Float")

_DROPOUTS = frozenset(
    {
        "dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "alpha_dropout_",
        "feature_dropout", "feature_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_", "native_dropout",
    }
)  # fmt: skip


class WithoutBatchEffects(TorchFunctionMode):
    """Dropout does nothing, RReLU has its mean slope, and batch norm uses its running statistics.

    Args:
        coupled: notes what is read; None: nobody does
    """

    def __init__(self, coupled: Coupled | None = None) -> None:
        super().__init__()
        self._coupled = coupled

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "one_hot" and self._coupled is not None and (*args, *kwargs.values())[1:]:
            return self._coupled.checking(func, args, kwargs)
        if name in _DROPOUTS:
            given = args[0] if args else kwargs["input"]
            in_place = name.endswith("_") or kwargs.get("inplace") or args[3:4] == (True,)
            # Another tensor, as in training: one may be written to, or put into a module, where a parameter stays one.
            return given if in_place else given.clone()
        if name in ("rrelu", "rrelu_"):
            with torch._C.DisableTorchFunction():
                return nn.functional.rrelu(*args[:3], **{**kwargs, "training": False})
        if name == "batch_norm":
            return _normalised(args, kwargs)
        if func is nn.functional.instance_norm and kwargs.get("use_input_stats"):
            # Each sample is normalized by itself; running statistics are those of microbatches, as of batch norm.
            kwargs.update(running_mean=None, running_var=None)
        if name == "scaled_dot_product_attention":
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


def _normalised(args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Batch norm by running statistics, whichever of its two signatures was called."""
    names = ["input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"]
    if len(args) > 3 and (args[3] is None or isinstance(args[3], Tensor)) and len(args) >= 8:
        # torch.batch_norm has the weight and the bias first.
        names = ["input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn"]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, mean, variance = given["input"], given.get("running_mean"), given.get("running_var")
    mean = torch.zeros(x.shape[1], dtype=x.dtype, device=x.device) if mean is None else mean
    variance = torch.ones(x.shape[1], dtype=x.dtype, device=x.device) if variance is None else variance
    with torch._C.DisableTorchFunction():
        return nn.functional.batch_norm(
            x, mean, variance, given.get("weight"), given.get("bias"), False, 0.0, given.get("eps", 1e-5)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCall:
    """A loss of torch's that takes a mean over classes."""

    ignored: int
    table: tuple[float, ...] = field(default=())


class Losses(TorchFunctionMode):
    """Keeps the losses of torch's that are called, which take a mean over classes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[LossCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("cross_entropy", "nll_loss"):
            given = {**dict(zip(("input", "target", "weight", "size_average", "ignore_index"), args, strict=False)),
                     **kwargs}  # fmt: skip
            weight = given.get("weight")
            table = tuple(weight.tolist()) if isinstance(weight, Tensor) and weight.numel() <= MOST_CLASSES else ()
            self.calls.append(LossCall(ignored=given.get("ignore_index", -100), table=table))
        return func(*args, **kwargs)
