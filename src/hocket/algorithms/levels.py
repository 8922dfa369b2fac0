"""Two levels: any algorithm inside groups of ranks, where links are fast, and any other one across the groups.

`hierarchical` composes them, over groups of consecutive ranks that may differ in size. Ranks with the same number
inside their groups are counterparts, and communicate across groups. If a group is too small for a counterpart, a rank
with another number takes its place.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hocket.algorithms.layout import Layout
from hocket.algorithms.registry import Algorithm
from hocket.errors import ScheduleError
from hocket.schedule import Schedule, compose

Groups = tuple[int, ...]
Ints = npt.NDArray[np.int64]

_MOST_CHUNKS = 2**24  # of a vector; more chunks would be almost empty
_NONE = -1  # the block of a rank that a small group does not have; see compose.on


def near_square(p: int) -> Groups:
    """About sqrt(p) groups of about sqrt(p) ranks: equal ones if p has such a divisor, else the larger ones first."""
    most = math.isqrt(p)
    number = next((one for one in range(most, 0, -1) if p % one == 0 and 4 * one**2 >= p), most)
    return tuple(p // number + (i < p % number) for i in range(number))


def hierarchical(*levels: Algorithm) -> Algorithm:
    """The algorithm made of these levels, in the order in which they run.

    - reduce_scatter inside, all_reduce across, all_gather inside: all_reduce. Every rank of a group sums one shard of
      the vector, and its counterparts sum it across. Groups of unequal size cut the vector in different ways; for each
      run of chunks, the ranks that hold it sum it across (HCCL calls this AHC).
    - reduce inside, all_reduce across, broadcast inside: all_reduce, in which the first rank of each group communicates
      across.
    - all_gather across, then inside: all_gather. reduce_scatter inside, then across: reduce_scatter. Every block enters
      a group, or leaves it, once.
    - broadcast across, then inside: broadcast. reduce inside, then across: reduce. gather inside, then across: gather.
      The root and its counterparts communicate across.

    all_gather_v and reduce_scatter_v are made as all_gather and reduce_scatter. It takes groups=; near_square(p) is the
    default. A level's condition on the number of ranks applies to the size of every group, or to the number of groups.
    ScheduleError for any other levels.
    """
    names = tuple(level.collective for level in levels)
    if names not in _MAKERS:
        known = "; ".join(", ".join(one) for one in _MAKERS)
        raise ScheduleError(f"hierarchical: expected levels in one of the orders {known}; found {', '.join(names)}")
    collective, make = _MAKERS[names]
    name = f"hierarchical({', '.join(level.name for level in levels)})"
    return Algorithm(collective, name, "", "composed", lambda layout: make(layout, *levels), groups=near_square)


def groups_of(layout: Layout) -> tuple[Ints, Ints]:
    """The first rank of every group, and its size."""
    sizes = np.array(layout.groups)
    return np.cumsum(sizes) - sizes, sizes


def place_of_root(layout: Layout) -> tuple[int, int]:
    """The root's group, and the root's number in it."""
    first, _ = groups_of(layout)
    group = int(np.searchsorted(first, layout.root, "right")) - 1
    return group, layout.root - int(first[group])


def _inside(level: Algorithm, layout: Layout, leader: int = 0) -> Schedule:
    """The level in all groups at once: a part of an all_reduce, whatever its root."""
    parts = [
        compose.on(
            level.build(size, leader % size), range(first, first + size), layout.num_ranks, collective="all_reduce"
        )
        for first, size in zip(*map(np.ndarray.tolist, groups_of(layout)), strict=True)
    ]
    return compose.beside(*parts)


def _sharded(layout: Layout, scatter: Algorithm, across: Algorithm, gather: Algorithm) -> Schedule:
    """all_reduce in which each run of chunks goes across between the ranks that hold it after the scatter."""
    first, sizes = groups_of(layout)
    outer = across.build(len(sizes))
    cuts = math.lcm(*sizes.tolist())
    num_chunks = cuts * outer.num_chunks
    if num_chunks > _MOST_CHUNKS:
        raise ScheduleError(f"expected sizes of groups with a least common multiple far below {cuts}")
    bounds = np.unique(np.concatenate([np.arange(0, cuts + 1, cuts // size) for size in np.unique(sizes)]))
    parts = []
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = compose.refine(outer, end - start)
        chunks = start * outer.num_chunks + np.arange(part.num_chunks)
        owners = first + start * sizes // cuts
        parts.append(compose.on(part, owners.tolist(), layout.num_ranks, chunks=chunks.tolist(), num_chunks=num_chunks))
    middle = compose.beside(*parts)
    ends = _inside(scatter, layout), _inside(gather, layout)
    return compose.then(compose.then(ends[0], middle, collective="all_reduce"), ends[1], collective="all_reduce")


def _led(layout: Layout, up: Algorithm, across: Algorithm, down: Algorithm) -> Schedule:
    """all_reduce by way of the first rank of each group."""
    first, sizes = groups_of(layout)
    middle = compose.on(across.build(len(sizes)), first.tolist(), layout.num_ranks)
    ends = _inside(up, layout), _inside(down, layout)
    return compose.then(compose.then(ends[0], middle, collective="all_reduce"), ends[1], collective="all_reduce")


def _rooted(layout: Layout, across: Algorithm, inside: Algorithm) -> Schedule:
    """broadcast or reduce by way of the root and its counterparts."""
    first, sizes = groups_of(layout)
    group, leader = place_of_root(layout)
    outer = across.build(len(sizes), group)
    outer = compose.on(outer, (first + leader % sizes).tolist(), layout.num_ranks, collective="all_reduce")
    inner = _inside(inside, layout, leader)
    order = (outer, inner) if across.collective == "broadcast" else (inner, outer)
    return replace(compose.then(*order, collective="all_reduce"), collective=across.collective, root=layout.root)


def _gathered(layout: Layout, inside: Algorithm, across: Algorithm) -> Schedule:
    """gather: the root's counterparts gather inside, and then the root gathers all blocks of each of their groups."""
    p, (first, sizes), (group, leader) = layout.num_ranks, groups_of(layout), place_of_root(layout)
    parts = []
    for rank, size in zip(first.tolist(), sizes.tolist(), strict=True):
        part = inside.build(size, leader % size)
        chunks = _chunks_of(rank + np.arange(size)[:, None], part.chunks_per_block)
        num_chunks = p * part.chunks_per_block
        ranks = range(rank, rank + size)
        parts.append(compose.on(part, ranks, p, chunks=chunks, num_chunks=num_chunks, collective="all_gather"))
    outer = across.build(len(sizes), group)
    k, blocks = outer.chunks_per_block, _blocks(layout, np.arange(sizes.max())).T
    whole = compose.on(
        compose.refine(outer, int(sizes.max())),
        (first + leader % sizes).tolist(),
        p,
        chunks=_chunks_of(blocks, k),
        num_chunks=p * k,
        collective="all_gather",
    )
    made = compose.then(compose.beside(*parts), whole, collective="all_gather")
    return replace(made, collective="gather", root=layout.root)


