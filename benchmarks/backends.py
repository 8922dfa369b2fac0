"""Tests which reductions, types and collectives Hocket, Gloo and MPI support.

    python benchmarks/backends.py [--output docs/reports/backends.md] [--only gloo,mpi] [--limit SECONDS]

Each try runs two ranks in two new processes with a time limit, and checks the answer. Peers have virtual environments
under build/peers/, made on the first run: Gloo inside PyTorch, MPI through mpi4py. A peer that cannot be installed or
started is absent. Ranks of Hocket and Gloo are forked from a process that has imported the library; mpiexec starts
those of MPI. The page depends only on the answers, so it stays the same if nothing changed.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parent))
import backend_ranks
import peers
from backend_ranks import COLLECTIVES, DTYPES, OPS, Cell, Verdict

ROOT = Path(__file__).parents[1]
MOST_LETTERS = 140  # of a note
MOST_HANGS = 10  # so many are tried a second time: the machine may only have been busy
# The other rank's error may end the connection. A message about the connection is then not the cause.
CONSEQUENCE = re.compile("connection|closed|reset by peer|peer rank|terminat|abort", re.IGNORECASE)
TITLES = {"hocket": "Hocket", "gloo": "Gloo (torch.distributed)", "mpi": "MPI (mpi4py)"}
CELLS = [Cell("reduction", op, dtype) for op in OPS for dtype in DTYPES]
CELLS += [Cell("collective", name, "float32") for name in COLLECTIVES]
FIRST = [Cell("collective", "all_reduce", "float32")]  # if this fails, the library was not started correctly

HEAD = """\
# Which library supports what

`make backends` wrote this page from its results; do not edit it. {versions}

Two ranks on one machine made each call, in two new processes with a limit of {limit:g} s. Each answer was checked.

|cell|meaning|
|---|---|
| yes | the right answer |
| wrong | a wrong answer, without an error |
| error | an exception, or the process ended; the note quotes the first words |
| hang | no answer within the limit, in two tries |
| no | the library has no name for this type, reduction or call |
| refused | an error, correctly: the reduction has no meaning for the type |
| accepted | an answer, although the reduction has no meaning for the type |
| absent | the library cannot be installed or started on this machine |

"""


# --- peers ---------------------------------------------------------------------------------------------------------


def interpreter_of(library: str, limit: float) -> Path | None:
    """Returns the Python that has the library; makes its environment on first use. None if that fails."""
    if library == "hocket":
        return Path(sys.executable)

    def works(python: Path) -> bool:
        return [verdict.kind for verdict in probe_all(library, python, limit, FIRST).values()] == ["yes"]

    for peer in peers.MPIS if library == "mpi" else (library,):
        with contextlib.suppress(peers.Absent):
            return peers.interpreter(peer, works)
    return None


def version_of(library: str, python: Path) -> str:
    program = f"import sys; sys.path.insert(0, {os.fspath(ROOT / 'benchmarks')!r}); import backend_ranks; "
    program += f"print(backend_ranks.version({library!r}))"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def probe_all(library: str, python: Path, limit: float, cells: Sequence[Cell]) -> dict[Cell, Verdict]:
    """Returns the verdict of every cell, from a process of the library's own interpreter; fewer if it ends early."""
    command = [python, __file__, "--serve", library, "--limit", str(limit), "--cells", json.dumps(cells)]
    found = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            cell, verdict = json.loads(line)
            found[Cell(*cell)] = Verdict(*verdict)
            print(f"{library:>7}  {cell[1]:>20}  {cell[2]:<14} {' '.join(verdict)[:90]}", file=sys.stderr)
    return found


# --- in the interpreter of a library -------------------------------------------------------------------------------


def serve(library: str, limit: float, cells: Sequence[Cell]) -> None:
    """Tries every cell, and prints a line for each verdict."""
    if library != "mpi":
        backend_ranks.prepare(library)
    num_hangs = 0
    for cell in cells:
        text = backend_ranks.missing(library, cell)
        verdict = Verdict("no", text) if text else probe(library, cell, limit)
        if verdict.kind == "hang" and num_hangs < MOST_HANGS:
            num_hangs += 1
            verdict = probe(library, cell, limit)
        print(json.dumps((cell, verdict)), flush=True)


def probe(library: str, cell: Cell, limit: float) -> Verdict:
    """Tries a cell on two ranks within the limit; returns the verdict."""
    with tempfile.TemporaryDirectory(prefix="backends-", ignore_cleanup_errors=True) as folder:
        ended_badly = (run_mpi if library == "mpi" else run_forked)(library, cell, Path(folder), limit)
        told = sorted(Path(folder).glob("?.json"))
        verdicts = [Verdict(*json.loads(path.read_text())) for path in told]
    verdicts.sort(key=lambda verdict: bool(CONSEQUENCE.search(verdict.text)))  # a stable sort: otherwise by rank
    for kind in ("wrong", "error", "refused", "accepted"):
        for verdict in verdicts:
            if verdict.kind == kind:
                return verdict._replace(text=first_words(verdict.text))
    if len(verdicts) < 2:
        if ended_badly:
            return Verdict("error", first_words(ended_badly))
        return Verdict("hang", f"no answer within {limit:g} s")
    return verdicts[0]


def first_words(text: str) -> str:
    """Returns the beginning of an error, without build paths and without what differs between runs."""
    text = re.sub(r"\[/\S*\]|\[\d+\.\d+\.\d+\.\d+\]:\d+|\[[\w.-]+:\d+\]", "", text)
    words = " ".join(text.split())
    return words if len(words) <= MOST_LETTERS else words[:MOST_LETTERS].rsplit(" ", 1)[0] + " ..."


