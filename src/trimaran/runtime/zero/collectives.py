"""The collectives of FSDP2, run and recorded by the runtime.

FSDP2 takes an object for its gathers and one for its scatters. Those of this module start the same collectives. On a
CPU they do not wait for them, so that they overlap with compute there as they do on a GPU: a gather is waited for where
FSDP2 needs it, a scatter at the end of the backward. Until then the shards of gradients must not be read.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trimaran.base.timeline import COMMUNICATION, WAIT
from trimaran.program.types import Kind
from trimaran.runtime.communication.channels import all_gather, reduce_scatter
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.streams import Stamp


class Notes:
    """The position of a replica in its step, and the record of its gathers and scatters, under the program's tokens.

    Attributes:
        recorder: gets their spans; None: nothing is written down
        microbatch: number of the microbatch under way
        backward: its backward is under way, not its forward
    """

    def __init__(self) -> None:
        self.recorder: RunRecorder | None = None
        self.microbatch = 0
        self.backward = False
        self._scattering: list[_WatchedWork] = []

    def token(self, kind: Kind, unit: int) -> str:
        """The token of a gather or a scatter of a unit that happens now."""
        letter = "s" if kind is Kind.REDUCE_SCATTER else "v" if self.backward else "u"
        return f"0{kind}{self.microbatch}#{letter}{unit}"

    def stamp(self) -> Stamp:
        """This moment."""
        return self.recorder.stamp() if self.recorder else 0

    def moved(self, token: str, start: Stamp, nbytes: int) -> None:
        """Write down that a collective has just ended."""
        if self.recorder:
            self.recorder.add(token, COMMUNICATION, start, self.recorder.stamp(), nbytes)

    def waited(self, token: str, start: Stamp) -> None:
        """Write down that the rank has just stopped waiting for one."""
        if self.recorder:
            self.recorder.add(token, WAIT, start, self.recorder.stamp())

    def scattering(self, work: dist.Work, token: str, nbytes: int) -> None:
        """Keep a scatter that has just been started, once those before it are done: what they send is freed then."""
        self.settle()
        self._scattering.append(_WatchedWork(work, self, token, nbytes))

    def settle(self) -> None:
        """Wait for all scatters."""
        for work in self._scattering:
            work.wait()
        self._scattering.clear()


class _WatchedWork(dist.Work):
    """A collective under way, which is written down when it is waited for."""

    def __init__(self, work: dist.Work, notes: Notes, token: str, nbytes: int) -> None:
        super().__init__()
        self._work = work
        self._notes = notes
        self._token = token
        self._nbytes = nbytes
        self._start = notes.stamp()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for it."""
        before = self._notes.stamp()
        done: bool = self._work.wait() if timeout is None else self._work.wait(timeout)
        self._notes.moved(self._token, self._start, self._nbytes)
        self._notes.waited(self._token, before)
        return done


class _UnitCollective:
    """A collective of one unit.

    Args:
        unit: its number
        notes: hears of each
    """

    def __init__(self, unit: int, notes: Notes) -> None:
        self._unit = unit
        self._notes = notes

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Room for what is gathered, scattered, or summed."""
        return torch.empty(*size, dtype=dtype, device=device)


class UnitGather(_UnitCollective):
    """The all-gathers of one unit."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Start to gather."""
        notes, nbytes = self._notes, output_tensor.nbytes
        token = notes.token(Kind.ALL_GATHER, self._unit)
        if output_tensor.device.type == "cpu":
            work = all_gather(output_tensor, input_tensor, group=group, async_op=True)
            return _WatchedWork(work, notes, token, nbytes)
        start = notes.stamp()
        gathering: dist.Work | None = all_gather(output_tensor, input_tensor, group=group, async_op=async_op)
        notes.moved(token, start, nbytes)
        return gathering


class UnitScatter(_UnitCollective):
    """The reduce-scatters of one unit."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Add up over the replicas; each keeps its share."""
        notes = self._notes
        token = notes.token(Kind.REDUCE_SCATTER, self._unit)
        if input_tensor.device.type == "cpu":
            work = reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=True)
            notes.scattering(work, token, input_tensor.nbytes)
            return None
        start = notes.stamp()
        scattering: dist.Work | None = reduce_scatter(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )
        notes.moved(token, start, input_tensor.nbytes)
        return scattering
