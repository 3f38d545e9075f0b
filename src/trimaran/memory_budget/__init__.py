"""Memory virtualization around a training loop that knows nothing of it.

    with trimaran.virtual_memory(budget="12GiB") as memory:
        for batch, target in data:
            optimizer.zero_grad()
            loss(model(batch), target).backward()
            optimizer.step()
    print(memory.report())

The first steps are recorded, then each step runs under a plan that keeps the peak within the budget: what autograd
saves is kept, offloaded to the host, or recomputed. Gradients are those of the plain loop, bit for bit.

No plan keeps a budget below the minimum memory, which is what one operation needs. Modules that run in parts of the
batch lower it: `with splitting(model, [split]), virtual_memory(budget=...)`, with a split of `trimaran memory`.
"""

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self, get_args

from trimaran.base.arguments import checked_classes
from trimaran.base.errors import ExecutionError, InputError, TrimaranError
from trimaran.base.system import needs_linux
from trimaran.base.units import parse_bytes
from trimaran.base.user_errors import is_users
from trimaran.machine.detect import spare_host_bytes
from trimaran.memory_budget.loop import Virtualizer
from trimaran.memory_budget.options import Budget, OnViolation, OptimizerState, Options, parse_budget, parse_size
from trimaran.program.memory import check_codec_runs, parse_codec
from trimaran.program.strategy import Strategy
from trimaran.rehearsal.launch import MARK
from trimaran.report.virtual_memory import MemoryReport
from trimaran.user_code.model import HOOKED

SMALLEST = "256KiB"
"""Smaller storages are kept, unless a user says otherwise."""


@checked_classes
def virtual_memory(
    budget: str | int,
    *,
    host: str | int | None = None,
    smallest: str | int = SMALLEST,
    limit_s: float | None = None,
    on_violation: OnViolation = "replan",
    enforce: bool = False,
    account: bool = False,
    optimizer_state: OptimizerState = "auto",
    recompute: bool = True,
    codec: str | None = None,
) -> "VirtualMemory":
    """Keep the memory of a training loop within a budget.

    Use it as a context around the loop, in the thread that trains.

    Recomputation repeats recorded operations with the numbers that they had. Each recomputed storage is compared with a
    sum over the bytes that were there: all of a small one, 2048 places of a large one. If the model or a number in it
    has changed, the step goes on without recomputation where this is seen in the forward; where it is seen in the
    backward, it raises, on a GPU before the optimizer's update.

    Args:
        budget: what a step may hold on the device at once, parameters, gradients and optimizer state included: a size
            such as "12GiB", a million bytes or more, or a share such as "50%" of the peak without a plan of the first
            step that is planned. A larger batch that no plan keeps within it is warned of, and moves its storages on
            demand
        host: most that may lie on the host at once, as `budget` is given, or 0; None: what it has to spare
        smallest: smaller storages are kept
        limit_s: most time for planning [s]; None: as long as it takes, so that plans do not depend on the machine
        on_violation: "replan": plan again with less when a GPU held more than the budget; "note": only say so in the
            report
        enforce: limit the allocator of a GPU to the budget, so that more is an out-of-memory error
        account: count live bytes on a CPU, operation by operation; slow, for tests
        optimizer_state: "device": it stays there; "host": it lives on the host, and visits the device in parts while
            it is updated; "auto": on the host if otherwise no plan keeps the budget, and the optimizer allows it
        recompute: whether storages may be recomputed; False: bytes are only moved, for models that change numbers or
            weights between the forward and the backward, or all the time
        codec: what is offloaded may be coded, where that is faster by the rates measured here: "sparse" (exact, of what
            comes after a ReLU), "sparse:2.6" with how many times fewer bytes to expect, or "bf16" (rounds, so gradients
            differ); on a CPU only. None: nothing is

    Returns:
        A context; `report()` tells what it does.

    Raises:
        InputError: a value that is none of these
        EnvironmentProblem: this is not Linux

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> with virtual_memory(budget="1GiB") as memory:
        ...     for _ in range(3):
        ...         model(torch.ones(8, 4)).sum().backward()
        >>> memory.report().fits
        True
    """
    needs_linux("virtual_memory", instead="`trimaran memory` says here what a budget costs")
    if on_violation not in get_args(OnViolation):
        raise InputError(
            f'on_violation: expected "replan" or "note", got {on_violation!r}',
            code="virtual-memory.bad-on-violation",
            on_violation=on_violation,
        )
    if optimizer_state not in get_args(OptimizerState):
        raise InputError(
            f'optimizer_state: expected "device", "host" or "auto", got {optimizer_state!r}',
            code="virtual-memory.bad-optimizer-state",
            optimizer_state=optimizer_state,
        )
    if limit_s is not None and not limit_s > 0:
        raise InputError(
            f"limit_s: expected more than 0 seconds for planning, got {limit_s}",
            code="virtual-memory.bad-limit",
            limit_s=limit_s,
        )
    options = Options(
        budget=parse_budget(budget),
        host_bytes=None if host is None else parse_bytes(host),
        smallest_bytes=parse_size(smallest, "smallest"),
        limit_s=limit_s,
        on_violation=on_violation,
        enforce=enforce,
        account=account,
        optimizer_state=optimizer_state,
        recompute=recompute,
        codec=None if codec is None else parse_codec(codec),
    )
    return VirtualMemory(options)


