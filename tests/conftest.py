"""What holds for all tests."""

import signal
from collections.abc import Iterator

import hypothesis
import pytest

from hocket.algorithms import ALGORITHMS

# Examples must not fail for being slow on a busy machine: pytest's time-out is the limit, and it names the test.
hypothesis.settings.register_profile("hocket", deadline=None, print_blob=True)
hypothesis.settings.load_profile("hocket")

# A shell lets what it starts in the background ignore Ctrl-C, and so would the programs that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def registry_as_before() -> Iterator[None]:
    """What a test registers, also by loading a file, is not there for the next."""
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)
