"""Measures the total cost of a call's protections: fingerprints, tags, and checks for alarms.

    python benchmarks/protections.py [--starts 9]

Builds the core a second time under build/protections/, from a copy of csrc/ without protections, and compares both
builds:

- instructions of one all_reduce of 8 bytes on one rank, counted by Valgrind if it is installed: exact, but without
  messages, so without the check of each message's tag, which is one instruction and a jump;
- the time of all_reduce of 8 bytes and of 1 MiB between two ranks, where the builds take turns: the median and the
  quartiles of the differences. Pairs of ranks are started several times, because each start places memory differently.

Use this copy only for this measurement.
"""

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, os.fspath(Path(__file__).parent))
from arguments import whole
from comparison import building, measuring
from comparison.contenders import DEFAULT, Setting
from comparison.groups import Group
from comparison.results import Row, size_name

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "protections"
SIZES = (8, 1 << 20)
TURNS = 20  # per start

# File, text to remove, replacement. Each text occurs exactly once in its file.
REMOVED = (
    ("communicator/communicator.cpp", "    own().in_call.store(sequence_ + 1, std::memory_order_seq_cst);\n", ""),
    (
        "communicator/communicator.cpp",
        "    if (sequence_ % ControlPage::lead == 0) await_followers(call, interrupted, before_wait);\n",
        "",
    ),
    (
        "communicator/communicator.cpp",
        "    if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_ || passed_over_) examine(false);\n",
        "    static_cast<void>(interrupted), static_cast<void>(before_wait);\n",
    ),
    ("communicator/communicator.cpp", "    const std::uint64_t digest = fingerprint.digest();\n", ""),
    ("communicator/communicator.cpp", "call.launch, Fingerprint::tag(digest, members_.epoch())", "call.launch"),
    ("communicator/communicator.cpp", "    own().note_call(fingerprint, call.site, call.is_repeated);\n", ""),
    ("communicator/communicator.cpp", "    digest_ = mix(digest_, digest);\n", ""),
    (
        "communicator/communicator.cpp",
        "    if (sequence_ % ControlPage::lead == 0) "
        "own().digest_at(sequence_).store(digest_, std::memory_order_relaxed);\n",
        "",
    ),
    ("communicator/communicator.cpp", "    own().last_call.store(sequence_, std::memory_order_release);\n", ""),
    (
        "communicator/communicator.cpp",
        "            if (own().alarm.load(std::memory_order_acquire) != seen_alarm_) examine(true);\n"
        "            if (--polls == 0) return linger() && executor_->advance();\n",
        "            if (--polls == 0) return linger() && executor_->advance();\n",
    ),
    (
        "communicator/communicator.cpp",
        "            if (own().alarm.load(std::memory_order_acquire) != seen_alarm_) examine(true);\n"
        "        }\n        return false;\n",
        "        }\n        return false;\n",
    ),
    (
        "communicator/communicator.cpp",
        "    if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_) {\n",
        "    if (false) {\n",
    ),
    ("communicator/communicator.cpp", "    own().in_call.store(0, std::memory_order_release);\n", ""),
    # Ranks no longer publish their calls, so no rank can wait for them.
    ("communicator/communicator.cpp", "        if (!failure_) await_members(interrupted);\n", ""),
    ("executor/remote.cpp", "        if (view.tag != tag) throw ForeignMessage{peer_, view.tag};\n", ""),
    ("executor/remote.cpp", "    if (view.tag != tag) throw ForeignMessage{peer_, view.tag};\n", ""),
    ("executor/short_run.cpp", "            if (view.tag != tag) throw ForeignMessage{source.peer, view.tag};\n", ""),
)

# Each Python imports this first, so that hocket loads the core without protections.
REPLACE = """
import os, sys
from importlib.util import spec_from_file_location

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, os.environ["HOCKET_CORE"]) if name == "hocket._core" else None

sys.meta_path.insert(0, Finder)
"""


def without_protections(name: str, text: str) -> str:
    """Returns a source file without protections; raises RuntimeError if a text to remove is not there exactly once."""
    for file, old, new in REMOVED:
        if file == name:
            if text.count(old) != 1:
                raise RuntimeError(f"{name}: expected this once, found it {text.count(old)} times: {old.strip()}")
            text = text.replace(old, new)
    return text


