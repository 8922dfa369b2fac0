"""Law 3 of pipelines: how many messages a channel between two ranks must hold, so that no rank waits for ever.

Each rank receives right before it uses a message, and sends right after it computed one, unless the table says where
(`MessageOrder`). A channel holds messages from one rank to another; a send blocks while it is full. If it holds none,
a send waits until its receiver is at the receive (*rendezvous*).

*Tagged* messages are received in any order, *untagged* ones in the order in which they were sent (FIFO).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hocket.errors import VerifyError, name_count
from hocket.training.pipeline.deadlock import shortest_cycle
from hocket.training.pipeline.pipeline_order import (
    Sources,
    breach,
    check_complete,
    check_order,
    find_sources,
    finish_times,
)
from hocket.training.pipeline.table import Ints, MessageOrder, PipelineTable


class FewestMessages(NamedTuple):
    """The fewest messages that every channel must hold, 0 for rendezvous; fifo is None if no number is enough."""

    tagged: int
    fifo: int | None


class Channels:
    """The sends and receives of a table that holds laws 1 and 2, as one program for each rank.

    VerifyError (law 3) if a `MessageOrder` does not send each message once, after it is computed, and receive it once,
    before it is used.
    """

    def __init__(self, table: PipelineTable, sources: Sources) -> None:
        self._table, self._source = table, sources.row
        self._order = order = table.messages or _around_use(table, sources.row)
        if table.messages is not None:
            _check_messages(table, order, _around_use(table, sources.row))
        self._first = np.searchsorted(order.rank, np.arange(table.num_ranks + 1))
        sends = np.flatnonzero(order.sends)
        send_of = np.full(len(table), -1, np.int32)  # by the row that sends
        send_of[order.row[sends]] = sends
        # Messages have numbers, in the order of their receives. Both ends of a message are actions of the order.
        self._receive = np.flatnonzero(~order.sends)
        self._send = send_of[sources.row[order.row[self._receive]]]
        message = np.full(len(order.row), -1, np.int32)  # by the action that sends it
        message[self._send] = np.arange(len(self._send))
        source, target = order.rank[self._send], order.rank[self._receive]
        # By channel, that is by target and source: the messages as they are received, and as they are sent.
        by_source = _stable_order(source)
        self._received = by_source[_stable_order(target[by_source])]
        self._sent = message[sends][_stable_order(target[message[sends]])]
        channel = target[self._sent].astype(np.int64) * table.num_ranks + source[self._sent]
        starts = np.flatnonzero(np.diff(channel, prepend=-1))
        lengths = np.diff(np.append(starts, len(channel)))
        self._number = np.arange(len(channel)) - np.repeat(starts, lengths)  # of each message, in its channel

    def fewest(self) -> FewestMessages:
        """The fewest messages that every channel must hold. VerifyError (law 3) if no number is enough."""
        most = int(self._number.max(initial=-1)) + 1
        low, high = -1, 0  # a deadlock with `low`, perhaps none with `high`
        while self._stuck(high).any():
            if high >= most:
                raise VerifyError(f"{self._table.name}: {self.deadlock(most)}, whatever channels hold", law=3)
            low, high = high, min(max(1, 2 * high), most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._stuck(middle).any() else (low, middle)
        in_order = np.array_equal(self._sent, self._received)
        return FewestMessages(high, high if in_order else None)

    def _needs(self, capacity: int) -> Ints:
        """For each action, the one on another rank that it waits for, or -1."""
        needs = np.full(len(self._order.row), -1, np.int32)
        if capacity == 0:  # each end waits until the other end has done what comes before
            for here, there in ((self._send, self._receive), (self._receive, self._send)):
                is_first = there == self._first[self._order.rank[there]]
                needs[here] = np.where(is_first, -1, there - 1)
            return needs
        needs[self._receive] = self._send
        late = np.flatnonzero(self._number >= capacity)
        needs[self._send[self._sent[late]]] = self._receive[self._received[late - capacity]]
        return needs

    def _stuck(self, capacity: int) -> npt.NDArray[np.bool_]:
        seconds = np.ones(len(self._order.row))
        return np.isnan(finish_times(self._first, [self._needs(capacity)], seconds, 0.0))

    def deadlock(self, capacity: int) -> str:
        """In words, the shortest cycle of waits if channels hold `capacity` tagged messages; "" if there is none."""
        stuck = self._stuck(capacity)
        if not stuck.any():
            return ""
        cycle = shortest_cycle(self._first, [self._needs(capacity)], stuck)
        lines = "; ".join(self._tell(waiting, needed, capacity) for waiting, needed in cycle)
        return f"deadlock of {name_count(len(cycle), 'rank')}: {lines}"

    def _tell(self, waiting: int, needed: int, capacity: int) -> str:
        row, rank, peer = int(self._order.row[waiting]), self._order.rank[waiting], self._order.rank[needed]
        if not self._order.sends[waiting]:
            return f"rank {rank} waits to receive the result of {self._table.describe(int(self._source[row]))}"
        why = f"to rank {peer}, {'whose channel is full' if capacity else 'which does not receive it yet'}"
        return f"rank {rank} waits to send the result of {self._table.describe(row)} {why}"


def _stable_order(ranks: Ints) -> Ints:
    return np.argsort(ranks.astype(np.uint16), kind="stable")  # NumPy sorts 16 bits in linear time


def _around_use(table: PipelineTable, source: Ints) -> MessageOrder:
    """Every receive before the block that uses it, and every send after the block that computed it."""
    receives = source >= 0
    sends = np.zeros(len(table), bool)
    sends[source[receives]] = True
    present = np.stack([receives, sends], axis=1)
    row = np.repeat(np.arange(len(table), dtype=np.int32), 2).reshape(-1, 2)
    sending = np.zeros((len(table), 2), bool)
    sending[:, 1] = True
    first = np.flatnonzero(table.block[1:] == table.block[:-1])  # of a pair: both receive, then both send
    for column in (present, row, sending):
        column[first, 1], column[first + 1, 0] = column[first + 1, 0], column[first, 1]
    kept = present.ravel()
    row, sending = row.ravel()[kept], sending.ravel()[kept]
    return MessageOrder(table.rank[row], row, sending, table.position[row] + sending)


def rendezvous_order(table: PipelineTable) -> MessageOrder:
    """An order of messages with which channels need to hold none: a rank receives a message when its sender sends it.

    Such a receive may come long before its use, and must not stop the rank. VerifyError if the table breaks law 1 or 2.
    """
    check_complete(table)
    sources = find_sources(table)
    end = finish_times(table.first_block, sources.needs, np.ones(int(table.first_block[-1])), 0.0)
    check_order(table, sources, end)
    turn = np.empty(len(end), np.int64)  # of each block, if all ranks took turns: after all that it waits for
    turn[np.argsort(end, kind="stable")] = np.arange(len(end))
    receiver = np.flatnonzero(sources.row >= 0)
    sender = sources.row[receiver]
    row, at = np.concatenate([sender, receiver]), np.concatenate([sender, sender])
    sends = np.arange(len(row)) < len(sender)
    rank = table.rank[row]
    order = np.lexsort((at, turn[table.block[at]], rank))
    row, at, sends, rank = row[order], at[order], sends[order], rank[order]
    # Turns grow along each rank, so blocks are sorted by (rank, turn).
    block_rank = np.repeat(np.arange(table.num_ranks), np.diff(table.first_block))
    before = np.searchsorted(block_rank * len(end) + turn, rank * np.int64(len(end)) + turn[table.block[at]])
    return MessageOrder(rank, row, sends, before - table.first_block[rank] + sends)


def _check_messages(table: PipelineTable, order: MessageOrder, expected: MessageOrder) -> None:
    for sends, verb in ((True, "sends"), (False, "receives")):
        here = order.sends == sends
        counts = np.bincount(order.row[here], minlength=len(table))
        needed = np.bincount(expected.row[expected.sends == sends], minlength=len(table))
        wrong = np.flatnonzero(counts != needed)
        if len(wrong):
            row = int(wrong[0])
            what = f"{verb} {'the result of' if sends else 'the input of'} {table.describe(row)}"
            found = f"{what} {name_count(int(counts[row]), 'time')}, expected {needed[row]}"
            raise breach(table, 3, row, f"rank {table.rank[row]} {found}")
        at = table.position[order.row]
        late = here & ((order.position <= at) if sends else (order.position > at))
        away = here & (order.rank != table.rank[order.row])
        for which, why in ((away, "on another rank"), (late, "before it runs" if sends else "after it is used")):
            wrong = np.flatnonzero(which)
            if len(wrong):
                row, rank = int(order.row[wrong[0]]), order.rank[wrong[0]]
                what = f"{verb} {'the result of' if sends else 'the input of'} {table.describe(row)}"
                raise breach(table, 3, row, f"rank {rank} {what} {why}")
