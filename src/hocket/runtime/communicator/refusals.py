"""What to say of arguments that a method of a communicator does not take: its own names for those of MPI and PyTorch.

The core asks after Python has refused a call, so no other call takes longer.
"""

import inspect
from collections.abc import Callable, Collection
from typing import Any

from hocket.errors import did_you_mean

NAMES_ELSEWHERE = {
    "x": ("buf", "obj", "sendbuf", "sendobj", "tensor", "input", "input_tensor", "scatter_list", "input_tensor_list"),
    "out": ("recvbuf", "output", "output_tensor", "gather_list", "tensor_list", "output_tensor_list"),
    "op": ("reduce_op", "operation"),
    "root": ("src", "dst", "group_src", "group_dst"),
    "dst": ("dest", "group_dst", "peer"),
    "src": ("source", "group_src", "peer"),
    "tag": ("sendtag",),
    "recv_tag": ("recvtag",),
    "counts": ("recvcounts", "sendcounts"),
    "send_counts": ("sendcounts", "input_split_sizes"),
    "recv_counts": ("recvcounts", "output_split_sizes"),
    "messages": ("p2p_op_list",),
}
"""The name of an argument here -> what MPI (mpi4py) and PyTorch call it."""

_ADVICE = {
    "group": "call this method of the communicator that split or subgroup returns",
    "comm": "call this method of that communicator",
    "status": "a receive returns (x, source, tag)",
}


def refusal_of(function: Callable[..., Any], error: object, num_given: int, names: Collection[str]) -> str:
    """Returns what to say where Python has refused arguments with `error`.

    `num_given` arguments came by position, self among them, and `names` by name.
    """
    signature = inspect.signature(function)
    _, *parameters = (one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values())
    taken = [one.name for one in parameters]
    by_position = [one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    free = [one for one in taken if one not in names and one not in by_position[: num_given - 1]]
    name = function.__name__
    unknown = [given for given in names if given not in taken]
    if unknown:
        said = ". ".join(f"{name} has no argument {one!r}{_instead(one, free)}" for one in unknown)
    elif num_given - 1 > len(by_position):
        only = " and ".join(by_position) or "nothing"
        said = f"{name} takes {only} by position, found {num_given - 1}"
        if len(taken) > len(by_position):
            said += ": pass the others by name" + (", such as out=" if "out" in free else "")
    else:
        said = f"{name}: {str(error).removeprefix(f'{function.__qualname__}()').strip()}"
    said = f"{said}. The call is {name}{inspect.Signature(parameters)}"
    return said.replace("?. ", "? ")


def _instead(unknown: str, free: Collection[str]) -> str:
    """Returns what to pass instead of an argument that does not exist, after a separator; "" if nothing is known."""
    for here, elsewhere in NAMES_ELSEWHERE.items():
        if here in free and unknown in elsewhere:
            return f"; did you mean {here!r}?"
    return f": {_ADVICE[unknown]}" if unknown in _ADVICE else did_you_mean(unknown, free)
