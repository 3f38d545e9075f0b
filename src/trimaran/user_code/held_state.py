"""What a job keeps in Python: attributes of its modules, and what its loss and its hooks hold.

Buffers and parameters have names, and are compared by them. A model may as well count its steps in an attribute, carry
a hidden state from batch to batch, or fill a list; a loss may follow an average in a dict of its closure. `HeldState`
finds such values, so that a look at the job can put them back, and see which of them each forward changes.

    modules         attributes, but for parameters, buffers, children and hooks
    objects         attributes, where their class is the user's, and of settings such as those of transformers
    classes         of the user's modules and objects: attributes
    containers      entries of lists, dicts, sets, deques; numbers and arrays that processes share
    functions       of the user's: attributes, cells, defaults, caches
    files           that these functions are in: globals, as far as a few holders deep, whichever of them are used

Compared are numbers, texts, tensors and arrays, and how far iterators are. Of a container of many entries only their
number counts. Generators of Python and NumPy are put back, and not compared. torch's, and objects of libraries, are
left alone: what a look cannot put back of these is seen by the same batch, which then gives another value.

That batch is run after a look, and a job whose loss it changes is refused. Iterators that are replaced by ones that
rewind would be other objects to code that calls their methods; a look in a forked process would lose threads and CUDA.
"""

import argparse
import copy
import ctypes
import enum
import functools
import itertools
import random
import sys
import types
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any

import numpy
import torch
from torch import Tensor, nn

_MOST_ENTRIES, _MOST_HOLDERS, _DEEPEST = 1024, 10_000, 8
"""Entries of a container that are looked at, holders of a job, and how deep they lie in each other."""

_DEEPEST_OF_FILES = 2
"""How deep holders lie in a global of a file."""

_MOST_ELEMENTS = 1 << 20
"""Elements of a tensor that is copied; of a larger one it is seen whether it was written to."""

OF_MODULES = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, complex, str, bytes, type(None), numpy.generic, enum.Enum)
_OF_CLASSES = (*_PLAIN[:6], numpy.generic, list, dict, set, deque, Tensor, numpy.ndarray)

_ITERATORS: tuple[type, ...] = (
    types.GeneratorType,
    itertools.count,
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
)
"""Whose position is known."""

PLACE_OF = "the place of "
"""How the path of an iterator's position begins."""

CONTAINERS = (list, dict, set, deque)
"""Whose content may be put back in place."""

HostGenerator = random.Random | numpy.random.RandomState | numpy.random.Generator

HOST_GENERATOR_TYPES = (random.Random, numpy.random.RandomState, numpy.random.Generator)
_GENERATORS = (*HOST_GENERATOR_TYPES, torch.Generator)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_NO_VALUES = (nn.Module, nn.Parameter, *_GENERATORS, *_FUNCTIONS)

Values = dict[str, Any]
"""Of each value its path, and the value, or a copy."""

Undo = list[Callable[[], object]]

_Place = tuple[Any, Any]
"""A holder, and the key of an entry or the name of an attribute."""

_Entry = tuple[str, Any, _Place | None]
"""Path, value, and where it lies; None: nobody can put another there."""


@dataclass(frozen=True, slots=True)
class Settable:
    """A number, text, tensor or function that is held.

    Attributes:
        path: as of `HeldState.values`
        value: now
        get: gives it
        put: sets another
    """

    path: str
    value: Any
    get: Callable[[], Any]
    put: Callable[[Any], object]

    def fill(self, value: Any) -> None:
        """Set another; a container that is there stays, as others may hold it too, and gets its content."""
        now = self.get()
        if isinstance(now, CONTAINERS) and type(now) is type(value):
            refill(now, value)
        else:
            self.put(value)


