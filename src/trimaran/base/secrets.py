"""Secrets of a command line and of the environment, kept out of what is written and sent.

A script's words and variables may hold tokens and passwords. They are known by the names that they are given under
(`--api-key`, `HF_TOKEN=`, `auth.token=`), by their place in a URL, or by their form. What is written to a file or shown
has "***" in their place; a page, which is made to be sent, has none of a script's own words.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

MASK = "***"
_SECRET = re.compile(
    r"secret|passw|passphrase|credential|authorization|webhook|token$|(api|access|private|secret)-?key(-id)?$"
    r"|(^|-)(key|auth|pat|pwd|(ssh)?pass|creds?|otp|jwt|sig|signature|cookie|sas|bearer)$"
)
_PLACE = re.compile(r"-(file|path|dir|folder|env|name)$")
"""Ends of names of what says where a secret is."""
_NAMED = re.compile(r"([A-Za-z][\w.-]*)[\"']?\s*[=:]\s*")
_FORMS = re.compile(
    r"(?<=://)[^/\s]*(?=@)|(?<=\w:)[^\s/@:]+(?=@(?!sha256:)[\w.])|\b(hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[a-z]-|eyJ(?=[\w-]+\.[\w-]+\.))[\w.-]{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
)
"""What stands before the host in a URL, a password in "me:password@host"; tokens of Hugging Face, GitHub, GitLab,
OpenAI, Slack, AWS and JSON Web."""
_LOGIN = re.compile(r"(?:.*[-_.])?(?:user|username|login|userpwd|u)=[^\s:/=]+(?<!\.py):([^\s/].*)", re.IGNORECASE)
"""A user and a password that stand together, as curl's `--user me:password`."""
_SHORTEST = 8
"""Shorter values are not looked for in texts: "a" is in every one of them."""


def without_secrets(words: Sequence[str]) -> list[str]:
    """Words of a command line, with a mask for the values that are secret by their names.

    Args:
        words: of a command line; one with blanks may be such a line itself

    Example:
        >>> without_secrets(["train.py", "--api-key", "abc", "HF_TOKEN=def", "https://me:ghi@host/x", "--tokens", "1T"])
        ['train.py', '--api-key', '***', 'HF_TOKEN=***', 'https://***@host/x', '--tokens', '1T']
    """
    return [_FORMS.sub(MASK, shown) + (MASK if value else "") for shown, value in _values(words)]


def masked(text: Any) -> Any:
    """A text, such as an error or what a script printed, without the secrets that this process was told.

    Args:
        text: what is none stays as it is
    """
    if isinstance(text, str):
        told = [*sys.argv, *(f"{name}={value}" for name, value in os.environ.items())]
        for _, value in _values(told):
            text = text.replace(value, MASK) if len(value) >= _SHORTEST else text
        text = _FORMS.sub(MASK, text)
    return text


def page_command(command: str) -> str:
    """A command as a page shows it, which is made to be sent: of a script's own words none.

    Args:
        command: for a shell

    Example:
        >>> page_command("trimaran observe -- torchrun --nproc-per-node 2 train.py --data s3://ours --seed 1")
        'trimaran observe -- torchrun --nproc-per-node 2 train.py …'
    """
    try:
        words = without_secrets(shlex.split(command))
    except ValueError:
        return command.partition(" ")[0]
    if words[:1] == ["trimaran"] and words[1:2] not in (["observe"], ["rehearse"]):
        return without_secrets([command])[0]
    scripts = [place for place, word in enumerate(words) if word.endswith(".py") or words[place - 1 : place] == ["-m"]]
    end = scripts[0] if scripts else words.index("--") + 1 if "--" in words else 0
    return shlex.join(words[: end + 1]) + (" …" if words[end + 1 :] else "")


def _is_secret(name: str) -> bool:
    # The variable PWD is a folder.
    plain = re.sub(r"[_.]|(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    return name != "PWD" and _SECRET.search(plain) is not None and _PLACE.search(plain) is None


def _values(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word in two parts: what may be shown, and what is secret by its name."""
    before = ""
    for word in words:
        ends = (found.end() for found in _NAMED.finditer(word) if _is_secret(found[1]))
        option, before = before, word if re.fullmatch(r"--?[A-Za-z][\w.-]*", word) else ""
        if option and not before and _is_secret(option.lstrip("-")):
            yield "", word
        elif login := _LOGIN.fullmatch(f"{option}={word}" if option and not before else word):
            yield word[: login.start(1) - login.end()], login[1]
        elif (end := next(ends, None)) is not None:
            yield word[:end], word[end:]
        elif re.search(r"\s", word):
            parts = re.split(r"(\s+)", word)
            parts[::2] = without_secrets(parts[::2])
            yield "".join(parts), ""
        else:
            yield word, ""
