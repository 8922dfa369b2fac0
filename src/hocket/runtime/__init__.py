"""RUN: ranks, how they meet, start and end, and the communicator that they share."""

from typing import TYPE_CHECKING

from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.runtime.communicator.arguments import check_unmasked as check_unmasked
    from hocket.runtime.failures import exception_of as exception_of
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__, {"communicator.arguments": ["check_unmasked"], "failures": ["exception_of"]}
    )
