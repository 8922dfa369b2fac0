"""The communicator: collectives on arrays among the ranks of a group.

It checks arguments, finds the plan, and hands both to the core; bytes move only there. Arrays are anything
C-contiguous in CPU memory with the buffer protocol or DLPack, of float32, float64, int32, int64 or uint8.
"""

import array
import atexit
import contextlib
import operator
import os
import sys
import threading
import weakref
from types import TracebackType
from typing import Any, Self

import numpy as np

from hocket import _core
from hocket.errors import CommunicationError
from hocket.runtime import memory
from hocket.runtime.environment import DEFAULT_TIMEOUT_SECONDS, at_rank_end, discover
from hocket.runtime.failures import DTYPES, KINDS, OPS
from hocket.runtime.plans import Prepared, prepare
from hocket.runtime.rendezvous import join
from hocket.runtime.select import choose
from hocket.runtime.work import Work

DEFAULT_OPERATION_SECONDS = 300.0

_KIND = {name: number for number, name in enumerate(KINDS)}
_OP = {name: number for number, name in enumerate(OPS)}
_ITEM_BYTES = tuple(np.dtype(name).itemsize for name in DTYPES)
_UINT8, _MAX, _AVG = DTYPES.index("uint8"), _OP["max"], _OP["avg"]
_FLOATS = frozenset(number for number, name in enumerate(DTYPES) if name.startswith("float"))
_RESIZABLE = frozenset((bytearray, array.array))
_NOTHING = (0, 0, 0)  # address, elements, dtype of no array

_open: "weakref.WeakSet[Communicator]" = weakref.WeakSet()


def init(
    rank: int | None = None,
    size: int | None = None,
    *,
    address: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
) -> "Communicator":
    """Meets the other ranks and returns the communicator of all of them; every rank calls it.

    Without arguments the place comes from whoever started the process: `hocket run`, run_ranks, torchrun, MPI, Slurm,
    and else it is one rank alone. `address` is any text that only these ranks share; timeout is in seconds. Raises
    RendezvousError (on all ranks that came, naming those that did not), ResourceError, and ValueError or TypeError for
    bad arguments.
    """
    environment = discover(rank, size, address, timeout=timeout)
    arena = memory.arena()
    context = _core.Context(arena)
    hello = {
        "presence": context.presence_offset,
        "endpoint": context.add_endpoint(environment.size),
        "piece_bytes": _core.PIECE_BYTES,
    }
    members = join(environment, arena.descriptor, hello)
    try:
        context.join(members.rank, members.descriptors, [said["presence"] for said in members.hellos])
    finally:
        for descriptor in members.descriptors:
            os.close(descriptor)
    endpoints = [said["endpoint"] for said in members.hellos]
    has_own_core = members.size <= len(os.sched_getaffinity(0))
    core = _core.Communicator(context, list(range(members.size)), members.rank, endpoints, has_own_core)
    communicator = Communicator(core, members.rank, members.size)
    _open.add(communicator)
    at_rank_end(communicator._end)
    return communicator


