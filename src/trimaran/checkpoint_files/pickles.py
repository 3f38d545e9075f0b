"""A pickle as plain data: nothing of it is called, imported or made, whatever it asks for.

    GLOBAL torch._utils _rebuild_tensor_v2, REDUCE (…)  ─▶  Named("torch._utils._rebuild_tensor_v2", (…))
    dict, OrderedDict, list, tuple, numbers, texts      ─▶  themselves

`pickle.loads` calls what a file names, so that a file is a program. Here an object is its name, what it would be made
of, and its state: who reads the file knows the few names that mean something, and the others stay names. It takes what
`torch.save` and `torch.distributed.checkpoint` write (protocols 2 to 5), refuses other instructions, and its memory is
bounded by the number of values.
"""

import struct
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from trimaran.base.errors import CorruptDataError

MOST_BYTES = 256 * 2**20
"""Of a pickle [bytes]."""

_MOST_INSTRUCTIONS = 16_000_000
_LONGEST_INTEGER = 16
_MARK = object()
_DICTS = ("collections.OrderedDict", "collections.defaultdict", "collections.Counter", "builtins.dict")


class Named:
    """What a pickle says of an object, or of a class or function.

    Attributes:
        name: module and name of its class, or of the function that would make it
        arguments: that it would be made with; None: it is the class or function itself
        state: that it would be given; None: none
        items: of a mapping that is no dict
    """

    __slots__ = ("arguments", "items", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] | None = None) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None
        self.items: dict[Any, Any] = {}

    def attribute(self, name: str) -> Any:
        """Of its state, where that is a dict; None: there is none of that name.

        Args:
            name: of the attribute
        """
        return self.state.get(name) if isinstance(self.state, dict) else None


def read_pickle(content: bytes, *, source: str, persistent: Callable[[Any], Any] | None = None) -> Any:
    """The value of a pickle.

    Args:
        content: of the pickle
        source: what to call it in errors
        persistent: makes a value of a persistent id; None: there may be none

    Returns:
        dicts, lists, tuples, sets, numbers, texts, bytes, None, and `Named`.

    Raises:
        CorruptDataError: it is none, is cut short, or has what no state of a training has

    Example:
        >>> import pickle, datetime
        >>> read_pickle(pickle.dumps({"lr": [0.1, 2], 3: (None, True)}), source="here")
        {'lr': [0.1, 2], 3: (None, True)}
        >>> read_pickle(pickle.dumps(datetime.timedelta(2)), source="here").name
        'datetime.timedelta'
    """
    machine = _Machine(content, source, persistent)
    try:
        return machine.run()
    except CorruptDataError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, struct.error, AttributeError, OverflowError) as error:
        raise CorruptDataError(
            f"{source} is damaged: its pickle cannot be read at byte {machine.at} ({type(error).__name__})",
            code="pickle.damaged",
            source=source,
        ) from error


