"""The settings of a run of `hocket bench`: sizes, types, reductions, and numbers of calls."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hocket.algorithms import ALGORITHMS, add_algorithms, check_taken
from hocket.answers import check_memory
from hocket.errors import did_you_mean
from hocket.runtime import plans
from hocket.runtime.tuning import host_bound
from hocket.schedule import (
    COLLECTIVES,
    DTYPE_TABLE,
    DTYPES,
    ITEM_BYTES,
    REDUCTIONS,
    Reduction,
    check_reduction,
    find_collective_name,
    numpy_dtype,
    plain_spelling,
    premul_sum,
)

ALL = "all"
FACTOR = 2  # the factor of premul_sum: a power of two is exact in every type

_TYPES_OF_NCCL = {dtype.name: dtype.nccl for dtype in DTYPE_TABLE}
_OPS_OF_NCCL = {"premul_sum": "mulsum"}  # the other names are the same
_OPS = tuple(name for name in REDUCTIONS if name != "custom")


@dataclass(frozen=True)
class BenchSettings:
    """The settings of one run. Sizes are in bytes; iterations is None if the bench chooses the number."""

    collective: str
    num_ranks: int
    min_bytes: int
    max_bytes: int
    step_factor: int
    step_bytes: int
    iterations: int | None
    warm_up: int
    aggregated: int
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    roots: tuple[int, ...]
    num_checks: int
    blocking: bool
    average: int
    timeout: float
    registered: bool
    algorithms: tuple[str | None, ...]  # None: by size; several are compared
    groups: tuple[int, ...] | None  # of the algorithms that take them; so are dims
    dims: tuple[int, ...] | None
    order: str | None
    percentiles: bool
    format: str
    json_file: str | None
    arguments: tuple[str, ...]

    @property
    def reduces(self) -> bool:
        """Whether the collective takes a reduction (op)."""
        return self.collective != host_bound.MESSAGE and COLLECTIVES[self.collective].counts_contributions

    @property
    def moves_data(self) -> bool:
        """Whether the collective moves data: all but a barrier do."""
        return self.collective == host_bound.MESSAGE or COLLECTIVES[self.collective].exactly_once

    def sizes(self) -> Iterator[int]:
        """Yields the requested sizes from the smallest on; for a barrier only 0."""
        if not self.moves_data or self.min_bytes == self.max_bytes:  # one size: the step is not used
            yield self.min_bytes if self.moves_data else 0
            return
        size = self.min_bytes
        while size <= self.max_bytes:
            yield size
            size = size * self.step_factor if self.step_factor > 1 else size + self.step_bytes

    def runs(self) -> Iterator[tuple[str, str, int]]:
        """Yields (dtype, op, root) in the order of NCCL's tests, without combinations that have no meaning."""
        for dtype in self.dtypes:
            for op in self.ops:
                if len(self.ops) == len(self.dtypes) == 1 or _has_meaning(op, dtype):
                    for root in self.roots:
                        yield dtype, op, root

    def num_elements(self, size: int, dtype: str) -> int:
        """Returns the elements of the whole vector for a size, rounded down to whole blocks."""
        count = size // ITEM_BYTES[DTYPES.index(dtype)]
        return count - count % self.divisor

    def rounds(self) -> bool:
        """Whether some size is not a whole number of blocks."""
        items = [ITEM_BYTES[DTYPES.index(dtype)] for dtype in self.dtypes]
        return any(size % (item * self.divisor) for size in self.sizes() for item in items)

    @property
    def divisor(self) -> int:
        """The number of elements is a multiple of this."""
        if self.collective == host_bound.MESSAGE:
            return 1
        kind = COLLECTIVES[self.collective]
        if kind.uneven:  # blocks of 1, 2, ... p parts; see bench_cases
            return self.num_ranks * (self.num_ranks + 1) // 2
        return 1 if kind.blocks == "one" else self.num_ranks


def reduction(op: str) -> str | Reduction:
    """Returns the value to pass to a communicator as op=."""
    return premul_sum(FACTOR) if op == "premul_sum" else op


def type_in_nccl(dtype: str) -> str:
    """Returns NCCL's name of a type; Hocket's name if they are the same."""
    return _TYPES_OF_NCCL.get(dtype, dtype)  # a row of no type stays without one


def op_in_nccl(op: str) -> str:
    """Returns NCCL's name of a reduction; Hocket's name if they are the same."""
    return _OPS_OF_NCCL.get(op, op)


def find_operation(text: str) -> str:
    """Returns the collective, or send_recv, given Hocket's or NCCL's spelling. Raises ValueError if there is none."""
    found = host_bound.MESSAGE if plain_spelling(text) == host_bound.MESSAGE else find_collective_name(text)
    if found is None:
        known = [*COLLECTIVES, host_bound.MESSAGE]
        near = did_you_mean(text, known)
        raise ValueError(f"expected a collective, one of {', '.join(known)}; found {text!r}{near}")
    return found


def find_dtypes(text: str) -> tuple[str, ...]:
    """Returns one type, given Hocket's or NCCL's spelling, or for "all" every installed type. Raises ValueError."""
    if text != ALL:
        ours = {theirs: name for name, theirs in _TYPES_OF_NCCL.items()}.get(text, text)
        try:
            numpy_dtype(ours)
        except ImportError as error:
            raise ValueError(str(error)) from None
        return (ours,)
    return tuple(name for name in DTYPES if _is_installed(name))


