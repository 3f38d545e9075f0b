"""What a worker does: it reads a request, loads, and hands the batch over, with no thread but its own."""

import contextlib
import ctypes
import os
import pickle
import signal
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker

from trimaran.graph.data_faults import arriving_fault, sending_fault
from trimaran.runtime.feed.packing import Packed
from trimaran.runtime.feed.parcel import Parcel, Sent
from trimaran.runtime.feed.passing import Sender
from trimaran.runtime.feed.reading import Answer, Reading, Request
from trimaran.runtime.seeds import derive_seed, seed_host

_PR_SET_PDEATHSIG = 1


def serve(
    parcel: Parcel | Sent,
    connection: Connection,
    *,
    inherited: Connection | None,
    number: int,
    count: int,
    seed: int,
    method: str,
    parent: int | None,
) -> None:
    """Answer requests until the rank hangs up.

    Args:
        parcel: has the reading, which makes a batch of a request
        connection: to the rank
        inherited: the rank's end, which a fork has too; only without it does the pipe tell of the rank's end
        number: of this worker
        count: workers of its rank
        seed: of the job
        method: by which it was started
        parent: the rank's process, whose main thread started this one; None: another thread did
    """
    # Ctrl-C is told to a rank, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler that the rank has is not for its workers, and would keep them from ending.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if inherited is not None:
        inherited.close()
    if parent is not None:
        _end_with(method, parent)
    torch.set_num_threads(1)
    own_seed = derive_seed(seed, "worker", number)
    seed_host(own_seed)
    reading = _open(parcel)
    # What `torch.utils.data.get_worker_info` tells a data set; it is not to be set by others, but read by all.
    info = torch_worker.WorkerInfo(id=number, num_workers=count, seed=own_seed, dataset=reading.dataset)
    torch_worker._worker_info = info
    sender = Sender(connection)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            request, block = pickle.loads(connection.recv_bytes())  # noqa: S301 from the rank that made this process
            sender.send(_packed(reading[request], request), block)


class _Nothing:
    """In the place of a reading that did not arrive: its answers say so."""

    dataset: Any = None

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, request: Request) -> Answer:
        fault = arriving_fault(self._error, request.samples)
        return Answer(request.key, len(request.samples), None, 0.0, 0.0, fault)


def _open(parcel: Parcel | Sent) -> Reading | _Nothing:
    try:
        reading: Reading = parcel.open()
    except Exception as error:  # noqa: BLE001 whatever an object of the user's raises, or a module of his
        return _Nothing(error)
    return reading


def _packed(answer: Answer, request: Request) -> Packed:
    try:
        return Packed(answer)
    except Exception as error:  # noqa: BLE001 whatever an object of the user's raises
        fault = sending_fault(error, answer.batch, request.samples)
        return Packed(answer._replace(batch=None, fault=fault))


def _end_with(method: str, parent: int) -> None:
    """Have the system kill this worker when the main thread of its parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Where a server forks, it and not the rank is the parent, and ends with the rank.
    if method != "forkserver" and os.getppid() != parent:
        os._exit(1)
