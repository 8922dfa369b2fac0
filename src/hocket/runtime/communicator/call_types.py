"""The types of the arguments of a communicator's calls: for type checkers and editors, not checked at run time."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar

from numpy.typing import NDArray

from hocket.schedule import Reduction

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = Any

OpName = Literal["sum", "prod", "min", "max", "avg", "land", "lor", "lxor", "band", "bor", "bxor"]
Order = Literal["fast", "rank", "invariant"]
Op = OpName | Reduction | Callable[[Any, Any], Any]
"""A name, hocket.premul_sum(factor), hocket.op(function), a NumPy ufunc, or any function of two arrays."""


class DLPackArray(Protocol):
    """A NumPy array, a tensor, or any other array with DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


ArrayLike = DLPackArray | Buffer
"""A C-contiguous array in CPU memory, with DLPack or the buffer protocol."""

A = TypeVar("A", bound=ArrayLike)
B = TypeVar("B", bound=ArrayLike)


Out = ArrayLike | None
Counts = Sequence[int] | NDArray[Any]
"""Numbers of rows, one for each rank."""


class Launched(TypedDict, total=False):
    """Options of every collective: a registered name or "FILE.py:NAME"; seconds."""

    algorithm: str | None
    timeout: float | None


class LaunchedReducing(Launched, total=False):
    """Options of a collective that reduces."""

    op: Op
    order: Order | None


class Blocking(Launched, total=False):
    """Options of a call that returns its result."""

    async_op: Literal[False]


class BlockingReducing(LaunchedReducing, total=False):
    """Options of a reducing call that returns its result."""

    async_op: Literal[False]
