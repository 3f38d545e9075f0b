"""Streams: samples that come one after the other, without numbers.

    stream        s0 s1 s2 s3 │ s4 s5 s6 s7 │ s8 s9          the same on every rank that reads
    rank 0        s0 s1       │ s4 s5       │ s8             each goes through all of it, and keeps
    rank 1              s2 s3 │       s6 s7 │    s9          its share of each global batch

So a global batch is the same for any number of ranks, and each reading rank reads the whole stream. A stream that gives
ranks different samples, such as one that splits itself by rank, would make other global batches. So ranks exchange,
before each global batch is trained on, how many samples they have and a digest of these. By the same message all of
them end an epoch at the same step.

What a stream draws from the global generators is seeded by epoch and global batch, so that it is the same on every
rank, and in a run that continues. Such a run goes on by the stream's own state; one without begins its epoch again.

Rejected: what each rank's shard gives (other batches for each number of ranks); one rank that reads and sends (faster
only where links are faster than decoding); a digest of the first samples alone (a stream that differs later would train
silently); reading again up to the place of a checkpoint (more code than all else here).
"""

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from trimaran.base.errors import ExecutionError, InputError
from trimaran.base.user_errors import users
from trimaran.runtime.communication.channels import ALONE, Agreement
from trimaran.runtime.data.reading import digest_of, now, since
from trimaran.user_code.datasets import describe, streaming_fault
from trimaran.user_code.randomness import derive_seed, seeded


