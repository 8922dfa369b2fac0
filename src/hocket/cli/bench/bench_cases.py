"""What `hocket bench` calls: for each collective its arrays, the call, and whether what came out is right.

What should come out is computed by NumPy from the collective's definition. Inputs repeat after a prime number of
elements, so that nothing larger has to be computed, and no block or piece is a multiple of it. They are such that the
order of a reduction makes no difference: sums of small integers, products of powers of two.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hocket.cli.bench.bench_settings import reduction
from hocket.runtime import Communicator, empty
from hocket.runtime.tuning import host_bound
from hocket.schedule import COLLECTIVES, Array, Collective, fold, in_place_offset, numpy_dtype

PERIOD = 16381  # a prime
_POISON = 0x55  # in every byte of an output before the call
_LARGEST = 1000
# Up to 2 to this power, all integers are values of the type.
_DIGITS = {"float8_e5m2": 3, "float8_e4m3fn": 4, "bfloat16": 8, "float16": 11}
_MOST_DIGITS = 24


class Case(Protocol):
    """One thing to measure. `call` is done again and again; it is `num_operations` of what is reported.

    num_bytes and count: as NCCL's tests print them, of the larger of input and output, and of what a call is given.
    """

    call: Callable[..., Any]
    num_operations: int
    num_bytes: int
    count: int

    def fill(self, seed: int) -> None:
        """Writes inputs, and something else where outputs will be."""

    def num_wrong(self, seed: int) -> int | None:
        """After fill and one call: how many elements of this rank are wrong; None where nothing can be said."""


class Buffers:
    """Memory of one rank for all its cases: an input and an output of max_bytes."""

    def __init__(self, max_bytes: int, *, registered: bool) -> None:
        make = empty if registered else np.empty
        self._arrays = [make(max_bytes, np.uint8) for _ in range(2)]
        for array in self._arrays:
            array.fill(0)  # its pages are there from now on

    def array(self, which: int, count: int, dtype: str) -> Array:
        """The first `count` elements of the input (0) or the output (1)."""
        stored = numpy_dtype(dtype)
        return self._arrays[which][: count * stored.itemsize].view(stored)


def make_case(
    comm: Communicator,
    buffers: Buffers,
    collective: str,
    num_elements: int,
    dtype: str,
    op: str,
    root: int,
    *,
    in_place: bool,
) -> Case | None:
    """The case for a vector of num_elements in all; None where the collective has no such form."""
    if collective == host_bound.MESSAGE:
        return PingPong(comm, buffers, num_elements, dtype, in_place=in_place)
    if not COLLECTIVES[collective].exactly_once:
        return None if in_place else Barrier(comm)
    return OfCollective(comm, buffers, COLLECTIVES[collective], num_elements, dtype, op, root, in_place=in_place)


class OfCollective:
    """Any collective that has data."""

    num_operations = 1

    def __init__(
        self,
        comm: Communicator,
        buffers: Buffers,
        kind: Collective,
        num_elements: int,
        dtype: str,
        op: str,
        root: int,
        *,
        in_place: bool,
    ) -> None:
        self._kind, self._rank, self._size, self._root = kind, comm.rank, comm.size, max(root, 0)
        self._dtype, self._op = dtype, op
        self._lengths = block_lengths(kind, comm.size, num_elements)
        inputs, outputs = self._blocks(comm.rank)
        num_inputs, num_outputs = self._elements(inputs), self._elements(outputs)
        self._output = buffers.array(1, num_outputs, dtype)
        if not in_place:
            self._input = buffers.array(0, num_inputs, dtype)
        elif len(inputs) <= len(outputs):
            self._input = self._part(self._output, inputs, outputs)
        else:
            self._input = buffers.array(1, num_inputs, dtype)
            self._output = self._part(self._input, outputs, inputs)
        whole = kind.num_blocks(comm.size) if kind.blocks != "pair" else comm.size
        self.num_bytes = num_elements * self._output.itemsize
        self.count = num_elements // whole
        given = self._input
        if kind.input == "root" and not inputs:  # off the root a broadcast wants an array all the same
            given = self._output if in_place else buffers.array(0, num_outputs, dtype)
        self.call: Callable[..., Any] = self._bound_call(comm, given, in_place=in_place)

    def _bound_call(self, comm: Communicator, given: Array, *, in_place: bool) -> Callable[..., Any]:
        """As a program would call it; what is not needed is not passed."""
        kind, more = self._kind, dict[str, Any]()
        arguments: list[Any] = [given]
        name = kind.name
        whole = kind.blocks == "one"
        if not (in_place and whole) and self._blocks(comm.rank)[1]:
            more["out"] = self._output
        if kind.input == "root" and not whole and comm.rank != self._root:
            arguments = [None]
        if kind.uneven:
            arguments += self._counts()
        if kind.rooted:
            more["root"] = self._root
        if kind.reduces and self._op != "sum":
            more["op"] = reduction(self._op)
        return functools.partial(getattr(comm, name), *arguments, **more)

    def _counts(self) -> list[list[int]]:
        """The arguments of an uneven collective that tell lengths."""
        if self._kind.blocks == "rank":
            return [self._lengths]
        return [[self._lengths[block] for block in blocks] for blocks in self._blocks(self._rank)]

    def _blocks(self, rank: int) -> tuple[range, range]:
        place = rank, self._size, self._root
        return self._kind.input_blocks(*place), self._kind.output_blocks(*place)

    def _elements(self, blocks: range) -> int:
        return sum(self._lengths[block] for block in blocks)

    def _part(self, whole: Array, part: range, blocks: range) -> Array:
        """Of an array of these blocks those of `part`, which lie there in place."""
        if not part:
            return whole[:0]
        ahead = self._elements(blocks[: in_place_offset(part, blocks)])
        return whole[ahead : ahead + self._elements(part)]

    def fill(self, seed: int) -> None:
        """Writes the input, and something else where the output will be."""
        self._output.view(np.uint8).fill(0 if self._dtype == "bool" else _POISON)
        write(self._input, self._pattern(self._rank, seed))

    def _pattern(self, rank: int, seed: int) -> Array:
        return pattern(self._op if self._kind.reduces else "", self._dtype, rank, self._size, seed)

    def num_wrong(self, seed: int) -> int:
        """Elements of the output that are not what the collective's definition says."""
        kind, ranks, ahead, wrong = self._kind, range(self._size), 0, 0
        folded: Array | None = None
        if kind.reduces:
            patterns = [self._pattern(rank, seed) for rank in ranks]
            folded = fold(patterns, reduction(self._op), patterns[0].dtype, True, self._size, [True] * self._size)
        for block in self._blocks(self._rank)[1]:
            source = self._rank if folded is not None else int(kind.owner(block, self._size, self._root))
            inputs = self._blocks(source)[0]
            start = self._elements(inputs[: inputs.index(block)])
            found = self._output[ahead : ahead + self._lengths[block]]
            ahead += self._lengths[block]
            wrong += differences(found, self._pattern(source, seed) if folded is None else folded, start)
        return wrong