class HeldState:
    """The values that some objects of a job hold.

    Args:
        roots: modules, functions and objects of the user's, by what they are called
        undoable: keep what `put_back` needs
        without: objects that are left out, with what they hold
        files: with the globals of the files that functions are in; where it is undoable unless given

    Example:
        >>> held = HeldState({"the loss": functools.partial(print, numbers := [1])})
        >>> before = held.values()
        >>> numbers.append(2)
        >>> changed(before, held.values())
        ['the length of the loss', '[1] of the loss']
        >>> held.put_back()
        >>> numbers
        [1]
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        *,
        undoable: bool = True,
        without: Sequence[Any] = (),
        files: bool | None = None,
    ) -> None:
        self._roots, self._without = dict(roots), without
        self._files = undoable if files is None else files
        self._undo: Undo = []
        for _ in self._walk(self._undo) if undoable else ():
            pass

    def values(self) -> Values:
        """The values now; tensors and arrays are copies."""
        return {path: _copied(value) for path, value, _ in self._walk(None)}

    def versions(self, *, functions: bool = False) -> Values:
        """The values now; in the place of a tensor, or a large array, what tells whether it was written or replaced.

        Args:
            functions: those that are held, too
        """
        return {path: _version(value) for path, value, _ in self._walk(None, functions=functions)}

    def find(self, *kinds: type) -> Values:
        """By path what is held of some classes, roots too."""
        return {path: value for path, value, _ in self._walk(None, parts=True) if isinstance(value, kinds)}

    def parts(self) -> list[nn.Module | nn.Parameter]:
        """The modules and parameters that are held, roots too."""
        return list(self.find(nn.Module, nn.Parameter).values())

    def drawn(self) -> Values:
        """By path digests of the states of the generators that are held, also of torch's."""
        return {path: _digest_of(one) for path, one in self.find(*_GENERATORS).items()}

    def objects(self) -> Values:
        """By path the modules, and the user's objects, that are held and have attributes."""
        held = self.find(object).items()
        return {path: one for path, one in held if isinstance(one, nn.Module) or _has_attributes(one)}

    def shares(self, other: "HeldState") -> bool:
        """Whether something that is held is held by another, too."""
        mine, others = _Met(), _Met()
        for _ in itertools.chain(self._walk(None, met=mine), other._walk(None, met=others)):
            pass
        return not mine.isdisjoint(others)

    def settable(self, *kinds: type) -> "Iterator[Settable]":
        """The numbers, or others, that are held, and can be set.

        Args:
            kinds: of values, of texts, tensors and functions
        """
        for path, value, place in list(self._walk(None, parts=True)):
            if place is not None and isinstance(value, kinds):
                yield Settable(
                    path=path, value=value, get=functools.partial(_get, *place), put=functools.partial(_put, *place)
                )

    def put_back(self) -> None:
        """Put back what was held when this was made."""
        with torch.no_grad():
            for one in self._undo:
                one()

    def _walk(
        self, undo: Undo | None, *, parts: bool = False, functions: bool = False, met: "_Met | None" = None
    ) -> Iterator[_Entry]:
        met = _Met() if met is None else met
        met.update(map(id, self._without))
        left = (nn.Module, nn.Parameter, *_GENERATORS) if functions else _NO_VALUES
        named: Counter[str] = Counter()
        for name, entries in self._entries(met, undo):
            for path, value, place in entries:
                if isinstance(value, CONTAINERS):
                    if parts and path:
                        yield f"{path} of {name}", value, place
                elif parts or not (isinstance(value, left) or _has_attributes(value)):
                    called = f"{path} of {name}" if path else name
                    # A global that a forward reads may be called as an attribute of its module is.
                    named[called] += 1
                    yield called if named[called] == 1 else f"{called} ({named[called]})", value, place

    def _entries(self, met: "_Met", undo: Undo | None) -> Iterator[tuple[str, Iterator[_Entry]]]:
        for name, root in self._roots.items():
            yield name, _values_of(root, "", 0, met, undo)
        walked = 0
        while self._files and len(met.files) > walked:
            # What lies in one may have functions of others.
            content = list(met.files.values())[walked]
            if undo is not None:
                undo.append(functools.partial(_restore, content, dict(content)))
            yield f"the file {content.get('__name__')}", _of_file(content, met, undo)
            walked += 1


