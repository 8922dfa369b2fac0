"""What `hocket bench` is asked for: sizes, types, operations, and how often."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hocket.cli.limits import check_memory
from hocket.runtime import find_collective_name, plans
from hocket.runtime.tuning import host_bound
from hocket.schedule import (
    COLLECTIVES,
    DTYPES,
    ITEM_BYTES,
    REDUCTIONS,
    Reduction,
    check_reduction,
    numpy_dtype,
    premul_sum,
)

ALL = "all"
FACTOR = 2  # of premul_sum: a power of two is exact in every type

# What NCCL calls them; the others have one name.
_TYPES_OF_NCCL = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_OPS_OF_NCCL = {"premul_sum": "mulsum"}
_OPS = tuple(name for name in REDUCTIONS if name != "custom")


@dataclass(frozen=True)
class Settings:
    """One run of the bench. Sizes are bytes; iterations is None where the bench chooses."""

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
    algorithm: str | None
    order: str | None
    percentiles: bool
    format: str
    json_file: str | None
    arguments: tuple[str, ...]

    @property
    def reduces(self) -> bool:
        """Whether there is something to choose with an op."""
        return self.collective != host_bound.MESSAGE and COLLECTIVES[self.collective].counts_contributions

    @property
    def moves_data(self) -> bool:
        """All but a barrier."""
        return self.collective == host_bound.MESSAGE or COLLECTIVES[self.collective].exactly_once

    def sizes(self) -> Iterator[int]:
        """The sizes asked for, from the smallest on; a barrier has one, 0."""
        if not self.moves_data or self.min_bytes == self.max_bytes:  # then no step need lead anywhere
            yield self.min_bytes if self.moves_data else 0
            return
        size = self.min_bytes
        while size <= self.max_bytes:
            yield size
            size = size * self.step_factor if self.step_factor > 1 else size + self.step_bytes

    def runs(self) -> Iterator[tuple[str, str, int]]:
        """(dtype, op, root), in the order of the tables of NCCL's tests; what has no meaning is left out."""
        for dtype in self.dtypes:
            for op in self.ops:
                if len(self.ops) == len(self.dtypes) == 1 or _has_meaning(op, dtype):
                    for root in self.roots:
                        yield dtype, op, root

    def num_elements(self, size: int, dtype: str) -> int:
        """Elements of the whole vector for a size: rounded down to whole blocks."""
        count = size // ITEM_BYTES[DTYPES.index(dtype)]
        return count - count % self.divisor

    def rounds(self) -> bool:
        """Whether a size is no number of whole blocks."""
        items = [ITEM_BYTES[DTYPES.index(dtype)] for dtype in self.dtypes]
        return any(size % (item * self.divisor) for size in self.sizes() for item in items)

    @property
    def divisor(self) -> int:
        """What a number of elements is a multiple of."""
        if self.collective == host_bound.MESSAGE:
            return 1
        kind = COLLECTIVES[self.collective]
        if kind.uneven:  # blocks of 1, 2, ... p parts; see bench_cases
            return self.num_ranks * (self.num_ranks + 1) // 2
        return 1 if kind.blocks == "one" else self.num_ranks


def reduction(op: str) -> str | Reduction:
    """What a communicator takes as op=."""
    return premul_sum(FACTOR) if op == "premul_sum" else op


def type_in_nccl(dtype: str) -> str:
    """NCCL's name of a type, or our own."""
    return _TYPES_OF_NCCL.get(dtype, dtype)


def op_in_nccl(op: str) -> str:
    """NCCL's name of a reduction, or our own."""
    return _OPS_OF_NCCL.get(op, op)


def find_collective(text: str) -> str:
    """The collective that is meant, in our spelling or NCCL's; ValueError."""
    found = host_bound.MESSAGE if text.replace("_", "").lower() == host_bound.MESSAGE else find_collective_name(text)
    if found is None:
        raise ValueError(
            f"expected a collective, one of {', '.join([*COLLECTIVES, host_bound.MESSAGE])}; found {text!r}"
        )
    return found


def find_dtypes(text: str) -> tuple[str, ...]:
    """The types that are meant: one in our spelling or NCCL's, or "all" that this installation has; ValueError."""
    if text != ALL:
        ours = {theirs: name for name, theirs in _TYPES_OF_NCCL.items()}.get(text, text)
        try:
            numpy_dtype(ours)
        except ImportError as error:
            raise ValueError(str(error)) from None
        return (ours,)
    return tuple(name for name in DTYPES if _is_installed(name))


def find_ops(text: str) -> tuple[str, ...]:
    """The reductions that are meant: one in our spelling or NCCL's, or "all"; ValueError."""
    ours = {theirs: name for name, theirs in _OPS_OF_NCCL.items()}.get(text, text)
    if ours != ALL and ours not in _OPS:
        raise ValueError(f"expected a reduction, one of {', '.join(_OPS)} or all; found {text!r}")
    return _OPS if ours == ALL else (ours,)


def check(settings: Settings) -> None:
    """ValueError for what does not go together, TypeError for a reduction without meaning, before any rank starts."""
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
            f"expected --minbytes up to --maxbytes ({settings.max_bytes}), found {settings.min_bytes}; give both -b, -e"
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
    if settings.algorithm is not None:
        if settings.collective == host_bound.MESSAGE:
            raise ValueError(f"expected no --algorithm for {host_bound.MESSAGE}, which has none")
        if not plans.find(settings.collective, settings.algorithm).allows(ranks):
            raise ValueError(f"algorithm {settings.algorithm!r} of {settings.collective} cannot do {ranks} ranks")
    if settings.reduces and not any(True for _ in settings.runs()):
        raise ValueError("none of these reductions has a meaning for any of these types")
    if settings.reduces and len(settings.ops) == len(settings.dtypes) == 1:
        check_reduction(reduction(settings.ops[0]), numpy_dtype(settings.dtypes[0]))


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


def as_config(settings: Settings) -> dict[str, Any]:
    """The settings under the names that NCCL's tests have in their JSON, and ours for the rest."""
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
        "algorithm": settings.algorithm,
        "order": settings.order,
    }
