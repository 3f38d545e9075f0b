"""Records of ranks that never ran: each is written call by call."""

from collections.abc import Sequence

from trimaran.rehearsal.record import (
    Await,
    Collective,
    End,
    Ending,
    EventMark,
    Frame,
    Group,
    Issue,
    Record,
    Step,
    Sync,
    TensorForm,
    Wait,
)


class Maker:
    """Writes the record of one rank.

    Args:
        rank: global
        world: ranks in all
    """

    def __init__(self, rank: int, world: int) -> None:
        self.record = Record(rank=rank, world=world, per_node=8, device="h100-sxm", memory_bytes=1, script=["train.py"])
        self.record.end = End("finished", 0, "", -1)
        self._batch = -1
        self._batches = 0
        self._steps = 0
        self.group(tuple(range(world)), "default_pg", made=False)

    def line(self, number: int) -> int:
        lines = (Frame("train.py", number, "<module>"),)
        if lines not in self.record.lines:
            self.record.lines.append(lines)
        return self.record.lines.index(lines)

    def module(self, path: str) -> int:
        if path not in self.record.modules:
            self.record.modules.append(path)
        return self.record.modules.index(path)

    def group(self, ranks: tuple[int, ...], description: str = "", *, made: bool = True, line: int = 1) -> str:
        """Ask for a group; its name, whether this rank is a member or not."""
        name = str(len(self.record.made_groups) + 1) if made else "0"
        if made:
            self.record.made_groups.append((ranks, self.line(line)))
        if self.record.rank in ranks:
            order = len(self.record.groups)
            self.record.groups[name] = Group(name, ranks, description, order, self.line(line))
        return name

    def call(
        self,
        operation: str,
        group: str = "0",
        given: Sequence[int] = (4,),
        got: Sequence[int] | None = None,
        *,
        reduction: str = "",
        dtype: str = "float32",
        peer: int = -1,
        line: int = 1,
        module: str = "",
        asynchronous: bool = False,
        stream: int = 0,
        sizes: tuple[tuple[int, ...], ...] = (),
    ) -> int:
        """Ask for a call; its number."""
        number = len(self.record.collectives)
        inputs = tuple(TensorForm((elements,), dtype) for elements in given)
        outputs = inputs if got is None else tuple(TensorForm((elements,), dtype) for elements in got)
        self.record.collectives.append(
            Collective(
                operation=operation,
                reduction=reduction,
                group=group,
                inputs=inputs,
                outputs=outputs,
                nbytes=0,
                peer=peer,
                stream=stream,
                asynchronous=asynchronous,
                coalesced=self._batch,
                sizes=sizes,
                lines=self.line(line),
                module=self.module(module),
                part="forward",
            )
        )
        self.record.events.append(Issue(number))
        return number

    def all_reduce(self, group: str = "0", elements: int = 4, *, line: int = 1, reduction: str = "sum", **more) -> int:
        return self.call("all_reduce", group, (elements,), line=line, reduction=reduction, **more)

    def send(self, to: int, elements: int = 4, *, group: str = "0", line: int = 1, **more) -> int:
        return self.call("send", group, (elements,), (), peer=to, line=line, **more)

    def receive(self, source: int, elements: int = 4, *, group: str = "0", line: int = 1, **more) -> int:
        return self.call("recv", group, (), (elements,), peer=source, line=line, **more)

    def begin_batch(self) -> None:
        self._batch = self._batches
        self._batches += 1

    def end_batch(self) -> None:
        self._batch = -1

    def wait(self, number: int, stream: int = 0) -> None:
        self.record.events.append(Wait(number, stream))

    def synchronize(self, stream: int = -1, line: int = 1) -> None:
        self.record.events.append(Sync(stream, self.line(line)))

    def mark(self, event: int, stream: int) -> None:
        self.record.events.append(EventMark(event, stream))

    def await_(self, event: int, stream: int) -> None:
        self.record.events.append(Await(event, stream))

    def step(self) -> None:
        self.record.events.append(Step(self._steps))
        self._steps += 1

    def end(self, how: Ending = "finished", status: int = 0, text: str = "", line: int = 0) -> None:
        self.record.end = End(how, status, text, self.line(line) if line else -1)
