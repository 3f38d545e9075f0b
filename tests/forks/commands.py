"""The `trimaran` command, forked from a server in the place of a new interpreter."""

import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.forks.client import Forked, Server, forked_ranks, server


def run_command(
    *arguments: str,
    folder: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    be: Callable[..., None] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """As `subprocess.run` of `python -m trimaran`, its output captured, in a fork; its ranks are forks, too.

    Args:
        arguments: of the command
        folder: where it works
        environment: its variables, all of them
        timeout_s: how long it may take [s]
        be: becomes the command; None: `be_command`
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        descriptor = server().admit()
        with Path(os.devnull).open("rb") as nothing:
            command = server().fork(
                be or be_command,
                *arguments,
                streams=(nothing.fileno(), output.fileno(), errors.fileno()),
                descriptors=[descriptor],
                environment=environment,
                folder=folder,
            )
        os.close(descriptor)
        try:
            code = command.wait(timeout_s)
        finally:
            command.end()
        told = []
        for stream in (output, errors):
            stream.seek(0)
            told.append(stream.read())
    return subprocess.CompletedProcess(["trimaran", *arguments], code, *told)


def begin_module(module: str, *arguments: str, folder: Path, environment: Mapping[str, str], errors: int) -> Forked:
    """As `subprocess.Popen` of `python -m module`, in a fork; the ranks that it launches are forks, too.

    Args:
        module: what is run
        arguments: of the module
        folder: where it works
        environment: its variables, all of them
        errors: descriptor of where its standard error goes; what it prints goes nowhere
    """
    descriptor = server().admit()
    with Path(os.devnull).open("r+b") as nothing:
        begun = server().fork(
            be_module,
            module,
            *arguments,
            streams=(nothing.fileno(), nothing.fileno(), errors),
            descriptors=[descriptor],
            environment=environment,
            folder=folder,
        )
    os.close(descriptor)
    return begun


def be_command(descriptor: int, *arguments: str) -> None:
    """What `python -m trimaran` does, in the process that is to be it."""
    be_module(descriptor, "trimaran", *arguments)


def be_module(descriptor: int, module: str, *arguments: str) -> None:
    """What `python -m module` does, in the process that is to be it."""
    sys.argv = [module, *arguments]
    sys.path.insert(0, str(Path.cwd()))
    with forked_ranks(Server(socket.socket(fileno=descriptor))):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
