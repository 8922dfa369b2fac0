"""From rounds to rules: which algorithm wins clearly, and how ranges are merged."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.runtime import Policy, Rule, choose
from hocket.runtime.tuning.rules import as_good, clear_winners, loses_clearly, merged, ratios, wins_again

STEADY = [10.0, 10.1, 9.9, 10.0, 10.2]


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ({"ring": [8.0, 8.1, 7.9, 8.0, 8.2]}, ["ring"]),
        ({"ring": [9.8, 9.9, 9.7, 9.8, 9.9]}, []),  # faster, but not by much
        ({"ring": [5.0, 14.0, 5.0, 14.0, 5.0]}, []),  # by more, but not beyond the spread
        ({"ring": [5.0, 5.0]}, []),  # dropped: never compared with the default
        ({"ring": [12.0, 12.1, 11.9, 12.0, 12.2]}, []),
        ({"ring": [8.0] * 5, "tree": [5.0] * 5}, ["tree"]),
        ({"ring": [5.1] * 5, "tree": [5.0] * 5}, ["tree", "ring"]),
    ],
)
def test_who_wins_clearly(rounds: dict[str, list[float]], expected: list[str]) -> None:
    assert clear_winners({"direct": STEADY, **rounds}, "direct") == expected


def test_what_slows_all_alike_does_not_count() -> None:
    """Ratios are taken round by round, so a machine that is slow now and then changes nothing."""
    load = [1.0, 7.0, 1.0, 3.0, 1.0, 20.0]
    rounds = {"direct": [10 * one for one in load], "ring": [8 * one for one in load]}
    assert ratios(rounds, "ring", "direct") == pytest.approx([0.8] * 6)
    assert clear_winners(rounds, "direct") == ["ring"]


def test_a_second_win_is_one_below_the_default() -> None:
    assert wins_again([0.9, 0.8, 1.2]) and not wins_again([1.0, 0.8, 1.2]) and not wins_again([1.1])


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ({"ring": [11.0, 11.1, 10.9, 11.0, 11.2]}, False),
        ({"ring": [10.2, 10.3, 10.1, 10.2, 10.3]}, True),  # slower, but not by much
        ({"ring": [14.0, 5.0, 14.0, 5.0, 14.0]}, True),  # by more, but not beyond the spread
        ({"ring": [8.0] * 5}, True),
        ({"ring": [5.0, 5.0]}, False),  # dropped: never compared with the default
    ],
)
def test_who_is_as_good_as_the_default(rounds: dict[str, list[float]], expected: bool) -> None:
    assert as_good({"direct": STEADY, **rounds}, "direct") == ["direct", *(["ring"] if expected else [])]
    if len(rounds["ring"]) == 5:
        assert loses_clearly(ratios({"direct": STEADY, **rounds}, "ring", "direct")) is not expected


def lines(winners: dict[int, list[str]], alike: dict[int, list[str]] | None = None) -> list[tuple[int, int, str]]:
    rules = merged("all_reduce", 4, winners, alike or {})
    return [(rule.min_bytes, rule.max_bytes, rule.algorithm) for rule in rules]


@pytest.mark.parametrize(
    ("winners", "expected"),
    [
        ({}, []),
        ({8: [], 64: []}, []),
        ({8: ["a"], 64: ["a"], 512: ["a"]}, [(0, -1, "a")]),
        # The default keeps the range between its own size and the next.
        ({8: [], 64: ["a"], 512: []}, [(64, 64, "a")]),
        ({8: ["a"], 64: [], 512: ["b"]}, [(0, 8, "a"), (512, -1, "b")]),
        # Between two winners, the limit is halfway.
        ({16: ["a"], 64: ["b"]}, [(0, 32, "a"), (33, -1, "b")]),
        # One line covers as many sizes as possible.
        ({8: ["a"], 64: ["b", "a"], 512: ["a", "b"], 4096: ["b"]}, [(0, 1448, "a"), (1449, -1, "b")]),
        ({8: ["a", "b"], 64: ["b", "c"], 512: ["c"]}, [(0, 181, "b"), (182, -1, "c")]),
    ],
)
def test_ranges_are_merged(winners: dict[int, list[str]], expected: list[tuple[int, int, str]]) -> None:
    assert lines(winners) == expected
    assert lines(dict(reversed(winners.items()))) == expected


@pytest.mark.parametrize(
    ("alike", "expected"),
    [
        ({16 << 10: ["a"], 256 << 10: ["a"]}, (32 << 10, 128 << 10)),
        ({16 << 10: ["a"], 256 << 10: ["b"]}, (32 << 10, 64 << 10)),
        ({256 << 10: ["b", "a"], 1 << 20: ["a"]}, ((64 << 10) - 1, 128 << 10)),
        ({64 << 10: ["a"]}, ((64 << 10) - 1, 64 << 10)),
    ],
)
def test_a_line_reaches_halfway_to_where_the_default_is_no_better(
    alike: dict[int, list[str]], expected: tuple[int, int]
) -> None:
    """60 and 70 KiB use the rule for 64 KiB."""
    after, most = expected
    assert lines({16 << 10: [], 64 << 10: ["a"], 256 << 10: [], 1 << 20: []}, alike) == [(after + 1, most, "a")]


names = st.lists(st.sampled_from(("ring", "tree", "bruck")), max_size=3, unique=True)


by_size = st.dictionaries(st.sampled_from([8 << shift for shift in range(0, 24, 2)]), names)


@given(by_size, by_size)
def test_every_measured_size_gets_one_of_its_winners(
    winners: dict[int, list[str]], alike: dict[int, list[str]]
) -> None:
    rules = merged("all_reduce", 4, winners, alike)
    for size, wanted in winners.items():
        chosen = choose("all_reduce", 4, size, "fast", Policy(tuple(rules)))
        assert chosen in wanted if wanted else chosen == choose("all_reduce", 4, size)
    assert choose("all_reduce", 8, 64, "fast", Policy(tuple(rules))) == choose("all_reduce", 8, 64)
    for one, after in itertools.pairwise(rules):
        assert one.min_bytes <= one.max_bytes < after.min_bytes
        assert one.algorithm != after.algorithm or after.min_bytes > one.max_bytes + 1


def test_a_rule_is_about_its_collective_and_rank_count() -> None:
    assert merged("broadcast", 8, {64: ["direct"]}, {}) == [
        Rule("broadcast", 0, -1, "direct", num_nodes=1, num_ranks=8)
    ]
