"""The five laws. A schedule that passes `verify` does what its collective promises; no other schedule ever runs.

1. shape: ranks, buffers and chunks exist; sizes agree and both ends of a row know them; the writes of one step form row
   groups (shape.py).
2. result: every output has every contribution exactly once (result.py).
3. plans: the lowered plans of all ranks match, end, and have no data race, in both alias modes (races.py).
4. order: the certificate says in which order reductions and roundings happen (order.py); promised labels are in it.
5. promises: the declared steps and `sent` are the real ones.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from hocket.errors import ScheduleError, VerifyError, did_you_mean
from hocket.schedule import shape
from hocket.schedule.collective import name_call
from hocket.schedule.ir import Schedule, Step
from hocket.schedule.order import LABELS, Order
from hocket.schedule.places import Places, places_of
from hocket.schedule.proof.result import Contents, contents

LAWS = (1, 2, 3, 4, 5)

_EVERY_ROOT_TO = 16  # ranks
_ROWS_TOGETHER = 1 << 13  # so many rows make tables that still fit in a cache of the processor


@dataclass(frozen=True)
class Declared:
    """What an algorithm promises for one rank count and root; None is no promise.

    `sent` is the most that any rank sends, in units of the whole vector `data`, or for all_to_all of what one rank
    gives. `labels` must be in the certificate.
    """

    steps: int | None = None
    sent: Fraction | None = None
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True, repr=False)
class Certificate:
    """What was proved about one schedule.

    `labels` describe the order of reduction (see order.Order.labels). `method` says how law 2 was shown: "symbolic", or
    above 64 ranks "modular" or "modular, by symmetry" (see result.py). `sent` is the most that a rank sends to others,
    counted as in Declared. `laws` and `modes` (in place or not, for law 3) are those that were checked.
    """

    collective: str
    num_ranks: int
    root: int
    digest: str
    labels: frozenset[str]
    method: str
    num_steps: int
    sent: Fraction
    laws: tuple[int, ...] = LAWS
    modes: tuple[bool, ...] = (False, True)

    def __repr__(self) -> str:
        laws = "laws 1-5" if self.laws == LAWS else f"laws {', '.join(map(str, self.laws))}"
        about = [name_call(self.collective, self.num_ranks, self.root), laws, *sorted(self.labels)]
        return f"<Certificate: {', '.join(about)}>"

    def as_dict(self) -> dict[str, Any]:
        """The certificate as plain values, for JSON and caches: labels sorted, sent as a float."""
        return {
            "collective": self.collective,
            "num_ranks": self.num_ranks,
            "root": self.root,
            "digest": self.digest,
            "labels": sorted(self.labels),
            "method": self.method,
            "num_steps": self.num_steps,
            "sent": float(self.sent),
            "laws": list(self.laws),
            "modes": list(self.modes),
        }


def verify(
    schedule: Schedule,
    *,
    declared: Declared | None = None,
    modes: Collection[bool] = (False, True),
    laws: Collection[int] = LAWS,
) -> Certificate:
    """Check a schedule against the laws. VerifyError (law, step, rank, chunk, expected, found) at the first breach.

    `modes` are the alias modes of law 3: False for separate memory, True for in place. `laws` may leave out some laws.
    Law 1 is always checked, because the others mean nothing without it. Labels are found by law 4 only.
    """
    unknown = set(laws) - set(LAWS)
    if unknown:
        raise ValueError(f"expected laws from 1 to 5, found {sorted(unknown)}")
    shape.check(schedule)
    places = places_of(schedule)
    held = contents(places) if 2 in laws else None
    order = Order(places) if 4 in laws and schedule.kind.counts_contributions else None
    if held and order and held.places is places:
        _run(places, held, order)
    else:
        for carrier in (held, order):
            if carrier:
                _run(carrier.places, carrier)
    if held:
        held.finish()
    if 3 in laws:
        from hocket.schedule.proof import races

        races.check_together([schedule], sorted(set(modes)))
    labels = order.labels() if order else frozenset()
    sent = schedule.sent()
    if declared is not None:
        if 4 in laws:
            _check_labels(declared, labels)
        if 5 in laws:
            _check_promises(schedule, declared, sent)
    return Certificate(
        collective=schedule.collective,
        num_ranks=schedule.num_ranks,
        root=schedule.root,
        digest=schedule.digest,
        labels=labels,
        method=held.method if held else "",
        num_steps=schedule.num_steps,
        sent=Fraction(int(sent.max()), schedule.vector_chunks),
        laws=tuple(sorted({1, *laws})),
        modes=tuple(sorted(set(modes))) if 3 in laws else (),
    )


def verify_together(schedules: Sequence[Schedule], declared: Sequence[Declared]) -> list[Certificate]:
    """`verify` the schedules of one algorithm for several roots, faster than one by one: law 3 checks many at a time.

    Above 16 ranks, most schedules are the first schedule with all ranks moved on by the same number. Laws 2 and 3 are
    not checked again for these, because the answer cannot change: the laws use the numbers of ranks, and of the chunks
    that move with them, only to tell them apart; lowering sees no numbers of ranks at all (forms.py); and what the
    collective asks of each rank but the root moves on with the ranks. Law 4 is checked again, because it depends on the
    order of ranks; so are law 5, and law 1 where rows move ranges. Up to 16 ranks, every root is checked in full, which
    also tests this argument. In any case every schedule is checked by itself before it runs.

    VerifyError if any of the schedules breaks a law. To learn which one and where, verify them one by one.
    """
    from hocket.schedule.proof import races

    proved = [one for i, one in enumerate(schedules) if i == 0 or not _is_rotated(schedules[0], one)]
    certificates: list[Certificate] = []
    for one, its in zip(schedules, declared, strict=True):
        if one in proved or one.kind.counts_contributions:
            found = verify(one, declared=its, laws=(1, 2, 4, 5) if one in proved else (1, 4, 5))
        else:
            _check_promises(one, its, one.sent())
            found = replace(certificates[0], root=one.root, digest=one.digest)
        method = found.method or certificates[0].method
        certificates.append(replace(found, method=method, laws=LAWS, modes=(False, True)))
    begin, rows = 0, 0
    for end, schedule in enumerate(proved, 1):
        rows += schedule.num_rows
        if end == len(proved) or rows > _ROWS_TOGETHER or proved[end].num_chunks != schedule.num_chunks:
            races.check_together(proved[begin:end], (False, True))
            begin, rows = end, 0
    return certificates


def _is_rotated(first: Schedule, other: Schedule) -> bool:
    """Whether the second schedule is the first one with all ranks moved on by the same number.

    Each rank then does, in the same order, what another rank does in the first schedule. The chunks of `data` may move
    with the ranks; they have to where each rank has a block of them. Single chunks are compared. A range of chunks may
    run over the end in the second schedule only, so law 1 is checked for a schedule with ranges.
    """
    p, n = first.num_ranks, first.num_chunks
    if p <= _EVERY_ROOT_TO or not (first.uses_data and other.uses_data):
        return False
    if any(getattr(first, name) != getattr(other, name) for name in _ALIKE) or len(first.repeats) != len(other.repeats):
        return False
    if any((repeat.step.count != 1).any() or (repeat.step.stride < 1).any() for repeat in other.repeats):
        shape.check(other)
    by = other.root - first.root
    moves = [0] if first.kind.blocks == "one" else []
    moves += [by * (n // p)] if n % p == 0 else []
    for one, its in zip(first.repeats, other.repeats, strict=True):
        if (one.times, one.shift) != (its.times, its.shift) or one.step.count.sum() != its.step.count.sum():
            return False
        step, right = one.step.expanded(), _by_rank(its.step.expanded())
        rotated = replace(step, src=(step.src + by) % p, dst=(step.dst + by) % p)
        if not _are_equal(_by_rank(rotated), right, ("src", "dst", "src_buffer", "dst_buffer", "reduce")):
            return False
        moves = [move for move in moves if _are_equal(_by_rank(rotated.shifted(move, n)), right, _CHUNKS)]
    return bool(moves)


_ALIKE = ("collective", "num_ranks", "num_chunks", "num_scratch")
_CHUNKS = ("src_chunk", "dst_chunk")


def _by_rank(step: Step) -> Step:
    """The rows that each rank sends, then the rows that each rank receives. Lowering keeps these two orders."""
    return step.take(np.concatenate((np.argsort(step.src, kind="stable"), np.argsort(step.dst, kind="stable"))))


def _are_equal(left: Step, right: Step, columns: Sequence[str]) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in columns)


def _run(places: Places, *carriers: Contents | Order) -> None:
    for fold in places.folds():
        for carrier in carriers:
            carrier.apply(fold)


def _check_labels(declared: Declared, labels: frozenset[str]) -> None:
    missing = declared.labels - labels
    unknown = missing.difference(LABELS)
    if unknown:
        near = did_you_mean(min(unknown), LABELS)
        raise ScheduleError(f"expected labels among {', '.join(LABELS)}; found {', '.join(sorted(unknown))}{near}")
    if missing:
        raise VerifyError(
            f"the order of reduction does not earn {', '.join(sorted(missing))}",
            law=4,
            expected=f"labels {', '.join(sorted(declared.labels))}",
            found=", ".join(sorted(labels)) or "none",
        )


def _check_promises(schedule: Schedule, declared: Declared, sent: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
    if declared.steps is not None and declared.steps != schedule.num_steps:
        raise VerifyError(
            "the number of steps is not the declared one", law=5, expected=declared.steps, found=schedule.num_steps
        )
    most = Fraction(int(sent.max()), schedule.vector_chunks)
    if declared.sent is not None and not math.isclose(declared.sent, most, rel_tol=1e-9):
        raise VerifyError(
            f"the most that a rank sends, in units of {schedule.kind.vector}, is not exactly what is declared",
            law=5,
            rank=int(np.argmax(sent)),
            expected=f"{float(declared.sent):.9g}",
            found=f"{float(most):.9g}" + (f" ({most})" if most.denominator > 1 else ""),
        )
