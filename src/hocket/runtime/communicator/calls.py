"""The path of a collective call into the core, after its arrays are checked: reduction, order, algorithm, plan."""

import contextlib
import operator
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hocket import _core
from hocket.algorithms import Algorithm
from hocket.errors import CommunicationError
from hocket.runtime.choice.select import ORDERS, Policy, choose, fitting
from hocket.runtime.communicator.arguments import (
    NOTHING,
    RESIZABLE,
    Described,
    cannot_split,
    check_unmasked,
    in_place,
    new_like,
    refused_rank,
    shape_of,
)
from hocket.runtime.communicator.call_settings import CallSettings, check_algorithm, check_order, check_timeout
from hocket.runtime.communicator.call_types import Counts
from hocket.runtime.communicator.cartesian import Cartesian
from hocket.runtime.communicator.reductions import PLAIN, extra_of, labels_of, parameters_of, reduction_of
from hocket.runtime.plans import find, launched
from hocket.runtime.streams.stream import current_stream, launch_mark
from hocket.runtime.streams.work import InFlight, Work
from hocket.runtime.vocabulary import DTYPES, KINDS, OPS
from hocket.schedule import COLLECTIVES, ITEM_BYTES

Found = tuple[_core.Launched, int, int, Any, float]
"""The plan, the numbers of collective and reduction, the core's Extra, and the default timeout in seconds."""

Options = tuple[str | None, str | None, float | None, bool]
"""algorithm, order, timeout and async_op, as the caller gave them."""

_KIND = {name: number for number, name in enumerate(KINDS)}
_REDUCING = frozenset(name for name, one in COLLECTIVES.items() if one.reduces and one.exactly_once)
_FOLDS = {"rank_order": "in rank order", "balanced_tree": "as a balanced tree"}
_LABELS = {order: frozenset((label,)) for order, label in ORDERS.items() if label is not None}
_BLOCK_PER_RANK = frozenset(name for name, one in COLLECTIVES.items() if one.blocks != "one" and not one.uneven)
_OWN_CALL = re.compile(r"^(rank \d+, )\w+(?=:| \(call \d)")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def cached(method: _Method) -> _Method:
    """Puts the core's cache before a method of Calls: a repeated call goes to the core without running the method.

    The method stays the definition of what is accepted, returned and refused. The cache recognises a call by the type,
    shape, layout and overlap of `x` and `out` (plain NumPy or PyTorch arrays), by the numbers in lists of counts, and
    by the identity of all other arguments, which must be None, strings or numbers. It serves messages, calls that
    return x, out, an array of `new_like` or None, and calls that return a Work with one of these as its result.
    """
    return cast(_Method, _core.cached_method(method))


def explained(method: _Method) -> _Method:
    """Says more of arguments that a method without a cache does not take, as `cached` does (see refusals.py)."""
    return cast(_Method, _core.explained_method(method))


@contextlib.contextmanager
def calling(name: str) -> Iterator[None]:
    """Makes failures of the collectives inside name the method that the program called."""
    try:
        yield
    except CommunicationError as error:
        error.args = (_OWN_CALL.sub(rf"\g<1>{name}", str(error), count=1),)
        raise


