"""Records written by hand: a few kernels, collectives and steps of some ranks."""

from collections.abc import Iterable, Sequence

from trimaran.rehearsal.record import (
    Collective,
    End,
    Enter,
    Event,
    Group,
    Issue,
    Kernel,
    Record,
    Run,
    Step,
    TensorForm,
)


def product(size: int, dtype: str = "bfloat16") -> Kernel:
    """A product of square matrices."""
    form = TensorForm((size, size), dtype)
    return Kernel("aten.mm.default", (form, form), (form,), {}, 2 * size**3)


def small(elements: int = 256) -> Kernel:
    """A kernel that takes less than its launch."""
    form = TensorForm((elements,), "float32")
    return Kernel("aten.relu.default", (form,), (form,), {}, 0)


def collective(
    operation: str = "all_reduce",
    nbytes: int = 2**26,
    *,
    group: str = "0",
    peer: int = -1,
    stream: int = 0,
    asynchronous: bool = True,
    coalesced: int = -1,
) -> Collective:
    form = TensorForm((nbytes // 2,), "bfloat16")
    return Collective(
        operation=operation,
        reduction="sum" if "reduce" in operation else "",
        group=group,
        inputs=(form,),
        outputs=(form,),
        nbytes=nbytes,
        peer=peer,
        stream=stream,
        asynchronous=asynchronous,
        coalesced=coalesced,
        sizes=(),
        lines=0,
        module=0,
        part="backward",
    )


def group(ranks: Sequence[int], name: str = "0", description: str = "default_pg", order: int = 0) -> Group:
    return Group(name=name, ranks=tuple(ranks), description=description, order=order, lines=0)


def runs(kernel: int, count: int = 1, *, stream: int = 0, part: str = "forward") -> list[Event]:
    return [Run(kernel, stream, 0, 0, part) for _ in range(count)]  # type: ignore[arg-type]


def record(
    step: Iterable[Event],
    kernels: Sequence[Kernel],
    collectives: Sequence[Collective] = (),
    groups: Sequence[Group] = (),
    *,
    rank: int = 0,
    world: int = 1,
    per_node: int = 8,
    steps: int = 3,
    notes: Sequence[str] = (),
) -> Record:
    """A rank whose steps are all alike; each step issues its collectives anew."""
    events: list[Event] = [Enter("forward")]
    issued: list[Collective] = []
    listed = list(step)
    for number in range(steps):
        first = len(issued)
        issued += collectives
        for event in listed:
            if isinstance(event, Issue):
                event = Issue(event.collective + first)
            elif hasattr(event, "collective"):
                event = type(event)(event.collective + first, event.stream)  # type: ignore[call-arg, union-attr, arg-type]
            events.append(event)
        events.append(Step(number))
    return Record(
        rank=rank,
        world=world,
        per_node=min(per_node, world),
        device="h100-sxm",
        memory_bytes=80 * 2**30,
        script=["train.py"],
        kernels=list(kernels),
        collectives=issued,
        groups={each.name: each for each in groups},
        events=events,
        end=End("finished", 0, "", -1),
        notes=list(notes),
    )
