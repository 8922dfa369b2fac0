"""The messages of the coordinator. Each is an array of int64, and a second one if it tells of many tensors.

A round in which ranks negotiate:

    READY   rank -> leader   tensors that are ready on this rank. A rank speaks when a bucket's worth is ready
    FLUSH   rank -> leader   the last tensors that are ready; the rank leaves all others out (they are absent)
    JOIN    rank -> leader   a FLUSH of a rank that has no more rounds of its own and takes part until all have joined
    BATCH   leader -> ranks  the tensors of the next collective. The last batch of a round may be empty
    LOCK    leader -> ranks  all batches of every later round. It comes before the last batch of its round

In a locked round there are no messages. It ends with a small all_reduce, which counts the ranks that want to unlock,
and those that have joined: UNLOCK is a count above 0, and holds from the next round on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ids = tuple[int, ...]
Kind = Literal["ready", "flush", "join"]
Frame = NDArray[np.int64]

_KINDS: tuple[Kind, ...] = ("ready", "flush", "join")
_BATCH, _LOCK = 3, 4
_HEAD = 4  # kind; round; for a batch its flags; number of tensors
_NUM_INLINE = 60  # tensors in the first array


@dataclass(frozen=True)
class Announcement:
    """What a rank tells the leader, in a round: ids that are ready, in the order in which they became so."""

    rank: int
    round: int
    kind: Kind
    ids: Ids


@dataclass(frozen=True)
class Batch:
    """One collective of a round: its tensors, in order. is_last: the round has no other batch."""

    round: int
    ids: Ids
    is_last: bool = False
    have_all_joined: bool = False


@dataclass(frozen=True)
class Lock:
    """The batches of every round after this one, until ranks unlock."""

    round: int
    batches: tuple[Ids, ...]


Message = Announcement | Batch | Lock


def new_frame() -> Frame:
    """Returns room for the first array of a message."""
    return np.empty(_HEAD + _NUM_INLINE, np.int64)


def num_left(frame: Frame) -> int:
    """Returns the length of the second array of a message, whose first is `frame`; 0 if there is none."""
    return max(0, int(frame[_HEAD - 1]) - _NUM_INLINE)


def frames_of(message: Message, num_tensors: int) -> list[Frame]:
    """Returns the one or two arrays of a message, of which the first has the shape of `new_frame`."""
    flags = 0
    if isinstance(message, Lock):
        kind, ids = _LOCK, np.array([id for batch in message.batches for id in batch], np.int64)
        ids[np.cumsum([len(batch) for batch in message.batches]) - 1] += num_tensors  # the last tensors of batches
    else:
        ids = np.array(message.ids, np.int64)
        if isinstance(message, Announcement):
            kind = _KINDS.index(message.kind)
        else:
            kind, flags = _BATCH, message.is_last + 2 * message.have_all_joined
    first = np.zeros(_HEAD + _NUM_INLINE, np.int64)
    first[:_HEAD] = kind, message.round, flags, len(ids)
    inline, rest = ids[:_NUM_INLINE], ids[_NUM_INLINE:]
    first[_HEAD : _HEAD + len(inline)] = inline
    return [first, rest] if len(rest) else [first]


def message_of(frames: Sequence[Frame], rank: int, num_tensors: int) -> Message:
    """Returns the message of `frames_of`, sent by `rank`."""
    kind, round, flags, count = frames[0][:_HEAD].tolist()
    ids = [*frames[0][_HEAD : _HEAD + count].tolist(), *(id for rest in frames[1:] for id in rest.tolist())]
    if kind < _BATCH:
        return Announcement(rank, round, _KINDS[kind], tuple(ids))
    if kind == _BATCH:
        return Batch(round, tuple(ids), bool(flags & 1), bool(flags & 2))
    batches: list[Ids] = []
    open: list[int] = []
    for id in ids:
        open.append(id % num_tensors)
        if id >= num_tensors:
            batches.append(tuple(open))
            open = []
    return Lock(round, tuple(batches))