class Calls(_core.Caller):
    """The base of every part of a Communicator: how it calls the core. The attributes are the Communicator's."""

    context: Any
    _core: Any
    _rank: int
    _size: int
    topology: Cartesian
    _policy: Policy
    _default: CallSettings
    _settings: dict[str, CallSettings]
    _plans: dict[tuple[Algorithm, str, int, bool], _core.Launched]
    _token: Any
    _works: InFlight

    if TYPE_CHECKING:

        def _usable(self) -> Any: ...

    def _launch(
        self,
        collective: str,
        input: Described,
        output: Described,
        ahead: int,
        block: int,
        op: Any,
        root: int,
        options: Options,
        result: Any,
        x: Any,
        *,
        lengths: tuple[list[int], list[int]] | None = None,
    ) -> Any:
        """Finds the plan for checked arrays and runs or submits it.

        In an in-place call, input begins `ahead` elements after output. `block` is what ranks compare: the length of
        one block of the collective's vector; for uneven blocks the sum of the lengths, or 0 if ranks know different
        lengths. `lengths` are the lengths of the blocks of input and output, in elements.
        """
        core = self._core or self._usable()
        check_unmasked(collective, x)
        check_unmasked(collective, result)
        algorithm, order, timeout, async_op = options
        dtype = input[2] if input is not NOTHING else output[2]
        if output is input:
            aliased = input[1] > 0
        else:
            aliased = in_place(collective, input, output, ahead, ITEM_BYTES[dtype])
        planned, kind, number, extra, seconds = self._find(
            collective, algorithm, order, op, dtype, block, root, aliased, lengths
        )
        if timeout is not None:
            seconds = check_timeout(collective, timeout)
        call = (planned, kind, dtype, number, root, block, input[0], output[0], seconds, extra)
        # A memoryview keeps a resizable object from moving while the core uses its bytes.
        held: tuple[memoryview, ...] = ()
        if type(x) in RESIZABLE or type(result) in RESIZABLE:
            held = tuple(memoryview(one) for one in (x, result) if type(one) in RESIZABLE)
        stream = current_stream()
        if not async_op and stream is None:
            core.run(*call)
            del held
            return result
        work = Work(core, (x, result, held), result, f"{collective} on rank {self.context.rank}")
        self._works.add(work)  # before it starts: an interrupt in between must not free its memory
        work.start((*call, launch_mark(stream)))
        return work if async_op else work.wait()

    def _find(
        self,
        collective: str,
        algorithm: str | None,
        order: str | None,
        op: Any,
        dtype: int,
        block: int,
        root: int,
        aliased: bool,
        lengths: tuple[list[int], list[int]] | None,
    ) -> Found:
        """Returns what a call like this needs of the core. All checks of its options happen here, before any send."""
        settings = self._settings.get(collective, self._default)
        order = settings.order if order is None else check_order(collective, order)
        number = PLAIN.get((op, dtype)) if type(op) is str else None
        parameters: dict[str, Any] = {}
        wanted: list[tuple[str, frozenset[str]]] = []  # what wants one of these labels
        if number is None:
            reduction = reduction_of(collective, op, dtype)
            number, parameters = OPS.index(reduction.name), parameters_of(reduction, dtype)
            wanted += [("this op", labels_of(reduction))] if reduction.function is not None else []
        if collective not in _REDUCING:
            order = "fast"
        elif order != "fast":
            wanted.append((f"order={order!r}", _LABELS[order]))
        elif wanted:
            order = "rank"  # only steers the choice for a user's op; a named algorithm need not have this label
        algorithm = settings.algorithm if algorithm is None else check_algorithm(collective, algorithm)
        if not algorithm:
            # The bytes of the largest input or output of any rank: equal on all ranks.
            num_bytes = block * ITEM_BYTES[dtype] * (self._size if collective in _BLOCK_PER_RANK else 1)
            algorithm = choose(collective, self._size, num_bytes, order, self._policy)
        found = find(collective, algorithm)  # what the name means now: it may have been replaced
        key = (found, algorithm, root, aliased)
        planned = self._plans.get(key)
        if planned is None:
            grid = self.topology.shape if len(self.topology.axes) > 1 else None
            groups = self._policy.groups_for(found)
            planned = launched(found, self._rank, self._size, root, aliased, grid, groups)
            planned = self._plans.setdefault(key, planned)  # another thread may have been faster
        for what, labels in wanted:
            if not labels & planned.labels:
                raise self._lacks(collective, algorithm, what, labels)
        return planned, _KIND[collective], number, extra_of(parameters, lengths), settings.timeout

    def _lacks(self, collective: str, algorithm: str, what: str, labels: frozenset[str]) -> ValueError:
        """Returns the error for an algorithm that does not fold in an order that `what`, a part of the call, needs."""
        orders = [order for order, label in ORDERS.items() if label in labels]
        folds = " or ".join(fold for label, fold in _FOLDS.items() if label in labels)
        where = f" on {self._policy.num_hosts} hosts" if self._policy.hosts else ""
        return ValueError(
            f"{collective}: {what} needs an algorithm that reduces {folds}, and {algorithm!r} does not with "
            f"{self._size} ranks{where}; leave algorithm= out, or take one of "
            f"{fitting(collective, self._size, orders, self._policy)}"
        )

    def _check_root(self, collective: str, root: int) -> int:
        try:
            number = operator.index(root)
        except TypeError:
            number = -1
        if not 0 <= number < self._size:
            error = ValueError(f"{collective}: expected a root from 0 to {self._size - 1}, found {root!r}")
            raise refused_rank(error, self._size)
        return number

    def _concatenated(self, x: Any, input: Described) -> Any:
        """Returns a new array for the x of all ranks."""
        shape = shape_of(x, input[1])
        return new_like(x, (self._size * shape[0], *shape[1:]) if shape else (self._size,), input[2])

    def _split(self, collective: str, x: Any, input: Described) -> Any:
        """Returns a new array for one rank's block of x. Raises ValueError if x has no equal blocks."""
        shape = shape_of(x, input[1])
        if not shape or shape[0] % self._size:
            raise cannot_split(collective, self._size, shape)
        return new_like(x, (shape[0] // self._size, *shape[1:]), input[2])

    def _check_part(self, collective: str, output: Described, input: Described) -> None:
        if output[1] * self._size != input[1] or output[2] != input[2]:
            raise ValueError(
                f"{collective}: expected out with 1/{self._size} of the {input[1]} elements of x, as "
                f"{DTYPES[input[2]]}; found {output[1]} of {DTYPES[output[2]]}"
            )

    def _check_counts(self, collective: str, name: str, counts: Counts | None) -> list[int]:
        try:
            rows = [operator.index(count) for count in counts] if counts is not None else []
        except TypeError:
            rows = []
        if len(rows) != self._size or min(rows) < 0:
            raise ValueError(
                f"{collective}: expected {name} as {self._size} numbers of rows, one for each rank; found {counts!r}"
            )
        return rows
