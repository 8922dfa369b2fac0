"""The parts of the matrix: its choice of cases, its definitions, and that it finds a wrong answer."""

import itertools
from typing import Any

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import CommunicationError
from hocket.runtime import DTYPES, OPS
from hocket.schedule import COLLECTIVES, reduction
from tests.matrix import runner
from tests.matrix.cells import (
    MEMORIES,
    RANKS,
    SIZES,
    Cell,
    algorithms,
    complete,
    everything,
    is_registered,
    lengths,
    memory_of,
    pairwise_cells,
    reduces,
    sample,
)
from tests.matrix.collectives import Expected, expected_of, inputs_of, judge
from tests.matrix.definition import (
    balanced_tree,
    difference,
    dtype_of,
    has_meaning,
    interval,
    left_fold,
    outside,
)
from tests.matrix.kernels import Kernel, check
from tests.matrix.pairwise import pairs_of, pairwise
from tests.matrix.report import write
from tests.matrix.values import values

# --- which cases ---------------------------------------------------------------------------------------------------


def test_every_pair_occurs() -> None:
    shapes = [(letter, p, root) for letter in "abcde" for p in (1, 2, 5) for root in range(p)]
    free = (range(4), (False, True))
    cases = pairwise(shapes, free)
    possible = [(*shape, *rest) for shape in shapes for rest in itertools.product(*free)]
    assert set(cases) <= set(possible)
    assert set().union(*map(pairs_of, cases)) == set().union(*map(pairs_of, possible))
    assert len(cases) < len(possible) / 2
    assert cases == pairwise(shapes, free), "the same each time"


def test_a_pair_that_a_case_hides_is_tried_in_another() -> None:
    shapes = [("sum", 2), ("sum", 3), ("band", 2), ("band", 3)]
    cases = pairwise(
        shapes,
        (("float", "int"),),
        covered_by=lambda case: {(0, "band", 2, "float")} if case[::2] == ("band", "float") else pairs_of(case),
    )
    assert {("band", 2, "int"), ("band", 3, "int")} <= set(cases), "not only where it is refused"


def test_what_is_complete_is_complete() -> None:
    cells = complete()
    assert {cell.collective for cell in cells} == set(COLLECTIVES)
    for p in RANKS:
        roots = {cell.root for cell in cells if cell.collective == "reduce" and cell.num_ranks == p}
        assert roots == set(range(p)) if p <= 4 else len(roots) == 2
        of = [cell for cell in cells if (cell.collective, cell.num_ranks) == ("all_reduce", p)]
        assert len(of) == len(set(of)) == len(SIZES) * 2 * 3


def test_in_place_two_ranks_exchange_equally_much_in_both_directions() -> None:
    for p in RANKS:
        cell = Cell("all_to_all_v", "by choice", p, 0, "", "fast", "float32", 7, True)
        assert cell in complete() and lengths(cell) == [list(column) for column in zip(*lengths(cell), strict=True)]
        other = lengths(cell._replace(in_place=False))
        assert p == 1 or other != [list(column) for column in zip(*other, strict=True)]


def test_every_collective_meets_every_memory() -> None:
    met = {(cell.collective, cell.num_ranks, memory_of(cell)) for cell in complete()}
    assert met >= set(itertools.product(set(COLLECTIVES) - {"barrier"}, RANKS, MEMORIES))
    cells = {memory_of(cell): cell for cell in complete()}
    ranks = {memory: [is_registered(cells[memory], rank) for rank in range(3)] for memory in MEMORIES}
    assert ranks == {"of the process": [False] * 3, "mixed": [True, False, True], "registered": [True] * 3}


def test_every_pair_of_values_meets_in_a_case() -> None:
    cells = pairwise_cells()
    assert cells == pairwise_cells()
    for collective, dtype in itertools.product(COLLECTIVES, DTYPES):
        assert collective == "barrier" or any(
            (cell.collective, cell.dtype) == (collective, dtype) and not cell.refused for cell in cells
        )
    met = {(cell.op, cell.dtype) for cell in cells}
    assert met >= set(itertools.product(OPS, DTYPES))
    met_orders = {(cell.order, cell.dtype, cell.refused) for cell in cells if cell.op}
    assert met_orders >= {(order, dtype, False) for order in ("fast", "rank", "invariant") for dtype in DTYPES}
    for collective, p in itertools.product(COLLECTIVES, RANKS):
        named = {cell.algorithm for cell in cells if (cell.collective, cell.num_ranks) == (collective, p)}
        assert collective == "barrier" or named >= set(algorithms(collective, p, "fast")), (collective, p)


