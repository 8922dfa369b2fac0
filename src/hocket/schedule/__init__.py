"""WHAT: what a collective must do, the table that does it, and the proof that it does. NumPy only; nothing compiled."""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.schedule.reduction import fold_memory as fold_memory
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, {"reduction": ["fold_memory"]})
