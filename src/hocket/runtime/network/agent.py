"""The agent of a host: its leader tells other hosts what the ranks here have written on their control pages, and hears
the same of the ranks there.

The leaders form a star around rank 0, by one connection each. The core reads and writes the pages (csrc/mirrors); this
module carries the news. Rank 0 passes on to all hosts what comes from one of them, and decides what has to be equal on
all hosts: which reason for a failure was first.

A host is dead if its system answers nothing for SILENT_SECONDS. A rank that is stopped, or slow, is not: its system
answers, and the ranks that wait for it name it. A leader that is stopped hears no news meanwhile; later, all is told
again.
"""

import math
import os
import selectors
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hocket.runtime.network.control_messages import (
    Ask,
    Beat,
    Death,
    Leaving,
    Message,
    News,
    Over,
    Proposal,
    TellAgain,
    Verdict,
    read,
    write,
)
from hocket.runtime.network.sealed import LinkEndedError, SealedLink
from hocket.runtime.ranks.rank_names import name_ranks

BEAT_SECONDS = 1.0
SILENT_SECONDS = 4.0
_LEAST_SECONDS = 0.001  # between two looks at what the ranks here have written
_ASKED_SECONDS, _ASKED_LOOK_SECONDS = 0.1, 0.005  # for so long after a question, news are looked for so often
_ASK_SECONDS = 0.05  # between two questions: one of them asks for all that wait
_NOTICE_SECONDS = 5.0
_MAX_BEHIND_BYTES = 1 << 20  # of what a leader has not read: then it hears no more of these
_MAY_BE_MISSED = (Beat, News, Ask)


@dataclass(eq=False)
class _Leader:
    """The leader of another host; on all hosts but rank 0's the only one is rank 0."""

    rank: int
    link: SealedLink
    host: Sequence[int]  # the ranks there
    has_left: bool = False
    has_missed: bool = False  # news; what else there was to hear comes when all was told again:
    held: list[bytes] = field(default_factory=list)
    held_until: float = math.inf