class _Met(set[int]):
    """Objects that a walk has met, by id, and the globals of the files that functions among them are in."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[int, dict[str, Any]] = {}


def generator_state(generator: HostGenerator) -> Any:
    """The state of a generator of the host, to be compared by its `repr` and put back.

    Example:
        >>> source = random.Random(1)
        >>> before = generator_state(source)
        >>> drawn = source.random()
        >>> put_generator(source, before)
        >>> source.random() == drawn
        True
    """
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, numpy.random.Generator) else generator.get_state()


def generator_states(generators: Iterable[HostGenerator]) -> tuple[str, ...]:
    """The states of generators of the host as texts, to be compared."""
    with numpy.printoptions(threshold=sys.maxsize):
        return tuple(repr(generator_state(one)) for one in generators)


def _digest_of(generator: HostGenerator | torch.Generator) -> int:
    if isinstance(generator, torch.Generator):
        return zlib.crc32(generator.get_state().numpy().tobytes())
    return zlib.crc32(generator_states([generator])[0].encode())


def put_generator(generator: HostGenerator, state: Any) -> None:
    """Put a generator of the host back into a state.

    Args:
        generator: of Python or NumPy
        state: from `generator_state`
    """
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def changed(
    before: Values, after: Values, same: Callable[[Any, Any], bool] = lambda one, other: _same(one, other)
) -> list[str]:
    """The paths of the values that differ, or that only one has.

    Args:
        before: values
        after: of the same roots
        same: whether two tensors are; they may be of different shapes and dtypes
    """
    paths = dict.fromkeys((*before, *after))
    both = before.keys() & after.keys()
    return [path for path in paths if path not in both or not equal(before[path], after[path], same)]


def _values_of(
    value: Any, path: str, depth: int, met: _Met, undo: Undo | None, place: _Place | None = None
) -> Iterator[_Entry]:
    if undo is not None and place is not None and not isinstance(place[0], list | dict):
        undo.append(functools.partial(_put, *place, value))
    if isinstance(value, (*_PLAIN, *_FUNCTIONS)):
        # A function may lie in several places.
        yield path, value, place
    if isinstance(value, _PLAIN):
        return
    if depth > _DEEPEST or id(value) in met or (depth and len(met) > _MOST_HOLDERS):
        return
    met.add(id(value))
    if undo is not None:
        undo.extend(_ways_back(value))
    if isinstance(value, (Tensor, numpy.ndarray, *_GENERATORS)):
        yield path, value, None if isinstance(value, (nn.Parameter, *_GENERATORS)) else place
        return
    if isinstance(value, _ITERATORS):
        yield f"{PLACE_OF}{path}", _position(value), None
        if undo is not None and place is not None and not isinstance(value, types.GeneratorType):
            undo.append(functools.partial(_put_iterator, value, _position(value), place, _rebuilt(value)))
        return
    if isinstance(value, nn.Module):
        yield path, value, None
    elif isinstance(value, CONTAINERS):
        yield path, value, place
    elif _has_attributes(value):
        yield path, value, None
    if isinstance(value, types.FunctionType) and is_users(value):
        met.files[id(value.__globals__)] = value.__globals__
    for name, content, where in _contents(value, path):
        yield from _values_of(content, name, depth + 1, met, undo, where)


def _ways_back(value: Any) -> Iterator[Callable[[], object]]:
    """What puts back something that is held, without what it holds in turn."""
    for one in vars(value).get("_parameters", {}).values() if isinstance(value, nn.Module) else (value,):
        if isinstance(one, Tensor) and one.is_leaf and one.requires_grad:
            yield functools.partial(_put_gradient, one, None if one.grad is None else one.grad.clone())
    if isinstance(value, nn.Module):
        yield functools.partial(_restore, vars(value), dict(vars(value)))
        # Buffers too: a forward may put another tensor in the place of one, and a trace one without content.
        inside = [one for one in vars(value).values() if isinstance(one, CONTAINERS)]
        yield from (functools.partial(refill, one, one.copy()) for one in inside)
        yield from () if is_users(type(value)) else (one.cache_clear for one in _caches_in(type(value).__module__))
    elif isinstance(value, Tensor):
        # An element that stands in several places cannot be written.
        apart = value.is_nested or 0 not in value.stride()
        if not isinstance(value, nn.Parameter) and _is_small(value) and value.is_leaf and apart:
            yield functools.partial(value.data.copy_, value.detach().clone())
    elif isinstance(value, numpy.ndarray):
        if _is_small(value) and value.dtype.kind != "O" and value.flags.writeable:
            yield functools.partial(numpy.copyto, value, value.copy())
    elif isinstance(value, HostGenerator):
        yield functools.partial(put_generator, value, generator_state(value))
    elif isinstance(value, CONTAINERS):
        if len(value) <= _MOST_ENTRIES:
            yield functools.partial(refill, value, value.copy())
    elif isinstance(value, ctypes.Array):
        yield functools.partial(ctypes.memmove, ctypes.addressof(value), bytes(value), len(bytes(value)))
    elif isinstance(value, functools._lru_cache_wrapper):
        # One that has results already is left: those that are made from here on look like them.
        if is_users(value) and not value.cache_info().currsize:
            yield value.cache_clear
    elif (isinstance(value, types.FunctionType) and is_users(value)) or _has_attributes(value):
        yield functools.partial(_restore, vars(value), dict(vars(value)))


def _position(iterator: Any) -> Any:
    """How far an iterator is."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        if frame is None:
            return "its end"
        return frame.f_lasti, repr([one for one in frame.f_locals.items() if isinstance(one[1], _PLAIN)])
    return repr(iterator) if isinstance(iterator, itertools.count) else iterator.__length_hint__()