def copy_source(source: Path) -> None:
    """Copies csrc/ without protections. Files keep their times, so that only changed files are compiled again."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "csrc", source / "csrc")
    shutil.copy2(ROOT / "CMakeLists.txt", source)
    for name in {name for name, _, _ in REMOVED}:
        path = source / "csrc" / name
        newest = max(path.stat().st_mtime, Path(__file__).stat().st_mtime)
        path.write_text(without_protections(name, path.read_text()))
        os.utime(path, (newest, newest))


def build() -> dict[str, str]:
    """Returns the environment that runs hocket without protections. Raises RuntimeError if the core cannot be built."""
    try:
        import nanobind

        measuring.say("building the core without protections: a minute or two on the first run")
        copy_source(BUILD / "source")
        bin_folder, made = Path(sys.executable).parent, BUILD / "made"
        found = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.cmake_dir()}"]
        tools = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={bin_folder / 'ninja'}"]
        quiet = ["--log-level=WARNING", "--compile-no-warning-as-error"]
        for command in (
            [bin_folder / "cmake", "-S", BUILD / "source", "-B", made, *tools, *quiet, *found],
            [bin_folder / "cmake", "--build", made, "--target", "_core"],
        ):
            subprocess.run(command, check=True, capture_output=True)
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"the core without protections cannot be built: {error}") from error
    (BUILD / "sitecustomize.py").write_text(REPLACE)
    [core] = made.glob("_core*.so")
    return {"PYTHONPATH": os.fspath(BUILD), "HOCKET_CORE": os.fspath(core)}


class Cost(NamedTuple):
    """Seconds of a call, and the seconds of its protections, for each turn."""

    safe: list[float]
    more: list[float]


def timed(without: Mapping[str, str], touch: Path, starts: int, turns: int = TURNS) -> dict[int, Cost]:
    """Returns the costs by bytes. without: from build(); touch: from building.touch_module. Raises groups.Failed."""
    found = {num_bytes: Cost([], []) for num_bytes in SIZES}
    for _ in range(starts):
        with contextlib.ExitStack() as ending:
            pairs = []
            for setting in (DEFAULT, Setting("without protections", environment=without)):
                pairs.append(Group("hocket", setting, 2, touch))
                ending.callback(pairs[-1].close)
            take_turns(pairs, turns, found)
    return found


def take_turns(pairs: list[Group], turns: int, found: dict[int, Cost]) -> None:
    """Adds `turns` measurements to `found`. pairs: ranks with protections, then ranks without."""
    rows = [Row("all_reduce", num_bytes, "float32", 2) for num_bytes in SIZES]
    most, effort = max(SIZES), measuring.TRIAL_EFFORT
    batches = [measuring.batches_for(pairs[0], row, "private", most, effort)._replace(num_batches=1) for row in rows]
    for turn in range(turns):
        for row, batch in zip(rows, batches, strict=True):
            seconds = {}
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                loops = measuring.slowest_of(pairs[which], row, "private", most, batch, untouched=True)
                [seconds[which]] = loops["untouched"]
            found[row.num_bytes].safe.append(seconds[0])
            found[row.num_bytes].more.append(seconds[0] - seconds[1])


def called(num_calls: int) -> None:
    import numpy as np

    import hocket

    with hocket.init() as comm:
        x = np.zeros(2, "f4")
        for _ in range(num_calls):
            comm.all_reduce(x)


def instructions(environment: dict[str, str]) -> float:
    """Returns the instructions of one call: the difference between many and few calls, divided by their number."""
    totals, counts = [], (1000, 41_000)  # far apart, because the start varies a little
    for count in counts:
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, __file__]
        command += ["--count", str(count)]
        errors = subprocess.run(
            command, env=os.environ | environment, check=True, capture_output=True, text=True
        ).stderr
        found = re.search(r"Collected\s*:\s*(\d+)", errors)
        assert found is not None, errors
        totals.append(int(found[1]))
    return (totals[1] - totals[0]) / (counts[1] - counts[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--starts", type=whole(1), default=9, help="how often the pairs of ranks are started (9)")
    parser.add_argument("--count", type=whole(1), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count:
        return called(arguments.count)
    without = build()
    if shutil.which("valgrind"):
        both, bare = instructions({}), instructions(without)
        print(f"instructions of an all_reduce of 8 B, one rank: {both:.0f}, {both - bare:.0f} of them protections")
    touch = building.touch_module(ROOT / "build" / "compare")
    for num_bytes, cost in timed(without, touch, arguments.starts).items():
        safe = statistics.median(cost.safe) * 1e9
        least, median, most = (seconds * 1e9 for seconds in statistics.quantiles(cost.more, n=4))
        print(
            f"all_reduce of {size_name(num_bytes)}, two ranks: {safe:.0f} ns; protections: {median:.0f} ns "
            f"({least:.0f}..{most:.0f}), {median / safe:.1%}"
        )
    return None


if __name__ == "__main__":
    main()
