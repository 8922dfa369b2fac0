"""What an algorithm promises, written once: as a formula, such as "2 * (P - 1)", or as a function.

P is the number of ranks, G the number of groups, M the number of ranks in the largest group, and dims are the lengths
of the grid.
"""

import ast
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from hocket.algorithms.layout import Parameter
from hocket.errors import ScheduleError

Promise = Parameter | str
"""A formula, or a function of the rank count. The docstring of a function says in words what the value is."""

_NAMES = {"P": "", "G": "groups", "M": "groups", "dims": "dims"}  # and the parameter that an algorithm needs for each
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "len": len,
    "log2": math.log2,
    "max": max,
    "min": min,
    "sum": sum,
}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub)
_GRAMMAR = f"a formula of {', '.join(_NAMES)}, numbers, + - * / // % ** and {', '.join(_FUNCTIONS)}"


@dataclass(frozen=True)
class Formula:
    """A formula that can be called like any other function of the rank count."""

    text: str
    needs: frozenset[str]
    """Of "groups" and "dims" those that the algorithm has to take, because the formula uses them."""
    _code: CodeType

    def __call__(self, p: int, groups: tuple[int, ...] | None = None, dims: tuple[int, ...] | None = None) -> Any:
        """The value for p ranks; ScheduleError where the formula has none, for example log2(P - 1) for one rank."""
        values: dict[str, Any] = {"P": p, "dims": dims}
        if groups:
            values |= {"G": len(groups), "M": max(groups)}
        try:
            return eval(self._code, {"__builtins__": {}, **_FUNCTIONS}, values)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ScheduleError(f"expected a formula with a value, found {self.text!r}: {error}") from None


def parse(name: str, text: str, source: str) -> Formula:
    """The formula that is given for a promise; ScheduleError, which begins with `source`, if the text is none."""
    line = " ".join(text.split())
    try:
        tree = ast.parse(line, mode="eval")
        wrong = _find_foreign(tree)
    except (SyntaxError, ValueError):
        wrong = "no expression"
    if wrong:
        raise ScheduleError(f"{source}: expected {name}= to be {_GRAMMAR}; found {text!r}: {wrong}")
    needs = {_NAMES.get(node.id) for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"", None}
    return Formula(line, frozenset(map(str, needs)), compile(tree, source, "eval"))


def said(promise: Parameter | None) -> str:
    """A promise for readers: its formula, or the first paragraph of its function's docstring; "" if it has none."""
    if isinstance(promise, Formula):
        return promise.text
    words = inspect.getdoc(promise) if inspect.isfunction(promise) else None
    return " ".join((words or "").partition("\n\n")[0].split())


def _find_foreign(tree: ast.Expression) -> str:
    """The first part of an expression that no formula may have; "" if there is none."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and not node.keywords}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value) if type(value) in (int, float):
                pass
            case ast.Name(name) if name in (_FUNCTIONS if id(node) in called else _NAMES):
                pass
            case ast.Call(ast.Name(), [_, *_], []):
                pass
            case ast.BinOp(op=sign) | ast.UnaryOp(op=sign) if isinstance(sign, _OPERATORS):
                pass
            case ast.expr():
                return ast.unparse(node)
    return ""
