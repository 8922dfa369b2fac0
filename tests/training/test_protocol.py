"""The laws of the coordinator's protocol, in random runs: `python -m tests.training.test_protocol SEED` replays one."""

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from hocket.errors import InternalError
from hocket.training.coordinator.leader import ROUNDS_BEFORE_LOCK, Leader, Sizes
from hocket.training.coordinator.member import ROUNDS_BEFORE_UNLOCK, Action, Member
from hocket.training.coordinator.messages import (
    Announcement,
    Batch,
    Ids,
    Lock,
    frames_of,
    message_of,
    new_frame,
    num_left,
)
from tests.training import protocol_world
from tests.training.protocol_world import World

NUM_RUNS, NUM_PARTS = 10_000, 10


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_the_five_laws_hold_in_random_runs(part: int) -> None:
    num_locked = num_killed = 0
    for seed in range(part, NUM_RUNS, NUM_PARTS):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"python -m tests.training.test_protocol {seed}: {error!r}") from error
        num_locked += world.num_locked
        num_killed += world.killed is not None
    assert num_locked > 1000 and num_killed > 50  # the runs reach what they are to try


# --- the leader ------------------------------------------------------------------------------------------------------

EQUAL = Sizes([4] * 4, 1, 1)  # each tensor is a batch


def a_round(leader: Leader, *orders: Ids) -> list[Batch | Lock]:
    """Makes a round in which each rank has these tensors, in this order, and ranks speak in turn."""
    round, told = leader.round, []
    for place in range(max(map(len, orders))):
        for rank, order in enumerate(orders):
            if place < len(order):
                told += leader.hear(Announcement(rank, round, "ready", order[place : place + 1]))
    for rank in range(len(orders)):
        told += leader.hear(Announcement(rank, round, "flush", ()))
    return told


def test_the_order_is_that_of_the_latest_arrival() -> None:
    """Two ranks in opposite order: what is in the middle on both is ready first."""
    leader = Leader(2, EQUAL)
    for round in range(ROUNDS_BEFORE_LOCK - 1):
        assert a_round(leader, (0, 1, 2, 3), (3, 2, 1, 0)) == [
            *(Batch(round, (id,)) for id in (2, 1, 3, 0)),
            Batch(round, (), is_last=True),
        ]
    *batches, lock, last = a_round(leader, (0, 1, 2, 3), (3, 2, 1, 0))
    assert [one.ids for one in batches if isinstance(one, Batch)] == [(2,), (1,), (3,), (0,)]
    assert lock == Lock(2, ((1,), (2,), (0,), (3,)))  # places 2, 2, 3, 3; equal ones by number
    assert last == Batch(2, (), is_last=True)


def test_the_locked_order_is_the_median_of_three_rounds() -> None:
    leader = Leader(1, EQUAL)
    a_round(leader, (3, 0, 1, 2))
    a_round(leader, (2, 1, 0, 3))  # the odd one out
    assert Lock(2, ((3,), (0,), (1,), (2,))) in a_round(leader, (3, 0, 1, 2))


@pytest.mark.parametrize(
    ("first", "others", "batches"),
    [
        (10, 25, [(0,), (1, 2, 3)]),
        (10, 10, [(0,), (1,), (2,), (3,), (4,), (5,)]),
        (25, 40, [(0, 1, 2)]),
        (1000, 1000, []),
    ],
)
def test_batches_are_cut_at_the_first_size_and_then_at_the_others(first: int, others: int, batches: list[Ids]) -> None:
    leader = Leader(2, Sizes([10] * 6, first, others))
    every = tuple(range(6))
    assert leader.hear(Announcement(1, 0, "ready", every)) == [], "rank 0 has nothing ready"
    assert leader.hear(Announcement(0, 0, "ready", every)) == [Batch(0, ids) for ids in batches]
    assert leader.hear(Announcement(0, 0, "flush", ())) == []
    rest = tuple(id for id in every if id not in itertools.chain(*batches))
    assert leader.hear(Announcement(1, 0, "flush", ())) == [Batch(0, rest, is_last=True)]


def test_a_tensor_that_a_rank_leaves_out_is_agreed_at_its_flush_and_one_that_all_leave_out_is_not() -> None:
    leader = Leader(2, EQUAL)
    assert leader.hear(Announcement(0, 0, "ready", (1, 2))) == []
    assert leader.hear(Announcement(1, 0, "flush", (2,))) == [Batch(0, (2,)), Batch(0, (1,))]
    assert leader.hear(Announcement(0, 0, "flush", (0,))) == [Batch(0, (0,)), Batch(0, (), is_last=True)]