def _rebuilt(iterator: Any) -> Any:
    """Another iterator that is as far."""
    if not isinstance(iterator, itertools.count):
        return copy.copy(iterator)
    # Those of itertools cannot be copied in every version of Python.
    start, *step = repr(iterator).removeprefix("count(").removesuffix(")").split(", ")
    return itertools.count(*(int(one) if one.lstrip("-").isdigit() else float(one) for one in (start, *step)))


def _put_iterator(iterator: Any, position: Any, place: _Place, kept: Any) -> None:
    """Put one that is as far as an iterator was in its place, where that has gone on."""
    now = _get(*place)
    if now is not iterator or _position(iterator) != position:
        _put(*place, _rebuilt(kept))


def _get(holder: Any, key: Any) -> Any:
    """What lies in a place; None: nothing does now."""
    try:
        return holder[key] if isinstance(holder, list | dict) else getattr(holder, key)
    except (IndexError, KeyError, AttributeError, ValueError):
        return None


def _put(holder: Any, key: Any, value: Any) -> None:
    """Put something in a place; also into what is frozen."""
    if isinstance(holder, list | dict):
        holder[key] = value
    elif isinstance(holder, type):
        setattr(holder, key, value)
    else:
        object.__setattr__(holder, key, value)


def _contents(value: Any, path: str) -> Iterator[_Entry]:
    """What a holder holds, by path, and where."""
    dotted = f"{path}." if path else ""
    if isinstance(value, nn.Module):
        # Its children are roots, where they are of the model.
        own = [(name, one) for name, one in vars(value).items() if name not in OF_MODULES]
        yield from ((f"{dotted}{name}", one, (vars(value), name)) for name, one in own)
        # That of a scripted module is not on its class.
        yield path, getattr(type(value), "forward", None), None
        yield from ((path, one, None) for one in _methods(type(value)))
        yield from _classes_of(value)
    elif isinstance(value, list | dict | set | deque | tuple):
        yield f"the length of {path}" if path else "the length", len(value), None
        if len(value) > _MOST_ENTRIES:
            return
        if isinstance(value, set):
            yield path, repr(sorted(map(repr, value))), None
            return
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        settable = isinstance(value, list | dict)
        yield from ((f"{path}[{key!r}]", one, (value, key) if settable else None) for key, one in list(entries))
    elif isinstance(value, functools.partial):
        yield from ((path, one, None) for one in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield from ((path, one, None) for one in (value.__self__, value.__func__))
    elif isinstance(value, types.FunctionType):
        if is_users(value):
            yield from _of_function(value)
    elif isinstance(value, SynchronizedBase):
        yield path, value.get_obj(), None
    elif isinstance(value, ctypes.Array | ctypes._SimpleCData):
        single = isinstance(value, ctypes._SimpleCData) and isinstance(value.value, _PLAIN)
        yield (f"{dotted}value", value.value, (value, "value")) if single else (path, bytes(value), None)
    elif isinstance(value, functools._lru_cache_wrapper):
        yield path, value.__wrapped__, None
    elif _is_open(type(value)):
        named = vars(value) if _has_attributes(value) else {}
        yield from ((f"{dotted}{name}", one, (named, name)) for name, one in list(named.items()))
        yield from ((f"{dotted}{name}", one, (value, name)) for name, one in _slotted(value))
        # Who holds it may call any of them.
        yield from ((path, one, None) for one in _methods(type(value)))
        yield from _classes_of(value)
    elif isinstance(value, type) and is_users(value) and not issubclass(value, enum.Enum):
        for name, one in list(vars(value).items()):
            if isinstance(one, _OF_CLASSES) and not name.startswith("__"):
                yield f"{value.__name__}.{name}", one, (value, name)
        if issubclass(value, torch.autograd.Function):
            # Whoever calls it has its backward called.
            yield from ((path, one, None) for one in _methods(value))


@functools.lru_cache(maxsize=256)
def _caches_in(library: str) -> "tuple[functools._lru_cache_wrapper[Any], ...]":
    """The caches of a library's functions and methods, where a trace may leave tensors without content."""
    if library.partition(".")[0] in ("torch", "builtins"):
        return ()
    content = vars(sys.modules[library]).values() if library in sys.modules else ()
    defined = [one for one in content if getattr(one, "__module__", None) == library]
    of_classes = [made for one in defined if isinstance(one, type) for made in vars(one).values()]
    functions = [getattr(one, "__func__", one) for one in (*defined, *of_classes)]
    cells = [cell for one in functions if isinstance(one, types.FunctionType) for cell in one.__closure__ or ()]
    held = [*functions, *(_get(cell, "cell_contents") for cell in cells)]
    return tuple(one for one in held if isinstance(one, functools._lru_cache_wrapper))


def _is_open(made_of: type) -> bool:
    """Whether an object of a class has what the user put into it."""
    return made_of in (types.SimpleNamespace, argparse.Namespace) or is_users(made_of) or _is_of_settings(made_of)


def _has_attributes(value: Any) -> bool:
    """Whether something is an object of the user's that may get attributes."""
    held = _is_open(type(value)) and not isinstance(value, (*_PLAIN, nn.Module))
    return held and isinstance(getattr(value, "__dict__", None), dict)


def _is_of_settings(made_of: type) -> bool:
    """Whether objects of a library's class are settings, such as the configuration of a model, by its name."""
    return made_of.__module__.partition(".")[0] not in ("torch", "numpy", "trimaran", "builtins") and any(
        word in one.__name__ for one in made_of.__mro__ for word in ("Config", "Settings", "Namespace")
    )


def _slotted(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds in slots, by name."""
    for made_of in type(value).__mro__ if is_users(type(value)) else ():
        for name, slot in vars(made_of).items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield name, slot.__get__(value)
                except AttributeError:  # it is empty
                    continue


def _methods(made_of: type) -> Iterator[Any]:
    """The functions of the user's classes, but those that Python calls by itself."""
    for one in made_of.__mro__:
        for name, made in vars(one).items() if is_users(one) else ():
            # Of a property the function that reads it, of a static method its function.
            function = getattr(made, "fget", None) or getattr(made, "__func__", made)
            called = name in _ASKED or not name.startswith("__")
            if called and isinstance(function, types.FunctionType | functools._lru_cache_wrapper):
                yield function


_ASKED = ("__call__", "__getitem__", "__getitems__", "__iter__")
"""What who holds an object calls without its name."""


def _classes_of(value: Any) -> Iterator[_Entry]:
    """The user's classes whose attributes an object has."""
    yield from ((one.__name__, one, None) for one in type(value).__mro__ if is_users(one))


def _of_function(function: types.FunctionType) -> Iterator[_Entry]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # it is empty
            continue
        yield name, content, (cell, "cell_contents")
    own = vars(function)
    yield from ((f"{function.__name__}.{name}", one, (own, name)) for name, one in list(own.items()))
    # A dict may be kept there.
    defaults = function.__defaults__ or ()
    named = zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from ((name, one, None) for name, one in (*named, *(function.__kwdefaults__ or {}).items()))


def _of_file(content: dict[str, Any], met: _Met, undo: Undo | None) -> Iterator[_Entry]:
    """The globals of a file, and what they hold."""
    for name, one in list(content.items()):
        if not name.startswith("__"):
            yield from _values_of(one, name, _DEEPEST - _DEEPEST_OF_FILES, met, undo, (content, name))


def held_directly(what: Any) -> dict[str, Any]:
    """What a function has in its closure, or an object that is no module as attributes, whoever has written it."""
    function = getattr(what, "__func__", what)
    if isinstance(function, types.FunctionType):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        return {name: _get(cell, "cell_contents") for name, cell in cells}
    return {} if isinstance(what, nn.Module) else dict(getattr(what, "__dict__", {}))


def is_users(what: Any) -> bool:
    """Whether a function or a class is neither Python's nor of a package that is installed."""
    name = str(getattr(what, "__module__", None) or "")
    top = name.partition(".")[0]
    if top in ("torch", "numpy", "trimaran", "builtins") or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    file = str(getattr(sys.modules.get(name), "__file__", None) or "")
    return not any(part in file for part in ("site-packages", "dist-packages"))


def _is_small(value: Tensor | numpy.ndarray) -> bool:
    return (value.numel() if isinstance(value, Tensor) else value.size) <= _MOST_ELEMENTS


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone() if _is_small(value) else ("large", tuple(value.shape), value._version)
    if isinstance(value, numpy.ndarray):
        return value.copy() if _is_small(value) else ("large", value.shape)
    return value


def _version(value: Any) -> Any:
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, numpy.ndarray):
        return (id(value), value.tobytes()) if value.nbytes <= _MOST_ENTRIES else id(value)
    return id(value) if isinstance(value, _FUNCTIONS) else value


def _put_gradient(leaf: Tensor, gradient: Tensor | None) -> None:
    # A copy, as a backward adds to what is there.
    leaf.grad = None if gradient is None else gradient.clone()


def _restore(names: dict[str, Any], own: dict[str, Any]) -> None:
    """Give a namespace the entries that it had."""
    for name in names.keys() - own.keys():
        del names[name]
    names.update(own)


def refill(holder: Any, content: Any) -> None:
    """Give a container the content that another one has."""
    holder.clear()
    if isinstance(holder, dict | set):
        holder.update(content)
    else:
        holder.extend(content)


def _same(one: Any, other: Any) -> bool:
    # What is no number is not equal to itself.
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def equal(one: Any, other: Any, same: Callable[[Any, Any], bool] = _same) -> bool:
    """Whether two values are equal, tensors by a function."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, numpy.ndarray):
        return _same(one, other)
    return bool(one == other) or bool(one != one and other != other)


def held_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors that an object holds, in its attributes or those of what it holds; modules apart."""
    left, seen = [value], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, nn.Module | type | str | int | float):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            yield one
            continue
        inside = [getattr(one, name) for name in _slots(one) if hasattr(one, name)]
        if isinstance(one, Mapping):
            inside += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            inside += one
        inside += getattr(one, "__dict__", {}).values()
        left += reversed(inside)


def _slots(value: Any) -> Iterator[str]:
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