def test_sample_has_every_collective_and_rank_count() -> None:
    chosen = sample(everything(), 200, 3)
    assert chosen == sample(everything(), 200, 3)
    assert {(case[0], case.num_ranks) for case in chosen} == {(case[0], case.num_ranks) for case in everything()}


# --- definitions ---------------------------------------------------------------------------------------------------


def test_left_fold_rounds_once_and_the_tree_at_every_node() -> None:
    one, tiny = np.float16(1), np.float16(2**-11)  # half of the distance from 1 to the next float16
    arrays = [np.array([value]) for value in (one, tiny, tiny)]
    assert left_fold("sum", arrays) == np.float16(1 + 2**-10), "in float32, and then rounded"
    assert balanced_tree("sum", arrays) == one, "(1 + tiny) is rounded down, twice"
    assert balanced_tree("sum", [arrays[i] for i in (1, 2, 0)]) == np.float16(1 + 2**-10)


def test_the_tree_splits_at_the_largest_power_of_two() -> None:
    a, b, c, d, e = (np.array([value], np.float32) for value in (1e8, 1, -1e8, 1, 3))
    assert balanced_tree("sum", [a, b, c, d, e]) == ((a + b) + (c + d)) + e
    assert left_fold("sum", [a, b, c, d, e]) == (((a + b) + c) + d) + e


@pytest.mark.parametrize("op", ["sum", "prod", "avg", "premul_sum"])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if has_meaning("avg", dtype)])
def test_the_interval_holds_every_order_and_not_much_more(op: str, dtype: str) -> None:
    for p in (1, 2, 3, 8):
        arrays = [values(dtype, op, 200, [rank]) for rank in range(p)]
        exact, bound = interval(op, arrays)
        for permuted in (arrays, arrays[::-1]):
            assert outside(left_fold(op, permuted), exact, bound) is None
            assert outside(balanced_tree(op, permuted), exact, bound) is None
        if p in (2, 3):  # one contribution is missing, or there twice; with many ranks, eight bits hide it
            assert outside(left_fold(op, arrays[1:]), exact, bound)
            assert outside(left_fold(op, [*arrays, arrays[0]]), exact, bound)


@pytest.mark.parametrize(
    ("op", "expected"), [("min", [-0.0, np.nan, -np.inf, 1.0]), ("max", [0.0, np.nan, 2.0, np.inf])]
)
def test_min_and_max_of_special_values(op: str, expected: list[float]) -> None:
    left, right = np.array([0.0, np.nan, 2.0, 1.0]), np.array([-0.0, 5.0, -np.inf, np.inf])
    for arrays in ([left, right], [right, left]):
        assert difference(left_fold(op, arrays), np.array(expected)) is None


def test_difference_sees_every_bit_but_those_of_a_nan() -> None:
    quiet, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert difference(np.array([quiet]), np.array([other])) is None
    assert difference(np.array([0.0]), np.array([-0.0])) == "element 0 is 0.0, expected -0.0"
    assert difference(np.array([1, 2]), np.array([1, 3])) == "element 1 is 2, expected 3"
    assert difference(np.array([1 + 2j]), np.array([1 + 3j])) == "element 1 is 2.0, expected 3.0"


SMALL = [
    Cell(collective, name, p, p - 1 if COLLECTIVES[collective].rooted else 0, op, "fast", dtype, 7, False)
    for (collective, name), p in itertools.product(ALGORITHMS, (1, 2, 3, 5))
    for op in (("sum", "max") if reduces(collective) else ("",))
    for dtype in ("float16", "int32")
    if collective != "barrier" and ALGORITHMS[collective, name].allows(p)
]


