"""A pickle as plain data: nothing of it is called, imported or made, whatever it asks for.

    GLOBAL torch._utils _rebuild_tensor_v2, REDUCE (…)  ─▶  Named("torch._utils._rebuild_tensor_v2", (…))
    dict, OrderedDict, list, tuple, numbers, texts      ─▶  themselves

`pickle.loads` calls what a file names, so that a file is a program. Here an object is its name, what it would be made
of, and its state: who reads the file knows the few names that mean something, and the others stay names. It takes what
`torch.save` and `torch.distributed.checkpoint` write (protocols 2 to 5), refuses other instructions, and its memory is
bounded by the number of values.
"""

import pickletools
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from trimaran.base.errors import CorruptDataError

MOST_BYTES = 256 * 2**20
"""Of a pickle [bytes]."""

_MOST_INSTRUCTIONS = 16_000_000
_LARGEST_INTEGER = 1 << 127
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
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
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
        for done, (code, argument, at) in enumerate(pickletools.genops(self._content)):
            self.at = at or 0
            if done > _MOST_INSTRUCTIONS:
                self._refuse("it has too many values")
            if code.name == "STOP":
                break
            instruction = self._INSTRUCTIONS.get(code.name)
            if instruction is None:
                self._refuse(f"it has the instruction {code.name}, which the state of a training does not need")
            instruction(self, argument)
        return self._stack.pop()

    def _refuse(self, what: str) -> NoReturn:
        raise CorruptDataError(
            f"{self._source} is damaged, or not the state of a training: {what}",
            code="pickle.refused",
            source=self._source,
        )

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

    def _integer(self, value: int) -> None:
        if not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
            self._refuse("an integer of more than 16 bytes")
        self._push(value)

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

    _INSTRUCTIONS: ClassVar[dict[str, Callable[["_Machine", Any], None]]] = {
        "PROTO": lambda self, version: None if version <= 5 else self._refuse("a protocol above 5"),
        "FRAME": lambda self, _: None,  # the size of what follows
        "MARK": lambda self, _: self._push(_MARK),
        "NONE": lambda self, _: self._push(None),
        "NEWTRUE": lambda self, _: self._push(True),
        "NEWFALSE": lambda self, _: self._push(False),
        "LONG1": _integer,
        **dict.fromkeys(("BININT", "BININT1", "BININT2", "BINFLOAT", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _push),
        **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _push),
        "SHORT_BINSTRING": lambda self, text: self._push(text.encode("latin-1").decode()),
        "EMPTY_TUPLE": lambda self, _: self._push(()),
        "TUPLE1": lambda self, _: self._push(self._last(1)),
        "TUPLE2": lambda self, _: self._push(self._last(2)),
        "TUPLE3": lambda self, _: self._push(self._last(3)),
        "TUPLE": lambda self, _: self._push(tuple(self._since_mark())),
        "EMPTY_LIST": lambda self, _: self._push([]),
        "LIST": lambda self, _: self._push(self._since_mark()),
        "APPEND": lambda self, _: self._append([self._stack.pop()]),
        "APPENDS": lambda self, _: self._append(self._since_mark()),
        "EMPTY_DICT": lambda self, _: self._push({}),
        "SETITEM": lambda self, _: self._set_items(list(self._last(2))),
        "SETITEMS": lambda self, _: self._set_items(self._since_mark()),
        "EMPTY_SET": lambda self, _: self._push(Named("builtins.set", ())),
        "ADDITEMS": lambda self, _: self._append(self._since_mark()),
        "FROZENSET": lambda self, _: self._push(Named("builtins.frozenset", tuple(self._since_mark()))),
        "GLOBAL": lambda self, name: self._global(*name.split(" ", 1)),
        "STACK_GLOBAL": lambda self, _: self._global(*self._last(2)),
        "REDUCE": lambda self, _: self._make(*self._last(2)),
        "NEWOBJ": lambda self, _: self._make(*self._last(2)),
        "BUILD": lambda self, _: self._build(),
        "BINPERSID": lambda self, _: self._persist(),
        **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _memoize),
        "MEMOIZE": lambda self, _: self._memoize(len(self._memo)),
        **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda self, number: self._push(self._memo[number])),
    }
