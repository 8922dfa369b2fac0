"""The defaults for calls that do not give algorithm, order or timeout, and the checks of these three."""

from dataclasses import dataclass

from hocket.errors import did_you_mean
from hocket.runtime.choice.select import ORDERS
from hocket.runtime.streams.stream import FOREVER_SECONDS

DEFAULT_OPERATION_SECONDS = 300.0


@dataclass(frozen=True)
class CallSettings:
    """The defaults of one collective, or of all. `algorithm` "": select.choose decides. timeout is in seconds."""

    algorithm: str = ""
    order: str = "fast"
    timeout: float = DEFAULT_OPERATION_SECONDS


def check_algorithm(what: str, algorithm: object) -> str:
    """Returns the name of an algorithm, or "" for the table. Raises TypeError if it is no text."""
    if not isinstance(algorithm, str):
        raise TypeError(
            f'{what}: expected algorithm as a registered name or FILE.py:NAME, or "" for the table; found {algorithm!r}'
        )
    return algorithm


def check_order(what: str, order: object) -> str:
    """Returns the order. Raises ValueError if there is no such order."""
    if order not in ORDERS:
        raise ValueError(
            f"{what}: expected order to be one of {', '.join(ORDERS)}; found {order!r}{did_you_mean(order, ORDERS)}"
        )
    return str(order)


def check_timeout(what: str, timeout: object) -> float:
    """Returns the seconds as a float. Raises TypeError or ValueError unless they are above 0."""
    if not isinstance(timeout, int | float):
        raise TypeError(f"{what}: timeout is a {type(timeout).__name__}; expected seconds above 0")
    if not timeout > 0:
        raise ValueError(f"{what}: timeout is {timeout}; expected seconds above 0")
    return min(timeout, FOREVER_SECONDS)  # an int may be too large for a float
