"""Accumulation of gradients: several backward passes, and one exchange between ranks."""

import contextlib
from collections.abc import Iterator


class AccumulatesGradients:
    """What models have in common whose backward passes exchange gradients, unless they are told not to."""

    _syncs = True  # whether backward passes combine gradients

    @contextlib.contextmanager
    def no_sync(self, *, unless: bool = False) -> Iterator[None]:
        """Inside, backward passes add to this rank's gradients and combine nothing; unless=True: as outside.

        The next backward pass outside combines what all of them have added.
        """
        before, self._syncs = self._syncs, self._syncs and unless
        try:
            yield
        finally:
            self._syncs = before
