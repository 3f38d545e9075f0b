"""What one rehearsed rank did, in the order in which its host asked for it.

A record is plain data: tables of what repeats (kernels, lines, modules, groups), collectives, and events that point
into them. Memory, agreement and time are read from it; none of them needs torch.

    events   Take 7, Run 3 on stream 0, Take 8, Give 7, Issue 0, Run 4, Wait 0 on stream 0, …
                       │                                 │
    kernels  … 3: aten.mm (4096×1024 · 1024×512)         │
    collectives                                          0: all_gather of group "1", 8 MiB, line 5

Streams, blocks of memory and events of the device are numbers that the rank gave in order; stream 0 is the default one.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from trimaran.base.decoding import decode_typed
from trimaran.base.files import put_in_place, read_bytes

VERSION = 1

MOST_BYTES = 2**31
"""Of a record's file; one of 126 layers and three steps takes some tens of megabytes."""

Purpose = Literal[
    "parameter", "gradient", "optimizer", "activation", "temporary", "communication", "input", "workspace", "other"
]
"""What a block of memory is for. Temporary: made and given back within a part of the step; workspace: of libraries."""

Part = Literal["setup", "forward", "backward", "update"]
"""Part of the step in which something happens; setup: before the first forward."""

Ending = Literal["finished", "steps", "seconds", "exit", "error", "invented", "killed"]
"""How a rank ended: its script returned; the steps or seconds asked for were over; it left by itself with a status; an
exception reached the top; it asked for a value that cannot be invented; it was killed from outside."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of the user's code.

    Attributes:
        file: path, relative to the script's folder or to the folder of installed packages where it is in one
        line: number, from 1
        function: that the line is in; "<module>" outside of any
        own: whether it is the user's, not of an installed package
    """

    file: str
    line: int
    function: str
    own: bool = True


