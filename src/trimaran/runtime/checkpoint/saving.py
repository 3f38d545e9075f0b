"""Checkpoints of a training: written by a thread of each rank while it trains on, and found again.

    step k      all ranks   copy what each writes to host memory
                rank 0      thread: a new directory ─────────────▶ write ──┐
    step k+1    all ranks   rank 0 says its name
                rank r      thread: join ─────────────▶ write ─────────────┤
    step k+n    all ranks   each says that it has written  ◀───────────────┘
                rank 0      thread: commit, read back, remove the older ones

Ranks speak at the boundaries of steps only, and only while something is being written, so that a thread never
communicates. A save that fails leaves the training alone: what is wrong is noted, and the checkpoint before it stays.
What makes a checkpoint whole is the protocol of `checkpoint_files/commit.py`.
"""

import os
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, overload

import torch
import torch.distributed as dist

from trimaran.base.errors import CorruptDataError, ExecutionError, InputError, TrimaranError
from trimaran.base.files import looked_at
from trimaran.checkpoint_files.commit import (
    FOLDER,
    MARKER,
    Checkpoint,
    Draft,
    Fault,
    FileEntry,
    Store,
    is_checkpoint_name,
)
from trimaran.checkpoint_files.container import TensorFile, TensorStream
from trimaran.checkpoint_files.pieces import Entry, Region, Want, What, entry_of, fill, name_in_file
from trimaran.checkpoint_files.plain import dtype_named
from trimaran.runtime.checkpoint import STATE
from trimaran.runtime.checkpoint.put_back import check_form
from trimaran.runtime.checkpoint.recovered import PassedOver
from trimaran.runtime.checkpoint.take import TakenState
from trimaran.runtime.communication.channels import Agreement

_TABLE = "tensors"
_WHAT = "saving a checkpoint"


