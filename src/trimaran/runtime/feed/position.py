"""Where a run is in its data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimaran.errors import InputError

_VERSION = 1
_FIGURES = ("epoch", "index", "samples", "global_batch_size", "seed")
_KINDS = {"order": ("no sampler", "a sampler"), "stream": ("numbered samples", "a stream")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The global batch that comes next, and what decides which samples it has.

    Nothing in it depends on the number of ranks, or on how they are fed.

    Attributes:
        epoch: number of the epoch, from 0
        index: number of the global batch in it, from 0; that of an epoch which is over is its number of batches
        samples: of the data set; 0 of a stream
        global_batch_size: samples of a global batch
        seed: of the job
        order: digest of what the sampler gave for the epoch, 0 before it was asked; None: there is no sampler
        stream: digest of the last batch of the stream, 0 before the first; None: it is none
        dataset: what `state_dict()` of the stream gave; None: it has none
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
        """As plain figures, and what a stream has given."""
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
        """Refuse to go on in other data.

        Args:
            own: of the feed that is to go on

        Raises:
            InputError: its global batches are others, or it has no such batch
        """
        pairs = [
            (f"{what} {getattr(self, name)}", f"{what} {getattr(own, name)}")
            for name, what in (("samples", "samples"), ("global_batch_size", "global batch"), ("seed", "seed"))
        ]
        # What kind of data it is says more than how many samples they have.
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
