"""Tracebacks of ranks, as text: which one is the last, what is left out of it, and which ones are equal."""

import os
from pathlib import Path

import pytest

import hocket
from hocket.runtime.launch.tracebacks import (
    cause_in,
    joined,
    last_traceback,
    place_in,
    reason_in,
    reports_another,
    shortened,
    site_in,
    split_at_last,
)
from hocket.runtime.ranks.rank_names import name_ranks

ONE = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: x'
CAUSE = "\n\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
GROUP = (
    "  + Exception Group Traceback (most recent call last):\n"
    "  | ExceptionGroup: two (2 sub-exceptions)\n"
    "  +-+---------------- 1 ----------------\n"
    "    | Traceback (most recent call last):\n"
    "    | ValueError: x\n"
    "    +------------------------------------"
)
ONE_FRAME = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    import b'
SYNTAX = '  File "b.py", line 5\n    x = = 1\n        ^\nSyntaxError: invalid syntax'
CRASH = 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x0 (most recent call first):\n  File "a.py", line 3'


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("", ""),
        ("nothing of the kind\n", ""),
        (f"before\n{ONE}\n", ONE),
        (f"{ONE}\nlogged and gone on\n{ONE}\n", ONE),
        (f"before\n{ONE}{CAUSE}{ONE}{CONTEXT}{ONE}\n", ONE + CAUSE + ONE + CONTEXT + ONE),
        (f"before\n{GROUP}\n", GROUP),
        (f"before\n{CRASH}\n", CRASH),
        (f"before\n{SYNTAX}\n", SYNTAX),
        (f"before\n{ONE_FRAME}\n{SYNTAX}\n", f"{ONE_FRAME}\n{SYNTAX}"),
        (f"{ONE}\n{SYNTAX}\n", SYNTAX),
    ],
)
def test_the_last_traceback_is_found(said: str, found: str) -> None:
    assert last_traceback(said) == found


def test_a_report_of_anothers_failure_is_recognised() -> None:
    following = ONE.replace("ValueError", "hocket.errors.PeerDied")
    assert not reports_another(ONE)
    assert reports_another(following)
    assert reports_another(following + CAUSE + ONE)
    assert not reports_another(ONE.replace("x", "hocket.errors.PeerDied is what I expected"))


@pytest.mark.parametrize("between", [CAUSE, CONTEXT])
@pytest.mark.parametrize("prefix", ["[rank1]: ", "[rank1]: [rank1]: "], ids=["one init", "two inits"])
def test_pytorchs_prefix_is_left_out_and_ends_the_traceback(prefix: str, between: str) -> None:
    prefixed = between.join("\n".join(f"{prefix}{line}" for line in ONE.splitlines()) for _ in range(2))
    prefixed = prefixed.replace(between.strip(), f"{prefix}{between.strip()}")
    text = f"before\n{prefixed}\nafter\n"
    assert split_at_last(text) == ("before\n", ONE + between + ONE, "after\n")


