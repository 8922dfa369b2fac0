"""`hocket simulate --sweep`: many cases, side by side on cores or on a cluster, as CSV and pictures."""

import argparse
import csv
import importlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hocket.cli.simulate.case import Case
from hocket.cli.writable import check_writable
from hocket.view import saving

PICTURES = ("time", "busbw", "best", "heat")
BACKENDS = ("loky", "threading", "ray", "dask")
_CLUSTERS = {"ray": ("ray", "ray"), "dask": ("distributed", "dask distributed")}  # what they import, what brings it
_AT_ONCE = 64  # cases that are handed to a backend which returns nothing before all are done


def add_arguments(parser: argparse._ArgumentGroup) -> None:
    """Declares the arguments of --sweep."""
    parser.add_argument(
        "--sweep", action="store_true", help="every size, rank count, algorithm and topology given; prints CSV"
    )
    parser.add_argument("--csv", metavar="FILE", help="write the CSV there instead")
    parser.add_argument("--plot", metavar="STEM", help="draw " + ", ".join(f"STEM-{name}.svg" for name in PICTURES))
    parser.add_argument("--jobs", type=int, metavar="N", help="so many at once, -1: one a core (default 1)")
    parser.add_argument("--backend", choices=BACKENDS, help="where they run, by joblib (default loky: processes here)")


def run(arguments: argparse.Namespace, cases: Sequence[Case]) -> int:
    """Runs the cases, with a bar on a terminal. ValueError where an extra is missing that was asked for."""
    if arguments.trace is not None:
        raise ValueError("--trace is for one call, without --sweep")
    if arguments.plot is not None:
        from hocket.view import require_matplotlib

        require_matplotlib()
    pictures = [] if arguments.plot is None else [f"{arguments.plot}-{name}.svg" for name in PICTURES]
    for file in filter(None, (arguments.csv, *pictures)):  # asked before the sweep, not after
        check_writable(file)
    rows = list(_with_bar(sweep(cases, arguments.jobs or 1, arguments.backend), len(cases)))
    if arguments.csv is not None:
        saving.write(arguments.csv, as_csv(rows))
    drawn = []
    if arguments.plot is not None:
        from hocket.view import draw_all

        drawn = draw_all(arguments.plot, rows, [case.topology for case in cases], lambda number: cases[number].result())
    if arguments.json:
        print(json.dumps({"rows": rows, "pictures": drawn}))
    elif arguments.csv is None:
        print(as_csv(rows), end="")
    return 0


def sweep(cases: Sequence[Case], jobs: int = 1, backend: str | None = None) -> Iterator[dict[str, Any]]:
    """The row of each case, in their order, as they come.

    jobs: how many at once, -1 for one a core. backend: of joblib; within joblib.parallel_config(...) leave it out, and
    that decides. ValueError where joblib (the extra `sweep`), Ray or Dask is needed and absent.
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


def _on_ray(cases: Sequence[Case], jobs: int) -> Iterator[dict[str, Any]]:
    """On the cluster that Ray is told of, or one that it starts on this machine."""
    import joblib
    from ray.util.joblib import register_ray

    register_ray()
    with joblib.parallel_config("ray"):
        for first in range(0, len(cases), _AT_ONCE):
            yield from _side_by_side(cases[first : first + _AT_ONCE], jobs)


def _on_dask(cases: Sequence[Case], jobs: int) -> Iterator[dict[str, Any]]:
    """As long as rows come there is a client: of the cluster that Dask is told of, or of one on this machine."""
    import joblib
    from distributed import Client

    with Client(), joblib.parallel_config("dask"):
        yield from _side_by_side(cases, jobs)


def _side_by_side(cases: Sequence[Case], jobs: int) -> Iterable[dict[str, Any]]:
    """The rows as they come, or all in the end where joblib's backend cannot do better."""
    import joblib
    from joblib.parallel import get_active_backend

    as_they_come = get_active_backend()[0].supports_return_generator
    found: Iterable[dict[str, Any]] = joblib.Parallel(jobs, return_as="generator" if as_they_come else "list")(
        joblib.delayed(Case.row)(case) for case in cases
    )
    return found


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """A head and a line for each row; names of links stand side by side in one column."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(row | {"binding_links": " ".join(row["binding_links"])} for row in rows)
    return text.getvalue()


def _with_bar(rows: Iterator[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """The same rows; on a terminal, standard error shows how far it is."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(rows, "simulating", count, console=console, transient=True, disable=not console.is_terminal)
