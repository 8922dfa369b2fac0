"""The names behind the numbers that Python and the core exchange: a name stands at its number in the tuple."""

from hocket import _core
from hocket.schedule import COLLECTIVES

KINDS = tuple(COLLECTIVES)
DTYPES: tuple[str, ...] = _core.DTYPES
OPS: tuple[str, ...] = _core.OPS
