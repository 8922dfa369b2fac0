"""What the protections of a call cost: fingerprints, tags, and looks at alarms, all together.

    python benchmarks/protections.py [--rounds 9] [--calls 2000]

Builds the core once more under build/protections/, from a copy of csrc/ without them, and compares the two:

- instructions of one all_reduce of 8 bytes of one rank, counted by Valgrind where it is installed: exact, but without
  the wire, and so without the comparison of a tag for each message, which is one instruction and a jump;
- the time of all_reduce of 8 bytes and of 1 MiB between two ranks, the two cores taking turns: the median of the
  differences, and their quartiles.

The copy can do nothing but be measured: nobody shall use it.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter_ns

import nanobind
import numpy as np

import hocket

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "protections"
SIZES = {"8 B": 2, "1 MiB": 1 << 18}
NUM_BATCHES = 15

# File, what goes, and what comes instead. Each stands there once.
REMOVED = (
    ("communicator.cpp", "    own().in_call.store(1, std::memory_order_seq_cst);\n", ""),
    (
        "communicator.cpp",
        "    if (sequence_ % ControlPage::lead == 0) await_followers(call, interrupted, before_wait);\n",
        "",
    ),
    (
        "communicator.cpp",
        "    if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_ || passed_over_) examine(false);\n",
        "    static_cast<void>(interrupted), static_cast<void>(before_wait);\n",
    ),
    ("communicator.cpp", "    const std::uint64_t digest = fingerprint.digest();\n", ""),
    ("communicator.cpp", "    launch.tag = Fingerprint::tag(digest);\n", ""),
    ("communicator.cpp", "    own().calls[sequence_ % ControlPage::history].write(fingerprint);\n", ""),
    (
        "communicator.cpp",
        "    digest_ = (digest_ ^ digest) * 0x9e3779b97f4a7c15U; // odd, so nothing is lost; and the order counts\n",
        "",
    ),
    (
        "communicator.cpp",
        "    if (sequence_ % ControlPage::lead == 0) "
        "digest_at(rank(), sequence_).store(digest_, std::memory_order_relaxed);\n",
        "",
    ),
    ("communicator.cpp", "    own().last_call.store(sequence_, std::memory_order_release);\n", ""),
    (
        "communicator.cpp",
        "            if (own().alarm.load(std::memory_order_acquire) != seen_alarm_) examine(true);\n"
        "            if (--polls == 0) return false;\n",
        "            if (--polls == 0) return false;\n",
    ),
    (
        "communicator.cpp",
        "            if (own().alarm.load(std::memory_order_acquire) != seen_alarm_) examine(true);\n"
        "            if (!rest(call, until)) return false;\n",
        "            if (!rest(call, until)) return false;\n",
    ),
    (
        "communicator.cpp",
        "    if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_) {\n",
        "    if (false) {\n",
    ),
    ("communicator.cpp", "    own().in_call.store(0, std::memory_order_release);\n", ""),
    # Nobody says any more which calls it has made, so nobody can wait for them.
    ("communicator.cpp", "        if (!failure_) await_members(interrupted);\n", ""),
    ("executor.cpp", "        if (view.tag != launch_.tag) throw ForeignMessage{peer};\n", ""),
    ("executor.cpp", "    if (view.tag != launch_.tag) throw ForeignMessage{receives_[cursor].peer};\n", ""),
)

# Imported by each Python before all else; hocket then finds the other core.
REPLACE = """
import os, sys
from importlib.util import spec_from_file_location

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, os.environ["HOCKET_CORE"]) if name == "hocket._core" else None

sys.meta_path.insert(0, Finder)
"""


def build() -> dict[str, str]:
    """The environment in which hocket runs without protections."""
    source = BUILD / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "csrc", source / "csrc")
    shutil.copy(ROOT / "CMakeLists.txt", source)
    for name, old, new in REMOVED:
        path = source / "csrc" / name
        text = path.read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name}: expected this once, found it {text.count(old)} times:\n{old}")
        path.write_text(text.replace(old, new))
    bin_folder, made = Path(sys.executable).parent, BUILD / "made"
    found = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.cmake_dir()}"]
    tools = [
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={bin_folder / 'ninja'}",
        "--log-level=WARNING",
        "--compile-no-warning-as-error",
    ]
    subprocess.run([bin_folder / "cmake", "-S", source, "-B", made, *tools, *found], check=True)
    subprocess.run([bin_folder / "cmake", "--build", made], check=True, stdout=subprocess.DEVNULL)
    (BUILD / "sitecustomize.py").write_text(REPLACE)
    [core] = made.glob("_core*.so")
    return {"PYTHONPATH": os.fspath(BUILD), "HOCKET_CORE": os.fspath(core)}


def timed(num_calls: int) -> dict[str, float]:
    """Nanoseconds of a call by size, on one of two ranks."""
    found = {}
    with hocket.init() as comm:
        for name, count in SIZES.items():
            x, num = np.zeros(count, "f4"), num_calls if count < 1024 else max(1, num_calls // 200)
            batches = []
            for _ in range(NUM_BATCHES):
                comm.barrier()
                started = perf_counter_ns()
                for _ in range(num):
                    comm.all_reduce(x)
                batches.append((perf_counter_ns() - started) / num)
            found[name] = statistics.median(batches)
    return found


def called(num_calls: int) -> None:
    with hocket.init() as comm:
        x = np.zeros(2, "f4")
        for _ in range(num_calls):
            comm.all_reduce(x)


def run(
    environment: dict[str, str], *arguments: object, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, __file__, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True)


def instructions(environment: dict[str, str]) -> float:
    """Of one call, as what more calls take more."""
    totals, counts = [], (1000, 41_000)  # what starting takes differs a little
    for count in counts:
        counted = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
        errors = run(environment, "--count", count, before=counted).stderr
        found = re.search(r"Collected\s*:\s*(\d+)", errors)
        assert found is not None, errors
        totals.append(int(found[1]))
    return (totals[1] - totals[0]) / (counts[1] - counts[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="of each core (9)")
    parser.add_argument("--calls", type=int, default=2000, help="of a batch, of 8 bytes (2000)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count:
        return called(arguments.count)
    if arguments.measure:
        ranks = hocket.run_ranks(timed, 2, args=(arguments.calls,), kind="process")
        return print(json.dumps({name: max(of[name] for of in ranks) for name in SIZES}))
    without = build()
    if shutil.which("valgrind"):
        both, bare = instructions({}), instructions(without)
        print(f"instructions of an all_reduce of 8 B, one rank: {both:.0f}, {both - bare:.0f} of them protections")
    rounds: list[list[dict[str, float]]] = [[], []]
    for number in range(arguments.rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            answer = run(without if which else {}, "--measure", "--calls", arguments.calls).stdout
            rounds[which].append(json.loads(answer))
    for name in SIZES:
        safe = statistics.median(one[name] for one in rounds[0])
        more = [one[name] - other[name] for one, other in zip(*rounds, strict=True)]
        least, median, most = statistics.quantiles(more, n=4)
        print(
            f"all_reduce of {name}, two ranks: {safe:.0f} ns, of which protections {median:.0f} ns "
            f"({least:.0f}..{most:.0f}), {median / safe:.1%}"
        )
    return None


if __name__ == "__main__":
    main()
