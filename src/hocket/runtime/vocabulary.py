"""The names behind the numbers that Python and the core exchange.

The position of a name in its tuple is its number. A test compares DTYPES and OPS with those of the core."""

from hocket.schedule import COLLECTIVES, DTYPES, REDUCTIONS

__all__ = ["DTYPES", "KINDS", "OPS"]

KINDS = tuple(COLLECTIVES)
OPS = REDUCTIONS