class Agent:
    """Works as a part of the doorkeeper's loop. `core`: its Context; `mirrors`: its Mirrors, which have joined that.

    links: by rank, to the leaders of the other hosts on rank 0, to rank 0 on the others. hosts: the ranks of each host.
    """

    def __init__(
        self, core: Any, mirrors: Any, rank: int, hosts: Sequence[Sequence[int]], links: Mapping[int, SealedLink]
    ) -> None:
        self._core, self._mirrors, self._rank = core, mirrors, rank
        self._is_root = rank == 0
        by_leader = {host[0]: host for host in hosts}
        others = [other for host in hosts if host[0] != rank for other in host]
        self._peers = [
            _Leader(other, link, by_leader[other] if self._is_root else others) for other, link in links.items()
        ]
        self._decided: set[int] = set()
        self._proposed: list[bytes] = []
        self._beat_at = 0.0
        self._look_at: float | None = None
        self._looked_at = 0.0
        self._asked_until = self._ask_at = 0.0
        self._is_leaving = self._has_told = False
        self._notice_at: float | None = None
        self.has_ended = False

    def open(self, selector: selectors.BaseSelector) -> None:
        """Begin to watch the links, and the bell that ranks of this host ring."""
        self._selector = selector
        selector.register(self._mirrors.bell, selectors.EVENT_READ, self)
        for peer in self._peers:
            selector.register(peer.link.connection, selectors.EVENT_READ, peer)

    def close(self) -> None:
        """End all links."""
        for peer in self._peers:
            peer.link.close()
        self._core = self._mirrors = None

    def leave(self) -> None:
        """This rank has left the job. The agent ends once the other ranks of this host have, and all other hosts."""
        self._is_leaving = True
        self._notice_at = time.monotonic() + _NOTICE_SECONDS
        self._look_at = 0.0

    def act(self, now: float) -> float:
        """Do what the time has come for; return when it comes again."""
        if now >= self._beat_at:
            self._beat_at = now + BEAT_SECONDS
            self._tell_all(Beat())
            self._find_silent()
            self._look_at = self._look_at or now  # at what nobody has rung for, such as another's death
        if self._look_at is not None and now >= self._look_at:
            self._look(now)
        for peer in [one for one in self._peers if now >= one.held_until]:
            self._release(peer)
        if self._notice_at is not None and now >= self._notice_at:
            self._notice_at = None
            self._say_who_stays()
        return min(self._beat_at, self._look_at if self._look_at is not None else self._beat_at)

    def handle(self, source: Any, data: Any) -> bool:
        """Handle an event of the selector; return False if it is not the agent's."""
        if data is self:
            number = struct.unpack("<Q", os.read(self._mirrors.bell, 8))[0]
            if number >> 32:
                self._ask()
            self._look_at = max(time.monotonic(), self._looked_at + _LEAST_SECONDS)
        elif isinstance(data, _Leader):
            self._attend(data)
        else:
            return False
        return True

    def _find_silent(self) -> None:
        for peer in list(self._peers):
            try:
                if peer.link.is_silent(SILENT_SECONDS):
                    raise LinkEndedError("its host answers nothing", is_silent=True)
            except LinkEndedError as error:
                self._lose(peer, error)

    # What happens here

    def _look(self, now: float) -> None:
        """Tell the other hosts what is new on the pages of this host."""
        is_asked = now < self._asked_until
        self._looked_at, self._look_at = now, now + _ASKED_LOOK_SECONDS if is_asked else None
        # First, as what a rank writes before it leaves, or dies, has to be told.
        have_all_left = self._is_leaving and self._mirrors.num_present() == 0
        deaths = self._mirrors.deaths()
        while pages := self._mirrors.collect(is_asked):
            self._tell_all(News(pages, is_asked))
            if not have_all_left:
                break  # what is more than a part comes next time; at the end there is none
        for rank in deaths:  # behind what they had written: a rank that closed before its process ended, has left
            self._tell_all(Death(rank, cut_off=False))
        for reason in self._mirrors.proposals():  # behind the calls to which they belong
            self._propose(reason)
        if have_all_left:
            self._end_here()

    def _ask(self) -> None:
        """Ask all hosts, unless they have just been asked. Rank 0 asks even those that ask: the next one may not be."""
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + _ASK_SECONDS
            self._tell_all(Ask())

    def _propose(self, reason: bytes) -> None:
        if self._is_root or not self._peers:  # without rank 0's host, each host decides for itself
            self._decide(reason)
        else:
            self._proposed.append(reason)
            self._tell_all(Proposal(reason))

    def _decide(self, reason: bytes) -> None:
        communicator = self._mirrors.communicator_of(reason)
        if communicator == 0 or communicator in self._decided:
            return
        self._decided.add(communicator)
        self._tell_all(Verdict(reason))
        self._mirrors.decide(reason)

    def _end_here(self) -> None:
        if not self._is_root and not self._has_told:
            self._has_told = True
            self._tell_all(Leaving())
        if all(peer.has_left for peer in self._peers):
            self._tell_all(Over())
            for peer in list(self._peers):  # so little always fits into what the system holds
                self._release(peer)
            self.has_ended = True

    def _say_who_stays(self) -> None:
        awaited = [rank for peer in self._peers if not peer.has_left for rank in peer.host]
        print(
            f"hocket: rank {self._rank} has left, and carries news between hosts until all ranks have left: "
            f"{self._mirrors.num_present()} others of this host are here, and perhaps {name_ranks(awaited)} elsewhere",
            file=sys.stderr,
            flush=True,
        )

    # What comes from other hosts

    def _attend(self, peer: _Leader) -> None:
        try:
            for data in peer.link.receive():
                message = read(data)
                if message is None:
                    raise LinkEndedError("it has sent what is no message")
                self._hear(peer, message)
            peer.link.flush()
            self._watch(peer)
        except LinkEndedError as error:
            self._lose(peer, error)
            return
        if peer.has_missed and not peer.link.num_pending:
            peer.has_missed = False
            peer.held_until = time.monotonic() + BEAT_SECONDS  # by then all hosts have told again
            if self._is_root:
                self._tell_all(TellAgain(), peer)
            self._repeat()

    def _repeat(self) -> None:
        self._mirrors.forget_told()
        self._asked_until = time.monotonic() + _ASKED_SECONDS  # also which ranks are stopped
        self._look_at = 0.0

    def _release(self, peer: _Leader) -> None:
        """Tell a leader what it was to hear behind the news that it had missed."""
        held, peer.held, peer.held_until = peer.held, [], math.inf
        try:
            for data in held:
                peer.link.send(data)
            peer.link.flush()
            self._watch(peer)
        except LinkEndedError as error:
            self._lose(peer, error)

    def _hear(self, peer: _Leader, message: Message) -> None:
        if isinstance(message, News):
            self._pass_on(message, peer)
            self._mirrors.apply(message.pages, message.wakes)
        elif isinstance(message, Ask):
            if self._is_root:
                self._ask()
            self._asked_until = time.monotonic() + _ASKED_SECONDS
            self._look_at = 0.0
        elif isinstance(message, TellAgain):
            self._repeat()
        elif isinstance(message, Proposal):
            if self._is_root:
                self._decide(message.reason)
        elif isinstance(message, Verdict):
            self._mirrors.decide(message.reason)
        elif isinstance(message, Death):
            self._pass_on(message, peer)
            if message.rank in peer.host:
                self._core.report_death(message.rank, message.cut_off)
        elif isinstance(message, Leaving | Over):
            peer.has_left = True
            self._look_at = 0.0

    def _pass_on(self, message: Message, source: _Leader) -> None:
        if self._is_root:
            self._tell_all(message, source)

    def _tell_all(self, message: Message, but: _Leader | None = None) -> None:
        data = write(message)
        for peer in list(self._peers):
            if peer is but:
                continue
            if isinstance(message, _MAY_BE_MISSED):
                if peer.link.num_pending > _MAX_BEHIND_BYTES:
                    peer.has_missed, peer.held_until = True, math.inf
                    continue
            elif peer.has_missed or peer.held_until < math.inf:  # until _release()
                peer.held.append(data)  # such as a death: a rank that had closed before must not seem to be killed
                continue
            try:
                peer.link.send(data)
                self._watch(peer)
            except LinkEndedError as error:
                self._lose(peer, error)

    def _watch(self, peer: _Leader) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.link.num_pending else 0)
        if self._selector.get_key(peer.link.connection).events != wanted:
            self._selector.modify(peer.link.connection, wanted, peer)

    def _lose(self, peer: _Leader, error: LinkEndedError) -> None:
        """The connection to another host has ended: unless its ranks had left, all hear that they cannot be reached."""
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._selector.unregister(peer.link.connection)
        peer.link.close()
        if not peer.has_left:
            for rank in peer.host:
                # A process that has ended leaves its system behind, which says so.
                death = Death(rank, cut_off=error.is_silent or rank != peer.rank)
                self._tell_all(death)
                self._core.report_death(death.rank, death.cut_off)
        if not self._peers:
            for reason in self._proposed:  # what is decided already, stays
                self._decide(reason)
        self._look_at = 0.0
