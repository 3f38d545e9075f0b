"""Networks between nodes by what labels say of them: "100 Gb/s InfiniBand", "RoCE 1600 Gb/s", "25 GbE"."""

from trimaran.cluster.labels import Label
from trimaran.cluster.links import find_link
from trimaran.cluster.machines import LinkType

_KINDS = (
    (("infiniband", "ib", "edr", "hdr", "ndr", "xdr", "fdr", "mellanox"), "ib"),
    (("roce", "rdma", "rocev2"), "roce"),
    (("efa",), "efa"),
    (("omni", "opa", "omnipath"), "omni-path"),
    (("slingshot",), "slingshot"),
    (("ethernet", "tcp", "gbe"), "ethernet"),
)
_RATES = {
    "ib": {56: "ib-fdr", 100: "ib-edr", 200: "ib-hdr", 400: "ib-ndr", 800: "ib-xdr"},
    "roce": {25: "roce-25g", 50: "roce-50g", 100: "roce-100g", 200: "roce-200g", 400: "roce-400g"},
    "efa": {100: "efa-v1-100g", 200: "efa-v3-200g", 400: "efa-v4-400g"},
    "omni-path": {100: "omni-path-100"},
    "slingshot": {200: "slingshot-11"},
    "ethernet": {rate: f"ethernet-{rate}g" for rate in (1, 10, 16, 25, 32, 40, 50, 100, 200, 400)},
}
_NAMED = {"fdr": "ib-fdr", "edr": "ib-edr", "hdr": "ib-hdr", "ndr": "ib-ndr", "xdr": "ib-xdr"}
_MOST_PER_NODE = 32


def match_fabric(label: Label, devices_of_node: int) -> tuple[int, LinkType] | None:
    """The network that a label names.

    Args:
        label: of a machine
        devices_of_node: as many cards are likely, where the rate must be that of several

    Returns:
        Cards of a node and their type; None where the label names no network that is known.

    Example:
        >>> from trimaran.cluster.labels import read_label
        >>> cards, link = match_fabric(read_label("RoCE 1600 Gb/s"), 8)
        >>> cards, link.name
        (8, 'roce-200g')
    """
    kind = next((kind for words, kind in _KINDS if any(word in label.words for word in words)), "")
    gigabits = label.rate_bits_per_s / 1e9
    if not gigabits:
        named = next((_NAMED[word] for word in label.words if word in _NAMED), None)
        return (1, find_link(named)) if named else None
    rates = _RATES[kind or "ethernet"]
    if gigabits in rates:
        return max(label.rate_count, 1), find_link(rates[round(gigabits)])
    return _several(gigabits, rates, devices_of_node)


def _several(gigabits: float, rates: dict[int, str], devices_of_node: int) -> tuple[int, LinkType]:
    """Cards that make a rate together, as many as devices where that works out; else the nearest single card."""
    for cards in (devices_of_node, *range(2, _MOST_PER_NODE + 1)):
        if cards and gigabits / cards in rates:
            return cards, find_link(rates[round(gigabits / cards)])
    return 1, find_link(rates[min(rates, key=lambda rate: abs(rate - gigabits))])
