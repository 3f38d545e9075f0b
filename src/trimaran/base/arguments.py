"""Arguments of a class that a function does not take, told in its own words instead of by what fails inside."""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from trimaran.base.errors import InputError

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


def told_of_classes(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """A function whose arguments of a wrong class are an `InputError`.

    They are looked at where the function fails by an attribute or an operation that a value lacks, so that nothing is
    taken for wrong that works, and an error of ours stays what it is. A text in the place of a sequence is told before:
    its characters would be taken for the members.

    Example:
        >>> @told_of_classes
        ... def shout(text: str, times: int | None = None) -> str:
        ...     return text.upper()
        >>> shout(5)
        Traceback (most recent call last):
            ...
        trimaran.base.errors.InputError: shout: text must be str, got 5
    """

    @functools.wraps(function)
    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        text = _wrong(function, args, kwargs, within=True, texts=True)
        if text is not None:
            raise text
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            wrong = _wrong(function, args, kwargs, within=True)
            if wrong is None:
                raise
            raise wrong from error

    return called


def checked_classes(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """A function whose arguments of a wrong class are an `InputError` before it begins: what runs for hours.

    Example:
        >>> @checked_classes
        ... def repeat(times: int, quietly: bool = False) -> None: ...
        >>> repeat(3, quietly="no")
        Traceback (most recent call last):
            ...
        trimaran.base.errors.InputError: repeat: quietly must be bool, got 'no'
    """

    @functools.wraps(function)
    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        wrong = _wrong(function, args, kwargs)
        if wrong is not None:
            raise wrong
        return function(*args, **kwargs)

    return called


def _wrong(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    within: bool = False,
    texts: bool = False,
) -> InputError | None:
    """Of the first argument of a wrong class; None: none is, or they do not fit the signature, which Python says.

    Args:
        function: that was called
        args: of the call
        kwargs: of the call
        within: look at the fields of dataclasses too
        texts: look for texts in the place of sequences alone
    """
    try:
        signature = inspect.signature(function, eval_str=False)
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    for name, value in given.items():
        hint = _hint(function, signature.parameters[name].annotation)
        misfit = _misfit(name, value, hint, within=within, texts=texts)
        if misfit:
            return InputError(f"{function.__name__}: {misfit}", code="argument.wrong-class")
    return None


def _misfit(name: str, value: Any, hint: Any, *, within: bool, texts: bool = False) -> str:
    """That a value, or a field of it, has none of the classes of its hint; empty where it has one."""
    classes = _classes(hint)
    if isinstance(value, str) and str not in classes and any(issubclass(one, Iterable) for one in classes):
        names = " or ".join("None" if one is types.NoneType else one.__name__ for one in classes)
        return f"{name} must be {names}, got the text {value!r}"
    # True is an integer, and none that anybody means.
    misfits = isinstance(value, bool) and bool not in classes and object not in classes
    if not texts and classes and (misfits or not isinstance(value, classes)):
        names = " or ".join("None" if one is types.NoneType else one.__name__ for one in classes)
        return f"{name} must be {names}, got {value!r}"
    if not within or not dataclasses.is_dataclass(value) or isinstance(value, type):
        return ""
    try:
        hints = get_type_hints(type(value))
    except NameError:  # it names what is imported for type checkers alone
        return ""
    each = (
        _misfit(f"{name}.{field.name}", getattr(value, field.name), hints[field.name], within=True, texts=texts)
        for field in dataclasses.fields(value)
    )
    return next(filter(None, each), "")


def _hint(function: Callable[..., Any], annotation: Any) -> Any:
    """An annotation, read; anything where it names what is imported for type checkers alone."""
    probe = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        return get_type_hints(probe, globalns=getattr(function, "__globals__", {}))["value"]
    except NameError:
        return Any


def _classes(hint: Any) -> tuple[type, ...]:
    """The classes of a hint; none where it says more than classes."""
    if get_origin(hint) in (Union, types.UnionType):
        found = [_classes(one) for one in get_args(hint)]
        return tuple(one for each in found for one in each) if all(found) else ()
    origin = get_origin(hint) or hint
    if origin is float:
        return (float, int)
    return (origin,) if isinstance(origin, type) else ()