@pytest.mark.parametrize("cell", SMALL, ids=lambda cell: "-".join(map(str, cell[:5])) + f"-{cell.dtype}")
def test_the_reference_is_the_definition(cell: Cell) -> None:
    expected = expected_of(cell, cell.algorithm, inputs_of(cell))
    for rank, output in enumerate(expected.outputs):
        assert judge(rank, output, expected) is None


def test_the_judge_finds_what_is_wrong() -> None:
    right = np.arange(4, dtype=np.float32)
    near, far = right + np.float32(1e-7), right + 1
    bound: list[Any] = [np.full(4, 1e-6)]
    assert judge(0, right, Expected([right], [right], None)) is None
    assert "reference" in str(judge(0, near, Expected([right], [right], bound)))
    assert judge(0, near, Expected([near], [right], bound)) is None
    assert "definition" in str(judge(0, near, Expected([near], [right], None)))
    assert "definition" in str(judge(0, far, Expected([far], [right], bound)))
    assert judge(0, None, Expected([right], [right], None))
    assert judge(0, right.astype(dtype_of("bfloat16")), Expected([right], [right], None))


@pytest.mark.parametrize(("op", "as_if"), [("lxor", "land"), ("max", "min"), ("sum", "prod"), ("bor", "bxor")])
def test_a_broken_reduction_shows_in_kernels_and_among_ranks(
    monkeypatch: pytest.MonkeyPatch, op: str, as_if: str
) -> None:
    monkeypatch.setitem(reduction._COMBINE, op, reduction._COMBINE[as_if])
    folds = [Kernel(name, "int16", 1000, num_sources, True) for name in OPS[:-1] for num_sources in (1, 2, 8)]
    wrong = {(fold.op, fold.num_sources) for fold in folds if check(fold) not in ("right", "refused")}
    assert wrong == {(op, 2), (op, 8)}
    cells = [
        Cell(collective, "by choice", 3, 0, op, "fast", "int16", 7, in_place)
        for collective, in_place in itertools.product(filter(reduces, COLLECTIVES), (False, True))
    ]
    outcomes = runner.run(cells, 3, "thread")
    assert len(outcomes) == len(cells) and all("not the reference" in outcome.reason for outcome in outcomes)


# --- the runner ----------------------------------------------------------------------------------------------------


def test_a_group_that_breaks_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell("all_reduce", "by choice", 2, 0, "sum", "fast", "float32", size, False) for size in (1, 7, 1000, 5)]
    make = runner._make

    def breaking(comm: Any, cell: Cell, entry: Any) -> str:
        if cell.size == 7:
            raise CommunicationError("broken")
        verdict = make(comm, cell, entry)
        return "another answer" if cell.size == 1000 and comm.rank == 1 else verdict

    monkeypatch.setattr(runner, "_make", breaking)
    found = runner.run(cells, 2, "thread")
    assert [outcome.case for outcome in found] == cells
    assert [outcome.verdict for outcome in found] == ["right", "wrong", "wrong", "right"]
    assert "broken" in found[1].reason and found[2].reason == "rank 1: another answer"


def test_what_breaks_every_group_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(*_: Any) -> str:
        raise CommunicationError("broken")

    monkeypatch.setattr(runner, "_make", breaking)
    monkeypatch.setattr(runner, "MAX_FAILURES", 2)
    cells = [Cell("all_reduce", "by choice", 1, 0, "sum", "fast", "float32", size, False) for size in (1, 7, 5)]
    assert [outcome.verdict for outcome in runner.run(cells, 1, "thread")] == ["wrong"] * 3


def test_a_wrong_cell_shows_in_the_document() -> None:
    cell = Cell("all_reduce", "ring", 2, 0, "sum", "fast", "float32", 7, False)
    outcomes = [runner.Outcome(cell, "thread", "right"), runner.Outcome(cell, "thread", "wrong", "rank 1: too late")]
    text = write(outcomes)
    assert "**2 cases, 1 wrong.**" in text
    assert "|all_reduce ring||**1 of 2 wrong**||||||" in text
    assert "|ranks that are threads of one process|2|1|0|1|" in text
    assert "rank 1: too late" in text
    rightly = write(outcomes[:1])
    assert "## Wrong" not in rightly and "|all_reduce ring||1||||||" in rightly
