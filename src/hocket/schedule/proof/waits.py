"""Who waits for whom when plans run: messages matched, no cycle, and what certainly happens before what.

Why no cycle in one piece proves it for any number of pieces: piece j of an instruction waits only for piece j of
instructions of the same or an earlier step, and for the message before it on a channel, in the order (piece + step,
step, order number). So all tasks can be done in the order (piece + step, step, place in a topological order of the
step): every wait points backwards in it. The edges of one step are all in the graph here, capacity one included.
"""

from typing import NamedTuple

import numpy as np

from hocket.errors import VerifyError
from hocket.schedule.lowering.dependencies import REMOTE, Ints
from hocket.schedule.proof.joint import JointPlans


class Messages(NamedTuple):
    """Matched messages, sorted by channel and then by (step, order); equal-length columns."""

    send: Ints
    fold: Ints
    follows: Ints  # index of the message before it on its channel, or -1
    entry: Ints  # of JointPlans.sources: where the fold reads it


def match_messages(joint: JointPlans) -> Messages:
    """Match sends and receives of every channel one to one. VerifyError (law 3) names what has no counterpart."""
    num_ranks = len(joint.plans)
    out, into = (np.flatnonzero(entries[:, 1] == REMOTE) for entries in (joint.destinations, joint.sources))
    send, fold = joint.destination_owner[out], joint.source_owner[into]
    sent, received = joint.destinations[out], joint.sources[into]
    sent_key = _sorted_key(joint, send, joint.rank[send] * num_ranks + sent[:, 0], sent[:, 2], out)
    received_key = _sorted_key(joint, fold, received[:, 0] * num_ranks + joint.rank[fold], received[:, 2], into)
    for key, name in ((sent_key, "sent"), (received_key, "received")):
        twice = np.flatnonzero((key[1:, :3] == key[:-1, :3]).all(axis=1))
        if len(twice):
            instruction = int(key[twice[0], 4])
            raise VerifyError(
                f"a message is {name} twice, again by {joint.describe(instruction)}", **joint.where(instruction)
            )
    common = min(len(sent_key), len(received_key))
    differ = np.flatnonzero((sent_key[:common, :4] != received_key[:common, :4]).any(axis=1))
    if len(differ) or len(sent_key) != len(received_key):
        raise _unmatched(joint, sent_key, received_key, int(differ[0]) if len(differ) else common)
    send, fold, channel = sent_key[:, 4], received_key[:, 4], sent_key[:, 0]
    follows = np.arange(-1, len(send) - 1)
    follows[np.flatnonzero(channel[1:] != channel[:-1]) + 1] = -1
    for end in (send, fold):  # A plan lists its messages in channel order: executors need not sort.
        disorder = np.flatnonzero((follows >= 0) & (end <= end[follows]))
        if len(disorder):
            later = int(end[disorder[0]])
            earlier = joint.describe(int(end[follows[disorder[0]]]))
            text = f"{joint.describe(later)} carries a later message of the channel, but is not listed after {earlier}"
            raise VerifyError(f"pieces would pass a channel in another order: {text}", **joint.where(later))
    return Messages(send, fold, follows, received_key[:, 5])


def _sorted_key(joint: JointPlans, instruction: Ints, channel: Ints, order: Ints, entry: Ints) -> Ints:
    key = np.stack((channel, joint.step[instruction], order, joint.chunk[instruction], instruction, entry), axis=1)
    return key[np.lexsort((order, key[:, 1], channel))]


def _unmatched(joint: JointPlans, sent: Ints, received: Ints, index: int) -> VerifyError:
    def tell(key: Ints) -> str:
        if index >= len(key):
            return "none"
        channel, step, order, chunk, instruction, _ = key[index].tolist()
        source, target = divmod(channel, len(joint.plans))
        number = instruction - int(joint.first[joint.rank[instruction]])
        return f"message {order} of step {step}, size class {chunk}, {source} -> {target} (instruction {number})"

    first = min((key[index].tolist() for key in (sent, received) if index < len(key)), key=lambda row: row[:4])
    return VerifyError(
        "sends and receives of a channel do not match",
        expected=f"every message sent to be received; next sent: {tell(sent)}",
        found=f"next received: {tell(received)}",
        **joint.where(first[4]),
    )


