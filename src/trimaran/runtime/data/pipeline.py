"""The input pipeline of a rank: in which order samples come, and which rank loads which.

The order of the samples of an epoch is a permutation drawn from the job's seed and the number of the epoch, or that of
the job's sampler (`orders`), or that of a stream (`streaming`). Global batch k is the k-th run of `global_batch_size`
of them. `batch_shares` says which of its samples go to which replica and microbatch. So every plan trains on the same
global batches, and a run can continue at any batch of any epoch, with any number of ranks.

Only ranks whose stage reads the data load it: the first stage of a pipeline, the last one, and a stage between them
that reads a part of the batch.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.launch.world import World
from trimaran.program.strategy import IN_LINE, Feeding, Strategy
from trimaran.runtime.communication.channels import ALONE, Agreement
from trimaran.runtime.data.batch_shares import BatchShares, Share, first_sample, microbatch_sizes, skip_to
from trimaran.runtime.data.cache import HostCache, SampleCache, share_cache
from trimaran.runtime.data.datasets import (
    check_length,
    check_replicas,
    check_streamed,
    data_length,
    dataset_length,
    make_dataset,
)
from trimaran.runtime.data.loader import TIMEOUT_S, Loader
from trimaran.runtime.data.orders import Orders, other_order
from trimaran.runtime.data.prefetch import Ahead, Arrivals, ByWorkers, InLine, LoadingTimes, Taken
from trimaran.runtime.data.reading import Reading, Request, digest_of
from trimaran.runtime.data.streaming import StreamReader, check_state
from trimaran.runtime.precision import place_batch
from trimaran.runtime.streams import Lane
from trimaran.user_code.datasets import is_stream
from trimaran.user_code.held_state import HeldState, Values, changed
from trimaran.user_code.randomness import derive_seed, seeded

# ---------------------------------------------------------------------------------------------------------------------
# Where a run is in its data


_VERSION = 1
_FIGURES = ("epoch", "index", "samples", "global_batch_size", "seed")
_KINDS = {"order": ("no sampler", "a sampler"), "stream": ("numbered samples", "a stream")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The global batch that comes next, and everything that its samples depend on.

    It does not depend on the number of ranks, or on how they load data.

    Attributes:
        epoch: number of the epoch, from 0
        index: number of the global batch in it, from 0; that of an epoch which is over is its number of batches
        samples: of the data set; 0 of a stream
        global_batch_size: samples of a global batch
        seed: of the job
        order: digest of the sampler's order of the epoch, 0 before it was asked; None: there is no sampler
        stream: digest of the last batch of the stream, 0 before the first; None: the data are no stream
        dataset: state of the stream, from its `state_dict()`; None: it has none
    """

    epoch: int
    index: int
    samples: int
    global_batch_size: int
    seed: int
    order: int | None = None
    stream: int | None = None
    dataset: Any = None

    def to_dict(self) -> dict[str, Any]:
        """As plain figures, and the state of a stream."""
        found: dict[str, Any] = {"version": _VERSION, **{name: getattr(self, name) for name in _FIGURES}}
        for name in (*_KINDS, "dataset"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        return found

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Position":
        """From plain figures.

        Args:
            state: of `to_dict`

        Raises:
            InputError: of another form
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise InputError(
                f"this is no state of a feed: it needs version {_VERSION}, {', '.join(_FIGURES)}; take what "
                "Feed.state_dict() gave",
                code="feed-state.malformed",
            )
        kinds = [name for name in _KINDS if state.get(name) is not None]
        for name in (*_FIGURES, *kinds):
            value = state.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or (name != "seed" and value < 0):
                raise InputError(
                    f'"{name}" of the state of a feed must be an integer of at least 0, got {value!r}',
                    code="feed-state.bad-value",
                    value=value,
                )
        return cls(**{name: state[name] for name in (*_FIGURES, *kinds)}, dataset=state.get("dataset"))

    def check_against(self, own: "Position") -> None:
        """Refuse to continue in other data.

        Args:
            own: position of the job that is to continue

        Raises:
            InputError: its global batches are others, or it has no such batch
        """
        pairs = [
            (f"{what} {getattr(self, name)}", f"{what} {getattr(own, name)}")
            for name, what in (("samples", "samples"), ("global_batch_size", "global batch"), ("seed", "seed"))
        ]
        # The kind of data says more than their number of samples.
        kinds = [
            (words[getattr(self, name) is not None], words[getattr(own, name) is not None])
            for name, words in _KINDS.items()
        ]
        for theirs, ours in (*kinds, *pairs):
            if theirs != ours:
                raise InputError(
                    f"the state was saved with {theirs}, this job has {ours}: its global batches are others, so that "
                    "samples would be left out or seen twice. Go on with the same data, global batch and seed, or "
                    "begin an epoch anew without the state",
                    code="feed-state.other-job",
                    saved=theirs,
                    now=ours,
                )
        if self.order is not None or self.stream is not None:
            # How many batches an epoch has is not known before it begins.
            return
        most = -(-self.samples // self.global_batch_size)
        if self.index > most:
            raise InputError(
                f"the state is at batch {self.index} of an epoch that has {most}: it was damaged or edited",
                code="feed-state.beyond-epoch",
                index=self.index,
                batches=most,
            )


_LOOKED_AT = 2
"""Samples by which data are compared when a training goes on."""
_LOADED_AGAIN, _WITH_CALLBACKS = 8, 2
"""The first microbatch that is loaded again, where workers or a cache have copies; then at each power of two."""
_BEFORE_ALL = (-1, 0, 0)
_AFTER_ALL = (sys.maxsize, 0, 0)


class Feed:
    """The input pipeline of one rank.

    Args:
        job: makes the data set and the batches
        replicas: data-parallel replicas
        microbatches: of each replica
        replica: this rank's
        reads: this rank's stage reads the data
        samples: of the data set, where that is known; None: ask the data set
        streams: the data are a stream; None: ask the data set
        dataset: made by `Job.dataset`, where that has been called; None: make it, where it is needed
        feeding: how batches are loaded
        device: where batches go
        rank: number of this rank, for messages
        cache: samples that ranks of this host have read; None: nothing is kept
        notes: for people, on how it was opened
        timeout_s: how long a worker may take for a batch [s]
        agreement: with the other ranks, of which each has such a feed

    Attributes:
        samples: of the data set; of a stream the number that it states, None where it states none
        epoch: number of the epoch that is under way, or comes next
        index: number of the global batch in it that comes next
        observe: called with the time that each microbatch took, by the thread that trains; None: nothing is called

    Raises:
        InputError: the data set or the order of the first epoch is smaller than a batch; or a batch has fewer samples
            than replicas; or the sampler failed; or a stream was to be read by workers
    """

    def __init__(
        self,
        job: Job,
        *,
        replicas: int,
        microbatches: int,
        replica: int,
        reads: bool,
        samples: int | None = None,
        streams: bool | None = None,
        dataset: Any = None,
        feeding: Feeding = IN_LINE,
        device: str = "cpu",
        rank: int = 0,
        cache: SampleCache | None = None,
        notes: tuple[str, ...] = (),
        timeout_s: float = TIMEOUT_S,
        agreement: Agreement = ALONE,
    ) -> None:
        looks = samples is None and streams is None
        if dataset is None and (reads or looks):
            dataset = make_dataset(job)
        if streams is None:
            streams = dataset is not None and is_stream(dataset)
        if looks:
            samples = data_length(dataset)
        self.samples = samples
        check_replicas(job, replicas)
        self._stream: StreamReader | None = None
        self._orders: Orders | None = None
        if streams:
            check_streamed(job, feeding)
            own = dataset if reads else None
            self._stream = StreamReader(own, batch=job.global_batch_size, seed=job.seed, agreement=agreement)
        else:
            self._orders = Orders(job, None if job.sampler is None else dataset, samples or 0, agreement)
            self._orders.begin(0)
            check_length(len(self._orders.of(0)) if self._orders.sampled else samples or 0, job)
        self._job = job
        self._replicas, self._microbatches, self._replica = replicas, microbatches, replica
        self._share_out = partial(
            BatchShares, batch=job.global_batch_size, replicas=replicas, microbatches=microbatches, replica=replica
        )
        self._place = partial(place_batch, precision=job.precision, device=device)
        self._pin = feeding.pinned and device != "cpu"
        self._reads = reads
        self._reading = Reading(dataset, job.collate, cache=cache) if reads and not streams else None
        self._feeding, self._device, self._rank = feeding, device, rank
        self._cache, self._notes, self._timeout_s = cache, notes, timeout_s
        self._agreement = agreement
        self._arrivals: Arrivals | None = None
        # Workers have copies, and a cache keeps samples, of what a callback may change.
        copied = self._reading is not None and (feeding.workers or feeding.cached or feeding.copies_ahead)
        held = HeldState(_readers_of(dataset, job) if self._reading is not None else {}, undoable=False)
        callbacks = HeldState({"Job.on_step": job.on_step, "Job.on_epoch": job.on_epoch}, undoable=False)
        several = agreement.group is not None
        self._held = held if copied or (several and held.shares(callbacks)) else None
        self._copied, self._taken = bool(copied), 0
        self._again = _LOADED_AGAIN if job.on_step is None and job.on_epoch is None else _WITH_CALLBACKS
        self._known: Values = {}
        self._last, self._by_share = _BEFORE_ALL, False
        self._epochs: dict[int, BatchShares] = {}
        self._saved: Position | None = None
        self.epoch = 0
        self.index = 0
        self.observe: Callable[[LoadingTimes], None] | None = None

    @property
    def batches(self) -> int | None:
        """Global batches of an epoch; None: not known, as a stream does not say how many samples it has.

        With a sampler those of the epoch that was begun last; the length that a stream says may turn out wrong.
        """
        samples = self.epoch_samples
        if samples is None:
            return None
        full, left = divmod(samples, self._job.global_batch_size)
        return full + (0 if self._job.drop_last or not left else 1)

    @property
    def streams(self) -> bool:
        """Whether the data are a stream."""
        return self._stream is not None

    @property
    def epoch_samples(self) -> int | None:
        """Samples of an epoch, as those of `batches`."""
        if self._orders is not None and self._orders.sampled:
            return len(self._orders.of(self._orders.known))
        return self.samples

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know, such as samples that are not kept although they should be."""
        notes = list(self._notes)
        misfits = 0 if self._cache is None else self._cache.misfits
        if misfits:
            notes.append(f"{misfits} samples are not like the others: they are not cached, but read each time")
        return tuple(dict.fromkeys(notes))

    def state_dict(self) -> dict[str, Any]:
        """The position in the data, as plain figures: the same on every rank and for any number of them.

        A batch that is under way counts as done. The state of a stream that has `state_dict` and `load_state_dict` is
        part of it, on ranks that read.

        Raises:
            InputError: the `state_dict` of a stream failed
        """
        return self._position().to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position of the same job, perhaps with another number of ranks; every rank calls it.

        A sampler, or a stream, is asked when the next share is.

        Args:
            state: from `state_dict`

        Raises:
            InputError: it is no such state, or that of other data, another global batch or another seed
        """
        position = Position.from_dict(state)
        position.check_against(self._position())
        self.go_to(position.epoch, position.index)
        self._saved = position

    def check_state(self) -> None:
        """Refuse a stream that does not go on from its own state; of data with numbers there is nothing to see.

        Raises:
            InputError: it does not
        """
        if self._stream is not None and self._reads:
            check_state(partial(make_dataset, self._job), batch=self._job.global_batch_size, seed=self._job.seed)

    def digest_before(self) -> int | None:
        """A digest of the first samples of the global batch before the position, by which other data are known.

        Returns:
            None where this rank reads no samples by numbers, the epoch has just begun, or they cannot be read; of a
            stream or a sampler the position itself has a digest.
        """
        if self._reading is None or self._orders is None or self._orders.sampled or not self.index:
            return None
        first = (self.index - 1) * self._job.global_batch_size
        numbers = self._orders.of(self.epoch)[first : first + _LOOKED_AT].tolist()
        return self._reading.digest(numbers, derive_seed(self._job.seed, "samples", self.epoch))

    def go_to(self, epoch: int, index: int = 0) -> None:
        """Go on at a batch; every rank does.

        Args:
            epoch: number of the epoch, from 0
            index: number of the global batch in it, from 0
        """
        self.close()
        self.epoch, self.index, self._saved = epoch, index, None

    def shares(self) -> Iterator[Share]:
        """This rank's shares of the remaining global batches of the epoch; then the epoch is over.

        With a sampler ranks agree on the order of the epoch first, and with a stream on each global batch: every rank
        iterates over its shares at the same time.

        Raises:
            InputError: the sampler or the stream failed, or is not the same on every rank; or an epoch has no batch
        """
        epoch = self.epoch
        if self._stream is not None:
            yield from self._streamed(self._stream, epoch)
        else:
            yield from self._numbered(epoch)
        if self.epoch == epoch:
            self.epoch, self.index = epoch + 1, 0

    def _numbered(self, epoch: int) -> Iterator[Share]:
        self._begin(epoch)
        while self.epoch == epoch and self.index < (self.batches or 0):
            number = self.index
            # The batch that is under way counts as done, also for a state that is saved in the middle of its step.
            self.index = number + 1
            samples, sizes = self._shares(epoch).sizes(number)
            take = take_whole = None
            if self._reading is not None:
                take = partial(self._take, epoch, number)
                take_whole = partial(self._take, epoch, number, 0, by_share=True)
            counts = self._replica < samples
            yield Share(samples=samples, sizes=sizes, take=take, take_whole=take_whole, counts=counts)

    def _begin(self, epoch: int) -> None:
        """Ask the sampler for the order of an epoch, if there is one."""
        if self._feeding.workers:
            self.follow()
        if self._orders is None:
            return
        with self._agreement.alike("the length of the data set"):
            self._check_length(epoch)
        if not self._orders.sampled:
            return
        saved = self._saved
        expected = saved.order or 0 if saved is not None and saved.epoch == epoch else 0
        if self._orders.begin(epoch, expected=expected):
            self._epochs = {}
            # Workers load no further than an epoch whose order is known.
            self.close()
        elif expected and expected != self._orders.digest(epoch):
            raise other_order(epoch)
        if not self.batches:
            raise InputError(
                f"the sampler gave {self.epoch_samples} indices for epoch {epoch}, of which no global batch is made: "
                "give more, or leave the epoch out",
                epoch=epoch,
                samples=self.epoch_samples,
            )

    def _check_length(self, epoch: int) -> None:
        """Refuse a data set that has grown, or shrunk: the places of its samples follow from how many it has."""
        if self._reading is not None and (now := len(self._reading.dataset)) != self.samples:
            raise InputError(
                f"the data set has {now} samples at the beginning of epoch {epoch}, and had {self.samples} at the "
                "start of the training: give it its length from the start, and choose among its samples in "
                "Job.sampler, which is asked in each epoch; or train on a stream",
                code="feed.length-changed",
                samples=now,
                before=self.samples,
            )

    def _streamed(self, stream: StreamReader, epoch: int) -> Iterator[Share]:
        size = self._job.global_batch_size
        while self.epoch == epoch:
            if not stream.is_at(epoch, self.index):
                self._seek(stream, epoch, self.index)
            number, samples = self.index, stream.read()
            if not samples or (samples < size and self._job.drop_last):
                self._end_stream(stream, samples, epoch)
                return
            self.index = number + 1
            yield self._share_of_stream(stream, samples, epoch, number)

    def _seek(self, stream: StreamReader, epoch: int, number: int) -> None:
        """Go to a global batch of the stream."""
        saved = self._saved
        if saved is None or (saved.epoch, saved.index) != (epoch, number):
            saved = None
        if saved is None and not number:
            stream.begin(epoch)
        elif not stream.go_on(
            epoch,
            number,
            state=None if saved is None else saved.dataset,
            expected=(0 if saved is None else saved.stream) or 0,
        ):
            self.index = 0
            self._notes += (
                f"epoch {epoch} of the stream began again, {number * self._job.global_batch_size} samples before the "
                "place to go on at: it has no state_dict and load_state_dict",
            )

    def _end_stream(self, stream: StreamReader, left: int, epoch: int) -> None:
        """The stream has ended, perhaps with samples that are no batch."""
        if not self.index:
            few = f"{left} samples, of which no global batch is made" if left else "no sample"
            anew = ": its __iter__ must begin anew each time" if epoch and not left else ""
            raise InputError(
                f"the stream gave {few} in epoch {epoch}{anew}", code="feed.empty-epoch", epoch=epoch, samples=left
            )
        if self.samples not in (None, stream.total):
            self._notes += (
                f"the stream says that it has {self.samples} samples, and gave {stream.total} in epoch {epoch}: the "
                "number of steps was predicted from the former",
            )

    def _share_of_stream(self, stream: StreamReader, samples: int, epoch: int, number: int) -> Share:
        """This rank's share of the global batch that the stream has just given."""
        size = self._job.global_batch_size
        first = number * size
        degrees = {"replicas": self._replicas, "microbatches": self._microbatches}
        start = first + first_sample(samples, **degrees, replica=self._replica)
        stream.keep(range(start, start + sum(microbatch_sizes(samples, **degrees)[self._replica])))
        # The positions of this batch are its order.
        shares = self._share_out(torch.arange(first, first + samples))
        (share,) = shares.load(
            range(1),
            stream.samples if self._reads else None,
            self._job,
            seed=derive_seed(self._job.seed, "samples", epoch),
            pin_memory=self._pin,
            place=self._place,
            observe=partial(self._observe_streamed, stream.read_s, stream.prepared_s),
        )
        return share

    def _observe_streamed(self, read_s: float, prepared_s: float, taken: Taken) -> Taken:
        """The first microbatch of a share has the time in which its global batch was read."""
        loading = taken.loading
        if not taken.key[2]:
            loading = replace(loading, read_s=loading.read_s + read_s, prepared_s=loading.prepared_s + prepared_s)
        if self.observe is not None:
            self.observe(loading)
        return taken._replace(loading=loading)

    def watch(self) -> None:
        """Before a callback: note what the data set holds, where the rank itself reads and so may change it."""
        if self._held is not None and not self._feeding.workers:
            self._known = self._held.versions()

    def changes(self) -> int:
        """A digest of what a callback has changed of what the data set holds; 0: nothing, -1: it is not known here."""
        if self._held is None or not self._known:
            return -1
        found = changed(self._known, self._held.versions())
        values = self._held.values() if found else {}
        return digest_of([values.get(path) for path in found]) if found else 0

    def follow(self) -> None:
        """After a step, or a callback: what the data set holds may be other than when it was copied to workers.

        Raises:
            InputError: it is, and samples are kept
        """
        if self._held is None or not self._known or self._arrivals is None:
            return
        found = changed(self._known, self._held.versions())
        if not found:
            return
        if self._cache is not None:
            raise InputError(
                f"{found[0]} has changed, and samples that were read before are kept: plan with --forbid cache",
                code="feed.cached-data-changed",
            )
        # New ones are forked where the next batch is asked for.
        self.close()

    def close(self) -> None:
        """End the workers; the next batch starts new ones."""
        if self._arrivals is not None:
            self._arrivals.close()
        self._arrivals, self._last = None, _BEFORE_ALL

    def _take(self, epoch: int, number: int, microbatch: int, *, by_share: bool = False) -> Taken:
        key = (epoch, number, microbatch)
        start_ns = time.perf_counter_ns()
        if self._arrivals is None or key <= self._last or by_share != self._by_share:
            self.close()
            self._by_share = by_share
            self._arrivals = self._open(epoch, number)
        opened_s = (time.perf_counter_ns() - start_ns) * 1e-9
        # After a failure the loader is at another microbatch: the next call opens a new one.
        self._last = _AFTER_ALL
        taken = skip_to(self._arrivals, key)
        self._last = taken.key
        self._taken += 1
        if self._copied and self._taken >= self._again and self._taken.bit_count() == 1:
            self._check_copied(taken)
        if not taken.loading.in_line:
            taken = taken._replace(loading=replace(taken.loading, taken_s=taken.loading.taken_s + opened_s))
        if self.observe is not None:
            self.observe(taken.loading)
        return taken

    def _check_copied(self, taken: Taken) -> None:
        """Refuse a microbatch that a worker which starts now would load otherwise, each time in the same way."""
        epoch, number, _ = taken.key
        request = next(one for one in self._requests(epoch, number) if one.key == taken.key)
        dataset = None if self._reading is None else self._reading.dataset

        def again() -> int:
            reading = Reading(dataset, self._job.collate)
            loader = Loader(reading, iter([request]), Feeding(workers=1), rank=self._rank, timeout_s=self._timeout_s)
            try:
                return digest_of([self._place(loader.next().batch)])
            except InputError:  # it fails this time, and belongs to those of which nothing is known
                return 0
            finally:
                loader.close()

        if (now := again()) not in (0, digest_of([taken.batch])) and now == again():
            kept = "a cache keeps" if self._cache is not None else "were loaded before"
            raise InputError(
                f"epoch {epoch}, batch {number}: the data set gives other samples by now than {kept}. What changes "
                "while a job trains, as in a callback, belongs in attributes of the data set, which are followed, and "
                "not in globals; or plan with --workers 0 --forbid cache",
                code="feed.copied-data-changed",
                epoch=epoch,
                batch=number,
            )

    def _open(self, epoch: int, number: int) -> Arrivals:
        """Load from a batch on, epoch after epoch."""
        if self._reading is None:
            raise InputError("this rank reads no data", rank=self._rank)
        if self._held is not None:
            self._known = self._held.versions()
        loader = Loader(
            self._reading,
            self._requests(epoch, number),
            self._feeding,
            pin=self._pin,
            seed=self._job.seed,
            rank=self._rank,
            timeout_s=self._timeout_s,
        )
        count = self._feeding.copies_ahead
        lane = Lane(self._device if count else "cpu")
        if loader.in_line:
            return InLine(loader, self._place, lane, count)
        return Ahead(loader, self._place, lane, count) if count else ByWorkers(loader, self._place)

    def _requests(self, epoch: int, number: int) -> Iterator[Request]:
        while True:
            seed = derive_seed(self._job.seed, "samples", epoch)
            numbers, whole = range(number, self.batches or 0), self._by_share
            yield from self._shares(epoch).requests(numbers, seed=seed, epoch=epoch, whole=whole)
            if self._orders is None or self._orders.sampled:
                # The order of the next epoch is not known yet.
                return
            epoch, number = epoch + 1, 0

    def _shares(self, epoch: int) -> BatchShares:
        # Workers are an epoch ahead at most, where an epoch has more batches than they have ready.
        shares = self._epochs.get(epoch)
        if shares is None:
            if self._orders is None:
                raise InputError("the samples of a stream have no numbers")
            shares = self._share_out(self._orders.of(epoch))
            # A thread that loads ahead reads this too: the dict is replaced, not changed.
            near = {one: kept for one, kept in self._epochs.items() if one in (epoch - 1, epoch + 1)}
            self._epochs = {**near, epoch: shares}
        return shares

    def _position(self) -> Position:
        order = stream = dataset = None
        if self._orders is not None and self._orders.sampled:
            order = self._orders.digest(self.epoch) or self._waits_at("order") or 0
        if self._stream is not None:
            here = self._stream.is_at(self.epoch, self.index) if self.index else self._stream.ended(self.epoch)
            here = here or not (self.epoch or self.index or self._stream.is_used)
            stream = self._stream.digest if here else self._waits_at("stream") or 0
            dataset = self._stream.state if here else self._waits_at("dataset")
        return Position(
            epoch=self.epoch,
            index=self.index,
            samples=0 if self._stream is not None else self.samples or 0,
            global_batch_size=self._job.global_batch_size,
            seed=self._job.seed,
            order=order,
            stream=stream,
            dataset=dataset,
        )

    def _waits_at(self, name: str) -> Any:
        """A value of the state that was loaded, where that is still the position; else None."""
        saved = self._saved
        here = saved is not None and (saved.epoch, saved.index) == (self.epoch, self.index)
        return getattr(saved, name) if here else None


# ---------------------------------------------------------------------------------------------------------------------
# The input pipeline of a rank, as its strategy says, after ranks have agreed on the data


def open_feed(
    job: Job,
    strategy: Strategy,
    feeding: Feeding,
    world: World,
    *,
    replica: int,
    reads: bool,
    agreement: Agreement = ALONE,
) -> tuple[Feed, HostCache]:
    """Open the training data of one rank; every rank calls it.

    Args:
        job: what is trained
        strategy: says into how many shares and microbatches a global batch is split
        feeding: how batches are loaded
        world: this process's
        replica: of this rank
        reads: this rank reads data
        agreement: with the other ranks

    Returns:
        The input pipeline, and this rank's end of the cache, to be closed after it.

    Raises:
        InputError: the data or the sampler will not do, or are not the same on every rank
    """
    # Rank 0 makes the data also where it reads nothing, so that one rank knows them.
    dataset, fault = None, None
    said: tuple[bool, int | None] | None = None
    digests: tuple[int, ...] = ()
    if reads or world.rank == 0:
        try:
            dataset = make_dataset(job)
            said = is_stream(dataset), data_length(dataset)
        except InputError as error:
            fault = error
    # A sample that is read here may leave a file open, which workers that are forked must not share.
    if said is not None and fault is None and not said[0] and world.size > 1 and not feeding.workers:
        digests = _digests_of_some(dataset, samples=said[1] or 0, seed=job.seed)
    streams, samples = _agreed(agreement, said, fault, digests)
    shared, notes = HostCache(), []
    if feeding.cached and streams:
        notes.append("samples of a stream are not cached: they have no numbers by which they would be found")
    elif feeding.cached:
        own = dataset if reads else None
        share = partial(agreement.gather_objects, what="agreeing on a cache of samples")
        shared = share_cache(own, samples or 0, rank=world.rank, exchange=share)
        notes += [shared.note] if shared.note else []
    if feeding.copies_ahead and streams:
        notes.append("copies of batches of a stream do not go ahead: the next one is read when it is asked for")
    try:
        feed = Feed(
            job,
            replicas=strategy.dp,
            microbatches=strategy.microbatches,
            replica=replica,
            reads=reads,
            samples=samples,
            streams=streams,
            dataset=dataset,
            feeding=feeding,
            device=world.device,
            rank=world.rank,
            cache=shared.cache,
            notes=tuple(notes),
            # The others wait for this rank in a collective, and must not be the first to give up.
            timeout_s=min(TIMEOUT_S, world.timeout_s / 2),
            agreement=agreement,
        )
    except BaseException:
        shared.close()
        raise
    return feed, shared


def _readers_of(dataset: Any, job: Job) -> dict[str, Any]:
    """What reads the samples of a job, by what it is called; other data sets may be in the first."""
    found = {"the data set": dataset, "Job.collate": job.collate}
    while dataset is not None:
        for name in ("__getitem__", "__getitems__"):
            found[f"{name} of {type(dataset).__name__}"] = getattr(type(dataset), name, None)
        dataset = getattr(dataset, "dataset", None)
    return found


_COMPARED = 16
"""Samples that ranks compare: labels that are numbered otherwise may be alike in one of them."""

_COMPARING_S = 0.2
"""After this no further sample is read to be compared [s]."""


def _digests_of_some(dataset: Any, *, samples: int, seed: int) -> tuple[int, ...]:
    """Digests of samples from all over the data; 0 where one cannot be read, or differs when it is read again.

    Args:
        dataset: map-style
        samples: of it
        seed: of the job
    """
    started_s = time.perf_counter()
    found: list[int] = []
    # The first, and the others in an order in which any number of them is from all over.
    for number in dict.fromkeys(place * (samples - 1) // (_COMPARED - 1) for place in _SPREAD):
        found.append(_digest_of_one(dataset, number, seed))
        if time.perf_counter() - started_s > _COMPARING_S:
            break
    return tuple(found)


_SPREAD = (0, 15, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7)


def _digest_of_one(dataset: Any, number: int, seed: int) -> int:
    found = []
    for _ in range(2):
        with seeded(derive_seed(seed, "first sample")):
            try:
                found.append(digest_of([dataset[number]]))
            except Exception:  # noqa: BLE001 the user's; whoever trains on the sample says what is wrong with it
                return 0
    return found[0] if found[0] == found[1] else 0


def agree_on_data(agreement: Agreement, dataset: Any, *, reads: bool, seed: int, name: str) -> None:
    """See that map-style data are the same on every rank that reads them; every rank calls it.

    Args:
        agreement: with the other ranks
        dataset: of this rank
        reads: this rank reads it
        seed: under which samples are read to be compared
        name: of the data, for messages

    Raises:
        InputError: they are not, or are empty on a rank
    """
    if agreement.group is None:
        return
    fault, said, digests = None, None, tuple[int, ...]()
    try:
        said = False, dataset_length(dataset)
        digests = _digests_of_some(dataset, samples=said[1], seed=seed) if reads else ()
    except InputError as error:
        fault = error
    _agreed(agreement, said, fault, digests, name)


def _agreed(
    agreement: Agreement,
    said: tuple[bool, int | None] | None,
    fault: InputError | None,
    digests: tuple[int, ...],
    name: str = "Job.dataset",
) -> tuple[bool, int | None]:
    """Whether the data are a stream, and their length, on which all ranks that have some must agree.

    They must have the same samples too, where each of two ranks could tell: no digest of it is 0.
    """
    heard = agreement.gather_objects((said, "" if fault is None else fault.message, digests), "agreeing on the data")
    if fault is not None:
        raise fault
    for rank, (_, text, _) in enumerate(heard):
        if text:
            raise InputError(f"rank {rank}: {text}", rank=rank)
    told: list[tuple[int, tuple[bool, int | None]]] = [
        (rank, one) for rank, (one, _, _) in enumerate(heard) if one is not None
    ]
    first, agreed = told[0]
    for rank, one in told:
        if one != agreed:
            raise InputError(
                f"{name} makes {_named(*agreed)} on rank {first}, and {_named(*one)} on rank {rank}: let it "
                "make all data on every rank; each rank takes its share of them",
                ranks=(first, rank),
            )
    compared = [(rank, found) for rank, (_, _, found) in enumerate(heard) if found]
    for rank, found in compared:
        pairs = zip(compared[0][1], found, strict=False)
        place = next((place for place, (one, other) in enumerate(pairs) if one and other and one != other), None)
        if place is not None:
            which = "the first ones differ" if place == 0 else "some of them differ"
            raise InputError(
                f"{name} makes other samples on rank {rank} than on rank {compared[0][0]}: {which}. "
                "Each rank would have its share of other data: let it draw from the global generators, which are "
                "seeded, or from a generator that it seeds, read files in a fixed order, and number classes by a "
                "sorted list, as the order of a set is another in each process",
                code="feed.other-samples",
                ranks=(compared[0][0], rank),
            )
    return agreed


def _named(streams: bool, samples: int | None) -> str:
    kind = "a stream" if streams else "a data set"
    return f"{kind} of unknown length" if samples is None else f"{kind} of {samples} samples"
