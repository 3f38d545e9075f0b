"""What devices cost: money for an hour of a device, or of a whole node. The user gives prices; no list is built in."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from trimaran.base.errors import InputError

Per = Literal["device-hour", "node-hour"]

_SECONDS_PER_HOUR = 3600.0
_FORM = re.compile(
    r"\s*([A-Za-z€$£]{0,4})\s*([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+\.?[0-9]*|\.[0-9]+)\s*([A-Za-z€$£]{0,4})\s*(?:/|per\s)\s*(\S+)\s*"
)
_PER: dict[str, Per] = {
    "device-hour": "device-hour",
    "gpu-hour": "device-hour",
    "device-h": "device-hour",
    "gpu-h": "device-hour",
    "node-hour": "node-hour",
    "node-h": "node-hour",
    "instance-hour": "node-hour",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A price of devices.

    Attributes:
        amount: for an hour [currency]
        currency: such as "USD"
        per: what an hour is paid of; a node is paid whole
    """

    amount: float
    currency: str
    per: Per

    def of(self, devices: int, seconds: float, *, node_devices: int = 1) -> float:
        """Cost of devices for a time [currency].

        Args:
            devices: in use
            seconds: for how long [s]
            node_devices: devices of a node

        Example:
            >>> Price(amount=24.0, currency="USD", per="node-hour").of(9, 1800.0, node_devices=8)
            24.0
            >>> Price(amount=3.0, currency="USD", per="device-hour").of(9, 1800.0, node_devices=8)
            13.5
        """
        paid = devices if self.per == "device-hour" else math.ceil(devices / node_devices)
        return paid * self.amount * seconds / _SECONDS_PER_HOUR

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency}/{self.per}"


def parse_price(text: str) -> Price:
    """A price as people write it.

    Args:
        text: an amount, a currency, and "device-hour" or "node-hour"

    Raises:
        InputError: not such a text

    Example:
        >>> str(parse_price("24.48 USD per node-hour")), str(parse_price("$2.5/gpu-hour"))
        ('24.48 USD/node-hour', '2.5 USD/device-hour')
    """
    match = _FORM.fullmatch(text)
    per = _PER.get(match[4].lower()) if match else None
    currency = (match[1] or match[3]) if match else ""
    amount = float(match[2].replace(",", "")) if match else 0.0
    if match is None or per is None or not currency or (match[1] and match[3]) or not 0.0 < amount < math.inf:
        raise InputError(
            f'expected a price such as "24.48 USD/node-hour" or "3 USD/device-hour", got "{text}"',
            code="price.malformed",
            price=text,
        )
    named = {"$": "USD", "€": "EUR", "£": "GBP"}.get(currency, currency.upper())
    return Price(amount=amount, currency=named, per=per)
