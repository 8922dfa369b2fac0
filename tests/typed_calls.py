"""What type checkers know of Hocket's calls: `make check` reads this file, and nothing runs it.

Where a line is wrong on purpose, the comment that silences the type checker is an error itself unless it is needed.
"""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import hocket

Floats = NDArray[np.float32]


def collectives(comm: hocket.Communicator, x: Floats, out: Floats) -> None:
    assert_type(comm.all_reduce(x), Floats)
    assert_type(comm.all_reduce(x, op="max", order="rank", timeout=3.0, algorithm="ring"), Floats)
    assert_type(comm.all_reduce(bytearray(8), op=np.hypot), bytearray)
    assert_type(comm.all_gather(x.astype(np.int8), out=out), Floats)
    assert_type(comm.all_reduce(x, async_op=True), hocket.Work)
    assert_type(comm.reduce(x), Floats | None)
    assert_type(comm.all_gather_v(x, [1, 2]), Floats)
    assert_type(comm.barrier(), None)
    assert_type(comm.gather_object("x"), list[Any] | None)
    comm.all_reduce(x, op="summ")  # type: ignore[call-overload]
    comm.all_reduce([1.0, 2.0])  # type: ignore[call-overload]
    comm.all_reduce(x, order="ranks")  # type: ignore[call-overload]
    comm.all_gather(x, op="sum")  # type: ignore[call-overload]


def answers() -> None:
    assert_type(hocket.verify("ring", ranks="1-16").holds, bool)
    assert_type(hocket.simulate("all_reduce", topology="torus:4x4").seconds, float)
    assert_type(hocket.explain("all_reduce", "64K", ranks=4).by, str)
    assert_type(hocket.explain("all_reduce", "64K", topology="torus:4x4").topology, str)
    assert_type(hocket.show("ring").num_steps, int)
    assert_type(hocket.show("broadcast", root=1).algorithms, tuple[str, ...])
    assert_type(hocket.explain("all_reduce", "64K", 4).by, str)
    assert_type(hocket.show("ring", 4).num_steps, int)
    ring = hocket.algorithms("all_reduce")["ring"]
    assert_type(hocket.verify(ring).holds, bool)
    assert_type(hocket.simulate("all_reduce", topology="torus:4x4", algorithm=[ring, "direct"]).seconds, float)
    assert_type(hocket.explain("all_reduce", 64, ranks=4, algorithm=ring).by, str)
    assert_type(hocket.show(ring).num_steps + hocket.show(ring.build(4)).num_steps, int)
    assert_type(hocket.topology("torus:4x4").num_ranks, int)
    assert_type(hocket.pipeline("1f1b", 4, 8, times={"W": 0.5}).makespan, float | None)
    assert_type(hocket.algorithms("all_reduce")["ring"].name, str)
    print(hocket.explain("all_reduce", "64K", topology="torus:4x4").by)  # type: ignore[attr-defined]