class _Machine:
    def __init__(self, content: bytes, source: str, persistent: Callable[[Any], Any] | None) -> None:
        self._content, self._source, self._persistent = content, source, persistent
        self.at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        if len(self._content) > MOST_BYTES:
            self._refuse(f"it has {len(self._content):,} bytes, at most {MOST_BYTES:,} are read")
        done = 0
        while (code := self._take(1)[0]) != _STOP:
            done += 1
            if done > _MOST_INSTRUCTIONS:
                self._refuse("it has too many values")
            instruction = self._INSTRUCTIONS.get(code)
            if instruction is None:
                self._refuse(f"it has the instruction {bytes([code])!r}, which the state of a training does not need")
            instruction(self)
        return self._stack.pop()

    def _refuse(self, what: str) -> NoReturn:
        raise CorruptDataError(
            f"{self._source} is damaged, or not the state of a training: {what}",
            code="pickle.refused",
            source=self._source,
        )

    def _take(self, count: int) -> bytes:
        part = self._content[self.at : self.at + count]
        if len(part) < count:
            self._refuse("its pickle is cut short")
        self.at += count
        return part

    def _skip(self, count: int) -> None:
        self._take(count)

    def _line(self) -> str:
        end = self._content.index(b"\n", self.at, self.at + 1000)
        return self._take(end + 1 - self.at)[:-1].decode()

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _sized(self, form: str) -> bytes:
        return self._take(self._number(form))

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _since_mark(self) -> list[Any]:
        stack, place = self._stack, len(self._stack) - 1
        while stack[place] is not _MARK:
            # Below the first value it is an IndexError.
            place = place - 1 if place else -len(stack) - 1
        found = stack[place + 1 :]
        del stack[place:]
        return found

    def _last(self, count: int) -> tuple[Any, ...]:
        found = tuple(self._stack[-count:])
        if len(found) < count:
            self._refuse("its pickle lacks values")
        del self._stack[-count:]
        return found

    def _integer(self, size: int) -> None:
        if size > _LONGEST_INTEGER:
            self._refuse(f"an integer of {size} bytes")
        self._push(int.from_bytes(self._take(size), "little", signed=True))

    def _global(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            self._refuse("a name that is no text")
        self._push(Named(f"{module}.{name}"))

    def _make(self, called: Any, arguments: Any) -> None:
        if not isinstance(called, Named) or called.arguments is not None or not isinstance(arguments, tuple):
            self._refuse("it calls what is no class or function")
        if called.name in _DICTS:
            made: Any = {}
            pairs = arguments[0] if arguments else ()
            pairs = pairs.items() if isinstance(pairs, dict) else pairs
            for pair in () if isinstance(pairs, Named) else pairs:
                self._put(made, pair[0], pair[1])
            self._push(made)
        else:
            self._push(Named(called.name, arguments))

    def _put(self, target: Any, key: Any, value: Any) -> None:
        # A tuple of tuples of tuples … as a key would be hashed by the interpreter, as deep as it is.
        if not isinstance(key, str | int | float | bytes | Named | None):
            self._refuse(f"a key of a dict that is a {type(key).__name__}")
        if isinstance(target, Named):
            target = target.items
        if not isinstance(target, dict):
            self._refuse("it sets items of what is no dict")
        target[key] = value

    def _set_items(self, found: list[Any]) -> None:
        if len(found) % 2:
            self._refuse("a key of a dict without a value")
        for place in range(0, len(found), 2):
            self._put(self._stack[-1], found[place], found[place + 1])

    def _append(self, found: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(found)
        elif not isinstance(target, Named):
            self._refuse("it appends to what is no list")

    def _build(self) -> None:
        state = self._stack.pop()
        # A dict may have attributes, such as the versions in that of a module.
        if isinstance(self._stack[-1], Named):
            self._stack[-1].state = state

    def _persist(self) -> None:
        if self._persistent is None:
            self._refuse("it refers to another file")
        self._push(self._persistent(self._stack.pop()))

    def _memoize(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    _INSTRUCTIONS: ClassVar[dict[int, Callable[["_Machine"], None]]] = {
        0x80: lambda self: None if self._number("<B") <= 5 else self._refuse("a protocol above 5"),
        0x95: lambda self: self._skip(8),  # the size of a frame, whose content follows
        ord("("): lambda self: self._push(_MARK),
        ord("N"): lambda self: self._push(None),
        0x88: lambda self: self._push(True),
        0x89: lambda self: self._push(False),
        ord("J"): lambda self: self._push(self._number("<i")),
        ord("K"): lambda self: self._push(self._number("<B")),
        ord("M"): lambda self: self._push(self._number("<H")),
        0x8A: lambda self: self._integer(self._number("<B")),
        ord("G"): lambda self: self._push(self._number(">d")),
        ord("X"): lambda self: self._push(self._sized("<I").decode("utf-8", "surrogatepass")),
        0x8C: lambda self: self._push(self._sized("<B").decode("utf-8", "surrogatepass")),
        0x8D: lambda self: self._push(self._sized("<Q").decode("utf-8", "surrogatepass")),
        ord("U"): lambda self: self._push(self._sized("<B").decode()),
        ord("B"): lambda self: self._push(self._sized("<I")),
        ord("C"): lambda self: self._push(self._sized("<B")),
        0x8E: lambda self: self._push(self._sized("<Q")),
        ord(")"): lambda self: self._push(()),
        0x85: lambda self: self._push(self._last(1)),
        0x86: lambda self: self._push(self._last(2)),
        0x87: lambda self: self._push(self._last(3)),
        ord("t"): lambda self: self._push(tuple(self._since_mark())),
        ord("]"): lambda self: self._push([]),
        ord("l"): lambda self: self._push(self._since_mark()),
        ord("a"): lambda self: self._append([self._stack.pop()]),
        ord("e"): lambda self: self._append(self._since_mark()),
        ord("}"): lambda self: self._push({}),
        ord("s"): lambda self: self._set_items(list(self._last(2))),
        ord("u"): lambda self: self._set_items(self._since_mark()),
        0x8F: lambda self: self._push(Named("builtins.set", ())),
        0x90: lambda self: self._append(self._since_mark()),
        0x91: lambda self: self._push(Named("builtins.frozenset", tuple(self._since_mark()))),
        ord("c"): lambda self: self._global(self._line(), self._line()),
        0x93: lambda self: self._global(*self._last(2)),
        ord("R"): lambda self: self._make(*self._last(2)),
        0x81: lambda self: self._make(*self._last(2)),
        ord("b"): lambda self: self._build(),
        ord("Q"): lambda self: self._persist(),
        ord("q"): lambda self: self._memoize(self._number("<B")),
        ord("r"): lambda self: self._memoize(self._number("<I")),
        0x94: lambda self: self._memoize(len(self._memo)),
        ord("h"): lambda self: self._push(self._memo[self._number("<B")]),
        ord("j"): lambda self: self._push(self._memo[self._number("<I")]),
    }


_STOP = ord(".")