class Saver:
    """Writes checkpoints to a folder; one a rank. Every method is called on every rank, between steps.

    Args:
        store: the folder; the same on every rank
        agreement: between all ranks
        ranks: how many there are
        keep: checkpoints that stay

    Attributes:
        folder: of the checkpoints
        keep: checkpoints that stay
        failures: what went wrong with saves that were not waited for, the same on every rank but for the last commit
        last: the newest checkpoint that this has committed; known to rank 0, and to all after `finish`
        seconds: from the start of the last save to its end on this rank [s]
    """

    def __init__(self, store: Store, agreement: Agreement, *, ranks: int, keep: int = 2) -> None:
        self._store, self._agreement, self._ranks, self.keep = store, agreement, ranks, keep
        self.folder = store.folder
        self._rank = agreement.rank
        self._save: _Save | None = None
        self._commit: Future[None] | None = None
        # At the end of the interpreter it is waited for.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._moment: tuple[int, ...] = ()
        self.failures: list[str] = []
        self.last: Path | None = None
        self.seconds = 0.0

    @property
    def pending(self) -> bool:
        """Whether ranks still have to speak about a save; the same on every rank."""
        return self._save is not None

    def has(self, moment: tuple[int, ...]) -> bool:
        """Whether the state of a moment was the last one that was committed; every rank calls it, and saves end first.

        Args:
            moment: as it was given to `begin`
        """
        self.finish()
        (own, *_) = self._agreement.gather_objects(self.last is not None and self._moment == moment, _WHAT)
        return bool(own)

    def begin(self, taken: TakenState, step: int, moment: tuple[int, ...] = ()) -> None:
        """Start to write; one that is under way is waited for.

        Args:
            taken: the state; its tensors stay as they are until `pending` is over
            step: of the training
            moment: of the state, for `has`
        """
        self.finish()
        self._moment = moment
        self._save = _Save(self._store, taken, step, rank=self._rank, ranks=self._ranks, pool=self._pool)

    def poll(self, *, wait: bool = False) -> None:
        """Let ranks speak about the save that is under way; does nothing where there is none.

        Args:
            wait: until each has written
        """
        save = self._save
        while save is not None and self._save is not None:
            if wait:
                save.wait()
            if not self._advance(save) and not wait:
                return

    def _advance(self, save: "_Save") -> bool:
        """One exchange; whether something has come of it."""
        done, wrong = int(save.has_ended and save.error is None), int(save.error is not None)
        named = int(save.draft is not None)
        heard = self._agreement.gather_integers([named, done, wrong], _WHAT)
        if any(failed for _, _, failed in heard):
            # Whoever still writes is waited for, so that nothing is written to what is removed.
            wait(save.tasks)
            self._give_up(save)
            return True
        if not save.named:
            if not heard[0][0]:
                return False
            names = self._agreement.gather_objects(save.draft.name if save.draft else None, _WHAT)
            save.named = True
            if self._rank:
                save.join(str(names[0]))
            return True
        if not all(finished for _, finished, _ in heard):
            return False
        entries = self._agreement.gather_objects(save.tasks[-1].result(), _WHAT)
        self._save = None
        self.seconds = time.perf_counter() - save.started
        if self._rank == 0:
            self._commit = self._pool.submit(self._conclude, save, entries)
        return True

    def _conclude(self, save: "_Save", entries: Sequence[FileEntry]) -> None:
        if save.draft is None:
            return
        table = [entry.to_plain() for entry in save.taken.writers.entries]
        committed = save.draft.commit(entries, {STATE: save.taken.plain}, {_TABLE: table})
        self.last = committed.path
        self.seconds = time.perf_counter() - save.started
        self._store.prune(self.keep, lambda name, faults: self._note(f"{name} is damaged: {_listed(faults)}"))

    def _give_up(self, save: "_Save") -> None:
        self._save, self._moment = None, ()
        said = self._agreement.gather_objects(_message(save.error), _WHAT)
        if save.draft is not None and self._rank == 0:
            save.draft.abandon()
        rank, text = next((rank, text) for rank, text in enumerate(said) if text)
        self._note(f"the checkpoint of step {save.step} was not written: rank {rank}: {text}")

    def _note(self, text: str) -> None:
        self.failures.append(text)

    def finish(self) -> None:
        """Wait until what is under way has been committed, or has failed, on every rank."""
        self.poll(wait=True)
        commit, self._commit = self._commit, None
        error = None if commit is None else commit.exception()
        if error is not None:
            self._moment = ()
            self._note(f"a checkpoint was not committed, or older ones not removed: {_message(error)}")

    def save(self, taken: TakenState, step: int, moment: tuple[int, ...] = ()) -> Path:
        """Write, and wait for it.

        Args:
            taken: the state; its tensors stay as they are until this returns
            step: of the training
            moment: of the state, for `has`

        Returns:
            Directory of the checkpoint.

        Raises:
            EnvironmentProblem: it cannot be written
            ExecutionError: another rank could not write
        """
        self.finish()
        before, older = len(self.failures), self.last
        self.last = None
        self.begin(taken, step, moment)
        save = self._save
        self.finish()
        wrong = self.failures[before:]
        said = self._agreement.gather_objects((self.last, wrong), _WHAT)
        self.last = said[0][0]
        if self.last is not None:
            return self.last
        # What is there is still the newest.
        self.last = older
        error = None if save is None else save.error
        if isinstance(error, TrimaranError):
            raise error
        texts = next((texts for _, texts in said if texts), ["it was not committed"])
        raise ExecutionError(
            f"the state of step {step} was not saved: {'; '.join(texts)}", code="checkpoint.not-saved", step=step
        )


def _message(error: BaseException | None) -> str:
    if error is None:
        return ""
    return error.message if isinstance(error, TrimaranError) else f"{type(error).__name__}: {error}"


class _Save:
    """One save on one rank.

    Attributes:
        taken: what is saved
        step: of the training
        draft: of the directory, as soon as it is there
        tasks: the one that writes this rank's file; empty before the name of the directory is known
        named: all ranks know the directory
        started: when it began, on the clock of `time.perf_counter` [s]
    """

    def __init__(
        self, store: Store, taken: TakenState, step: int, *, rank: int, ranks: int, pool: ThreadPoolExecutor
    ) -> None:
        self._store, self._rank, self._ranks, self._pool = store, rank, ranks, pool
        self.taken, self.step, self.named = taken, step, False
        self.draft: Draft | None = None
        self._begun = threading.Event()
        self.started = time.perf_counter()
        self.tasks: list[Future[FileEntry]] = [] if rank else [pool.submit(self._begin)]

    @property
    def has_ended(self) -> bool:
        """Whether this rank has written, or failed to."""
        return bool(self.tasks) and self.tasks[0].done()

    @property
    def error(self) -> BaseException | None:
        """That this rank has met."""
        return self.tasks[0].exception() if self.has_ended else None

    def wait(self) -> None:
        """Wait until this rank has something to say: on rank 0 first the name, then that it has written."""
        if not self.named and not self._rank:
            self._begun.wait()
        else:
            wait(self.tasks)

    def join(self, name: str) -> None:
        """Begin to write, as another rank than the first.

        Args:
            name: of the directory
        """
        self.tasks = [self._pool.submit(lambda: self._write(self._store.join(name)))]

    def _begin(self) -> FileEntry:
        try:
            self._store.check_space(sum(entry.nbytes for entry in self.taken.writers.entries))
            self.draft = self._store.begin(self.step, ranks=self._ranks)
        finally:
            self._begun.set()
        return self._write(self.draft)

    def _write(self, draft: Draft) -> FileEntry:
        stream = TensorStream(self.taken.tensors, {"format": "pt"})
        return draft.write(f"rank{self._rank}.safetensors", stream, size=stream.size)


