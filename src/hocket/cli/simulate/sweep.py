"""`hocket simulate --sweep`: simulates many cases, in parallel on cores or a cluster, and writes CSV and pictures."""

import argparse
import csv
import importlib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hocket.answers import MachineCase, SimulationCase
from hocket.cli.writable import check_writable, say_written
from hocket.view import saving

PICTURES = ("time", "busbw", "bound", "best", "heat")
BACKENDS = ("loky", "threading", "ray", "dask")
_CLUSTERS = {
    "ray": ("ray", "ray"),
    "dask": ("distributed", "dask distributed"),
}  # the module to import, the packages to install
_AT_ONCE = 64  # cases per batch for a backend that returns nothing before the whole batch is done


def add_arguments(parser: argparse._ArgumentGroup) -> None:
    """Declares the arguments of --sweep."""
    from hocket.cli.argument_types import job_count

    parser.add_argument(
        "--sweep",
        action="store_true",
        help="simulate every combination of the given sizes, rank counts, algorithms and topologies; print a table on "
        "a terminal, and CSV elsewhere",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the CSV to FILE instead")
    parser.add_argument("--plot", metavar="STEM", help="draw " + ", ".join(f"STEM-{name}.svg" for name in PICTURES))
    parser.add_argument(
        "--jobs", type=job_count, metavar="N", help="cases to run in parallel; -1: one per core (default 1)"
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, help="joblib's backend (default loky: processes on this machine)"
    )


def run(arguments: argparse.Namespace, cases: Sequence[SimulationCase | MachineCase]) -> int:
    """Runs the cases, with a progress bar on a terminal. Raises ValueError if a needed optional package is missing."""
    if arguments.trace is not None:
        raise ValueError("--trace is for one call, without --sweep")
    if arguments.plot is not None:
        from hocket.view import require_matplotlib

        require_matplotlib()
    pictures = [] if arguments.plot is None else [f"{arguments.plot}-{name}.svg" for name in PICTURES]
    for file in filter(None, (arguments.csv, *pictures)):  # fail before the sweep, not after it
        check_writable(file)
    rows = list(_with_bar(sweep(cases, arguments.jobs or 1, arguments.backend), len(cases)))
    if arguments.csv is not None:
        saving.write(arguments.csv, as_csv(rows))
        say_written(arguments.csv)
    drawn: list[str] = []
    if arguments.plot is not None:
        from hocket.view import draw_all, print_aside

        networks = [str(case.topology) for case in cases]
        drawn, needs = draw_all(arguments.plot, rows, networks, lambda number: cases[number].result())
        if needs:
            print_aside(f"hocket simulate: {'; '.join(needs)}")
        say_written(*drawn)
    if arguments.json:
        print(json.dumps({"rows": rows, "pictures": drawn}))
    elif arguments.csv is None and sys.stdout.isatty():
        from hocket.view import Terminal, print_sweep

        print_sweep(Terminal(), rows)
    elif arguments.csv is None:
        print(as_csv(rows), end="")
    return 0


def sweep(
    cases: Sequence[SimulationCase | MachineCase], jobs: int = 1, backend: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the row of each case, in order, as soon as it is known.

    jobs: number of cases to run in parallel, -1 for one per core. backend: joblib's; None uses that of a surrounding
    joblib.parallel_config(...). Raises ValueError if joblib (the extra `sweep`), Ray or Dask is needed and missing.
    """
    if jobs == 1 and backend is None:
        return (case.row() for case in cases)
    try:
        import joblib
    except ImportError:
        raise ValueError("--jobs and --backend need joblib: pip install 'hocket[sweep]'") from None
    if backend in _CLUSTERS:
        module, packages = _CLUSTERS[backend]
        try:
            importlib.import_module(module)
        except ImportError:
            raise ValueError(f"--backend {backend} needs {module}: pip install {packages}") from None
        return _on_ray(cases, jobs) if backend == "ray" else _on_dask(cases, jobs)
    with joblib.parallel_config(backend) if backend else joblib.parallel_config():
        return iter(_side_by_side(cases, jobs))


def _on_ray(cases: Sequence[SimulationCase | MachineCase], jobs: int) -> Iterator[dict[str, Any]]:
    """Yields the rows from Ray: the configured cluster, or one that Ray starts on this machine."""
    import joblib
    from ray.util.joblib import register_ray

    register_ray()
    with joblib.parallel_config("ray"):
        for first in range(0, len(cases), _AT_ONCE):
            yield from _side_by_side(cases[first : first + _AT_ONCE], jobs)


def _on_dask(cases: Sequence[SimulationCase | MachineCase], jobs: int) -> Iterator[dict[str, Any]]:
    """Yields the rows from Dask: the configured cluster, or one on this machine. Keeps its client until the end."""
    import joblib
    from distributed import Client

    with Client(), joblib.parallel_config("dask"):
        yield from _side_by_side(cases, jobs)


def _side_by_side(cases: Sequence[SimulationCase | MachineCase], jobs: int) -> Iterable[dict[str, Any]]:
    """Returns the rows one by one, or all at the end if joblib's backend cannot stream them."""
    import joblib
    from joblib.parallel import get_active_backend

    as_they_come = get_active_backend()[0].supports_return_generator
    found: Iterable[dict[str, Any]] = joblib.Parallel(jobs, return_as="generator" if as_they_come else "list")(
        joblib.delayed(case.row)() for case in cases
    )
    return found


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Returns a CSV header and a line for each row; the names of links share one column, and so do sizes of groups."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    lists = {"groups": " ", "dims": " ", "changes": "; ", "binding_links": " "}
    writer.writerows(
        row | {name: between.join(map(str, row[name] or ())) for name, between in lists.items()} for row in rows
    )
    return text.getvalue()


def _with_bar(rows: Iterator[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """Yields the same rows and, on a terminal, shows the progress on standard error."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(rows, "simulating", count, console=console, transient=True, disable=not console.is_terminal)
