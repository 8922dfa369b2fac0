"""What a communicator uses where a call does not say: algorithm, order, time-out; and what these may be."""

from dataclasses import dataclass

from hocket.runtime.select import ORDERS

DEFAULT_OPERATION_SECONDS = 300.0


@dataclass(frozen=True)
class Settings:
    """Of one collective, or of all. `algorithm` None: the table decides (select.choose). timeout is in seconds."""

    algorithm: str | None = None
    order: str = "fast"
    timeout: float = DEFAULT_OPERATION_SECONDS


def check_order(what: str, order: object) -> str:
    """The order, if it is one; ValueError."""
    if order not in ORDERS:
        raise ValueError(f"{what}: expected order to be one of {', '.join(ORDERS)}; found {order!r}")
    return str(order)


def check_timeout(what: str, timeout: object) -> float:
    """Seconds above 0; TypeError, ValueError."""
    if not isinstance(timeout, int | float):
        raise TypeError(f"{what}: timeout is a {type(timeout).__name__}; expected seconds above 0")
    if not timeout > 0:
        raise ValueError(f"{what}: timeout is {timeout}; expected seconds above 0")
    return timeout
