"""Writes docs/reports/validation.md: predictions compared with published numbers and with times of one machine.

python -m tests.network.validation [--measure]

--measure times this machine again, which takes some minutes; nothing else should run. Without it, the document keeps
its times. Exit code 1 if an error is larger than allowed.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hocket.view import name_bytes, name_seconds
from tests.network import goldens_bounds, goldens_machines, goldens_simulator

if TYPE_CHECKING:
    from benchmarks import predicted

DOCUMENT = Path(__file__).parents[2] / "docs" / "reports" / "validation.md"
BEGIN, END = "<!-- measured by make validate -->\n", "<!-- end of what was measured -->\n"
MOST_MEDIAN_ERROR = 0.25
_ROUNDING = 1e-12

Entry = tuple[str, float, float, float, str]
"""Name; Hocket's number and the published one; the relative error allowed; parameters."""

HEAD = """# Validation

This page compares the simulator and its lower bounds with published numbers, and with times that one machine measured.
`make validate` wrote it; do not edit it. The tests check every comparison with a published number. The numbers belong
to the authors that each section names; `tests/network/goldens.json` has them all.

*error* is Hocket's number relative to the published one; *allowed* is the largest error that the tests accept. Where
*allowed* says "at most", Hocket's number is a lower bound, which must not exceed the published one.

"""
EXACT = """## Numbers of other simulators

The tests of other simulators require these values:

- ASTRA-sim's analytical networks. 1 GB is 2^30 bytes, and times are cut to whole nanoseconds. Where the row says so,
  every hop stores a message and then forwards it.
- SimGrid's max-min solver and its LV08 model.
- The optimal all-gathers of TACOS.

Hocket simulates a schedule with the option that matches the other simulator.

"""
BOUNDS = """## Optima, cuts and proofs

- ForestColl: its authors compute the optimal throughput of all_gather, in GB/s. Hocket finds the worst cut by maximum
  flows.
- SCCL: its authors synthesise schedules on DGX-1V with C chunks, S steps and R rounds. Hocket finds such a schedule and
  proves it, or proves that there is none.
- TE-CCL: no lower bound may exceed its finish times.

"""
MEASURED = """## Times measured on GPU hosts

The published numbers are times of NCCL and MSCCL, in microseconds. The H100 rows are from the tables of Azure's msccl
repository, the A100 rows from vTrain. The H200 rows and all others are from issues of nccl-tests and nccl; their bus
bandwidth is converted to time.

`hocket.simulate(..., machine=NAME)`, as `hocket simulate --machine NAME` does, predicts all of them, each machine with
one file of constants (`network/machines/`). One rule chooses: every algorithm of the library in every protocol is
simulated, with the constants of NCCL's own cost model, and the shortest time counts. For MSCCL, direct exchanges count
too. The last column shows which algorithm and protocol it was. The allowed error is 15 % from 16 MiB on, and 35 %
below. Times of training iterations are not compared.

Not all constants are NCCL's; the files name the source of each:

- The copy out of a ring's receive buffer runs at half the memory bandwidth of the data sheet.
- The latency of switches counts once, not once for each piece.
- NVLinks of V100 carry 22.5 GB/s. On B200 a hop takes 0.8 us more, and NVLS loses as much at medium sizes as NCCL
  assumes for NVLSTree. All three are measured.
- The launch takes 30 us on A100. This value is fitted to the very rows that it is compared with, because they were
  timed in a training program and not in a CUDA graph.

"""
OTHER_LOGS = """### Other logs

These logs of nccl-tests and rccl-tests showed which of NCCL's rules the model lacked. They did not set constants,
except those of one host of V100 or B200. *within* counts the times whose error is allowed as above.

Most errors have one of these causes. One process with 8 GPUs begins each call 30 to 40 us later than a process for each
GPU. Cards of some clouds are slower than the machine's: those of Vultr carry 40 to 45 GB/s by their own test. Times of
medium sizes between hosts and of all_to_all are predicted too short.

"""
OWN = """## One machine

`benchmarks/predicted.py` times ranks that are processes with private memory. If there are more ranks than cores, ranks
share cores. In the model a core is a link that its ranks share, and main memory is a link that all ranks share. Three
numbers are calibrated: the rate of a core, and the cost of a message with and without shared cores. The memory
bandwidth is that of `hocket tune --measure`. The model predicts everything else.

"""


