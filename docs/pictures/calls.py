"""Writes docs/calls.md: every call of a communicator, from its docstring, with a line that four ranks run.

python docs/pictures/calls.py
"""

import ast
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import hocket

PAGE = Path(__file__).parents[1] / "calls.md"
NUM_RANKS = 4
WITHOUT_LINE = ("close", "abort")  # after these, no other line would run
HEAD = """\
# Every call of a communicator

`make docs-pictures` wrote this page from the docstrings of `hocket.Communicator`, and ran each line on
{num_ranks} ranks; do not edit it. There are no other calls. The [API](api/hocket.md) describes every option.

In the lines, `n` is {num_ranks}, the number of ranks, `r` is the rank, `c` is `{counts}`, and the root is rank 0.
`right` and `left` are the next and the previous rank on a ring. "x" and "result" are the shapes that the lines really
had. If the call has `out=`, it writes the result there; without it, `all_reduce`, `broadcast` and `reduce` write to x.
With `async_op=True` a call returns a `Work` at once.
"""
COUNTS = [3, 0, 2, 1]
SAME = "every rank: x of one size and type"
FAMILIES: dict[str, dict[str, tuple[str, str]]] = {  # call -> the line that runs, and who needs what
    "Collectives": {
        "all_reduce": ("comm.all_reduce(np.ones(6))", f"{SAME}, and the op"),
        "all_gather": ("comm.all_gather(np.ones((2, 3)))", SAME),
        "reduce_scatter": ("comm.reduce_scatter(np.ones((8, 3)))", f"{SAME}, and the op"),
        "broadcast": (
            "comm.broadcast(np.ones(6))",
            "root: the data; others: an array of its size and type; all: the root",
        ),
        "reduce": ("comm.reduce(np.ones(6))", f"{SAME}, the op, and the root"),
        "gather": ("comm.gather(np.ones((2, 3)))", f"{SAME}, and the root"),
        "scatter": ("comm.scatter(np.ones((8, 3)) if r == 0 else None)", "root: x; others: only the root"),
        "all_to_all": ("comm.all_to_all(np.ones((8, 3)))", SAME),
        "barrier": ("comm.barrier()", "nothing"),
    },
    "Collectives of parts with different lengths": {
        "all_gather_v": ("comm.all_gather_v(np.ones((c[r], 3)), c)", "every rank: its x, and the rows of all"),
        "gather_v": (
            "comm.gather_v(np.ones((c[r], 3)), c if r == 0 else None)",
            "every rank: its x; root: the rows of all, too",
        ),
        "scatter_v": (
            "comm.scatter_v(np.ones((6, 3)) if r == 0 else None, c if r == 0 else None)",
            "root: x, and the rows of all; others: only the root",
        ),
        "reduce_scatter_v": (
            "comm.reduce_scatter_v(np.ones((6, 3)), c)",
            f"{SAME}, the op, and the rows of all",
        ),
        "all_to_all_v": (
            "comm.all_to_all_v(np.ones((n * r, 3)), [r] * n, [0, 1, 2, 3])",
            "every rank: its x, and the rows that it sends to each rank and receives from each",
        ),
    },
    "Messages": {
        "send": ("comm.send(np.ones(6), right)", "sender: the data, and the receiver"),
        "recv": ("comm.recv(np.empty(6), left)", "receiver: the size and type; the sender only if it matters"),
        "isend": ("comm.isend(np.ones(6), right)", "as send"),
        "irecv": ("comm.irecv(np.empty(6), left)", "as recv"),
        "sendrecv": ("comm.sendrecv(np.ones(6), right, np.empty(6), left)", "as send and recv"),
        "batch": (
            "comm.batch([hocket.Send(np.ones(6), right), hocket.Recv(np.empty(6), left)])",
            "as send and recv, for each message",
        ),
    },
    "Python objects": {
        "broadcast_object": ("comm.broadcast_object('a' if r == 0 else None)", "root: the object; others: the root"),
        "all_gather_object": ("comm.all_gather_object(r * 'a')", "every rank: its object"),
        "gather_object": ("comm.gather_object(r * 'a')", "every rank: its object, and the root"),
        "scatter_object": (
            "comm.scatter_object(list('abcd') if r == 0 else None)",
            "root: an object for each rank; others: the root",
        ),
        "send_object": ("comm.send_object('a', right)", "sender: the object, and the receiver"),
        "recv_object": ("comm.recv_object(left)", "receiver: the sender only if it matters"),
    },
    "Groups and settings": {
        "split": ("comm.split(r % 2)", "every rank: its own color and key"),
        "subgroup": ("comm.subgroup([3, 0])", "members: all members in order"),
        "dup": ("comm.dup()", "nothing"),
        "cartesian": ("comm.cartesian({'dp': 2, 'tp': 2})", "every rank: the same grid"),
        "configure": ("comm.configure('all_reduce', timeout=30.0)", "every rank: the same settings"),
    },
}