class Waits:
    """The graph of waits. Node i < n is instruction i running; node n + i is send i having been read by all."""

    def __init__(self, joint: JointPlans, messages: Messages) -> None:
        self.joint, self.messages = joint, messages
        self._before: list[list[int]] | None = None

    def check_cycles(self) -> None:
        """VerifyError (law 3) if waits of one step form a cycle, or one points to a later step."""
        joint, messages, n = self.joint, self.messages, self.joint.num_instructions
        late = np.flatnonzero(joint.step[joint.dependency] > joint.step[joint.dependent])
        if len(late):
            instruction = int(joint.dependent[late[0]])
            earlier = joint.describe(int(joint.dependency[late[0]]))
            text = f"{joint.describe(instruction)} depends on a later step: {earlier}"
            raise VerifyError(text, **joint.where(instruction))
        next_ = np.flatnonzero(messages.follows >= 0)
        previous = messages.follows[next_]
        settled = joint.dependency + n * joint.lent[joint.dependency]
        start = np.concatenate((settled, messages.send, messages.fold, messages.send[previous] + n))
        end = np.concatenate((joint.dependent, messages.fold, messages.send + n, messages.send[next_]))
        within = np.flatnonzero(joint.step[start % n] == joint.step[end % n]) if n else np.zeros(0, np.int64)
        start, end = start[within], end[within]  # every other wait points to an earlier step
        height = self._guess()
        if (height[start] < height[end]).all():
            return
        cycle = _find_cycle(2 * n, start, end)
        if cycle:
            text = ", which waits for ".join(joint.describe(node % n) for node in [*cycle, cycle[0]])
            raise VerifyError(f"wait cycle: {text}", **joint.where(cycle[0] % n))

    def _guess(self) -> Ints:
        """A height for each node that all waits of a plan from lower.py climb; where one does not, a search decides."""
        joint, messages, n = self.joint, self.messages, self.joint.num_instructions
        order = np.concatenate((joint.destinations[:, 2], joint.sources[:, 2]))
        owner = np.concatenate((joint.destination_owner, joint.source_owner))
        remote = np.concatenate((joint.destinations[:, 1], joint.sources[:, 1])) == REMOTE
        first, last = np.full(n, 1 << 40), np.full(n, -1)
        np.minimum.at(first, owner[remote], order[remote])
        np.maximum.at(last, owner[remote], order[remote])
        waiting = np.zeros(n, bool)
        waiting[joint.dependent[joint.step[joint.dependency] == joint.step[joint.dependent]]] = True
        height = np.where(joint.sends, 4 * first + 4, 4 * last + 5)
        height[last < 0] = np.where(waiting, 1 << 50, 0)[last < 0]
        behind = np.zeros(n, bool)
        queued = np.flatnonzero(messages.follows >= 0)
        queued = queued[joint.step[messages.send[queued]] == joint.step[messages.send[messages.follows[queued]]]]
        behind[messages.send[queued]] = True
        height[joint.sends & ~joint.lent & ~behind & ~waiting] = 1  # staged: folds of any row may wait for it
        drained = np.full(n, -1)
        np.maximum.at(drained, messages.send, height[messages.fold] + 1)
        return np.concatenate((height, drained))

    def happens_before(self, earlier: int, later: int) -> bool:
        """Whether instruction `earlier` has certainly run, in all timings and any capacity, when `later` runs.

        Capacity one is left out on purpose: a transport may have more. Exact, whatever the number of ranks.
        """
        before = self._predecessors()
        step = self.joint.step
        seen, stack = {later}, [later]
        while stack:
            for node in before[stack.pop()]:
                if node == earlier:
                    return True
                if node not in seen and step[node] >= step[earlier]:
                    seen.add(node)
                    stack.append(node)
        return False

    def readers(self, send: int) -> list[int]:
        """The folds that read a send's message, on all ranks."""
        found: list[int] = self.messages.fold[self.messages.send == send].tolist()
        return found

    def _predecessors(self) -> list[list[int]]:
        if self._before is None:
            joint, messages = self.joint, self.messages
            before: list[list[int]] = [[] for _ in range(joint.num_instructions)]
            readers: dict[int, list[int]] = {}
            follows = messages.follows.tolist()
            send, fold = messages.send.tolist(), messages.fold.tolist()
            for message, previous in enumerate(follows):
                before[fold[message]].append(send[message])
                readers.setdefault(send[message], []).append(fold[message])
                if previous >= 0:
                    before[fold[message]].append(fold[previous])
                    before[send[message]].append(send[previous])
            lent = joint.lent.tolist()
            for instruction, earlier in zip(joint.dependent.tolist(), joint.dependency.tolist(), strict=True):
                before[instruction] += readers[earlier] if lent[earlier] else (earlier,)
            self._before = before
        return self._before


def _find_cycle(size: int, start: Ints, end: Ints) -> list[int]:
    """Nodes of a cycle, each waiting for the next, or none."""
    waits_for: dict[int, list[int]] = {}
    followers: dict[int, list[int]] = {}
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        waits_for.setdefault(b, []).append(a)
        followers.setdefault(a, []).append(b)
    waiting = np.bincount(end, minlength=size).tolist()
    ready = [node for node in followers if not waiting[node]]
    while ready:
        for node in followers.get(ready.pop(), ()):
            waiting[node] -= 1
            if not waiting[node]:
                ready.append(node)
    stuck = [node for node in waits_for if waiting[node]]
    path: list[int] = []
    node = stuck[0] if stuck else -1
    while stuck and node not in path:
        path.append(node)
        node = next(earlier for earlier in waits_for[node] if waiting[earlier])
    return path[path.index(node) :] if stuck else []