def test_ranks_lock_after_three_rounds_with_the_same_absences_only() -> None:
    leader = Leader(2, EQUAL)
    both, fewer = ((0, 1, 2), (2, 1, 0)), ((0, 1, 2), (2, 1))
    rounds = [both, both, fewer, both, fewer, fewer, fewer]
    locks = [any(isinstance(one, Lock) for one in a_round(leader, *orders)) for orders in rounds]
    assert locks == [False] * 6 + [True]
    leader.restart(7)
    locks = [any(isinstance(one, Lock) for one in a_round(leader, *orders)) for orders in [fewer] * 3]
    assert locks == [False, False, True], "what was before does not count"


def test_a_rank_that_joins_puts_off_the_lock() -> None:
    leader = Leader(2, EQUAL)
    for round in range(5):
        assert leader.hear(Announcement(1, round, "join", ())) == []
        assert leader.hear(Announcement(0, round, "flush", ())) == [Batch(round, (), is_last=True)]
    assert leader.hear(Announcement(1, 5, "join", ())) == []
    assert leader.hear(Announcement(0, 5, "join", ())) == [Batch(5, (), is_last=True, have_all_joined=True)]


@pytest.mark.parametrize("late", [Announcement(0, 1, "ready", (1,)), Announcement(0, 0, "ready", (1,))])
def test_the_leader_refuses_a_message_of_another_round_and_one_after_the_flush(late: Announcement) -> None:
    leader = Leader(2, EQUAL)
    leader.hear(Announcement(0, 0, "flush", ()))
    with pytest.raises(InternalError, match="the coordinator of round 0 heard"):
        leader.hear(late)


# --- the member ------------------------------------------------------------------------------------------------------


def locked(*batches: Ids, num_tensors: int = 4) -> Member:
    """A member in the first locked round."""
    member = Member(1, Sizes([4] * num_tensors, 1, 1))
    member.flush()
    member.hear(Lock(0, batches))
    member.hear(Batch(0, (), is_last=True))
    member.end()
    assert member.is_locked and member.round == 1
    return member


def replay(member: Member, order: Ids) -> list[Action]:
    """Makes a locked round, and ends it."""
    actions = [action for id in order for action in member.submit(id)]
    actions += member.flush()
    unlocks = member.wants_unlock
    member.end(unlocks)
    return actions


def test_a_member_speaks_when_a_batch_of_bytes_is_ready_and_at_the_flush() -> None:
    member = Member(1, Sizes([10] * 6, 10, 25))
    said = [member.submit(id) for id in (4, 0, 1, 2, 3)]
    assert said == [[Announcement(1, 0, "ready", (4,))], (), (), [Announcement(1, 0, "ready", (0, 1, 2))], ()]
    assert member.flush() == [Announcement(1, 0, "flush", (3,))]
    with pytest.raises(InternalError, match="round 0: tensor 5 was submitted twice, or after the flush"):
        member.submit(5)


def test_a_locked_member_launches_its_next_batch_and_the_rest_at_the_flush() -> None:
    member = locked((0, 1), (2,), (3,))
    assert member.submit(2) == [], "the batch before is not ready"
    assert member.submit(0) == ()
    assert member.submit(1) == [Batch(1, (0, 1)), Batch(1, (2,))]
    assert not member.is_complete
    assert member.flush() == [Batch(1, (3,), is_last=True)]
    assert member.is_complete


def test_a_member_wants_another_order_after_three_late_rounds_and_then_has_more_patience() -> None:
    member, batches = locked((0,), (1,), (2,), (3,)), ((0,), (1,), (2,), (3,))
    replay(member, (1, 0, 2, 3))  # this rank has always produced so: no order is better for all ranks
    for _ in range(5):
        replay(member, (1, 0, 2, 3))
        assert member.num_late == 0
    for number, order in enumerate([(3, 0, 1, 2), (3, 0, 1, 2), (0, 1, 2, 3), (3, 0, 1, 2), (2, 3, 0, 1)]):
        replay(member, order)
        assert member.num_late == [1, 2, 0, 1, 2][number] and member.is_locked
    replay(member, (3, 0, 1, 2))
    assert not member.is_locked, f"{ROUNDS_BEFORE_UNLOCK} late rounds, one after the other"
    member.flush()
    member.hear(Lock(member.round, batches))
    member.hear(Batch(member.round, (), is_last=True))
    member.end()
    replay(member, (0, 1, 2, 3))
    for number in range(2 * ROUNDS_BEFORE_UNLOCK):
        assert member.is_locked, number
        replay(member, (3, 0, 1, 2))
    assert not member.is_locked


