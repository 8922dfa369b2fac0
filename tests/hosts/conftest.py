"""Gives tests a lab of hosts; where hosts cannot be made, a test that asks for one is skipped with the reason."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.hosts.lab import Lab
from tests.hosts.namespaces import Unavailable


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Makes labs, with the arguments of Lab, that end with the test."""
    with ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> Lab:
            return stack.enter_context(Lab(*arguments, **options))

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Unavailable as reason:
        pytest.skip(str(reason))
