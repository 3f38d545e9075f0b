"""A world that something else has started, as torchrun does it, of processes that are forked."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forks.client import server
from tests.ports import free_ports

LIMIT_S = 100.0


def run_world(function: Callable[..., Any], *arguments: Any, processes: int, folder: Path) -> None:
    """Call a function in each of some processes, with the variables that torchrun sets; one alone has none.

    Args:
        function: what each does
        arguments: of the function
        processes: how many
        folder: gets what each prints, as `<rank>.log`
    """
    port = free_ports()
    started = []
    try:
        for rank in range(processes):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            variables = {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if processes > 1 else {}
            environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
            with (folder / f"{rank}.log").open("wb") as output, Path(os.devnull).open("rb") as nothing:
                streams = (nothing.fileno(), output.fileno(), output.fileno())
                started.append(server().fork(function, *arguments, streams=streams, environment=environment))
        for rank, process in enumerate(started):
            assert process.wait(LIMIT_S) == 0, (folder / f"{rank}.log").read_text()
    finally:
        for process in started:
            process.end()
