"""Runs cases in groups of ranks that start once, and collects the outcome of each; raises nothing.

The ranks of a group run the same cases in the same order. After a failure that makes the communicator unusable, a new
group runs the rest.
"""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import hocket
from hocket.errors import CommunicationError, HocketError
from tests.matrix.cells import Cell, Exchange
from tests.matrix.collectives import TIMEOUT_SECONDS, Call, Expected, expected_of, inputs_of, judge
from tests.matrix.exchanging import exchange

MAX_FAILURES = 20  # groups that may fail before the rest of their cases is given up


class Outcome(NamedTuple):
    """The outcome of a case: "right", "refused" as it must be, or "wrong" with the reason."""

    case: Cell | Exchange
    kind: str
    verdict: str
    reason: str = ""


class Judgement:
    """Inputs and expected outputs of cases. The first rank of a process to ask computes them; the last drops them."""

    def __init__(self, num_askers: int) -> None:
        self._num_askers = num_askers
        self._lock = threading.Lock()  # guards _entries
        self._entries: dict[int, _Entry] = {}

    def entry(self, number: int, cell: Cell) -> "_Entry":
        with self._lock:
            entry = self._entries.setdefault(number, _Entry(cell, self._num_askers))
            entry.num_asked += 1
            if entry.num_asked == self._num_askers:
                del self._entries[number]
            return entry


class _Entry:
    def __init__(self, cell: Cell, num_askers: int) -> None:
        self.cell, self.num_askers, self.num_asked, self.num_arrived = cell, num_askers, 0, 0
        self._lock = threading.Lock()  # guards the attributes below
        self._inputs: list[Any] | None = None
        self._expected: Expected | None = None

    def inputs(self) -> list[Any]:
        with self._lock:
            if self._inputs is None:
                self._inputs = inputs_of(self.cell)
            return self._inputs

    def expected(self, ran: str) -> Expected:
        with self._lock:
            if self._expected is None:
                self._expected = expected_of(self.cell, ran, self._inputs or [])
            return self._expected

    def arrive(self) -> None:
        with self._lock:
            self.num_arrived += 1


def run(cases: Sequence[Cell | Exchange], num_ranks: int, kind: str) -> list[Outcome]:
    """Returns the outcomes of the cases, all of num_ranks ranks, which are threads or processes."""
    outcomes: list[Outcome] = []
    for _ in range(MAX_FAILURES):
        rest = list(cases[len(outcomes) :])
        if not rest:
            break
        try:
            if kind == "thread":
                by_rank = hocket.run_ranks(_make_all, num_ranks, args=(rest, Judgement(num_ranks)), kind=kind)
            else:
                by_rank = hocket.run_ranks(_make_all, num_ranks, args=(rest, None), kind=kind)
        except Exception as error:  # A rank that ended without a message loses the verdicts that it has not told.
            outcomes += [Outcome(case, kind, "wrong", f"the ranks ended: {error!r}") for case in rest]
            break
        for case, *verdicts in zip(rest, *by_rank, strict=False):  # up to the first case that a rank did not finish
            outcomes.append(_outcome(case, kind, verdicts))
    outcomes += [Outcome(case, kind, "wrong", "not run: too many failed before it") for case in cases[len(outcomes) :]]
    return outcomes


def _outcome(case: Cell | Exchange, kind: str, verdicts: Sequence[str]) -> Outcome:
    distinct = set(verdicts)
    if len(distinct) == 1 and distinct <= {"right", "refused"}:
        return Outcome(case, kind, distinct.pop())
    reasons = [f"rank {rank}: {verdict}" for rank, verdict in enumerate(verdicts) if verdict != "right"]
    return Outcome(case, kind, "wrong", "; ".join(reasons[:2]))


def _make_all(cases: Sequence[Cell | Exchange], judgement: Judgement | None) -> list[str]:
    """Returns one rank's verdicts; the last one may have the failure that ended them early."""
    verdicts: list[str] = []
    judgement = judgement or Judgement(1)
    comm = hocket.init()
    try:
        for number, case in enumerate(cases):
            try:
                if isinstance(case, Exchange):
                    verdicts.append(exchange(comm, case) or "right")
                else:
                    verdicts.append(_make(comm, case, judgement.entry(number, case)))
            except CommunicationError as error:
                verdicts.append(f"{type(error).__name__}: {error}")
                break
            except Exception as error:  # the communicator can go on; otherwise the other ranks time out
                verdicts.append(f"{type(error).__name__}: {error}")
    finally:
        try:
            comm.close()
        except HocketError as error:
            if verdicts and verdicts[-1] in ("right", "refused"):
                verdicts[-1] = f"close: {type(error).__name__}: {error}"
    return verdicts


def _make(comm: Any, cell: Cell, entry: _Entry) -> str:
    if cell.collective == "barrier":
        entry.arrive()
        if comm.barrier(timeout=TIMEOUT_SECONDS) is not None:
            return "barrier returned something"
        missing = entry.num_askers - entry.num_arrived
        return f"left the barrier when {missing} ranks had not come" if missing else "right"
    inputs = entry.inputs()
    call = Call(cell, comm.rank, inputs[comm.rank])
    arguments, keywords = call.arguments()
    before = comm.statistics["algorithms"]
    try:
        result = getattr(comm, cell.collective)(*arguments, **keywords)
    except (TypeError, ValueError) as error:
        return "refused" if cell.refused and comm.statistics["algorithms"] == before else f"{error!r}"
    if cell.refused:
        return "accepted a reduction that has no meaning for this type"
    if result is not call.out:
        return "returned another array than its output"
    after = comm.statistics["algorithms"]
    (ran,) = (name.partition(":")[2] for name in after if after[name] != before.get(name))
    return judge(comm.rank, result, entry.expected(ran)) or call.aftermath() or "right"
