"""No broken mutant of a built-in algorithm passes the proof; docs/reports/mutation.md has every algorithm."""

import re
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS
from tests.schedule.mutants import ROW_MUTATIONS, keeps_its_promise, keys, mutation_score, reorder_rows

DOCUMENT = Path(__file__).parents[2] / "docs" / "reports" / "mutation.md"


@pytest.mark.slow("harmless mutants of plans are known by 500 interleavings each")
def test_verify_rejects_every_broken_mutant() -> None:
    score = mutation_score(num_rows=1050, num_plans=180)
    print(score)
    assert not score.missed
    broken = {kind: sum(n for (of, _), n in score.broken.items() if of == kind) for kind, _ in score.broken}
    assert all(broken[mutation.__name__] >= 20 for mutation in ROW_MUTATIONS if mutation is not reorder_rows)
    assert broken["drop_dependency"] >= 50 and broken["change_number"] >= 50
    assert {name for _, name in score.broken} >= {" ".join(key) for key in ALGORITHMS}


def test_untouched_schedules_keep_their_promise() -> None:
    for key, algorithm in ALGORITHMS.items():
        for num_ranks in (1, 2, 3, 6, 8):
            if algorithm.allows(num_ranks):
                assert keeps_its_promise(algorithm.build(num_ranks)), (key, num_ranks)


def test_the_document_has_every_algorithm_and_none_was_missed() -> None:
    text = DOCUMENT.read_text()
    caught = re.search(r"\*\*(\d+) of (\d+) broken mutants caught", text)
    assert caught and caught[1] == caught[2] and int(caught[1]) > 50 * len(keys())
    rows = dict(re.findall(r"^\|(\w+ [\w ]+)\|(\d+)\|", text, re.MULTILINE))
    assert {" ".join(key) for key in keys()} == set(rows) and all(int(number) > 10 for number in rows.values())
