"""The collectives whose blocks differ in length. `counts` are numbers of rows (along dim 0), one for each rank.

Counts may be zero. A rank knows only the lengths of the blocks that its own arrays hold. If two ranks give different
lengths for the same block, all ranks get CollectiveMismatch.
"""

from typing import Any, Literal, Unpack

from hocket import _core
from hocket.overloads import overload
from hocket.runtime.communicator.arguments import (
    NOTHING,
    check_blocks,
    check_like,
    check_rows,
    elements_of,
    new_like,
    rows_of,
)
from hocket.runtime.communicator.call_types import (
    A,
    ArrayLike,
    B,
    Counts,
    LateOptions,
    LateReducing,
    Out,
    ReducingResult,
    ResultOptions,
)
from hocket.runtime.communicator.calls import cached
from hocket.runtime.communicator.collectives import Collectives
from hocket.runtime.streams.work import Work


class UnevenCollectives(Collectives):
    """One part of a Communicator; otherwise as in Collectives."""

    @overload
    def all_gather_v(self, x: A, counts: Counts, *, out: None = ..., **options: Unpack[ResultOptions]) -> A: ...
    @overload
    def all_gather_v(self, x: ArrayLike, counts: Counts, *, out: B, **options: Unpack[ResultOptions]) -> B: ...
    @overload
    def all_gather_v(
        self,
        x: ArrayLike,
        counts: Counts,
        *,
        out: Out = ...,
        async_op: Literal[True],
        **options: Unpack[LateOptions],
    ) -> Work: ...
    @cached
    def all_gather_v(
        self,
        x: Any,
        counts: Counts,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Concatenates arrays of different lengths: x of rank i has counts[i] rows; counts are equal on all ranks.

        The result has sum(counts) rows, each with the shape of a row of x; x must have at least 1 dim (ValueError). The
        call is in place if x is this rank's part of `out`. Without `out` it returns a new array.
        """
        input = _core.describe(x, False, "all_gather_v: x")
        shape = rows_of("all_gather_v", x, input[1])
        rows = self._check_counts("all_gather_v", "counts", counts)
        check_rows("all_gather_v", f"counts[{self._rank}]", rows[self._rank], shape)
        elements = elements_of(rows, shape)
        if out is None:
            out = new_like(x, (sum(rows), *shape[1:]), input[2])
        output = _core.describe(out, True, "all_gather_v: out")
        check_like("all_gather_v", output, sum(elements), input[2])
        options = (algorithm, None, timeout, async_op)
        ahead = sum(elements[: self._rank])
        lengths = ([input[1]], elements)
        return self._launch(
            "all_gather_v", input, output, ahead, sum(elements), "sum", 0, options, out, x, lengths=lengths
        )

    @overload
    def gather_v(
        self, x: A, counts: Counts | None = ..., root: int = ..., *, out: None = ..., **options: Unpack[ResultOptions]
    ) -> A | None: ...
    @overload
    def gather_v(
        self, x: ArrayLike, counts: Counts | None = ..., root: int = ..., *, out: B, **options: Unpack[ResultOptions]
    ) -> B | None: ...
    @overload
    def gather_v(
        self,
        x: ArrayLike,
        counts: Counts | None = ...,
        root: int = ...,
        *,
        out: Out = ...,
        async_op: Literal[True],
        **options: Unpack[LateOptions],
    ) -> Work: ...
    @cached
    def gather_v(
        self,
        x: Any,
        counts: Counts | None = None,
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Concatenates arrays of different lengths at the root, which gives `counts`: the rows of each rank's x.

        Off the root counts are ignored: a rank knows its own. All else is as in gather.
        """
        root = self._check_root("gather_v", root)
        input, output, ahead = _core.describe(x, False, "gather_v: x"), NOTHING, 0
        shape = rows_of("gather_v", x, input[1])
        lengths: tuple[list[int], list[int]] = ([input[1]], [])
        if self._rank != root:
            out = None
        else:
            rows = self._check_counts("gather_v", "counts", counts)
            check_rows("gather_v", f"counts[{self._rank}]", rows[self._rank], shape)
            elements = elements_of(rows, shape)
            if out is None:
                out = new_like(x, (sum(rows), *shape[1:]), input[2])
            output = _core.describe(out, True, "gather_v: out")
            check_like("gather_v", output, sum(elements), input[2])
            lengths, ahead = ([input[1]], elements), sum(elements[: self._rank])
        options = (algorithm, None, timeout, async_op)
        return self._launch("gather_v", input, output, ahead, 0, "sum", root, options, out, x, lengths=lengths)

    @overload
    def scatter_v(
        self,
        x: Out = ...,
        counts: Counts | None = ...,
        root: int = ...,
        *,
        out: None = ...,
        **options: Unpack[ResultOptions],
    ) -> Any: ...
    @overload
    def scatter_v(
        self, x: Out = ..., counts: Counts | None = ..., root: int = ..., *, out: B, **options: Unpack[ResultOptions]
    ) -> B: ...
    @overload
    def scatter_v(
        self,
        x: Out = ...,
        counts: Counts | None = ...,
        root: int = ...,
        *,
        out: Out = ...,
        async_op: Literal[True],
        **options: Unpack[LateOptions],
    ) -> Work: ...
    @cached
    def scatter_v(
        self,
        x: Any = None,
        counts: Counts | None = None,
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Splits the root's x along dim 0 into parts of different lengths; the root gives `counts`, the rows of each.

        Either all ranks pass `out`, or none does; see scatter. The root's `out` may be its part of x (in place). Off
        the root the length of `out` is what this rank expects; x and counts are ignored.
        """
        root = self._check_root("scatter_v", root)
        input, ahead, elements = NOTHING, 0, list[int]()
        if self._rank == root:
            input = _core.describe(x, False, "scatter_v: x")
            shape = rows_of("scatter_v", x, input[1])
            rows = self._check_counts("scatter_v", "counts", counts)
            check_rows("scatter_v", "the sum of counts", sum(rows), shape)
            elements = elements_of(rows, shape)
            ahead = -sum(elements[: self._rank])
        if out is None:
            check_blocks("scatter_v", async_op)
            if self._rank == root:
                out = new_like(x, (rows[self._rank], *shape[1:]), input[2])
                self._tell("scatter_v", root, [(count, *shape[1:]) for count in rows], input[2], timeout)
            else:
                out = self._told(root, timeout)
        output = _core.describe(out, True, "scatter_v: out")
        if self._rank == root:
            check_like("scatter_v", output, elements[self._rank], input[2])
        options = (algorithm, None, timeout, async_op)
        lengths = (elements, [output[1]])
        return self._launch("scatter_v", input, output, ahead, 0, "sum", root, options, out, x, lengths=lengths)

    @overload
    def reduce_scatter_v(self, x: A, counts: Counts, *, out: None = ..., **options: Unpack[ReducingResult]) -> A: ...
    @overload
    def reduce_scatter_v(self, x: ArrayLike, counts: Counts, *, out: B, **options: Unpack[ReducingResult]) -> B: ...
    @overload
    def reduce_scatter_v(
        self,
        x: ArrayLike,
        counts: Counts,
        *,
        out: Out = ...,
        async_op: Literal[True],
        **options: Unpack[LateReducing],
    ) -> Work: ...
    @cached
    def reduce_scatter_v(
        self,
        x: Any,
        counts: Counts,
        *,
        op: Any = "sum",
        out: Any = None,
        algorithm: str | None = None,
        order: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Folds the x of all ranks; rank i gets counts[i] rows of the result; counts are equal on all ranks.

        The call is in place if `out` is this rank's part of x (the rest of x may be overwritten). Without `out` it
        returns a new array.
        """
        input = _core.describe(x, False, "reduce_scatter_v: x")
        shape = rows_of("reduce_scatter_v", x, input[1])
        rows = self._check_counts("reduce_scatter_v", "counts", counts)
        check_rows("reduce_scatter_v", "the sum of counts", sum(rows), shape)
        elements = elements_of(rows, shape)
        if out is None:
            out = new_like(x, (rows[self._rank], *shape[1:]), input[2])
        output = _core.describe(out, True, "reduce_scatter_v: out")
        check_like("reduce_scatter_v", output, elements[self._rank], input[2])
        options = (algorithm, order, timeout, async_op)
        ahead = -sum(elements[: self._rank])
        lengths = (elements, [output[1]])
        return self._launch("reduce_scatter_v", input, output, ahead, input[1], op, 0, options, out, x, lengths=lengths)

    @overload
    def all_to_all_v(
        self,
        x: A,
        send_counts: Counts,
        recv_counts: Counts,
        *,
        out: None = ...,
        **options: Unpack[ResultOptions],
    ) -> A: ...
    @overload
    def all_to_all_v(
        self,
        x: ArrayLike,
        send_counts: Counts,
        recv_counts: Counts,
        *,
        out: B,
        **options: Unpack[ResultOptions],
    ) -> B: ...
    @overload
    def all_to_all_v(
        self,
        x: ArrayLike,
        send_counts: Counts,
        recv_counts: Counts,
        *,
        out: Out = ...,
        async_op: Literal[True],
        **options: Unpack[LateOptions],
    ) -> Work: ...
    @cached
    def all_to_all_v(
        self,
        x: Any,
        send_counts: Counts,
        recv_counts: Counts,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Sends send_counts[j] rows of x to rank j and receives recv_counts[i] rows from rank i, in rank order.

        The sums of the counts are the rows of x and of the result. Each rank gives only its own counts. If two ranks
        give different counts for the same pair, all ranks get a CollectiveMismatch that names both. The call is in
        place if `out` is x and both counts are equal. Without `out` it returns a new array.
        """
        input = _core.describe(x, False, "all_to_all_v: x")
        shape = rows_of("all_to_all_v", x, input[1])
        sent = self._check_counts("all_to_all_v", "send_counts", send_counts)
        received = self._check_counts("all_to_all_v", "recv_counts", recv_counts)
        check_rows("all_to_all_v", "the sum of send_counts", sum(sent), shape)
        if sent[self._rank] != received[self._rank]:
            raise ValueError(
                f"all_to_all_v: expected send_counts[{self._rank}] equal to recv_counts[{self._rank}], the rows that "
                f"this rank keeps; found {sent[self._rank]} and {received[self._rank]}"
            )
        if out is None:
            out = new_like(x, (sum(received), *shape[1:]), input[2])
        output = _core.describe(out, True, "all_to_all_v: out")
        lengths = (elements_of(sent, shape), elements_of(received, shape))
        check_like("all_to_all_v", output, sum(lengths[1]), input[2])
        if input[0] == output[0] and input[1] and lengths[0] != lengths[1]:
            raise ValueError(
                f"all_to_all_v: expected equal send_counts and recv_counts if out is x, found {sent} and {received}"
                "; pass another out"
            )
        options = (algorithm, None, timeout, async_op)
        return self._launch("all_to_all_v", input, output, 0, 0, "sum", 0, options, out, x, lengths=lengths)
