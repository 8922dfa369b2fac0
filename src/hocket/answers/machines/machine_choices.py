"""Which calls of a GPU library are predicted, and which of its algorithms is the fastest at which size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hocket.answers.machines.machine_case import MachineCase
from hocket.answers.network_choices import SIZES_COMPARED, ranges
from hocket.answers.network_options import DEFAULT_LEVEL
from hocket.answers.simulation_case import DEFAULT_BYTES
from hocket.errors import did_you_mean


def machine_cases(
    collective: str,
    machines: Sequence[str],
    *,
    algorithms: Sequence[str] = (),
    protocol: str = "",
    sizes: Sequence[int] = (),
    rank_counts: Sequence[int] = (),
    root: int | None = None,
) -> list[MachineCase]:
    """Returns the cases, ordered by machine, ranks, size and algorithm; without algorithms, those of the library.

    Raises ValueError or TopologyError for what the machines cannot do, before the first case runs.
    """
    from hocket.answers.simulation_case import root_of
    from hocket.network import LIBRARY_COLLECTIVES, library_algorithms, library_check

    if collective not in LIBRARY_COLLECTIVES:
        raise ValueError(
            f"expected a collective that is predicted on machines, one of {', '.join(LIBRARY_COLLECTIVES)}; found "
            f"{collective!r}{did_you_mean(collective, LIBRARY_COLLECTIVES)}"
        )
    found, root = [], root_of(collective, root)
    counts: Sequence[int | None] = rank_counts or [None]
    for named in machines:
        for num_ranks in counts:
            case = MachineCase(collective, "", 0, named, num_ranks, protocol, root)
            machine, placed = case.placed()
            if not 0 <= root < placed.num_ranks:
                raise ValueError(f"root: expected 0 to {placed.num_ranks - 1}; found {root}")
            usable = algorithms or library_algorithms(machine, collective, protocol)
            for algorithm in usable:
                library_check(machine, placed, collective, algorithm, protocol)
            found += [
                replace(case, algorithm=algorithm, num_bytes=num_bytes)
                for num_bytes in sizes or [DEFAULT_BYTES]
                for algorithm in usable
            ]
    return found


def choices_on_machine(cases: Sequence[MachineCase]) -> dict[str, Any]:
    """Returns the rows of all cases of one call, the fastest first, and the fastest per size."""
    rows = sorted((case.row() for case in cases), key=lambda row: float(row["seconds"]))
    fastest = []
    for size in SIZES_COMPARED:
        times = {case.algorithm: replace(case, num_bytes=size).result().seconds for case in cases}
        fastest.append(min(times, key=lambda name: times[name]))
    names = ("collective", "topology", "num_ranks", "num_bytes", "algorithm")
    found = {name: rows[0][name] for name in names} | {"default": "", "candidates": rows, "steps": []}
    return found | {"fastest": list(ranges(SIZES_COMPARED, fastest))}


def check_no_topology(given: Mapping[str, Any]) -> None:
    """Raises ValueError if options of topologies are given: a machine has a network and algorithms of its own."""
    found = [name for name, value in given.items() if value and not (name.endswith("level") and value == DEFAULT_LEVEL)]
    if found:
        raise ValueError(
            f"machine (--machine) predicts a GPU library on its own network and excludes {', '.join(found)}; leave one "
            "of them out, or write what differs into a machine file (docs/networks.md)"
        )
