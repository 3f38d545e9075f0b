"""The kinds of parallelism that a strategy uses, by the words that people pin, forbid and ask about.

dp           replicas            pp           stages of a chain       tp           sharded operations
placement    branches on ranks   zero         sharded state           sharded      a classifier over the replicas
p2p          homes of gradients  interleaved, zero-bubble, gpipe, 1f1b    the order of a pipeline
compiled     by torch.compile    memory       offloading and recomputing
hierarchical gradients summed within nodes, and then across them
compress     gradients that lose something on the wire; used by consent only
cache        samples that the host keeps after their first read
"""

import difflib
from collections.abc import Iterable

from trimaran.errors import InputError
from trimaran.program import Strategy

SPREADING: tuple[str, ...] = ("dp", "pp", "tp", "placement", "zero", "sharded", "p2p", "hierarchical")
"""Kinds that spread a network or its state over devices."""

ORDERS: tuple[str, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")
"""Kinds of order in a pipeline."""

PLAIN_ORDERS: frozenset[str] = frozenset({"gpipe", "1f1b"})
"""Orders with one segment a stage and whole backwards: what "a pipeline" means where nothing more is said."""

KINDS: tuple[str, ...] = (*SPREADING, *ORDERS, "compiled", "memory", "compress", "cache")
"""All of them."""

OTHER_NAMES = {
    "fsdp": "zero",
    "fsdp2": "zero",
    "ddp": "dp",
    "tensor": "tp",
    "pipeline": "pp",
    "placed": "placement",
    "interleaving": "interleaved",
    "zb": "zero-bubble",
    "offload": "memory",
    "recompute": "memory",
    "compression": "compress",
    "cached": "cache",
}
"""What some people call them."""

# These are ways to run replicas.
_OF_REPLICAS = frozenset({"zero", "sharded", "p2p", "hierarchical"})


def kinds_of(strategy: Strategy) -> frozenset[str]:
    """The kinds of parallelism that a strategy uses.

    Example:
        >>> sorted(kinds_of(Strategy(dp=2, zero=3))), sorted(kinds_of(Strategy()))
        (['dp', 'zero'], [])
    """
    staged = strategy.pp > 1 and not strategy.parts
    held = {
        "dp": strategy.dp > 1,
        "pp": staged,
        "tp": strategy.tp > 1,
        "placement": bool(strategy.parts),
        "zero": strategy.zero > 0,
        "sharded": bool(strategy.shards) and strategy.tp == 1,
        "p2p": strategy.sync == "p2p" and strategy.dp > 1,
        "hierarchical": strategy.sync == "hierarchical",
        "compiled": strategy.execution == "compiled",
        "memory": strategy.memory_bytes is not None,
        "compress": strategy.compression is not None,
        "cache": strategy.feeding.cached,
    } | {order: staged and strategy.schedule == order for order in ORDERS}
    return frozenset(kind for kind, holds in held.items() if holds)


def spreading(strategy: Strategy) -> frozenset[str]:
    """The kinds by which a strategy is spread over devices; replicas count only where nothing else needs them.

    Example:
        >>> sorted(spreading(Strategy(dp=2, zero=3))), sorted(spreading(Strategy(dp=2)))
        (['zero'], ['dp'])
    """
    held = kinds_of(strategy) & frozenset(SPREADING)
    return held - {"dp"} if held & _OF_REPLICAS else held


def read_kinds(names: Iterable[str], *, option: str) -> tuple[str, ...]:
    """Kinds as they are written on the command line.

    Args:
        names: words, several of them separated by commas
        option: that they were given to, for the message

    Raises:
        InputError: a word that no kind is called, with what comes near

    Example:
        >>> read_kinds(["pp,fsdp", "TP"], option="--forbid")
        ('pp', 'tp', 'zero')
    """
    found = set()
    for name in (part.strip().lower() for text in names for part in text.split(",")):
        kind = OTHER_NAMES.get(name, name)
        if kind not in KINDS:
            near = difflib.get_close_matches(name, (*KINDS, *OTHER_NAMES), n=1)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            raise InputError(
                f'{option}: no kind of parallelism is called "{name}"; {hint}choose among {", ".join(KINDS)}',
                code="plan.unknown-kind",
                value=name,
            )
        found.add(kind)
    return tuple(sorted(found))
