"""Two hosts for each test, and a folder of programs that their PATH begins with."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.programs import Programs
from tests.hosts.lab import Lab
from tests.hosts.namespaces import Unavailable


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two hosts, where engines start ranks."""
    try:
        with Lab(2) as made:
            yield made
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """The programs that scripts of examples/engines call, but for those of the engine."""
    found = Programs(tmp_path)
    found.add("python", f'exec {sys.executable} "$@"')
    found.add("hocket", f'exec {sys.executable} -m hocket "$@"')
    return found