class PingPong:
    """A message to the other rank of a pair and one back: two operations, each one way. All pairs at once."""

    num_operations = 2

    def __init__(self, comm: Communicator, buffers: Buffers, num_elements: int, dtype: str, *, in_place: bool) -> None:
        self._comm, self._peer, self._size = comm, comm.rank ^ 1, comm.size
        self._sent = buffers.array(1 if in_place else 0, num_elements, dtype)
        self._received = buffers.array(1, num_elements, dtype)
        self._dtype, self._in_place = dtype, in_place
        self.num_bytes, self.count = num_elements * self._sent.itemsize, num_elements
        self.call: Callable[..., Any] = self._ping if comm.rank % 2 == 0 else self._pong

    def _ping(self) -> None:
        self._comm.send(self._sent, self._peer)
        self._comm.recv(self._received, self._peer)

    def _pong(self) -> None:
        self._comm.recv(self._received, self._peer)
        self._comm.send(self._sent, self._peer)

    def fill(self, seed: int) -> None:
        """Writes what is sent, and something else where the other's message will be."""
        self._received.view(np.uint8).fill(0 if self._dtype == "bool" else _POISON)
        write(self._sent, pattern("", self._dtype, self._peer ^ 1, self._size, seed))

    def num_wrong(self, seed: int) -> int | None:
        """Elements received that were not sent."""
        if self._in_place:  # what came back is what went there
            return None
        return differences(self._received, pattern("", self._dtype, self._peer, self._size, seed), 0)