class VirtualMemory:
    """The context that `virtual_memory` gives."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._machine: Virtualizer | None = None
        self._thread = 0

    def report(self) -> MemoryReport:
        """The report so far, also after the end.

        Raises:
            ExecutionError: it was not entered yet
        """
        if self._machine is None:
            raise ExecutionError(
                "nothing to report yet: enter the context first, as in `with virtual_memory(...):`",
                code="virtual-memory.not-entered",
            )
        return self._machine.report()

    def __enter__(self) -> Self:
        if self._machine is not None:
            raise InputError(
                "this context was entered before: make a new one with virtual_memory(...)",
                code="virtual-memory.entered-before",
            )
        if MARK in os.environ:
            raise InputError(
                "virtual_memory times operations and copies on its device, and a rehearsal has none: rehearse without "
                "it to see what a step needs; `trimaran memory JOB --device NAME --budget SIZE` plans it",
                code="virtual-memory.rehearsed",
            )
        if not HOOKED.acquire(blocking=False):
            raise InputError(
                "virtual_memory is entered already in this process: one context spans all that trains, so leave the "
                "outer one first",
                code="virtual-memory.nested",
            )
        try:
            self._thread = threading.get_ident()
            self._machine = Virtualizer(self._options)
            self._machine.open()
        except BaseException:
            HOOKED.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.get_ident() != self._thread:
            raise ExecutionError(
                "leave virtual_memory in the thread that entered it: its hooks belong to that thread",
                code="virtual-memory.other-thread",
            )
        if error is not None and _refuses_hooks(trace):
            error.add_note(
                "virtual_memory puts its hooks of saved tensors away for this call, which refuses any, but the loop "
                "has others: run torch.func transforms, and what disables these hooks, outside of them"
            )
        if isinstance(error, TrimaranError):
            error.__traceback__ = _of_user(trace)
        try:
            if self._machine is not None:
                self._machine.close()
        finally:
            HOOKED.release()


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """Of a traceback what is the user's: what lies between a loop and its refusal are torch's calls and ours."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    for frame in reversed(frames):
        if is_users(frame.tb_frame.f_code.co_filename):
            trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return trace


def _refuses_hooks(trace: TracebackType | None) -> bool:
    """Whether an error comes from torch's switch that turns hooks of saved tensors off."""
    while trace is not None and trace.tb_frame.f_code.co_name != "disable_saved_tensors_hooks":
        trace = trace.tb_next
    return trace is not None


def planned_memory(
    strategy: Strategy, *, local_ranks: int, device: str = "cpu"
) -> AbstractContextManager[VirtualMemory | None]:
    """Virtual memory around the training of one rank, where the strategy has a memory budget.

    Args:
        strategy: what is run
        local_ranks: of the job on this machine; each has its part of the host's memory
        device: of the rank

    Raises:
        InputError: a codec on a GPU, whose copy engine does not code
    """
    if strategy.memory_bytes is None:
        return nullcontext()
    check_codec_runs(strategy.codec, on_gpu=device != "cpu")
    return VirtualMemory(
        Options(
            budget=Budget(nbytes=strategy.memory_bytes),
            host_bytes=spare_host_bytes(local_ranks),
            smallest_bytes=parse_size(SMALLEST, "smallest"),
            limit_s=None,
            on_violation="replan",
            enforce=False,
            account=False,
            optimizer_state="auto",
            whole_steps=strategy.pp > 1,
            codec=strategy.codec,
        )
    )
