"""The schedules of the field, each as the operations of one rank, and tables made of them or of a function of a user.

A schedule is a function of (rank, p, m, v): p ranks, m micro-batches, v stages on each rank, also called chunks. It
returns the operations of the rank in their order, as arrays (operations.py). Interleaved and ZBV are written for the
next count of micro-batches that they are defined for, and what is too much is dropped, which changes no order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.errors import did_you_mean
from hocket.training.pipeline import pipeline_promises as promises
from hocket.training.pipeline.operations import OperationQueue, alternate, backward, forward, full, overlapped, weight
from hocket.training.pipeline.table import (
    FORWARD,
    FULL_BACKWARD,
    INPUT_BACKWARD,
    KINDS,
    WEIGHT_BACKWARD,
    Ints,
    PipelinePromise,
    PipelineTable,
    table_of,
)

Writer = Callable[[int, int, int, int], Sequence[Ints]]
"""(rank, p, m, v) to the operations of the rank."""


def gpipe(rank: int, p: int, m: int, v: int) -> Sequence[Ints]:
    """All forwards, then all backwards (Huang et al. 2018)."""
    return [forward(rank, m).take(), full(backward(rank, m).take())]


def _one_after_one(forwards: Ints, backwards: Ints, warm_up: int) -> Sequence[Ints]:
    """Forwards alone, then one forward and one backward in turn, then backwards alone."""
    steady = len(forwards) - warm_up
    return [forwards[:warm_up], alternate(forwards[warm_up:], backwards[:steady]), backwards[steady:]]


def one_forward_one_backward(rank: int, p: int, m: int, v: int) -> Sequence[Ints]:
    """PipeDream-Flush: as few forwards ahead as keep the last stage busy (Narayanan et al. 2020)."""
    return _one_after_one(forward(rank, m).take(), full(backward(rank, m).take()), min(p - 1 - rank, m))


def interleaved(rank: int, p: int, m: int, v: int) -> Sequence[Ints]:
    """1F1B over v stages on each rank, p micro-batches of a stage at a time (Narayanan et al. 2021)."""
    number = np.arange(-(-m // p) * p * v)
    chunk, microbatch = number // p % v, number // (p * v) * p + number % p
    forwards = np.zeros((len(number), 4), np.int32)
    forwards[:, 0], forwards[:, 1], forwards[:, 2] = FORWARD, chunk * p + rank, microbatch
    backwards = forwards.copy()
    backwards[:, 0], backwards[:, 1] = FULL_BACKWARD, (v - 1 - chunk) * p + rank
    warm_up = min((v - 1) * p + 2 * (p - 1 - rank), len(number))
    return _up_to(m, _one_after_one(forwards, backwards, warm_up))


def _with_weights(rank: int, m: int, warm_up: int, lag: int) -> Sequence[Ints]:
    """1F1B with B, W of micro-batch i - lag after B of micro-batch i, and the remaining W at the end."""
    backwards = backward(rank, m).take()
    order = np.concatenate(_one_after_one(forward(rank, m).take(), backwards, min(warm_up, m)))
    leaders = np.flatnonzero(order[:, 0] == INPUT_BACKWARD)[lag:]
    weights = weight(backwards)
    return [np.insert(order, leaders + 1, weights[: len(leaders)], axis=0), weights[len(leaders) :]]


def zero_bubble_1(rank: int, p: int, m: int, v: int) -> Sequence[Ints]:
    """ZB-H1: the order and the memory of 1F1B; W fills a third of the bubble (Qi et al. 2023)."""
    return _with_weights(rank, m, warm_up=p - 1 - rank, lag=rank)


def zero_bubble_2(rank: int, p: int, m: int, v: int) -> Sequence[Ints]:
    """ZB-H2: twice as many forwards ahead, so that no bubble is left between equal operations (Qi et al. 2023)."""
    return _with_weights(rank, m, warm_up=2 * (p - 1 - rank), lag=2 * rank)


def zero_bubble_v(rank: int, p: int, m: int, v: int) -> Sequence[Ints]:
    """ZBV: two stages a rank, placed in a v, without bubble in the memory of 1F1B (Qi et al. 2024)."""
    a, b, whole = rank, 2 * p - 1 - rank, max(m, 2 * p - 1)
    fa, fb, ba, bb = forward(a, whole), forward(b, whole), backward(a, whole), backward(b, whole)
    wa, wb = OperationQueue(WEIGHT_BACKWARD, a, whole), OperationQueue(WEIGHT_BACKWARD, b, whole)
    both, tail = whole - 2 * p + rank + 1, p - 1 - rank
    parts = [
        fa.take(2 * (p - rank) - 1),
        alternate(fb.take(rank), fa.take(rank)),
        alternate(fb.take(p - rank), bb.take(p - rank), wb.take(p - rank)),
        alternate(fa.take(both), ba.take(both), wa.take(both), fb.take(both), bb.take(both), wb.take(both)),
        alternate(ba.take(tail), wa.take(tail), fb.take(tail), bb.take(tail), wb.take(tail)),
        alternate(ba.take(rank), bb.take(rank)),
        alternate(ba.take(p - rank), wa.take(p - rank)),
        wb.take(),
        wa.take(),
    ]
    return _up_to(m, parts)


def _dual(
    r: int, p: int, m: int, fa: OperationQueue, fb: OperationQueue, ba: OperationQueue, bb: OperationQueue
) -> Sequence[Ints]:
    """DualPipe on rank r of p, with m micro-batches of each of two stages: work enters at a, and returns by b."""
    tail, steady = p - r - 1, m - 2 * p + r + 1
    parts = [fa.take(2 * tail), alternate(fa.take(r + 1), fb.take(r + 1))]
    early = bb.take(tail)
    parts.append(alternate(early, weight(early), fb.take(tail)))
    down = fa.take(steady), overlapped(full(bb.take(steady)))
    back = fb.take(steady), overlapped(full(ba.take(steady)))
    parts.append(alternate(*down, *back))
    if r == p - 1:
        parts[-1][1, 3] = 0  # apart, so that the forward ends sooner
    parts.append(alternate(full(bb.take(tail)), fb.take(tail), overlapped(full(ba.take(tail)))))
    last, late = alternate(bb.take(r + 1), ba.take(r + 1)), ba.take(tail)
    whole, split = full(last[: r + 1]), last[r + 1 :]
    weights = weight(np.concatenate([split, late]))  # in the order of their B
    return [*parts, whole, split, alternate(weights[:tail], late), weights[tail:]]


def dualpipe_v(rank: int, p: int, m: int, v: int) -> Sequence[Ints]:
    """DualPipeV: DualPipe cut in half, two stages a rank in a v; m >= 2p (Sea AI Lab and DeepSeek 2025)."""
    if m < 2 * p:
        raise ValueError(f"dualpipev: expected at least {2 * p} micro-batches for {p} ranks, found {m}")
    a, b = rank, 2 * p - 1 - rank
    return _dual(rank, p, m, forward(a, m), forward(b, m), backward(a, m), backward(b, m))


def dualpipe(rank: int, p: int, m: int, v: int) -> Sequence[Ints]:
    """DualPipe: half of the micro-batches enter at each end, and every stage is on two ranks (DeepSeek 2024)."""
    if p % 2 or m % 2 or m < 2 * p:
        raise ValueError(
            f"dualpipe: expected an even number of ranks, and of micro-batches, at least {2 * p}; found {p} ranks and "
            f"{m} micro-batches"
        )
    near, half = min(rank, p - 1 - rank), m // 2
    far, halves = p - 1 - near, (range(half), range(half, m))
    mine, others = halves if rank < p // 2 else halves[::-1]
    streams = forward(near, mine), forward(far, others), backward(near, mine), backward(far, others)
    return _dual(near, p // 2, half, *streams)


def _up_to(m: int, parts: Sequence[Ints]) -> Sequence[Ints]:
    return [part[part[:, 2] < m] for part in parts]


@dataclass(frozen=True)
class PipelineSchedule:
    """A schedule that tables can be built of.

    placement: "loop" (stage s on rank s mod p), "v" (from rank 0 to p - 1 and back) or "both" (stage s on ranks s and
    p - 1 - s, for half of the micro-batches each). chunks: the stages that each rank has; None: any number.
    """

    name: str
    write: Writer
    placement: str = "loop"
    chunks: int | None = 1
    promise: Callable[[int, int, int], PipelinePromise] = promises.nothing


SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        PipelineSchedule("gpipe", gpipe, promise=promises.gpipe),
        PipelineSchedule("1f1b", one_forward_one_backward, promise=promises.one_forward_one_backward),
        PipelineSchedule("1f1b-interleaved", interleaved, chunks=None, promise=promises.interleaved),
        PipelineSchedule("zb-h1", zero_bubble_1, promise=promises.zero_bubble_1),
        PipelineSchedule("zb-h2", zero_bubble_2, promise=promises.zero_bubble_2),
        PipelineSchedule("zbv", zero_bubble_v, "v", 2, promises.zero_bubble_v),
        PipelineSchedule("dualpipe", dualpipe, "both", 2, promises.dualpipe),
        PipelineSchedule("dualpipev", dualpipe_v, "v", 2, promises.dualpipe_v),
    )
}


def place_stages(placement: str, p: int, v: int) -> Ints:
    """The rank of each stage, of shape (directions, stages), by the name of a placement; see `PipelineSchedule`."""
    ranks = np.arange(p)
    if placement == "loop":
        return np.tile(ranks, v)[None]
    if v != 2:
        raise ValueError(f"expected 2 chunks for placement {placement!r}, found {v}")
    if placement == "v":
        return np.concatenate([ranks, ranks[::-1]])[None]
    if placement == "both":
        return np.stack([ranks, ranks[::-1]])
    raise ValueError(f"expected a placement of loop, v and both, found {placement!r}")


def build_table(
    schedule: str | PipelineSchedule | Writer, ranks: int, microbatches: int, chunks: int | None = None
) -> PipelineTable:
    """The table of a schedule: of SCHEDULES by name, of a PipelineSchedule, or of a function that writes one.

    chunks: stages on each rank; by default as many as the schedule has, 2 if it takes any number, and 1 for a function.
    ValueError for counts that the schedule is not defined for. Nothing is proved yet.
    """
    schedule = _find(schedule, chunks)
    for name, count in (("ranks", ranks), ("microbatches", microbatches), ("chunks", 1 if chunks is None else chunks)):
        if not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"{schedule.name}: expected {name} of 1 or more, found {count!r}")
    if schedule.chunks and chunks not in (None, schedule.chunks):
        raise ValueError(f"{schedule.name}: expected chunks={schedule.chunks}, which it always has, found {chunks}")
    chunks = chunks or schedule.chunks or 2
    operations = []
    for rank in range(ranks):
        operations.append(_checked(f"{schedule.name}, rank {rank}", schedule.write(rank, ranks, microbatches, chunks)))
    placement = place_stages(schedule.placement, ranks, chunks)
    return table_of(schedule.name, microbatches, placement, operations, schedule.promise(ranks, microbatches, chunks))


def _checked(who: str, written: Iterable[Ints]) -> Ints:
    """What a schedule returns for a rank, as one array."""
    if not isinstance(written, Iterable):
        raise ValueError(f"{who}: expected a sequence of arrays, as take returns, found {type(written).__name__}")
    parts = list(written)
    for part in parts:
        if not isinstance(part, np.ndarray) or part.dtype.kind not in "iu" or part.ndim != 2 or part.shape[1] != 4:
            is_array = isinstance(part, np.ndarray)
            found = f"shape {part.shape} of {part.dtype}" if is_array else type(part).__name__
            raise ValueError(f"{who}: expected arrays of integers of shape (n, 4), as take returns, found {found}")
        if len(part) and not 0 <= part[:, 0].min() <= part[:, 0].max() < len(KINDS):
            raise ValueError(f"{who}: expected kinds from 0 to {len(KINDS) - 1}, found {part[:, 0].tolist()}")
    return np.concatenate([np.zeros((0, 4), np.int32), *parts])


def _find(schedule: str | PipelineSchedule | Writer, chunks: int | None) -> PipelineSchedule:
    if isinstance(schedule, PipelineSchedule):
        return schedule
    if isinstance(schedule, str) and schedule in SCHEDULES:
        return SCHEDULES[schedule]
    if isinstance(schedule, str) or not callable(schedule):
        hint = did_you_mean(schedule, SCHEDULES)
        names = ", ".join(SCHEDULES)
        raise ValueError(f"expected a pipeline schedule of {names}, or a function, found {schedule!r}{hint}")
    return PipelineSchedule(getattr(schedule, "__name__", "schedule"), schedule, chunks=chunks or 1)