OWN = (
    f'  File "{Path(hocket.__file__).parent}/runtime/plans.py", line 1, in find\n    found = get()\n            ^^^^^\n'
)
USER = '  File "/a/train.py", line 7, in main\n    comm.barrier()\n  [Previous line repeated 3 more times]\n'
LIBRARY = f'  File "{os.__file__}", line 3, in open\n'
E = "hocket.errors.CollectiveMismatch"
HEAD = "Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (HEAD + USER + OWN + OWN + "ValueError: x\nand a note", HEAD + USER + "ValueError: x\nand a note"),
        (HEAD + OWN + USER + OWN + USER + "ValueError: x", HEAD + USER + USER + "ValueError: x"),
        # What Hocket calls in Python's library is no more the user's than Hocket; what the user calls there is.
        (HEAD + LIBRARY + USER + OWN + LIBRARY + "ValueError: x", HEAD + LIBRARY + USER + "ValueError: x"),
        # Where all is Hocket's, its last frame stays.
        (HEAD + OWN + OWN.replace("find", "last") + "KeyError: x", HEAD + OWN.replace("find", "last") + "KeyError: x"),
        # A cause that the following exception repeats says nothing more.
        (HEAD + OWN + "ValueError: x" + CAUSE + HEAD + USER + "Other: got x", HEAD + USER + "Other: got x"),
        (
            HEAD + OWN + "ValueError: of another kind" + CAUSE + HEAD + USER + "Other: x",
            HEAD + "ValueError: of another kind" + CAUSE + HEAD + USER + "Other: x",
        ),
        (CRASH, CRASH),
        (GROUP, GROUP),
        (
            HEAD + '  File "/a.py", line 3\n    x = = 1\nSyntaxError: x',
            HEAD + '  File "/a.py", line 3\n    x = = 1\nSyntaxError: x',
        ),
    ],
)
def test_hockets_own_frames_are_left_out(found: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shortened(found) == told
    monkeypatch.setenv("HOCKET_DEBUG", "1")
    assert shortened(found) == found


def test_the_place_of_a_traceback_is_its_frames() -> None:
    assert place_in(HEAD + USER + "ValueError: x\ny") == USER.rstrip("\n")
    assert place_in(ONE + CAUSE + HEAD + USER + "ValueError: x") == ONE + CAUSE + USER.rstrip("\n")


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({0: "x", 1: "x", 2: "y"}, [([0, 1], "x"), ([2], "y")]),
        ({0: f"{E}: rank 0: late", 1: f"{E}: rank 1: late"}, [([0, 1], f"{E}: ranks 0, 1: late")]),
        ({0: f"{E}: rank 0 lost rank 1", 1: f"{E}: rank 1 lost rank 0"}, None),
        ({1: f"{E}: rank 1 fell", 11: f"{E}: rank 11 fell"}, [([1, 11], f"{E}: ranks 1, 11 fell")]),
        (
            {rank: f"hocket.torch_backend.BackendError: rank {rank}: x" for rank in (0, 1)},
            [([0, 1], "hocket.torch_backend.BackendError: ranks 0, 1: x")],
        ),
        # The words of a program's own error stay as they are.
        ({0: "AssertionError: rank 0 is small", 1: "AssertionError: rank 1 is small"}, None),
        # Named by all of them alike, so that no rank means itself.
        ({0: "E: rank 0 fell", 1: "E: rank 0 fell"}, [([0, 1], "E: rank 0 fell")]),
        (
            {0: f"{HEAD}{USER}{E}: rank 0: x", 1: f"{HEAD}{USER}{E}: rank 1: x"},
            [([0, 1], f"{HEAD}{USER}{E}: ranks 0, 1: x")],
        ),
        ({0: f"{HEAD}{USER}E: x", 1: f"{HEAD}{USER}{USER}E: x"}, None),
    ],
)
def test_texts_that_differ_only_in_the_ranks_own_number_are_one(
    texts: dict[int, str], told: list[tuple[list[int], str]] | None
) -> None:
    assert joined(texts) == (told or [([rank], text) for rank, text in texts.items()])


def test_ranks_that_follow_each_other_are_named_as_a_range() -> None:
    assert [name_ranks(ranks) for ranks in ([3], [1, 0], [0, 1, 2, 5, 7, 8])] == [
        "rank 3",
        "ranks 0, 1",
        "ranks 0-2, 5, 7, 8",
    ]
    assert name_ranks(range(100)) == "ranks 0-99"
    assert name_ranks(range(0, 100, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 42 more"


def test_the_site_is_the_innermost_line_of_the_program() -> None:
    torch = '  File "/venv/lib/python3.11/site-packages/torch/distributed.py", line 9, in barrier\n'
    text = HEAD + USER + torch + OWN + LIBRARY + "E: x\nand more"
    assert site_in(text) == "/a/train.py:7"
    assert site_in(text.replace("/a/", f"{Path.cwd()}/")) == "train.py:7"
    assert site_in(HEAD + OWN + "E: x") == ""


def test_a_cause_is_the_message_without_its_subject() -> None:
    late = "not done within 8 s; ranks 0 and 1 wait for each other"
    told = [
        f"{HEAD}{USER}{E}: rank 0, recv from rank 1 (tag 0): rank 1 was {late}",
        f"{HEAD}{USER}{E}: ranks 2, 3, all_reduce by a.py:ring (call 1): {late}",
        f"hocket: rank 1: {late}",
    ]
    assert {cause_in(text) for text in told[:2]} == {f"{E}: {late}"} and {reason_in(text) for text in told} == {late}
    by_torch = "hocket.torch_backend.BackendError: hocket: a timeout ended this operation: "
    text = f"{HEAD}{USER}{by_torch}rank 2, all_reduce (call 2): {late}"
    assert cause_in(text) == by_torch + late
    assert cause_in("KeyError: rank 1: x") == "KeyError: rank 1: x"