def document(own: str) -> tuple[str, list[str]]:
    """Returns the text with this section about the machine, and the names of entries with too large errors."""
    text, off = HEAD, list[str]()
    for head, entries, unit in (
        (EXACT, goldens_simulator.entries(), ""),
        (BOUNDS, goldens_bounds.entries(), ""),
        (MEASURED, goldens_machines.entries(), ""),
    ):
        table, wrong = _table(entries)
        text += head + table + unit + "\n"
        off += wrong
    return text + OTHER_LOGS + _other_logs() + OWN + BEGIN + own + END, off


def _table(entries: Iterable[Entry]) -> tuple[str, list[str]]:
    lines = ["|what|Hocket|published|error|allowed|parameters|", "|---|--:|--:|--:|--:|---|"]
    off = []
    for name, ours, published, allowed, parameters in entries:
        error = ours / published - 1 if published else ours
        bound = allowed == goldens_bounds.AT_MOST
        limit = "at most" if bound else _percent(allowed)
        lines.append(f"|{name}|{ours:.7g}|{published:.7g}|{_percent(error)}|{limit}|{parameters}|")
        if not (error <= _ROUNDING if bound else abs(error) <= allowed):
            off.append(name)
    return "\n".join(lines) + "\n", off


def _other_logs() -> str:
    lines, within, total = ["|machine|ranks|collective|within|median error|source|", "|---|--:|---|--:|--:|---|"], 0, 0
    with TemporaryDirectory() as folder:
        for log in goldens_machines.OTHERS:
            errors = goldens_machines.errors_of(log, Path(folder))
            good = sum(abs(error) <= goldens_machines.allowed(size) for size, error in errors)
            middle = _percent(median(error for _, error in errors))
            machine = ", ".join(filter(None, (log["machine"], log["fabric"])))
            about = f"{machine}|{log['ranks']}|{log['collective']}|{good} of {len(errors)}|{middle}|{log['source']}"
            lines.append(f"|{about}|")
            within, total = within + good, total + len(errors)
    return "\n".join(lines) + f"\n\n{within} of {total} times, {within / total:.0%}, are within.\n\n"


def _percent(share: float) -> str:
    return f"{share:.1%}" if abs(share) >= 5e-4 else "0" if share == 0 else f"{share:.0e}"


def own_times() -> tuple[str, list[str]]:
    """Measures this machine; returns its section, and the entries with too large errors."""
    from benchmarks import predicted  # needs the compiled core, unlike the rest of this module

    return section(*predicted.compare([2, 3, 4, 6, 8], 20.0))


def section(this: "predicted.Profile", rows: "list[predicted.Row]") -> tuple[str, list[str]]:
    """Returns the section for this profile and these rows, and the entries with too large errors."""
    from benchmarks import predicted

    median = predicted.median_error(rows)
    text = (
        f"{this.num_cores} cores, each {this.core_bytes_per_second / 1e9:.1f} GB/s of data in other cores' caches; "
        f"memory {this.memory_bytes_per_second / 1e9:.1f} GB/s; a message {name_seconds(this.message_seconds)}, a turn "
        f"on a shared core {name_seconds(this.turn_seconds)}. **Median error {median:.1%}** of {len(rows)} calls.\n\n"
        "|ranks|median error|within 25 %|\n|--:|--:|--:|\n"
    )
    for count in sorted({row.num_ranks for row in rows}):
        here = [row for row in rows if row.num_ranks == count]
        within = sum(abs(row.error) <= MOST_MEDIAN_ERROR for row in here)
        text += f"|{count}|{predicted.median_error(here):.1%}|{within} of {len(here)}|\n"
    text += "\n|collective|algorithm|ranks|bytes|measured|predicted|error|\n|---|---|--:|--:|--:|--:|--:|\n"
    for row in rows:
        times = f"{name_seconds(row.measured)}|{name_seconds(row.predicted)}|{row.error:+.0%}"
        text += f"|{row.collective}|{row.algorithm}|{row.num_ranks}|{name_bytes(row.num_bytes)}|{times}|\n"
    return text, [f"this machine: {median:.1%}"] if median > MOST_MEDIAN_ERROR else []


def main() -> int:
    """Writes the document; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="time this machine again")
    before = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    own, wrong = before.partition(BEGIN)[2].partition(END)[0], list[str]()
    if parser.parse_args().measure:
        own, wrong = own_times()
    text, off = document(own)
    DOCUMENT.write_text(text)
    off += wrong
    print(f"{DOCUMENT}: {len(off)} numbers off", *off, sep="\n  ")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
