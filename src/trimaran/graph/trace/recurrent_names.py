"""Names of the operations that stand for recurrent layers in a trace; see `recurrent`. Nothing here needs torch."""

NAMESPACE = "trimaran"

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Matrices of a cell that are stacked in one."""

FORWARD = "forward"
BACKWARD_INPUT = "backward_input"
BACKWARD_WEIGHT = "backward_weight"

PARTS = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)


def recurrent_name(cell: str, part: str) -> str:
    """Name of an operation, without its overload.

    Example:
        >>> recurrent_name("lstm", FORWARD)
        'trimaran.lstm_forward'
    """
    return f"{NAMESPACE}.{cell}_{part}"


RECURRENT = {recurrent_name(cell, part): (cell, part) for cell in GATES for part in PARTS}
"""Cell and part of each name."""
