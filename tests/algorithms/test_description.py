"""What docstrings of algorithms say: every built-in one says all, and its formulas are what it promises."""

import re
from dataclasses import asdict

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm, algorithm
from hocket.algorithms.description import Description, describe, evaluate
from hocket.algorithms.layout import Layout
from hocket.schedule import Builder

DOC = """Idea, in
    two lines.

    Steps: 2 * (P - 1)
    Sent: as much as
      it must be
    Best: large N: always
    Ranks: any
    Reference: Somebody, "Something", 2009

    A remark.

    Note: another one.
    """


def nothing(schedule: Builder) -> None:
    """Alone there is nothing to do."""


def with_doc(doc: str) -> Algorithm:
    return algorithm("all_gather", name="described", chunks=lambda p: p, doc=doc)(nothing)


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
def test_every_built_in_algorithm_says_all(one: Algorithm) -> None:
    parts = asdict(describe(one))
    assert [name for name, text in parts.items() if not text and name != "remarks"] == []
    for text in parts.values():
        assert not re.search(r"\b(Steps|Sent|Best|Ranks|Reference) ?:", text), "a field that is not one"
    assert len(parts["idea"]) > 20 and parts["idea"].endswith(".")
    assert (parts["ranks"] == "any") == (one.ranks is None)
    if one.ranks is not None:
        assert all(word in parts["ranks"] for word in (one.ranks[0], *one.ranks[2:])), one.ranks


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
def test_formulas_are_what_is_promised(one: Algorithm) -> None:
    said = describe(one)
    of_all = one.collective in ("all_to_all", "all_to_all_v")  # There N is what one rank gives.
    for p in filter(one.allows, range(1, 34)):
        layout, declared = one.layout(p), one.declared(p)
        for formula, promised in ((said.steps, declared.steps), (said.sent, declared.sent)):
            value = evaluate(formula, layout)
            if value is None:
                assert re.search(r"[a-z]{2,} [a-z]+", formula), f"{formula!r}: neither a formula nor words"
            elif promised is not None:
                units = p if of_all and promised is declared.sent else 1
                assert value == pytest.approx(float(promised) * units), f"{formula} for {p} ranks"


def test_a_docstring_in_parts() -> None:
    assert describe(with_doc(DOC)) == Description(
        idea="Idea, in two lines.",
        steps="2 * (P - 1)",
        sent="as much as it must be",
        best="large N: always",
        ranks="any",
        reference='Somebody, "Something", 2009',
        remarks="A remark. Note: another one.",
    )


def test_a_users_algorithm_may_say_less() -> None:
    assert describe(with_doc("Only an idea.")) == Description("Only an idea.")
    assert describe(with_doc("Idea.\n\nBest: at night\n\nSteps: 1")) == Description("Idea.", steps="1", best="at night")
    assert describe(with_doc("Idea.\n\nSteps: 1\nand more")) == Description("Idea.", remarks="Steps: 1 and more")
    composed = algorithm("all_gather", name="finer")(with_doc("Idea.").refine(2))
    assert describe(composed) == Description("")


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("2 * (P - 1)", 12),
        ("(P - 1) / P * N", 6 / 7),
        ("ceil(log2(P)) + floor(P / 2) * -1", 0),
        ("min(P - 1, 1) + max(G, M, X, Y)", 8),
        ("P // 2 % 2 + 2**3", 9),
        ("G * M", 10),
        ("P - 1 steps", None),
        ("as many as there are", None),
        ("", None),
        ("one", None),
        ("p - 1", None),
        ("Z", None),
        ("P if P else 1", None),
        ("True", None),
        ("'P' * 3", None),
        ("P.real", None),
        ("__import__('os')", None),
        ("exp(P)", None),
        ("ceil(x=P)", None),
        ("max()", None),
        ("max(*P)", None),
    ],
)
def test_formulas(formula: str, value: float | None) -> None:
    assert evaluate(formula, Layout(7, groups=(5, 2), dims=(1, 7))) == value


@pytest.mark.parametrize("formula", ["1 / (P - 1)", "log2(P - 1)", "ceil(P, P)", "log2(1 - P)"])
def test_a_formula_without_a_value(formula: str) -> None:
    with pytest.raises(ValueError, match="expected a formula with a value for"):
        evaluate(formula, Layout(1))
