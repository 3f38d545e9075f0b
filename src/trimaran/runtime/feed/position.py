"""Where a run is in its data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimaran.errors import InputError

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The global batch that comes next, and what decides which samples it has.

    Nothing in it depends on the number of ranks, or on how they are fed.

    Attributes:
        epoch: number of the epoch, from 0
        index: number of the global batch in it, from 0; that of an epoch which is over is its number of batches
        samples: of the data set
        global_batch_size: samples of a global batch
        seed: of the job
    """

    epoch: int
    index: int
    samples: int
    global_batch_size: int
    seed: int

    def to_dict(self) -> dict[str, int]:
        """As plain figures."""
        return {"version": _VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Position":
        """From plain figures.

        Args:
            state: of `to_dict`

        Raises:
            InputError: of another form
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise InputError(
                f"this is no state of a feed: it needs version {_VERSION}, {', '.join(names)}; take what "
                "Feed.state_dict() gave"
            )
        for name in names:
            value = state.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or (name != "seed" and value < 0):
                raise InputError(
                    f'"{name}" of the state of a feed must be an integer of at least 0, got {value!r}', value=value
                )
        return cls(**{name: state[name] for name in names})

    def check_against(self, own: "Position") -> None:
        """Refuse to go on in other data.

        Args:
            own: of the feed that is to go on

        Raises:
            InputError: its global batches are others, or it has no such batch
        """
        for name, what in (("samples", "samples"), ("global_batch_size", "global batch"), ("seed", "seed")):
            theirs, ours = getattr(self, name), getattr(own, name)
            if theirs != ours:
                raise InputError(
                    f"the state was saved with {what} {theirs}, this job has {what} {ours}: its global batches are "
                    "others, so that samples would be left out or seen twice. Go on with the same data, global batch "
                    "and seed, or begin an epoch anew without the state",
                    saved=theirs,
                    now=ours,
                )
        most = -(-self.samples // self.global_batch_size)
        if self.index > most:
            raise InputError(
                f"the state is at batch {self.index} of an epoch that has {most}: it was damaged or edited",
                index=self.index,
                batches=most,
            )