def _in_blocks(layout: Layout, across: Algorithm, inside: Algorithm) -> Schedule:
    """all_gather or reduce_scatter: blocks of counterparts go across; inside, all blocks that each of them collects."""
    collective, p = across.collective, layout.num_ranks
    first, sizes = groups_of(layout)
    part = across.build(len(sizes))
    num_chunks, outer = p * part.chunks_per_block, []
    for number in range(sizes.max()):
        ranks, blocks = first + number % sizes, _blocks(layout, np.array([number])).T
        chunks = _chunks_of(blocks, part.chunks_per_block)
        outer.append(compose.on(part, ranks.tolist(), p, chunks=chunks, num_chunks=num_chunks, collective=collective))
    sized = {size: inside.build(size) for size in set(sizes.tolist())}
    layers = {  # By the size of the group, because groups of one size differ in their ranks only.
        size: [_layer(layout, part, number) for number in range(0, sizes.max(), size)] for size, part in sized.items()
    }
    inner = [
        compose.on(layer, range(rank, rank + size), p, collective=collective)
        for rank, size in zip(first.tolist(), sizes.tolist(), strict=True)
        for layer in layers[size]
    ]
    levels = [compose.beside(*level) for level in (outer, inner)]
    if across.collective.startswith("reduce_scatter"):
        levels.reverse()
    return compose.then(*levels, collective=collective)


def _layer(layout: Layout, part: Schedule, number: int) -> Schedule:
    """The part with a block of every group for each of its own blocks: those of ranks from `number` on."""
    p, k = layout.num_ranks, part.chunks_per_block
    chunks = _chunks_of(_blocks(layout, number + np.arange(part.num_ranks)), k)
    fine = compose.refine(part, len(groups_of(layout)[0]))
    return compose.on(
        fine, range(part.num_ranks), part.num_ranks, chunks=chunks, num_chunks=p * k, collective=part.collective
    )


def _blocks(layout: Layout, numbers: Ints) -> Ints:
    """[number, group]: the block of the rank with this number in the group, or _NONE."""
    first, sizes = groups_of(layout)
    return np.where(numbers[:, None] < sizes, first + numbers[:, None], _NONE)


def _chunks_of(blocks: Ints, chunks_per_block: int) -> list[int]:
    """Where consecutive chunks go, if part i of a block b goes to blocks[b, i]."""
    chunks = blocks[:, None, :] * chunks_per_block + np.arange(chunks_per_block)[:, None]
    found: list[int] = np.where(blocks[:, None, :] == _NONE, _NONE, chunks).ravel().tolist()
    return found


_MAKERS: dict[tuple[str, ...], tuple[str, Callable[..., Schedule]]] = {
    ("reduce_scatter", "all_reduce", "all_gather"): ("all_reduce", _sharded),
    ("reduce", "all_reduce", "broadcast"): ("all_reduce", _led),
    ("all_gather", "all_gather"): ("all_gather", _in_blocks),
    ("all_gather_v", "all_gather_v"): ("all_gather_v", _in_blocks),
    ("reduce_scatter", "reduce_scatter"): (
        "reduce_scatter",
        lambda layout, inside, across: _in_blocks(layout, across, inside),
    ),
    ("reduce_scatter_v", "reduce_scatter_v"): (
        "reduce_scatter_v",
        lambda layout, inside, across: _in_blocks(layout, across, inside),
    ),
    ("gather", "gather"): ("gather", _gathered),
    ("broadcast", "broadcast"): ("broadcast", _rooted),
    ("reduce", "reduce"): ("reduce", lambda layout, inside, across: _rooted(layout, across, inside)),
}
