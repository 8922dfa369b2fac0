"""The names behind the numbers that Python and the core exchange: the number of a name is its index in the tuple."""

from hocket import _core
from hocket.schedule import COLLECTIVES

KINDS = tuple(COLLECTIVES)
DTYPES: tuple[str, ...] = _core.DTYPES
OPS: tuple[str, ...] = _core.OPS
