"""What the loading of a step stood for: reading, preparing, or bringing it to the device.

Where the training's own thread loads, its loading says so itself. Where workers load beside it, the thread only waits;
what it waits for is what the workers did in that time, reading or preparing, in the proportion in which they did it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.runtime.feed.types import Loading


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadParts:
    """The time that a step's loading took of the training's thread [s].

    Attributes:
        fetch: for reading
        prepare: for preparing
        copy: for the way to the device
        rest: for none of these, or nobody knows
    """

    fetch: float = 0.0
    prepare: float = 0.0
    copy: float = 0.0
    rest: float = 0.0


def sum_loadings(loadings: Sequence[Loading]) -> Loading | None:
    """What several microbatches took together; None for none.

    Args:
        loadings: of one step
    """
    if not loadings:
        return None
    names = ("read_s", "prepared_s", "waited_s", "taken_s", "copied_s")
    return Loading(
        samples=sum(one.samples for one in loadings),
        in_line=all(one.in_line for one in loadings),
        **{name: sum(getattr(one, name) for one in loadings) for name in names},
    )


def divide_loading(loading: Loading | None, load_s: float, *, host_blocks: bool = True) -> LoadParts:
    """Divide the time that a step stood at its loading.

    Args:
        loading: what was observed of it, all microbatches together; None: nothing
        load_s: length of it as the record has it [s]
        host_blocks: the record has the host's time; False: the device's, which also holds copies that the host has
            only issued, and in which the host's loading may be hidden behind compute

    Returns:
        Parts that sum to `load_s`.

    Example:
        >>> divide_loading(Loading(samples=8, read_s=0.25, prepared_s=0.5), 1.0)
        LoadParts(fetch=0.25, prepare=0.5, copy=0.0, rest=0.25)
        >>> divide_loading(Loading(samples=8, read_s=3.0, prepared_s=1.0, waited_s=0.5, in_line=False), 0.5)
        LoadParts(fetch=0.375, prepare=0.125, copy=0.0, rest=0.0)
    """
    if loading is None:
        return LoadParts(rest=load_s)
    if loading.in_line:
        fetch, prepare = loading.read_s, loading.prepared_s
    else:
        behind = loading.read_s + loading.prepared_s
        read_share = loading.read_s / behind if behind > 0 else 0.0
        fetch = loading.waited_s * read_share
        prepare = loading.waited_s * (1.0 - read_share) + loading.taken_s
    copy = loading.copied_s
    known = fetch + prepare + copy
    if known > load_s:
        # What the step did not stand for was done while something else went on.
        scale = load_s / known
        fetch, prepare, copy, known = fetch * scale, prepare * scale, copy * scale, load_s
    rest = load_s - known
    return LoadParts(fetch=fetch, prepare=prepare, copy=copy if host_blocks else copy + rest, rest=rest * host_blocks)
