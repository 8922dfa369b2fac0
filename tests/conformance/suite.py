"""PyTorch's own test suite of a backend (torch.testing._internal.distributed.distributed_test), run on any backend.

    python -m tests.conformance.suite                        Hocket on 4 ranks, started by fork
    python -m tests.conformance.suite --backend gloo         for comparison
    python -m tests.conformance.suite -k 'all_reduce|barrier' --start spawn --json result.json

The suite is changed in memory only. It skips tests by the names of backends, so Hocket's name also equals "gloo" and
"mpi" in comparisons. Tests for 8 and more ranks, whose groups need 4, run on 4. dist.monitored_barrier, which requires
the name "gloo", calls the process group.
"""

import argparse
import importlib.util
import json
import logging
import os
import re
import sys
import tempfile
import time
import types
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

_SUITE = "torch.testing._internal.distributed.distributed_test"
_SETTINGS = "HOCKET_CONFORMANCE"  # the environment variable that brings the settings to a spawned rank


def parse_arguments() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="hocket")
    parser.add_argument("--world-size", type=int, default=4, help="ranks (default 4)")
    parser.add_argument("--start", default="fork", choices=["fork", "spawn"], help="how ranks start (default fork)")
    parser.add_argument("--timeout", type=int, default=60, help="seconds for a test (default 60)")
    parser.add_argument("-k", default="", help="run the tests whose names match this regular expression")
    parser.add_argument("--logs", default="", help="folder for what ranks print (default a new one)")
    parser.add_argument("--json", default="", help="file for the result of each test")
    settings = vars(parser.parse_args())
    settings["logs"] = settings["logs"] or tempfile.mkdtemp(prefix="conformance-")
    Path(settings["logs"]).mkdir(parents=True, exist_ok=True)
    return settings


class Name(str):
    """The backend's name, which also equals the names that the suite asks for."""

    __slots__ = ()
    also = ("gloo", "mpi")  # "mpi": tests of all_to_all on the CPU

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other in self.also

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.also[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


if __name__ == "__main__":
    os.environ[_SETTINGS] = json.dumps(parse_arguments())
SETTINGS: dict[str, Any] = json.loads(os.environ[_SETTINGS])

# The suite reads these when it is imported.
os.environ["BACKEND"] = SETTINGS["backend"]
os.environ["WORLD_SIZE"] = str(SETTINGS["world_size"])
if __name__ == "__main__":  # a spawned rank already has those of its test in its environment
    os.environ["TEMP_DIR"] = SETTINGS["logs"]
    os.environ["INIT_METHOD"] = f"file://{SETTINGS['logs']}/rendezvous"
os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(SETTINGS["timeout"])
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.distributed_c10d as c10d  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402

import hocket.torch_backend  # noqa: E402, F401


def load_suite() -> types.ModuleType:
    """Imports the suite. Its classes need Hocket's name now, because this is when it decides which tests to skip."""
    common_distributed.logger.setLevel(logging.ERROR)
    common_distributed.TIMEOUT_DEFAULT = SETTINGS["timeout"]
    common_distributed.TIMEOUT_OVERRIDE = {
        "test_ddp_uneven_inputs": 3 * SETTINGS["timeout"],
        "test_DistributedDataParallel": 2 * SETTINGS["timeout"],
    }
    if SETTINGS["world_size"] >= 4:
        common_distributed.skip_if_small_worldsize = lambda function: function
    for feature in ("ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(SETTINGS["backend"])
    place = importlib.util.find_spec(_SUITE)
    assert place is not None and place.origin is not None
    text, line = Path(place.origin).read_text(), 'BACKEND = os.environ["BACKEND"]'
    assert line in text
    module = types.ModuleType(_SUITE)
    module.__file__, module.__package__ = place.origin, _SUITE.rpartition(".")[0]
    module.__dict__["_BACKEND"] = Name(SETTINGS["backend"])
    sys.modules[_SUITE] = module
    exec(compile(text.replace(line, "BACKEND = _BACKEND", 1), place.origin, "exec"), module.__dict__)
    module.__dict__["default_pg_timeout"] = SETTINGS["timeout"] // 2
    return module


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    group = group if group is not None else c10d._get_default_group()
    if c10d._rank_not_in_group(group) or c10d.get_backend(group) != SETTINGS["backend"]:
        _monitored_barrier(group, timeout, wait_all_ranks)
    else:
        seconds = timeout if isinstance(timeout, float) else (timeout or c10d.default_pg_timeout).total_seconds()
        group.monitored_barrier(timedelta(seconds=seconds), wait_all_ranks=wait_all_ranks)


torch.set_num_threads(1)
suite = load_suite()
_monitored_barrier = c10d.monitored_barrier
if SETTINGS["backend"] != "gloo":
    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


class Conformance(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        self._start_processes(torch.multiprocessing.get_context(SETTINGS["start"]).Process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **options: Any) -> None:
        log = os.open(f"{SETTINGS['logs']}/{test_name}.{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        super()._run(rank, test_name, file_name, pipe, **options)


class Result(unittest.TestResult):
    """Prints a line for each test that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, tuple[str, str]] = {}
        self._start = 0.0

    def startTest(self, test: Any) -> None:  # noqa: N802
        super().startTest(test)
        self._start = time.monotonic()

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self._add(test, "passed", "")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self._add(test, "skipped", reason)

    def addFailure(self, test: Any, error: Any) -> None:  # noqa: N802
        self._add(test, "failed", str(error[1]))

    def addError(self, test: Any, error: Any) -> None:  # noqa: N802
        self._add(test, "failed", str(error[1]))

    def _add(self, test: Any, outcome: str, reason: str) -> None:
        name = test._testMethodName
        self.rows[name] = outcome, reason
        if outcome != "skipped":
            lines = [line for line in reason.splitlines() if re.search(r"Error|Exception|Timeout", line)]
            seconds = time.monotonic() - self._start
            print(
                f"{outcome} {seconds:6.1f} s  {name}  {lines[-1][:160] if lines else ''}",
                file=sys.__stdout__,
                flush=True,
            )


def main() -> int:
    names = unittest.TestLoader().getTestCaseNames(Conformance)
    result, start = Result(), time.monotonic()
    for name in names:
        if re.search(SETTINGS["k"], name):
            Conformance(name).run(result)
    counts = {
        one: sum(outcome == one for outcome, _ in result.rows.values()) for one in ("passed", "failed", "skipped")
    }
    print(
        f"{SETTINGS['backend']} on {SETTINGS['world_size']} ranks by {SETTINGS['start']}, torch {torch.__version__}: "
        + ", ".join(f"{count} {one}" for one, count in counts.items())
        + f" in {time.monotonic() - start:.0f} s; what ranks printed is in {SETTINGS['logs']}"
    )
    if SETTINGS["json"]:
        Path(SETTINGS["json"]).write_text(json.dumps({"counts": counts, "tests": result.rows}, indent=1))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
