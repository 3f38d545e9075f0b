"""The command that follows an answer, with the options of the answered one that both have."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from typing import Any

from trimaran.base.secrets import without_secrets
from trimaran.cli.forms import words_of
from trimaran.cli.options import PinOptions

_PRINTED = ("--verbose", "--quiet", "--json")
"""How much is told of an answer is no part of the question."""

_WRITTEN = ("--output", "--plot", "--trace")
"""Files that an answer is written to."""

DECIDED = (
    *("--devices", "--batch", "--objective", "--execution", "--curve", "--batches"),
    *(f"--{field.name.replace('_', '-')}" for field in fields(PinOptions)),
)
"""What a plan file says, so that a command that takes one is not told it again."""

_answered: dict[str, Any] = {}


def begin_command(context: Any) -> None:
    """Say which command is answered now.

    Args:
        context: of the call, as typer has it
    """
    _answered["context"] = context


def following(
    command: str,
    subject: str | None = None,
    *,
    without: Sequence[str] = (),
    **more: str | int | float | bool | None,
) -> list[str]:
    """Words of the next command: its subject, and what the person who called this one has said, as far as it takes it.

    Args:
        command: of this program
        subject: of the next command; None: that of this one
        without: options that are not passed on, such as "--output"
        more: options of the next command; None or False: not given

    Returns:
        Words for a shell.

    Raises:
        KeyError: no such command, or none is answered
    """
    context = _answered["context"]
    other = context.find_root().command.commands[command]
    asked = [one for one in context.command.params if _is_given(context, one)]
    given = {_name(one): context.params.get(one.name) for one in asked}
    named = [str(given[_name(one)]) for one in asked if one.param_type_name == "argument"]
    words = [*words_of(command), *([subject] if subject is not None else named)]
    said = {f"--{name.replace('_', '-')}": value for name, value in more.items()}
    for one in other.params:
        name = _name(one)
        if one.param_type_name == "option" and name not in (*without, *_PRINTED):
            words += _words(one, said.get(name) if name in said else given.get(name))
    return words


def asked_command() -> str:
    """The command that is answered, for a shell: what was asked, without how and where the answer is told."""
    return shlex.join(without_secrets(following(_answered["context"].command.name, without=_WRITTEN)))


def _name(parameter: Any) -> str:
    return str(max(parameter.opts, key=len))


def _is_given(context: Any, parameter: Any) -> bool:
    source = context.get_parameter_source(parameter.name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def _words(option: Any, value: Any) -> list[str]:
    """An option as one types it; nothing where it is not given."""
    name = _name(option)
    if value is None or (value is False and not option.secondary_opts):
        return []
    if value is True:
        return [name]
    if value is False:
        return [str(option.secondary_opts[0])]
    several = value if isinstance(value, list | tuple) else [value]
    return [word for one in several for word in (name, str(one.value if isinstance(one, Enum) else one))]
