"""Hocket: collective communication in which an algorithm is a small Python program, proved before it runs.

    import hocket

    with hocket.init() as comm:
        comm.all_reduce(x)

Names are loaded when they are first used: ranks start many at a time, so importing must be cheap.
"""

from typing import TYPE_CHECKING

from hocket import errors
from hocket.lazy import lazy_names

if TYPE_CHECKING:
    from hocket.algorithms import algorithm
    from hocket.algorithms import list_algorithms as algorithms
    from hocket.answers import (
        calibrate,
        expect,
        explain,
        optimum,
        pipeline,
        show,
        simulate,
        synthesise,
        topology,
        verify,
    )
    from hocket.runtime import (
        ANY_SOURCE,
        ANY_TAG,
        Cartesian,
        Communicator,
        Context,
        Event,
        Mesh,
        Recv,
        Send,
        Stream,
        Work,
        current_stream,
        empty,
        init,
        record_stream,
        run_ranks,
        span,
        stream,
        trace,
    )
    from hocket.schedule import Builder, premul_sum
    from hocket.schedule import user_op as op

__version__ = "0.1.0"

# fmt: off
__all__ = [
    "init", "Communicator", "Context", "Work", "empty", "run_ranks", "trace", "span",
    "Send", "Recv", "ANY_SOURCE", "ANY_TAG", "op", "premul_sum",
    "Mesh", "Cartesian", "errors",
    "algorithm", "algorithms", "Builder", "verify", "simulate", "explain", "show", "topology",
    "pipeline", "optimum", "synthesise", "calibrate", "expect",
    "Stream", "Event", "stream", "current_stream", "record_stream",
]


def _instead(name: str) -> str:
    from hocket.runtime import name_instead  # seldom needed

    return "" if name.startswith("_") else name_instead(name)


if not TYPE_CHECKING:
    __getattr__, __dir__, _ = lazy_names(
        __name__,
        {
            "runtime": [
                "init", "Communicator", "Context", "Work", "empty", "run_ranks", "trace", "span",
                "Send", "Recv", "ANY_SOURCE", "ANY_TAG", "Mesh", "Cartesian",
                "Stream", "Event", "stream", "current_stream", "record_stream",
            ],
            "schedule": ["Builder", "user_op as op", "premul_sum"],  # inside, op is what a call is given
            "": ["algorithms", "ray"],  # modules; one can be called: hocket.algorithms("all_reduce")
            "algorithms": ["algorithm"],
            "answers": [
                "calibrate",
                "expect",
                "explain",
                "optimum",
                "pipeline",
                "show",
                "simulate",
                "synthesise",
                "topology",
                "verify",
            ],
        },
        _instead,
    )
# fmt: on