def run_forked(library: str, cell: Cell, folder: Path, limit: float) -> str:
    """Runs two forked ranks; returns how a rank without a verdict ended, or nothing if it was still running."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=backend_ranks.run_rank, args=(library, cell, folder, rank)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        wait_for(ranks, folder, limit)
        codes = [process.exitcode for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return next((f"the process ended with {ending(code)}" for code in codes if code), "")


def wait_for(ranks: Sequence[multiprocessing.process.BaseProcess], folder: Path, limit: float) -> None:
    deadline = time.monotonic() + limit
    for process in ranks:
        while process.is_alive() and time.monotonic() < deadline:
            process.join(0.02)
            if any(path.read_text().startswith('["error"') for path in folder.glob("*.json")):
                deadline = min(deadline, time.monotonic() + 2 * backend_ranks.GRACE_SECONDS)


def run_mpi(library: str, cell: Cell, folder: Path, limit: float) -> str:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = [mpiexec, "-n", "2", sys.executable, __file__, "--rank", json.dumps(cell), "--limit", str(limit)]
    environment = os.environ | peers.mpi_environment(folder) | {"BACKENDS_FOLDER": os.fspath(folder)}
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        _, text = process.communicate(timeout=limit)
        return f"mpiexec ended with {ending(process.returncode)}: {text.strip()}" if process.returncode else ""
    except subprocess.TimeoutExpired:
        process.terminate()  # not killed: it must end its ranks, which are not in its process group
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=backend_ranks.GRACE_SECONDS)
        return ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for told in folder.glob("*.segments"):  # MPICH leaves them if a rank ends without MPI_Finalize
            for segment in told.read_text().split():
                Path(segment).unlink(missing_ok=True)


def ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


# --- the document --------------------------------------------------------------------------------------------------


class Notes:
    """The numbers of the notes: one number for each text."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, verdict: Verdict | None) -> str:
        """Returns the word for a verdict, with the number of its note."""
        if verdict is None:
            return "absent"
        if verdict.kind not in ("wrong", "error", "hang", "accepted"):
            return verdict.kind
        return f"{verdict.kind} [{self.numbers.setdefault(verdict.text, len(self.numbers) + 1)}]"

    def text(self) -> str:
        """Returns the notes as a list."""
        return "".join(f"{number}. {text}\n" for text, number in self.numbers.items())


def table(corner: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    lines = [[corner, *columns], ["---"] * (len(columns) + 1), *([name, *cells] for name, cells in rows)]
    return "".join("|" + "|".join(line) + "|\n" for line in lines)


def document(results: dict[str, dict[Cell, Verdict]], versions: dict[str, str], limit: float) -> str:
    notes = Notes()
    parts = [HEAD.format(versions="; ".join(versions.values()) + f"; Python {platform.python_version()}.", limit=limit)]

    def found(library: str, cell: Cell) -> str:
        return notes.mark(results[library].get(cell))

    parts.append("## Collectives and point to point\n\nfloat32; the root, where there is one, is rank 1.\n\n")
    calls = [Cell("collective", name, "float32") for name in COLLECTIVES]
    rows = [(cell.name, [found(library, cell) for library in results]) for cell in calls]
    parts.append(table("call", [TITLES[library] for library in results], rows))
    meaningful = [cell for cell in CELLS if cell.kind == "reduction" and backend_ranks.expected(cell) is not None]
    parts.append("\n## Reductions and types\n\n")
    parts.append(f"all_reduce, {len(meaningful)} combinations of reduction and type that have a meaning:\n\n")
    counted = []
    for library, verdicts in results.items():
        kinds = Counter(verdicts[cell].kind if cell in verdicts else "absent" for cell in meaningful)
        counted.append((TITLES[library], [str(kinds[kind]) for kind in KINDS]))
    parts.append(table("library", KINDS, counted))
    for library in results:
        rows = [(op, [found(library, Cell("reduction", op, dtype)) for dtype in DTYPES]) for op in OPS]
        parts.append(f"\n### {TITLES[library]}\n\n" + table("op", DTYPES, rows))
    return "".join(parts) + ("\n## Notes\n\n" + notes.text() if notes.numbers else "")


KINDS = ("yes", "wrong", "error", "hang", "no", "absent")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "reports" / "backends.md")
    parser.add_argument("--only", default="hocket,gloo,mpi", help="libraries to try")
    parser.add_argument("--limit", type=float, default=10.0, metavar="SECONDS", help="for each try")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--cells", help=argparse.SUPPRESS)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        signal.alarm(round(arguments.limit) + 10)  # ends this rank if mpiexec was killed
        backend_ranks.run_rank("mpi", Cell(*json.loads(arguments.rank)), Path(os.environ["BACKENDS_FOLDER"]), None)
        return 0
    if arguments.serve:
        serve(arguments.serve, arguments.limit, [Cell(*cell) for cell in json.loads(arguments.cells)])
        return 0
    results, versions = {}, {}
    for library in arguments.only.split(","):
        python = interpreter_of(library, arguments.limit)
        absent = f"{TITLES[library]}: cannot be installed or started on this machine"
        versions[library] = version_of(library, python) if python else absent
        results[library] = probe_all(library, python, arguments.limit, CELLS) if python else {}
        if python and set(results[library]) != set(CELLS):
            parser.exit(
                1, f"{library}: {len(CELLS) - len(results[library])} cells were not tried; see the error above\n"
            )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(document(results, versions, arguments.limit))
    print(arguments.output)
    bad = [cell for cell, verdict in results.get("hocket", {}).items() if verdict.kind not in ("yes", "refused")]
    for cell in bad:
        print(f"hocket: {cell}: {results['hocket'][cell]}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
