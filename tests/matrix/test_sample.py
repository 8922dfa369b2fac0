"""A seeded sample of the matrix (`make matrix` runs all of it); docs/reports/matrix.md is complete."""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.runtime import DTYPES, OPS
from hocket.schedule import COLLECTIVES
from tests.matrix.__main__ import IN_PROCESSES
from tests.matrix.__main__ import SEED as PROCESSES_SEED
from tests.matrix.cells import CALLS, RANKS, every_algorithm, everything, reduces, sample
from tests.matrix.kernels import check, kernels
from tests.matrix.runner import Outcome, run

DOCUMENT = Path(__file__).parents[2] / "docs" / "reports" / "matrix.md"
BACKENDS = DOCUMENT.with_name("backends.md")
THREADS, PROCESSES = 600, 60  # cases
SEED = 7


@pytest.fixture(scope="module", autouse=True)
def cache_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sets a cache that rank processes inherit: each schedule is proved once, and the user's cache is not used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_CACHE", os.fspath(tmp_path_factory.mktemp("cache")))
        yield


def wrong(outcomes: list[Outcome]) -> list[str]:
    return [f"{one.case}: {one.reason}" for one in outcomes if one.verdict == "wrong"]


def test_kernels() -> None:
    found = {kernel: check(kernel) for kernel in itertools.islice(kernels(), SEED, None, 11)}
    assert {kernel: verdict for kernel, verdict in found.items() if verdict not in ("right", "refused")} == {}
    assert "right" in found.values() and "refused" in found.values()


@pytest.mark.parametrize("num_ranks", RANKS)
def test_ranks_that_are_threads(num_ranks: int) -> None:
    cases = [case for case in sample(everything(), THREADS, SEED) if case.num_ranks == num_ranks]
    outcomes = run(cases, num_ranks, "thread")
    assert len(outcomes) == len(cases) > len(COLLECTIVES)
    assert wrong(outcomes) == []


@pytest.mark.parametrize("num_ranks", [4, 5])
def test_every_algorithm_whose_input_and_output_are_unlike(num_ranks: int) -> None:
    """By name, in both places and all sizes; tests/runtime/test_communicator.py does the same for all others."""
    collectives = {name for name in COLLECTIVES if name in ("gather", "scatter", "all_to_all") or name.endswith("_v")}
    cases = [case for case in every_algorithm() if case.collective in collectives]
    cases = [case for case in cases if (case.num_ranks, case.dtype) == (num_ranks, "float32")]
    assert {case[:2] for case in cases} == {key for key in ALGORITHMS if key[0] in collectives}
    assert wrong(run(cases, num_ranks, "thread")) == []


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_ranks_that_are_processes(num_ranks: int) -> None:
    cases = [case for case in sample(everything(), PROCESSES, SEED + 1) if case.num_ranks == num_ranks]
    assert wrong(run(cases, num_ranks, "process")) == []


def test_document_is_complete_and_nothing_in_it_is_wrong() -> None:
    text = DOCUMENT.read_text()
    total = re.search(r"\*\*(\d+) cases, 0 wrong\.\*\*", text)
    cases = everything()
    num_cases = len(list(kernels())) + len(cases) + len(sample(cases, IN_PROCESSES, PROCESSES_SEED))
    assert total and int(total[1]) == num_cases, f"{num_cases} cases by now: run `make matrix`"
    tables = [
        [line.strip("|").split("|") for line in block.splitlines()]
        for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    ]
    by_corner: dict[str, list[tuple[set[str], set[str]]]] = {}
    for corner, *rows in tables:
        by_corner.setdefault(corner[0], []).append((set(corner[1:]), {row[0] for row in rows[1:]}))
        for row in rows[1:]:
            assert all(re.fullmatch(r"(\d+|refused)?", cell) for cell in row[1:]), row
            assert row[0] == "barrier" or corner[0] == "algorithm" or all(row[1:]), f"nothing was run: {row}"
    assert (set(DTYPES), set(COLLECTIVES)) in by_corner["collective"]
    assert by_corner["op"][:2] == [(set(DTYPES), set(OPS))] * 2
    assert by_corner["op"][2] == ({name for name in COLLECTIVES if reduces(name)}, set(OPS))
    assert (set(DTYPES), set(CALLS)) in by_corner["call"]


def test_nothing_is_missing_from_hocket_in_the_table_of_backends() -> None:
    text = BACKENDS.read_text()
    calls = dict(re.findall(r"^\|([\w, ]+)\|(\w+)[^|]*\|", text.partition("## Reductions")[0], re.MULTILINE))
    assert {calls.get(name) for name in (*COLLECTIVES, *CALLS[:4], "recv from any source")} == {"yes"}
    _, _, rest = text.partition("### Hocket\n")
    rows = {row[0]: row[1:] for row in (line.strip("|").split("|") for line in rest.partition("###")[0].split("\n"))}
    assert rows["op"] == list(DTYPES)
    assert all(set(rows[op]) <= {"yes", "refused"} and len(rows[op]) == len(DTYPES) for op in OPS)