def page() -> str:
    """The whole page. Runs every line."""
    lines = [line for calls in FAMILIES.values() for line, _ in calls.values()]
    found = iter(zip(*hocket.run_ranks(run, NUM_RANKS, args=(lines,), kind="thread"), strict=True))
    text = HEAD.format(num_ranks=NUM_RANKS, counts=COUNTS)
    for family, calls in FAMILIES.items():
        text += f"\n## {family}\n\n|call|what it does|who needs what|x|result|\n|---|---|---|---|---|\n"
        for name, (line, needs) in calls.items():
            given, returned = zip(*next(found), strict=True)
            cells = (f"`{line}`", summary(name), needs, by_rank(given), by_rank(returned))
            text += f"|{'|'.join(cells)}|\n"
        text += "\n```python\n" + "".join(signature(name) for name in calls) + "```\n"
    text += "\n## The end\n\n|call|what it does|\n|---|---|\n"
    return text + "".join(f"|`{signature(name).strip()}`|{summary(name)}|\n" for name in WITHOUT_LINE)


def run(lines: list[str]) -> list[tuple[str, str]]:
    """What this rank gives and gets in each line, in words."""
    with hocket.init() as comm:
        r, n = comm.rank, comm.size
        names = {"comm": comm, "r": r, "n": n, "c": COUNTS, "right": (r + 1) % n, "left": (r - 1) % n}
        names |= {"np": np, "hocket": hocket}
        kept = [evaluated(line, names) for line in lines]  # what a message without a wait needs lives until the end
        return [(given, in_words(returned)) for given, returned in kept]


def evaluated(line: str, names: dict[str, Any]) -> tuple[str, Any]:
    """The x of a call in words, "-" if it has none, and the result."""
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    given = "-"
    if list(inspect.signature(method(call.func.attr)).parameters)[1:2] in (["x"], ["messages"]):
        given = in_words(eval(compile(ast.Expression(call.args[0]), line, "eval"), names))
    return given, eval(line, names)


def in_words(value: Any) -> str:
    """An array by its shape, a communicator by its size, a collection by its elements."""
    if isinstance(value, hocket.Communicator):
        return f"communicator of {value.size}"
    if isinstance(value, hocket.Work):
        return "Work"
    if isinstance(value, np.ndarray):
        return f"{value.shape}"
    if isinstance(value, hocket.Send | hocket.Recv):
        return f"{type(value).__name__} of {in_words(value.x)}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(in_words, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    return repr(value)


def by_rank(said: Iterable[str]) -> str:
    """What the ranks say: once if all say the same, else the root and the others, else each."""
    root, *others = said
    if len({root, *others}) == 1:
        return root
    if len(set(others)) == 1:
        return f"root: {root}; others: {others[0]}"
    return "; ".join(f"{rank}: {one}" for rank, one in enumerate((root, *others)))


def method(name: str) -> Callable[..., Any]:
    """A method of the communicator."""
    found: Callable[..., Any] = getattr(hocket.Communicator, name)
    return found


def summary(name: str) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(method(name)) or "").partition("\n\n")[0].split())


def signature(name: str) -> str:
    """The call with the names and defaults of its arguments, and without their types."""
    parameters = [one.replace(annotation=one.empty) for one in inspect.signature(method(name)).parameters.values()]
    bare = inspect.Signature(parameters[1:])
    return f"comm.{name}{bare}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