@pytest.mark.parametrize("message", [Batch(1, (0,)), Lock(1, ((0,),))])
def test_a_member_refuses_messages_of_other_rounds_and_in_locked_ones(message: Any) -> None:
    with pytest.raises(InternalError, match=r"rank 1 heard .* in round 0"):
        Member(1, EQUAL).hear(message)
    with pytest.raises(InternalError, match=r"rank 1 heard .* in round 1"):
        locked((0, 1, 2, 3)).hear(message)


# --- protocols that are wrong ----------------------------------------------------------------------------------------


class HastyLeader(Leader):
    """Does not wait for the last rank that has a tensor."""

    def _begin(self, round: int) -> None:
        super()._begin(round)
        self._num_heard = [int(self._num_ranks > 1)] * self._num_tensors


class ForgetfulLeader(Leader):
    """Takes no notice of what a rank leaves out."""

    def hear(self, message: Announcement) -> list[Batch | Lock]:
        if message.kind == "flush" and len(message.ids) < self._num_tensors:
            self._num_heard = [
                heard - (id not in self._places[message.rank]) for id, heard in enumerate(self._num_heard)
            ]
        return super().hear(message)


class StubbornLeader(Leader):
    """Goes on with its own past after ranks have unlocked."""

    def restart(self, round: int) -> None:
        if round == 0:
            super().restart(round)


class DisorderlyMember(Member):
    """Launches a batch of a locked round as soon as its tensors are ready, whatever comes before it."""

    def _launch_ready(self) -> list[Action]:
        assert self.lock is not None
        if self._num_launched == 0:
            self._order_launched: list[Ids] = []
        ready = [ids for ids, missing in zip(self.lock, self._missing, strict=True) if missing == 0]
        fresh = [ids for ids in ready if ids not in self._order_launched]
        self._order_launched += fresh
        self._num_launched += len(fresh)
        self.is_complete = self._num_launched == len(self.lock)
        return [Batch(self.round, ids) for ids in fresh]


class TalkativeMember(Member):
    """Goes on speaking in locked rounds."""

    def submit(self, id: int) -> Sequence[Action]:
        actions = super().submit(id)
        return [Announcement(self._rank, self.round, "ready", (id,)), *actions] if self.is_locked else actions


class IdleMember(Member):
    """Does not launch at the flush what it leaves out."""

    def flush(self, joins: bool = False) -> Sequence[Action]:
        actions = super().flush(joins)
        return () if self.is_locked else actions


class LossyMember(Member):
    """Forgets the tensors that it has not yet told of when the program flushes."""

    def flush(self, joins: bool = False) -> Sequence[Action]:
        self._untold.clear()
        return super().flush(joins)


class DeafMember(Member):
    """A survivor that does not fail."""

    def fail(self, error: BaseException) -> None:
        pass


WRONG: list[tuple[str, Any, str]] = [
    ("Leader", HastyLeader, "law"),
    ("Leader", ForgetfulLeader, "waits for ever|law 2"),
    ("Leader", StubbornLeader, "the coordinator of round"),
    ("Member", DisorderlyMember, "law 1"),
    ("Member", TalkativeMember, "law 4"),
    ("Member", IdleMember, "law 1|waits for ever"),
    ("Member", LossyMember, "law [23]"),
    ("Member", DeafMember, "law 5|twice, or after the flush|heard"),
]


@pytest.mark.parametrize(("part", "wrong", "message"), WRONG, ids=[wrong.__name__ for _, wrong, _ in WRONG])
def test_a_wrong_protocol_is_noticed(monkeypatch: pytest.MonkeyPatch, part: str, wrong: Any, message: str) -> None:
    monkeypatch.setattr(protocol_world, part, wrong)
    with pytest.raises((AssertionError, InternalError), match=message):
        for seed in range(300):
            World(seed).run()


@pytest.mark.parametrize("count", [0, 1, 60, 61, 200])
def test_messages_of_any_number_of_tensors_arrive_as_they_were_sent(count: int) -> None:
    ids, cut = tuple(range(count))[::-1], count // 2 + 1
    messages = [Announcement(3, 7, "flush", ids), Batch(7, ids, True), Lock(7, (ids[:cut], ids[cut:]))]
    for message in messages[: 3 if count > 2 else 2]:
        frames = frames_of(message, 200)
        assert frames[0].shape == new_frame().shape and num_left(frames[0]) == sum(map(len, frames[1:]))
        assert message_of(frames, 3, 200) == message


if __name__ == "__main__":
    World(int(sys.argv[1])).run()
