"""What algorithms promise as formulas, and what docstrings add: every built-in algorithm says all."""

import re
from dataclasses import asdict
from typing import Any

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm, algorithm, said
from hocket.algorithms.layout import Layout
from hocket.algorithms.promise import Formula, parse
from hocket.errors import ScheduleError
from hocket.schedule import Builder
from tests.algorithms.docstrings import Description, describe

DOC = """Idea, in
    two lines.

    Best: large N:
      always
    Ranks: any
    Reference: Somebody, "Something", 2009

    A remark.

    Note: another one.
    """


def nothing(schedule: Builder) -> None:
    """Alone there is nothing to do."""


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
def test_every_built_in_algorithm_says_all(one: Algorithm) -> None:
    parts = asdict(describe(one.doc))
    assert [name for name, text in parts.items() if not text and name != "remarks"] == []
    for text in parts.values():
        assert not re.search(r"\b(Steps|Sent|Best|Ranks|Reference) ?:", text), "a field that is not one"
    assert len(parts["idea"]) > 20 and parts["idea"].endswith(".")
    assert (parts["ranks"] == "any") == (one.ranks is None)
    if one.ranks is not None:
        assert all(word in parts["ranks"] for word in (one.ranks[0], *one.ranks[2:])), one.ranks


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
def test_every_built_in_promise_is_a_formula_or_is_said_in_words(one: Algorithm) -> None:
    for promise in (one.steps, one.sent):
        assert isinstance(promise, Formula) or re.search(r"[a-z]{2,} [a-z]+", said(promise))


def test_a_docstring_in_parts() -> None:
    assert describe(DOC) == Description(
        idea="Idea, in two lines.",
        best="large N: always",
        ranks="any",
        reference='Somebody, "Something", 2009',
        remarks="A remark. Note: another one.",
    )


def test_a_users_docstring_may_say_less() -> None:
    assert describe("") == Description("")
    assert describe("Only an idea.") == Description("Only an idea.")
    assert describe("Idea.\n\nBest: at night\n\nRanks: 1") == Description("Idea.", ranks="1", best="at night")
    assert describe("Idea.\n\nRanks: 1\nand more") == Description("Idea.", remarks="Ranks: 1 and more")


def test_what_is_said_of_a_promise() -> None:
    def words(p: int) -> int:
        """the largest
        subtree

        How it is found.
        """
        return p

    assert said(parse("sent", " 2 *\n(P - 1) ", "here")) == "2 * (P - 1)"
    assert said(words) == "the largest subtree"
    assert said(lambda p: p) == said(len) == said(None) == ""


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("2 * (P - 1)", 12),
        ("(P - 1) / P", 6 / 7),
        ("ceil(log2(P)) + floor(P / 2) * -1", 0),
        ("min(P - 1, 1) + max(G, M, sum(dims))", 9),
        ("P // 2 % 2 + 2**3", 9),
        ("G * M", 10),
        ("len(dims) + max(dims)", 9),
        ("7", 7),
    ],
)
def test_formulas(formula: str, value: float) -> None:
    assert Layout(7, groups=(5, 2), dims=(1, 7)).call(parse("sent", formula, "here")) == value


@pytest.mark.parametrize(
    ("formula", "wrong"),
    [
        ("P - 1 steps", "no expression"),
        ("as many as there are", "no expression"),
        ("", "no expression"),
        ("\0", "no expression"),
        ("one", "one"),
        ("p - 1", "p"),
        ("P if P else 1", "P if P else 1"),
        ("1 + (P ^ 2)", "P ^ 2"),
        ("~P", "~P"),
        ("ceil + 1", "ceil"),
        ("True", "True"),
        ("'P' * 3", "'P'"),
        ("P.real", "P.real"),
        ("__import__('os')", "__import__"),
        ("exp(P)", "exp"),
        ("P(1)", "P"),
        ("ceil(x=P)", "ceil(x=P)"),
        ("max()", "max()"),
        ("max(*P)", "*P"),
        ("[P]", "[P]"),
    ],
)
def test_texts_that_are_no_formulas(formula: str, wrong: str) -> None:
    with pytest.raises(
        ScheduleError, match=rf"^{__file__}:\d+: expected steps= to be a formula of P, .*found "
    ) as caught:
        algorithm("all_gather", name="described", chunks="P", steps=formula)
    assert str(caught.value).endswith(f"found {formula!r}: {wrong}")


@pytest.mark.parametrize("formula", ["1 / (P - 1)", "log2(P - 1)", "ceil(P, P)", "log2(1 - P)", "len(P)"])
def test_a_formula_without_a_value(formula: str) -> None:
    one = algorithm("all_gather", name="described", chunks="P", steps=formula)(nothing)
    message = (
        rf"^{__file__}:\d+ \(described, 1 rank\): expected a formula with a value, found {re.escape(repr(formula))}: "
    )
    with pytest.raises(ScheduleError, match=message):
        one.declared(1)


@pytest.mark.parametrize(
    ("promise", "needed"),
    [({"steps": "G"}, "groups"), ({"sent": "1 / M"}, "groups"), ({"chunks": "sum(dims)"}, "dims")],
)
def test_a_formula_of_what_the_algorithm_does_not_take(promise: dict[str, Any], needed: str) -> None:
    ((name, formula),) = promise.items()
    message = re.escape(f": expected {needed}=, which {name}={formula!r} needs; found none")
    with pytest.raises(ScheduleError, match=rf"^{__file__}:\d+{message}$"):
        algorithm("all_gather", name="described", **{"chunks": "P"} | promise)(nothing)


def test_a_formula_of_what_the_algorithm_takes() -> None:
    groups = {"groups": lambda p: (p,), "dims": lambda p: (p, 1)}
    one = algorithm("all_gather", name="described", chunks="P", steps="G + M", sent="sum(dims)", **groups)(nothing)
    assert (one.declared(5).steps, one.declared(5).sent) == (6, 6)
    composed = algorithm("all_gather", name="finer", steps="G")(one.refine(2))
    assert composed.declared(5, groups=(2, 3)).steps == 2


def test_groups_and_grids_are_no_formulas() -> None:
    message = (
        rf"^{__file__}:\d+: expected groups= to be a function of the rank count, such as `lambda p: 'P'`; found 'P'"
    )
    with pytest.raises(ScheduleError, match=message):
        algorithm("all_gather", name="described", chunks="P", groups="P")  # type: ignore[arg-type]