# ---------------------------------------------------------------------------------------------------------------------
# Found again


_NONE = ("checkpoint.no-folder", "checkpoint.none")
"""Codes of errors that say that there is no checkpoint."""


def _listed(faults: Sequence[Fault]) -> str:
    return "; ".join(map(str, faults))


class Saved:
    """A checkpoint that is read; a context manager, in which it is not removed by others.

    Attributes:
        name: its directory, for messages
        plain: what is no tensor
        entries: the tensors
        passed_over: newer ones that are damaged, or cannot be read
    """

    def __init__(self, checkpoint: Checkpoint, passed_over: Sequence[PassedOver] = ()) -> None:
        self._checkpoint = checkpoint
        self._files: dict[int, TensorFile] = {}
        self.name = str(checkpoint.path)
        self.plain = checkpoint.document(STATE)
        check_form(self.plain, self.name)
        table = checkpoint.contents.get(_TABLE)
        if not isinstance(table, list):
            raise CorruptDataError(
                f"{self.name} has no table of tensors: it was damaged or edited, take another checkpoint",
                code="checkpoint.no-table",
                source=self.name,
            )
        self.entries = tuple(Entry.from_plain(one, self.name) for one in table)
        self.passed_over = tuple(passed_over)

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._checkpoint.path

    def form(self, rank: int, piece: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype of a piece; see `PieceSource`."""
        file = self._open(rank)
        return tuple(file.shape(piece)), file.dtype(piece)

    def read(self, rank: int, piece: str, region: Region) -> torch.Tensor:
        """A box of a piece; see `PieceSource`."""
        file = self._open(rank)
        shape = file.shape(piece)
        for dim, (one, size) in enumerate(zip(region, shape, strict=True)):
            if (one.start, one.stop) != (0, size):
                # Little else is read than these indices of the dim, of which the region is a view.
                part = file.part(piece, dim, one.start, one.stop)
                return part[tuple(slice(None) if at <= dim else other for at, other in enumerate(region))]
        return file.tensor(piece)

    def _open(self, rank: int) -> TensorFile:
        if rank not in self._files:
            self._files[rank] = TensorFile(self._checkpoint.path_of(f"rank{rank}.safetensors"))
        return self._files[rank]

    def __enter__(self) -> "Saved":
        self._checkpoint.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        files, self._files = self._files, {}
        for file in files.values():
            file.close()
        self._checkpoint.__exit__(kind, error, trace)


@overload
def find_saved(path: str | Path, agreement: Agreement, *, missing_ok: Literal[False] = False) -> Saved: ...
@overload
def find_saved(path: str | Path, agreement: Agreement, *, missing_ok: bool) -> Saved | None: ...
def find_saved(path: str | Path, agreement: Agreement, *, missing_ok: bool = False) -> Saved | None:
    """The checkpoint to go on from; every rank calls it. Rank 0 reads all of it, and compares checksums.

    Args:
        path: a run directory or a folder of checkpoints, of which the newest one that is as it was written is taken; or
            the directory of one checkpoint
        agreement: between all ranks
        missing_ok: it is no error that there is none

    Returns:
        None, on every rank, where there is none.

    Raises:
        InputError: there is none
        CorruptDataError: all are damaged, or the one that was named is
        EnvironmentProblem: it cannot be read
    """
    found: Saved | None = None
    fault: TrimaranError | None = None
    if agreement.rank == 0:
        try:
            found = _find(Path(path))
        except TrimaranError as error:
            if not (missing_ok and error.code in _NONE):
                fault = error
    name = None if found is None else (str(found.path), found.passed_over)
    (told, problem), *_ = agreement.gather_objects((name, fault), "finding a checkpoint")
    if problem is not None:
        raise problem
    if found is not None or told is None:
        return found
    where = Path(told[0])
    return Saved(Store(where.parent).open(where.name), told[1])


def locate(path: Path) -> tuple[Store, str | None]:
    """The folder of checkpoints that a user means, and the name of the one that was named; None: none was.

    Args:
        path: run directory, folder of checkpoints, or one checkpoint

    Raises:
        InputError: there is none
        EnvironmentProblem: it cannot be looked at
    """
    if looked_at(path / MARKER) is not None:
        one = path if is_checkpoint_name(path.name) else Path(os.path.realpath(path))
        return Store(one.parent), one.name
    folder = path / FOLDER if looked_at(path / FOLDER) else path
    found = looked_at(folder)
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise InputError(
            f"there is no run and no folder of checkpoints {path}: give a run directory (runs/NAME), its folder "
            f"{FOLDER}, or one checkpoint in it",
            code="checkpoint.no-folder",
            path=str(path),
        )
    return Store(folder), None


def _find(path: Path) -> Saved:
    # By name: where one is removed meanwhile, all are looked at again.
    passed: dict[str, PassedOver] = {}
    store, name = locate(path)

    def on_damage(name: str, faults: Sequence[Fault]) -> None:
        passed[name] = PassedOver(path=str(store.folder / name), reason=_listed(faults))

    if name is None:
        newest = store.open_newest(on_damage)
        store.settle(newest)
        return Saved(newest, [*passed.values()])
    named = store.open(name)
    faults = store.verify(named)
    if faults:
        raise CorruptDataError(
            f"the checkpoint {path} is damaged: {_listed(faults)}. Take another one: {store.folder} may have it",
            code="checkpoint.named-is-damaged",
            path=str(path),
            faults=[str(fault) for fault in faults],
        )
    store.settle(named)
    return Saved(named)


class WholeTensors:
    """A state that rank 0 has as a whole, in its memory, handed to the others tensor by tensor; every rank makes one.

    Args:
        state: with "tensors" and "state"; that of rank 0 counts
        agreement: between all ranks

    Attributes:
        name: for messages
        plain: what is no tensor
        entries: the tensors

    Raises:
        InputError: it is no such state
    """

    def __init__(self, state: Mapping[str, Any], agreement: Agreement) -> None:
        self.name = "the state that was given"
        self._agreement = agreement
        self._tensors: Mapping[str, torch.Tensor] = {}
        said, fault = None, None
        if agreement.rank == 0:
            try:
                said = self._read(state)
            except TrimaranError as error:
                fault = error
        (told, problem), *_ = agreement.gather_objects((said, fault), "going on from a state")
        if problem is not None:
            raise problem
        self.plain, self.entries = told

    def _read(self, state: Mapping[str, Any]) -> tuple[Any, tuple[Entry, ...]]:
        if not isinstance(state, Mapping) or not isinstance(state.get("tensors"), Mapping) or "state" not in state:
            raise InputError(
                'this is no state of a session: it needs "tensors" and "state"; take what session.state_dict() gave on '
                "rank 0",
                code="session.not-a-state",
            )
        check_form(state["state"], self.name)
        self._tensors = state["tensors"]
        return state["state"], tuple(entry_of(name, one) for name, one in self._tensors.items())

    def fill(self, wants: Sequence[Want], table: Mapping[What, Entry]) -> None:
        """Fill what this rank wants; every rank calls it.

        Args:
            wants: of this rank
            table: of the tensors, the same on every rank
        """
        by_tensor: dict[What, list[Want]] = {}
        for want in wants:
            by_tensor.setdefault(want.what, []).append(want)
        for what, entry in table.items():
            whole = self._tensors.get(name_in_file(what))
            if self._agreement.group is not None:
                sent = torch.empty(entry.shape, dtype=dtype_named(entry.dtype, self.name))
                if whole is not None:
                    sent.copy_(whole)
                if sent.numel():
                    # As bytes: gloo knows few dtypes.
                    dist.broadcast(sent.reshape(-1).view(torch.uint8), group_src=0, group=self._agreement.group)
                whole = sent
            if whole is None:
                continue
            for want in by_tensor.get(what, ()):
                fill(want, entry, _InMemory(self.name, whole))


class _InMemory:
    """A whole tensor as a source of pieces."""

    def __init__(self, name: str, whole: torch.Tensor) -> None:
        self.name, self._whole = name, whole

    def form(self, rank: int, piece: str) -> tuple[tuple[int, ...], torch.dtype]:
        return tuple(self._whole.shape), self._whole.dtype

    def read(self, rank: int, piece: str, region: Region) -> torch.Tensor:
        return self._whole[region]


def describe_saved(plain: Mapping[str, Any]) -> str:
    """A checkpoint in a few words.

    Args:
        plain: what is no tensor of it
    """
    return f"step {plain['steps']} of {plain['job'].get('name', 'a job')}, saved under {plain['plan']['name']}"