class TensorForm(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor without its data.

    Attributes:
        shape: sizes
        dtype: torch's name without "torch.", such as "bfloat16"
        device: "cuda" or "cpu"
        strides: in elements; None: contiguous
    """

    shape: tuple[int, ...]
    dtype: str
    device: str = "cuda"
    strides: tuple[int, ...] | None = None


class Kernel(msgspec.Struct, frozen=True, array_like=True):
    """An operation with the tensors that it is asked for; equal ones are noted once.

    Attributes:
        name: of the operator and its overload, such as "aten.mm.default"
        inputs: tensors among the arguments, lists of tensors flattened, in order
        outputs: tensors of the result
        arguments: what else was given, as JSON, by the argument's name
        flops: multiplications and additions, 0 where it has no product [FLOP]
        tf32: torch was set to round a product in fp32 to TF32, where the device has it
        share: of that work; below 1 where a remedy does it in parts [0..1]
    """

    name: str
    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...]
    arguments: dict[str, Any]
    flops: int
    tf32: bool = False
    share: float = 1.0


class Group(msgspec.Struct, frozen=True):
    """A process group as this rank made it.

    Attributes:
        name: torch's, unique within a rank
        ranks: global ranks, in the group's order
        description: the script's, such as the name of a mesh dimension
        order: how many groups this rank had asked for before, those that it is no member of included
        lines: where it was made, innermost first
    """

    name: str
    ranks: tuple[int, ...]
    description: str
    order: int
    lines: int


class Collective(msgspec.Struct, frozen=True):
    """One collective, message or exchange of objects.

    Attributes:
        operation: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
            "scatter", "barrier", "send", "recv"; those of Python objects end in "_object". Forms of one operation
            (into one tensor, of a list, coalesced) have one name
        reduction: "sum", "avg", "max", "min", "product", "premul_sum", ""
        group: name of the group
        inputs: tensors that this rank gives
        outputs: tensors that it gets
        nbytes: of what NCCL calls the message: the larger of both sides [bytes]
        peer: global rank of the other side or of the root; -1: none
        stream: on which its result is waited for, or that it was issued from
        asynchronous: whether the host goes on and waits by `Wait`
        coalesced: number of the batch it was issued in, as of batch_isend_irecv; -1: alone
        sizes: rows for each member where they differ (all_to_all), as given and as got; empty otherwise
        lines: where it was asked for, innermost first
        module: whose forward or backward asked for it
        part: of the step
        waits_when_used: whether its result is waited for by itself when it is first used, so that none without a wait
            is read
        value: digest of the values that this rank gives, where they are small and known; "" else
    """

    operation: str
    reduction: str
    group: str
    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...]
    nbytes: int
    peer: int
    stream: int
    asynchronous: bool
    coalesced: int
    sizes: tuple[tuple[int, ...], ...]
    lines: int
    module: int
    part: Part
    waits_when_used: bool = False
    value: str = ""


class Take(msgspec.Struct, frozen=True, tag="take", array_like=True, gc=False):
    """A block is allocated: `block`, its bytes as asked for, stream, purpose as far as known now, place in the code."""

    block: int
    nbytes: int
    stream: int
    purpose: Purpose
    lines: int
    module: int
    part: Part


class Give(msgspec.Struct, frozen=True, tag="give", array_like=True, gc=False):
    """A block is given back to the allocator."""

    block: int


class Use(msgspec.Struct, frozen=True, tag="use", array_like=True, gc=False):
    """A block is used on another stream than its own (`record_stream`)."""

    block: int
    stream: int


class Name(msgspec.Struct, frozen=True, tag="name", array_like=True, gc=False):
    """What a block is for has become known."""

    block: int
    purpose: Purpose


class Run(msgspec.Struct, frozen=True, tag="run", array_like=True, gc=False):
    """A kernel is launched: index of it, stream, place in the code."""

    kernel: int
    stream: int
    lines: int
    module: int
    part: Part


class Moves(msgspec.Struct, frozen=True, tag="moves", array_like=True):
    """Blocks that the kernel before reads and writes, as its tensors are ordered; only of scripts that compile.

    Attributes:
        compiled: a compiler has the kernel, which may fuse it with others
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    compiled: bool


class Issue(msgspec.Struct, frozen=True, tag="issue", array_like=True, gc=False):
    """A collective is issued; NCCL runs those of a group one after another, after what `stream` had before."""

    collective: int


class Wait(msgspec.Struct, frozen=True, tag="wait", array_like=True, gc=False):
    """A stream waits for a collective (`work.wait()`, `wait_tensor`)."""

    collective: int
    stream: int


class EventMark(msgspec.Struct, frozen=True, tag="mark", array_like=True, gc=False):
    """An event of the device is recorded on a stream."""

    event: int
    stream: int


class Await(msgspec.Struct, frozen=True, tag="await", array_like=True, gc=False):
    """A stream waits for an event of the device."""

    event: int
    stream: int


class Sync(msgspec.Struct, frozen=True, tag="sync", array_like=True, gc=False):
    """The host waits for a stream; -1: for the whole device (`item()`, `synchronize()`, copies to the host)."""

    stream: int
    lines: int


class Empty(msgspec.Struct, frozen=True, tag="empty", array_like=True, gc=False):
    """Memory that is reserved and not allocated goes back to the device (`torch.cuda.empty_cache`)."""


class Enter(msgspec.Struct, frozen=True, tag="enter", array_like=True, gc=False):
    """A part of the step begins."""

    part: Part


class Step(msgspec.Struct, frozen=True, tag="step", array_like=True, gc=False):
    """An optimizer has stepped; `number` from 0. Those of one step (several optimizers) share a number."""

    number: int


Event = Take | Give | Use | Name | Run | Moves | Issue | Wait | EventMark | Await | Sync | Empty | Enter | Step


class Invented(msgspec.Struct, frozen=True):
    """A value that the script asked for and that no data can tell.

    Attributes:
        what: "finite", "norm", "loss", "routing", "seed", …
        asked: the operation that asked, such as "item", "nonzero"
        value: that was given, as text
        lines: where, innermost first
        count: how often
    """

    what: str
    asked: str
    value: str
    lines: int
    count: int


class Update(msgspec.Struct, frozen=True, array_like=True):
    """A parameter that an optimizer has updated, as it was at its first step with a gradient that is known.

    Attributes:
        parameter: its name in its module
        groups: names of the groups whose collectives have touched its gradient since its last backward, or itself
            while ranks trained; None: where its gradient comes from is not known
        lines: of the step, innermost first
        apart: steps since the last exchange, where there was one; 0: they are no more than between others before
    """

    parameter: str
    groups: tuple[str, ...] | None
    lines: int
    apart: int = 0


class End(msgspec.Struct, frozen=True):
    """How a rank ended.

    Attributes:
        how: see `Ending`
        status: of the process as the script meant it
        text: of the exception, one line
        lines: where, innermost first; -1: not known
    """

    how: Ending
    status: int
    text: str
    lines: int


class Record(msgspec.Struct):
    """One rehearsed rank.

    Attributes:
        version: of this format
        torch: version
        rank: global
        world: ranks in all
        per_node: ranks of a node
        device: name in the catalog
        memory_bytes: of the device [bytes]
        script: path or module and its arguments
        lines: stacks of the user's code, innermost frame first; index 0 is the empty one
        modules: paths of modules; index 0 is ""
        kernels: that events point to
        groups: that this rank is a member of
        made_groups: ranks of every group that this rank asked for, in order, those it is no member of included
        collectives: in the order in which they were issued
        events: in the order in which the host asked for them
        invented: values without data
        end: how it ended
        host_s: that the rank took here [s]
        host_bytes: highest resident size of its process [bytes]
        notes: what was taken instead of what the script asked for, such as eager for compiled
        allocator: settings as in PYTORCH_CUDA_ALLOC_CONF, as they were when the first block was taken
        saved: paths of saved files, and after how many calls of the group of all ranks each was saved first
        sought: paths where no file was found, and after how many of these calls each was looked for last
        keeper: line that made what holds the graph of a step before the last two; 0: none does
        devices: of its node that the rank trains on or gives NCCL tensors of, and the line that put the first one there
        updates: of each parameter, whether it is trained together with other ranks
        joined: collectives until the first step in which ranks give each other activations or messages
        batches: digest of what the host sent to the device between the first step and the last, else of its seed; "":
            not known
        to_come: steps that the script says it takes, by the length of its loader and of its schedules; 0: it does not
    """

    rank: int
    world: int
    per_node: int
    device: str
    memory_bytes: int
    script: list[str]
    torch: str = ""
    lines: list[tuple[Frame, ...]] = msgspec.field(default_factory=lambda: [()])
    modules: list[str] = msgspec.field(default_factory=lambda: [""])
    kernels: list[Kernel] = msgspec.field(default_factory=list)
    groups: dict[str, Group] = msgspec.field(default_factory=dict)
    made_groups: list[tuple[tuple[int, ...], int]] = msgspec.field(default_factory=list)
    collectives: list[Collective] = msgspec.field(default_factory=list)
    events: list[Event] = msgspec.field(default_factory=list)
    invented: list[Invented] = msgspec.field(default_factory=list)
    end: End = End(how="killed", status=-1, text="", lines=-1)
    host_s: float = 0.0
    host_bytes: int = 0
    notes: list[str] = msgspec.field(default_factory=list)
    allocator: str = ""
    saved: dict[str, int] = msgspec.field(default_factory=dict)
    sought: dict[str, int] = msgspec.field(default_factory=dict)
    keeper: int = 0
    devices: dict[int, int] = msgspec.field(default_factory=dict)
    updates: list[Update] = msgspec.field(default_factory=list)
    joined: list[int] = msgspec.field(default_factory=list)
    batches: str = ""
    to_come: int = 0
    version: int = VERSION

    @property
    def end_lines(self) -> tuple[Frame, ...]:
        """Where it ended, innermost first; empty: not known."""
        return self.lines[self.end.lines] if self.end.lines >= 0 else ()


def write_record(path: Path, record: Record) -> None:
    """Write a record as MessagePack; the file appears whole or not at all."""
    put_in_place(path, msgspec.msgpack.encode(record))


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        InputError: no file, or none of these
    """
    return decode_typed(read_bytes(path, most_bytes=MOST_BYTES), Record, source=str(path), packed=True)
