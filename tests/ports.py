"""Ports for ranks that meet at one that somebody has to name before they start."""

import random
import socket

_FIRST, _LAST = 12_000, 32_000
"""Below the ports that systems give out by themselves: while ranks start, no other connection is given one of these."""


def free_ports(number: int = 1) -> int:
    """The first of neighbouring ports of this machine that nobody listens at.

    Args:
        number: of ports
    """
    source = random.SystemRandom()
    while True:
        first = source.randrange(_FIRST, _LAST - number)
        if all(_is_free(first + place) for place in range(number)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
