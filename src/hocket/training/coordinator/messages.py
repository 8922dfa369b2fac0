"""The messages of the coordinator. Each is one array of int64, of a length that only the number of tensors decides.

A round in which ranks negotiate:

    READY   rank -> leader   tensors that are ready on this rank. A rank speaks when a bucket's worth is ready
    FLUSH   rank -> leader   the last tensors that are ready; the rank leaves all others out (they are absent)
    JOIN    rank -> leader   a FLUSH of a rank that has no more rounds of its own and takes part until all have joined
    BATCH   leader -> ranks  the tensors of the next collective. The last batch of a round may be empty
    LOCK    leader -> ranks  all batches of every later round. It comes before the last batch of its round

In a locked round there are no messages. It ends with a small all_reduce, which counts the ranks that want to unlock,
and those that have joined: UNLOCK is a count above 0, and holds from the next round on.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ids = tuple[int, ...]
Kind = Literal["ready", "flush", "join"]
Frame = NDArray[np.int64]

_KINDS: tuple[Kind, ...] = ("ready", "flush", "join")
_BATCH, _LOCK = 3, 4
_HEAD = 3  # kind; round; for a batch its flags


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


def frame_of(message: Message, num_tensors: int) -> Frame:
    """Returns the message as an array of shape (3 + num_tensors,). Entries without a tensor are -1."""
    frame = np.full(_HEAD + num_tensors, -1, np.int64)
    flags = 0
    ids = message.ids if not isinstance(message, Lock) else [id for batch in message.batches for id in batch]
    if isinstance(message, Announcement):
        kind = _KINDS.index(message.kind)
    elif isinstance(message, Batch):
        kind, flags = _BATCH, message.is_last + 2 * message.have_all_joined
    else:
        kind = _LOCK
    frame[:_HEAD] = kind, message.round, flags
    frame[_HEAD : _HEAD + len(ids)] = ids
    if isinstance(message, Lock):  # the last tensor of a batch is told apart by an offset of num_tensors
        ends = np.cumsum([len(batch) for batch in message.batches]) - 1
        frame[_HEAD + ends] += num_tensors
    return frame


def message_of(frame: Frame, rank: int, num_tensors: int) -> Message:
    """Returns the message of `frame_of`, sent by `rank`."""
    kind, round, flags = (int(number) for number in frame[:_HEAD])
    ids = [id for id in frame[_HEAD:].tolist() if id >= 0]
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
