"""The agent of a host: what it tells other hosts, in which order, and what it does without them."""

import os
import selectors
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from hocket.runtime.network import agent as agents
from hocket.runtime.network import control_messages
from hocket.runtime.network.agent import Agent
from hocket.runtime.network.sealed import SealedLink

HOSTS = [[0, 1], [2, 3], [4]]
SESSION = bytes(32)


class Core:
    """What an agent sees of the core: deaths that it reports there, and, as mirrors, pages, deaths and reasons."""

    def __init__(self) -> None:
        self.bell, self._bell = os.pipe()
        self.news, self.dead, self.proposed = list[bytes](), list[int](), list[bytes]()  # news: in parts
        self.others_present, self.num_forgotten = 1, 0
        self.decided, self.reported = list[bytes](), list[tuple[int, bool]]()

    def collect(self, thorough: bool) -> bytes:
        return self.news.pop(0) if self.news else b""

    def forget_told(self) -> None:
        self.num_forgotten += 1

    def deaths(self) -> list[int]:
        return self.dead

    def proposals(self) -> list[bytes]:
        found, self.proposed = self.proposed, []
        return found

    def communicator_of(self, reason: bytes) -> int:
        return reason[0]

    def decide(self, reason: bytes) -> None:
        self.decided.append(reason)

    def num_present(self) -> int:
        return self.others_present

    def report_death(self, rank: int, is_cut_off: bool) -> None:
        self.reported.append((rank, is_cut_off))

    def close(self) -> None:
        os.close(self.bell)
        os.close(self._bell)


class Star:
    """An agent, and the other ends of its links."""

    def __init__(self, rank: int) -> None:
        others = [2, 4] if rank == 0 else [0]
        pairs = {other: socket.socketpair() for other in others}
        for pair in pairs.values():
            for one in pair:
                one.setblocking(False)
        self.core = Core()
        mine = {other: SealedLink(pair[0], SESSION, opened_here=False) for other, pair in pairs.items()}
        self.ends = {other: SealedLink(pair[1], SESSION, opened_here=True) for other, pair in pairs.items()}
        self.agent = Agent(self.core, self.core, rank, HOSTS, mine)
        self.selector = selectors.DefaultSelector()
        for link in mine.values():
            link.is_silent = lambda seconds: False  # type: ignore[method-assign]  # for connections between hosts
        self.agent.open(self.selector)
        self.agent.act(0.0)

    def turn(self, now: float) -> None:
        for key, _ in self.selector.select(0):
            self.agent.handle(key.fileobj, key.data)
        self.agent.act(now)

    def heard(self, other: int) -> list[Any]:
        messages = [control_messages.read(data) for data in self.ends[other].receive()]
        return [one for one in messages if not isinstance(one, agents.Beat)]

    def say(self, other: int, message: Any) -> None:
        self.ends[other].send(control_messages.write(message))

    def close(self) -> None:
        for link in self.ends.values():
            link.close()
        self.agent.close()
        self.selector.close()
        self.core.close()


@pytest.fixture
def root() -> Iterator[Star]:
    one = Star(0)
    yield one
    one.close()


@pytest.fixture
def leader() -> Iterator[Star]:
    one = Star(2)
    yield one
    one.close()


def test_what_a_rank_has_written_is_told_before_its_death(leader: Star) -> None:
    leader.core.news, leader.core.dead = [b"it has closed its communicator"], [3]
    leader.turn(2.0)
    assert leader.heard(0) == [agents.News(b"it has closed its communicator", False), agents.Death(3, False)]


def test_one_question_asks_for_all_that_wait(root: Star) -> None:
    for _ in range(5):
        for other in (2, 4):
            root.say(other, agents.Ask())
    root.turn(1.0)
    assert [root.heard(other) for other in (2, 4)] == [[agents.Ask()]] * 2


