"""Random runs of the coordinator's protocol in one thread: many ranks, each with several program threads, and a network
whose messages arrive in any order that channels allow. A seed fixes everything.

Each run checks the laws of the protocol:

    1. all ranks launch the same sequence of batches
    2. if all ranks flush every round, every tensor that a rank submitted is done
    3. sums are those over the ranks that submitted, whatever the order, absences, joins and locks
    4. in a locked round no message is sent
    5. if a rank is killed, all survivors fail with the same error, and no round ends that needs the dead rank
"""

import random
from collections import deque
from dataclasses import dataclass, field

from hocket.errors import PeerAborted, PeerDied
from hocket.training.coordinator.leader import Leader, Sizes
from hocket.training.coordinator.member import Action, Member
from hocket.training.coordinator.messages import Announcement, Batch, Ids, Lock, Message, frames_of, message_of


@dataclass
class Launched:
    """A collective of a round: what each rank has given to it. `ids` None: the count at the end of a locked round."""

    ids: Ids | None
    values: dict[int, dict[int, int]] = field(default_factory=dict)  # rank -> tensor or name -> value


class Rank:
    """A rank as its program and engine see it: the rounds that it still has, and the values that it submits."""

    def __init__(self, world: "World", rank: int) -> None:
        self.world, self.rank = world, rank
        self.member = Member(rank, world.sizes)
        self.num_rounds = world.random.choice([0, world.num_rounds, world.random.randint(0, world.num_rounds)])
        if not world.uneven:
            self.num_rounds = world.num_rounds
        self.num_begun = 0
        self.todo: deque[int] = deque()  # what the threads of the program still submit in this round
        self.launched: list[int] = []  # numbers of collectives, in the order of this rank
        self.values: dict[int, int] = {}
        self.results: dict[int, dict[int, tuple[int, int]]] = {}  # round -> tensor -> (sum, presence)
        self.has_ended = False
        self.failure: BaseException | None = None
        self.order = list(range(world.num_tensors))
        self.random = random.Random(world.random.random())
        self.random.shuffle(self.order)
        self.is_even = self.random.random() < 0.6
        self.skips = self.random.sample(self.order, self.random.randint(0, len(self.order)))

    @property
    def is_joining(self) -> bool:
        return self.num_begun > self.num_rounds

    def can_act(self) -> bool:
        """Whether the program may go on: in a round it submits and flushes, after the flush it awaits the end."""
        return not self.has_ended and self.failure is None and not self.member.has_flushed

    def act(self) -> None:
        """Does one thing of the program: begins a round, submits, or flushes."""
        if not self.member.has_begun and not self.todo and self.num_begun <= self.member.round:
            self._begin()
        if self.todo:
            self.do(self.member.submit(self.todo.popleft()))
        else:
            self.do(self.member.flush(self.is_joining))
            if self.member.is_locked:
                wants = self.member.wants_unlock or self.random.random() < self.world.unlock_rate
                self.launch(None, {0: int(wants), 1: int(self.is_joining)})

    def _begin(self) -> None:
        self.num_begun += 1
        self.values = {}
        if self.is_joining:
            return
        order = list(self.order)
        if not self.is_even:
            self.random.shuffle(order)  # threads, or a program that changes
        elif self.random.random() < 0.1:
            self.random.shuffle(self.order)  # another order from now on
        absent = set(self.skips) if self.is_even else set(self.random.sample(order, self.random.randint(0, len(order))))
        self.todo = deque(id for id in order if id not in absent)
        self.values = {id: self.random.randrange(1, 10**6) for id in self.todo}
        for id, value in self.values.items():
            self.world.submitted.setdefault((self.member.round, id), []).append(value)

    def do(self, actions: "list[Action] | tuple[Action, ...]") -> None:
        for action in actions:
            if isinstance(action, Announcement):
                assert not self.member.is_locked, "law 4: a message in a locked round"
                self.world.send(action)
            else:
                self.launch(action.ids, {id: self.values[id] for id in action.ids if id in self.member.present})

    def launch(self, ids: Ids | None, values: dict[int, int]) -> None:
        number = len(self.launched)
        self.launched.append(number)
        if number == len(self.world.collectives):
            self.world.collectives.append(Launched(ids))
        collective = self.world.collectives[number]
        assert collective.ids == ids, f"law 1: rank {self.rank} launches {ids}, others {collective.ids}"
        collective.values[self.rank] = values
        self.mine.append(collective)

    mine: list[Launched]

    def can_end(self) -> bool:
        """Whether this round is done here: all its batches are known, and every rank has come to each of them."""
        member = self.member
        return (
            self.failure is None
            and not self.has_ended
            and member.has_flushed
            and member.is_complete
            and all(len(one.values) == self.world.num_ranks for one in self.mine)
        )

    def end(self) -> None:
        member, unlocks, joined = self.member, 0, 0
        results = {}
        was_locked = member.is_locked
        for one in self.mine:
            if one.ids is None:
                unlocks, joined = (sum(values[key] for values in one.values.values()) for key in (0, 1))
                continue
            for id in one.ids:
                given = [values[id] for values in one.values.values() if id in values]
                results[id] = (sum(given), len(given))
        self.results[member.round] = results
        assert member.present <= results.keys(), f"law 2: {member.present - results.keys()} is not done"
        have_all_joined = joined == self.world.num_ranks if was_locked else member.have_all_joined
        self.mine.clear()
        if have_all_joined:
            assert self.is_joining
            self.has_ended = True
            return
        member.end(unlocks > 0)
        if unlocks and self.rank == 0:
            self.world.leader.restart(member.round)


