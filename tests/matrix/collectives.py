"""One cell on one rank: makes the call, and compares its output with the definition and the reference."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.algorithms import ALGORITHMS
from hocket.schedule import COLLECTIVES, reference
from tests.matrix.cells import CHOSEN, Cell, is_registered, lengths, reduces
from tests.matrix.definition import (
    SHAPES,
    Array,
    difference,
    dtype_of,
    factor_of,
    interval,
    is_exact,
    moved,
    outside,
    spread,
    user_function,
)
from tests.matrix.values import values

TIMEOUT_SECONDS = 30.0
MARGIN = 16  # elements on both sides of what a call may write
FILLING = 0x5A


class Expected(NamedTuple):
    """The expected outputs by rank, to the bit, and within `bound` of `exact` if the order is free."""

    outputs: list[Array | None]  # of the reference, on the schedule that ran
    exact: list[Array | None]  # of the definition
    bound: list[Array | None] | None  # None: exact means exact


def operation(op: str, dtype: str) -> Any:
    if op == "custom":
        return hocket.op(user_function)
    return hocket.premul_sum(factor_of(dtype)) if op == "premul_sum" else op


def inputs_of(cell: Cell) -> list[Array | None]:
    """Returns the input of every rank, None if the collective takes nothing from it."""
    table, kind = lengths(cell), COLLECTIVES[cell.collective]
    wild = cell.order != "fast"
    inputs: list[Array | None] = []
    for rank in range(cell.num_ranks):
        if kind.input == "root" and rank != cell.root:
            inputs.append(None)
            continue
        if kind.num_blocks(cell.num_ranks) == 1:
            count = table[0][0]
        elif kind.input == "own":
            count = table[0][rank]
        else:
            count = sum(table[rank])
        seed = [rank, cell.num_ranks, cell.root, cell.size + 1]
        inputs.append(values(cell.dtype, cell.op, count, seed, wild=wild))
    return inputs


def expected_of(cell: Cell, ran: str, inputs: Sequence[Array | None]) -> Expected:
    """Returns the expected outputs. ran: the name of the algorithm that ran."""
    table, kind = lengths(cell), COLLECTIVES[cell.collective]
    schedule = ALGORITHMS[cell.collective, ran].build(cell.num_ranks, cell.root)
    blocks = None
    if kind.uneven:
        rows = table if kind.num_blocks(cell.num_ranks) > cell.num_ranks else table[:1]
        blocks = np.array([length for row in rows for length in row], np.int64)
    with np.errstate(all="ignore"):
        outputs = reference.run(
            schedule, inputs, operation(cell.op, cell.dtype) if cell.op else "sum", block_lengths=blocks
        )
    if not reduces(cell.collective):
        return Expected(outputs, moved(cell.collective, inputs, table, cell.root), None)
    given: list[Array] = [array for array in inputs if array is not None]
    if is_exact(cell.op, cell.dtype, cell.order):
        total = SHAPES[cell.order](cell.op, given)
        return Expected(outputs, spread(cell.collective, total, table[0], cell.root), None)
    exact, bound = (spread(cell.collective, one, table[0], cell.root) for one in interval(cell.op, given))
    return Expected(outputs, exact, bound)


def judge(rank: int, found: Any, expected: Expected) -> str | None:
    """Returns None if the output of this rank is right, else what is wrong."""
    outputs, exact = expected.outputs[rank], expected.exact[rank]
    if found is None or outputs is None or exact is None:
        return None if found is outputs is exact else f"found {found}, expected {exact} (reference {outputs})"
    if wrong := difference(found, outputs):
        return f"not the reference: {wrong}"
    if expected.bound is None:
        wrong = difference(found, exact)
    else:
        bound = expected.bound[rank]
        assert bound is not None
        wrong = outside(found, exact, bound)
    return f"not the definition: {wrong}" if wrong else None


# --- the call ------------------------------------------------------------------------------------------------------


class Memory:
    """An array between two margins, which no call may write."""

    def __init__(self, count: int, dtype: str, *, registered: bool) -> None:
        make = hocket.empty if registered else np.empty
        self._all = np.asarray(make(count + 2 * MARGIN, dtype_of(dtype)))
        self._all.view(np.uint8)[:] = FILLING
        self.array = self._all[MARGIN : MARGIN + count]

    def margins_are_whole(self) -> bool:
        before, after = self._all[:MARGIN], self._all[MARGIN + len(self.array) :]
        return all((margin.view(np.uint8) == FILLING).all() for margin in (before, after))


class Call:
    """Makes the arrays and keywords of one rank's call."""

    def __init__(self, cell: Cell, rank: int, given: Array | None) -> None:
        self.cell, self.rank, self.given = cell, rank, given
        self._memories: list[Memory] = []
        kind, table = COLLECTIVES[cell.collective], lengths(cell)
        registered = is_registered(cell, rank)
        row = table[rank]
        if kind.num_blocks(cell.num_ranks) == 1:
            num_output = row[0]
        elif kind.output == "own":
            num_output = row[rank]
        else:
            num_output = sum(row) if kind.output in ("whole", "root") else sum(one[rank] for one in table)
        has_output = kind.output != "root" or rank == cell.root
        num_input = 0 if given is None else len(given)
        self.shared = cell.in_place and has_output and (given is not None or cell.collective == "broadcast")
        self.out: Array | None
        if self.shared:  # the smaller one is the rank's own block of the larger one
            whole = self._allocate(max(num_input, num_output), registered)
            own = whole[sum(row[:rank]) : sum(row[: rank + 1])]
            self.x = own if kind.input == "own" else whole
            self.out = own if kind.output == "own" else whole
        else:
            self.x = self._allocate(num_output if cell.collective == "broadcast" else num_input, registered)
            self.out = self._allocate(num_output, registered) if has_output else None
        if given is not None:
            self.x[:] = given

    def _allocate(self, count: int, registered: bool) -> Array:
        self._memories.append(Memory(count, self.cell.dtype, registered=registered))
        return self._memories[-1].array

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        cell, table, rank = self.cell, lengths(self.cell), self.rank
        keywords: dict[str, Any] = {"timeout": TIMEOUT_SECONDS}
        kind = COLLECTIVES[cell.collective]
        if cell.algorithm != CHOSEN:
            keywords["algorithm"] = cell.algorithm
        if cell.op:
            keywords |= {"op": operation(cell.op, cell.dtype), "order": cell.order}
        if kind.rooted:
            keywords["root"] = cell.root
        implied = self.shared and cell.collective in ("all_reduce", "reduce", "broadcast")
        if self.out is not None and not implied:
            keywords["out"] = self.out
        arguments: list[Any] = [self.x]
        if kind.input == "root" and cell.collective != "broadcast" and rank != cell.root:
            arguments = [None]  # scatter ignores it on the other ranks
        if cell.collective == "all_to_all_v":
            arguments += [table[rank], [row[rank] for row in table]]
        elif kind.uneven:
            at_root_only = cell.collective in ("gather_v", "scatter_v")
            arguments.append(table[0] if not at_root_only or rank == cell.root else None)
        return arguments, keywords

    def aftermath(self) -> str | None:
        """Returns what the call touched but must not touch."""
        if self.given is not None and not self.shared and (wrong := difference(self.x, self.given)):
            return f"the input changed: {wrong}"
        if not all(memory.margins_are_whole() for memory in self._memories):
            return "memory beside the output was written"
        return None
