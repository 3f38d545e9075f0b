"""Whether a step does what the first one did: of which operations its loss is made, and which buffers it writes to.

A look at the job before the training says whether the losses of the parts of a batch are the loss of the batch. A term
that begins in a later step, by whatever counts steps or is set by a callback, is not there yet. But autograd then has
other nodes behind the loss. So each forward of a part is compared with those of the first step, and a loss of another
structure is a request (`launch.stop_requests`) to look again before anything goes by the step.

The structure is the number of nodes that the forward made, and the types of those nearest to the loss, in order. Where
the look has seen that the forward goes different ways, or after many structures, it is the types alone.

A buffer that a forward begins to write to, as an observer that is switched on, leaves the loss of that step as it was.
So it is noted which buffers the forwards of the first step wrote to, those of batch norms apart; another one is a
request, too.

A loop of the user's may set numbers, tensors and buffers that the loss reads, such as the weights of classes, and the
operations stay what they are. Where one is another than the forward before left it, that is a request too: the first
time, the second, the fourth, and so on.

A reentrant checkpoint is one node, and runs its forward again in the backward: nodes that a backward makes are counted
as well. Losses may be added up by then, so that ranks may hear of it in the next step only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr

from trimaran.launch.stop_requests import REQUESTS
from trimaran.user_code.held_state import Settable

_NEAREST = 256
"""Nodes that are compared."""

_MANY = 8
"""Structures after which the order of nodes, and their number, count no more."""


class Structures:
    """Those of the losses of a training's steps.

    Args:
        varies: they are other ones for other samples or seeds
        modules: whose buffers are watched: those of the model and the loss
        read: numbers and tensors that the loss or a forward reads
    """

    def __init__(self, *, varies: bool, modules: Iterable[nn.Module] = (), read: Sequence[Settable] = ()) -> None:
        self._varies, self._read = varies, read
        self._left: dict[Any, Any] | None = None
        self._moves = 0
        self._holders = [part for part in modules if not isinstance(part, nn.modules.batchnorm._BatchNorm)]
        self._before: dict[tuple[int, str], tuple[int, int]] = {}
        self._written = set[tuple[int, str]]()
        self._first: int | None = None
        self._known = set[tuple[int, tuple[type, ...]]]()
        self._types = set[type]()
        self._again = {0}
        self._began = 0

    def begin(self) -> None:
        """A forward or a backward begins."""
        self._began = _get_sequence_nr()
        self._before = self._buffers()
        left, now = self._left, self._numbers()
        if left is not None and any(left.get(place) != one for place, one in now.items() if place not in self._written):
            self._moves += 1
            REQUESTS.look |= self._moves & (self._moves - 1) == 0

    def end(self, loss: Tensor, step: int) -> None:
        """A forward has ended; asks for a look where its loss has a new structure, or another buffer is written to.

        Args:
            loss: of a part of the batch
            step: its number
        """
        found: list[type] = []
        made = _get_sequence_nr() - self._began
        todo: list[Any] = [loss.grad_fn]
        met: set[Any] = {None}
        while todo and len(found) < _NEAREST:
            node = todo.pop()
            if node not in met:
                met.add(node)
                found.append(type(node))
                todo += [one for one, _ in node.next_functions]
        if self._first is None:
            self._first = step
        self._left = self._numbers()
        written = {place for place, now in self._buffers().items() if self._before.get(place) != now}
        REQUESTS.look |= step != self._first and not written <= self._written
        self._written |= written
        structure = made, tuple(found)
        if structure in self._known:
            return
        known = self._types.issuperset(found) if self._varies or len(self._known) >= _MANY else False
        self._known.add(structure)
        self._types.update(found)
        REQUESTS.look |= not known and step != self._first

    def end_backward(self, step: int) -> None:
        """A backward has ended; asks for a look where it has made another number of nodes.

        Args:
            step: its number
        """
        self._left = self._numbers()
        made = _get_sequence_nr() - self._began
        REQUESTS.look |= not (made in self._again or self._varies or len(self._again) > _MANY or step == self._first)
        self._again.add(made)

    def _numbers(self) -> dict[Any, Any]:
        """What is read, and the buffers that are watched."""
        read = {place: one.get() for place, one in enumerate(self._read)}
        told = {place: (id(one), one._version) if isinstance(one, Tensor) else repr(one) for place, one in read.items()}
        return {**told, **self._buffers()}

    def _buffers(self) -> dict[tuple[int, str], tuple[int, int]]:
        """Which tensor each buffer is, and how often that was written to."""
        return {
            (place, name): (id(buffer), buffer._version)
            for place, part in enumerate(self._holders)
            for name, buffer in part._buffers.items()
            if buffer is not None
        }