class StreamReader:
    """Reads a stream on one rank, one global batch at a time; every rank of the world has one.

    Args:
        dataset: of the job; None: this rank reads nothing, and hears from the others
        batch: samples of a global batch
        seed: of what the stream draws
        agreement: with the other ranks
        name: of the function that made the stream, for messages

    Attributes:
        samples: of the last global batch, by their positions in the epoch
        digest: of the last global batch, the same on every rank; 0 before the first
        read_s: blocked while the last global batch was read [s]
        prepared_s: work for it, and waiting for a core [s]
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch: int,
        seed: int,
        agreement: Agreement = ALONE,
        name: str = "Job.dataset",
    ) -> None:
        self._dataset, self._batch, self._seed = dataset, batch, seed
        self._agreement, self._name = agreement, name
        self._used = False
        self._epoch, self._number, self._total = -1, 0, 0
        self._items: Iterator[Any] | None = None
        self._state: Any = None
        self._of_end = False
        self._fault = ""
        self.samples: dict[int, Any] = {}
        self.digest = 0
        self.read_s = self.prepared_s = 0.0

    @property
    def total(self) -> int:
        """Samples of the epoch so far."""
        return self._total

    @property
    def state(self) -> Any:
        """The state of the stream after the last global batch, from its `state_dict`; None: it has none."""
        gives = getattr(self._dataset, "state_dict", None)
        if not callable(gives) or not callable(getattr(self._dataset, "load_state_dict", None)):
            return None
        asked = f"state_dict() of the stream that {self._name} makes"
        with users(asked, gives, said=lambda error: InputError(f"{asked} failed: {describe(error)}")):
            # It may be what the stream goes on to change.
            return copy.deepcopy(gives())

    @property
    def is_used(self) -> bool:
        """Whether something of the stream was read; the same on every rank."""
        return self._used

    def is_at(self, epoch: int, number: int) -> bool:
        """Whether a global batch is the next to be read.

        Args:
            epoch: number of the epoch
            number: of the global batch in it
        """
        return (epoch, number) == (self._epoch, self._number)

    def ended(self, epoch: int) -> bool:
        """Whether the epoch before one was read last.

        Args:
            epoch: number of the epoch that comes next
        """
        return self._epoch == epoch - 1 >= 0

    def begin(self, epoch: int) -> None:
        """Begin an epoch.

        Args:
            epoch: its number
        """
        self._epoch, self._number, self._total, self._fault = epoch, 0, 0, ""
        self._items, self._state, self._of_end, self.samples, self.digest = None, None, False, {}, 0

    def go_on(self, epoch: int, number: int, *, state: Any = None, expected: int = 0) -> bool:
        """Go to a global batch by the state that the stream had there; every rank calls it.

        Args:
            epoch: number of the epoch
            number: of the global batch that comes next
            state: `state` before that batch; None: there is none
            expected: digest of the batch before it; 0: it is not known

        Returns:
            Whether it is there; else it is at the beginning of the epoch.
        """
        self.begin(epoch)
        # Ranks without data have no state of the stream, and must do as those that have one.
        own = -1
        if self._dataset is not None:
            own = int(state is not None and callable(getattr(self._dataset, "load_state_dict", None)))
        if max(loads for (loads,) in self._agreement.gather_integers([own], _WHAT)) < 1:
            return not number
        self._number, self._total, self.digest = number, number * self._batch, expected
        self._state, self._of_end = state, not number
        return True

    def read(self) -> int:
        """Read the next global batch; every rank calls it.

        Returns:
            Its samples, fewer at the end of the stream, 0 after it; the same on every rank.

        Raises:
            InputError: on every rank: the stream raised on one of them, or gave them different samples
        """
        before = self._total
        self._used = True
        if before < self._number * self._batch:
            # It has ended before; all ranks know. An iterator that is asked once more might begin anew.
            return 0
        if self._dataset is not None:
            self._read()
        return self._agree() - before

    def keep(self, positions: range) -> None:
        """Drop the samples of the last global batch that are for other ranks.

        Args:
            positions: of those that stay, in the epoch
        """
        self.samples = {position: self.samples[position] for position in positions if position in self.samples}

    def _read(self) -> int:
        """The next global batch, or what there is of it, on this rank; its samples."""
        start = now()
        found: list[Any] = []
        try:
            with seeded(derive_seed(self._seed, "stream", self._epoch, self._number)):
                if self._items is None:
                    self._items = self._open()
                found.extend(islice(self._items, self._batch))
                if self._of_end and not found:
                    # Its state was that of the end of an epoch.
                    self._items = iter(self._dataset)
                    found.extend(islice(self._items, self._batch))
                self._of_end = False
        except Exception as error:  # noqa: BLE001 whatever the user's stream raises; every rank hears of it
            self._fault = streaming_fault(error, self._total + len(found)).text
            found = []
        self.read_s, self.prepared_s = since(start)
        self.samples = dict(enumerate(found, self._total))
        self._number, self._total = self._number + 1, self._total + len(found)
        if found:
            self.digest = digest_of(found)
        return len(found)

    def _open(self) -> Iterator[Any]:
        sets = getattr(self._dataset, "set_epoch", None)
        if callable(sets):
            sets(self._epoch)
        if self._state is not None:
            self._dataset.load_state_dict(self._state)
            self._state = None
        return iter(self._dataset)

    def _agree(self) -> int:
        """Samples of the epoch so far, once all ranks have come to the same.

        Raises:
            InputError: they have not, or one has failed
        """
        reads = self._dataset is not None
        heard = self._agreement.gather_integers([reads, bool(self._fault), self._total, self.digest], _WHAT)
        if any(faulty for _, faulty, _, _ in heard):
            texts = self._agreement.gather_objects(self._fault, _WHAT)
            rank, text = next((rank, text) for rank, text in enumerate(texts) if text)
            raise InputError(f"rank {rank}: {text}" if len(texts) > 1 else text, rank=rank)
        told = [(rank, total, digest) for rank, (one, _, total, digest) in enumerate(heard) if one]
        if not told:
            raise ExecutionError("no rank reads the data of the job")
        first, agreed, digest = told[0]
        for rank, total, other in told:
            if (total, other) != (agreed, digest):
                raise InputError(
                    f"the stream that {self._name} makes is not the same on every rank: "
                    f"{_unlike(first, agreed, rank, total)}. Each rank goes through all of it and trains on its share, "
                    "so that global batches are the same for any number of ranks: let it give every rank all samples "
                    "in one order. It must not share itself out by rank (torch.distributed, RANK, split_by_node), and "
                    "draw from the global generators, which are seeded, or from one that it seeds itself",
                    ranks=(first, rank),
                    epoch=self._epoch,
                )
        self._total, self.digest = agreed, digest
        if not reads:
            self._number += 1
        return agreed


def check_state(make: Callable[[], Any], *, batch: int, seed: int, name: str = "Job.dataset") -> None:
    """See that a stream goes on from its own `state_dict()` as it would have without a break, after a first batch.

    Args:
        make: makes the stream anew; one that is the same object each time is not tried
        batch: samples of a global batch
        seed: of what the stream draws
        name: of the function that made the stream, for messages

    Raises:
        InputError: it does not
    """
    first, second = (StreamReader(make(), batch=batch, seed=seed, name=name) for _ in range(2))
    first.begin(0)
    if first._dataset is second._dataset or first.state is None or first.read() < batch:
        return
    state = first.state
    samples = first.read()
    second.go_on(0, 1, state=state)
    again = second.read()
    if samples != again or (samples and first.digest != second.digest):
        raise InputError(
            f"the stream that {name} makes does not go on from its own state_dict() as it would have: after the first "
            f"{batch} samples it was put back by load_state_dict(), and then gave other ones. Let the state have all "
            "that decides which samples come, also those that are in a buffer, and __iter__ go on there; or leave out "
            "state_dict, and the epoch begins again",
            code="stream.forgets",
        )


_WHAT = "agreeing on a batch of the stream"


def _unlike(first: int, agreed: int, rank: int, total: int) -> str:
    if agreed != total:
        return f"rank {first} has had {agreed} samples where rank {rank} has had {total}"
    return f"of {total} samples the last ones differ between rank {first} and rank {rank}"