def test_a_leader_that_loses_rank_0_decides_for_its_host(leader: Star) -> None:
    leader.core.proposed = [b"\1 before"]
    leader.turn(2.0)
    assert leader.heard(0) == [agents.Proposal(b"\1 before")] and leader.core.decided == []
    leader.ends[0].close()
    leader.turn(3.0)
    assert leader.core.reported == [(0, False), (1, True), (4, True)] and leader.core.decided == [b"\1 before"]
    leader.core.proposed = [b"\2 after", b"\2 a second one"]
    leader.turn(4.0)
    assert leader.core.decided[1:] == [b"\2 after"]


def test_a_leader_that_leaves_last_has_told_all_parts_of_its_news(leader: Star) -> None:
    leader.core.news, leader.core.others_present = [b"first", b"second"], 0
    leader.agent.leave()
    leader.turn(1.0)
    assert leader.heard(0) == [agents.News(b"first", False), agents.News(b"second", False), agents.Leaving()]


def test_a_leader_that_reads_nothing_misses_news_and_hears_all_again(root: Star) -> None:
    part, time, told = bytes(100_000), 1.0, list[Any]()
    while not root.agent._peers[0].has_missed:
        root.core.news = [part]
        root.turn(time := time + 1)
        told += root.heard(4)
    assert root.core.reported == [] and root.agent._peers[0].link.num_pending < 2 << 20
    root.core.dead = [1]
    root.turn(time := time + 1)
    root.core.dead = []
    told += root.heard(4)
    assert agents.Death(1, False) in told and agents.TellAgain() not in told and root.core.num_forgotten == 0
    heard = []
    while root.agent._peers[0].has_missed:
        heard += root.heard(2)
        root.turn(time)
    heard += root.heard(2)
    assert heard.count(agents.News(part, False)) > 9 and agents.TellAgain() in root.heard(4)
    assert root.core.num_forgotten == 1 and agents.Death(1, False) not in heard, "it would come before the news"
    root.core.news = [b"rank 1 has closed its communicator"]
    root.turn(time)
    root.turn(root.agent._peers[0].held_until)
    assert root.heard(2) == [agents.News(b"rank 1 has closed its communicator", False), agents.Death(1, False)]


def test_what_another_host_has_missed_is_told_again(leader: Star) -> None:
    leader.say(0, agents.TellAgain())
    leader.core.news = [b"all"]
    leader.turn(0.5)
    assert leader.heard(0) == [agents.News(b"all", True)] and leader.core.num_forgotten == 1


def test_a_host_that_answers_nothing_is_lost(root: Star) -> None:
    for peer in root.agent._peers:
        peer.link.is_silent = lambda seconds, peer=peer: peer.rank == 4 and seconds == agents.SILENT_SECONDS  # type: ignore[method-assign,misc]
    root.turn(5.0)
    assert root.core.reported == [(4, True)] and root.heard(2) == [agents.Death(4, True)]


def missing_news(star: Star, time: float) -> float:
    """Let rank 2 read nothing, until it has missed news; return the time."""
    while not star.agent._peers[0].has_missed:
        star.core.news = [bytes(100_000)]
        star.turn(time := time + 1)
        star.heard(4)
    return time


def until_read(star: Star, time: float) -> list[Any]:
    heard = []
    while star.agent._peers[0].has_missed:
        heard += star.heard(2)
        star.turn(time)
    return heard + star.heard(2)


def test_what_is_held_waits_on_while_a_leader_misses_news_again(root: Star) -> None:
    time = missing_news(root, 1.0)
    root.core.dead = [1]
    root.turn(time := time + 1)
    root.core.dead = []
    assert agents.Death(1, False) not in until_read(root, time)
    due = root.agent._peers[0].held_until
    missing_news(root, time)
    root.turn(due)  # then it had heard of the death, had it missed nothing more
    assert agents.Death(1, False) not in until_read(root, due)
    root.turn(root.agent._peers[0].held_until)
    assert agents.Death(1, False) in root.heard(2)


def test_the_end_reaches_a_leader_that_has_missed_news(root: Star) -> None:
    time = missing_news(root, 1.0)
    for other in (2, 4):
        root.say(other, agents.Leaving())
    root.core.others_present = 0
    heard = until_read(root, time)
    root.agent.leave()
    root.turn(time + 1)
    assert root.agent.has_ended and agents.Over() in heard + root.heard(2) and agents.Over() in root.heard(4)
