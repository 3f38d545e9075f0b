"""Of a traceback, the lines that are the user's."""

import sys

import pytest
import torch
from tests.raising import raises
from torch import nn

from trimaran.base.errors import InputError
from trimaran.base.user_errors import (
    attempted,
    ends_process,
    innermost_lines,
    left,
    raised_by_user,
    told,
    user_lines,
    users,
)


def fail() -> None:
    raise LookupError("no such thing")


def caught(do) -> Exception:  # type: ignore[no-untyped-def]
    with pytest.raises(Exception) as found:  # noqa: PT011 whatever it is
        do()
    return found.value


def test_the_innermost_lines_of_the_user_are_told_with_their_code() -> None:
    lines = told(caught(fail)).splitlines()
    assert lines[0] == "LookupError: no such thing"
    assert lines[-2].endswith(f"test_user_errors.py:{fail.__code__.co_firstlineno + 1}, in fail")
    assert lines[-1] == '        raise LookupError("no such thing")'


def test_what_a_library_raises_is_told_by_the_line_that_called_it() -> None:
    error = caught(lambda: nn.Linear(2, 2)(torch.ones(1, 3)))
    assert user_lines(error)[-1] == "        error = caught(lambda: nn.Linear(2, 2)(torch.ones(1, 3)))"
    assert not raised_by_user(error)
    assert raised_by_user(caught(fail))
    assert "linear.py" in innermost_lines(error)[-1]


def test_a_function_of_the_user_that_raises_is_wrong_input() -> None:
    with raises("user.raised", match="Job.model.*LookupError"), users("Job.model"):
        fail()
    with pytest.raises(InputError, match=r"^as it is$"), users("Job.model"):
        raise InputError("as it is")


def test_what_fails_on_what_it_may_not_be_made_for_has_another_answer() -> None:
    """But what ends the process is told, with what was asked."""
    assert attempted("Job.metric", lambda: 1, 2) == 1
    assert attempted("Job.metric", lambda: [1][1], 2) == 2
    with pytest.raises(SystemExit) as found:
        attempted("Job.metric", lambda: sys.exit(3), 2)
    assert ends_process(found.value)
    assert left(found.value).figures["exited_with"] == 3
