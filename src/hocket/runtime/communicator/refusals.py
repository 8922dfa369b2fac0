"""What to say of arguments, methods and names that do not exist: Hocket's names for those of MPI and PyTorch.

The core asks after Python has refused the arguments of a call, so no other call takes longer.
"""

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

METHODS_ELSEWHERE = {
    "rank": ("Get_rank", "get_rank"),
    "size": ("Get_size", "get_size", "get_world_size", "world_size"),
    "broadcast": ("bcast",),
    "all_gather": ("all_gather_into_tensor",),
    "reduce_scatter": ("reduce_scatter_tensor", "Reduce_scatter_block"),
    "all_to_all": ("all_to_all_single",),
    "broadcast_object": ("broadcast_object_list",),
    "scatter_object": ("scatter_object_list",),
    "subgroup": ("new_group", "create_group", "Create"),
    "cartesian": ("Create_cart",),
    "dup": ("Clone",),
    "batch": ("batch_isend_irecv",),
    "close": ("Free", "Disconnect", "finalize", "destroy_process_group"),
}
"""An attribute of a communicator -> what MPI and PyTorch call it, if it differs in more than case and underscores."""

NAMES_OF_MODULES = {
    "comm = hocket.init()": ("COMM_WORLD", "MPI", "Init", "init_process_group"),
    "comm.rank, of comm = hocket.init()": ("rank", "get_rank", "Get_rank"),
    "comm.size, of comm = hocket.init()": ("size", "world_size", "get_world_size", "Get_size"),
    "comm.close()": ("finalize", "Finalize", "destroy_process_group"),
    'op="sum"': ("ReduceOp", "SUM", "Op"),
    **{f'op="{op.lower()}"': (op,) for op in ("MAX", "MIN", "PROD", "AVG", "LAND", "LOR", "BAND", "BOR", "BXOR")},
}
"""What to write -> names that the modules of MPI and PyTorch have."""

_ADVICE = {
    "group": "call this method of the communicator that split or subgroup returns",
    "comm": "call this method of that communicator",
    "status": "a receive returns (x, source, tag)",
}


def refusal_of(function: Callable[..., Any], error: object, num_given: int, names: Collection[str]) -> str:
    """Returns what to say where Python has refused arguments with `error`.

    `num_given` arguments came by position, self among them, and `names` by name.
    """
    import inspect  # only now: it takes long to load, and is seldom needed

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


def no_attribute(owner: object, name: str) -> AttributeError:
    """Returns the error for a name that a communicator has not."""
    said = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        said += _attribute_instead(type(owner), name, [one for one in dir(owner) if not one.startswith("_")])
    return AttributeError(said, name=name, obj=None)  # without the object, Python adds no guess of its own


def _attribute_instead(owner: type, unknown: str, known: Collection[str]) -> str:
    plain = _plain(unknown)
    by_plain_name = {_plain(one): one for one in known}
    for here, elsewhere in METHODS_ELSEWHERE.items():
        by_plain_name |= {_plain(one): here for one in elsewhere if here in known}
    if plain in by_plain_name:
        return f"; did you mean {by_plain_name[plain]!r}?"
    here = by_plain_name.get(plain.removeprefix("i"), "")
    if plain.startswith("i") and _takes_async_op(owner, here):
        return f"; did you mean '{here}(..., async_op=True)'?"
    return did_you_mean(unknown, known)


def _takes_async_op(owner: type, name: str) -> bool:
    import inspect  # as above

    method = getattr(owner, name, None)
    return callable(method) and "async_op" in inspect.signature(method).parameters


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def name_instead(unknown: str) -> str:
    """Returns what to write instead of a name that `hocket` has not, after a separator; "" if nothing is known."""
    for here, elsewhere in NAMES_OF_MODULES.items():
        if unknown in elsewhere:
            return f"; did you mean {here}?"
    return ""
