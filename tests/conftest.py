"""Settings of all tests: their rings, and the tests of ring 1 that `--quick` runs."""

import multiprocessing.process
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest

from hocket.algorithms import ALGORITHMS, registry

RINGS = {
    "ring1": {"schedule", "algorithms", "network", "view"},
    "ring2": {"answers", "runtime", "fuzz", "cli", "matrix", "examples", "benchmarks", "hosts", "engines"},
    "ring3": {"torch_backend", "training", "conformance"},
}
FOLDERS = {folder: ring for ring, folders in RINGS.items() for folder in folders}
MAX_QUICK_CASES = 2
"""So many cases of a parametrized test does `--quick` run: the first, and others at equal distances."""

# Examples must not fail because a busy machine is slow: pytest's timeout is the limit, and it names the test.
hypothesis.settings.register_profile("hocket", deadline=None, print_blob=True)
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("hocket"), max_examples=20)
hypothesis.settings.load_profile("hocket")

# Background jobs of a shell ignore Ctrl-C, and so would the programs that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="few cases of ring 1; whatever starts a process fails")
    parser.addoption("--long", action="store_true", help="also the tests that are marked long")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        hypothesis.settings.load_profile("quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks each test with the ring of its folder, unless it has another one; then selects those that are to run."""
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        if folder in FOLDERS and not any(item.get_closest_marker(ring) for ring in RINGS):
            item.add_marker(FOLDERS[folder])
    if os.environ.get("HOCKET_TRANSPORT") == "tcp":
        for item in items:
            if (mark := item.get_closest_marker("shared_memory")) is not None:
                item.add_marker(pytest.mark.skip(f"of shared memory: {mark.args[0]}"))
    if not config.getoption("long"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    if config.getoption("quick"):
        kept = quick(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def quick(items: list[pytest.Item]) -> set[pytest.Item]:
    """Returns the tests of ring 1 that are not slow, with at most MAX_QUICK_CASES cases of each."""
    first = [item for item in items if item.get_closest_marker("ring1") and not item.get_closest_marker("slow")]
    names = [item.nodeid.partition("[")[0] for item in first]
    number, at = Counter(names), Counter[str]()
    kept = set()
    for item, name in zip(first, names, strict=True):
        if at[name] % -(-number[name] // MAX_QUICK_CASES) == 0:
            kept.add(item)
        at[name] += 1
    return kept


@pytest.fixture(autouse=True)
def registry_as_before() -> Iterator[None]:
    """Removes after each test what it has registered, also by loading a file."""
    before = dict(ALGORITHMS)
    yield
    registry.REGISTERED.clear()
    registry.REGISTERED.update(before)


@pytest.fixture(autouse=True, scope="session")
def nothing_is_started(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--quick`, starting a process fails."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a quick test starts no process: mark this one ring2")

    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("quick"):
            patch.setattr(subprocess.Popen, "__init__", refuse)
            patch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
            for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system"):
                patch.setattr(os, name, refuse)
        yield