class Communicator:
    """Collectives among `size` ranks, of which this one is `rank`. Made by hocket.init().

    A collective is called by all ranks in the same order with arguments that agree; ranks that differ get
    CollectiveMismatch. It returns its output array, or with async_op=True a Work at once. `op` is "sum", "prod", "min",
    "max" or "avg" (floats only). `algorithm` is a registered name or "FILE.py:NAME", equal on all ranks; without it the
    size decides. `timeout` is in seconds (default 300). Arguments are checked before anything is sent: ValueError,
    TypeError; VerifyError for an algorithm that is not right. Any CommunicationError or ResourceError from a collective
    leaves a communicator that can only be closed. Threads may share it: their calls are ordered by a lock.
    """

    def __init__(self, core: Any, rank: int, size: int) -> None:
        self._core, self._rank, self._size = core, rank, size
        self._plans: dict[tuple[str, str, int, bool], Prepared] = {}
        self._works: list[Work] = []  # not yet seen to be completed: their arrays are in use
        self._lock = threading.Lock()  # guards _works
        self._token = np.zeros(1, np.uint8)  # what a barrier moves

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    def all_reduce(
        self,
        x: Any,
        *,
        op: str = "sum",
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Folds the x of all ranks, element by element; everyone gets the result, in place or in `out` (like x)."""
        input, output = _core.describe(x, out is None, "all_reduce: x"), _NOTHING
        if out is None:
            out, output = x, input
        else:
            output = _core.describe(out, True, "all_reduce: out")
            _check_like("all_reduce", output, input[1], input[2])
        return self._launch("all_reduce", input, output, input[1], op, 0, algorithm, timeout, async_op, out, x)

    def all_gather(
        self,
        x: Any,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Concatenates the x of all ranks along dim 0, in rank order; x of 0 dims gives shape (size,).

        In place where x is this rank's block of `out`; without `out`, a new array.
        """
        input = _core.describe(x, False, "all_gather: x")
        if out is None:
            shape = _shape_of(x, input[1])
            out = _new_like(x, (self._size * shape[0], *shape[1:]) if shape else (self._size,), input[2])
        output = _core.describe(out, True, "all_gather: out")
        _check_like("all_gather", output, input[1] * self._size, input[2])
        return self._launch("all_gather", input, output, input[1], "sum", 0, algorithm, timeout, async_op, out, x)

    def reduce_scatter(
        self,
        x: Any,
        *,
        op: str = "sum",
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Folds the x of all ranks; this rank gets block `rank` of the result, which is split along dim 0.

        In place where `out` is this rank's block of x (the rest of x may be overwritten); without `out`, a new array.
        """
        input = _core.describe(x, False, "reduce_scatter: x")
        shape = _shape_of(x, input[1])
        if out is None:
            if not shape or shape[0] % self._size:
                raise ValueError(
                    f"reduce_scatter: expected x with a dim 0 that {self._size} ranks can split evenly, found shape "
                    f"{shape}; pad it"
                )
            out = _new_like(x, (shape[0] // self._size, *shape[1:]), input[2])
        output = _core.describe(out, True, "reduce_scatter: out")
        if output[1] * self._size != input[1] or output[2] != input[2]:
            raise ValueError(
                f"reduce_scatter: expected out with 1/{self._size} of the {input[1]} elements of x, as "
                f"{DTYPES[input[2]]}; found {output[1]} of {DTYPES[output[2]]}"
            )
        return self._launch("reduce_scatter", input, output, output[1], op, 0, algorithm, timeout, async_op, out, x)

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Gives the root's x to everyone: in x itself, or in `out`; then x only tells its size off the root."""
        root = self._check_root("broadcast", root)
        at_root = self._rank == root
        input = _core.describe(x, out is None and not at_root, "broadcast: x")
        output = input
        if out is not None:
            output = _core.describe(out, True, "broadcast: out")
            _check_like("broadcast", output, input[1], input[2])
        else:
            out = x
        count = input[1]
        return self._launch(
            "broadcast",
            input if at_root else _NOTHING,
            output,
            count,
            "sum",
            root,
            algorithm,
            timeout,
            async_op,
            out,
            x,
        )

    def reduce(
        self,
        x: Any,
        root: int = 0,
        *,
        op: str = "sum",
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Folds the x of all ranks into the root's x, or its `out`, and returns that there.

        Off the root it returns None, leaves x intact and does not look at `out`.
        """
        root = self._check_root("reduce", root)
        at_root = self._rank == root
        input = _core.describe(x, at_root and out is None, "reduce: x")
        output = _NOTHING
        if not at_root:
            out = None
        elif out is None:
            out, output = x, input
        else:
            output = _core.describe(out, True, "reduce: out")
            _check_like("reduce", output, input[1], input[2])
        return self._launch("reduce", input, output, input[1], op, root, algorithm, timeout, async_op, out, x)

    def barrier(self, *, algorithm: str | None = None, timeout: float | None = None, async_op: bool = False) -> Any:
        """Returns, None, once every rank has called it."""
        token = self._token if not async_op else np.zeros(1, np.uint8)
        described = (token.ctypes.data, 1, _UINT8)
        return self._launch("barrier", described, described, 1, "max", 0, algorithm, timeout, async_op, None, token)

    def abort(self, reason: str) -> None:
        """Gives up: every rank's present or next call raises PeerAborted with this rank and reason."""
        self._usable().abort(reason.encode(errors="replace").decode())

    def close(self) -> None:
        """Waits for what was launched with async_op and leaves; the others can go on without this rank only to close.

        May be called again. Raises what another rank has reported and this one had not noticed yet.
        """
        core, self._core = self._core, None
        _open.discard(self)
        if core is None:
            return
        try:
            core.close()
        finally:
            self._works.clear()
            self._plans.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)

    @property
    def statistics(self) -> dict[str, Any]:
        """What was done so far: "calls", "seconds" (wall time inside collectives), "algorithms" (calls by name)."""
        algorithms: dict[str, int] = {}
        for (collective, name, _, _), prepared in self._plans.items():
            if prepared.num_calls:
                key = f"{collective}:{name}"
                algorithms[key] = algorithms.get(key, 0) + prepared.num_calls
        return {"calls": sum(algorithms.values()), "seconds": self._usable().busy_seconds, "algorithms": algorithms}

    def __repr__(self) -> str:
        return f"<hocket.Communicator rank {self._rank} of {self._size}{' (closed)' if self._core is None else ''}>"

    def _launch(
        self,
        collective: str,
        input: tuple[int, int, int],
        output: tuple[int, int, int],
        block: int,
        op: str,
        root: int,
        algorithm: str | None,
        timeout: float | None,
        async_op: bool,
        result: Any,
        x: Any,
    ) -> Any:
        """Finds the plan for checked arrays, given as (address, elements, dtype), and runs or submits it.

        `block` is the length of one block of the collective's vector: the same on all ranks, and what they compare.
        """
        core = self._core or self._usable()
        dtype = input[2] if input is not _NOTHING else output[2]
        number = _OP.get(op)
        if number is None:
            raise ValueError(f"{collective}: expected op to be one of {', '.join(OPS)}; found {op!r}")
        if number == _AVG and dtype not in _FLOATS:
            raise TypeError(
                f"{collective}: op 'avg' has no meaning for {DTYPES[dtype]}; use 'sum' and divide as you wish"
            )
        if timeout is None:
            timeout = DEFAULT_OPERATION_SECONDS
        elif not isinstance(timeout, int | float):
            raise TypeError(f"{collective}: timeout is a {type(timeout).__name__}; expected seconds above 0")
        elif not timeout > 0:
            raise ValueError(f"{collective}: timeout is {timeout}; expected seconds above 0")
        item_bytes = _ITEM_BYTES[dtype]
        in_place = self._in_place(collective, input, output, item_bytes)
        if algorithm is None:
            num_bytes = max(block, input[1], output[1]) * item_bytes
            algorithm = choose(collective, self._size, num_bytes)
        elif not isinstance(algorithm, str):
            raise TypeError(
                f"{collective}: expected algorithm as a registered name or FILE.py:NAME, found {algorithm!r}"
            )
        key = (collective, algorithm, root, in_place)
        prepared = self._plans.get(key)
        if prepared is None:
            prepared = prepare(collective, algorithm, self._rank, self._size, root, in_place)
            prepared = self._plans.setdefault(key, prepared)  # another thread may have been faster
        prepared.num_calls += 1
        call = (
            prepared.plan,
            _KIND[collective],
            dtype,
            number,
            root,
            prepared.schedule,
            block,
            input[0],
            output[0],
            timeout,
        )
        # An export keeps what can be resized from being moved while its bytes are in use.
        held: tuple[memoryview, ...] = ()
        if type(x) in _RESIZABLE or type(result) in _RESIZABLE:
            held = tuple(memoryview(one) for one in (x, result) if type(one) in _RESIZABLE)
        if not async_op:
            core.run(*call)
            del held
            return result
        work = Work(core, (x, result, held), result, f"{collective} on rank {self._rank}")
        with self._lock:
            # Kept from before it starts, so that nothing that interrupts this lets go of its memory.
            self._works = [*(one for one in self._works if not one.is_completed()), work]
        work.start(call)
        return work

    def _in_place(
        self, collective: str, input: tuple[int, int, int], output: tuple[int, int, int], item_bytes: int
    ) -> bool:
        """Whether input and output are one memory in the way that the collective allows; other overlaps are refused."""
        (start, count, _), (out_start, out_count, _) = input, output
        if not count or not out_count:
            return False
        if collective == "all_gather":
            aliased = start == out_start + self._rank * count * item_bytes
        elif collective == "reduce_scatter":
            aliased = out_start == start + self._rank * out_count * item_bytes
        else:
            aliased = start == out_start
        if not aliased and start < out_start + out_count * item_bytes and out_start < start + count * item_bytes:
            raise ValueError(
                f"{collective}: x and out overlap, but not as an in-place call does (see its docstring); pass arrays "
                "that share no memory"
            )
        return aliased

    def _check_root(self, collective: str, root: int) -> int:
        try:
            number = operator.index(root)
        except TypeError:
            number = -1
        if not 0 <= number < self._size:
            raise ValueError(f"{collective}: expected a root from 0 to {self._size - 1}, found {root!r}")
        return number

    def _usable(self) -> Any:
        if self._core is None:
            raise CommunicationError(f"rank {self._rank}: the communicator is closed; call hocket.init() for a new one")
        return self._core

    def _end(self, error: BaseException | None) -> None:
        """Closes; if because of an exception, tells the others so, and does not hide it behind another one."""
        if self._core is None:
            return
        if error is None:
            self.close()
            return
        with contextlib.suppress(CommunicationError):
            try:
                self.abort(f"{type(error).__name__}: {error}")
            finally:
                self.close()

    def __del__(self) -> None:
        # The core's own end would wait for the peers with the interpreter locked, and without hearing Ctrl-C.
        if getattr(self, "_core", None) is not None:
            self.close()


def _check_like(collective: str, found: tuple[int, int, int], count: int, dtype: int) -> None:
    if found[1] != count or found[2] != dtype:
        raise ValueError(
            f"{collective}: expected out with {count} elements of {DTYPES[dtype]}, "
            f"found {found[1]} of {DTYPES[found[2]]}"
        )


def _shape_of(x: Any, count: int) -> tuple[int, ...]:
    shape = getattr(x, "shape", None)
    return (count,) if shape is None else tuple(shape)


def _new_like(x: Any, shape: tuple[int, ...], dtype: int) -> Any:
    """A new array of the caller's kind: tensors make their own, all else is NumPy's."""
    if hasattr(x, "new_empty"):
        return x.new_empty(shape)
    return np.empty(shape, DTYPES[dtype])


@atexit.register
def _close_all() -> None:
    """At the end of the process: an uncaught exception is told to the others as the reason."""
    error = getattr(sys, "last_value", None)
    for communicator in list(_open):
        try:
            communicator._end(error)
        except Exception as failure:  # one that cannot be closed must not keep the others open
            print(f"hocket: {failure}", file=sys.stderr)