class World:
    """One random run. Raises AssertionError if a law does not hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.num_ranks = self.random.randint(1, 5)
        self.num_tensors = self.random.randint(1, 9)
        self.num_rounds = self.random.randint(1, 14)
        self.uneven = self.random.random() < 0.4
        self.unlock_rate = self.random.choice([0.0, 0.0, 0.05])
        self.killed: int | None = None
        self.kill_at = self.random.randint(0, 400) if self.num_ranks > 1 and self.random.random() < 0.25 else None
        bytes_of = [self.random.choice([4, 40, 400]) for _ in range(self.num_tensors)]
        self.sizes = Sizes(bytes_of, self.random.choice([1, 50]), self.random.choice([1, 50, 500, 10**6]))
        self.leader = Leader(self.num_ranks, self.sizes)
        self.up: list[deque[Announcement]] = [deque() for _ in range(self.num_ranks)]
        self.down: list[deque[Batch | Lock]] = [deque() for _ in range(self.num_ranks)]
        self.collectives: list[Launched] = []
        self.num_locked = 0
        self.submitted: dict[tuple[int, int], list[int]] = {}  # of a round and a tensor: the values of its ranks
        self.ranks = [Rank(self, rank) for rank in range(self.num_ranks)]
        for rank in self.ranks:
            rank.mine = []

    def send(self, message: Announcement) -> None:
        """Puts a message on its way to the leader, through the form that it has there."""
        self.up[message.rank].append(self._over_the_wire(message, message.rank))  # type: ignore[arg-type]

    def _over_the_wire(self, message: Message, rank: int) -> Message:
        arrived = message_of(frames_of(message, self.num_tensors), rank, self.num_tensors)
        assert arrived == message
        return arrived

    def run(self) -> None:
        """Does random steps until nothing can happen any more, and checks the laws."""
        for step in range(100_000):
            if step == self.kill_at:
                self._kill()
            steps = self._possible()
            if not steps:
                break
            kind, rank = self.random.choice(steps)
            one = self.ranks[rank]
            self.num_locked += kind == "end" and one.member.is_locked
            if kind == "act":
                one.act()
            elif kind == "up":
                for told in self.leader.hear(self.up[rank].popleft()):
                    for queue in self.down:
                        queue.append(self._over_the_wire(told, 0))  # type: ignore[arg-type]
            elif kind == "down":
                one.do(one.member.hear(self.down[rank].popleft()))
            elif kind == "end":
                one.end()
            else:
                self._fail(one)
        self._check()

    def _kill(self) -> None:
        living = [rank.rank for rank in self.ranks if not rank.has_ended]
        if len(living) == self.num_ranks:
            self.killed = self.random.choice(living)
            self.death = PeerDied(f"rank {self.killed} died", rank=self.killed)

    def _fail(self, one: Rank) -> None:
        """Tells a survivor, of which every call must raise the error of the death, and do nothing else."""
        member, before = one.member, len(one.launched)
        member.fail(self.death)
        member.fail(PeerAborted("a consequence", rank=one.rank, reason=""))
        calls = (lambda: member.submit(0), member.flush, lambda: member.hear(Batch(member.round, ())), member.end)
        for call in calls:
            try:
                call()
            except PeerDied as error:
                one.failure = error
            assert one.failure is self.death, f"law 5: rank {one.rank} did not fail"
        assert len(one.launched) == before

    def _possible(self) -> list[tuple[str, int]]:
        found = []
        for rank in self.ranks:
            number = rank.rank
            if number == self.killed or rank.failure is not None:
                continue
            if self.killed is not None and not rank.has_ended:
                found.append(("fail", number))
            if rank.can_act():
                found.append(("act", number))
            if self.down[number] and not rank.has_ended:
                found.append(("down", number))
            if rank.can_end():
                found.append(("end", number))
        # The leader hears others only while it is in a negotiated round itself, as in the program.
        leader = self.ranks[0]
        hears = not leader.has_ended and leader.member.has_begun and not leader.member.is_locked
        if self.killed != 0 and leader.failure is None and hears:
            found += [("up", number) for number, queue in enumerate(self.up) if queue]
        return found

    def _check(self) -> None:
        if self.killed is not None:
            for rank in self.ranks:
                if rank.rank != self.killed and not rank.has_ended:
                    assert rank.failure is self.death, f"law 5: rank {rank.rank} was not told"
        else:
            assert all(rank.has_ended for rank in self.ranks), "a rank waits for ever"
            assert not any(self.up) and not any(self.down)
            assert len({len(rank.launched) for rank in self.ranks}) == 1
        for one in self.ranks:
            for round, results in one.results.items():
                for id, result in results.items():
                    values = self.submitted.get((round, id), [])
                    assert result == (sum(values), len(values)), (
                        f"law 3: round {round}, tensor {id}: {result}, {values}"
                    )