class Barrier:
    """No rank may leave before all have come. All clocks are one: the ranks share a host."""

    num_operations, num_bytes, count = 1, 0, 0

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.call: Callable[..., Any] = comm.barrier

    def fill(self, seed: int) -> None:
        """There is nothing to write."""

    def num_wrong(self, seed: int) -> int:
        """1 if this rank left too early. It comes later than the others if `seed` says so."""
        if seed % self._comm.size == self._comm.rank:
            time.sleep(0.001)
        came = time.monotonic()
        self._comm.barrier()
        left = time.monotonic()
        return int(left < np.max(self._comm.all_gather(np.array([came]), algorithm="direct")))


def block_lengths(kind: Collective, num_ranks: int, num_elements: int) -> list[int]:
    """Elements of each block. Uneven ones have 1, 2, ... p parts: of ranks in order, of pairs by the sum of the two."""
    parts = num_ranks * (num_ranks + 1) // 2
    if not kind.uneven:
        num_blocks = kind.num_blocks(num_ranks)
        return [num_elements // (num_ranks if kind.blocks == "pair" else num_blocks)] * num_blocks
    if kind.blocks == "rank":
        return [num_elements // parts * (rank + 1) for rank in range(num_ranks)]
    return [num_elements // parts * ((i + j) % num_ranks + 1) for i in range(num_ranks) for j in range(num_ranks)]


@functools.lru_cache(128)
def pattern(op: str, dtype: str, rank: int, num_ranks: int, seed: int) -> Array:
    """What a rank contributes, PERIOD elements: any bits if they only move (op ""), else values that stay exact."""
    random, stored = np.random.default_rng([seed, rank]), numpy_dtype(dtype)
    if dtype == "bool":
        return random.integers(0, 2, PERIOD).astype(bool)
    if op in ("land", "lor", "lxor"):
        return random.integers(0, 2, PERIOD).astype(stored)
    if not op or stored.kind in "iu":
        return np.frombuffer(random.bytes(PERIOD * stored.itemsize), stored)
    if stored.kind == "c" and op != "prod":
        parts = [_exact(random, op, dtype, rank, num_ranks) for _ in range(2)]
        return np.asarray((parts[0] + 1j * parts[1]).astype(stored))
    values = _exact(random, op, dtype, rank, num_ranks)
    if stored.kind == "c":
        values = values * random.choice([1, 1j, -1, -1j], PERIOD)
    return values.astype(stored)


def _exact(random: np.random.Generator, op: str, dtype: str, rank: int, num_ranks: int) -> Array:
    places = np.arange(PERIOD)
    if op == "prod":  # of all ranks one has 2 or 1/2, the others 1; with any sign
        factors = random.choice([-2.0, -0.5, 0.5, 2.0], PERIOD)
        return np.where(places % num_ranks == rank, factors, np.sign(factors))
    limit = 1 << _DIGITS.get(dtype, _MOST_DIGITS)
    turns = -(-num_ranks // limit)  # where the type cannot count all ranks, some are silent
    most = max(1, min(_LARGEST, limit // num_ranks))
    values = random.integers(-most, most + 1, PERIOD).astype(np.float64)
    return np.where((places + rank) % turns == 0, values, 0.0)


def write(array: Array, values: Array) -> None:
    """Fills an array with values that repeat."""
    for start in range(0, len(array), PERIOD):
        piece = array[start : start + PERIOD]
        piece[:] = values[: len(piece)]


def differences(found: Array, values: Array, start: int) -> int:
    """How many elements are not those of values that repeat, from number `start` on. 0 equals -0."""
    wrong, twice = 0, np.concatenate([values, values])
    for at in range(0, len(found), PERIOD):
        piece = found[at : at + PERIOD]
        shift = (start + at) % PERIOD
        expected = twice[shift : shift + len(piece)]
        if piece.tobytes() != expected.tobytes():
            different = piece.view(np.uint8) != expected.view(np.uint8)
            elements = different.reshape(len(piece), -1).any(axis=1)
            wrong += int(np.count_nonzero(elements & ~(piece == expected)))  # only 0 and -0 are equal and differ
    return wrong