def find_ops(text: str) -> tuple[str, ...]:
    """Returns one reduction, given Hocket's or NCCL's spelling, or for "all" every reduction. Raises ValueError."""
    ours = {theirs: name for name, theirs in _OPS_OF_NCCL.items()}.get(text, text)
    if ours != ALL and ours not in _OPS:
        raise ValueError(
            f"expected a reduction, one of {', '.join(_OPS)} or all; found {text!r}{did_you_mean(text, _OPS)}"
        )
    return _OPS if ours == ALL else (ours,)


def check(settings: BenchSettings) -> None:
    """Checks the settings before any rank starts.

    Raises ValueError for settings that contradict each other, TypeError for a reduction that the type does not have.
    """
    ranks = settings.num_ranks
    if settings.collective == host_bound.MESSAGE and ranks % 2:
        raise ValueError(
            f"{host_bound.MESSAGE} pairs ranks 0 and 1, 2 and 3 ...: expected an even number of ranks, found {ranks}"
        )
    if settings.collective == host_bound.MESSAGE and settings.aggregated > 1:
        raise ValueError(
            f"-m launches collectives together: expected 1 for {host_bound.MESSAGE}, found {settings.aggregated}"
        )
    if settings.min_bytes > settings.max_bytes:
        raise ValueError(
            f"expected --minbytes up to --maxbytes ({settings.max_bytes}), found {settings.min_bytes}; set -b and -e"
        )
    if settings.moves_data and settings.min_bytes < settings.max_bytes:
        if settings.step_factor > 1 and settings.min_bytes == 0:
            raise ValueError("-f multiplies: expected --minbytes above 0, found 0; use -i instead")
        if settings.step_factor <= 1 and settings.step_bytes < 1:
            raise ValueError(f"expected --stepbytes of at least 1, found {settings.step_bytes}")
    check_memory(ranks, settings.max_bytes if settings.moves_data else 0, "--maxbytes")
    for root in settings.roots:
        if not -1 <= root < ranks:
            raise ValueError(f"expected --root from 0 to {ranks - 1}, or all; found {root}")
    if settings.order is not None and not settings.reduces:
        raise ValueError(f"expected no --order for {settings.collective}, which reduces nothing")
    if len(settings.algorithms) > 1 and settings.format == "osu":
        raise ValueError(f"--format osu has the times of one algorithm; found {len(settings.algorithms)}")
    named = [*filter(None, settings.algorithms)]
    if settings.collective == host_bound.MESSAGE:
        for option in ("algorithm", "groups", "dims"):
            if named if option == "algorithm" else getattr(settings, option):
                raise ValueError(f"expected no --{option} for {host_bound.MESSAGE}, which uses no algorithm")
        named = []
    found = [plans.find(settings.collective, name) for name in named]
    for name, one in zip(named, found, strict=True):
        if not one.allows(ranks):
            raise ValueError(f"algorithm {name!r} of {settings.collective} cannot use {ranks} ranks")
        one.layout(ranks, 0, **one.taken(settings.groups, settings.dims))
    check_taken(settings.collective, found, groups=settings.groups, dims=settings.dims)
    if settings.reduces and not any(True for _ in settings.runs()):
        raise ValueError("none of these reductions is defined for any of these types")
    if settings.reduces and len(settings.ops) == len(settings.dtypes) == 1:
        check_reduction(reduction(settings.ops[0]), numpy_dtype(settings.dtypes[0]))


def laid_out(settings: BenchSettings, name: str | None) -> str | None:
    """Returns a name of this algorithm in the groups or on the grid of the settings, if it takes them.

    A call has no arguments for these, so this registers the algorithm under that name. It takes no others, so the hosts
    of the ranks do not change them.
    """
    if name is None or (settings.groups is None and settings.dims is None):
        return name
    one = plans.find(settings.collective, name)
    taken = one.taken(settings.groups, settings.dims)
    if not any(taken.values()):
        return name
    made = f"{name} with {', '.join(f'{option}={value}' for option, value in taken.items() if value)}"
    if (one.collective, made) not in ALGORITHMS:
        num_ranks = settings.num_ranks
        fixed = replace(
            one,
            name=made,
            produce=lambda layout: one.build(layout.num_ranks, layout.root, **taken),
            write=None,
            steps=None,
            sent=None,
            ranks=(str(num_ranks), lambda p: p == num_ranks),
            groups=None,
            dims=None,
        )
        add_algorithms(fixed)
    return made


def _has_meaning(op: str, dtype: str) -> bool:
    if not op:
        return True
    try:
        check_reduction(reduction(op), numpy_dtype(dtype))
    except TypeError:
        return False
    return True


def _is_installed(dtype: str) -> bool:
    try:
        numpy_dtype(dtype)
    except ImportError:
        return False
    return True


def as_config(settings: BenchSettings) -> dict[str, Any]:
    """Returns the settings under the names of NCCL's tests in their JSON; other settings have Hocket's names."""
    step = {"step_factor": settings.step_factor} if settings.step_factor > 1 else {"step_bytes": settings.step_bytes}
    return {
        "collective": settings.collective,
        "num_ranks": settings.num_ranks,
        "minimum_bytes": settings.min_bytes,
        "maximum_bytes": settings.max_bytes,
        **step,
        "warmup_iters": settings.warm_up,
        "iterations": settings.iterations,
        "aggregated_iterations": settings.aggregated,
        "validation": settings.num_checks,
        "blocking_collectives": settings.blocking,
        "average": settings.average,
        "memory": "registered" if settings.registered else "private",
        "algorithm": ",".join(filter(None, settings.algorithms)) or None,
        "groups": settings.groups,
        "dims": settings.dims,
        "order": settings.order,
    }
