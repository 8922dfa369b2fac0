"""Hocket: collective communication in which an algorithm is a small Python program, proved before it runs.

    import hocket

    with hocket.init() as comm:
        comm.all_reduce(x)

Names are loaded when they are first used: ranks start many at a time, so importing must be cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket import errors
    from hocket.algorithms import ALGORITHMS, algorithm
    from hocket.runtime.communicator.cartesian import Cartesian
    from hocket.runtime.communicator.communicator import Communicator, Context, init
    from hocket.runtime.communicator.mesh import Mesh
    from hocket.runtime.communicator.point_to_point import ANY_SOURCE, ANY_TAG, Recv, Send
    from hocket.runtime.launch.launcher import run_ranks
    from hocket.runtime.memory import empty, record_stream
    from hocket.runtime.streams.stream import Event, Stream, current_stream, stream
    from hocket.runtime.streams.work import Work
    from hocket.runtime.traces.trace import span, trace
    from hocket.schedule.reduction import premul_sum
    from hocket.schedule.reduction import user_op as op
    from hocket.torch_backend.meeting import Options

__version__ = "0.1.0"

# fmt: off
__all__ = [
    "init", "Communicator", "Context", "Work", "empty", "run_ranks", "trace", "span",
    "Send", "Recv", "ANY_SOURCE", "ANY_TAG", "op", "premul_sum",
    "Mesh", "Cartesian", "algorithm", "ALGORITHMS", "Options", "errors",
    "Stream", "Event", "stream", "current_stream", "record_stream",
]
# fmt: on

_HOMES = {
    "init": "hocket.runtime.communicator.communicator",
    "Communicator": "hocket.runtime.communicator.communicator",
    "Context": "hocket.runtime.communicator.communicator",
    "Work": "hocket.runtime.streams.work",
    "empty": "hocket.runtime.memory",
    "run_ranks": "hocket.runtime.launch.launcher",
    "trace": "hocket.runtime.traces.trace",
    "span": "hocket.runtime.traces.trace",
    "Send": "hocket.runtime.communicator.point_to_point",
    "Recv": "hocket.runtime.communicator.point_to_point",
    "ANY_SOURCE": "hocket.runtime.communicator.point_to_point",
    "ANY_TAG": "hocket.runtime.communicator.point_to_point",
    "Stream": "hocket.runtime.streams.stream",
    "Event": "hocket.runtime.streams.stream",
    "stream": "hocket.runtime.streams.stream",
    "current_stream": "hocket.runtime.streams.stream",
    "record_stream": "hocket.runtime.memory",
    "op": "hocket.schedule.reduction",
    "premul_sum": "hocket.schedule.reduction",
    "Mesh": "hocket.runtime.communicator.mesh",
    "Cartesian": "hocket.runtime.communicator.cartesian",
    "algorithm": "hocket.algorithms",
    "ALGORITHMS": "hocket.algorithms",
    "Options": "hocket.torch_backend.meeting",
}
_RENAMED = {"op": "user_op"}  # hocket.op reads well; inside, op is what a call is given


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("hocket.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'hocket' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), _RENAMED.get(name, name))
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
