"""Writes docs/validation.md: every published figure beside ours, and this machine's own times beside predictions.

python -m tests.network.validation [--measure]

--measure takes this machine's times anew, in some minutes in which nothing else should run; else those that the
document has stay. Exit code 1 where a figure is further off than it may be.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks import predicted
from hocket.view import name_bytes, name_seconds
from tests.network import goldens_bounds, goldens_machines, goldens_simulator

DOCUMENT = Path(__file__).parents[2] / "docs" / "validation.md"
BEGIN, END = "<!-- measured by make validate -->\n", "<!-- end of what was measured -->\n"
MOST_MEDIAN_ERROR = 0.25
_ROUNDING = 1e-12

Entry = tuple[str, float, float, float, str]
"""Name; ours and the published figure; the relative error allowed; parameters."""

HEAD = """# Validation

What the simulator and the bounds say, beside figures that others published and beside this machine's own times.
`make validate` writes this file; the tests hold every line of it. The figures are those of their authors, who are named
beside them; `tests/network/goldens.json` has them all.

"""
EXACT = """## Figures of other simulators

Values that the tests of other simulators pin: ASTRA-sim's analytical networks (GB = 2^30 bytes, times cut to
nanoseconds, every hop stored and forwarded where it says so), SimGrid's max-min solver and its LV08 model, and TACOS'
optimal all-gathers. Ours come from simulating a schedule, with the option that simulator has.

"""
BOUNDS = """## Optima, cuts and proofs

Throughput optima of all_gather, in GB/s, as the authors of ForestColl compute them: ours are the worst cut, found by
largest flows. SCCL's synthesised schedules on DGX-1V, C chunks in S steps and R rounds: a schedule that is proved, or a
proof that there is none. TE-CCL's finish times, which no bound may exceed.

"""
MEASURED = """## Times measured on GPU hosts

Microseconds of NCCL and MSCCL: H100 from the tables of Azure's msccl repository, A100 from vTrain's, H200 and the
others from nccl-tests' and nccl's issues, whose busbw is turned into time. One rule for all
(`network/simulation/machines.py`): every algorithm in every protocol is predicted, with the constants of NCCL's own
cost model, by simulating its schedule; the least time wins. The last column is what it chose. To 15 % from 16 MiB on,
and to 35 % below. Figures of training iterations are left to
the planner.

What is no constant of NCCL's: the copy out of the receive buffer, at half of what a data sheet has for the memory;
latency through switches, which counts once instead of for each piece; pieces of 512 KiB, at most 64, in chains; and
the launch of 30 us in `a100-framework`, which is fitted to the very rows that it is compared with, as those were timed
in a training program. The share of 0.85 that a reducing switch keeps up with is NCCL's, and so is how it cuts vectors
for switches.

"""
OWN = """## This machine

`benchmarks/predicted.py`: processes in private memory, on fewer cores than ranks. A core is a link that its ranks
share, main memory one that all share; three figures are calibrated, the rest is predicted.

"""


def document(own: str) -> tuple[str, list[str]]:
    """The text with this section about the machine, and the names of what is off."""
    text, off = HEAD, list[str]()
    for head, entries, unit in (
        (EXACT, goldens_simulator.entries(), ""),
        (BOUNDS, goldens_bounds.entries(), ""),
        (MEASURED, goldens_machines.entries(), ""),
    ):
        table, wrong = _table(entries)
        text += head + table + unit + "\n"
        off += wrong
    return text + OWN + BEGIN + own + END, off


def _table(entries: Iterable[Entry]) -> tuple[str, list[str]]:
    lines = ["|what|ours|published|error|allowed|parameters|", "|---|--:|--:|--:|--:|---|"]
    off = []
    for name, ours, published, allowed, parameters in entries:
        error = ours / published - 1 if published else ours
        bound = allowed == goldens_bounds.AT_MOST
        limit = "at most" if bound else _percent(allowed)
        lines.append(f"|{name}|{ours:.7g}|{published:.7g}|{_percent(error)}|{limit}|{parameters}|")
        if not (error <= _ROUNDING if bound else abs(error) <= allowed):
            off.append(name)
    return "\n".join(lines) + "\n", off


def _percent(share: float) -> str:
    return f"{share:.1%}" if abs(share) >= 5e-4 else "0" if share == 0 else f"{share:.0e}"


def own_times() -> tuple[str, list[str]]:
    """The section about this machine, measured now; and what is off."""
    return section(*predicted.compare([2, 3, 4, 6, 8], 20.0))


def section(this: predicted.Profile, rows: list[predicted.Row]) -> tuple[str, list[str]]:
    """The section for this profile and these rows; and what is off."""
    median = predicted.median_error(rows)
    text = (
        f"{this.num_cores} cores, each {this.core_bytes_per_second / 1e9:.1f} GB/s of what others have in cache; "
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
    parser.add_argument("--measure", action="store_true", help="take this machine's times anew")
    before = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    own, wrong = before.partition(BEGIN)[2].partition(END)[0], list[str]()
    if parser.parse_args().measure:
        own, wrong = own_times()
    text, off = document(own)
    DOCUMENT.write_text(text)
    off += wrong
    print(f"{DOCUMENT}: {len(off)} figures off", *off, sep="\n  ")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
