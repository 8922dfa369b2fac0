"""What an algorithm's docstring says, field by field, and its formulas as numbers.

    Idea in one to four sentences.

    Steps: 2 * (P - 1)
    Sent: 2 * (P - 1) / P * N
    Best: large N, and where only neighbours have fast links
    Ranks: any
    Reference: who, what, when

    Remarks, if there are any.

P ranks; N the whole vector, for all_to_all what one rank gives in all; G groups, of which the largest has M ranks; a
grid of X times Y times Z. A field goes on in the next line where that is indented. An algorithm of a user's own may
leave fields out.
"""

import ast
import inspect
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hocket.algorithms.layout import Layout
from hocket.algorithms.registry import Algorithm

FIELDS = ("Steps", "Sent", "Best", "Ranks", "Reference")

_FIELD = re.compile(rf"({'|'.join(FIELDS)}): *(.*)")
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "log2": math.log2,
    "max": max,
    "min": min,
}


@dataclass(frozen=True)
class Description:
    """A docstring in parts, each in one line; empty where it says nothing.

    steps, and sent by the rank that sends most, are formulas for `evaluate`, or words. best: where to use it.
    """

    idea: str
    steps: str = ""
    sent: str = ""
    best: str = ""
    ranks: str = ""
    reference: str = ""
    remarks: str = ""


def describe(one: Algorithm) -> Description:
    """The parts of an algorithm's docstring. The first paragraph is the idea; fields are a paragraph of their own."""
    first, *others = re.split(r"\n\s*\n", inspect.cleandoc(one.doc))
    fields: dict[str, str] = {}
    remarks = []
    for paragraph in others:
        found = _fields(paragraph)
        fields |= found
        remarks += [] if found else [paragraph]
    parts = {name.lower(): fields.get(name, "") for name in FIELDS}
    return Description(_line(first), **parts, remarks=_line("\n".join(remarks)))


def evaluate(formula: str, layout: Layout) -> float | None:
    """The value of Steps, or of Sent in units of N, for these ranks; None where it is words.

    ValueError where it has no value, as log2(P - 1) for one rank.
    """
    values: dict[str, float] = {"P": layout.num_ranks, "N": 1}
    if layout.groups:
        values |= {"G": len(layout.groups), "M": max(layout.groups)}
    values |= dict(zip("XYZ", layout.dims or (), strict=False))
    try:
        tree = ast.parse(formula, mode="eval").body
    except SyntaxError:
        return None
    if not _is_arithmetic(tree, values):
        return None
    try:
        value: float = _value(tree, values)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(f"expected a formula with a value for {layout}, found {formula!r}: {error}") from None
    return value


def _fields(paragraph: str) -> dict[str, str]:
    """The fields of a paragraph that has nothing else, else {}."""
    found: dict[str, str] = {}
    name = ""
    for line in paragraph.splitlines():
        field = _FIELD.fullmatch(line)
        if field:
            name = field[1]
            found[name] = field[2]
        elif name and line.startswith("  "):
            found[name] += f" {line}"
        else:
            return {}
    return {name: _line(text) for name, text in found.items()}


def _line(text: str) -> str:
    return " ".join(text.split())


def _is_arithmetic(tree: ast.AST, values: dict[str, float]) -> bool:
    """Whether there is nothing in it but known names, numbers, operators and functions."""
    match tree:
        case ast.Constant(value):
            return type(value) in (int, float)
        case ast.Name(name):
            return name in values
        case ast.UnaryOp(op, operand):
            return type(op) in _OPERATORS and _is_arithmetic(operand, values)
        case ast.BinOp(left, op, right):
            return type(op) in _OPERATORS and _is_arithmetic(left, values) and _is_arithmetic(right, values)
        case ast.Call(ast.Name(name), [_, *_] as arguments, []):
            return name in _FUNCTIONS and all(_is_arithmetic(argument, values) for argument in arguments)
    return False


def _value(tree: ast.AST, values: dict[str, float]) -> Any:
    match tree:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return values[name]
        case ast.UnaryOp(op, operand):
            return _OPERATORS[type(op)](_value(operand, values))
        case ast.BinOp(left, op, right):
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.Call(ast.Name(name), arguments):
            return _FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
    raise AssertionError(f"no arithmetic: {ast.dump(tree)}")
