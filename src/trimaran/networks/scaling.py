"""How wide a reduced network is: every family takes a `width` that multiplies the channels of the published form."""


def scaled(channels: int, width: float) -> int:
    """Channels of a layer in a network of another width; at least one.

    Args:
        channels: of the published form
        width: what to multiply them by; 1 leaves them as they are

    Example:
        >>> scaled(64, 0.125)
        8
    """
    return max(1, round(channels * width))
