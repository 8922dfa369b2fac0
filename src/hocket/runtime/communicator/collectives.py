"""The collectives of a communicator whose blocks all have the same length: what each accepts and returns.

An array is any C-contiguous object in CPU memory with the buffer protocol or DLPack, and without a mask. Arrays are
concatenated and split along dim 0. Ranks compare the number of elements and the dtype, not the shape: (2, 3) agrees
with (3, 2).
"""

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import numpy as np

from hocket import _core
from hocket.overloads import overload
from hocket.runtime.communicator.arguments import (
    NOTHING,
    cannot_split,
    check_blocks,
    check_like,
    new_like,
    shape_of,
)
from hocket.runtime.communicator.call_types import (
    A,
    ArrayLike,
    B,
    LateOptions,
    LateReducing,
    Out,
    ReducingResult,
    ResultOptions,
)
from hocket.runtime.communicator.calls import Calls, cached
from hocket.runtime.streams.work import Work
from hocket.runtime.vocabulary import DTYPES

_TOKEN = DTYPES.index("uint8")
_TOLD = 32  # numbers that tell a type and a shape


class Collectives(Calls):
    """One part of a Communicator. Bad arguments raise ValueError or TypeError before anything is sent."""

    @overload
    def all_reduce(self, x: A, *, out: None = ..., **options: Unpack[ReducingResult]) -> A: ...
    @overload
    def all_reduce(self, x: ArrayLike, *, out: B, **options: Unpack[ReducingResult]) -> B: ...
    @overload
    def all_reduce(
        self, x: ArrayLike, *, out: Out = ..., async_op: Literal[True], **options: Unpack[LateReducing]
    ) -> Work: ...
    @cached
    def all_reduce(
        self,
        x: Any,
        *,
        op: Any = "sum",
        out: Any = None,
        algorithm: str | None = None,
        order: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Folds the x of all ranks, element by element; every rank gets the result, in x or in `out` (like x)."""
        input, output = _core.describe(x, out is None, "all_reduce: x"), NOTHING
        if out is None:
            out, output = x, input
        else:
            output = _core.describe(out, True, "all_reduce: out")
            check_like("all_reduce", output, input[1], input[2])
        options = (algorithm, order, timeout, async_op)
        return self._launch("all_reduce", input, output, 0, input[1], op, 0, options, out, x)

    @overload
    def all_gather(self, x: A, *, out: None = ..., **options: Unpack[ResultOptions]) -> A: ...
    @overload
    def all_gather(self, x: ArrayLike, *, out: B, **options: Unpack[ResultOptions]) -> B: ...
    @overload
    def all_gather(
        self, x: ArrayLike, *, out: Out = ..., async_op: Literal[True], **options: Unpack[LateOptions]
    ) -> Work: ...
    @cached
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

        The call is in place if x is this rank's block of `out`. Without `out` it returns a new array.
        """
        input = _core.describe(x, False, "all_gather: x")
        if out is None:
            out = self._concatenated(x, input)
        output = _core.describe(out, True, "all_gather: out")
        check_like("all_gather", output, input[1] * self._size, input[2])
        options = (algorithm, None, timeout, async_op)
        ahead = self._rank * input[1]
        return self._launch("all_gather", input, output, ahead, input[1], "sum", 0, options, out, x)

    @overload
    def reduce_scatter(self, x: A, *, out: None = ..., **options: Unpack[ReducingResult]) -> A: ...
    @overload
    def reduce_scatter(self, x: ArrayLike, *, out: B, **options: Unpack[ReducingResult]) -> B: ...
    @overload
    def reduce_scatter(
        self, x: ArrayLike, *, out: Out = ..., async_op: Literal[True], **options: Unpack[LateReducing]
    ) -> Work: ...
    @cached
    def reduce_scatter(
        self,
        x: Any,
        *,
        op: Any = "sum",
        out: Any = None,
        algorithm: str | None = None,
        order: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Folds the x of all ranks; this rank gets block `rank` of the result, which is split along dim 0.

        The call is in place if `out` is this rank's block of x (the rest of x may be overwritten). Without `out` it
        returns a new array; dim 0 must then be a multiple of `size` (ValueError).
        """
        input = _core.describe(x, False, "reduce_scatter: x")
        if out is None:
            out = self._split("reduce_scatter", x, input)
        output = _core.describe(out, True, "reduce_scatter: out")
        self._check_part("reduce_scatter", output, input)
        options = (algorithm, order, timeout, async_op)
        ahead = -self._rank * output[1]
        return self._launch("reduce_scatter", input, output, ahead, output[1], op, 0, options, out, x)

    @overload
    def broadcast(self, x: A, root: int = ..., *, out: None = ..., **options: Unpack[ResultOptions]) -> A: ...
    @overload
    def broadcast(self, x: ArrayLike, root: int = ..., *, out: B, **options: Unpack[ResultOptions]) -> B: ...
    @overload
    def broadcast(
        self,
        x: ArrayLike,
        root: int = ...,
        *,
        out: Out = ...,
        async_op: Literal[True],
        **options: Unpack[LateOptions],
    ) -> Work: ...
    @cached
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
        """Copies the root's x to every rank: into x or `out`. On other ranks, x and `out` have its size and type."""
        root = self._check_root("broadcast", root)
        at_root = self._rank == root
        input = _core.describe(x, out is None and not at_root, "broadcast: x")
        output, count = input, input[1]
        if out is not None:
            output = _core.describe(out, True, "broadcast: out")
            check_like("broadcast", output, count, input[2])
        else:
            out = x
        options = (algorithm, None, timeout, async_op)
        given = input if at_root else NOTHING
        return self._launch("broadcast", given, output, 0, count, "sum", root, options, out, x)

    @overload
    def reduce(self, x: A, root: int = ..., *, out: None = ..., **options: Unpack[ReducingResult]) -> A | None: ...
    @overload
    def reduce(self, x: ArrayLike, root: int = ..., *, out: B, **options: Unpack[ReducingResult]) -> B | None: ...
    @overload
    def reduce(
        self,
        x: ArrayLike,
        root: int = ...,
        *,
        out: Out = ...,
        async_op: Literal[True],
        **options: Unpack[LateReducing],
    ) -> Work: ...
    @cached
    def reduce(
        self,
        x: Any,
        root: int = 0,
        *,
        op: Any = "sum",
        out: Any = None,
        algorithm: str | None = None,
        order: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Folds the x of all ranks into the root's x, or into its `out`, and returns that array at the root.

        Off the root it returns None, leaves x intact and ignores `out`.
        """
        root = self._check_root("reduce", root)
        at_root = self._rank == root
        input = _core.describe(x, at_root and out is None, "reduce: x")
        output = NOTHING
        if not at_root:
            out = None
        elif out is None:
            out, output = x, input
        else:
            output = _core.describe(out, True, "reduce: out")
            check_like("reduce", output, input[1], input[2])
        options = (algorithm, order, timeout, async_op)
        return self._launch("reduce", input, output, 0, input[1], op, root, options, out, x)

    @overload
    def gather(self, x: A, root: int = ..., *, out: None = ..., **options: Unpack[ResultOptions]) -> A | None: ...
    @overload
    def gather(self, x: ArrayLike, root: int = ..., *, out: B, **options: Unpack[ResultOptions]) -> B | None: ...
    @overload
    def gather(
        self,
        x: ArrayLike,
        root: int = ...,
        *,
        out: Out = ...,
        async_op: Literal[True],
        **options: Unpack[LateOptions],
    ) -> Work: ...
    @cached
    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Concatenates the x of all ranks along dim 0 at the root, in its `out` or a new array; the root returns it.

        The call is in place if the root's x is its block of `out`. Off the root it returns None and ignores `out`.
        """
        root = self._check_root("gather", root)
        input, output = _core.describe(x, False, "gather: x"), NOTHING
        if self._rank != root:
            out = None
        else:
            if out is None:
                out = self._concatenated(x, input)
            output = _core.describe(out, True, "gather: out")
            check_like("gather", output, input[1] * self._size, input[2])
        options = (algorithm, None, timeout, async_op)
        ahead = self._rank * input[1]
        return self._launch("gather", input, output, ahead, input[1], "sum", root, options, out, x)

    @overload
    def scatter(self, x: Out = ..., root: int = ..., *, out: None = ..., **options: Unpack[ResultOptions]) -> Any: ...
    @overload
    def scatter(self, x: Out = ..., root: int = ..., *, out: B, **options: Unpack[ResultOptions]) -> B: ...
    @overload
    def scatter(
        self,
        x: Out = ...,
        root: int = ...,
        *,
        out: Out = ...,
        async_op: Literal[True],
        **options: Unpack[LateOptions],
    ) -> Work: ...
    @cached
    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Splits the root's x along dim 0; this rank gets block `rank` of it, in `out` or in a new array.

        Either all ranks pass `out`, or none does: without it the root first tells the others the shape and the type, so
        the call takes longer, and it cannot be asynchronous or in a stream. dim 0 of x must then be a multiple of
        `size` (ValueError). The root's `out` may be its block of x (in place). Off the root x is ignored, and a new
        array is a NumPy array.
        """
        root = self._check_root("scatter", root)
        input = NOTHING
        if self._rank == root:
            input = _core.describe(x, False, "scatter: x")
        if out is None:
            check_blocks("scatter", async_op)
            if self._rank == root:
                out = self._split("scatter", x, input)
                self._tell("scatter", root, [shape_of(out, input[1])] * self._size, input[2], timeout)
            else:
                out = self._told(root, timeout)
        output = _core.describe(out, True, "scatter: out")
        if self._rank == root:
            self._check_part("scatter", output, input)
        options = (algorithm, None, timeout, async_op)
        ahead = -self._rank * output[1]
        return self._launch("scatter", input, output, ahead, output[1], "sum", root, options, out, x)

    @overload
    def all_to_all(self, x: A, *, out: None = ..., **options: Unpack[ResultOptions]) -> A: ...
    @overload
    def all_to_all(self, x: ArrayLike, *, out: B, **options: Unpack[ResultOptions]) -> B: ...
    @overload
    def all_to_all(
        self, x: ArrayLike, *, out: Out = ..., async_op: Literal[True], **options: Unpack[LateOptions]
    ) -> Work: ...
    @cached
    def all_to_all(
        self,
        x: Any,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Splits x along dim 0 into a block for each rank: block j of rank i becomes block i of rank j.

        Dim 0 must be a multiple of `size` (ValueError). The result has the shape of x. The call is in place if `out`
        is x. Without `out` it returns a new array.
        """
        input = _core.describe(x, False, "all_to_all: x")
        shape = shape_of(x, input[1])
        if not shape or shape[0] % self._size:
            raise cannot_split("all_to_all", self._size, shape)
        if out is None:
            out = new_like(x, shape, input[2])
        output = _core.describe(out, True, "all_to_all: out")
        check_like("all_to_all", output, input[1], input[2])
        options = (algorithm, None, timeout, async_op)
        return self._launch("all_to_all", input, output, 0, input[1] // self._size, "sum", 0, options, out, x)

    @overload
    def barrier(self, **options: Unpack[ResultOptions]) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True], **options: Unpack[LateOptions]) -> Work: ...
    @cached
    def barrier(self, *, algorithm: str | None = None, timeout: float | None = None, async_op: bool = False) -> Any:
        """Returns None once every rank has called it."""
        token = self._token if not async_op else new_like(None, (1,), _TOKEN)
        found = _core.describe(token, True, "barrier: token")
        options = (algorithm, None, timeout, async_op)
        return self._launch("barrier", found, found, 0, 1, "max", 0, options, None, token)

    def _tell(self, name: str, root: int, shapes: Sequence[tuple[int, ...]], dtype: int, timeout: float | None) -> None:
        """Tells each rank the shape and the type of its part, which it waits for in `_told`."""
        if self._size == 1:
            return
        told = np.zeros((self._size, _TOLD), np.int64)
        for rank, shape in enumerate(shapes):
            if len(shape) > _TOLD - 2:
                raise ValueError(f"{name}: expected out= for an array of more than 30 dims; found {len(shape)}")
            told[rank, : 2 + len(shape)] = (dtype, len(shape), *shape)
        self.scatter(told, root, out=told[root : root + 1], timeout=timeout)

    def _told(self, root: int, timeout: float | None) -> Any:
        """Returns a new array for this rank's part, of the shape and type that the root tells."""
        told = np.zeros((1, _TOLD), np.int64)
        self.scatter(None, root, out=told, timeout=timeout)
        dtype, num_dims, *shape = told[0].tolist()
        return new_like(None, tuple(shape[:num_dims]), dtype)
