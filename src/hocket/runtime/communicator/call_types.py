"""The types of the arguments of a communicator's calls: for type checkers and editors, not checked at run time."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from numpy.typing import NDArray

from hocket.schedule import Reduction

OpName = Literal["sum", "prod", "min", "max", "avg", "land", "lor", "lxor", "band", "bor", "bxor"]
Order = Literal["fast", "rank", "invariant"]
Op = OpName | Reduction | Callable[[Any, Any], Any]
"""A name, hocket.premul_sum(factor), hocket.op(function), a NumPy ufunc, or any function of two arrays."""


class DLPackArray(Protocol):
    """A NumPy array, a tensor, or any other array with DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class BufferArray(Protocol):
    """A bytearray, a memoryview, or anything else with the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


ArrayLike = DLPackArray | BufferArray
"""A C-contiguous array in CPU memory, with DLPack or the buffer protocol."""

A = TypeVar("A", bound=ArrayLike)
B = TypeVar("B", bound=ArrayLike)


Out = ArrayLike | None
Counts = Sequence[int] | NDArray[Any]
"""Numbers of rows, one for each rank."""


class LateOptions(TypedDict, total=False):
    """Options of every collective: a registered name or "FILE.py:NAME"; seconds."""

    algorithm: str | None
    timeout: float | None


class LateReducing(LateOptions, total=False):
    """Options of a collective that reduces."""

    op: Op
    order: Order | None


class ResultOptions(LateOptions, total=False):
    """Options of a call that returns its result."""

    async_op: Literal[False]


class ReducingResult(LateReducing, total=False):
    """Options of a reducing call that returns its result."""

    async_op: Literal[False]
